"""The part of a report that covers all tasks: aggregates of normalised scores, performance profiles, pairs of methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from taac.analysis import bounds
from taac.analysis.report import verdicts
from taac.analysis.report.anchors import Anchor
from taac.analysis.report.scores import Options, Scores, interval_of
from taac.analysis.statistics.intervals import performance_profile

AGGREGATES = ("iqm", "median", "mean")
PROFILE_POINTS = 101
_All = Mapping[str, Mapping[str, Scores]]  # by task and method


def normalized(scores: _All, scales: Mapping[str, Anchor]) -> dict[str, dict[str, list[np.ndarray]]]:
    """Normalised scores `[runs]` for each task with anchors, by method and measure; empty with fewer than two such tasks.

    Only methods with runs on all of these tasks are in it. A diverged run keeps -inf. The measure "area" is missing if a run
    has none.
    """
    tasks = [task for task in scores if task in scales]
    if len(tasks) < 2:
        return {}
    methods = sorted({m for task in tasks for m in scores[task]})
    return {m: _normalized(scores, m, tasks, scales) for m in methods if all(m in scores[task] for task in tasks)}


def over_tasks(
    scores: _All,
    scales: Mapping[str, Anchor],
    version: str,
    normal: verdicts.Normal,
    made: Mapping[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]],
    options: Options,
    warnings: list[str],
) -> dict[str, Any]:
    """Returns the block over tasks. Appends to `warnings` what it leaves out.

    Scores are normalised, `(y - y0) / (y1 - y0)`, on the tasks that have anchors. A method must have runs on all of these
    tasks. The probability of improvement needs no scale; it is the mean over the tasks that both methods have.

    Args:
        normal: the result of `normalized`.
        made: the result of `verdicts.families_of`.
    """
    tasks = [task for task in scores if task in scales]
    without = [task for task in scores if task not in scales]
    methods = sorted({m for task in tasks for m in scores[task]})
    enough = len(tasks) >= 2
    if len(scores) > 1 and without:
        left = "is left out: it has" if len(without) == 1 else "are left out: they have"
        warnings.append(f"over tasks, {', '.join(without)} {left} no anchors; add them with --anchors")
    for method in methods if enough else ():
        if method not in normal:
            lacking = [task for task in tasks if method not in scores[task]]
            warnings.append(f"over tasks, {method} is left out: it has no run on {', '.join(lacking)}")
    rows: list[dict[str, Any]] = [{"method": m, **_aggregates(measures)} for m, measures in normal.items()]
    if options.baseline is None:
        estimates = {row["method"]: ((row["final"] or {}).get("iqm") or {}).get("estimate") for row in rows}
        ranks = verdicts.ranks(made["final"][1], estimates)
        for row in rows:
            row["rank"] = ranks[row["method"]]
    return {
        "tasks": tasks if enough else [],
        "left_out": without,
        "why_none": None if enough else f"scores over tasks need two tasks with anchors, there are {len(tasks)}",
        "anchors": {task: scales[task]._asdict() for task in tasks},
        "anchors_version": version,
        "methods": rows,
        "pairs": made["final"][1],
        "area_pairs": made["area"][1],
        "profiles": _profiles(normal),
        "improvement": _improvements(scores, options) if len(scores) > 1 else [],
    }


def _normalized(
    scores: _All, method: str, tasks: list[str], scales: Mapping[str, Anchor]
) -> dict[str, list[np.ndarray]]:
    of = {task: scores[task][method] for task in tasks}
    measures = {"final": [scales[task].scores(s.final) for task, s in of.items()]}
    if not any(np.isnan(s.area).any() for s in of.values()):
        measures["area"] = [scales[task].scores(s.area) for task, s in of.items()]
    return measures


def _aggregates(measures: Mapping[str, list[np.ndarray]]) -> dict[str, Any]:
    """Aggregates of the runs that did not diverge, and how many did; None for a method that has no other on some task."""
    found: dict[str, Any] = {"diverged": sum(int(np.isneginf(v).sum()) for v in measures["final"])}
    for name in verdicts.MEASURES:
        known = [v[np.isfinite(v)] for v in measures.get(name, [])]
        found[name] = None
        if known and all(v.size for v in known):
            gap = interval_of([np.maximum(1 - v, 0) for v in known], "mean")
            found[name] = {s: interval_of(known, s) for s in AGGREGATES}
            found[name]["optimality_gap"] = bounds.cut_interval("optimality_gap", gap)
    return found


def _profiles(normal: verdicts.Normal) -> dict[str, Any] | None:
    """A diverged run is above no threshold."""
    values = [task[np.isfinite(task)] for measures in normal.values() for task in measures["final"]]
    if not any(v.size for v in values):
        return None
    every = np.concatenate(values)
    taus = np.linspace(min(0.0, every.min()), max(1.0, every.max()), PROFILE_POINTS)
    methods = [{"method": m, **performance_profile(of["final"], taus)._asdict()} for m, of in normal.items()]
    return {"tau": taus, "methods": methods}


def _improvements(scores: _All, options: Options) -> list[dict[str, Any]]:
    found = []
    for x, y in verdicts.compared(sorted({m for methods in scores.values() for m in methods}), options.baseline):
        both = [task for task in scores if x in scores[task] and y in scores[task]]
        if both:
            a, b = ([scores[task][m].final for task in both] for m in (x, y))
            found.append({"x": x, "y": y, "tasks": both, "improvement": verdicts.improvement_of(a, b)})
    return found
