"""Intervals of aggregates, that keep their level for the few seeds of an RL study.

Scores are given as in `taac.analysis.statistics.scores`. Tasks are what they are, a fixed set; runs are the sample, independent
of each other: an interval is about runs that were not made, on these tasks.

The percentile bootstrap, which is usual, draws n runs from n and so sees a spread that is too small by
sqrt((n - 1) / n), and takes no account of how badly n runs tell the spread. `estimate_interval` mends both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from taac.analysis.statistics.quantiles import check_confidence, proportion_interval, student_quantile
from taac.analysis.statistics.scores import LINEAR, STATISTICS, Statistic, Tasks, as_tasks, mean_of_means, prepare
from taac.errors import TaacError

NO_SPREAD = "undefined: the runs do not differ, which tells nothing of those that were not made"
_COMPONENT_RESAMPLES = 200  # for degrees of freedom, which need no precision


class Interval(NamedTuple):
    """An estimate with its uncertainty. `low` and `high` are NaN where the runs do not tell it."""

    estimate: float
    low: float
    high: float
    confidence: float
    method: str  # how it was made, or why it is undefined


class Profile(NamedTuple):
    """A performance profile."""

    tau: np.ndarray  # [n] thresholds
    fraction: np.ndarray  # [n] of runs with a score above tau, mean over tasks
    low: np.ndarray  # [n]
    high: np.ndarray  # [n]


# --- Spread of an estimate ------------------------------------------------------------------------


class Spread(NamedTuple):
    """Standard error of an estimate, and with how many degrees of freedom it is known."""

    error: float
    df: float


def linear_spread(samples: Sequence[np.ndarray], weight: float) -> Spread:
    """Spread of `weight * sum over samples of their mean`, the samples independent of each other.

    `error^2 = sum v_s`, `v_s = weight^2 s_s^2 / n_s`; Welch-Satterthwaite: `df = (sum v_s)^2 / sum v_s^2 / (n_s - 1)`.
    """
    variances = np.array([weight**2 * np.var(x, ddof=1) / x.size for x in samples])
    return Spread(math.sqrt(variances.sum()), _satterthwaite(variances, [x.size for x in samples]))


def bootstrap_spread(evaluate: Statistic, runs: Sequence[int], resamples: int, seed: int) -> Spread:
    """Spread of any statistic by the stratified bootstrap, corrected for small samples.

    With V the variance over joint resamples and V_s that with only sample s resampled, `c_s = V_s n_s / (n_s - 1)`:
    `error^2 = V sum c_s / sum V_s`, since n runs drawn from n have a variance that is too small by (n - 1) / n; and `df`
    is Welch-Satterthwaite's of the c_s. Where the statistic is a mean this is `linear_spread`, but for the simulation.

    Args:
        evaluate: takes, for every sample, run numbers `[..., n_s]`, and gives the statistic `[...]` of those runs.
        runs: n_s.
    """
    check_resamples(resamples)
    rng = np.random.default_rng(seed)
    joint = evaluate([rng.integers(n, size=(resamples, n)) for n in runs]).var()
    alone = np.zeros(len(runs))
    for s, n in enumerate(runs):
        numbers = [np.arange(m)[None] for m in runs]
        numbers[s] = rng.integers(n, size=(_COMPONENT_RESAMPLES, n))
        alone[s] = evaluate(numbers).var()
    if not alone.any():  # nothing moves on its own, as the middle of equal scores: then all have the same part in it
        alone[:] = 1
    components = alone * [n / (n - 1) for n in runs]
    return Spread(math.sqrt(joint * components.sum() / alone.sum()), _satterthwaite(components, runs))


def _satterthwaite(variances: np.ndarray, runs: Sequence[int]) -> float:
    shares = variances / variances.sum() if variances.any() else np.full(len(runs), 1 / len(runs))
    return float(1 / (shares**2 / (np.array(runs) - 1)).sum())


def student_interval(estimate: float, spread: Spread, scale: float, confidence: float, method: str) -> Interval:
    """`estimate -+ t(df) error`; undefined where the error is 0 up to rounding at scores as large as `scale`."""
    if spread.error <= 1e-12 * scale:
        return Interval(estimate, math.nan, math.nan, confidence, NO_SPREAD)
    half = student_quantile(confidence, spread.df) * spread.error
    return Interval(estimate, estimate - half, estimate + half, confidence, method)


def check_resamples(resamples: int) -> None:
    """Raises TaacError for too few."""
    if resamples < 100:
        raise TaacError(f"resamples is {resamples}, expected 100 or more; 2000 is usual")


def magnitude(tasks: Tasks) -> float:
    """The largest absolute score."""
    return max(float(np.abs(task).max()) for task in tasks)


# --- Intervals ------------------------------------------------------------------------------------


def estimate_interval(
    scores: ArrayLike | Sequence[ArrayLike],
    statistic: str = "iqm",
    confidence: float = 0.95,
    gamma: float = 1.0,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """A statistic of scores, with Student's t interval on its standard error.

    The standard error is exact for mean and optimality gap (one task's mean: the textbook's t interval), and for median
    and IQM the bootstrap's, corrected for small samples (`bootstrap_spread`).

    Coverage of "95%" intervals at 3, 5, 10 runs a task, percentile bootstrap beside it (simulated, +-1 to 2%; five tasks
    of unequal mean and spread; lognormal of sigma 0.75; "solved or not" is 1 with probability 0.7, else 0; "with jitter":
    plus normal noise of 0.02, on five tasks with their means and spreads):

        scores               tasks  mean            percentile      IQM             percentile
        normal               1      0.95 0.95 0.95  0.75 0.82 0.88  0.95 0.97 0.97  0.75 0.90 0.93
        normal               5      0.95 0.95 0.95  0.81 0.89 0.91  0.96 0.96 0.95  0.81 0.89 0.92
        lognormal            1      0.89 0.88 0.89  0.66 0.79 0.85  0.94 0.97 0.96  0.73 0.88 0.92
        lognormal            5      0.91 0.90 0.91  0.75 0.83 0.89  0.97 0.96 0.95  0.82 0.90 0.92
        solved, with jitter  1      0.62 0.83 0.96  0.61 0.81 0.91  0.62 0.78 0.94  0.60 0.79 0.92
        solved, with jitter  5      0.90 0.94 0.94  0.78 0.87 0.91  0.94 0.94 0.93  0.78 0.89 0.93
        solved or not        5      0.98 0.95 0.95  0.83 0.90 0.92  0.93 0.89 0.87  0.80 0.88 0.92

    So: do not trust it for runs that end in one of two places, three to five of them on one task. No interval from such
    scores alone can do better: at 0.7, three runs end on the same side with probability 0.37, and they then look like runs
    that differ by the jitter only. Where the range of scores is known, use `bounded_interval`. The median over tasks
    covers 0.91 of normal and 0.78 to 0.96 of the others at five tasks; prefer the IQM, and the mean for solved or not.

    Where no run differs from another of its task, the interval is undefined, NaN, rather than of width 0.

    Args:
        statistic: "mean", "median", "iqm" or "optimality_gap" (with `gamma`).
        resamples, seed: of the bootstrap.

    Raises:
        TaacError: a task with fewer than two runs, an unknown statistic, a confidence outside (0, 1); `as_tasks`.
    """
    check_confidence(confidence)
    tasks = prepare(as_tasks(scores, at_least=2), statistic, gamma)
    function = STATISTICS[statistic]
    if statistic in LINEAR:
        spread, method = linear_spread(tasks, 1 / len(tasks)), "Student t"
    else:
        evaluate = _evaluation(function, tasks)
        spread, method = bootstrap_spread(evaluate, [t.size for t in tasks], resamples, seed), "bootstrap t"
    return student_interval(float(function(tasks)), spread, magnitude(tasks), confidence, method)


def percentile_interval(
    scores: ArrayLike | Sequence[ArrayLike],
    statistic: str = "iqm",
    confidence: float = 0.95,
    gamma: float = 1.0,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """A statistic with the percentile interval of the stratified bootstrap: rliable's, to compare with others' figures.

    Runs are drawn with replacement within each task. It is too narrow for few runs: see the head of this file, and
    `estimate_interval`.

    Args, errors: as `estimate_interval`.
    """
    check_confidence(confidence)
    tasks = prepare(as_tasks(scores, at_least=2), statistic, gamma)
    check_resamples(resamples)
    rng = np.random.default_rng(seed)
    drawn = _evaluation(STATISTICS[statistic], tasks)([rng.integers(t.size, size=(resamples, t.size)) for t in tasks])
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    estimate = float(STATISTICS[statistic](tasks))
    if all(np.ptp(task) == 0 for task in tasks):
        return Interval(estimate, math.nan, math.nan, confidence, NO_SPREAD)
    return Interval(estimate, float(low), float(high), confidence, "percentile bootstrap")


def _evaluation(function: Statistic, tasks: Tasks) -> Statistic:
    return lambda numbers: function([task[i] for task, i in zip(tasks, numbers)])


def bounded_interval(
    scores: ArrayLike | Sequence[ArrayLike], bounds: tuple[float, float], confidence: float = 0.95
) -> Interval:
    """The mean of scores that cannot leave known bounds, with an interval that holds for a handful of runs.

    The mean is taken for a proportion of `T^2 / sum 1/n_t` trials (n T for n runs on each of T tasks) on the scale of
    the bounds, and given the Clopper-Pearson interval: among all scores within bounds, those that only ever take the two
    bounds spread most. Exact for "solved or not"; wide for scores that spread less. It is never of width 0: three runs of
    three solved leave [0.29, 1].

    Coverage for "solved or not" with probability 0.7 at 3, 5, 10 runs (95%): 1.00, 1.00, 0.99 on one task, 0.98, 0.97,
    0.97 on five. Widths on one task: 0.90, 0.71, 0.59.

    Args:
        bounds: the lowest and the highest score that is possible at all, on every task; not those that were seen.

    Raises:
        TaacError: bounds that are no range, scores outside them; `as_tasks`.
    """
    check_confidence(confidence)
    tasks = as_tasks(scores)
    low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise TaacError(f"bounds {bounds} are no range; give (lowest, highest possible score)")
    if any(task.min() < low or task.max() > high for task in tasks):
        raise TaacError(f"scores leave the bounds {bounds}; give the lowest and highest score that is possible at all")
    estimate = float(mean_of_means(tasks))
    fraction = min(max((estimate - low) / (high - low), 0.0), 1.0)
    ends = proportion_interval(fraction, effective_runs(tasks), confidence)
    below, above = (low + end * (high - low) for end in ends)
    return Interval(estimate, below, above, confidence, "Clopper-Pearson")


def effective_runs(tasks: Tasks) -> float:
    """`T^2 / sum over tasks of 1 / n_t`: with n runs on each of T tasks, n T."""
    return len(tasks) ** 2 / sum(1 / task.size for task in tasks)


def performance_profile(scores: ArrayLike | Sequence[ArrayLike], taus: ArrayLike, confidence: float = 0.95) -> Profile:
    """Fraction of runs with a score above each threshold, `F(tau) = mean over tasks and runs of [score > tau]`.

    The interval at each tau is Clopper-Pearson's, of `T^2 / sum 1/n_t` trials: it covers at the stated rate or more at
    every single tau (not at all together), for every number of runs, and has a width even where all runs are on one
    side. Where tasks differ it is wider than it must be.

    Args:
        taus: `[n]`.

    Raises:
        TaacError: thresholds that are not a list of finite numbers; `as_tasks`.

    Source: Agarwal et al. 2021, section 4.2 (run-score distributions).
    """
    check_confidence(confidence)
    tasks, tau = as_tasks(scores), np.asarray(taus, dtype=np.float64)
    if tau.ndim != 1 or not np.isfinite(tau).all():
        raise TaacError(f"taus has shape {tau.shape}, expected a list of finite thresholds, [n]")
    fraction = mean_of_means([(task > tau[:, None]).astype(np.float64) for task in tasks])
    n = effective_runs(tasks)
    ends = np.array([proportion_interval(min(f, 1.0), n, confidence) for f in fraction.tolist()]).reshape(-1, 2)
    return Profile(tau, fraction, ends[:, 0], ends[:, 1])
