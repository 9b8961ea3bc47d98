"""Permutation tests, which keep their level whatever the distribution of scores: two peaks, skewed, tied or bounded.

If methods do not differ, their runs may change places. A difference counts as found only if few such exchanges have as much
evidence. With few runs there are few exchanges: 3 runs against 3 have a p-value of 0.1 at least, 4 against 4 of 0.029, 5
against 5 of 0.0079.

The statistic is Welch's t (`welch_evidence`), so that the tests are asymptotically right also if the spreads
of two methods differ; over tasks it is the difference of an aggregate.

Source: Janssen, Statistics and Probability Letters 1997; Chung and Romano, Annals of Statistics 2013 (studentised
permutations); Westfall and Young, Resampling-based multiple testing, 1993, algorithm 2.8 (step-down maxT).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from taac.analysis.statistics.intervals import Statistic, Tasks

MOST = 20_000  # all exchanges of two methods are enumerated up to this many; else as many are drawn
DRAWS = 9_999
MOST_DRAWS = 99_999
SEED = 0  # of the exchanges that are drawn
_ENTRIES = 40_000_000  # the most numbers that a joint test holds at once
_ROUNDING = 1e-12  # a standard error this small, relative to the scores, is that of equal scores
_SAME = 1 - 1e-9  # exchanges whose evidence is less by rounding only have as much


class Group(NamedTuple):
    """The methods of one task whose runs may change places, and which of them are compared."""

    runs: Sequence[np.ndarray]  # [runs] for each method, two or more
    pairs: Sequence[tuple[int, int]]  # of numbers of methods


def smallest_p_value(runs: Sequence[tuple[int, int]], paired: bool = False) -> float:
    """Returns the smallest two-sided p-value that exchanges of two methods can have, with m and n runs of them on each task.

    With m = n, exchanging the two methods as a whole gives the same evidence, so two exchanges count; otherwise one.
    """
    exchanges = math.prod(2**m if paired else math.comb(m + n, m) for m, n in runs)
    whole = all(m == n for m, n in runs)
    return min(1.0, (2 if whole else 1) / exchanges)


def fewest_runs(paired: bool = False, factor: float = 1.0, tasks: int = 1) -> int:
    """Returns the fewest runs of two methods on each task that can give a p-value of 0.05 or less, after it is multiplied.

    On one task they are 4, or 6 pairs, without a factor.
    """
    return next(n for n in itertools.count(2) if factor * smallest_p_value([(n, n)] * tasks, paired) <= 0.05)


def draws_for(comparisons: int) -> int:
    """Returns how many exchanges to draw for p-values multiplied by `comparisons`: 1 / (1 + draws) must stay below 5%."""
    return min(max(DRAWS, 40 * comparisons), MOST_DRAWS)


def two_samples(x: np.ndarray, y: np.ndarray, draws: int = DRAWS) -> float:
    """Returns the p-value for no difference between X `[m]` and Y `[n]`, two runs or more each.

    Exact if there are at most `MOST` exchanges, else from random ones and the given runs, as (1 + k) / (1 + draws).
    """
    chosen = _exchanges(x.size, y.size, draws)
    pool = np.concatenate([x, y])
    of_x, of_y = (moments(pool[picked]) for picked in chosen)
    every = math.comb(pool.size, x.size) <= MOST
    return _fraction(welch_evidence(of_x, of_y), welch_evidence(moments(x), moments(y)), every)


def paired_samples(differences: np.ndarray, draws: int = DRAWS) -> float:
    """Returns the p-value for no difference between partners, `[n]`: each difference might have had the other sign.

    Exact for up to 14 pairs. Its smallest value is 2 / 2^n: 0.0625 with 5 pairs, 0.031 with 6.
    """
    n = differences.size
    every = 2**n <= MOST
    if every:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
    else:
        signs = np.random.default_rng(SEED).choice([-1, 1], size=(draws, n))
    return _fraction(_one_sample(signs * differences), _one_sample(differences), every)


def over_tasks(x: Tasks, y: Tasks, statistic: Statistic, paired: bool = False, draws: int = DRAWS) -> float:
    """Returns the p-value for no difference between X and Y on any task, `[runs]` each, exchanging runs within tasks.

    The difference of the statistic is the evidence. If `paired`, run i of X changes places with run i of Y only.
    """
    rng = np.random.default_rng(SEED)
    xs, ys = [], []
    for a, b in zip(x, y):
        if paired:
            swap = rng.random((draws, a.size)) < 0.5
            xs.append(np.where(swap, b, a))
            ys.append(np.where(swap, a, b))
        else:
            pool = _shuffled(np.concatenate([a, b]), draws, rng)
            xs.append(pool[:, : a.size])
            ys.append(pool[:, a.size :])
    drawn, given = np.abs(statistic(xs) - statistic(ys)), abs(float(statistic(x) - statistic(y)))
    tolerance = 1e-9 * max(float(np.abs(task).max()) for task in (*x, *y))
    return float((1 + (drawn >= given - tolerance).sum()) / (1 + draws))


def joint(groups: Sequence[Group]) -> list[np.ndarray]:
    """Returns adjusted p-values for all pairs of all groups together: an array `[pairs]` for each group.

    In each group, runs change places among all of its methods. If no method differs from another, the probability that any of
    the p-values is at most a is at most a, whatever the distributions. Pairs are taken in the order of their evidence, and
    those that are found leave the family (step-down).
    """
    pairs = [(g, pair) for g, group in enumerate(groups) for pair in group.pairs]
    if not pairs:
        return [np.zeros(0) for _ in groups]
    draws = max(99, min(DRAWS, _ENTRIES // len(pairs)))
    given = np.concatenate([_evidence_of([moments(r) for r in group.runs], group.pairs)[:, 0] for group in groups])
    order = np.argsort(given, kind="stable")  # the least evidence first
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    drawn = np.empty((order.size, draws), dtype=np.float32)
    rng, first = np.random.default_rng(SEED), 0
    for group in groups:
        rows = place[first : first + len(group.pairs)]
        parts = np.split(_shuffled(np.concatenate(group.runs), draws, rng), np.cumsum([r.size for r in group.runs])[:-1], axis=1)
        drawn[rows] = _evidence_of([moments(part) for part in parts], group.pairs)
        first += len(group.pairs)
    np.maximum.accumulate(drawn, axis=0, out=drawn)  # the largest of a pair and of all with less evidence
    at_least = (drawn >= (_SAME * given[order])[:, None].astype(np.float32) * np.float32(1 - 1e-6)).sum(1)
    adjusted = (1 + at_least) / (1 + draws)
    adjusted = np.maximum.accumulate(adjusted[::-1])[::-1]  # nothing with less evidence has a smaller p-value
    found = adjusted[place]
    return np.split(found, np.cumsum([len(group.pairs) for group in groups])[:-1])


def _evidence_of(methods: Sequence[Moments], pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns the evidence of each pair, `[pairs, draws]`, from moments `[draws]` or of one number."""
    return np.array([np.atleast_1d(welch_evidence(methods[i], methods[j])) for i, j in pairs])


def _shuffled(pool: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    return rng.permuted(np.broadcast_to(pool, (draws, pool.size)), axis=1)


@lru_cache(maxsize=64)
def _exchanges(m: int, n: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns which of m + n runs are X's `[exchanges, m]` and which are Y's `[exchanges, n]`."""
    if math.comb(m + n, m) <= MOST:
        of_x = np.array(list(itertools.combinations(range(m + n), m)))
        others = np.ones((len(of_x), m + n), dtype=bool)
        np.put_along_axis(others, of_x, False, axis=1)
        return of_x, np.broadcast_to(np.arange(m + n), others.shape)[others].reshape(-1, n)
    order = _shuffled(np.arange(m + n), draws, np.random.default_rng(SEED))
    return order[:, :m], order[:, m:]


def _fraction(evidence: np.ndarray, given: np.ndarray, every: bool) -> float:
    """Returns the p-value: the fraction of exchanges with as much evidence.

    If not every one was made, the given runs count as one.
    """
    k = int((evidence >= _SAME * given).sum())
    return k / evidence.size if every else (1 + k) / (1 + evidence.size)


def _one_sample(differences: np.ndarray) -> np.ndarray:
    """Returns `|t|` of differences `[..., n]`; infinite where they are equal and not 0."""
    of = moments(differences)
    none = of.variance == 0
    equal = np.where(of.mean == 0, 0.0, np.inf)
    return np.where(none, equal, np.abs(of.mean) / np.sqrt(np.where(none, 1.0, of.variance)))


class Moments(NamedTuple):
    """What Welch's t needs of groups of runs, `[...]` each."""

    mean: np.ndarray
    variance: np.ndarray  # of the mean: s^2 / n; 0 where the runs of a group are equal
    runs: np.ndarray | int


def moments(values: np.ndarray) -> Moments:
    """Returns the moments of groups `[..., runs]`, two runs or more."""
    runs, mean = values.shape[-1], values.mean(-1)
    variance = values.var(-1, ddof=1) / runs
    scale = np.abs(values).max(-1)
    return Moments(mean, np.where(variance <= (_ROUNDING * scale) ** 2, 0.0, variance), runs)


def welch_evidence(x: Moments, y: Moments) -> np.ndarray:
    """Returns the evidence `[...]`, 0 or more, of Welch's t for a difference between the means of X and Y.

    `t = (mean x - mean y) / sqrt(v_x + v_y)`, `df = (v_x + v_y)^2 / (v_x^2 / (m - 1) + v_y^2 / (n - 1))`. If neither group
    has any spread, the evidence is infinite for different means and 0 for equal ones.

    Source: Welch, Biometrika 1947.
    """
    spread = x.variance + y.variance
    none = spread == 0
    safe = np.where(none, 1.0, spread)
    difference = np.abs(x.mean - y.mean)
    df = safe**2 / np.where(none, 1.0, x.variance**2 / (x.runs - 1) + y.variance**2 / (y.runs - 1))
    equal = difference <= _ROUNDING * np.maximum(np.abs(x.mean), np.abs(y.mean))
    return np.where(none, np.where(equal, 0.0, np.inf), evidence(difference / np.sqrt(safe), df))


def evidence(t: np.ndarray, df: np.ndarray) -> np.ndarray:
    """Returns the normal deviate that is about as improbable as `t` with `df` degrees of freedom: rises with t, falls with df.

    `(8 df + 1) / (8 df + 3) sqrt(df log(1 + t^2 / df))`.

    Source: Wallace, Annals of Mathematical Statistics 1959.
    """
    return (8 * df + 1) / (8 * df + 3) * np.sqrt(df * np.log1p(t * t / df))
