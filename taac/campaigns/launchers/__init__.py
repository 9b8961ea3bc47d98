"""Where the runs of a campaign are run: processes of this machine, a Ray cluster, a SLURM job array.

Each starts the same `taac train` with the same log, so that resuming, records and failures are the same everywhere.
"""

from __future__ import annotations

import signal
from typing import NamedTuple, Protocol

from taac.campaigns.run import Run
from taac.errors import RESUMABLE


class Outcome(NamedTuple):
    """How an attempt at a run ended."""

    returncode: int | None  # negative: the signal that killed it; None: what it ran on is gone
    why: str = ""  # what is known besides

    def interrupted(self) -> bool:
        """Whether it was stopped from outside, so that another attempt may go on."""
        return self.returncode is None or self.returncode < 0 or self.returncode == RESUMABLE

    def __str__(self) -> str:
        if self.why or self.returncode is None:
            return self.why
        if self.returncode < 0:
            return f"killed by {_name(-self.returncode)}"
        asked = "asked to stop, " if self.returncode == RESUMABLE else ""
        return f"{asked}exit code {self.returncode}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none
        return f"signal {number}"


class Launcher(Protocol):
    """Starts runs, and tells how they ended."""

    interval: float  # seconds between two looks at what has become of them
    attempts: int  # at a run that is interrupted from outside

    def begin(self, run: Run) -> None:
        """Starts a run, or puts it into a queue."""

    def begun(self, run: Run) -> bool:
        """Whether it is at work, rather than in a queue."""

    def ended(self) -> list[tuple[Run, Outcome]]:
        """The runs that have ended since this was asked last."""

    def stop(self) -> None:
        """Ends what is still at work, in order."""
