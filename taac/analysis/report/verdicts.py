"""The verdicts of a report: which methods are compared, in which families, and the rows that tables show.

The comparisons of final returns, on each task and over tasks, are one family; those of areas under the curve are another.
`taac.analysis.statistics.families` says how a family is tested.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from taac.analysis.bounds import Range
from taac.analysis.report.scores import Options, Scores
from taac.analysis.statistics import families
from taac.analysis.statistics.differences import improvement_interval
from taac.analysis.statistics.families import Comparison, Verdict, midranks
from taac.analysis.statistics.intervals import Interval
from taac.analysis.statistics.quantiles import CONFIDENCE
from taac.analysis.statistics.scores import Tasks
from taac.errors import TaacError

MEASURES = ("final", "area")
_All = Mapping[str, Mapping[str, Scores]]  # by task and method
Normal = Mapping[str, Mapping[str, list[np.ndarray]]]  # normalised scores, by method and measure: [runs] for each task


def compared(methods: Iterable[str], baseline: str | None) -> list[tuple[str, str]]:
    """The pairs (X, Y) that are compared: every two methods, or each other method with the baseline as Y."""
    names = list(methods)
    if baseline is None:
        return list(itertools.combinations(names, 2))
    return [(method, baseline) for method in names if method != baseline] if baseline in names else []


def check(scores: _All, options: Options) -> None:
    """Raises TaacError for a baseline that is no method, or for pairs by seed without partners."""
    methods = sorted({m for of in scores.values() for m in of})
    if options.baseline is not None and options.baseline not in methods:
        raise TaacError(f"--baseline {options.baseline} is no method of these runs; they are {', '.join(methods)}")
    for task, of in scores.items() if options.paired else ():
        _check_partners(task, of)


def _check_partners(task: str, methods: Mapping[str, Scores]) -> None:
    seeds = {m: [r.seed for r in of.records] for m, of in methods.items()}
    first = next(iter(seeds))
    for method, given in seeds.items():
        if given != seeds[first] or None in given or len(set(given)) < len(given):
            raise TaacError(
                f"--paired needs every seed once in every method of a task, but on {task} {first} has {seeds[first]} and "
                f"{method} has {given}; leave out --paired"
            )


def families_of(
    scores: _All, normal: Normal, bounds: Mapping[str, Range], options: Options
) -> dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """For each measure, the rows of pairs on tasks and the rows of pairs over tasks, which are one family.

    Args:
        normal: normalised scores of the methods that have all tasks with anchors; empty without two such tasks.
    """
    return {measure: _family(measure, scores, normal, bounds, options) for measure in MEASURES}


def _family(
    measure: str, scores: _All, normal: Normal, bounds: Mapping[str, Range], options: Options
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    methods = {task: _known(of, measure) for task, of in scores.items()}
    rows: list[dict[str, Any]] = []
    comparisons: list[Comparison] = []
    for task, of in methods.items():
        for x, y in compared(of, options.baseline):
            rows.append({"task": task, "x": x, "y": y})
            comparisons.append(Comparison([of[x]], [of[y]], "mean", bounds.get(task), task))
    on_tasks = len(rows)
    whole = [m for m, measures in normal.items() if measure in measures]
    for x, y in compared(whole, options.baseline):
        rows.append({"x": x, "y": y})
        comparisons.append(Comparison(normal[x][measure], normal[y][measure], "iqm"))
    names = [(row["x"], row["y"]) for row in rows]
    found = families.verdicts(comparisons, methods, names, options.paired)
    made = [{**row, **_row(c, v, options.paired)} for row, c, v in zip(rows, comparisons, found)]
    return made[:on_tasks], made[on_tasks:]


def _known(methods: Mapping[str, Scores], measure: str) -> dict[str, np.ndarray]:
    """The scores `[runs]` of the methods that have one in every run; those of a diverged run are -inf."""
    found = {m: getattr(of, measure) for m, of in methods.items()}
    return {m: values for m, values in found.items() if not np.isnan(values).any()}


def _row(c: Comparison, v: Verdict, paired: bool) -> dict[str, Any]:
    """The numbers of a verdict. What is compared by ranks has its interval on P(X > Y), and none on the difference."""
    d = v.difference
    interval = Interval(d.estimate, d.low, d.high, CONFIDENCE, d.method)
    improvement: dict[str, Any] | None = improvement_of(c.x, c.y)
    if v.compares == families.RANKS:
        improvement = Interval(d.estimate + 0.5, d.low + 0.5, d.high + 0.5, CONFIDENCE, f"{d.method} of ranks")._asdict()
        left = families.finite_difference(c)
        interval = Interval(left, math.nan, math.nan, CONFIDENCE, "of the runs that did not diverge; see P(X > Y)")
    return {
        "difference": interval._asdict(),
        "improvement": improvement,
        "compares": v.compares,
        "paired": paired,
        "diverged": [sum(int(np.isneginf(task).sum()) for task in tasks) for tasks in (c.x, c.y)],
        "effect": v.effect,
        "p_value": v.p_value,
        "p_permutation": v.p_permutation,
        "p_adjusted": d.p_value,
        "findable": v.findable,
        "detectable": v.detectable,
        "verdict": d.verdict,
    }


def improvement_of(x: Tasks, y: Tasks) -> dict[str, Any] | None:
    """The probability of improvement with its interval, or None with fewer than two runs on a task.

    A diverged run is below all others; such runs are tied.
    """
    if any(task.size < 2 for task in (*x, *y)):
        return None
    ranks = [midranks(np.concatenate([a, b])) for a, b in zip(x, y)]
    of_x, of_y = [r[: a.size] for r, a in zip(ranks, x)], [r[a.size :] for r, a in zip(ranks, x)]
    return improvement_interval(of_x, of_y)._asdict()


def ranks(pairs: Sequence[Mapping[str, Any]], scores: Mapping[str, float | None]) -> dict[str, dict[str, Any]]:
    """The rank of each method of a task, 1 for the best, with an interval that agrees with the verdicts of all pairs.

    It reaches from 1 + (methods with a verdict of being better) to K - (methods with one of being worse), of K methods. All
    intervals hold together with the family's confidence. A rank that the verdicts exclude, because of diverged runs that are
    in no mean, is moved to the nearest end.

    Args:
        pairs: the verdicts of all pairs.
        scores: what is ranked, by method; None if unknown, which is the last.

    Source: Mohamad, Goeman and van Zwet, Simultaneous confidence intervals for ranks, 2019, section 3.
    """
    above, below = dict.fromkeys(scores, 0), dict.fromkeys(scores, 0)
    for pair in pairs:
        x, y = (pair["x"], pair["y"]) if pair["verdict"] != "worse" else (pair["y"], pair["x"])
        if pair["verdict"] != "inconclusive":
            below[x] += 1
            above[y] += 1
    value = {m: -math.inf if s is None else s for m, s in scores.items()}
    found = {}
    for m in scores:
        place = 1 + sum(v > value[m] for v in value.values()) + (list(value.values()).count(value[m]) - 1) / 2
        low, high = 1 + above[m], len(scores) - below[m]
        found[m] = {"estimate": min(max(place, low), high), "low": low, "high": high}
    return found
