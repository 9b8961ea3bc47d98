"""Fronts of a report: the return and cost of each method, and which methods no other one beats in both.

A point is the mean final return of a method's runs and the mean cost (decisions, jerk) of their greedy episodes at the same
evaluations. A method is dominated if another one costs no more and returns no less, and is better in one of both. The others are
the front. Its hypervolume is the area that it dominates in the box from no cost and the highest mean return to the highest mean
cost and the lowest mean return, as a part of that box:

    HV = 1 / (C (R - r)) * integral over c in [0, C] of max(0, max of G_i over i with c_i <= c, less r)

with C the highest mean cost, R and r the highest and lowest mean return. It is 1 if one method has the highest return at no cost.
If all returns are equal, every method has the highest. The box depends on the methods, so hypervolumes of different reports are
not comparable. Where all methods have the same seeds, resamples draw seeds for all of them at once: runs of one seed are
evaluated in the same episodes, and so differ less than others. Each resample has a box of its own, because luck that all methods
share moves it, too.

A method is on the front in a share of resamples. Means of n runs drawn from n spread too little, and for few runs much too
little: of two equal methods with three runs each, the dear one would be on the front in at most 2.5% or at least 97.5% of
resamples in 29 of 100 studies. So the deviation of each sample's means from those of its runs is multiplied by `sqrt(n / chi2)`,
with chi2 drawn of n - 1 degrees of freedom: they then spread as Student's t. With that it is in 5 of 100.

Source of the hypervolume: Zitzler and Thiele, Multiobjective evolutionary algorithms, IEEE Transactions on Evolutionary
Computation 1999.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taac.analysis.report.scores import AllScores, exact
from taac.analysis.statistics.intervals import (
    CONFIDENCE,
    RESAMPLES,
    SEED,
    Interval,
    bootstrap_spread,
    cut_interval,
    student_interval,
)

_ROUNDING = 1e-12  # means that differ by less, relative to the largest, are equal
COSTS = {"decisions": "decisions an episode", "jerk": "jerk"}


def fronts(scores: AllScores, tasks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for each task and cost of `COSTS` that at least two methods have in all runs, unless it is equal for all.

    A row has the `task`, the `cost`, the `hypervolume` with its interval (`bootstrap_spread`), and of each method, by rising
    cost, its number of `runs` and of those that `diverged` besides, the means `x` of cost and `y` of return with their intervals,
    whether it is `on_front`, and in which `share` of resamples it is (None if a method has one run).
    Diverged runs are left out.

    Args:
        tasks: the report's rows of tasks, which have the means.
    """
    rows = []
    means = {(task["task"], m["method"]): m for task in tasks for m in task["methods"]}
    for task, methods in scores.items():
        for cost in COSTS:
            known, seeds = {}, set[tuple[int | None, ...]]()
            for method, of in methods.items():
                whole = np.isfinite(of.final)
                if whole.any() and np.isfinite(of.repetition[cost][whole]).all():
                    known[method] = np.stack([of.repetition[cost][whole], of.final[whole]])
                    seeds.add(tuple(r.seed for r, w in zip(of.records, whole.tolist()) if w))
            if len(known) > 1 and len({exact(points[0].mean()) for points in known.values()}) > 1:
                same_seeds = len(seeds) == 1 and not any(None in of for of in seeds)
                volume, methods_told = _front(list(known), list(known.values()), same_seeds)
                for row in methods_told:
                    m = means[task, row["method"]]
                    row |= {"runs": m["final"]["runs"], "diverged": m["diverged"]}
                    row |= {"x": m["repetition"][cost]["mean"], "y": m["final"]["mean"]}
                methods_told.sort(key=lambda row: row["x"]["estimate"])
                rows.append({"task": task, "cost": cost, "hypervolume": volume, "methods": methods_told})
    return rows


def _front(
    methods: Sequence[str], runs: Sequence[np.ndarray], same_seeds: bool
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the hypervolume and a row for each method. Its runs are costs and returns `[2, n]`, of the `same_seeds` or not."""
    samples = [of.shape[1] for of in (runs[:1] if same_seeds else runs)]

    def means(numbers: Sequence[np.ndarray]) -> np.ndarray:
        """Returns mean cost and return `[2, ..., methods]` of runs by number, `[..., n]` for each sample."""
        drawn = [of[:, at].mean(-1) for of, at in zip(runs, [*numbers] * len(runs) if same_seeds else numbers)]
        return np.stack(np.broadcast_arrays(*drawn), -1)

    points = means([np.arange(n) for n in samples])
    rng = np.random.default_rng(SEED)
    shares: list[float | None] = [None] * len(methods)
    estimate = float(hypervolume(points))
    interval = Interval(estimate, np.nan, np.nan, CONFIDENCE, "undefined: a method has one run")
    if min(samples) > 1:  # resampling one run says nothing of how sure it is
        wider = np.stack([np.sqrt(n / rng.chisquare(n - 1, RESAMPLES)) for n in samples], -1)  # or one for all methods
        resampled = means([rng.integers(n, size=(RESAMPLES, n)) for n in samples])
        shares = nondominated(points[:, None] + wider * (resampled - points[:, None])).mean(0).tolist()
        spread = bootstrap_spread(lambda numbers: hypervolume(means(numbers)), samples)
        interval = student_interval(estimate, spread, [np.ones(1)], CONFIDENCE, "bootstrap t")
    rows = zip(methods, nondominated(points).tolist(), shares)
    volume = cut_interval("hypervolume", interval._asdict())
    assert volume is not None
    return volume, [dict(zip(("method", "on_front", "share"), row)) for row in rows]


def nondominated(points: np.ndarray) -> np.ndarray:
    """Returns which methods no other dominates, `[..., methods]` bool, for costs and returns `[2, ..., methods]`."""
    (c, r), (other_c, other_r) = points[..., :, None], points[..., None, :]
    cheaper, higher = c - other_c, other_r - r
    equal_c, equal_r = _ROUNDING * np.abs(points).max(-1)[..., None, None]
    dominated = (cheaper >= -equal_c) & (higher >= -equal_r) & ((cheaper > equal_c) | (higher > equal_r))
    return np.logical_not(dominated.any(-1))


def hypervolume(points: np.ndarray) -> np.ndarray:
    """Returns HV `[...]` of costs and returns `[2, ..., methods]`; 1 where nothing costs anything."""
    cost, returns = np.take_along_axis(points, np.argsort(points[:1], axis=-1), -1)  # by rising cost
    best, least = np.maximum.accumulate(returns, axis=-1), returns.min(-1, keepdims=True)
    high = best[..., -1:]
    differ = high - least > _ROUNDING * np.abs(returns).max(-1, keepdims=True)
    reached = np.divide(best - least, high - least, out=np.ones_like(best), where=differ)
    area, most = (reached[..., :-1] * np.diff(cost, axis=-1)).sum(-1), cost[..., -1]
    return np.divide(area, most, out=np.ones_like(area), where=most > 0)
