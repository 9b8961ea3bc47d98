"""The learning curves of a report: every method on every task, against everything that can be counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taac.analysis.curves.learning_curves import Curve, interpolate, learning_curve
from taac.analysis.readers.run_records import Record
from taac.analysis.report.scores import FRACTION, FRACTIONS, Scores

AXES = {
    "env_steps": "environment steps",
    "training_decisions": "decisions",
    "updates": "updates",
    "seconds": "wall time (seconds)",
}
MEASURES = {"return_mean": "return", "fraction_repeated": "fraction of steps repeated"}
MOST_POINTS = 200
Run = tuple[np.ndarray, np.ndarray]  # x and values, [n] each, x rising


def curves(scores: Mapping[str, Mapping[str, Scores]], confidence: float) -> list[dict[str, Any]]:
    """A row for each task, measure and axis: `x` `[n]`, and for each method `estimate`, `low`, `high` `[n]`.

    A curve is the mean over the runs of its method with a pointwise interval, and is NaN where not all of them have been:
    nothing is extrapolated. All methods are told at the same x (`shared_points`), to be read beside each other. Numbers
    have seven digits.
    """
    return [
        _row(task, measure, axis, methods, confidence)
        for task, methods in scores.items()
        for measure in MEASURES
        for axis in AXES
    ]


def _row(task: str, measure: str, axis: str, methods: Mapping[str, Scores], confidence: float) -> dict[str, Any]:
    runs = {m: [run for r in of.records if (run := points(r, axis, measure)) is not None] for m, of in methods.items()}
    x = shared_points(list(runs.values()))
    found = []
    for method, of in runs.items():
        drawn = _curve(of, x, confidence)
        if np.isfinite(drawn.estimate).any():
            bounds = FRACTION if measure in FRACTIONS else (-math.inf, math.inf)
            numbers = {name: _short(np.clip(getattr(drawn, name), *bounds)) for name in ("estimate", "low", "high")}
            found.append({"method": method, "runs": len(of), **numbers})
    return {"task": task, "measure": measure, "axis": axis, "x": _short(x), "methods": found}


def points(record: Record, axis: str, measure: str) -> Run | None:
    """A run's evaluations against an axis; None where nothing is known.

    Evaluations at equal x, as those before the first update, are one with their mean.
    """
    x, values = record.evaluations[axis], record.evaluations[measure]
    known = np.isfinite(x) & np.isfinite(values)
    if not known.any():
        return None
    unique, which = np.unique(x[known], return_inverse=True)
    return unique, np.bincount(which, values[known]) / np.bincount(which)


def shared_points(methods: Sequence[Sequence[Run]]) -> np.ndarray:
    """The x `[n]` at which all methods are told: where any run was evaluated, within the range of all runs of its method.

    Where those are many (each run has an x of its own on most axes), evenly spaced ones instead, as many as the longest
    run has evaluations and at most `MOST_POINTS`, with the ends of every method's range.
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


def _curve(runs: Sequence[Run], x: np.ndarray, confidence: float) -> Curve:
    """NaN outside the range of all runs; one run alone has no interval."""
    nothing = np.full(x.size, math.nan)
    if not runs or not x.size:
        return Curve(x, nothing, nothing, nothing)
    values = interpolate(runs, x)
    if len(runs) == 1:
        return Curve(x, values[0], nothing, nothing)
    return learning_curve(x, values, confidence=confidence)


def _short(values: np.ndarray) -> list[float | int]:
    """Seven digits, which a drawing cannot show; whole numbers stay whole."""
    return [int(v) if v.is_integer() else float(f"{v:.7g}") for v in values.tolist()]
