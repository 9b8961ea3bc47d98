"""Matches evaluations of different runs by the step at which they were due.

An evaluation is due when a multiple of `Intervals.evaluation_interval`, or the end of the run, is reached or passed. A method
that repeats an action inside the environment passes it by some steps: it is evaluated at 1002 instead of 1000. Evaluations
that were due at the same step belong together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from taac.analysis.readers.comparable import grouped
from taac.analysis.readers.run_records import Record
from taac.runs import layout

TOLERANCE = 0.05  # without a known interval: the part of the distance between evaluations by which they may be late


def match(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Returns the records with a column `due`, and a sentence for each method with evaluations later than they were due.

    The step at which a run diverged becomes the one that was due there, too: a divergence at 1002 is one at 1000.
    """
    matched: dict[str, Record] = {}
    for _, group in grouped(records, lambda r: r.task).items():
        known = [due_steps(r.steps, *plan(r)) for r in group]
        others = [due for due in known if due is not None] or [r.steps for r in group]
        for r in group:
            steps = r.steps if r.diverged is None else np.union1d(r.steps, r.diverged)
            due = due_steps(steps, *plan(r))
            if due is None:
                due = nearest(steps, others, np.diff(r.steps if r.steps.size > 1 else steps))
            at = None if r.diverged is None else int(due[steps == r.diverged][0])
            of_evaluations = due[np.isin(steps, r.steps)]
            matched[r.folder] = r._replace(evaluations={**r.evaluations, "due": of_evaluations}, diverged=at)
    found = [matched[r.folder] for r in records]
    late: dict[tuple[str, str], int] = {}
    for r in found:
        if r.steps.size:
            key = (str(r.task), r.method)
            late[key] = max(late.get(key, 0), int(np.abs(r.steps - r.due).max()))
    return found, [
        f"{method} on {task}: evaluations up to {by} step(s) after they were due count as those of the step they were due at"
        for (task, method), by in sorted(late.items())
        if by
    ]


def due_steps(steps: np.ndarray, interval: int | None, budget: int | None) -> np.ndarray | None:
    """The steps `[n]` at which evaluations at `steps` were due; see `layout.due_step`.

    None if the interval is unknown. An evaluation keeps its own step where another one was due at the same.
    """
    if interval is None:
        return None
    due = np.array([layout.due_step(int(step), interval, budget) for step in steps], dtype=steps.dtype)
    return _distinct(steps, np.where(due == 0, steps, due))


def nearest(steps: np.ndarray, others: Sequence[np.ndarray], distances: np.ndarray) -> np.ndarray:
    """Steps moved to the nearest evaluation of other runs, if it is not after them and `TOLERANCE` of the median distance before.

    Of several such runs, the one whose evaluations came first counts.
    """
    if not distances.size:
        return steps
    most = TOLERANCE * float(np.median(distances))
    due = steps.copy()
    for other in others:
        if other.size:
            before = other[np.clip(np.searchsorted(other, steps, "right") - 1, 0, None)]
            due = np.where((before <= steps) & (steps - before <= most), np.minimum(due, before), due)
    return _distinct(steps, due)


def _distinct(steps: np.ndarray, due: np.ndarray) -> np.ndarray:
    """The due steps, but an evaluation's own where the evaluation before it came at the due step or later: rising, too."""
    passed = np.zeros(due.size, dtype=bool)
    passed[1:] = due[1:] <= steps[:-1]
    return np.where(passed, steps, due)


def plan(record: Record) -> tuple[int | None, int | None]:
    """The distance between a run's evaluations, and its budget; None if unknown."""
    return _number(record, "evaluation_interval"), _number(record, "num_env_steps")


def _number(record: Record, name: str) -> int | None:
    """A whole number above 0 that a run bound, or None."""
    text = record.settings.get(f"Intervals.{name}", "")
    value = float(text) if re.fullmatch(r"\d{1,15}(\.\d{0,15})?(e\+?\d{1,2})?", text) else 0.0
    return int(value) if 1 <= value < 1e15 and value == int(value) else None
