"""Hyper-parameters that change over a run, as functions of a count: environment steps or updates so far.

A schedule keeps no state. Its value depends only on the count, so a resumed run follows it exactly.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from taac.errors import TaacError, refuse_below

Unit = Literal["env_steps", "updates"]
UNITS: dict[str, str] = {"env_steps": "environment steps", "updates": "updates"}


class Schedule:
    """A number as a function of a count, 0 at the start of the run.

    Attributes:
        unit: what it counts: "env_steps", environment steps summed over all environments, or "updates", gradient steps.
        bounds: the least and the greatest value at any count.
        first_change: the first count at which the value may differ from the value at 0.
        knots: counts at which a piece begins or ends, starting with 0.
        in_steps: whether the value is piecewise constant.
    """

    unit: Unit
    bounds: tuple[float, float]
    first_change: int
    knots: Sequence[int]
    in_steps = False

    def __call__(self, count: int) -> float:
        """Returns the value at a count."""
        raise NotImplementedError

    def at(self, env_steps: int, updates: int) -> float:
        """Returns the value after `env_steps` environment steps and `updates` updates. Uses the one that it counts."""
        return self(env_steps if self.unit == "env_steps" else updates)

    def integral(self, count: int) -> Fraction | float:
        """Returns the integral of the value from 0 to a count, exact where the schedule allows it.

        Raises:
            TaacError: the schedule has no integral.
        """
        raise TaacError(f"{type(self).__name__} has no integral, so it cannot be the schedule of a ratio")

    def __str__(self) -> str:
        low, high = self.bounds
        return f"{type(self).__name__} in {UNITS[self.unit]}, between {low:g} and {high:g}"


class LinearSchedule(Schedule):
    """`start` up to the count `begin`, then linear to `end` over a length, then `end`.

    Args:
        start, end: values.
        env_steps, updates: the length, 1 or more. Exactly one of the two; it sets the schedule's unit.
        begin: count at which the line begins.
    """

    def __init__(
        self, start: float, end: float, env_steps: int | None = None, updates: int | None = None, begin: int = 0
    ):
        self.unit, given = _one_of(self, env_steps, updates)
        self.length, self.begin = _whole(self, self.unit, given), _whole(self, "begin", begin)
        refuse_below(1, type(self).__name__, **{self.unit: self.length})
        refuse_below(0, type(self).__name__, begin=self.begin)
        self.start, self.end = _finite(self, "start", start), _finite(self, "end", end)
        self.bounds = min(self.start, self.end), max(self.start, self.end)
        self.first_change, self.knots = self.begin + 1, (0, self.begin, self.begin + self.length)

    def __call__(self, count: int) -> float:
        done = _fraction(count - self.begin, self.length)
        return self.end if done == 1.0 else self.start + done * (self.end - self.start)

    def integral(self, count: int) -> Fraction | float:
        start, end = _exact(self.start), _exact(self.end)
        return _area(list(zip(self.knots, (start, start, end))), count, in_steps=False)

    def __str__(self) -> str:
        return f"{self.start:g} to {self.end:g} in a straight line {_during(self)}"


class CosineSchedule(LinearSchedule):
    """`start` up to the count `begin`, then half a cosine to `end` over a length, then `end` (arXiv:1608.03983, equation 5).

    Args:
        start, end, env_steps, updates, begin: as in `LinearSchedule`.
    """

    def __call__(self, count: int) -> float:
        done = _fraction(count - self.begin, self.length)
        return self.end if done == 1.0 else self.end + (self.start - self.end) * (1.0 + math.cos(math.pi * done)) / 2

    def integral(self, count: int) -> float:
        """Computes `l (end x + (start - end) (x + sin(pi x) / pi) / 2)` at the fraction x of the length l, in double precision.

        Before it `start` is added for each count, after it `end`.
        """
        done, after = _fraction(count - self.begin, self.length), max(0, count - self.begin - self.length)
        fallen = self.end * done + (self.start - self.end) * (done + math.sin(math.pi * done) / math.pi) / 2
        return self.start * min(count, self.begin) + self.length * fallen + self.end * after

    def __str__(self) -> str:
        return f"{self.start:g} to {self.end:g} by a cosine {_during(self)}"


class ExponentialSchedule(LinearSchedule):
    """`start` up to the count `begin`, then `start (end / start)^x` with x from 0 to 1 over a length, then `end`.

    It changes by equal factors in equal times.

    Args:
        start, end: values, both above 0 or both below.
        env_steps, updates, begin: as in `LinearSchedule`.
    """

    def __init__(
        self, start: float, end: float, env_steps: int | None = None, updates: int | None = None, begin: int = 0
    ):
        super().__init__(start, end, env_steps, updates, begin)
        if not start * end > 0:
            raise TaacError(
                f"ExponentialSchedule.start and end must both be above 0 or both below (it changes by factors), got {start} "
                f"and {end}; use LinearSchedule"
            )

    def __call__(self, count: int) -> float:
        done = _fraction(count - self.begin, self.length)
        return self.end if done == 1.0 else self.start * (self.end / self.start) ** done

    def integral(self, count: int) -> float:
        """Computes `start l ((end/start)^x - 1) / log(end/start)` at the fraction x of the length l, in double precision.

        Before it `start` is added for each count, after it `end`.
        """
        before, rate = min(count, self.begin), math.log(self.end / self.start)
        done = _fraction(count - self.begin, self.length)
        decayed = self.start * self.length * (math.expm1(rate * done) / rate if rate else done)
        return self.start * before + decayed + self.end * max(0, count - self.begin - self.length)

    def __str__(self) -> str:
        return f"{self.start:g} to {self.end:g} exponentially {_during(self)}"


class PiecewiseSchedule(Schedule):
    """`values[i]` from the count `counts[i]` on, or straight lines between these points and then the last value.

    Args:
        values: two or more.
        env_steps, updates: the counts, rising from 0, as many as values. Exactly one of the two; it sets the unit.
        interpolate: whether straight lines join the points.
    """

    def __init__(
        self,
        values: Sequence[float],
        env_steps: Sequence[int] | None = None,
        updates: Sequence[int] | None = None,
        interpolate: bool = False,
    ):
        self.unit, given = _one_of(self, env_steps, updates)
        counts = _counts(self, given)
        several = isinstance(values, (list, tuple)) and len(values) > 1
        if not several or len(values) != len(counts) or counts[0] != 0 or sorted({*counts}) != [*counts]:
            raise TaacError(
                f"PiecewiseSchedule needs two or more values and as many counts of {UNITS[self.unit]}, which start at 0 and "
                f"rise, got values {values} and {self.unit} {given}"
            )
        self.values, self.knots = tuple(_finite(self, "values", value) for value in values), tuple(counts)
        self.in_steps = not interpolate
        self.bounds = min(self.values), max(self.values)
        new = next((i for i, value in enumerate(values) if value != values[0]), 1)
        self.first_change = counts[new - 1] + 1 if interpolate else counts[new]

    def __call__(self, count: int) -> float:
        piece = max(0, bisect.bisect_right(self.knots, count) - 1)
        if self.in_steps or piece == len(self.values) - 1:
            return self.values[piece]
        done = _fraction(count - self.knots[piece], self.knots[piece + 1] - self.knots[piece])
        return self.values[piece] + done * (self.values[piece + 1] - self.values[piece])

    def integral(self, count: int) -> Fraction:
        return _area(list(zip(self.knots, map(_exact, self.values))), count, self.in_steps)

    def __str__(self) -> str:
        points = ", ".join(f"{value:g} from {count}" for value, count in zip(self.values, self.knots))
        return f"{points} {UNITS[self.unit]} on{'' if self.in_steps else ', straight lines between'}"


class Scheduled(NamedTuple):
    """A hyper-parameter that follows a schedule.

    A part lists its scheduled hyper-parameters in an attribute `scheduled`. The trainer sets their values before each use
    (`Schedules`). Until then each has its value at count 0.
    """

    name: str  # the name of the binding, "Learner.learning_rate"
    schedule: Schedule
    set: Callable[[float], None]


def at_start(value: float | Schedule) -> float:
    """Returns the value of a hyper-parameter before the first step."""
    return value(0) if isinstance(value, Schedule) else value


def bounds(value: float | Schedule) -> tuple[float, float]:
    """Returns the least and the greatest value of a hyper-parameter, for range checks."""
    return value.bounds if isinstance(value, Schedule) else (value, value)


def follow(part: Any, **parameters: Any) -> list[Scheduled]:
    """Sets each hyper-parameter as an attribute of `part`, at its initial value. Returns those that follow a schedule.

    A buffer of that name is written in place, so that compiled programs see the change.
    """
    for name, value in parameters.items():
        _set(part, name, at_start(value))
    return [
        Scheduled(f"{type(part).__name__}.{name}", value, functools.partial(_set, part, name))
        for name, value in parameters.items()
        if isinstance(value, Schedule)
    ]


def _set(part: Any, name: str, value: float) -> None:
    held: Any = getattr(part, name, None)
    if hasattr(held, "fill_"):
        held.fill_(value)
    else:
        setattr(part, name, value)


class Schedules:
    """All scheduled hyper-parameters of a run.

    Their values depend only on the counts of environment steps and updates, so a resumed run continues with the same values.

    Args:
        parts: parts of the run. Each part, and each sub-module of a module, may list its scheduled hyper-parameters in an
            attribute `scheduled`.
    """

    def __init__(self, *parts: object):
        self._scheduled = [one for part in parts for one in _listed(part)]
        self.values = {one.name: one.schedule(0) for one in self._scheduled}

    def move(self, env_steps: int, updates: int) -> None:
        """Sets the values for the given counts."""
        for name, schedule, set_value in self._scheduled:
            self.values[name] = value = schedule.at(env_steps, updates)
            set_value(value)

    def check(self, env_steps: int, updates: int) -> None:
        """Refuses schedules that would not change anything within a run of this many environment steps and updates.

        Raises:
            TaacError: names the schedule, the count at which it first changes, and that count at the end of the run.
        """
        ends = {"env_steps": env_steps, "updates": updates}
        for name, schedule, _ in self._scheduled:
            if schedule.first_change >= ends[schedule.unit]:
                raise TaacError(
                    f"{name} would keep its value: its schedule ({schedule}) first changes at {schedule.first_change} "
                    f"{UNITS[schedule.unit]}, but the run has only {ends[schedule.unit]}; bind a number or an earlier change"
                )

    def summaries(self) -> dict[str, float]:
        """Returns the current values by summary tag."""
        return {f"schedule/{name}": value for name, value in self.values.items()}

    def describe(self) -> list[str]:
        """Returns a readable line for each schedule."""
        return [f"{one.name}: {one.schedule}" for one in self._scheduled]


def _listed(part: object) -> Iterator[Scheduled]:
    for inner in part.modules() if hasattr(part, "modules") else (part,):
        yield from getattr(inner, "scheduled", ())


def _one_of(schedule: Schedule, env_steps: Any, updates: Any) -> tuple[Unit, Any]:
    if (env_steps is None) == (updates is None):
        raise TaacError(
            f"{type(schedule).__name__} counts environment steps or updates: bind one of env_steps and updates, got "
            f"{env_steps} and {updates}"
        )
    return ("updates", updates) if env_steps is None else ("env_steps", env_steps)


def _whole(schedule: Schedule, name: str, count: Any) -> int:
    """Returns a count as an integer. Gin files may write it as a float, such as 1e6."""
    if isinstance(count, bool) or not isinstance(count, (int, float)) or count != count // 1:
        raise TaacError(f"{type(schedule).__name__}.{name} must be a whole number, got {count!r}")
    return int(count)


def _counts(schedule: Schedule, given: Any) -> tuple[int, ...]:
    return tuple(_whole(schedule, schedule.unit, count) for count in given) if isinstance(given, (list, tuple)) else ()


def _finite(schedule: Schedule, name: str, value: Any) -> float:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TaacError(f"{type(schedule).__name__}.{name} must be a finite number, got {value!r}")
    return float(value)


def _fraction(count: int, length: int) -> float:
    """Returns the fraction of a length that is done, in [0, 1]."""
    return min(1.0, max(0, count) / length)


def _during(schedule: LinearSchedule | ExponentialSchedule) -> str:
    return f"over {UNITS[schedule.unit]} {schedule.begin} to {schedule.begin + schedule.length}"


def _exact(value: float) -> Fraction:
    return Fraction(str(value))  # 0.1 means 1/10, which no float equals


def _area(points: Sequence[tuple[int, Fraction]], count: int, in_steps: bool) -> Fraction:
    """Returns the integral from 0 to a count, of steps or of straight lines between points. The last value continues for ever."""
    total = Fraction(0)
    for (begin, value), (end, following) in itertools.pairwise(points):
        over = min(count, end) - begin
        if over > 0:
            risen = Fraction(0) if in_steps else (following - value) * Fraction(over, end - begin)
            total += over * (value + risen / 2)
    last, value = points[-1]
    return total + max(0, count - last) * value
