"""The figure of a campaign in docs/results.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from taac.analysis import styles
from taac.analysis.readers.run_records import Record


def draw(groups: Mapping[tuple[str, str], list[Record]], target: Path) -> None:
    """Draws each run faintly and the mean of each method: returns against steps (above) and against hours (below).

    Args:
        groups: the runs by task and method.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks, methods = sorted({task for task, _ in groups}), sorted({method for _, method in groups})
    figure, axes = pyplot.subplots(2, len(tasks), figsize=(4.6 * len(tasks), 6.4), squeeze=False, layout="constrained")
    for (task, method), runs in groups.items():
        draw_method(*axes[:, tasks.index(task)], method, methods.index(method), runs)
    for above, below, task in zip(*axes, tasks):
        above.set(title=task, xlabel="environment steps", ylabel="greedy return")
        below.set(xlabel="hours, beside other work", ylabel="greedy return")
        above.legend(fontsize="small", title="method (seeds)")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    figure.savefig(target, dpi=80, metadata={"Software": None})
    pyplot.close(figure)


def draw_method(above: Any, below: Any, method: str, number: int, runs: list[Record]) -> None:
    """Draws the runs of a method in a task's two panels; the mean is of those that did not diverge."""
    look = styles.style(number)
    whole = [r for r in runs if not r.problems]
    for r in runs:
        above.plot(r.steps, r.returns, color=look.color, alpha=0.35, linewidth=0.8)
        below.plot(r.evaluations["seconds"] / 3600, r.returns, color=look.color, alpha=0.8, linewidth=0.8)
    label = f"{method} ({len(runs)}" + (f", {len(runs) - len(whole)} diverged)" if len(whole) < len(runs) else ")")
    together = min((r.steps.size for r in whole), default=0)
    if any(not np.array_equal(r.steps[:together], whole[0].steps[:together]) for r in whole):
        together = 0  # evaluated at different steps: no mean, but a line in the legend
    steps = whole[0].steps[:together] if whole else []
    mean = np.mean([r.returns[:together] for r in whole], axis=0) if whole else []
    above.plot(steps, mean, label=label, **styles.line(number, together))
