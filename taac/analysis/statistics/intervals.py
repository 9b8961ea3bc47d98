"""Aggregates of scores over runs and tasks, and confidence intervals that keep their coverage for the few seeds of an RL study.

Scores are an array `[runs]` for each task, of finite numbers. All tasks have equal weight, however many runs they have. Tasks are
a fixed set. Runs are a sample and independent of each other. An interval is a statement about further runs on these tasks.

The usual percentile bootstrap draws n runs from n, so its spread is too small by sqrt((n - 1) / n), and it ignores how
uncertain an estimate of spread from n runs is. `estimate_interval` corrects both.

Source of the aggregates: Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice, NeurIPS 2021,
arXiv:2108.13264, section 4.3, and their rliable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, stdtr, stdtrit

from taac.runs.layout import INFO

CONFIDENCE = 0.95  # of the intervals of a report, unless they are corrected for several comparisons
NO_SPREAD = "undefined: the runs do not differ, so they say nothing about further runs"
RESAMPLES, SEED = 2000, 0  # of the bootstrap
_COMPONENT_RESAMPLES = 200  # for degrees of freedom, which need little precision

# --- Aggregates -----------------------------------------------------------------------------------

Tasks = Sequence[np.ndarray]  # a task: [..., runs]
Statistic = Callable[[Tasks], np.ndarray]  # over the last axis of every task


def mean_of_means(tasks: Tasks) -> np.ndarray:
    """Returns the mean over tasks of the mean over runs."""
    return sum(task.mean(-1) for task in tasks) / len(tasks)


def _iqm(tasks: Tasks) -> np.ndarray:
    """As `scipy.stats.trim_mean(scores, 0.25)` and rliable: drops the floor(N / 4) lowest and as many highest of N runs.

    3 runs are not trimmed at all; of 5, the middle 3 stay. With unequal numbers of runs, each run has weight
    1 / (runs of its task), and at each end as many runs are dropped as fit entirely into a quarter of the total weight. With
    equal numbers this is the same.
    """
    leading, runs = np.broadcast_shapes(*(task.shape[:-1] for task in tasks)), [task.shape[-1] for task in tasks]
    values = np.concatenate([np.broadcast_to(task, (*leading, n)) for task, n in zip(tasks, runs)], -1)
    if len(set(runs)) == 1:
        cut = values.shape[-1] // 4
        return np.sort(values, -1)[..., cut : values.shape[-1] - cut].mean(-1)
    whole = math.lcm(*runs)  # makes the weights 1 / runs whole numbers, so that the cut does not depend on rounding
    weights = np.repeat([whole // n for n in runs], runs)
    kept = weights * ~(_lowest_quarter(values, weights) | _lowest_quarter(-values, weights))
    return (values * kept).sum(-1) / kept.sum(-1)


def _lowest_quarter(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Marks the lowest runs, as many as fit entirely into a quarter of the total weight, `[..., runs]` bool."""
    order = np.lexsort((np.broadcast_to(weights, values.shape), values), axis=-1)  # light runs first among equal values
    fits = 4 * np.cumsum(weights[order], -1) <= weights.sum()
    found = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(found, order, fits, -1)
    return found


STATISTICS: dict[str, Statistic] = {
    "mean": mean_of_means,
    "median": lambda tasks: np.median(np.stack(np.broadcast_arrays(*(task.mean(-1) for task in tasks)), -1), -1),
    "iqm": _iqm,  # the mean of the middle half of all runs of all tasks together
}


# --- Quantiles ------------------------------------------------------------------------------------


def student_p_value(t: float, df: float) -> float:
    """Returns `P(|T| >= |t|)` of Student's t."""
    return float(2 * stdtr(df, -abs(t)))


def student_quantile(confidence: float, df: float) -> float:
    """Returns the `t` with `P(|T| <= t) = confidence`."""
    return float(stdtrit(df, (1 + confidence) / 2))


def proportion_interval(fraction: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns the Clopper-Pearson interval of a proportion, for `fraction` of `n` trials.

    `low` is the quantile (1 - confidence) / 2 of Beta(k, n - k + 1), `high` the quantile (1 + confidence) / 2 of
    Beta(k + 1, n - k), with k = fraction * n. Its coverage is at least the stated level for every n, including 1. k and n
    need not be whole; for unequally weighted trials, `n` is their effective number.

    Source: Clopper and Pearson, Biometrika 1934; n effective: Korn and Graubard, Survey Methodology 1998.
    """
    k, tail = fraction * n, (1 - confidence) / 2
    # An end is exactly 0 without any success, or exactly 1 without any failure.
    low = 0.0 if fraction == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if fraction == 1 else float(betaincinv(k + 1, n - k, 1 - tail))
    return low, high


# --- Intervals ------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """An estimate with its uncertainty. `low` and `high` are NaN if the interval is undefined."""

    estimate: float
    low: float
    high: float
    confidence: float
    method: str  # how it was computed, or why it is undefined


class Spread(NamedTuple):
    """The standard error of an estimate, and its degrees of freedom."""

    error: float
    df: float


def linear_spread(samples: Sequence[np.ndarray], weight: float) -> Spread:
    """Returns the spread of `weight * sum over samples of their mean`, for independent samples.

    `error^2 = sum v_s`, `v_s = weight^2 s_s^2 / n_s`; Welch-Satterthwaite: `df = (sum v_s)^2 / sum v_s^2 / (n_s - 1)`.
    """
    variances = np.array([weight**2 * np.var(x, ddof=1) / x.size for x in samples])
    return Spread(math.sqrt(variances.sum()), _satterthwaite(variances, [x.size for x in samples]))


def bootstrap_spread(evaluate: Statistic, runs: Sequence[int], resamples: int = RESAMPLES) -> Spread:
    """Returns the spread of any statistic by the stratified bootstrap, corrected for small samples.

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


def student_interval(estimate: float, spread: Spread, tasks: Tasks, confidence: float, method: str) -> Interval:
    """Returns `estimate -+ t(df) error`. Undefined if the error is 0 up to rounding for scores as large as those of `tasks`."""
    if spread.error <= 1e-12 * max(float(np.abs(task).max()) for task in tasks):
        return Interval(estimate, math.nan, math.nan, confidence, NO_SPREAD)
    half = student_quantile(confidence, spread.df) * spread.error
    return Interval(estimate, estimate - half, estimate + half, confidence, method)


def estimate_interval(tasks: Tasks, statistic: str, resamples: int = RESAMPLES) -> Interval:
    """Returns a statistic of scores with Student's t interval on its standard error; undefined with a single run on a task.

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
    """
    function = STATISTICS[statistic]
    if any(task.size < 2 for task in tasks):
        return Interval(float(function(tasks)), math.nan, math.nan, CONFIDENCE, "undefined: one run")
    if statistic == "mean":
        spread, method = linear_spread(tasks, 1 / len(tasks)), "Student t"
    else:

        def evaluate(numbers: Tasks) -> np.ndarray:
            return function([task[i] for task, i in zip(tasks, numbers)])

        spread, method = bootstrap_spread(evaluate, [t.size for t in tasks], resamples), "bootstrap t"
    return student_interval(float(function(tasks)), spread, tasks, CONFIDENCE, method)


def bounded_interval(scores: np.ndarray, bounds: tuple[float, float], confidence: float = CONFIDENCE) -> Interval:
    """Returns the mean of scores `[runs]` with known bounds, with an interval that is valid for very few runs.

    On the scale of the bounds, the mean is treated as a proportion of as many trials, with its Clopper-Pearson interval. This
    is conservative, because scores that take only the two bounds have the largest spread of all scores within them. It is
    exact for "solved or not" and wide for scores that spread less. Its width is never 0: three solved runs of three leave
    [0.29, 1].

    Coverage at 95% for "solved or not" with probability 0.7 at 3, 5, 10 runs is 1.00, 1.00, 0.99. The widths are 0.90, 0.71,
    0.59. `bounds` are the lowest and the highest possible score, not the observed ones.
    """
    low, high = bounds
    estimate = float(scores.mean())
    fraction = min(max((estimate - low) / (high - low), 0.0), 1.0)
    below, above = (low + end * (high - low) for end in proportion_interval(fraction, scores.size, confidence))
    return Interval(estimate, below, above, confidence, "Clopper-Pearson")


class Profile(NamedTuple):
    """A performance profile at n thresholds, `[n]` each."""

    fraction: np.ndarray  # of runs with a score above it, mean over tasks
    low: np.ndarray
    high: np.ndarray


def performance_profile(tasks: Tasks, taus: np.ndarray) -> Profile:
    """Returns the fraction of runs with a score above each threshold `[n]`, `F(tau) = mean over tasks and runs of [score > tau]`.

    The interval at each tau is Clopper-Pearson's for `T^2 / sum 1/n_t` trials: n T for n runs on each of T tasks. Its coverage
    is at least the stated level at each single tau (not at all tau jointly), for any number of runs. Its width is positive
    even if all runs are on one side. If tasks differ, it is wider than necessary.

    Source: Agarwal et al. 2021, section 4.2 (run-score distributions).
    """
    fraction = mean_of_means([(task > taus[:, None]).astype(np.float64) for task in tasks])
    trials = len(tasks) ** 2 / sum(1 / task.size for task in tasks)
    low, high = np.array([proportion_interval(min(f, 1.0), trials) for f in fraction.tolist()]).T
    return Profile(fraction, low, high)


# --- Ranges ---------------------------------------------------------------------------------------

# Quantities that cannot lie outside a range. An interval that is cut to the range covers as often as before, because no mean
# lies in what is cut off.
Range = tuple[float, float]
BOUNDS: Mapping[str, Range] = {
    **dict.fromkeys(("fraction_repeated", "fraction_same", "hypervolume", "info/is_success", "info/success"), (0.0, 1.0)),
    **dict.fromkeys(("mean_run", "max_run", "length"), (1.0, math.inf)),
    **dict.fromkeys(
        ("decisions", "jerk", "action_change", "high_frequency", "effort", "multiply_adds", "optimality_gap"), (0.0, math.inf)
    ),
}


def _range_of(name: str) -> Range | None:
    """Returns the range of a quantity, also as the last part of a tag; an environment's own are known by their whole names."""
    _, of_environment, rest = f"/{name}".partition(f"/{INFO}")
    return BOUNDS.get(INFO + rest if of_environment else name.rpartition("/")[2])


def cut(
    name: str, estimate: ArrayLike, low: ArrayLike, high: ArrayLike, limits: Range | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of intervals `[...]`, cut to the range of a quantity. NaN stays NaN.

    Args:
        name: of the quantity, also as the last part of a tag, such as `rollout/jerk`. Others are not cut.
        estimate, low, high: `[...]`. Where the estimate itself is out of range (in a stranger's files), nothing is cut.
        limits: the range, if it is known otherwise, such as that of a task's returns.
    """
    least, most = limits or _range_of(name) or (-math.inf, math.inf)
    inside = (np.asarray(estimate) >= least) & (np.asarray(estimate) <= most)
    return np.where(inside, np.clip(low, least, most), low), np.where(inside, np.clip(high, least, most), high)


def cut_interval(name: str, found: dict[str, Any] | None, limits: Range | None = None) -> dict[str, Any] | None:
    """Cuts an interval as in `cut`, given by its `estimate`, `low` and `high`. If it was cut, its `method` says so."""
    limits = limits or _range_of(name)
    if found is None or limits is None:
        return found
    low, high = (float(end) for end in cut(name, found["estimate"], found["low"], found["high"], limits))
    if (low, high) == (found["low"], found["high"]) or math.isnan(low):
        return found
    least, most = limits
    within = f"[{least:g}, {most:g}]" if math.isfinite(most) else f"{least:g} or more"
    return {**found, "low": low, "high": high, "method": f"{found['method']}, cut to {within}"}
