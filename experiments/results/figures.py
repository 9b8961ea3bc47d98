"""The figure of a campaign in docs/results.md."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taac.analysis import styles
from taac.analysis.readers.run_records import Record
from taac.analysis.report.scores import match
from taac.pictures.panels import panels

Groups = Mapping[tuple[str, str], list[Record]]  # runs by task and method
GREYS = ("0.25", "0.6")  # of methods of other campaigns, in turn


def draw(groups: Groups, target: Path, beside: Groups | None = None) -> None:
    """Draws each run faintly and the mean of each method: returns against steps (above) and against hours (below).

    Args:
        groups: the runs by task and method.
        target: the PNG file.
        beside: runs of other campaigns by task and label, of which only the mean is drawn, against steps and in grey.
    """
    beside = beside or {}
    tasks, methods = sorted({task for task, _ in groups}), sorted({method for _, method in groups})
    labels = list(dict.fromkeys(label for _, label in beside))
    figure, axes = panels(2, len(tasks), (4.6 * len(tasks), 6.4))
    for (task, label), runs in beside.items():
        if task in tasks:
            number = labels.index(label)
            dash = (0, styles.DASHES[1 + number % (len(styles.DASHES) - 1)])
            look = {"color": GREYS[number % len(GREYS)], "linestyle": dash, "linewidth": 1.6}
            axes[0, tasks.index(task)].plot(*mean_curve(runs), label=f"{label} ({len(runs)})", **look)
    for (task, method), runs in groups.items():
        draw_method(*axes[:, tasks.index(task)], method, methods.index(method), runs)
    for above, below, task in zip(*axes, tasks):
        above.set(title=task, xlabel="environment steps", ylabel="greedy return")
        below.set(xlabel="hours, beside other work", ylabel="greedy return")
        above.legend(fontsize="small", title="method (seeds)")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    figure.savefig(target, dpi=80, metadata={"Software": None})


def draw_method(above: Any, below: Any, method: str, number: int, runs: list[Record]) -> None:
    """Draws the runs of a method in a task's two panels; the mean is of those that did not diverge."""
    look = styles.style(number)
    for r in runs:
        above.plot(r.steps, r.returns, color=look.color, alpha=0.35, linewidth=0.8)
        below.plot(r.evaluations["seconds"] / 3600, r.returns, color=look.color, alpha=0.8, linewidth=0.8)
    diverged = sum(bool(r.problems) for r in runs)
    label = f"{method} ({len(runs)}" + (f", {diverged} diverged)" if diverged else ")")
    steps, mean = mean_curve(runs)
    above.plot(steps, mean, label=label, **styles.line(number, steps.size))


def mean_curve(runs: Sequence[Record]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps `[n]` at which all runs that did not diverge were due an evaluation, and their mean return there."""
    whole = [r for r in runs if not r.problems]
    if not whole:
        return np.zeros(0), np.zeros(0)
    matched, _ = match([r._replace(folder=str(i)) for i, r in enumerate(whole)])  # folders may have one name in two campaigns
    common = functools.reduce(np.intersect1d, (r.due for r in matched))
    return common, np.mean([r.returns[np.isin(r.due, common)] for r in matched], axis=0)
