"""Draws curves as figures and writes them as tables."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import numpy as np

from taac.analysis.curves.tag_curves import AXES, TagCurves
from taac.analysis.readers import run_records
from taac.analysis.readers.run_records import Record
from taac.analysis.statistics.intervals import CONFIDENCE
from taac.analysis.styles import add_legend, draw_methods, shortened, span, style
from taac.errors import TaacError
from taac.pictures.panels import caption, image, literal_text, panels
from taac.runs import durable

FORMATS = (".png", ".svg", ".csv")
CSV_COLUMNS = ("tag", "task", "method", "runs", "x", "at", "mean", "low", "high", "confidence", "interval", "smoothing")
MOST_PANELS = 60  # in a row or a column, because the size of a figure is limited


def csv_cell(value: Any) -> Any:
    """Puts an apostrophe before a text that a spreadsheet would run as a formula. Returns any other value unchanged.

    Source: OWASP, "CSV Injection".
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def plot_run(folder: Path) -> tuple[Path, Path, list[str]]:
    """Draws a run's return and fraction of repeated steps against environment steps, as `curves.png` in its folder.

    Greedy evaluations have a band of one standard deviation over episodes. Exploring episodes are drawn beside them. Nothing
    is smoothed. `curves.csv` holds every scalar summary (tag, env_steps, wall_time, value). Returns both files, and notes on
    problems of the run.
    """
    record = drawable(folder)
    with literal_text():
        durable.write(folder / "curves.png", image(run_figure(record), dpi=120))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["tag", "env_steps", "wall_time", "value"])
    for tag, of in record.scalars.items():
        columns = (of.env_steps.tolist(), of.wall_time.tolist(), of.value.tolist())
        writer.writerows([csv_cell(tag), *row] for row in zip(*columns))
    durable.write(folder / "curves.csv", text.getvalue().encode())
    return folder / "curves.png", folder / "curves.csv", [*record.problems, *record.notes]


def drawable(folder: Path) -> Record:
    """Reads a run that can be drawn. Refuses a folder without a run, or without an evaluation."""
    record = run_records.read(folder, folder)
    if not np.isfinite(record.returns).any():
        raise TaacError(f"the run in {folder} has nothing to draw: {'; '.join(record.problems)}")
    return record


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


def check_format(path: Path) -> None:
    """Raises TaacError unless the file's suffix is one of `FORMATS`."""
    if path.suffix.lower() not in FORMATS:
        raise TaacError(f"--output {path} must end in {' or '.join(FORMATS)}")


def write_curves(found: TagCurves, path: Path) -> Path:
    """Writes curves as a figure (.png, .svg) or table (.csv). The same curves produce the same bytes."""
    check_format(path)
    suffix = path.suffix.lower()
    data = table(found).encode() if suffix == ".csv" else picture(found, suffix[1:])
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(path, data)
    return path


def table(found: TagCurves) -> str:
    """Returns the curves as CSV, with a row for each point. Unknown values are empty."""
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
    """Returns the curves as a figure: a row of panels for each tag, a column for each task, a line for each method."""
    tags = list(dict.fromkeys(of.tag for of in found.curves))
    tasks = sorted({of.task for of in found.curves})
    numbers = {method: number for number, method in enumerate(sorted({of.method for of in found.curves}))}
    for count, what, remedy in ((len(tags), "tags", "fewer"), (len(tasks), "tasks", "a folder with fewer")):
        if count > MOST_PANELS:
            raise TaacError(f"{count} {what} are too many for one figure (at most {MOST_PANELS}); use {remedy}, or a .csv")
    import matplotlib

    size = (max(6.5, 5.2 * len(tasks)), 3.2 * len(tags) + 0.8)
    figure, axes = panels(len(tags), len(tasks), size)
    for row, tag in zip(axes, tags):
        for axis, task in zip(row, tasks):
            of = [c for c in found.curves if (c.tag, c.task) == (tag, task)]
            if of:
                draw_methods(axis, [(numbers[c.method], c.curve, c.each) for c in of])
                axis.set(title=shortened(task, 60), xlabel=AXES[found.options.x], ylabel=shortened(tag, 60))
            else:
                axis.set_axis_off()
    interval = f"{CONFIDENCE:.0%} interval (Student t, at each point by itself)"
    means = f"mean over runs, band: {interval}, may leave the panel; single runs are faint"
    what = means if any(of.runs > 1 for of in found.curves) else "single runs, no interval"
    caption(figure, f"{what}\nsmoothing: {found.smoothing}", fontsize="small")
    runs = {method: span([of.runs for of in found.curves if of.method == method]) for method in numbers}
    add_legend(figure, {numbers[method]: f"{method} ({count})" for method, count in runs.items()}, "method (runs)")
    with matplotlib.rc_context({"svg.hashsalt": "taac"}):
        return image(figure, format=form, dpi=110, metadata={"Date": None} if form == "svg" else {"Software": None})
