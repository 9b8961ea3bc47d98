"""Bound values: replaces their macros, and checks them against the annotations of the parameters."""

from __future__ import annotations

import contextlib
import inspect
import re
import typing
from collections.abc import Mapping
from typing import Any

import typeguard

from taac.configuration import gin_state
from taac.configuration.binding import Binding
from taac.configuration.macros import TASK_MACROS
from taac.configuration.names import nearest
from taac.errors import TaacError


def resolve(value: Any, macros: Mapping[str, Any]) -> tuple[bool, Any]:
    """Replaces the macros in a value by their values.

    The value must have passed `check_macros`, otherwise this may not end.

    Args:
        value: a bound value.
        macros: value of each macro by name.

    (True, the value), or (False, a placeholder) if it must be built first.
        (True, the value), or (False, ...) if it must be built first.
    """
    if isinstance(value, gin_state.Reference):
        macro = gin_state.macro_of(value)
        if macro is not None and value.evaluate:
            return resolve(macros[macro], macros)
        return (False, None) if value.evaluate else (True, value.configurable.wrapper)
    if isinstance(value, (list, tuple)):
        parts = [resolve(v, macros) for v in value]
        return all(known for known, _ in parts), type(value)(v for _, v in parts)
    return True, value


def check_macros(binding: Binding, macros: Mapping[str, Any], seen: tuple[str, ...] = ()) -> None:
    """Refuses a value that refers to a macro without a value, or to a macro that is defined by itself.

    Raises:
        TaacError: names the binding's place and the nearest macro.
    """
    for reference in gin_state.references(binding.value):
        name = gin_state.macro_of(reference)
        if name is None:
            continue
        if name not in macros:
            by = " (a task file defines it: gin/tasks/*.gin)" if name in TASK_MACROS else ""
            raise TaacError(f"{binding}: the macro '{name}' has no value{by}{nearest(name, macros)}")
        if name in seen:
            raise TaacError(f"{binding}: the macro '{name}' is defined by itself, by way of {', '.join(seen)}")
        check_macros(binding._replace(value=macros[name]), macros, (*seen, name))


def check_type(binding: Binding, macros: Mapping[str, Any]) -> None:
    """Refuses a value that does not fit the annotation of its parameter. Values that must be built first are not checked.

    Raises:
        TaacError: names the binding's place, the expected type and what is wrong.
    """
    if binding.is_macro:
        return
    expected = type_hints(gin_state.wrapped(binding.selector)).get(binding.name)
    known, value = resolve(binding.value, macros)
    if expected is None or not known:
        return
    problem = None
    if isinstance(value, bool) and bool not in (expected, *typing.get_args(expected)) and _is_number(expected):
        problem = f"{value} is a bool"
    else:
        try:
            typeguard.check_type(
                value,
                expected,
                forward_ref_policy=typeguard.ForwardRefPolicy.IGNORE,
                collection_check_strategy=typeguard.CollectionCheckStrategy.ALL_ITEMS,
            )
        except typeguard.TypeCheckError as error:
            problem = str(error).splitlines()[0].rstrip(":")  # for a union, further lines list its members
    if problem:
        named = expected.__name__ if isinstance(expected, type) else str(expected)
        named = re.sub(r"\b(typing|taac)[.](\w+[.])*", "", named)
        given = "" if value is binding.value else f" (which is {value!r})"
        raise TaacError(f"{binding}{given} has the wrong type: expected {named}; {problem}")


def _is_number(annotation: Any) -> bool:
    return annotation in (int, float) or any(part in (int, float) for part in typing.get_args(annotation))


# Parameters of a class or function -----------------------------------------------------------------------------------


def parameters(wrapped: Any) -> list[str]:
    """Returns the names of the parameters that can be bound; [] if any keyword is accepted."""
    levels = _levels(wrapped)
    if levels and _takes_any_keyword(levels[-1]):
        return []
    return [
        p.name
        for level in levels
        for p in _signature(level).values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"
    ]


def default(wrapped: Any, name: str) -> Any:
    """Returns the default of a parameter; `inspect.Parameter.empty` if it has none or does not exist."""
    found = (_signature(level).get(name) for level in _levels(wrapped))
    return next((p.default for p in found if p is not None), inspect.Parameter.empty)


def type_hints(wrapped: Any) -> dict[str, Any]:
    """Returns the type of each annotated parameter. Skips annotations that cannot be resolved, as in a user's own module."""
    found: dict[str, Any] = {}
    for level in reversed(_levels(wrapped)):
        with contextlib.suppress(NameError, TypeError, AttributeError):
            found |= typing.get_type_hints(_function(level))
    return found


def _levels(wrapped: Any) -> list[Any]:
    """Returns a function itself, or a class and its bases as far as their constructors pass keywords to the next."""
    if not isinstance(wrapped, type):
        return [wrapped]
    found = []
    for level in wrapped.__mro__[:-1]:
        if "__init__" in vars(level):
            found.append(level)
            if not _takes_any_keyword(level):
                break
    return found


def _takes_any_keyword(level: Any) -> bool:
    return any(p.kind == p.VAR_KEYWORD for p in _signature(level).values())


def _signature(level: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(_function(level)).parameters


def mentions(annotation: Any, type_: type) -> bool:
    """Returns whether an annotation is, or contains, a type."""
    return annotation == type_ or any(mentions(part, type_) for part in typing.get_args(annotation))


def _function(wrapped: Any) -> Any:
    return wrapped.__init__ if isinstance(wrapped, type) else wrapped  # type: ignore[misc]
