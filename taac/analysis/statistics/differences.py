"""Compares two methods: differences with intervals, the probability of improvement, and standardised effects.

Scores are as in `taac.analysis.statistics.intervals`, two runs or more on each task, and of both methods on the same tasks in the
same order. A verdict follows from the interval of the *difference*, because two methods can differ beyond doubt while their own
intervals overlap; `taac.analysis.statistics.families` makes it.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from taac.analysis.statistics import intervals
from taac.analysis.statistics.intervals import CONFIDENCE, STATISTICS, Interval, Spread, Tasks, student_p_value


class Difference(NamedTuple):
    """A statistic of X minus the same statistic of Y."""

    estimate: float
    low: float  # NaN if undefined
    high: float
    method: str
    p_value: float = 1.0  # two-sided, for no difference; 1 if undefined
    verdict: str = "inconclusive"  # on X: "better", "worse" or "inconclusive"
    spread: Spread | None = None  # of the estimate, for a t interval; None without one


def compare(x: Tasks, y: Tasks, statistic: str = "mean", paired: bool = False, confidence: float = CONFIDENCE) -> Difference:
    """Returns a statistic of X minus the same statistic of Y, with an interval. Its verdict is left open.

    For the mean on one task the interval is Welch's t. In general it is a t interval on a standard error to which each
    method and task contributes (`intervals.linear_spread`, `intervals.bootstrap_spread`).

    Rate of intervals that exclude 0 without a difference, at 3, 5, 10 runs (nominal 0.05 at confidence 0.95; simulated,
    +-0.01):

        scores                     mean, one task   mean, five tasks  IQM, five tasks
        normal                     0.04 0.05 0.05   0.03 0.04 0.05    0.04 0.05 0.03
        normal, sd of X 3 of Y     0.06 0.05 0.05   0.05 0.05 0.06    0.03 0.02 0.04
        lognormal                  0.02 0.03 0.03   0.03 0.03 0.04    0.02 0.04 0.04
        solved or not, half        0.00 0.02 0.04   0.06 0.05 0.05    0.05 0.05 0.03

    With a difference of 3 standard deviations on one task, rates are 0.67, 0.99, 1.00. With "solved or not" on one task, all
    against none is undefined; `bounded_difference` is for these.

    Args:
        statistic: "mean", "median" or "iqm", for both.
        paired: whether run i of X and run i of Y share what makes runs differ (the same data, the same opponents). Their
            differences are then the sample. A shared random seed helps where the start decides the return; elsewhere methods use
            it differently, and pairing costs power.

    Source: Welch, Biometrika 1947.
    """
    function = STATISTICS[statistic]
    kind = "paired" if paired else "Welch"
    if statistic == "mean":
        samples = [a - b for a, b in zip(x, y)] if paired else [*x, *y]
        spread, method = intervals.linear_spread(samples, 1 / len(x)), f"{kind} t"
    else:

        def evaluate(numbers: Tasks) -> np.ndarray:
            of_x, of_y = (numbers, numbers) if paired else (numbers[: len(x)], numbers[len(x) :])
            picked_x, picked_y = ([t[i] for t, i in zip(ts, n)] for ts, n in ((x, of_x), (y, of_y)))
            return function(picked_x) - function(picked_y)

        runs = [t.size for t in (x if paired else [*x, *y])]
        spread, method = intervals.bootstrap_spread(evaluate, runs), f"{kind} bootstrap t"
    estimate, low, high, _, method = intervals.student_interval(
        float(function(x) - function(y)), spread, [*x, *y], confidence, method
    )
    if math.isnan(low):
        return Difference(estimate, low, high, method)
    return Difference(estimate, low, high, method, student_p_value(estimate / spread.error, spread.df), spread=spread)


def improvement_interval(x: Tasks, y: Tasks) -> Interval:
    """Returns the probability of improvement, as the mean over tasks, with a score interval.

    It is the fraction of pairs of runs in which X scores more than Y. Ties count half. On a task it is Mann-Whitney's U / (m n).

    The interval contains all P with `(estimate - P)^2 <= z^2 V(P)`. V is the variance of the mean over tasks if the
    probability is P on each, for exponential scores (Hanley and McNeil, symmetrised by Newcombe):
    `V = sum over tasks of P (1 - P) (1 + ((m + n) / 2 - 1) ((1 - P) / (2 - P) + P / (1 + P))) / (m n) / T^2`.
    It has a positive width even if every run of X scores above every run of Y, where the bootstrap has none.

    Coverage at 95% for normal scores and P from 0.5 to 0.95 is 0.94 to 0.98 at 3, 5 and 10 runs, on one task or five. The
    exception is 0.90 at P = 0.5 with three runs on one task, where all of X above all of Y (1 case in 20) yields [0.501, 1].
    If the spread of X is ten times that of Y, coverage is 0.80 to 0.97 with three runs on one task, and 0.87 to 0.97
    otherwise. It is therefore not a test; `compare` is.

    Source: Agarwal et al. 2021, section 4.3; Newcombe, Statistics in Medicine 2006, part 2, method 5.
    """
    estimate = float(np.mean([(np.sign(a[:, None] - b).mean() + 1) / 2 for a, b in zip(x, y)]))
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

    def outside(p: float) -> bool:
        shape = (1 - p) / (2 - p) + p / (1 + p)
        variance = sum((1 + ((a.size + b.size) / 2 - 1) * shape) / a.size / b.size for a, b in zip(x, y)) / len(x) ** 2
        return (estimate - p) ** 2 > z**2 * p * (1 - p) * variance

    def boundary(inner: float, outer: float) -> float:
        """Returns the point between both, in either order, from which on `outside` is true."""
        for _ in range(60 if outside(outer) else 0):
            middle = (inner + outer) / 2
            inner, outer = (inner, middle) if outside(middle) else (middle, outer)
        return outer

    return Interval(estimate, boundary(estimate, 0.0), boundary(estimate, 1.0), CONFIDENCE, "Newcombe score")


def bounded_difference(x: np.ndarray, y: np.ndarray, bounds: tuple[float, float], confidence: float = CONFIDENCE) -> Difference:
    """Returns the mean of X `[m]` minus the mean of Y `[n]`, of scores with known bounds. It has no p-value.

    The interval is computed from the `intervals.bounded_interval` of each method, which is valid for "solved or not" at three
    runs, by Newcombe's square and add: `low = d - sqrt((x - low_x)^2 + (high_y - y)^2)`, `high` likewise. Three runs each never
    exclude 0; four do, if all of one are solved and none of the other.

    Args:
        bounds: the lowest and highest possible score.

    Source: Newcombe, Statistics in Medicine 1998, method 10's construction.
    """
    a, b = (intervals.bounded_interval(scores, bounds, confidence) for scores in (x, y))
    d = a.estimate - b.estimate
    low = d - math.hypot(a.estimate - a.low, b.high - b.estimate)
    high = d + math.hypot(a.high - a.estimate, b.estimate - b.low)
    return Difference(d, low, high, "Clopper-Pearson, square and add")


def hedges_g(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the difference of the means of X `[m]` and Y `[n]` in standard deviations, with the correction for few runs.

    `g = (1 - 3 / (4 (m + n - 2) - 1)) (mean x - mean y) / sqrt((s_x^2 + s_y^2) / 2)`. NaN with fewer than two runs, or without
    any spread.

    Source: Hedges, Journal of Educational Statistics 1981; the mean variance because spreads may differ (Bonett, Psychological
    Methods 2008).
    """
    if min(x.size, y.size) < 2:
        return math.nan
    spread = math.sqrt((x.var(ddof=1) + y.var(ddof=1)) / 2)
    if spread <= 1e-12 * max(float(np.abs(x).max()), float(np.abs(y).max())):
        return math.nan
    return float((1 - 3 / (4 * (x.size + y.size - 2) - 1)) * (x.mean() - y.mean()) / spread)
