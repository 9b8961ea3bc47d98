"""Whether one method is better than another: differences with intervals, and the probability of improvement.

Scores are given as in `taac.analysis.statistics.scores`: an array `[runs, tasks]`, or a list with an array `[runs]` a task; both
methods on the same tasks in the same order. A verdict comes from the interval of the *difference*: two methods can
differ beyond doubt while their own intervals overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from taac.analysis.statistics import intervals
from taac.analysis.statistics.intervals import Interval
from taac.analysis.statistics.quantiles import check_confidence, student_p_value, student_quantile
from taac.analysis.statistics.scores import LINEAR, STATISTICS, Tasks, as_tasks, prepare
from taac.errors import TaacError


class Difference(NamedTuple):
    """A statistic of X minus that of Y."""

    estimate: float
    low: float  # NaN where undefined
    high: float
    confidence: float
    method: str
    p_value: float  # two-sided, of no difference; 1 where undefined
    verdict: str  # of X: "better", "worse" or "inconclusive"


def compare(
    x: ArrayLike | Sequence[ArrayLike],
    y: ArrayLike | Sequence[ArrayLike],
    statistic: str = "mean",
    paired: bool = False,
    confidence: float = 0.95,
    gamma: float = 1.0,
    bounds: tuple[float, float] | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Difference:
    """A statistic of X minus that of Y, with an interval and a verdict on X.

    "better" or "worse" where the interval excludes 0, else "inconclusive". For the optimality gap less is better.

    The interval is Welch's t (one task, mean), and in general t on a standard error to which each method and task adds
    its part (`intervals.linear_spread`, `intervals.bootstrap_spread`).

    Rate of verdicts where there is no difference, at 3, 5, 10 runs (confidence 0.95, so 0.05 is due; simulated, +-0.01):

        scores                     mean, one task   mean, five tasks  IQM, five tasks
        normal                     0.04 0.05 0.05   0.03 0.04 0.05    0.04 0.05 0.03
        normal, sd of X 3 of Y     0.06 0.05 0.05   0.05 0.05 0.06    0.03 0.02 0.04
        lognormal                  0.02 0.03 0.03   0.03 0.03 0.04    0.02 0.04 0.04
        solved or not, half        0.00 0.02 0.04   0.06 0.05 0.05    0.05 0.05 0.03

    and of finding a difference of 3 standard deviations on one task: 0.67, 0.99, 1.00. With "solved or not" on one task,
    three runs each can never tell (all against none is undefined, or with `bounds` inconclusive); five can, 5 against 0.

    Args:
        statistic: "mean", "median", "iqm" or "optimality_gap" (with `gamma`), on both.
        paired: run i of X and run i of Y share what makes runs differ (the same data, the same opponents), so that their
            differences are the sample. To share a random seed is not enough: two methods make other use of it.
        bounds: the lowest and highest possible score. Then the difference of means is taken from
            `intervals.bounded_interval` of each, which holds for "solved or not" at three runs, by Newcombe's square
            and add: `low = d - sqrt((x - low_x)^2 + (high_y - y)^2)`, `high` likewise.

    Raises:
        TaacError: unequal numbers of tasks, or of runs if paired; fewer than two runs a task (without `bounds`); `bounds`
            with another statistic than the mean, or paired; `intervals.estimate_interval`.

    Source: Welch, Biometrika 1947; bounds: Newcombe, Statistics in Medicine 1998, method 10's construction.
    """
    check_confidence(confidence)
    xs, ys = _both(x, y, at_least=1 if bounds is not None else 2)
    if bounds is not None:
        if statistic != "mean" or paired:
            raise TaacError("bounds are of use for the mean of unpaired runs only; leave out bounds, or the rest")
        return _bounded(xs, ys, bounds, confidence)
    xs, ys = (prepare(tasks, statistic, gamma) for tasks in (xs, ys))
    if paired and [t.size for t in xs] != [t.size for t in ys]:
        raise TaacError(
            f"paired runs are as many of X as of Y in every task, got {[t.size for t in xs]} and {[t.size for t in ys]}; "
            "give both in the order of the pairs, without those that have no partner"
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
    p_value = 1.0 if math.isnan(interval.low) else student_p_value(estimate / spread.error, spread.df)
    return Difference(*interval, p_value, _verdict(interval, less_is_better=statistic == "optimality_gap"))


def holm(p_values: ArrayLike) -> np.ndarray:
    """Adjusted p-values `[m]` of m comparisons: sorted upwards, `max over j <= i of min(1, (m - j) p_j)`, j from 0.

    Rejecting where the adjusted value is at most a, the probability of any false rejection among the m is at most a,
    whatever depends on what.

    Source: Holm, Scandinavian Journal of Statistics 1979.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise TaacError(f"expected a list of p-values in [0, 1], got {p.tolist()}")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1, (p.size - np.arange(p.size)) * p[order]))
    return adjusted


def correct(differences: Sequence[Difference]) -> list[Difference]:
    """A family of comparisons, with p-values and verdicts corrected for their number by Holm's method.

    The probability that any verdict of the family is wrong about two equal methods is at most 1 - confidence. Intervals
    stay as they are, each at its own confidence: one that excludes 0 may now be inconclusive.

    Raises:
        TaacError: differences of unequal confidence.
    """
    if len({d.confidence for d in differences}) > 1:
        raise TaacError("the differences of a family were made at unequal confidence; make them all at the same")
    adjusted = holm([d.p_value for d in differences])
    return [
        d._replace(p_value=float(p), verdict=d.verdict if p < 1 - d.confidence else "inconclusive")
        for d, p in zip(differences, adjusted)
    ]


def probability_of_improvement(x: ArrayLike | Sequence[ArrayLike], y: ArrayLike | Sequence[ArrayLike]) -> np.ndarray:
    """`[tasks]`: the fraction of pairs of runs in which X scores more than Y, ties half: Mann-Whitney's U / (m n).

    Source: Agarwal et al. 2021, section 4.3.
    """
    return np.array([_improvement(a, b) for a, b in zip(*_both(x, y, at_least=1))])


def improvement_interval(
    x: ArrayLike | Sequence[ArrayLike], y: ArrayLike | Sequence[ArrayLike], confidence: float = 0.95
) -> Interval:
    """The probability of improvement, mean over tasks, with a score interval.

    The interval is all P with `(estimate - P)^2 <= z^2 V(P)`, where V is the variance that the mean over tasks would have
    if it was P on each, for exponential scores (Hanley and McNeil, symmetrised by Newcombe):
    `V = sum over tasks of P (1 - P) (1 + ((m + n) / 2 - 1) ((1 - P) / (2 - P) + P / (1 + P))) / (m n) / T^2`.
    It has a width also where all of X lie above all of Y; the bootstrap has none there.

    Coverage at 95%, normal scores, P from 0.5 to 0.95: 0.94 to 0.98 at 3, 5 and 10 runs, on one task or five; but 0.90
    at P = 0.5 with three runs on one task, where all above all (1 case in 20) gives [0.501, 1]. Where X spreads ten
    times as far as Y: 0.80 to 0.97 with three runs on one task, 0.87 to 0.97 otherwise. So it is no test; `compare` is.
    The percentile bootstrap, at 3, 5, 10 runs on one task: 0.80, 0.91, 0.93 at P = 0.5, 0.53, 0.81, 0.89 at 0.86, and
    0.11, 0.24, 0.50 at 0.98.

    Raises:
        TaacError: fewer than two runs a task, unequal numbers of tasks; `as_tasks`.

    Source: Newcombe, Statistics in Medicine 2006, part 2, method 5.
    """
    check_confidence(confidence)
    xs, ys = _both(x, y, at_least=2)
    estimate = float(np.mean([_improvement(a, b) for a, b in zip(xs, ys)]))
    z = student_quantile(confidence, 1e9)

    def far(p: float) -> float:
        variance = sum(
            (1 + (_half(a, b) - 1) * ((1 - p) / (2 - p) + p / (1 + p))) / a.size / b.size for a, b in zip(xs, ys)
        )
        return (estimate - p) ** 2 - z**2 * p * (1 - p) * variance / len(xs) ** 2

    low, high = _crossing(far, estimate, 0.0), _crossing(far, estimate, 1.0)
    return Interval(estimate, low, high, confidence, "Newcombe score")


def improvement_percentile_interval(
    x: ArrayLike | Sequence[ArrayLike],
    y: ArrayLike | Sequence[ArrayLike],
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The probability of improvement with the percentile interval of the stratified bootstrap: rliable's.

    Too narrow for few runs (`improvement_interval` gives numbers), and undefined where it has no width.

    Raises:
        TaacError: as `improvement_interval`; fewer than 100 resamples.
    """
    check_confidence(confidence)
    xs, ys = _both(x, y, at_least=2)
    intervals.check_resamples(resamples)
    rng = np.random.default_rng(seed)
    drawn = np.zeros(resamples)
    for a, b in zip(xs, ys):
        drawn += _improvement(*(t[rng.integers(t.size, size=(resamples, t.size))] for t in (a, b))) / len(xs)
    estimate = float(np.mean([_improvement(a, b) for a, b in zip(xs, ys)]))
    if np.ptp(drawn) < 1e-12:
        return Interval(estimate, math.nan, math.nan, confidence, "undefined: all resamples are alike")
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(estimate, float(low), float(high), confidence, "percentile bootstrap")


def _both(x: ArrayLike | Sequence[ArrayLike], y: ArrayLike | Sequence[ArrayLike], at_least: int) -> tuple[Tasks, Tasks]:
    xs, ys = as_tasks(x, at_least, "X"), as_tasks(y, at_least, "Y")
    if len(xs) != len(ys):
        raise TaacError(
            f"X has {len(xs)} tasks and Y has {len(ys)}; give the scores of both on the same tasks, in order"
        )
    return xs, ys


def _improvement(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`[...]` of `a` `[..., m]` and `b` `[..., n]`."""
    return (np.sign(a[..., :, None] - b[..., None, :]).mean((-1, -2)) + 1) / 2


def _half(a: np.ndarray, b: np.ndarray) -> float:
    return (a.size + b.size) / 2


def _crossing(far: Callable[[float], float], inside: float, end: float) -> float:
    """Where `far` turns positive on the way from the estimate to an end of [0, 1]; the end, if nowhere."""
    if far(end) <= 0:
        return end
    for _ in range(60):
        middle = (inside + end) / 2
        inside, end = (inside, middle) if far(middle) > 0 else (middle, end)
    return end


def _bounded(xs: Tasks, ys: Tasks, bounds: tuple[float, float], confidence: float) -> Difference:
    def interval(confidence: float) -> Interval:
        a, b = (intervals.bounded_interval(tasks, bounds, confidence) for tasks in (xs, ys))
        d = a.estimate - b.estimate
        low = d - math.hypot(a.estimate - a.low, b.high - b.estimate)
        high = d + math.hypot(a.high - a.estimate, b.estimate - b.low)
        return Interval(d, low, high, confidence, "Clopper-Pearson, square and add")

    # The p-value is 1 - the confidence at which the interval just touches 0.
    inside, outside = 1.0, 0.0
    for _ in range(40):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if _verdict(interval(middle)) == "inconclusive" else (inside, middle)
    asked = interval(confidence)
    return Difference(*asked, 1 - outside, _verdict(asked))


def _verdict(interval: Interval, less_is_better: bool = False) -> str:
    if interval.low > 0:
        return "worse" if less_is_better else "better"
    if interval.high < 0:
        return "better" if less_is_better else "worse"
    return "inconclusive"
