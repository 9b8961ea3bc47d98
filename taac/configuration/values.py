"""Bound values: replaces their macros, and checks them against the annotations of the parameters."""

from __future__ import annotations

import contextlib
import functools
import inspect
import pprint
import re
import sys
import typing
from collections.abc import Collection, Mapping
from typing import Any

import typeguard

from taac.configuration import gin_state
from taac.configuration.binding import TASK_MACROS, Binding
from taac.configuration.gin_state import short
from taac.errors import TaacError, nearest

MOST_VALUES = 100_000  # that a bound value may hold when its macros are replaced


def resolve(value: Any, macros: Mapping[str, Any]) -> tuple[bool, Any]:
    """Replaces the macros in a checked value. Returns (True, the value), or (False, a placeholder) if it must be built first."""
    if isinstance(value, gin_state.Reference):
        macro = gin_state.macro_of(value)
        if macro is not None and value.evaluate:
            return resolve(macros[macro], macros)
        return (False, None) if value.evaluate else (True, value.configurable.wrapper)
    if isinstance(value, (list, tuple)):
        parts = [resolve(v, macros) for v in value]
        return all(known for known, _ in parts), type(value)(v for _, v in parts)
    if isinstance(value, dict):
        found = {key: resolve(v, macros) for key, v in value.items()}
        return all(known for known, _ in found.values()), {key: v for key, (_, v) in found.items()}
    return True, value


def check_macros(binding: Binding, macros: Mapping[str, Any], sizes: dict[str, int], seen: tuple[str, ...] = ()) -> int:
    """Refuses a value that refers to a macro without a value, or to a macro that is defined by itself.

    Also refuses macros that stand for too much: thirty lines, each of which names the next one twice, stand for 2^30 values.
    Returns how many values, lists and dicts the value holds when its macros are replaced, and adds theirs to `sizes`.
    """
    size = sum(1 for _ in gin_state.parts_of(binding.value))
    for reference in gin_state.references(binding.value):
        name = gin_state.macro_of(reference)
        if name is None:
            continue
        if name not in macros:
            by = " (a task file defines it: give --task, or a --gin_file of gin/tasks)" if name in TASK_MACROS else ""
            raise TaacError(f"{binding}: the macro '{name}' has no value{by}{nearest(name, macros)}")
        if name in seen:
            raise TaacError(f"{binding}: the macro '{name}' is defined by itself, by way of {', '.join(seen)}")
        if name not in sizes:
            sizes[name] = check_macros(binding._replace(value=macros[name]), macros, sizes, (*seen, name))
        size += sizes[name]
        if size > MOST_VALUES:
            raise TaacError(f"{binding}: its macros stand for more than {MOST_VALUES} values")
    return size


def text_of(value: Any) -> str:
    """Returns a value in one line, with the keys of dicts in the order in which operative configurations have them."""
    return pprint.pformat(value, width=sys.maxsize)


def source(binding: Binding, bindings: Mapping[tuple[str, str, str], Binding]) -> Binding:
    """Returns the binding that gives a parameter its value: the last of the macros that it names, or itself."""
    value = binding.value
    macro = gin_state.macro_of(value) if isinstance(value, gin_state.Reference) and value.evaluate else None
    return binding if macro is None else source(bindings[macro, gin_state.MACRO, "value"], bindings)


def make_whole(binding: Binding, bindings: dict[tuple[str, str, str], Binding]) -> None:
    """Replaces whole floats by ints if the parameter takes ints and no floats, as in `num_env_steps = 1e5`."""
    origin = source(binding, bindings)
    whole = _whole(origin.value)
    if binding.is_macro or whole is origin.value:
        return
    expected = type_hints(gin_state.wrapped(binding.selector)).get(binding.name)
    if expected is not None and problem(origin.value, expected) and not problem(whole, expected):
        bindings[origin.key] = origin._replace(value=whole)


def _whole(value: Any) -> Any:
    """Returns the value with whole floats as ints; the same object if there are none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) in (list, tuple):
        parts = [_whole(part) for part in value]
        return value if all(new is old for new, old in zip(parts, value)) else type(value)(parts)
    return value


def check_type(binding: Binding, bindings: Mapping[tuple[str, str, str], Binding]) -> None:
    """Refuses a value that does not fit the annotation of its parameter. Values that must be built first are not checked."""
    if binding.is_macro:
        return
    expected = type_hints(gin_state.wrapped(binding.selector)).get(binding.name)
    known, value = resolve(binding.value, {b.scope: b.value for b in bindings.values() if b.is_macro})
    wrong = problem(value, expected) if expected is not None and known else None
    called = value  # gin gives a class what is bound of its parameters
    if wrong and (references := list(gin_state.references(binding.value))):
        for reference in references:
            called = _with_bound(called, reference.configurable, bindings)
        if called is not value and not problem(called, expected):
            return
        if "too many mandatory" in wrong:
            lacking = [name for r in references for name in _unbound(r.configurable, bindings)[1:]]
            wrong += f"; bind what its caller does not give, {', '.join(lacking)}, or give it a default" if lacking else ""
    if wrong is None and isinstance(value, type) and any(getattr(part, "_is_protocol", False) for part in _parts(expected)):
        # a class of a protocol has its methods, too
        wrong = f"{value.__name__} is a class"
    if wrong:
        named = expected.__name__ if isinstance(expected, type) else str(expected)
        named = re.sub(r"\b(typing|taac|collections[.]abc|torch)[.](\w+[.])*", "", named)
        origin = source(binding, bindings)
        given = "" if value is origin.value else f" (which is {value!r})"
        bound_to = "" if origin is binding else f" for {binding.parameter}"
        meant = _meant(origin.value, value if problem((called,), expected) else called, expected)
        raise TaacError(f"{origin}{given} has the wrong type{bound_to}: expected {named}; {wrong}{meant}")


def _with_bound(value: Any, configurable: Any, bindings: Mapping[tuple[str, str, str], Binding]) -> Any:
    """Returns a value in which a class has what is bound of its parameters, as a `partial`."""
    if isinstance(value, (list, tuple)):
        return type(value)(_with_bound(part, configurable, bindings) for part in value)
    bound = {b.name for b in bindings.values() if b.selector == configurable.selector}
    return functools.partial(value, **dict.fromkeys(bound)) if bound and value is configurable.wrapper else value


def _unbound(configurable: Any, bindings: Mapping[tuple[str, str, str], Binding]) -> list[str]:
    """Returns the parameters of a class or function that have no default and are not bound, with its name."""
    bound = {b.name for b in bindings.values() if b.selector == configurable.selector}
    needed = (n for n in parameters(configurable.wrapped) if default(configurable.wrapped, n) is inspect.Parameter.empty)
    return [f"{short(configurable.selector)}.{name}" for name in needed if name not in bound]


def _meant(given: Any, value: Any, expected: Any) -> str:
    """Returns how to write a value of the wrong type, if it is clear which type was meant, else ""."""
    if not problem((value,), expected):
        return f"; a list of one is written ({given!r},)"
    if isinstance(given, gin_state.Reference) and isinstance(value, type):
        return f"; an object of it is written {given!r}()"
    if isinstance(value, str) and value.isidentifier() and value in map(short, gin_state.configurables()):
        return f"; a class is written @{value}, and an object of it @{value}()"
    return ""


def problem(value: Any, expected: Any) -> str | None:
    """Returns why a value does not fit an annotation; None if it does."""
    if isinstance(value, bool) and bool not in _parts(expected) and any(part in (int, float) for part in _parts(expected)):
        return f"{value} is a bool"
    try:
        typeguard.check_type(
            value,
            expected,
            forward_ref_policy=typeguard.ForwardRefPolicy.IGNORE,
            collection_check_strategy=typeguard.CollectionCheckStrategy.ALL_ITEMS,
        )
    except typeguard.TypeCheckError as error:
        text = str(error).splitlines()[0].rstrip(":")  # for a union, further lines list its members
        return text.replace("did not match any element in the union", "is none of these")
    return None


def _parts(annotation: Any) -> tuple[Any, ...]:
    """Returns an annotation, and the members of a union."""
    return annotation, *typing.get_args(annotation)


# Parameters of a class or function -----------------------------------------------------------------------------------


def parameters(wrapped: Any) -> list[str]:
    """Returns the names of the parameters that can be bound; [] if any keyword is accepted."""
    levels = _levels(wrapped)
    if levels and _takes_any_keyword(levels[-1]):
        return []
    return [name for level in levels for name in _bindable(level)]


def own_parameters(wrapped: Any, configurables: Collection[Any]) -> list[str]:
    """Returns the parameters of a function, or of a class's constructor unless it is inherited from a configurable."""
    if not isinstance(wrapped, type):
        return _bindable(wrapped)
    inherited = {inspect.unwrap(base.__init__) for base in wrapped.__mro__[1:] if base in configurables}  # type: ignore[misc]
    own = wrapped.__init__  # type: ignore[misc]
    return [] if inspect.unwrap(own) in inherited else _bindable(own)


def _bindable(level: Any) -> list[str]:
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return [p.name for p in _parameters_of(level).values() if p.kind in kinds and p.name != "self"]


def default(wrapped: Any, name: str) -> Any:
    """Returns the default of a parameter; `inspect.Parameter.empty` if it has none or does not exist."""
    found = (_parameters_of(level).get(name) for level in _levels(wrapped))
    return next((p.default for p in found if p is not None), inspect.Parameter.empty)


def type_hints(wrapped: Any) -> dict[str, Any]:
    """Returns the type of each annotated parameter. Skips annotations that cannot be resolved, as in a user's own module."""
    found: dict[str, Any] = {}
    for level in reversed(_levels(wrapped)):
        with contextlib.suppress(NameError, TypeError, AttributeError):
            found |= _hints(level)
    return found


# Most of the time that reading a configuration takes. What fails is tried again.
_hints = functools.cache(typing.get_type_hints)
_parameters_of = functools.cache(lambda function: inspect.signature(function).parameters)


def _levels(wrapped: Any) -> list[Any]:
    """Returns a function itself, or the constructors of a class and its bases as far as they pass keywords to the next."""
    if not isinstance(wrapped, type):
        return [wrapped]
    found = []
    for base in wrapped.__mro__[:-1]:
        if "__init__" in vars(base):
            found.append(vars(base)["__init__"])
            if not _takes_any_keyword(found[-1]):
                break
    return found


def _takes_any_keyword(level: Any) -> bool:
    return any(p.kind == p.VAR_KEYWORD for p in _parameters_of(level).values())


def mentions(annotation: Any, type_: type) -> bool:
    """Returns whether an annotation is, or contains, a type."""
    return annotation == type_ or any(mentions(part, type_) for part in typing.get_args(annotation))
