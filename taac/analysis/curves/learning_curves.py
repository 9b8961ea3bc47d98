"""Learning curves of several runs: common steps, summaries of one run, mean or IQM over runs with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from taac.analysis.statistics.intervals import estimate_interval
from taac.analysis.statistics.quantiles import check_confidence, student_quantile
from taac.errors import TaacError


class Curve(NamedTuple):
    """A statistic over runs against environment steps; NaN where it is undefined."""

    steps: np.ndarray  # [n]
    estimate: np.ndarray  # [n]
    low: np.ndarray  # [n]
    high: np.ndarray  # [n]


def common_steps(runs: Sequence[tuple[ArrayLike, ArrayLike]], gaps: bool = False) -> np.ndarray:
    """All steps `[n]` at which any run was evaluated, within the range that all runs cover; may be empty.

    Args:
        runs: (steps, values) of each, `[n_i]` both.
        gaps: as of `interpolate`.
    """
    steps = [steps for steps, _ in _checked(runs, gaps)]
    first, last = max(s[0] for s in steps), min(s[-1] for s in steps)
    union = np.unique(np.concatenate(steps))
    return union[(union >= first) & (union <= last)]


def interpolate(runs: Sequence[tuple[ArrayLike, ArrayLike]], steps: ArrayLike, gaps: bool = False) -> np.ndarray:
    """Values of every run at the same steps, `[runs, n]`: linear between evaluations, NaN outside a run's range.

    Nothing is extrapolated: a run that ended early is NaN from its last evaluation on.

    Args:
        runs: (steps, values) of each, `[n_i]` both.
        steps: `[n]`.
        gaps: values may be NaN; a run is then NaN there, and up to the evaluations before and after.

    Raises:
        TaacError: no runs; a run without evaluations, with steps that do not increase, or with values that are not finite.
    """
    at = np.asarray(steps, dtype=np.float64)
    if at.ndim != 1 or not np.isfinite(at).all():
        raise TaacError(f"steps have shape {at.shape}, expected a list of finite steps, [n]")
    return np.stack([np.interp(at, s, v, left=math.nan, right=math.nan) for s, v in _checked(runs, gaps)])


def area_under_curve(steps: ArrayLike, values: ArrayLike, low: float | None = None, high: float | None = None) -> float:
    """Mean value of one run over steps: `integral from low to high / (high - low)`, by the trapezoid rule.

    A constant curve has its constant. Curves are comparable over the same range only.

    Args:
        steps, values: `[n]`.
        low, high: the range; None: from the first evaluation, to the last.

    Raises:
        TaacError: an empty range, or one that the run does not cover; `interpolate`.
    """
    ((s, v),) = _checked([(steps, values)])
    start, end = s[0] if low is None else low, s[-1] if high is None else high
    if not s[0] <= start < end <= s[-1]:
        raise TaacError(
            f"no area from step {start} to {end} under a curve that was evaluated from {s[0]} to {s[-1]}; "
            "give a range within it, of more than one step"
        )
    between = s[(s > start) & (s < end)]
    x = np.concatenate([[start], between, [end]])
    y = np.interp(x, s, v)
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum() / (end - start))


def final_score(values: ArrayLike, last: int = 1) -> float:
    """Mean of the last evaluations of one run.

    Not the best ones: the maximum over a noisy curve is not a score that the method reaches.

    Raises:
        TaacError: fewer evaluations than `last`, or values that are not finite.
    """
    v = np.asarray(values, dtype=np.float64)
    ((_, v),) = _checked([(np.arange(v.shape[0] if v.ndim else 0), v)])
    if not 1 <= last <= v.size:
        raise TaacError(f"asked for the mean of the last {last} evaluations of {v.size}; expected 1 to {v.size}")
    return float(v[-last:].mean())


def learning_curve(
    steps: ArrayLike,
    values: ArrayLike,
    statistic: str = "mean",
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Curve:
    """A statistic over the runs of one task at each step, with `intervals.estimate_interval`, pointwise.

    Where a run is NaN, so is the curve: the mean of the runs that happened to last is another quantity, and a curve of it
    jumps where a run ends. Where all runs are equal, estimate is given and the interval is NaN.

    Args:
        steps: `[n]`.
        values: `[runs, n]`, as from `interpolate`.
        statistic: as of `estimate_interval`.

    Raises:
        TaacError: shapes that do not fit, infinite values, fewer than two runs.
    """
    at, table = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if at.ndim != 1 or table.ndim != 2 or table.shape[1] != at.size:
        raise TaacError(f"values have shape {table.shape} and steps {at.shape}, expected [runs, n] and [n]")
    if table.shape[0] < 2:
        raise TaacError(f"a curve over {table.shape[0]} run(s) has no interval; make more runs, or draw the run itself")
    if statistic == "mean" and not np.isinf(table).any():
        return Curve(at, *_means(table, confidence))
    points = np.full((3, at.size), math.nan)
    for i in np.flatnonzero(~np.isnan(table).any(0)):
        points[:, i] = estimate_interval([table[:, i]], statistic, confidence, resamples=resamples, seed=seed)[:3]
    return Curve(at, *points)


def _means(table: np.ndarray, confidence: float) -> np.ndarray:
    """`[3, n]`: what `estimate_interval` gives for the mean of each column, all at once."""
    check_confidence(confidence)
    runs = table.shape[0]
    mean, error = table.mean(0), table.std(0, ddof=1) / math.sqrt(runs)
    half = student_quantile(confidence, runs - 1) * error
    half[error <= 1e-12 * np.abs(table).max(0)] = math.nan  # they do not differ, which tells nothing of others
    return np.stack([mean, mean - half, mean + half])


def _checked(runs: Sequence[tuple[ArrayLike, ArrayLike]], gaps: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
    if not len(runs):
        raise TaacError("no runs were given; expected one or more")
    checked = []
    for i, (steps, values) in enumerate(runs):
        s, v = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
        if s.ndim != 1 or s.shape != v.shape or not s.size:
            raise TaacError(
                f"run {i} has steps {s.shape} and values {v.shape}, expected [n] each, with one evaluation or more"
            )
        if not np.isfinite(s).all() or not (np.diff(s) > 0).all():
            raise TaacError(f"the steps of run {i} do not increase; give its evaluations in order, each once")
        if np.isinf(v).any() or (not gaps and np.isnan(v).any()):
            raise TaacError(
                f"run {i} has NaN or infinite values (first at step {s[~np.isfinite(v)][0]:g}); leave it out, or mend it"
            )
        checked.append((s, v))
    return checked
