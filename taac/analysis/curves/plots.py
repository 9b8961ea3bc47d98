"""Draws curves as figures and writes them as tables."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from taac.analysis.curves.tag_curves import AXES, TagCurve, TagCurves
from taac.analysis.readers import run_records
from taac.analysis.readers.events import Scalar
from taac.analysis.readers.run_records import Record
from taac.analysis.statistics.quantiles import CONFIDENCE
from taac.analysis.styles import add_legend, draw_method, limit, shortened, span, style
from taac.analysis.untrusted_text import csv_cell
from taac.errors import TaacError
from taac.pictures.panels import caption, literal_text, panels
from taac.runs import durable

FORMATS = (".png", ".svg", ".csv")
CSV_COLUMNS = ("tag", "task", "method", "runs", "x", "at", "mean", "low", "high", "confidence", "interval", "smoothing")
_MOST_ROWS, _MOST_COLUMNS = 60, 60  # of panels, because the size of a figure is limited


# --- One run --------------------------------------------------------------------------------------


def plot_run(folder: Path) -> tuple[Path, Path, list[str]]:
    """Draws a run's return and fraction of repeated steps against environment steps.

    Greedy evaluations have a band of one standard deviation over episodes. Exploring episodes are drawn beside them. Nothing
    is smoothed.

    Returns:
        The files `curves.png` and `curves.csv` in the folder, and notes on problems of the run. The table holds every scalar
        summary (tag, env_steps, wall_time, value).

    Raises:
        TaacError: the folder holds no run, or the run has no evaluation yet.
    """
    record = run_records.read(folder, folder)
    if not np.isfinite(record.returns).any():
        raise TaacError(f"the run in {folder} has nothing to draw: {'; '.join(record.problems)}")
    drawn = _draw_run(folder / "curves.png", record), _write_scalars(folder / "curves.csv", record.scalars)
    return *drawn, [*record.problems, *record.notes]


@literal_text()
def _draw_run(path: Path, record: Record) -> Path:
    file = io.BytesIO()
    run_figure(record).savefig(file, format="png", dpi=120)
    durable.write(path, file.getvalue())
    return path


@literal_text()
def run_figure(record: Record) -> Any:
    """Returns the figure of one run; see `plot_run`. It must be drawn within `literal_text`."""
    steps, table, scalars = record.steps, record.evaluations, record.scalars
    figure, ((top,), (bottom,)) = panels(2, 1, (8, 6.5), sharex=True)
    task, seed = record.task or "unknown task", "?" if record.seed is None else record.seed
    caption(figure, f"{shortened(record.method, 60)} on {shortened(task, 60)}, seed {seed}")
    greedy, exploring = style(0).color, style(1).color
    mean, deviation = table["return_mean"], table["return_std"]
    top.fill_between(steps, mean - deviation, mean + deviation, color=greedy, alpha=0.2, linewidth=0)
    top.plot(steps, mean, color=greedy, marker="o", markersize=3, label="greedy evaluation (band: 1 sd over episodes)")
    bottom.plot(steps, table["fraction_repeated"], color=greedy, marker="o", markersize=3, label="greedy evaluation")
    for axis, tag in ((top, "rollout/return"), (bottom, "rollout/fraction_repeated")):
        if tag in scalars:
            axis.plot(scalars[tag].env_steps, scalars[tag].value, color=exploring, linewidth=1, alpha=0.8, label="exploring")
    top.set_ylabel("return")
    bottom.set_ylabel("fraction of steps repeated")
    bottom.set_ylim(-0.02, 1.02)
    bottom.set_xlabel("environment steps")
    for axis in (top, bottom):
        axis.grid(alpha=0.3)
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize="small", frameon=False)
    return figure


def _write_scalars(path: Path, scalars: Mapping[str, Scalar]) -> Path:
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["tag", "env_steps", "wall_time", "value"])
    for tag, of in scalars.items():
        columns = (of.env_steps.tolist(), of.wall_time.tolist(), of.value.tolist())
        writer.writerows([csv_cell(tag), *row] for row in zip(*columns))
    durable.write(path, file.getvalue().encode())
    return path


# --- Many runs ------------------------------------------------------------------------------------


def check_format(path: Path) -> None:
    """Raises TaacError unless the file's suffix is one of `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise TaacError(f"--output {path} must end in {' or '.join(FORMATS)}")


def write_curves(found: TagCurves, path: Path) -> Path:
    """Writes curves as a figure (.png, .svg) or table (.csv). The same curves produce the same bytes.

    Raises:
        TaacError: the suffix is another, or there are more panels than a figure can hold.
    """
    check_format(path)
    suffix = path.suffix.lower()
    data = table(found).encode() if suffix == ".csv" else picture(found, suffix[1:])
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(path, data)
    return path


def table(found: TagCurves) -> str:
    """The curves as CSV, with a row for each point. Unknown values are empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for of in found.curves:
        interval = "Student t, at each point by itself" if of.runs > 1 else "none: one run"
        for row in zip(*(column.tolist() for column in of.curve)):
            at, *numbers = ("" if math.isnan(number) else number for number in row)
            names = (csv_cell(of.tag), csv_cell(of.task), csv_cell(of.method))
            writer.writerow([*names, of.runs, found.options.x, at, *numbers, CONFIDENCE, interval, found.smoothing])
    return file.getvalue()


@literal_text()
def picture(found: TagCurves, form: str) -> bytes:
    """The curves as a figure: a row of panels for each tag, a column for each task, a line for each method."""
    tags = list(dict.fromkeys(of.tag for of in found.curves))
    tasks = sorted({of.task for of in found.curves})
    numbers = {method: number for number, method in enumerate(sorted({of.method for of in found.curves}))}
    if len(tags) > _MOST_ROWS:
        raise TaacError(f"{len(tags)} tags are too many for one figure (at most {_MOST_ROWS}); use fewer, or a .csv")
    if len(tasks) > _MOST_COLUMNS:
        raise TaacError(
            f"{len(tasks)} tasks are too many for one figure (at most {_MOST_COLUMNS}); use a folder with fewer, or a .csv"
        )
    import matplotlib

    size = (max(6.5, 5.2 * len(tasks)), 3.2 * len(tags) + 0.8)
    figure, axes = panels(len(tags), len(tasks), size)
    for row, tag in zip(axes, tags):
        for axis, task in zip(row, tasks):
            of = [c for c in found.curves if (c.tag, c.task) == (tag, task)]
            if of:
                _panel(axis, of, numbers)
                axis.set(title=shortened(task, 60), xlabel=AXES[found.options.x], ylabel=shortened(tag, 60))
            else:
                axis.set_axis_off()
    caption(figure, _caption(found), fontsize="small")
    add_legend(figure, {number: _label(method, found.curves) for method, number in numbers.items()}, "method (runs)")
    file = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "taac"}):
        figure.savefig(file, format=form, dpi=110, metadata={"Date": None} if form == "svg" else {"Software": None})
    return file.getvalue()


def _panel(axis: Any, curves: list[TagCurve], numbers: Mapping[str, int]) -> None:
    for of in curves:
        draw_method(axis, numbers[of.method], len(curves), of.curve, of.each if of.runs > 1 else ())
    runs = [points[1] for of in curves for points in of.each]
    limit(axis, [*runs, *(of.curve.estimate for of in curves)], [end for of in curves for end in (of.curve.low, of.curve.high)])
    axis.grid(alpha=0.3)


def _label(method: str, curves: Sequence[TagCurve]) -> str:
    """A method with the number of its runs, or their range over the panels."""
    return f"{method} ({span([of.runs for of in curves if of.method == method])})"


def _caption(found: TagCurves) -> str:
    interval = f"{CONFIDENCE:.0%} interval (Student t, at each point by itself)"
    several = any(of.runs > 1 for of in found.curves)
    means = f"mean over runs, band: {interval}, may leave the panel; single runs are faint"
    what = means if several else "single runs, no interval"
    return f"{what}\nsmoothing: {found.smoothing}"

