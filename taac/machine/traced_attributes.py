"""What a module and the objects that it holds have as attributes: what a compiled program of it was traced with, or reads."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch


class Unwatched:
    """Marks objects whose attributes no compiled program reads."""


_SCALARS = (bool, int, float, str)
_LEFT_OUT = (torch.Tensor, torch.nn.Module, Unwatched, type, types.FunctionType, types.MethodType, types.ModuleType)
_OF_MODULES = {*torch.nn.Module().__dict__} - {"training"}


def _walk(owner: Any, seen: set[int]) -> Iterator[tuple[Any, str, Any]]:
    """Yields the attributes of an object and of those that it holds: owner, name and value. Modules' own are left out."""
    if id(owner) in seen:
        return
    seen.add(id(owner))
    for key, value in owner.__dict__.items():
        if key not in _OF_MODULES:
            yield owner, key, value
            for one in _objects(value):
                yield from _walk(one, seen)


def _objects(value: Any) -> list[Any]:
    """Returns the object that an attribute is, or those in the list or tuple that it is."""
    ones = value if isinstance(value, (list, tuple)) else (value,)
    return [one for one in ones if hasattr(one, "__dict__") and not isinstance(one, _LEFT_OUT)]


def parts(module: torch.nn.Module) -> Iterator[Any]:
    """Yields a module, its submodules, and the objects that they hold: all whose attributes a compiled program of it may read."""
    seen: set[int] = set()
    for part in module.modules():
        yield part
        for _, _, value in _walk(part, seen):
            yield from _objects(value)


class TracedAttributes:
    """The numbers, strings and objects that are attributes of a module, its submodules, or objects that they hold.

    Tensors are left out, because a compiled program reads them at every call; so are lists, dictionaries and functions.
    """

    def __init__(self, module: torch.nn.Module):
        seen: set[int] = set()
        self._held: list[tuple[dict[str, Any], str, Any, str]] = [
            (owner.__dict__, key, value, f"{type(owner).__name__}.{key}")
            for part in module.modules()
            for owner, key, value in _walk(part, seen)
            if not isinstance(value, _LEFT_OUT)
            and (hasattr(value, "__dict__") or value is None or isinstance(value, _SCALARS))
        ]
        self._owners = [attributes for attributes, *_ in self._held]
        self._names = [key for _, key, *_ in self._held]
        self._values = [value for _, _, value, _ in self._held]

    def changed(self) -> str | None:
        """Returns the name of an attribute that has another value; None if all have the same."""
        if [*map(dict.get, self._owners, self._names)] == self._values:  # asked at every call, so compared without a loop
            return None
        for attributes, key, before, name in self._held:
            now = attributes.get(key)
            if now is not before and now != before and (before is not None or isinstance(now, _SCALARS)):
                return name
        return None
