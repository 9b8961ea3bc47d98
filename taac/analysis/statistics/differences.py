"""Compares two methods: differences with intervals and verdicts, and the probability of improvement.

Scores are as in `taac.analysis.statistics.scores`: an array `[runs, tasks]`, or a list with an array `[runs]` for each task.
Both methods need the same tasks in the same order. A verdict follows from the interval of the *difference*, because two
methods can differ beyond doubt while their own intervals overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from taac.analysis.statistics import intervals
from taac.analysis.statistics.intervals import Interval, Spread
from taac.analysis.statistics.quantiles import bisect, check_confidence, student_p_value
from taac.analysis.statistics.scores import LINEAR, STATISTICS, Tasks, as_tasks, prepare
from taac.errors import TaacError


class Difference(NamedTuple):
    """A statistic of X minus the same statistic of Y."""

    estimate: float
    low: float  # NaN if undefined
    high: float
    confidence: float
    method: str
    p_value: float  # two-sided, for no difference; 1 if undefined
    verdict: str  # on X: "better", "worse" or "inconclusive"
    spread: Spread | None = None  # of the estimate, for a t interval; None without one


def compare(
    x: ArrayLike | Sequence[ArrayLike],
    y: ArrayLike | Sequence[ArrayLike],
    statistic: str = "mean",
    paired: bool = False,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Difference:
    """A statistic of X minus the same statistic of Y, with an interval and a verdict on X.

    The verdict is "better" or "worse" if the interval excludes 0, else "inconclusive". For the optimality gap, less is
    better.

    For the mean on one task the interval is Welch's t. In general it is a t interval on a standard error to which each
    method and task contributes (`intervals.linear_spread`, `intervals.bootstrap_spread`).

    Rate of false verdicts without a difference, at 3, 5, 10 runs (nominal 0.05 at confidence 0.95; simulated, +-0.01):

        scores                     mean, one task   mean, five tasks  IQM, five tasks
        normal                     0.04 0.05 0.05   0.03 0.04 0.05    0.04 0.05 0.03
        normal, sd of X 3 of Y     0.06 0.05 0.05   0.05 0.05 0.06    0.03 0.02 0.04
        lognormal                  0.02 0.03 0.03   0.03 0.03 0.04    0.02 0.04 0.04
        solved or not, half        0.00 0.02 0.04   0.06 0.05 0.05    0.05 0.05 0.03

    A difference of 3 standard deviations on one task is found at a rate of 0.67, 0.99, 1.00. With "solved or not" on one
    task, all against none is undefined; `bounded_difference` is for these.

    Args:
        statistic: "mean", "median", "iqm" or "optimality_gap", for both.
        paired: whether run i of X and run i of Y share what makes runs differ (the same data, the same opponents). Their
            differences are then the sample. A shared random seed is not enough, because two methods use it differently.

    Raises:
        TaacError: the numbers of tasks differ, or the numbers of runs if paired; a task has fewer than two runs; also as in
            `intervals.estimate_interval`.

    Source: Welch, Biometrika 1947.
    """
    check_confidence(confidence)
    xs, ys = (prepare(tasks, statistic) for tasks in _both(x, y, at_least=2))
    if paired and [t.size for t in xs] != [t.size for t in ys]:
        raise TaacError(
            f"paired comparison needs as many runs of X as of Y on every task, got {[t.size for t in xs]} and "
            f"{[t.size for t in ys]}; pass both in the order of the pairs, without runs that have no partner"
        )
    function = STATISTICS[statistic]
    kind = "paired" if paired else "Welch"
    if statistic in LINEAR:
        samples = [a - b for a, b in zip(xs, ys)] if paired else [*xs, *ys]
        spread, method = intervals.linear_spread(samples, 1 / len(xs)), f"{kind} t"
    else:

        def evaluate(numbers: Tasks) -> np.ndarray:
            of_x, of_y = (numbers, numbers) if paired else (numbers[: len(xs)], numbers[len(xs) :])
            picked_x, picked_y = ([t[i] for t, i in zip(ts, n)] for ts, n in ((xs, of_x), (ys, of_y)))
            return function(picked_x) - function(picked_y)

        runs = [t.size for t in (xs if paired else [*xs, *ys])]
        spread, method = intervals.bootstrap_spread(evaluate, runs, resamples, seed), f"{kind} bootstrap t"
    estimate = float(function(xs) - function(ys))
    interval = intervals.student_interval(estimate, spread, intervals.magnitude([*xs, *ys]), confidence, method)
    if math.isnan(interval.low):
        return Difference(*interval, 1.0, "inconclusive")
    p_value = student_p_value(estimate / spread.error, spread.df)
    return Difference(*interval, p_value, _verdict(interval, less_is_better=statistic == "optimality_gap"), spread)


def improvement_interval(
    x: ArrayLike | Sequence[ArrayLike], y: ArrayLike | Sequence[ArrayLike], confidence: float = 0.95
) -> Interval:
    """The probability of improvement, as the mean over tasks, with a score interval.

    It is the fraction of pairs of runs in which X scores more than Y. Ties count half. On a task it is Mann-Whitney's U / (m n).

    The interval contains all P with `(estimate - P)^2 <= z^2 V(P)`. V is the variance of the mean over tasks if the
    probability is P on each, for exponential scores (Hanley and McNeil, symmetrised by Newcombe):
    `V = sum over tasks of P (1 - P) (1 + ((m + n) / 2 - 1) ((1 - P) / (2 - P) + P / (1 + P))) / (m n) / T^2`.
    It has a positive width even if every run of X scores above every run of Y, where the bootstrap has none.

    Coverage at 95% for normal scores and P from 0.5 to 0.95 is 0.94 to 0.98 at 3, 5 and 10 runs, on one task or five. The
    exception is 0.90 at P = 0.5 with three runs on one task, where all of X above all of Y (1 case in 20) yields [0.501, 1].
    If the spread of X is ten times that of Y, coverage is 0.80 to 0.97 with three runs on one task, and 0.87 to 0.97
    otherwise. It is therefore not a test; `compare` is.

    Raises:
        TaacError: a task has fewer than two runs, or the numbers of tasks differ; also as in `as_tasks`.

    Source: Agarwal et al. 2021, section 4.3; Newcombe, Statistics in Medicine 2006, part 2, method 5.
    """
    check_confidence(confidence)
    xs, ys = _both(x, y, at_least=2)
    estimate = float(np.mean([(np.sign(a[:, None] - b).mean() + 1) / 2 for a, b in zip(xs, ys)]))
    z = NormalDist().inv_cdf((1 + confidence) / 2)

    def outside(p: float) -> bool:
        shape = (1 - p) / (2 - p) + p / (1 + p)
        variance = sum((1 + ((a.size + b.size) / 2 - 1) * shape) / a.size / b.size for a, b in zip(xs, ys)) / len(xs) ** 2
        return (estimate - p) ** 2 > z**2 * p * (1 - p) * variance

    low, high = (bisect(outside, estimate, end) if outside(end) else end for end in (0.0, 1.0))
    return Interval(estimate, low, high, confidence, "Newcombe score")


def _both(x: ArrayLike | Sequence[ArrayLike], y: ArrayLike | Sequence[ArrayLike], at_least: int) -> tuple[Tasks, Tasks]:
    xs, ys = as_tasks(x, at_least, "X"), as_tasks(y, at_least, "Y")
    if len(xs) != len(ys):
        raise TaacError(
            f"X has {len(xs)} tasks and Y has {len(ys)}; pass the scores of both on the same tasks, in the same order"
        )
    return xs, ys


def bounded_difference(
    x: ArrayLike | Sequence[ArrayLike],
    y: ArrayLike | Sequence[ArrayLike],
    bounds: tuple[float, float],
    confidence: float = 0.95,
) -> Interval:
    """The mean of X minus the mean of Y, of scores with known bounds.

    The interval is computed from the `intervals.bounded_interval` of each method, which is valid for "solved or not" at three
    runs, by Newcombe's square and add: `low = d - sqrt((x - low_x)^2 + (high_y - y)^2)`, `high` likewise. Three runs each are
    never enough to exclude 0; five are, if all of one are solved and none of the other.

    Args:
        bounds: the lowest and highest possible score.

    Raises:
        TaacError: the numbers of tasks differ; also as in `intervals.bounded_interval`.

    Source: Newcombe, Statistics in Medicine 1998, method 10's construction.
    """
    xs, ys = _both(x, y, at_least=1)
    a, b = (intervals.bounded_interval(tasks, bounds, confidence) for tasks in (xs, ys))
    d = a.estimate - b.estimate
    low = d - math.hypot(a.estimate - a.low, b.high - b.estimate)
    high = d + math.hypot(a.high - a.estimate, b.estimate - b.low)
    return Interval(d, low, high, confidence, "Clopper-Pearson, square and add")


def _verdict(interval: Interval, less_is_better: bool = False) -> str:
    if interval.low > 0:
        return "worse" if less_is_better else "better"
    if interval.high < 0:
        return "better" if less_is_better else "worse"
    return "inconclusive"
