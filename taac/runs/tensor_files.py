"""Nested state as JSON and tensors in the safetensors format, neither of which can run code."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from taac.errors import TaacError
from taac.machine.memory import available_bytes, readable_bytes
from taac.runs import durable, files
from taac.runs.files import Damaged

FORMAT = 3  # of manifests
_DTYPES = {
    f"torch.{name}"
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
}


def pack(tensors: dict[str, torch.Tensor]) -> bytes:
    """Serializes named tensors in the safetensors format: a JSON header of names, types and shapes, then plain numbers."""
    # Copies, because the format refuses tensors that share memory.
    return safetensors.torch.save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})


def unpack(data: bytes, path: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors that `pack` serialized. Reading cannot run code, and takes no more memory than `data` is long.

    Raises Damaged if the data is not safetensors, or holds tensors that this package never writes.
    """
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
    """Splits nested dicts, lists and tuples of tensors, numbers, strings and None (TypeError otherwise) into JSON and tensors."""
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

    Raises Damaged if the tree names tensors that are missing, or does not have the form that `encode` writes.
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


# Manifests: JSON that lists the files of its tensors, with their sizes and checksums -----------------------------------------


def write_entry(path: Path, data: bytes) -> dict[str, Any]:
    """Writes a file, and returns what a manifest says of it."""
    durable.write(path, data)
    return {"name": path.name, "bytes": len(data), "blake2b": files.digest(data)}


def read_entry(folder: Path, entry: Any) -> dict[str, torch.Tensor]:
    """Returns the tensors of a file that a manifest lists.

    Raises Damaged if the file is not as the manifest says, or it says nothing; TaacError if it does not fit into memory.
    """
    try:
        name, size, checksum = entry["name"], entry["bytes"], entry["blake2b"]
    except (KeyError, TypeError) as error:
        raise Damaged(f"a manifest in {folder} does not describe a file: {error!r}") from error
    if type(name) is not str or not re.fullmatch(r"[\w-]+\.safetensors", name):
        raise Damaged(f"a manifest in {folder} names the file {name!r}, which no checkpoint has")
    path, free = folder / name, available_bytes(torch.device("cpu"))
    try:
        files.check_file(path)
        if (found := os.path.getsize(path)) != size:
            raise Damaged(f"{path} has {found} bytes, expected {size}")
        if 2 * found > free:  # its bytes, and the tensors that are made of them
            raise TaacError(f"{path} does not fit into memory: {readable_bytes(free)} are free")
        data = files.read_bytes(path, found)
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error}") from error
    if files.digest(data) != checksum:
        raise Damaged(f"{path} has changed since it was written: its checksum is {files.digest(data)}, expected {checksum}")
    return unpack(data, path)


def make_manifest(content: dict[str, Any]) -> bytes:
    """Returns the bytes of a manifest: a line of JSON with format and checksum, then the content as JSON."""
    body = json.dumps(content).encode()
    return json.dumps({"taac_checkpoint": FORMAT, "blake2b": _digest(FORMAT, body)}).encode() + b"\n" + body


def _digest(version: int, body: bytes) -> str:
    return files.digest(str(version).encode() + b"\n" + body)


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the content of a manifest. Raises Damaged if it is not as it was written, TaacError if it has another format."""
    try:
        first, _, body = files.read_bytes(path, files.MAX_JSON_BYTES).partition(b"\n")
        header = json.loads(first)
        version, expected = header["taac_checkpoint"], header["blake2b"]
        if type(version) is not int or _digest(version, body) != expected:
            raise Damaged(f"{path} has changed since it was written: its checksum differs")
        if version != FORMAT:
            raise TaacError(
                f"the checkpoint {path} has format {version}, and this version of taac reads format {FORMAT}: go on with the "
                "version that wrote it, or train again in another folder"
            )
        content = json.loads(body)
    except TaacError:
        raise
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(f"{path} is not a manifest: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict):
        raise Damaged(f"{path} is not a manifest: it holds a {type(content).__name__}")
    return content
