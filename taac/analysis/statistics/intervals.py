"""Confidence intervals of aggregates that keep their coverage for the few seeds of an RL study.

Scores are as in `taac.analysis.statistics.scores`. Tasks are a fixed set. Runs are a sample and independent of each other. An
interval is a statement about further runs on these tasks.

The usual percentile bootstrap draws n runs from n, so its spread is too small by sqrt((n - 1) / n), and it ignores how
uncertain an estimate of spread from n runs is. `estimate_interval` corrects both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from taac.analysis.statistics.quantiles import CONFIDENCE, proportion_interval, student_quantile
from taac.analysis.statistics.scores import STATISTICS, Statistic, Tasks, mean_of_means

NO_SPREAD = "undefined: the runs do not differ, so they say nothing about further runs"
RESAMPLES, SEED = 2000, 0  # of the bootstrap
_COMPONENT_RESAMPLES = 200  # for degrees of freedom, which need little precision


class Interval(NamedTuple):
    """An estimate with its uncertainty. `low` and `high` are NaN if the interval is undefined."""

    estimate: float
    low: float
    high: float
    confidence: float
    method: str  # how it was computed, or why it is undefined


class Profile(NamedTuple):
    """A performance profile at n thresholds."""

    fraction: np.ndarray  # [n] of runs with a score above it, mean over tasks
    low: np.ndarray  # [n]
    high: np.ndarray  # [n]


# --- Spread of an estimate ------------------------------------------------------------------------


class Spread(NamedTuple):
    """The standard error of an estimate, and its degrees of freedom."""

    error: float
    df: float


def linear_spread(samples: Sequence[np.ndarray], weight: float) -> Spread:
    """The spread of `weight * sum over samples of their mean`, for independent samples.

    `error^2 = sum v_s`, `v_s = weight^2 s_s^2 / n_s`; Welch-Satterthwaite: `df = (sum v_s)^2 / sum v_s^2 / (n_s - 1)`.
    """
    variances = np.array([weight**2 * np.var(x, ddof=1) / x.size for x in samples])
    return Spread(math.sqrt(variances.sum()), _satterthwaite(variances, [x.size for x in samples]))


def bootstrap_spread(evaluate: Statistic, runs: Sequence[int], resamples: int = RESAMPLES) -> Spread:
    """The spread of any statistic by the stratified bootstrap, corrected for small samples.

    V is the variance over joint resamples, V_s the variance with only sample s resampled, and `c_s = V_s n_s / (n_s - 1)`.
    Then `error^2 = V sum c_s / sum V_s`, because the variance of n runs drawn from n is too small by (n - 1) / n. `df` is
    Welch-Satterthwaite's for the c_s. For a mean this equals `linear_spread` up to the simulation's error.

    Args:
        evaluate: maps run numbers `[..., n_s]` for every sample to the statistic `[...]` of those runs.
        runs: n_s.
    """
    rng = np.random.default_rng(SEED)
    joint = evaluate([rng.integers(n, size=(resamples, n)) for n in runs]).var()
    alone = np.zeros(len(runs))
    for s, n in enumerate(runs):
        numbers = [np.arange(m)[None] for m in runs]
        numbers[s] = rng.integers(n, size=(_COMPONENT_RESAMPLES, n))
        alone[s] = evaluate(numbers).var()
    if not alone.any():  # no sample changes the statistic alone, such as the median of equal scores: use equal shares
        alone[:] = 1
    components = alone * [n / (n - 1) for n in runs]
    return Spread(math.sqrt(joint * components.sum() / alone.sum()), _satterthwaite(components, runs))


def _satterthwaite(variances: np.ndarray, runs: Sequence[int]) -> float:
    shares = variances / variances.sum() if variances.any() else np.full(len(runs), 1 / len(runs))
    return float(1 / (shares**2 / (np.array(runs) - 1)).sum())


def student_interval(estimate: float, spread: Spread, scale: float, confidence: float, method: str) -> Interval:
    """`estimate -+ t(df) error`. Undefined if the error is 0 up to rounding for scores as large as `scale`."""
    if spread.error <= 1e-12 * scale:
        return Interval(estimate, math.nan, math.nan, confidence, NO_SPREAD)
    half = student_quantile(confidence, spread.df) * spread.error
    return Interval(estimate, estimate - half, estimate + half, confidence, method)


def magnitude(tasks: Tasks) -> float:
    """The largest absolute score."""
    return max(float(np.abs(task).max()) for task in tasks)


# --- Intervals ------------------------------------------------------------------------------------


def estimate_interval(tasks: Tasks, statistic: str, resamples: int = RESAMPLES) -> Interval:
    """A statistic of scores of two runs or more on each task, with Student's t interval on its standard error.

    The standard error of the mean is exact; on one task this is the textbook's t interval. For median and IQM it is the
    bootstrap's, corrected for small samples (`bootstrap_spread`).

    Coverage of 95% intervals at 3, 5, 10 runs for each task, with the percentile bootstrap for comparison. Simulated, +-1 to
    2%. Five tasks have unequal means and spreads. Lognormal scores have sigma 0.75. "Solved or not" is 1 with probability
    0.7, else 0. "With jitter" adds normal noise of 0.02 and, on five tasks, their means and spreads:

        scores               tasks  mean            percentile      IQM             percentile
        normal               1      0.95 0.95 0.95  0.75 0.82 0.88  0.95 0.97 0.97  0.75 0.90 0.93
        normal               5      0.95 0.95 0.95  0.81 0.89 0.91  0.96 0.96 0.95  0.81 0.89 0.92
        lognormal            1      0.89 0.88 0.89  0.66 0.79 0.85  0.94 0.97 0.96  0.73 0.88 0.92
        lognormal            5      0.91 0.90 0.91  0.75 0.83 0.89  0.97 0.96 0.95  0.82 0.90 0.92
        solved, with jitter  1      0.62 0.83 0.96  0.61 0.81 0.91  0.62 0.78 0.94  0.60 0.79 0.92
        solved, with jitter  5      0.90 0.94 0.94  0.78 0.87 0.91  0.94 0.94 0.93  0.78 0.89 0.93
        solved or not        5      0.98 0.95 0.95  0.83 0.90 0.92  0.93 0.89 0.87  0.80 0.88 0.92

    Do not trust it for three to five runs on one task that each end in one of two places. No interval from such scores alone
    can do better: at 0.7, three runs end on the same side with probability 0.37, and then look like runs that differ only by
    the jitter. If the range of scores is known, use `bounded_interval`. The median over five tasks covers 0.91 for normal
    scores and 0.78 to 0.96 for the others; prefer the IQM, or the mean for solved or not.

    If all runs of every task are equal, the interval is undefined (NaN) instead of having width 0.

    Args:
        statistic: "mean", "median" or "iqm".
        resamples: of the bootstrap.
    """
    function = STATISTICS[statistic]
    if statistic == "mean":
        spread, method = linear_spread(tasks, 1 / len(tasks)), "Student t"
    else:

        def evaluate(numbers: Tasks) -> np.ndarray:
            return function([task[i] for task, i in zip(tasks, numbers)])

        spread, method = bootstrap_spread(evaluate, [t.size for t in tasks], resamples), "bootstrap t"
    return student_interval(float(function(tasks)), spread, magnitude(tasks), CONFIDENCE, method)


def bounded_interval(scores: np.ndarray, bounds: tuple[float, float], confidence: float = CONFIDENCE) -> Interval:
    """The mean of scores `[runs]` with known bounds, with an interval that is valid for very few runs.

    On the scale of the bounds, the mean is treated as a proportion of as many trials, with its Clopper-Pearson interval. This
    is conservative, because scores that take only the two bounds have the largest spread of all scores within them. It is
    exact for "solved or not" and wide for scores that spread less. Its width is never 0: three solved runs of three leave
    [0.29, 1].

    Coverage at 95% for "solved or not" with probability 0.7 at 3, 5, 10 runs is 1.00, 1.00, 0.99. The widths are 0.90, 0.71,
    0.59.

    Args:
        bounds: the lowest and the highest possible score. Not the lowest and highest observed.
    """
    low, high = bounds
    estimate = float(scores.mean())
    fraction = min(max((estimate - low) / (high - low), 0.0), 1.0)
    below, above = (low + end * (high - low) for end in proportion_interval(fraction, scores.size, confidence))
    return Interval(estimate, below, above, confidence, "Clopper-Pearson")


def performance_profile(tasks: Tasks, taus: np.ndarray) -> Profile:
    """The fraction of runs with a score above each threshold `[n]`, `F(tau) = mean over tasks and runs of [score > tau]`.

    The interval at each tau is Clopper-Pearson's for `T^2 / sum 1/n_t` trials: n T for n runs on each of T tasks. Its coverage
    is at least the stated level at each single tau (not at all tau jointly), for any number of runs. Its width is positive
    even if all runs are on one side. If tasks differ, it is wider than necessary.

    Source: Agarwal et al. 2021, section 4.2 (run-score distributions).
    """
    fraction = mean_of_means([(task > taus[:, None]).astype(np.float64) for task in tasks])
    trials = len(tasks) ** 2 / sum(1 / task.size for task in tasks)
    low, high = np.array([proportion_interval(min(f, 1.0), trials) for f in fraction.tolist()]).T
    return Profile(fraction, low, high)
