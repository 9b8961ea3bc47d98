"""The learning curves of a report: every method on every task, against each of four counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taac.analysis import bounds
from taac.analysis.curves.learning_curves import Run, interpolate, learning_curve
from taac.analysis.readers.run_records import Record
from taac.analysis.report.scores import Scores

AXES = {
    "env_steps": "environment steps",
    "training_decisions": "decisions",
    "updates": "updates",
    "seconds": "wall time (seconds)",
}
MEASURES = {"return_mean": "return", "fraction_repeated": "fraction of steps repeated"}
MOST_POINTS = 200


def curves(scores: Mapping[str, Mapping[str, Scores]], limits: Mapping[str, bounds.Range]) -> list[dict[str, Any]]:
    """Returns a row for each task, measure and axis: `x` `[n]`, and for each method `estimate`, `low`, `high` `[n]` and `each`.

    A curve is the mean over the runs of its method with a pointwise interval. It is NaN outside the range that all of these
    runs cover; nothing is extrapolated. All methods are evaluated at the same x (`shared_points`), for comparison. `each`
    `[runs][n]` are the single runs, NaN outside their own range. Numbers have seven digits, those of single runs four.

    Args:
        limits: the lowest and the highest return of tasks that have some, where intervals end.
    """
    return [
        _row(task, measure, axis, methods, limits.get(task))
        for task, methods in scores.items()
        for measure in MEASURES
        for axis in AXES
    ]


def _row(
    task: str, measure: str, axis: str, methods: Mapping[str, Scores], limits: bounds.Range | None
) -> dict[str, Any]:
    limits = limits if measure == "return_mean" else None
    every = {m: [run for r in of.whole if (run := points(r, axis, measure)) is not None] for m, of in methods.items()}
    runs = {m: of for m, of in every.items() if of}
    x = shared_points(list(runs.values()))
    found = []
    for method, of in runs.items():
        values = interpolate(of, x)
        drawn = learning_curve(x, values)
        if np.isfinite(drawn.estimate).any():
            low, high = bounds.cut(measure, drawn.estimate, drawn.low, drawn.high, limits)
            numbers = {"estimate": _short(drawn.estimate), "low": _short(low), "high": _short(high)}
            each = [_short(run, digits=4) for run in values]
            found.append({"method": method, "runs": len(of), **numbers, "each": each})
    return {"task": task, "measure": measure, "axis": axis, "x": _short(x), "methods": found}


def points(record: Record, axis: str, measure: str) -> Run | None:
    """A run's evaluations against an axis, or None if there are none.

    Evaluations at equal x, such as those before the first update, are averaged.
    """
    x, values = record.evaluations[axis], record.evaluations[measure]
    known = np.isfinite(x) & np.isfinite(values)
    if not known.any():
        return None
    unique, which = np.unique(x[known], return_inverse=True)
    return unique, np.bincount(which, values[known]) / np.bincount(which)


def shared_points(methods: Sequence[Sequence[Run]]) -> np.ndarray:
    """The x `[n]` at which all methods are evaluated: where any run was evaluated, within the range of some method's runs.

    If there are many (on most axes every run has its own x), returns evenly spaced points and the ends of every method's
    range instead: as many points as the longest run has evaluations, at most `MOST_POINTS`.
    """
    ranges = [(max(x[0] for x, _ in runs), min(x[-1] for x, _ in runs)) for runs in methods if runs]
    ranges = [(low, high) for low, high in ranges if low <= high]
    if not ranges:
        return np.zeros(0)
    union = np.unique(np.concatenate([x for runs in methods for x, _ in runs]))
    union = union[np.any([(union >= low) & (union <= high) for low, high in ranges], axis=0)]
    longest = max(x.size for runs in methods for x, _ in runs)
    if union.size <= min(2 * longest, MOST_POINTS):
        return union
    lows, highs = zip(*ranges)
    even = np.linspace(min(lows), max(highs), min(longest, MOST_POINTS))
    if (union == np.rint(union)).all():
        even = np.rint(even)  # counts stay whole
    return np.union1d(even, [*lows, *highs])


def _short(values: np.ndarray, digits: int = 7) -> list[float | int]:
    """Rounds to some digits, of which seven are finer than any drawing. Whole numbers become integers."""
    rounded = [float(f"{v:.{digits}g}") for v in values.tolist()]
    return [int(v) if v.is_integer() else v for v in rounded]
