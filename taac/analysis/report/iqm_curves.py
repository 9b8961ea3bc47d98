"""The interquartile mean over tasks against steps, with a band."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from taac.analysis.curves.learning_curves import Run, interpolate
from taac.analysis.report.anchors import Anchor
from taac.analysis.report.curves import points
from taac.analysis.report.scores import Scores, interval_of

MOST_POINTS, RESAMPLES = 41, 500  # of a band that is drawn
SHARE = "share of the compared step"


def iqm_curves(
    scores: Mapping[str, Mapping[str, Scores]],
    scales: Mapping[str, Anchor],
    steps: Mapping[str, int],
    methods: Iterable[str],
) -> dict[str, Any] | None:
    """The IQM of all runs' normalised returns, `(y - y0) / (y1 - y0)`, at equal shares of each task's compared step.

    At each point it is the statistic of the tables, with its interval at that point by itself (`RESAMPLES` resamples), from
    where all runs are known. Nothing is extrapolated. If all tasks are compared at one step, x is that of the environment.

    Args:
        scores: by task and method.
        scales: of the tasks with anchors; others are left out.
        steps: at which each task is compared.
        methods: those with runs on all of these tasks; none if there are not two such tasks.

    Returns:
        `x` `[n]`, `x_label`, and for each method `estimate`, `low` and `high` `[n]`. None without a method, or at step 0.
    """
    tasks = [task for task in scores if task in scales]
    if not methods or not all(steps[task] for task in tasks):  # a share of no steps
        return None
    runs = {m: {task: _normal(scores[task][m], scales[task], steps[task]) for task in tasks} for m in methods}
    grid = _shared(runs)
    rows = [{"method": m, **_curve(list(of.values()), grid)} for m, of in runs.items() if all(of.values())]
    common = {steps[task] for task in tasks}
    x, label = (grid * common.pop(), "environment steps") if len(common) == 1 else (grid, SHARE)
    return {"x": x, "x_label": label, "methods": rows} if grid.size and rows else None


def _normal(of: Scores, scale: Anchor, step: int) -> list[Run]:
    """The runs of a method on a task: shares of the compared step, and normalised returns."""
    found = [points(record, "due", "return_mean") for record in of.whole]
    return [(x / step, scale.scores(y)) for x, y in filter(None, found)]


def _shared(runs: Mapping[str, Mapping[str, Sequence[Run]]]) -> np.ndarray:
    """The shares `[n]` at which all methods are drawn, up to 1: those of any evaluation, or evenly spaced ones if many."""
    x = np.unique(np.concatenate([[1.0], *(x for of in runs.values() for task in of.values() for x, _ in task)]))
    x = x[x <= 1]
    return x if x.size <= MOST_POINTS else np.linspace(x[0], 1, MOST_POINTS)


def _curve(tasks: Sequence[Sequence[Run]], grid: np.ndarray) -> dict[str, list[float]]:
    values = [interpolate(runs, grid) for runs in tasks]
    known = np.all([np.isfinite(of).all(0) for of in values], axis=0)
    rows = np.full((3, grid.size), np.nan)
    for i in np.flatnonzero(known):
        found = interval_of([of[:, i] for of in values], "iqm", RESAMPLES)
        rows[:, i] = found["estimate"], found["low"], found["high"]
    return dict(zip(("estimate", "low", "high"), rows.tolist()))
