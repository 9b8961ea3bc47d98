"""Verdicts on many comparisons at once, with simultaneous intervals that agree with them.

A verdict needs two tests, each corrected for all comparisons of the family:

- Welch's t, by Bonferroni: each of m intervals has confidence `1 - (1 - confidence) / m`, so that all of them hold together.
- A permutation test (`taac.analysis.statistics.permutations`), which keeps its level for scores that end in one of two
  places, are skewed, tied or bounded, where Welch's t does not. It has to find the pair by itself, and among all pairs of the
  family at once.

Where Welch's interval excludes 0 but the permutation test finds no difference, the interval is extended to 0.
A verdict is "better" or "worse" if and only if the interval excludes 0. Holm's method would make more verdicts than
Bonferroni's, but has no intervals that agree with it.

Two kinds of comparison leave Welch's t:

- If runs of X or Y diverged, means say nothing. The estimate is then P(X > Y) - 1/2, from -1/2 to 1/2, with diverged runs tied
  at the lowest. Its interval is Welch's of ranks among both, or of placements (the fraction of the other method's runs below
  each), whichever reaches farther to each side: ranks are right for equal distributions, placements for any with P = 1/2, and
  near 0 and 1 placements vary too little. The permutation test exchanges ranks.
- If all scores are at one of two bounds (solved or not), the test of the pair is Fisher's exact test, and the interval is that
  of `differences.bounded_difference`. Among several methods, the joint test still orders exchanges by Welch's t.

Source: Lachin, Controlled Clinical Trials 1999 (worst rank); Brunner and Munzel, Biometrical Journal 2000 (placements).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import nctdtrinc
from scipy.stats import fisher_exact, rankdata

from taac.analysis.statistics import permutations
from taac.analysis.statistics.differences import Difference, bounded_difference, compare, hedges_g
from taac.analysis.statistics.intervals import CONFIDENCE, NO_SPREAD, STATISTICS, Spread, Tasks, student_quantile

DIVERGED = -math.inf  # the score of a diverged run
MEANS, RANKS = "means", "ranks"
POWER = 0.8  # what is aimed at, as usual: a difference of that size is found in 4 of 5 studies
EXTENDED = "extended to 0 by the permutation test"


class Comparison(NamedTuple):
    """Two methods on one task, or over tasks. Scores are `[runs]` for each task; a diverged run has `DIVERGED`."""

    x: Tasks
    y: Tasks
    statistic: str = "mean"  # or "iqm"
    bounds: tuple[float, float] | None = None  # the lowest and highest possible score on the one task
    among: str | None = None  # the task whose other methods take part in the joint permutation test; None for none


class Verdict(NamedTuple):
    """A verdict on X, with all that it rests on."""

    difference: Difference  # corrected: `p_value` too
    compares: str  # "means": of scores; "ranks": P(X > Y) - 1/2
    p_value: float  # of Welch's t, or of Fisher's test, for this comparison alone
    p_permutation: float  # for this comparison alone; 1 if there is none
    effect: float  # Hedges' g, or 2 P(X > Y) - 1 for ranks; NaN if undefined
    fewest: int  # runs of each method that can give a verdict at all
    findable: bool  # whether these can
    detectable: float | None  # if inconclusive: the difference that Welch's t finds with a power of 0.8, in the estimate's unit


Methods = Mapping[str, Mapping[str, np.ndarray]]  # the scores [runs] of all methods, by task


def verdicts(
    comparisons: Sequence[Comparison],
    methods: Methods | None = None,
    names: Sequence[tuple[str, str]] = (),
    paired: bool = False,
    confidence: float = CONFIDENCE,
) -> list[Verdict]:
    """Decides a family of comparisons. If no methods differ, the probability of any wrong verdict is at most 1 - confidence.

    A comparison with a single run of a method can have no verdict, so the others are not corrected for it.

    Args:
        methods: for the joint permutation test. Without it, the permutation test of each pair is corrected by Bonferroni.
        names: the methods (X, Y) of each comparison, which are keys of `methods`.
        paired: run i of X and run i of Y are partners, and their differences are the sample.
    """
    family, level = family_size(comparisons), 1 - confidence
    factors = _factors(comparisons, methods, paired)
    found = []
    for c, factor, p, p_family in zip(comparisons, factors, *permutation_p_values(comparisons, methods, names, paired)):
        base = _base(c, paired, 1 - level / family)
        if family > 1 and not math.isnan(base.low):
            base = base._replace(method=f"{base.method} for {family} comparisons at once")
        compares = RANKS if _enough(c) and has_diverged(c) else MEANS
        exact = base.spread is None and _enough(c)  # Fisher's test, or no spread: no Welch's t
        difference = _decided(base, max(0.0 if exact else min(1.0, family * base.p_value), p_family), level)
        effect = math.nan
        if compares == RANKS:
            effect = 2 * base.estimate
        elif len(c.x) == 1:
            effect = hedges_g(c.x[0], c.y[0])
        runs = [(a.size, b.size) for a, b in zip(c.x, c.y)]
        undecided = difference.verdict == "inconclusive"
        # A joint test may find what these runs alone cannot.
        findable = _enough(c) and (not undecided or factor * permutations.smallest_p_value(runs, paired) <= level)
        detectable = _detectable(c, base.spread, compares, level / family) if findable and undecided else None
        fewest = permutations.fewest_runs(paired, factor, len(c.x))
        if not paired and _solved_or_not(c):  # whose interval must be able to exclude 0, too
            findable = findable and (not undecided or _may_exclude_0(c.x[0].size, c.y[0].size, 1 - level / family))
            fewest = next(n for n in itertools.count(fewest) if _may_exclude_0(n, n, 1 - level / family))
            detectable = detectable if findable else None
        alone = p if exact else base.p_value
        found.append(Verdict(difference, compares, alone, p, effect, fewest, findable, detectable))
    return found


def permutation_p_values(
    comparisons: Sequence[Comparison], methods: Methods | None = None, names: Sequence[tuple[str, str]] = (), paired: bool = False
) -> tuple[list[float], list[float]]:
    """Returns the p-values of the permutation test: of each comparison alone, and corrected for the family.

    Args: as `verdicts`.
    """
    family, factors = family_size(comparisons), _factors(comparisons, methods, paired)
    alone = [permutation_p_value(c, paired, permutations.draws_for(math.ceil(n))) for c, n in zip(comparisons, factors)]
    corrected = [min(1.0, family * p) for p in alone]
    if methods is not None and not paired and family > 1:  # one is tested exactly
        for at, p in _joint(comparisons, methods, names).items():
            corrected[at] = max(alone[at], min(1.0, factors[at] * p))
    return alone, corrected


def family_size(comparisons: Sequence[Comparison]) -> int:
    """Returns how many of the comparisons can be tested: those with two runs or more of each method."""
    return max(1, sum(map(_enough, comparisons)))


def _factors(comparisons: Sequence[Comparison], methods: Methods | None, paired: bool) -> list[float]:
    """Returns the corrections of the permutation tests' p-values: the family's size, or what the joint test leaves of it.

    The joint test corrects for the comparisons that it covers. If it covers k of m, their p-values are multiplied by m / k.
    """
    covers = [methods is not None and not paired and c.among in methods for c in comparisons]
    family, covered = family_size(comparisons), sum(_enough(c) for c, jointly in zip(comparisons, covers) if jointly)
    return [family / max(1, covered) if jointly else float(family) for jointly in covers]


def _joint(comparisons: Sequence[Comparison], methods: Methods, names: Sequence[tuple[str, str]]) -> dict[int, float]:
    """Returns the joint permutation test's p-values by number of comparison, corrected for those that it covers."""
    groups: list[permutations.Group] = []
    numbers: list[list[tuple[int, int]]] = []  # for each group: its pairs that count, and their numbers as comparisons

    def add(scores: Mapping[str, np.ndarray], at: Sequence[int], count: Sequence[int]) -> None:
        where = {method: i for i, method in enumerate(scores)}
        groups.append(permutations.Group(list(scores.values()), [(where[names[i][0]], where[names[i][1]]) for i in at]))
        numbers.append([(j, i) for j, i in enumerate(at) if i in count])

    for task, runs in methods.items():
        at = [i for i, c in enumerate(comparisons) if c.among == task and _enough(c)]
        whole = [i for i in at if not has_diverged(comparisons[i])]
        scores = {m: r for m, r in runs.items() if r.size >= 2}
        if whole:
            add({m: r for m, r in scores.items() if np.isfinite(r).all()}, whole, whole)
        if len(whole) < len(at):
            # All pairs take part: an exchange may move a diverged run into a pair that has none, and without that pair the
            # evidence of the others would look rarer than it is.
            ranks = rankdata(np.concatenate(list(scores.values())))
            parts = np.split(ranks, np.cumsum([r.size for r in scores.values()])[:-1])
            add(dict(zip(scores, parts)), at, [i for i in at if i not in whole])
    return {i: float(ps[j]) for ps, of in zip(permutations.joint(groups), numbers) for j, i in of}


def has_diverged(c: Comparison) -> bool:
    """Returns whether a run of either method diverged."""
    return any(np.isneginf(task).any() for task in (*c.x, *c.y))


def _enough(c: Comparison) -> bool:
    return all(task.size >= 2 for task in (*c.x, *c.y))


def _ranked(c: Comparison) -> Comparison:
    """Returns the scores as midranks among the runs of both methods, divided by their number.

    The difference of the means is then P(X > Y) - 1/2.
    """
    ranks = [rankdata(np.concatenate([a, b])) / (a.size + b.size) for a, b in zip(c.x, c.y)]
    xs, ys = [r[: a.size] for r, a in zip(ranks, c.x)], [r[a.size :] for r, a in zip(ranks, c.x)]
    return c._replace(x=xs, y=ys, statistic="mean", bounds=None)


def _placed(c: Comparison) -> Comparison:
    """Returns the scores as placements, shifted so that the difference of their means is P(X > Y) - 1/2.

    The placement of a run is the fraction of the other method's runs below it, ties counted half. The means of X's and of Y's
    are P and 1 - P, the same estimate; its variance is that of both samples, `s_x^2 / m + s_y^2 / n`, whatever their spreads.
    """
    xs, ys = [], []
    for a, b in zip(c.x, c.y):
        ranks = rankdata(np.concatenate([a, b]))
        above_y, above_x = (ranks[: a.size] - rankdata(a)) / b.size, (ranks[a.size :] - rankdata(b)) / a.size
        xs.append(above_y - 0.5)
        ys.append(above_x - above_x.mean())
    return c._replace(x=xs, y=ys, statistic="mean", bounds=None)


def permutation_p_value(c: Comparison, paired: bool = False, draws: int = permutations.DRAWS) -> float:
    """Returns the p-value of one comparison by exchanges of its own runs; 1 with a single run somewhere."""
    if not _enough(c):
        return 1.0
    if has_diverged(c):
        c = _ranked(c)
    if len(c.x) > 1:
        return permutations.over_tasks(c.x, c.y, STATISTICS[c.statistic], paired, draws)
    if paired:
        return permutations.paired_samples(c.x[0] - c.y[0], draws)
    if _solved_or_not(c):
        return float(fisher_exact([[int(np.sum(scores == end)) for end in c.bounds or ()] for scores in (c.x[0], c.y[0])])[1])
    return permutations.two_samples(c.x[0], c.y[0], draws)


def _solved_or_not(c: Comparison) -> bool:
    return c.bounds is not None and all(np.isin(task, c.bounds).all() for task in (*c.x, *c.y))


def _may_exclude_0(m: int, n: int, confidence: float) -> bool:
    """Returns whether the interval of runs that are solved or not can exclude 0."""
    return bounded_difference(np.ones(m), np.zeros(n), (0.0, 1.0), confidence).low > 0


def _base(c: Comparison, paired: bool, confidence: float) -> Difference:
    """Returns the comparison by Welch's t or by bounds. Its spread is None where Welch's t has none."""
    if not _enough(c):
        return Difference(finite_difference(c), math.nan, math.nan, "undefined: one run")
    if has_diverged(c):
        both = [compare(of.x, of.y, "mean", paired, confidence) for of in (_ranked(c), _placed(c))]
        known = [found for found in both if found.spread is not None]  # all above all: placements have none
        if not known:
            return both[0]
        widest = max(known, key=lambda found: found.p_value)
        low, high = min(found.low for found in known), max(found.high for found in known)
        return _within(widest._replace(low=low, high=high), -0.5, 0.5)
    found = compare(c.x, c.y, c.statistic, paired, confidence)
    if c.bounds is None:
        return found
    if not paired and _solved_or_not(c):
        return bounded_difference(c.x[0], c.y[0], c.bounds, confidence)
    low, high = c.bounds
    return _within(found, low - high, high - low)


def finite_difference(c: Comparison) -> float:
    """Returns the difference over the runs that did not diverge; NaN if there are none on some task."""
    xs, ys = ([task[np.isfinite(task)] for task in tasks] for tasks in (c.x, c.y))
    known = all(task.size for task in (*xs, *ys))
    return float(STATISTICS[c.statistic](xs) - STATISTICS[c.statistic](ys)) if known else math.nan


def _within(found: Difference, least: float, most: float) -> Difference:
    """Returns a difference with its interval cut to what is possible; its coverage does not change."""
    if math.isnan(found.low):
        return found
    estimate = min(max(found.estimate, least), most)
    return found._replace(estimate=estimate, low=max(found.low, least), high=min(found.high, most))


def _decided(base: Difference, p: float, level: float) -> Difference:
    """Returns a difference with its verdict, given the larger p-value of both tests, each corrected for the family.

    The interval is extended to 0 where the permutation test found nothing.
    """
    undefined = math.isnan(base.low)
    if not undefined and p > level and (base.low > 0 or base.high < 0):
        base = base._replace(low=min(base.low, 0.0), high=max(base.high, 0.0), method=f"{base.method}, {EXTENDED}")
    found = p <= level if undefined else base.low > 0 or base.high < 0
    if not found:  # Fisher's test may find a difference that its interval does not
        return base._replace(p_value=max(p, math.nextafter(level, 1)), verdict="inconclusive")
    method = f"{NO_SPREAD}; the verdict is the permutation test's" if undefined else base.method
    return base._replace(p_value=p, verdict="better" if base.estimate > 0 else "worse", method=method)


def _detectable(c: Comparison, spread: Spread | None, compares: str, level: float) -> float | None:
    """Returns the least difference found with a power of 0.8 by as many runs with this spread; None if none is possible."""
    if spread is None or not spread.error:
        return None
    difference = detectable_shift(spread.df, level) * spread.error
    most = 0.5 if compares == RANKS else math.inf if c.bounds is None else c.bounds[1] - c.bounds[0]
    return difference if difference < most else None


def detectable_shift(df: float, level: float) -> float:
    """Returns the true difference, in standard errors, that a two-sided Welch's t finds with the probability `POWER`.

    It is the noncentrality at which noncentral t exceeds the critical value that often; the other tail is below 1e-4 there.
    Scores with two peaks need more.
    """
    return float(nctdtrinc(df, 1 - POWER, student_quantile(1 - level, df)))
