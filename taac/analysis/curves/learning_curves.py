"""Learning curves over several runs with intervals, and the area under that of one run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from taac.analysis.statistics.intervals import CONFIDENCE, student_quantile
from taac.errors import TaacError

Run = tuple[np.ndarray, np.ndarray]  # x and values, [n] each, x rising


class Curve(NamedTuple):
    """A statistic over runs against environment steps. NaN where it is undefined."""

    steps: np.ndarray  # [n]
    estimate: np.ndarray  # [n]
    low: np.ndarray  # [n]
    high: np.ndarray  # [n]


def common_steps(runs: Sequence[Run]) -> np.ndarray:
    """Returns all steps `[n]` at which any run was evaluated, within the range that all runs cover. May be empty."""
    steps = [steps for steps, _ in runs]
    first, last = max(s[0] for s in steps), min(s[-1] for s in steps)
    union = np.unique(np.concatenate(steps))
    return union[(union >= first) & (union <= last)]


def interpolate(runs: Sequence[Run], steps: np.ndarray) -> np.ndarray:
    """Values of every run at the same steps `[n]`, `[runs, n]`: linear between evaluations, NaN outside a run's range.

    Nothing is extrapolated. A run that ended early is NaN after its last evaluation. Where a value is NaN, so is the run from
    the evaluation before to the one after.
    """
    return np.stack([np.interp(steps, x, values, left=math.nan, right=math.nan) for x, values in runs])


def area_under_curve(steps: np.ndarray, values: np.ndarray, low: float | None = None, high: float | None = None) -> float:
    """Returns the mean of the value `[n]` of a run over rising steps, `integral from low to high / (high - low)`, by trapezoids.

    The range is from the first to the last evaluation, unless it is given; the run must cover it. Curves are comparable only over
    the same range.
    """
    start, end = steps[0] if low is None else low, steps[-1] if high is None else high
    if not steps[0] <= start < end <= steps[-1]:
        raise TaacError(
            f"no area from step {start} to {end} under a curve that was evaluated from {steps[0]} to {steps[-1]}; "
            "use a range within it, of more than one step"
        )
    x = np.concatenate([[start], steps[(steps > start) & (steps < end)], [end]])
    y = np.interp(x, steps, values)
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum() / (end - start))


def learning_curve(steps: np.ndarray, values: np.ndarray) -> Curve:
    """Returns the mean over the runs of one task at each step, with Student's interval at each step by itself.

    If a run is NaN at a step, so is the curve. The mean of the remaining runs would be another quantity, and its curve would
    jump where a run ends. If all runs are equal at a step, or there is only one, the interval there is NaN. `values` are
    `[runs, n]`, as from `interpolate`.
    """
    runs, mean = len(values), values.mean(0)
    half = np.full(steps.shape, math.nan)
    if runs > 1:
        error = values.std(0, ddof=1) / math.sqrt(runs)
        differ = ~(error <= 1e-12 * np.abs(values).max(0))  # else the interval is undefined
        half[differ] = student_quantile(CONFIDENCE, runs - 1) * error[differ]
    return Curve(steps, mean, mean - half, mean + half)
