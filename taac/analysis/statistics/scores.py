"""Aggregates of scores over runs and tasks.

Scores are an array `[runs, tasks]` or, if tasks have unequal numbers of runs, a list with one array `[runs]` for each task.
All tasks have equal weight, however many runs they have.

Source: Agarwal et al., Deep reinforcement learning at the edge of the statistical precipice, NeurIPS 2021,
arXiv:2108.13264, section 4.3, and their rliable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from taac.errors import TaacError

Tasks = list[np.ndarray]  # a task: [..., runs]
Statistic = Callable[[Tasks], np.ndarray]  # over the last axis of every task


def as_tasks(scores: ArrayLike | Sequence[ArrayLike], at_least: int = 1, name: str = "scores") -> Tasks:
    """Converts scores to one float array `[runs]` for each task.

    Args:
        scores: array `[runs, tasks]`, or a list (or tuple) with one array `[runs]` for each task.
        at_least: the least number of runs for each task.

    Raises:
        TaacError: the shape is another, there is no task, a task has too few runs, or scores are NaN or infinite.
    """
    if isinstance(scores, np.ndarray):
        if scores.ndim != 2:
            raise TaacError(
                f"{name} is an array of shape {scores.shape}, expected [runs, tasks]; pass one task as scores[:, None]"
            )
        given: list = list(scores.T)
    elif isinstance(scores, (list, tuple)):
        given = list(scores)
    else:
        raise TaacError(
            f"{name} is of type {type(scores).__name__}, expected an array [runs, tasks] or a list of arrays"
        )
    if not given:
        raise TaacError(f"{name} holds no task; expected one or more")
    try:
        tasks = [np.asarray(task, dtype=np.float64) for task in given]
    except (TypeError, ValueError) as error:
        raise TaacError(f"{name} holds something that is not a number: {error}") from error
    for i, task in enumerate(tasks):
        if task.ndim != 1:
            raise TaacError(
                f"task {i} of {name} has shape {task.shape}, expected [runs]; pass a list with one array for each task"
            )
        if not np.isfinite(task).all():
            raise TaacError(
                f"task {i} of {name} has NaN or infinite scores (runs {np.flatnonzero(~np.isfinite(task)).tolist()}); "
                "leave these runs out and report it, or assign the score that a failed run deserves"
            )
        if task.size < at_least:
            why = "; with fewer, an interval is undefined: add runs, or report the estimate alone"
            raise TaacError(
                f"task {i} of {name} has {task.size} run(s), expected {at_least} or more{why if at_least > 1 else ''}"
            )
    return tasks


# --- Aggregates -----------------------------------------------------------------------------------


def mean_of_means(tasks: Tasks) -> np.ndarray:
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
    "median": _median,
    "iqm": _iqm,
    "optimality_gap": mean_of_means,
}
LINEAR = ("mean", "optimality_gap")  # means, whose spread has a closed form


def aggregate(scores: ArrayLike | Sequence[ArrayLike], statistic: str) -> float:
    """A statistic of scores.

    Args:
        statistic: "mean" over tasks of the mean over runs; "median" over tasks of the mean over runs; "iqm", the mean of the
            middle half of all runs of all tasks together; or "optimality_gap", the mean over tasks and runs of
            `max(1 - score, 0)`, of which less is better.

    Raises:
        TaacError: the statistic is unknown; also as in `as_tasks`.
    """
    return float(STATISTICS[statistic](prepare(as_tasks(scores), statistic)))


def prepare(tasks: Tasks, statistic: str) -> Tasks:
    """Returns the input of `STATISTICS[statistic]`. Raises TaacError for an unknown statistic."""
    if statistic not in STATISTICS:
        raise TaacError(f"no statistic is called {statistic!r}; expected one of {', '.join(STATISTICS)}")
    return [np.maximum(1 - task, 0) for task in tasks] if statistic == "optimality_gap" else tasks
