"""How long a campaign will still take, from the seconds that its evaluations tell."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from taac.campaigns.run import Run
from taac.runs import files, layout

_STEPS, _SECONDS = layout.COLUMNS.index("env_steps"), layout.COLUMNS.index("seconds")
_MOST_COUNTED = 1 << 53  # steps or seconds


class Pace(NamedTuple):
    """How far a run was at its last evaluation."""

    spent: float  # seconds of training
    left: float  # seconds that the rest takes, at the pace between its last two evaluations
    told: float  # when it was: seconds since the epoch


class TimeLeft:
    """Estimates the time left; reads a run's files again only when they have changed."""

    def __init__(self) -> None:
        self._read: dict[Run, tuple[float, Pace | None]] = {}

    def estimate(
        self, finished: Iterable[Run], running: Sequence[Run], waiting: Sequence[Run], slots: int
    ) -> float | None:
        """Seconds until the last run ends with `slots` runs at a time; None while no run has told its pace, and at the end.

        A run that has not begun takes as long as others of its task and method do, else as the mean of all.
        """
        paces = {run: self._pace(run) for run in (*finished, *running, *waiting)}
        known = {run: pace for run, pace in paces.items() if pace is not None}
        if not known or not (running or waiting):
            return None

        def whole(run: Run) -> float:
            alike = [p for r, p in known.items() if (r.task, r.method) == (run.task, run.method)]
            some = alike or list(known.values())
            return sum(p.spent + p.left for p in some) / len(some)

        now = time.time()
        at_work = [
            whole(run) if (pace := paces[run]) is None else max(0.0, pace.left - (now - pace.told)) for run in running
        ]
        queue = [whole(run) if (pace := paces[run]) is None else pace.left for run in waiting]
        return makespan(at_work, queue, slots)

    def _pace(self, run: Run) -> Pace | None:
        try:
            told = (run.folder / layout.EVALUATIONS).stat().st_mtime
        except OSError:
            return None
        if run not in self._read or self._read[run][0] != told:
            self._read[run] = (told, read_pace(run.folder, told))
        return self._read[run][1]


def read_pace(folder: Path, told: float) -> Pace | None:
    """The pace of a run that had its last evaluation at `told`; None before its first."""
    try:
        whole = int(layout.read_bindings(folder).get("num_env_steps", "0"))
        table = layout.read_evaluations(folder)
    except (OSError, files.Damaged, ValueError):
        return None
    rows = [(row[_STEPS], row[_SECONDS]) for row in table.rows]
    known = all(0 <= steps <= _MOST_COUNTED and 0 <= seconds <= _MOST_COUNTED for steps, seconds in rows)
    if not rows or not known or not 0 < whole <= _MOST_COUNTED:
        return None
    steps, seconds = rows[-1]
    # Of the last interval: collecting without updates, before it, is many times as fast.
    steps_before, seconds_before = rows[-2] if len(rows) > 1 else (0, 0.0)
    pace = (seconds - seconds_before) / max(1, steps - steps_before)
    return Pace(seconds, max(0, whole - steps) * pace, told)


def makespan(running: Sequence[float], waiting: Sequence[float], slots: int) -> float:
    """Seconds until all have ended, where each that waits begins, in order, when one of `slots` places is free."""
    ends = list(running) + [0.0] * max(0, slots - len(running))
    heapq.heapify(ends)
    last = max(ends, default=0.0)
    for seconds in waiting:
        end = heapq.heappop(ends) + seconds
        heapq.heappush(ends, end)
        last = max(last, end)
    return last
