"""Pictures and tables of a run's curves."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from taac.analysis import runs
from taac.errors import TaacError


def plot_run(folder: Path) -> tuple[Path, Path]:
    """Draws return and fraction of repeated steps against environment steps.

    Greedy evaluation is drawn with a band of one standard deviation over episodes; exploring episodes beside it. Nothing
    is smoothed.

    Returns:
        `curves.png`, and `curves.csv` with every scalar summary (tag, env_steps, wall_time, value), in the folder.

    Raises:
        TaacError: the folder holds no run, or one without an evaluation yet.
    """
    evaluation, about, scalars = runs.read_evaluations(folder), runs.read_run(folder), runs.read_scalars(folder)
    if not len(evaluation["env_steps"]):
        raise TaacError(f"the run in {folder} has no evaluation yet; there is nothing to draw")
    return _draw(folder / "curves.png", evaluation, scalars, about), _write_csv(folder / "curves.csv", scalars)


def _draw(path: Path, evaluation: dict[str, np.ndarray], scalars: dict[str, runs.Scalar], about: dict) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = evaluation["env_steps"]
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(8, 6.5), sharex=True, layout="constrained")
    figure.suptitle(f"{about.get('environment', '')}, seed {about.get('seed', '?')}")
    mean, deviation = evaluation["return_mean"], evaluation["return_std"]
    top.fill_between(steps, mean - deviation, mean + deviation, color="C0", alpha=0.2, linewidth=0)
    top.plot(steps, mean, color="C0", marker="o", markersize=3, label="greedy evaluation (band: 1 sd over episodes)")
    bottom.plot(steps, evaluation["fraction_repeated"], color="C0", marker="o", markersize=3, label="greedy evaluation")
    for axis, tag in ((top, "rollout/return"), (bottom, "rollout/fraction_repeated")):
        if tag in scalars:
            axis.plot(scalars[tag].env_steps, scalars[tag].value, color="C1", linewidth=1, alpha=0.8, label="exploring")
    top.set_ylabel("return")
    bottom.set_ylabel("fraction of steps repeated")
    bottom.set_ylim(-0.02, 1.02)
    bottom.set_xlabel("environment steps")
    for axis in (top, bottom):
        axis.grid(alpha=0.3)
        axis.legend(loc="best", fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _write_csv(path: Path, scalars: dict[str, runs.Scalar]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["tag", "env_steps", "wall_time", "value"])
        for tag in sorted(scalars):
            writer.writerows([tag, *row] for row in zip(*(column.tolist() for column in scalars[tag])))
    return path
