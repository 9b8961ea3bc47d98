"""Nested state as JSON and tensors in the safetensors format, neither of which can run code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from taac.runs.files import Damaged

if TYPE_CHECKING:
    import torch  # importing it takes seconds; commands that read only text do without

_DTYPES = {
    f"torch.{name}"
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
}


def pack(tensors: dict[str, torch.Tensor]) -> bytes:
    """Serializes named tensors in the safetensors format: a JSON header of names, types and shapes, then plain numbers."""
    import safetensors.torch

    # Copies, because the format refuses tensors that share memory.
    return safetensors.torch.save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})


def unpack(data: bytes, path: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors that `pack` serialized. Reading cannot run code, and takes no more memory than `data` is long.

    Raises:
        Damaged: the data is not safetensors, or holds tensors that this package never writes.
    """
    import safetensors.torch
    import torch

    try:
        tensors = safetensors.torch.load(data)
    except Exception as error:  # the type depends on what is wrong
        raise Damaged(f"{path} holds no tensors in the safetensors format: {type(error).__name__}: {error}") from error
    if odd := sorted({str(t.dtype) for t in tensors.values()} - _DTYPES):
        raise Damaged(f"{path} holds tensors of {', '.join(odd)}, which this package does not write")
    if any(bool((t.view(torch.uint8) > 1).any()) for t in tensors.values() if t.dtype == torch.bool):
        raise Damaged(f"{path} holds bytes that are no booleans")
    return tensors


def encode(value: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """Splits nested dicts, lists and tuples of tensors, numbers, strings and None into JSON and a dict of tensors.

    Raises:
        TypeError: it contains anything else.
    """
    import torch

    tensors: dict[str, torch.Tensor] = {}

    def plain(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            while path in tensors:  # a key may itself contain "/"
                path += "'"
            tensors[path] = value
            return {"$tensor": path}
        if isinstance(value, dict):
            items = {key: plain(v, f"{path}/{key}" if path else str(key)) for key, v in value.items()}
            if all(isinstance(key, str) and not key.startswith("$") for key in items):
                return items
            if not all(isinstance(key, (str, int)) for key in items):
                raise TypeError(f"'{path}': keys must be strings or integers, got {list(items)}")
            return {"$items": [[key, v] for key, v in items.items()]}
        if isinstance(value, (list, tuple)):
            parts = [plain(v, f"{path}/{i}") for i, v in enumerate(value)]
            return parts if isinstance(value, list) else {"$tuple": parts}
        if value is None or type(value) in (bool, int, float, str):
            return value
        raise TypeError(f"'{path}': a {type(value).__name__} cannot be saved in a file of tensors and JSON")

    return plain(value, ""), tensors


def decode(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Restores what `encode` split.

    Raises:
        Damaged: the tree names tensors that are missing, or does not have the form that `encode` writes.
    """

    def value(tree: Any) -> Any:
        if isinstance(tree, list):
            return [value(part) for part in tree]
        if not isinstance(tree, dict):
            return tree
        if not any(key.startswith("$") for key in tree):
            return {key: value(part) for key, part in tree.items()}
        ((kind, content),) = tree.items()
        if kind == "$tensor":
            return tensors[content]
        if kind == "$items":
            return {key: value(part) for key, part in content}
        if kind == "$tuple":
            return tuple(value(part) for part in content)
        raise KeyError(kind)

    try:
        return value(tree)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(f"a description of tensors is malformed: {type(error).__name__}: {error}") from error
