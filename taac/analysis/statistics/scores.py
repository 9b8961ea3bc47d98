"""Aggregates of scores over runs and tasks.

Scores are an array `[runs]` for each task, of finite numbers. All tasks have equal weight, however many runs they have.

Source: Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice, NeurIPS 2021,
arXiv:2108.13264, section 4.3, and their rliable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

Tasks = Sequence[np.ndarray]  # a task: [..., runs]
Statistic = Callable[[Tasks], np.ndarray]  # over the last axis of every task


def mean_of_means(tasks: Tasks) -> np.ndarray:
    """The mean over tasks of the mean over runs."""
    return sum(task.mean(-1) for task in tasks) / len(tasks)


def _median(tasks: Tasks) -> np.ndarray:
    return np.median(np.stack(np.broadcast_arrays(*(task.mean(-1) for task in tasks)), -1), -1)


def _iqm(tasks: Tasks) -> np.ndarray:
    """As `scipy.stats.trim_mean(scores, 0.25)` and rliable: drops the floor(N / 4) lowest and as many highest of N runs.

    3 runs are not trimmed at all; of 5, the middle 3 stay. With unequal numbers of runs, each run has weight
    1 / (runs of its task), and at each end as many runs are dropped as fit entirely into a quarter of the total weight. With
    equal numbers this is the same.
    """
    leading = np.broadcast_shapes(*(task.shape[:-1] for task in tasks))
    values = np.concatenate([np.broadcast_to(task, (*leading, task.shape[-1])) for task in tasks], -1)
    runs = [task.shape[-1] for task in tasks]
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
    "median": _median,  # over tasks, of the mean over runs
    "iqm": _iqm,  # the mean of the middle half of all runs of all tasks together
}
