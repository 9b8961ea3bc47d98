"""The part of a report that covers all tasks: aggregates of normalised scores, performance profiles, pairs of methods."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from taac.analysis import bounds
from taac.analysis.report.anchors import Anchor
from taac.analysis.report.scores import (
    Options,
    Scores,
    corrected,
    difference_of,
    improvement_of,
    interval_of,
    matched,
)
from taac.analysis.statistics.differences import Difference
from taac.analysis.statistics.intervals import performance_profile
from taac.analysis.statistics.scores import normalize

AGGREGATES = ("iqm", "median", "mean", "optimality_gap")
PROFILE_POINTS = 101
_All = Mapping[str, Mapping[str, Scores]]  # by task and method


def over_tasks(
    scores: _All, scales: Mapping[str, Anchor], version: str, options: Options, warnings: list[str]
) -> dict[str, Any]:
    """Returns the block over tasks. Appends to `warnings` what it leaves out.

    Scores are normalised, `(y - y0) / (y1 - y0)`, on the tasks that have anchors. A method must have runs on all of these
    tasks. The probability of improvement needs no scale; it is the mean over the tasks that both methods have.
    """
    tasks = [task for task in scores if task in scales]
    without = [task for task in scores if task not in scales]
    methods = sorted({m for task in tasks for m in scores[task]})
    whole = [m for m in methods if all(m in scores[task] for task in tasks)]
    enough = len(tasks) >= 2
    if len(scores) > 1 and without:
        warnings.append(f"over tasks, {', '.join(without)} is left out: it has no anchors; add them with --anchors")
    for method in methods if enough else ():
        if method not in whole:
            lacking = [task for task in tasks if method not in scores[task]]
            warnings.append(f"over tasks, {method} is left out: it has no run on {', '.join(lacking)}")
    normal = {m: _normalized(scores, m, tasks, scales) for m in whole} if enough else {}
    return {
        "tasks": tasks if enough else [],
        "left_out": without,
        "why_none": None if enough else f"scores over tasks need two tasks with anchors, there are {len(tasks)}",
        "anchors": {task: scales[task]._asdict() for task in tasks},
        "anchors_version": version,
        "methods": [{"method": m, **_aggregates(measures, options)} for m, measures in normal.items()],
        "pairs": _score_pairs(scores, tasks, normal, options),
        "profiles": _profiles(normal, options),
        "improvement": _improvements(scores, options) if len(scores) > 1 else [],
    }


def _normalized(
    scores: _All, method: str, tasks: list[str], scales: Mapping[str, Anchor]
) -> dict[str, list[np.ndarray]]:
    """Final scores and areas under the curve, `[runs]` for each task. Areas are missing if a task has none."""
    of = [scores[task][method] for task in tasks]
    pairs = [scales[task][:2] for task in tasks]
    measures = {"final": normalize([s.final for s in of], pairs)}
    if all(np.isfinite(s.area).all() for s in of):
        measures["area"] = normalize([s.area for s in of], pairs)
    return measures


def _aggregates(measures: Mapping[str, list[np.ndarray]], options: Options) -> dict[str, Any]:
    return {
        name: {s: bounds.cut_interval(s, interval_of(measures[name], s, options)) for s in AGGREGATES}
        if name in measures
        else None
        for name in ("final", "area")
    }


def _score_pairs(
    scores: _All, tasks: list[str], normal: Mapping[str, dict[str, list[np.ndarray]]], options: Options
) -> list[dict[str, Any]]:
    """Differences in the IQM of final scores. They are a family of their own, corrected by Holm's method."""
    rows: list[dict[str, Any]] = []
    differences: list[Difference] = []
    for x, y in itertools.combinations(normal, 2):
        paired = options.paired and matched([scores[t][x] for t in tasks], [scores[t][y] for t in tasks])
        rows.append({"x": x, "y": y, "paired": paired})
        differences.append(difference_of(normal[x]["final"], normal[y]["final"], "iqm", paired, options))
    return corrected(rows, differences)


def _profiles(normal: Mapping[str, dict[str, list[np.ndarray]]], options: Options) -> dict[str, Any] | None:
    if not normal:
        return None
    values = np.concatenate([task for measures in normal.values() for task in measures["final"]])
    taus = np.linspace(min(0.0, values.min()), max(1.0, values.max()), PROFILE_POINTS)
    profiles = {m: performance_profile(measures["final"], taus, options.confidence) for m, measures in normal.items()}
    return {
        "tau": taus,
        "methods": [{"method": m, "fraction": p.fraction, "low": p.low, "high": p.high} for m, p in profiles.items()],
    }


def _improvements(scores: _All, options: Options) -> list[dict[str, Any]]:
    found = []
    for x, y in itertools.combinations(sorted({m for methods in scores.values() for m in methods}), 2):
        both = [task for task in scores if x in scores[task] and y in scores[task]]
        if both:
            a, b = ([scores[task][m].final for task in both] for m in (x, y))
            found.append({"x": x, "y": y, "tasks": both, "improvement": improvement_of(a, b, options)})
    return found
