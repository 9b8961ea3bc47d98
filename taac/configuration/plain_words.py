"""Settings in plain words, `learning_rate=1e-3`, as the gin bindings that they stand for."""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from taac.configuration import gin_state, shipped, values
from taac.configuration.binding import OF_COMPARE, OF_OTHERS, TASK_MACROS
from taac.configuration.gin_state import short
from taac.errors import TaacError, nearest


class Setting(NamedTuple):
    """A setting as it was given."""

    flag: str  # such as "--set"; "--method" for one in a method's name
    text: str  # NAME=VALUE

    def __str__(self) -> str:
        return f"{self.flag} {self.text}" if self.flag in ("--set", "--method") else self.flag


def to_gin(setting: Setting, macros: Collection[str], classes: Sequence[str] = ()) -> str:
    """Returns a setting as a line of gin. `macros` are those that the gin files define.

    Its name is a macro, `Constructor.parameter`, or a parameter that only one constructor has, or of several the algorithm
    itself: the first that does of `classes`, the names of the algorithm's class and of those that it inherits from. If it has
    none, other algorithms do not count.
    """
    name, equals, value = (part.strip() for part in setting.text.partition("="))
    if not (name and equals and value):
        raise TaacError(f"{setting}: expected NAME=VALUE without spaces, such as --set learning_rate=1e-3")
    return f"{_full_name(setting, name, macros, classes)} = {value_of(value)}"


def value_of(text: str) -> str:
    """Returns a value in plain words as a value of gin.

    Numbers, `true`, `false` and `none` are what they say; `128,128` is a list, and `128,` one of a single number; other words
    are text. What begins with a bracket, a quote, `@` or `%` is gin already.
    """
    text = text.strip()
    if text[:1] in ("(", "[", "{", "'", '"') or text[:2] in ("b'", 'b"'):
        return text
    if "," not in text:
        return _word(text)
    parts = text.removesuffix(",").split(",")
    return f"({', '.join(_word(part.strip()) for part in parts)}{',' if len(parts) == 1 else ''})"


def _word(text: str) -> str:
    if text[:1] in ("@", "%", "'", '"'):
        return text
    if known := {"true": "True", "false": "False", "none": "None"}.get(text.lower()):
        return known
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return repr(number if isinstance(number := kind(text), int) or math.isfinite(number) else text)
    return repr(text)


def _full_name(setting: Setting, name: str, macros: Collection[str], classes: Sequence[str]) -> str:
    if not re.fullmatch(r"(\w+/)*\w+(\.\w+)*", name):
        raise TaacError(f"{setting}: '{name}' is not a name; expected one such as learning_rate or Learner.epsilon")
    if "." in name or name in macros or name in TASK_MACROS:
        return name
    known = owners()
    found = known.get(name, [])
    if not found:
        similar = of_others(name) or _of_parts(name) or nearest(name, [*macros, *TASK_MACROS, *known])
        raise TaacError(
            f"{setting}: there is no macro and no parameter named '{name}'{similar}; docs/macros.md and `taac check` list names, "
            "docs/migration.md those of other packages"
        )
    if len(found) > 1:
        if own := next((f"{c}.{name}" for c in classes if f"{c}.{name}" in found), None):
            return own
        if len(others := [owner for owner in found if not owner.endswith(f"Algorithm.{name}")]) == 1:  # no other algorithm counts
            return others[0]
        if classes and not others:
            raise TaacError(f"{setting}: {classes[0]} has no '{name}'; these have it: {', '.join(found)}")
        raise TaacError(f"{setting}: several constructors have '{name}'; write one of {', '.join(found)}")
    return found[0]


def of_others(name: str) -> str:
    """Returns what a name of another package is here, to end a message; "" if it is none."""
    return f"; what other packages call {name} is {OF_OTHERS[name]} here" if name in OF_OTHERS else ""


def _of_parts(name: str) -> str:
    return f"; add it to the method's name: --method METHOD+{name}" if name in shipped.additions() else ""


def owners() -> dict[str, list[str]]:
    """Returns parameter -> `Constructor.parameter` of each one that takes it itself and does not pass it on."""
    found: dict[str, list[str]] = {}
    configurables = gin_state.configurables()
    known = set(configurables.values())
    for selector, wrapped in configurables.items():
        if selector.startswith(OF_COMPARE):
            continue
        for name in values.own_parameters(wrapped, known):
            if values.default(wrapped, name) is not inspect.Parameter.empty:  # else the caller supplies it
                with contextlib.suppress(ValueError):
                    gin_state.check_bindable("", selector, name)
                    found.setdefault(name, []).append(f"{short(selector)}.{name}")
    return {name: sorted(names) for name, names in found.items()}
