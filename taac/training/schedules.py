"""The one place that knows what follows a schedule in a run, and brings its values into force."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn as nn

from taac.errors import TaacError
from taac.ops.schedules import UNITS, Scheduled


class Schedules:
    """What follows a schedule, of all parts of a run.

    The values depend on the two counts alone: a resumed run has those of the run that was never stopped.

    Args:
        parts: each lists what it has in an attribute `scheduled`, if anything. A module also has what is in its sub-modules.
    """

    def __init__(self, *parts: object):
        self._scheduled = [one for part in parts for one in _listed(part)]
        self.values = {one.name: one.schedule(0) for one in self._scheduled}

    def move(self, env_steps: int, updates: int) -> None:
        """Brings the values after so many environment steps and updates into force."""
        for name, schedule, set_value in self._scheduled:
            self.values[name] = value = schedule.at(env_steps, updates)
            set_value(value)

    def check(self, env_steps: int, updates: int) -> None:
        """Refuses schedules that would do nothing in a run of so many environment steps and updates.

        Raises:
            TaacError: one would not move within them; gives both counts.
        """
        ends = {"env_steps": env_steps, "updates": updates}
        for name, schedule, _ in self._scheduled:
            if schedule.first_change >= ends[schedule.unit]:
                raise TaacError(
                    f"{name} would keep its value: its schedule ({schedule}) first changes at {schedule.first_change} "
                    f"{UNITS[schedule.unit]}, and the run has {ends[schedule.unit]}; bind a number, or let it change earlier"
                )

    def summaries(self) -> dict[str, float]:
        """The values in force, by tag."""
        return {f"schedule/{name}": value for name, value in self.values.items()}

    def describe(self) -> list[str]:
        """A line for each, for people."""
        return [f"{one.name}: {one.schedule}" for one in self._scheduled]


def _listed(part: object) -> Iterator[Scheduled]:
    for inner in part.modules() if isinstance(part, nn.Module) else (part,):
        yield from getattr(inner, "scheduled", ())
