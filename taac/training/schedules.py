"""Sets the hyper-parameters of a run that follow schedules."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn as nn

from taac.errors import TaacError
from taac.ops.schedules import UNITS, Scheduled


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
    for inner in part.modules() if isinstance(part, nn.Module) else (part,):
        yield from getattr(inner, "scheduled", ())
