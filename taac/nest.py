"""Nested tensors: functions over dicts, tuples, lists and NamedTuples of any depth.

`()` is a nest without leaves, so an unused field of a record costs nothing. Dicts are visited in the order of the first
nest's keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from taac.data_structures import Nest
from taac.errors import TaacError


def is_container(nest: Nest) -> bool:
    return isinstance(nest, (dict, tuple, list))


def kind(leaf: Any) -> str:
    """Returns dtype and shape of a tensor, or the type of anything else."""
    return f"{leaf.dtype} {list(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__


def map_structure(fn: Callable[..., Any], nest: Nest, *others: Nest) -> Nest:
    """Returns the nest of `fn(leaf, ...)` over corresponding leaves of nests with the same structure.

    Raises:
        TaacError: the structures differ; the message names the path of the first difference.
    """
    if not others:
        return _map_one(fn, nest)
    leaves = [fn(*corresponding) for corresponding in zip(*(flatten_like(nest, n) for n in (nest, *others)))]
    iterator = iter(leaves)
    return _map_one(lambda _: next(iterator), nest)


def flatten_like(structure: Nest, nest: Nest) -> list[Any]:
    """Returns all leaves of `nest`, in the order of `structure`.

    Raises:
        TaacError: `nest` has another structure; the message names the path of the first difference.
    """
    try:
        return _leaves_like(structure, nest, [])
    except _Differ:
        return list(_checked_leaves(structure, nest, ""))


class _Differ(Exception):
    pass


def _leaves_like(structure: Nest, nest: Nest, leaves: list[Any]) -> list[Any]:
    """Returns the leaves of `nest` in the order of `structure`. Builds no path names, because rollouts call it at every step."""
    if isinstance(structure, dict):
        if not isinstance(nest, dict) or structure.keys() != nest.keys():
            raise _Differ
        for key, value in structure.items():
            _leaves_like(value, nest[key], leaves)
    elif isinstance(structure, (tuple, list)):
        if type(structure) is not type(nest) or len(structure) != len(nest):
            raise _Differ  # also for a tuple and a list of equal length, which `_checked_leaves` then accepts as one structure
        for value, other in zip(structure, nest):
            if type(value) is Tensor and not isinstance(other, (dict, tuple, list)):
                leaves.append(other)
            else:
                _leaves_like(value, other, leaves)
    elif isinstance(nest, (dict, tuple, list)):
        raise _Differ
    else:
        leaves.append(nest)
    return leaves


def _map_one(fn: Callable[[Any], Any], nest: Nest) -> Nest:
    # Rollouts call this several times a step, so it neither zips nor builds path names.
    if isinstance(nest, dict):
        return {key: _map_one(fn, value) for key, value in nest.items()}
    if isinstance(nest, tuple):
        values = [_map_one(fn, value) for value in nest]
        return type(nest)(*values) if hasattr(nest, "_fields") else tuple(values)
    if isinstance(nest, list):
        return [_map_one(fn, value) for value in nest]
    return fn(nest)


def _checked_leaves(structure: Nest, nest: Nest, path: str) -> Iterator[Any]:
    """Yields the leaves of `nest` in the order of `structure`, up to the first difference, of which the error names the path."""
    if not is_container(structure):
        if is_container(nest):
            raise TaacError(f"nests differ at '{path or '/'}': a leaf in one, {_describe(nest)} in another")
        yield nest
        return
    _check_same(structure, nest, path)
    if isinstance(structure, dict):
        parts = [(key, part, nest[key]) for key, part in structure.items()]
    else:
        parts = list(zip(getattr(structure, "_fields", range(len(structure))), structure, nest))
    for name, part, other in parts:
        yield from _checked_leaves(part, other, f"{path}/{name}")


def _check_same(first: Nest, other: Nest, path: str) -> None:
    same = is_container(other) and isinstance(other, dict) == isinstance(first, dict) and len(other) == len(first)
    if same and (hasattr(first, "_fields") or hasattr(other, "_fields")):
        same = type(first) is type(other)  # records of equal length have different structures
    if same and isinstance(first, dict):
        same = first.keys() == other.keys()
    if not same:
        raise TaacError(f"nests differ at '{path or '/'}': {_describe(first)} in one, {_describe(other)} in another")


def _describe(nest: Nest) -> str:
    if isinstance(nest, dict):
        return f"a dict with keys {sorted(map(str, nest))}"
    if is_container(nest):
        return f"a {type(nest).__name__} of {len(nest)}"
    return "a leaf"


def flatten_with_path(nest: Nest, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields pairs of a leaf's path (`"camera/0"`; `""` for a bare leaf) and the leaf."""
    if isinstance(nest, dict):
        items = list(nest.items())
    elif isinstance(nest, (tuple, list)):
        items = list(zip(getattr(nest, "_fields", range(len(nest))), nest))
    else:
        yield path, nest
        return
    for key, value in items:
        yield from flatten_with_path(value, f"{path}/{key}" if path else str(key))


def array(leaf: Tensor | np.ndarray) -> np.ndarray:
    """Returns a leaf as a numpy array on the CPU. It shares the leaf's memory if that is there."""
    if isinstance(leaf, np.ndarray):
        return leaf
    return leaf.numpy() if leaf.is_cpu else leaf.cpu().numpy()


def flatten(nest: Nest) -> list[Any]:
    """Returns all leaves, in order."""
    leaves: list[Any] = []
    _add_leaves(nest, leaves)
    return leaves


def _add_leaves(nest: Nest, leaves: list[Any]) -> None:
    if isinstance(nest, dict):
        nest = nest.values()
    elif not isinstance(nest, (tuple, list)):
        leaves.append(nest)
        return
    for value in nest:
        if type(value) is Tensor:  # the usual leaf, which `isinstance` takes long to tell from a container
            leaves.append(value)
        else:
            _add_leaves(value, leaves)


def packer(structure: Nest) -> Callable[[Iterator[Any]], Nest]:
    """Returns a function that takes leaves from an iterator and returns them as a nest with the structure of `structure`.

    For structures that are packed again and again: `pack_like` looks at the structure each time.
    """
    if isinstance(structure, dict):
        named = {key: packer(value) for key, value in structure.items()}
        return lambda leaves: {key: pack(leaves) for key, pack in named.items()}
    if isinstance(structure, (tuple, list)):
        parts = [packer(value) for value in structure]
        make: Callable[[list[Any]], Nest] = getattr(type(structure), "_make", type(structure))
        return lambda leaves: make([pack(leaves) for pack in parts])
    return next


def pack_like(structure: Nest, leaves: list[Any]) -> Nest:
    """Returns the nest with the structure of `structure` and the given leaves. The inverse of `flatten`.

    Raises:
        TaacError: the number of leaves differs.
    """
    iterator = iter(leaves)
    if len(leaves) != len(flatten(structure)):
        raise TaacError(f"got {len(leaves)} leaves for a structure with {len(flatten(structure))}")
    return map_structure(lambda _: next(iterator), structure)


def broadcast(mask: Tensor, leaf: Tensor) -> Tensor:
    """Returns a tensor `[...]` as `[..., 1, 1]`, so that it broadcasts with a leaf that has further dimensions."""
    return mask[(...,) + (None,) * (leaf.dim() - mask.dim())]


def where(mask: Tensor, nest: Nest, other: Nest) -> Nest:
    """Returns the nest of the leaves of `nest` where the mask of their first dimensions is true, else of those of `other`."""

    def chosen(x: Tensor, y: Tensor) -> Tensor:
        m = broadcast(mask, x)
        return (m & x) | (~m & y) if y.dtype == torch.bool else torch.where(m, x, y)  # ONNX chooses between numbers only

    return map_structure(chosen, nest, other)


def index(nest: Nest, key: Any) -> Nest:
    """Returns the nest of `leaf[key]`, for an integer, a slice or an index tensor."""
    return map_structure(lambda leaf: leaf[key], nest)
