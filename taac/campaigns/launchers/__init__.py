"""Launchers: where the runs of a campaign execute. Local processes, a Ray cluster, or a SLURM job array, which SLURM itself runs.

All of them start the same `taac train` with the same log, so resuming, records and failures work the same everywhere.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from taac.campaigns.run import Run
from taac.errors import RESUMABLE
from taac.machine.processes import exit_reason


class Outcome(NamedTuple):
    """How an attempt at a run ended."""

    returncode: int | None  # negative: minus the signal that killed it; None: unknown, its machine or task is gone
    why: str = ""  # a further explanation

    def interrupted(self) -> bool:
        """Returns whether the run was stopped from outside, so that another attempt may resume it."""
        return self.returncode is None or self.returncode < 0 or self.returncode == RESUMABLE

    def __str__(self) -> str:
        if self.why or self.returncode is None:
            return self.why
        how = "killed by " if self.returncode < 0 else "asked to stop, " if self.returncode == RESUMABLE else ""
        return how + exit_reason(self.returncode)


class Launcher(Protocol):
    """Starts runs and reports how they ended."""

    interval: float  # seconds between two checks of the runs
    attempts: int  # most attempts at a run that is interrupted from outside

    def begin(self, run: Run) -> None:
        """Starts or queues a run."""

    def begun(self, run: Run) -> bool:
        """Returns whether a run has started, rather than waiting in a queue."""

    def ended(self) -> list[tuple[Run, Outcome]]:
        """Returns the runs that have ended since the last call."""

    def stop(self) -> None:
        """Stops the runs and lets them save."""
