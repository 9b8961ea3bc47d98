"""Evaluates one agent at several switching thresholds: what it gives up in return for fewer decisions."""

from __future__ import annotations

import contextlib
import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taac.acting.evaluation import evaluate
from taac.acting.metrics import summarize
from taac.analysis.statistics.intervals import CONFIDENCE, student_quantile
from taac.errors import TaacError
from taac.pictures.panels import panels
from taac.playing.saved_agent import load_saved
from taac.runs import durable
from taac.runs.layout import EpisodeSummary


class Point(NamedTuple):
    """Greedy episodes at one threshold."""

    switch_threshold: float
    summary: EpisodeSummary

    @property
    def half_width(self) -> float:
        """Half the 95% interval of the mean return, Student's t over episodes; NaN for one episode."""
        n = self.summary.episodes
        if n < 2:
            return math.nan
        # `return_std` divides by n.
        return student_quantile(CONFIDENCE, n - 1) * self.summary.return_std / math.sqrt(n - 1)


class Front(NamedTuple):
    """The points of an agent, in the order of the thresholds."""

    environment: str
    method: str
    points: list[Point]


def evaluate_thresholds(
    path: str | Path, thresholds: Sequence[float], num_episodes: int, seed: int, best: bool = False, trusted: bool = False
) -> Front:
    """Plays the same episodes (equal seeds) at each threshold. Call `taac.registry.register()` first.

    Args:
        path: the run folder.
        thresholds: see `Algorithm.set_switch_threshold`.
        num_episodes, seed: as in `evaluate`.
        best, trusted: as in `load_saved`.

    Raises:
        TaacError: the run cannot be loaded, its method has no threshold, or one is out of range.
    """
    if not thresholds:
        raise TaacError("no switch_threshold is given: name some, such as 0.5,0.6,0.7,0.8,0.9")
    saved = load_saved(path, best, trusted)
    with contextlib.closing(saved.environment) as environment:
        for threshold in thresholds:  # before any work
            saved.agent.algorithm.set_switch_threshold(threshold)
        points = []
        for threshold in thresholds:
            saved.agent.algorithm.set_switch_threshold(threshold)
            points.append(Point(float(threshold), summarize(evaluate(saved.agent, environment, num_episodes, seed))))
    return Front(environment.name, saved.method, points)


def write_table(front: Front, path: Path) -> None:
    """Writes a CSV file: the threshold, then the columns of `EpisodeSummary`."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(("switch_threshold", *EpisodeSummary._fields))
    writer.writerows((point.switch_threshold, *point.summary) for point in front.points)
    durable.write(path, file.getvalue().encode())


def write_picture(front: Front, path: Path) -> None:
    """Draws the mean return with its interval against decisions an episode, as a .png file."""
    figure, ((axis,),) = panels(1, 1, (6.0, 4.0))
    decisions = [point.summary.decisions for point in front.points]
    returns = [point.summary.return_mean for point in front.points]
    axis.errorbar(decisions, returns, np.nan_to_num([point.half_width for point in front.points]), marker="o", capsize=3)
    for point, x, y in zip(front.points, decisions, returns):
        axis.annotate(f"{point.switch_threshold:g}", (x, y), textcoords="offset points", xytext=(6, 6), fontsize="small")
    axis.set(xlabel="decisions an episode", ylabel="return", title=f"{front.method} on {front.environment}: switch_threshold")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=120)
    durable.write(path, file.getvalue())
