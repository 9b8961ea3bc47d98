"""Estimates the remaining time of a campaign from the `seconds` column of its evaluations."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from taac.campaigns.run import Run
from taac.runs import files, layout

_STEPS, _SECONDS = layout.COLUMNS.index("env_steps"), layout.COLUMNS.index("seconds")
_MOST_COUNTED = 1 << 53  # largest count of steps or seconds that is believed


class Pace(NamedTuple):
    """Progress of a run at its last evaluation."""

    spent: float  # seconds of training
    left: float  # seconds still to train, at the pace of steps with updates since the evaluation before
    told: float  # time of that evaluation, in seconds since the epoch


class TimeLeft:
    """Estimates the time left. Reads a run's files again only if they have changed."""

    def __init__(self) -> None:
        self._read: dict[Run, tuple[float, Pace | None]] = {}

    def estimate(self, finished: Iterable[Run], running: Sequence[Run], waiting: Sequence[Run], slots: int) -> float | None:
        """Returns the seconds until the last run ends with `slots` runs at a time, at the least.

        A run without an evaluation is assumed to take the mean time of the runs of its task and method, or of all runs if there
        are none. Returns None while no run has an evaluation, and when no run is left.
        """
        paces = {run: self._pace(run) for run in (*finished, *running, *waiting)}
        known = {run: pace for run, pace in paces.items() if pace is not None}
        if not known or not (running or waiting):
            return None

        def left(run: Run, now: float | None = None) -> float:
            if (pace := known.get(run)) is not None:
                return pace.left if now is None else max(0.0, pace.left - (now - pace.told))
            alike = [p for r, p in known.items() if (r.task, r.method) == (run.task, run.method)] or list(known.values())
            return sum(p.spent + p.left for p in alike) / len(alike)

        now = time.time()
        lefts = [*(left(run, now) for run in running), *(left(run) for run in waiting)]
        return max(*lefts, sum(lefts) / slots)  # as if the places were shared evenly

    def _pace(self, run: Run) -> Pace | None:
        try:
            told = (run.folder / layout.EVALUATIONS).stat().st_mtime
        except OSError:
            return None
        if run not in self._read or self._read[run][0] != told:
            self._read[run] = (told, read_pace(run.folder, told, run.steps))
        return self._read[run][1]


def read_pace(folder: Path, told: float, steps_asked: int | None = None) -> Pace | None:
    """Returns the pace of a run whose last evaluation was written at time `told`; None before one after the random steps.

    `steps_asked` are those to which it will be extended, which its own files do not have yet.
    """
    try:
        bindings, table = layout.read_bindings(folder), layout.read_evaluations(folder)
        whole, first = (
            int(bindings.get(name, "0")) for name in ("Intervals.num_env_steps", "UpdateRatio.initial_collect_steps")
        )
    except (OSError, files.Damaged, ValueError):
        return None
    whole = max(whole, steps_asked or 0)
    # Random steps make no updates and take next to no time, so only the last interval counts, and only after them.
    first = 0 if bindings.get("create_experiment.offline") == "True" else first  # no random ones
    rows = [(0, 0.0), (0, 0.0), *((row[_STEPS], row[_SECONDS]) for row in table.rows)][-2:]
    known = all(0 <= number <= _MOST_COUNTED for number in (whole, *rows[0], *rows[1]))  # NaN is not
    (steps_before, seconds_before), (steps, seconds) = rows
    if table.damage or not known or whole == 0 or steps <= first:
        return None
    pace = (seconds - seconds_before) / (steps - max(steps_before, first))
    return Pace(seconds, max(0, whole - steps) * pace, told)
