"""The search space of a sweep in plain words: `learning_rate=log:1e-4..1e-2`, `hidden_layers=64,64|256,256`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from taac.errors import TaacError

EXAMPLES = "learning_rate=log:1e-4..1e-2, segment_length=3..8 or hidden_layers=64,64|256,256"


class Dimension(NamedTuple):
    """A setting that is searched, and its values."""

    name: str  # as in --set
    choices: tuple[str, ...] = ()  # values in plain words; empty for a range
    low: float = 0.0
    high: float = 0.0
    log: bool = False  # equal factors are equally likely
    whole: bool = False  # whole numbers only

    def distribution(self) -> Any:
        from optuna import distributions

        if self.choices:
            return distributions.CategoricalDistribution(self.choices)
        if self.whole:
            return distributions.IntDistribution(int(self.low), int(self.high), log=self.log)
        return distributions.FloatDistribution(self.low, self.high, log=self.log)

    def value(self, text: str) -> Any:
        """Returns the value of a text that `text` wrote. Raises ValueError if it is not one of the dimension's."""
        if self.choices:
            if text in self.choices:
                return text
        else:
            number: float = int(text) if self.whole else float(text)
            if self.low <= number <= self.high:
                return number
        raise ValueError(f"{self.name}={text} is outside of the search space")

    def rounded(self, value: Any) -> Any:
        """Returns a value with four digits at most, within the range."""
        return value if self.choices or self.whole else min(max(float(f"{value:.4g}"), self.low), self.high)

    def ends(self) -> list[str]:
        """Returns values that show whether the setting takes what is searched: all choices, or both ends of the range.

        A range of other numbers adds one value within, because a setting of whole numbers takes 1e2, but not 137.5.
        """
        within = [] if self.whole else [self.rounded(self.low + 0.381966 * (self.high - self.low))]
        return list(self.choices) or [text(int(end) if self.whole else end) for end in (self.low, self.high, *within)]


def text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def parse(given: Sequence[str]) -> list[Dimension]:
    """Returns the dimensions of `NAME=SPACE`, in their order.

    A space is `LOW..HIGH`, whole numbers if both are; `log:LOW..HIGH`, in which equal factors are equally likely; or choices
    separated by `|`.
    """
    if not given:
        raise TaacError(f"--search is missing: what to search, such as {EXAMPLES}")
    found = [_parse(one) for one in given]
    names = [dimension.name for dimension in found]
    for name in names:
        if names.count(name) > 1:
            raise TaacError(f"--search {name} is given twice; give all of its values at once: {name}=A|B")
    return found


def _parse(given: str) -> Dimension:
    name, equals, space = (part.strip() for part in given.partition("="))
    if not (name and equals and space):
        raise TaacError(f"--search {given}: expected NAME=SPACE, such as {EXAMPLES}")
    if "|" in space:
        choices = tuple(dict.fromkeys(choice.strip() for choice in space.split("|")))
        if "" in choices or len(choices) < 2:
            raise TaacError(f"--search {given}: expected two or more different choices, such as {name}=A|B")
        return Dimension(name, choices)
    log = space.startswith("log:")
    first, dots, last = (part.strip() for part in space.removeprefix("log:").partition(".."))
    if not dots:
        raise TaacError(f"--search {given}: '{space}' is one value, for --set. Expected a range or choices, such as {EXAMPLES}")
    try:
        low, high = float(first), float(last)
    except ValueError as error:
        raise TaacError(f"--search {given}: the ends of a range must be numbers, such as {name}=log:1e-4..1e-2") from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise TaacError(f"--search {given}: a range must rise from its lower to its upper end")
    if log and low <= 0:
        raise TaacError(f"--search {given}: a range with log: must begin above 0")
    return Dimension(name, (), low, high, log, all(re.fullmatch(r"[+-]?\d{1,15}", end) for end in (first, last)))
