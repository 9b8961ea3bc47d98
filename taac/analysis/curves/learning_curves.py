"""Learning curves over several runs with intervals, and the area under that of one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from taac.analysis.statistics.quantiles import check_confidence, student_quantile
from taac.errors import TaacError


class Curve(NamedTuple):
    """A statistic over runs against environment steps. NaN where it is undefined."""

    steps: np.ndarray  # [n]
    estimate: np.ndarray  # [n]
    low: np.ndarray  # [n]
    high: np.ndarray  # [n]


def common_steps(runs: Sequence[tuple[ArrayLike, ArrayLike]], gaps: bool = False) -> np.ndarray:
    """All steps `[n]` at which any run was evaluated, within the range that all runs cover. May be empty.

    Args:
        runs: (steps, values) of each run, `[n_i]` both.
        gaps: as in `interpolate`.
    """
    steps = [steps for steps, _ in _checked(runs, gaps)]
    first, last = max(s[0] for s in steps), min(s[-1] for s in steps)
    union = np.unique(np.concatenate(steps))
    return union[(union >= first) & (union <= last)]


def interpolate(runs: Sequence[tuple[ArrayLike, ArrayLike]], steps: ArrayLike, gaps: bool = False) -> np.ndarray:
    """Values of every run at the same steps, `[runs, n]`: linear between evaluations, NaN outside a run's range.

    Nothing is extrapolated. A run that ended early is NaN after its last evaluation.

    Args:
        runs: (steps, values) of each run, `[n_i]` both.
        steps: `[n]`.
        gaps: whether values may be NaN. A run is then NaN there, and between the evaluations before and after.

    Raises:
        TaacError: there are no runs, or a run has no evaluations, steps that do not increase, or values that are not finite.
    """
    at = np.asarray(steps, dtype=np.float64)
    if at.ndim != 1 or not np.isfinite(at).all():
        raise TaacError(f"steps have shape {at.shape}, expected a list of finite steps, [n]")
    return np.stack([np.interp(at, s, v, left=math.nan, right=math.nan) for s, v in _checked(runs, gaps)])


def area_under_curve(steps: ArrayLike, values: ArrayLike, low: float | None = None, high: float | None = None) -> float:
    """The mean value of one run over steps, `integral from low to high / (high - low)`, by the trapezoid rule.

    For a constant curve it is the constant. Curves are comparable only over the same range.

    Args:
        steps, values: `[n]`.
        low, high: the range. None for the first and the last evaluation.

    Raises:
        TaacError: the range is empty, or the run does not cover it; also as in `interpolate`.
    """
    ((s, v),) = _checked([(steps, values)])
    start, end = s[0] if low is None else low, s[-1] if high is None else high
    if not s[0] <= start < end <= s[-1]:
        raise TaacError(
            f"no area from step {start} to {end} under a curve that was evaluated from {s[0]} to {s[-1]}; "
            "use a range within it, of more than one step"
        )
    between = s[(s > start) & (s < end)]
    x = np.concatenate([[start], between, [end]])
    y = np.interp(x, s, v)
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum() / (end - start))


def learning_curve(steps: ArrayLike, values: ArrayLike, confidence: float = 0.95) -> Curve:
    """The mean over the runs of one task at each step, with Student's interval at each step by itself.

    If a run is NaN at a step, so is the curve. The mean of the remaining runs would be another quantity, and its curve would
    jump where a run ends. If all runs are equal at a step, or there is only one, the interval there is NaN.

    Args:
        steps: `[n]`.
        values: `[runs, n]`, as from `interpolate`.

    Raises:
        TaacError: the shapes do not fit, there is no run, or values are infinite.
    """
    check_confidence(confidence)
    at, table = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if at.ndim != 1 or table.ndim != 2 or not len(table) or table.shape[1] != at.size:
        raise TaacError(f"values have shape {table.shape} and steps {at.shape}, expected [runs, n] and [n]")
    if np.isinf(table).any():
        raise TaacError("values are infinite; leave out these runs, or fix them")
    runs, mean = len(table), table.mean(0)
    half = np.full(at.shape, math.nan)
    if runs > 1:
        error = table.std(0, ddof=1) / math.sqrt(runs)
        differ = ~(error <= 1e-12 * np.abs(table).max(0))  # else the interval is undefined
        half[differ] = student_quantile(confidence, runs - 1) * error[differ]
    return Curve(at, mean, mean - half, mean + half)


def _checked(runs: Sequence[tuple[ArrayLike, ArrayLike]], gaps: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
    if not len(runs):
        raise TaacError("there are no runs; expected one or more")
    checked = []
    for i, (steps, values) in enumerate(runs):
        s, v = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
        if s.ndim != 1 or s.shape != v.shape or not s.size:
            raise TaacError(
                f"run {i} has steps {s.shape} and values {v.shape}, expected [n] each, with one evaluation or more"
            )
        if not np.isfinite(s).all() or not (np.diff(s) > 0).all():
            raise TaacError(f"the steps of run {i} do not increase; pass its evaluations in order, each once")
        if np.isinf(v).any() or (not gaps and np.isnan(v).any()):
            raise TaacError(
                f"run {i} has NaN or infinite values (first at step {s[~np.isfinite(v)][0]:g}); leave it out, or fix it"
            )
        checked.append((s, v))
    return checked
