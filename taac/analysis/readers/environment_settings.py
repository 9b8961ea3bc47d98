"""Finds the settings of an environment that are not `create_environment`'s: its wrappers', its class's, and what these use."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from taac.analysis.readers.run_records import value_of

_NAME, _USING = "create_environment.env_name", ("create_environment.wrappers", "create_environment.env_kwargs")
_REFERENCE = re.compile(r"@((?:[\w.]+/)*)([\w.]+)|%([\w./]+)")  # scopes and name of a configurable, or a macro
_CLASS = re.compile(r"([\w.]+):(\w+)")
_MOST_PARTS = 20  # of a name; longer ones are a stranger's, and would take long
_Parts = tuple[str, ...]


class _Used(NamedTuple):
    """A configurable that an environment uses."""

    selector: _Parts  # modules and name
    scopes: _Parts | None  # in which it is called; None for any


def names(settings: Mapping[str, str]) -> set[str]:
    """Returns the names of the bindings that reach an environment beside those of `create_environment`.

    They are those of every configurable that `wrappers` or `env_kwargs` refer to, in its scope and those around it; of the class
    or function in `env_name = 'module:Class'`, in any scope; of what these bindings refer to in turn; and the macros inside of
    their values. An environment that is registered under an id is not traced to its class.
    """
    bindings, found, seen = _Bindings(settings), set[str](), set[_Used]()
    waiting = [used for name in _USING for used in _used(settings, settings.get(name, ""), (), found)]
    if of_class := _CLASS.fullmatch(str(value_of(settings.get(_NAME, "")))):
        waiting.append(_Used((*of_class[1].split("."), of_class[2]), None))
    while waiting:
        used = waiting.pop()
        if used not in seen:
            seen.add(used)
            for name in bindings.of(used):
                found.add(name)
                waiting += _used(settings, settings[name], used.scopes or (), found)
    return found


def _used(settings: Mapping[str, str], text: str, scopes: _Parts, macros: set[str]) -> list[_Used]:
    """The configurables that a value refers to, also through macros, which are added to `macros`.

    Args:
        scopes: those in which a reference without a scope is called.
    """
    found, texts = [], [text]
    while texts:
        for scope, name, macro in _REFERENCE.findall(texts.pop()):
            if name:
                found.append(_Used(tuple(name.split(".")), tuple(scope.split("/")[:-1]) if scope else scopes))
            elif macro in settings and macro not in macros:
                macros.add(macro)
                texts.append(settings[macro])
    return found


class _Bindings:
    """Finds the bindings of a configurable, of whose name gin writes as many modules as tell it from others."""

    def __init__(self, settings: Mapping[str, str]):
        self._whole: dict[tuple[_Parts, _Parts | None], list[str]] = defaultdict(list)  # by selector and scopes
        self._ends: dict[tuple[_Parts, _Parts | None], list[str]] = defaultdict(list)  # by each shorter end of a selector
        for name in settings:
            scope, _, parameter = name.rpartition("/")
            selector = tuple(parameter.split(".")[:-1][-_MOST_PARTS:])
            for scopes in (tuple(scope.split("/")) if scope else (), None):
                self._whole[selector, scopes].append(name)
                for start in range(1, len(selector)):
                    self._ends[selector[start:], scopes].append(name)

    def of(self, used: _Used) -> list[str]:
        selector = used.selector[-_MOST_PARTS:]
        around: list[_Parts | None] = [None]
        if used.scopes is not None:  # a call also has the bindings of the scopes around its own
            around = [used.scopes[:depth] for depth in range(min(len(used.scopes), _MOST_PARTS) + 1)]
        shorter = [selector[start:] for start in range(len(selector))]
        keys = [(part, scopes) for scopes in around for part in shorter]
        found = [name for key in keys for name in self._whole.get(key, ())]
        return found + [name for scopes in around for name in self._ends.get((selector, scopes), ())]
