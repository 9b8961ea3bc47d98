"""Aggregates of scores over runs and tasks.

Scores are given either as an array `[runs, tasks]`, or, where tasks have unequal numbers of runs, as a list with one
one-dimensional array `[runs]` a task. Tasks weigh the same, however many runs they have.

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
    """Scores as one float array `[runs]` a task.

    Args:
        scores: array `[runs, tasks]`, or a list (or tuple) with one array `[runs]` a task.
        at_least: runs that every task must have.

    Raises:
        TaacError: another shape, no task, too few runs, NaN or infinite scores.
    """
    if isinstance(scores, np.ndarray):
        if scores.ndim != 2:
            raise TaacError(
                f"{name} is an array of shape {scores.shape}, expected [runs, tasks]; give one task as scores[:, None]"
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
        raise TaacError(f"{name} holds what is no number: {error}") from error
    for i, task in enumerate(tasks):
        if task.ndim != 1:
            raise TaacError(
                f"task {i} of {name} has shape {task.shape}, expected [runs]; give a list with an array a task"
            )
        if not np.isfinite(task).all():
            raise TaacError(
                f"task {i} of {name} has NaN or infinite scores (runs {np.flatnonzero(~np.isfinite(task)).tolist()}); "
                "leave these runs out, and say so, or give them the score that a failed run deserves"
            )
        if task.size < at_least:
            why = "; with fewer, an interval is undefined: make more runs, or report the estimate alone"
            raise TaacError(
                f"task {i} of {name} has {task.size} run(s), expected {at_least} or more{why if at_least > 1 else ''}"
            )
    return tasks


def normalize(scores: ArrayLike | Sequence[ArrayLike], anchors: ArrayLike) -> Tasks:
    """Scores on the scale of two anchors a task, `(y - y0) / (y1 - y0)`.

    Args:
        anchors: `[tasks, 2]`, the scores that become 0 and 1, for example of a random and of an expert policy.

    Returns:
        One array `[runs]` a task.

    Raises:
        TaacError: anchors that are equal, not finite or not one pair a task; `as_tasks`.
    """
    tasks = as_tasks(scores)
    pairs = np.asarray(anchors, dtype=np.float64)
    if pairs.shape != (len(tasks), 2):
        raise TaacError(f"anchors have shape {pairs.shape}, expected one pair (y0, y1) a task: {(len(tasks), 2)}")
    for i, (zero, one) in enumerate(pairs):
        if not np.isfinite([zero, one]).all() or zero == one:
            raise TaacError(f"anchors ({zero}, {one}) of task {i} make no scale; give two different finite scores")
    return [(task - zero) / (one - zero) for task, (zero, one) in zip(tasks, pairs)]


# --- Aggregates -----------------------------------------------------------------------------------


def mean_of_means(tasks: Tasks) -> np.ndarray:
    return sum(task.mean(-1) for task in tasks) / len(tasks)


def _median(tasks: Tasks) -> np.ndarray:
    return np.median(np.stack(np.broadcast_arrays(*(task.mean(-1) for task in tasks)), -1), -1)


def _iqm(tasks: Tasks) -> np.ndarray:
    leading = np.broadcast_shapes(*(task.shape[:-1] for task in tasks))
    values = np.concatenate([np.broadcast_to(task, (*leading, task.shape[-1])) for task in tasks], -1)
    runs = [task.shape[-1] for task in tasks]
    if len(set(runs)) == 1:
        cut = values.shape[-1] // 4
        return np.sort(values, -1)[..., cut : values.shape[-1] - cut].mean(-1)
    whole = math.lcm(*runs)  # so that the weights 1 / runs are whole numbers, and the cut is not a matter of rounding
    weights = np.repeat([whole // n for n in runs], runs)
    kept = weights * ~(_lowest_quarter(values, weights) | _lowest_quarter(-values, weights))
    return (values * kept).sum(-1) / kept.sum(-1)


def _lowest_quarter(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """`[..., runs]` bool: the lowest runs, as many as fit whole into a quarter of the total weight."""
    order = np.lexsort((np.broadcast_to(weights, values.shape), values), axis=-1)  # of equal values, the light first
    fits = 4 * np.cumsum(weights[order], -1) <= weights.sum()
    found = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(found, order, fits, -1)
    return found


def mean(scores: ArrayLike | Sequence[ArrayLike]) -> float:
    """Mean over tasks of the mean over runs."""
    return float(mean_of_means(as_tasks(scores)))


def median(scores: ArrayLike | Sequence[ArrayLike]) -> float:
    """Median over tasks of the mean over runs; with an even number of tasks, the mean of the middle two."""
    return float(_median(as_tasks(scores)))


def iqm(scores: ArrayLike | Sequence[ArrayLike]) -> float:
    """Interquartile mean: the mean of the middle half of all runs of all tasks together.

    Of N runs the floor(N / 4) lowest and as many highest are dropped whole, as `scipy.stats.trim_mean(scores, 0.25)`
    does and rliable with it: 3 runs are not trimmed at all, of 5 the middle 3 stay. With unequal numbers of runs, each
    weighs 1 / (runs of its task), and those dropped at an end are as many as fit whole into a quarter of the total
    weight, which is the same where the numbers are equal.
    """
    return float(_iqm(as_tasks(scores)))


def optimality_gap(scores: ArrayLike | Sequence[ArrayLike], gamma: float = 1.0) -> float:
    """Mean over tasks and runs of `max(gamma - score, 0)`: how far short of `gamma`. Lower is better."""
    return mean(_shortfall(as_tasks(scores), gamma))


def _shortfall(tasks: Tasks, gamma: float) -> Tasks:
    if not math.isfinite(gamma):
        raise TaacError(f"gamma is {gamma}, expected a finite score")
    return [np.maximum(gamma - task, 0) for task in tasks]


STATISTICS: dict[str, Statistic] = {
    "mean": mean_of_means,
    "median": _median,
    "iqm": _iqm,
    "optimality_gap": mean_of_means,
}
LINEAR = ("mean", "optimality_gap")  # means of something: their spread has a closed form


def prepare(tasks: Tasks, statistic: str, gamma: float = 1.0) -> Tasks:
    """What `STATISTICS[statistic]` is to be applied to. Raises TaacError for an unknown statistic."""
    if statistic not in STATISTICS:
        raise TaacError(f"no statistic is called {statistic!r}; expected one of {', '.join(STATISTICS)}")
    return _shortfall(tasks, gamma) if statistic == "optimality_gap" else tasks
