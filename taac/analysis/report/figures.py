"""A report's learning curves as numbers, and its figures as the bytes of PNG files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from taac.analysis.curves.learning_curves import Run, interpolate, learning_curve
from taac.analysis.readers.run_records import Record
from taac.analysis.report.scores import AllScores
from taac.analysis.report.verdicts import Anchor
from taac.analysis.statistics.intervals import Range, cut, estimate_interval
from taac.analysis.styles import add_legend, draw_methods, faint, limit, line, shortened, span, style
from taac.pictures.panels import caption, image, literal_text, panels

AXES = {
    "env_steps": "environment steps",
    "training_decisions": "decisions",
    "updates": "updates",
    "seconds": "wall time (seconds)",
}
MEASURES = {"return_mean": "return", "fraction_repeated": "fraction of steps repeated"}
MOST_POINTS = 200
MOST_IQM_POINTS, IQM_RESAMPLES = 41, 500  # of a band that is drawn
NAMES = (
    "report_return.png", "report_front.png", "report_repeated.png", "report_iqm.png", "report_profile.png",
    "report_improvement.png",
)  # fmt: skip
MOST_TASKS, MOST_PAIRS = 60, 250  # of one figure, because its size is limited


# --- Curves ---------------------------------------------------------------------------------------


def curves(scores: AllScores, limits: Mapping[str, Range]) -> list[dict[str, Any]]:
    """Returns a row for each task, measure and axis: `x` `[n]`, and for each method `estimate`, `low`, `high` `[n]` and `each`.

    A curve is the mean over the runs of its method with a pointwise interval. It is NaN outside the range that all of these
    runs cover; nothing is extrapolated. All methods are evaluated at the same x (`shared_points`), for comparison. `each`
    `[runs][n]` are the single runs, NaN outside their own range. Numbers have seven digits, those of single runs four.
    Intervals of returns end at `limits`.
    """
    rows = []
    for (task, methods), measure, axis in itertools.product(scores.items(), MEASURES, AXES):
        every = {m: [run for r in of.whole if (run := points(r, axis, measure)) is not None] for m, of in methods.items()}
        runs = {m: of for m, of in every.items() if of}
        x = shared_points(list(runs.values()))
        found = []
        for method, of in runs.items():
            values = interpolate(of, x)
            drawn = learning_curve(x, values)
            if np.isfinite(drawn.estimate).any():
                ends = limits.get(task) if measure == "return_mean" else None
                low, high = cut(measure, drawn.estimate, drawn.low, drawn.high, ends)
                numbers = {"estimate": _short(drawn.estimate), "low": _short(low), "high": _short(high)}
                each = [_short(run, digits=4) for run in values]
                found.append({"method": method, "runs": len(of), **numbers, "each": each})
        rows.append({"task": task, "measure": measure, "axis": axis, "x": _short(x), "methods": found})
    return rows


def points(record: Record, axis: str, measure: str) -> Run | None:
    """Returns a run's evaluations against an axis, or None if there are none.

    Evaluations at equal x, such as those before the first update, are averaged.
    """
    x, values = record.evaluations[axis], record.evaluations[measure]
    known = np.isfinite(x) & np.isfinite(values)
    if not known.any():
        return None
    unique, which = np.unique(x[known], return_inverse=True)
    return unique, np.bincount(which, values[known]) / np.bincount(which)


def shared_points(methods: Sequence[Sequence[Run]]) -> np.ndarray:
    """Returns the x `[n]` at which methods are evaluated: where any run was evaluated, within the range of some method's runs.

    If there are many (on most axes every run has its own x), returns evenly spaced points and the ends of every method's
    range instead: as many points as the longest run has evaluations, at most `MOST_POINTS`.
    """
    ranges = [(max(x[0] for x, _ in runs), min(x[-1] for x, _ in runs)) for runs in methods if runs]
    ranges = [(low, high) for low, high in ranges if low <= high]
    if not ranges:
        return np.zeros(0)
    union = np.unique(np.concatenate([x for runs in methods for x, _ in runs]))
    union = union[np.any([(union >= low) & (union <= high) for low, high in ranges], axis=0)]
    longest = max(x.size for runs in methods for x, _ in runs)
    if union.size <= min(2 * longest, MOST_POINTS):
        return union
    lows, highs = zip(*ranges)
    even = np.linspace(min(lows), max(highs), min(longest, MOST_POINTS))
    if (union == np.rint(union)).all():
        even = np.rint(even)  # counts stay whole
    return np.union1d(even, [*lows, *highs])


def _short(values: np.ndarray, digits: int = 7) -> list[float | int]:
    """Rounds to some digits, of which seven are finer than any drawing. Whole numbers become integers."""
    rounded = [float(f"{v:.{digits}g}") for v in values.tolist()]
    return [int(v) if v.is_integer() else v for v in rounded]


def iqm_curves(
    scores: AllScores, scales: Mapping[str, Anchor], steps: Mapping[str, int], methods: Iterable[str]
) -> dict[str, Any] | None:
    """Returns the IQM of all runs' normalised returns, `(y - y0) / (y1 - y0)`, at equal shares of each task's compared step.

    At each point it is the statistic of the tables, with its interval at that point by itself (`IQM_RESAMPLES` resamples), from
    where all runs are known. Nothing is extrapolated. If all tasks are compared at one step, x is that of the environment.

    Args:
        steps: at which each task is compared.
        methods: those with runs on all tasks that have anchors; none if there are not two such tasks.

    Returns:
        `x` `[n]`, `x_label`, and for each method `estimate`, `low` and `high` `[n]`. None without a method, or at step 0.
    """
    tasks = [task for task in scores if task in scales]
    if not methods or not all(steps[task] for task in tasks):  # a share of no steps
        return None
    runs: dict[str, list[list[Run]]] = {method: [] for method in methods}
    for method, task in itertools.product(runs, tasks):  # shares of the compared step, and normalised returns
        known = filter(None, (points(r, "due", "return_mean") for r in scores[task][method].whole))
        runs[method].append([(x / steps[task], scales[task].scores(y)) for x, y in known])
    grid = np.unique(np.concatenate([[1.0], *(x for of in runs.values() for task in of for x, _ in task)]))
    grid = grid[grid <= 1]
    if grid.size > MOST_IQM_POINTS:
        grid = np.linspace(grid[0], 1, MOST_IQM_POINTS)
    rows = []
    for method, by_task in runs.items():
        if all(by_task):
            values, found = [interpolate(of, grid) for of in by_task], np.full((3, grid.size), np.nan)
            for i in np.flatnonzero(np.all([np.isfinite(of).all(0) for of in values], axis=0)):
                found[:, i] = estimate_interval([of[:, i] for of in values], "iqm", IQM_RESAMPLES)[:3]
            rows.append({"method": method, **dict(zip(("estimate", "low", "high"), found.tolist()))})
    common = {steps[task] for task in tasks}
    x, label = (grid * common.pop(), "environment steps") if len(common) == 1 else (grid, "share of the compared step")
    return {"x": x, "x_label": label, "methods": rows} if grid.size and rows else None


# --- Figures --------------------------------------------------------------------------------------


@literal_text()
def draw(content: dict[str, Any]) -> dict[str, bytes]:
    """Returns figures by name: those of `NAMES` for which the comparison's content has data, and not too much of it."""
    numbers = {method: number for number, method in enumerate(content["methods"])}
    found = {"report_return.png": _curves(content, "return_mean", numbers)}
    if content["fronts"]:
        found["report_front.png"] = _fronts(content, numbers)
    found["report_repeated.png"] = _curves(content, "fraction_repeated", numbers)
    block = content["over_tasks"]
    if block["curves"]:
        found["report_iqm.png"] = _iqm(block["curves"], numbers, content["options"]["confidence"])
    if block["profiles"]:
        found["report_profile.png"] = _profile(block["profiles"], numbers, content["options"]["confidence"])
    known = [pair for pair in block["improvement"] or content["pairs"] if pair["improvement"]]
    if 0 < len(known) <= MOST_PAIRS:
        found["report_improvement.png"] = _improvement(known, content["options"]["confidence"])
    return found


def _curves(content: dict[str, Any], measure: str, numbers: Mapping[str, int]) -> bytes:
    """Returns the curves of every task, or of the first `MOST_TASKS`: means, their bands and, faint, the single runs."""
    tasks = [curve for curve in content["curves"] if curve["measure"] == measure and curve["axis"] == "env_steps"]
    of = tasks[:MOST_TASKS]
    steps = {task["task"]: task["step"] for task in content["tasks"]}
    wide = 2 if len(of) == 4 else min(3, len(of))
    tall = -(-len(of) // wide)
    figure, axes = panels(tall, wide, (5.2 * wide, 3.8 * tall))
    for axis in axes.flat[len(of) :]:
        axis.remove()
    for axis, curve in zip(axes.flat, of):
        x = curve["x"]
        draw_methods(axis, [
            (numbers[m["method"]], (x, m["estimate"], m["low"], m["high"]), [(x, run) for run in m["each"]])
            for m in curve["methods"]
        ])  # fmt: skip
        axis.axvline(steps[curve["task"]], color="0.6", linewidth=0.8, linestyle=":")
        axis.set(title=shortened(curve["task"], 60), xlabel=content["axes"]["env_steps"])
        axis.set_ylabel(content["measures"][measure])
    several = any(m["runs"] > 1 for curve in of for m in curve["methods"])
    means = f"mean over seeds, band: {content['options']['confidence']:.0%} interval, may leave the panel; single runs are faint"
    left = f", {len(of)} of {len(tasks)} tasks" if len(of) < len(tasks) else ""
    what = means if several else "single runs"
    caption(figure, f"{content['measures'][measure]}: {what}{left}", fontsize="small")
    runs = {m: [of["runs"] for curve in of for of in curve["methods"] if of["method"] == m] for m in numbers}
    add_legend(figure, {numbers[m]: f"{m} ({span(n)})" for m, n in runs.items() if n}, "method (seeds)")
    return _png(figure)


def _fronts(content: dict[str, Any], numbers: Mapping[str, int]) -> bytes:
    """Draws return against each cost, a row of panels for each of the first `MOST_TASKS` tasks.

    A staircase ends what the front reaches, and its methods are named beside it. Jerk is shown on the scale of its square root.
    """
    fronts = {(front["task"], front["cost"]): front for front in content["fronts"]}
    tasks = [task for task in content["tasks"] if any((task["task"], cost) in fronts for cost in content["costs"])][:MOST_TASKS]
    panes = list(itertools.product(tasks, content["costs"]))
    figure, axes = panels(len(tasks), len(content["costs"]), (5.2 * len(content["costs"]), 3.8 * len(tasks)))
    for axis, (task, cost) in zip(axes.flat, panes):
        if (front := fronts.get((task["task"], cost))) is None:
            axis.remove()
            continue
        for m in front["methods"]:
            x, y = m["x"], m["y"]
            drawn = line(numbers[m["method"]], 1) | {"linestyle": "", "markevery": None}
            ends = [
                None if of["low"] is None else [[of["estimate"] - of["low"]], [of["high"] - of["estimate"]]] for of in (y, x)
            ]
            _, caps, bars = axis.errorbar(x["estimate"], y["estimate"], *ends, capsize=2, elinewidth=0.8, zorder=3, **drawn)
            for artist in (*caps, *bars):
                artist.set(alpha=0.4, zorder=2)
        limit(axis, [m["y"]["estimate"] for m in front["methods"]], axis.get_ylim())
        limit(axis, [m["x"]["estimate"] for m in front["methods"]], axis.get_xlim(), along="x")
        on_front = sorted((m["x"]["estimate"], m["y"]["estimate"], m["method"]) for m in front["methods"] if m["on_front"])
        for i, (at, reached, name) in enumerate(on_front):
            offset = (5, 4) if i % 2 == 0 else (5, -10)
            axis.annotate(shortened(name, 24), (at, reached), offset, textcoords="offset points", fontsize="x-small", zorder=4)
        (_, right), (bottom, _) = axis.get_xlim(), axis.get_ylim()
        if cost == "jerk":  # a mean of squares, of which many are near 0
            axis.set_xscale("function", functions=(lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda x: np.sign(x) * x**2))
            axis.set_xlim(-0.001 * right, right)
        axis.autoscale(False)
        stairs = [(on_front[0][0], bottom), *(found[:2] for found in on_front), (right, on_front[-1][1])]
        axis.step(*zip(*stairs), where="post", color="0.2", linewidth=1.2, zorder=1)
        volume = front["hypervolume"]
        interval = "" if volume["low"] is None else f" [{volume['low']:.2f}, {volume['high']:.2f}]"
        told = f"hypervolume {volume['estimate']:.2f}{interval}"
        axis.set(title=f"{shortened(task['task'], 30)}\n{told}", xlabel=content["costs"][cost], ylabel="final return")
        axis.grid(alpha=0.3)
    level = f"{content['options']['confidence']:.0%}"
    caption(figure, f"means over seeds with {level} intervals; the line joins what no method beats in both", fontsize="small")
    compared = {row["method"] for front in fronts.values() for row in front["methods"]}
    add_legend(figure, {number: method for method, number in numbers.items() if method in compared}, "method")
    return _png(figure)


def _iqm(drawn: dict[str, Any], numbers: Mapping[str, int], confidence: float) -> bytes:
    figure, ((axis,),) = panels(1, 1, (6, 4.2))
    curves = [(numbers[m["method"]], (drawn["x"], m["estimate"], m["low"], m["high"]), ()) for m in drawn["methods"]]
    draw_methods(axis, curves)
    axis.set(xlabel=drawn["x_label"], ylabel="IQM of normalised returns")
    caption(figure, f"IQM over tasks, band: {confidence:.0%} interval", fontsize="small")
    return _finished(figure, axis, drawn["methods"], numbers)


def _profile(profiles: dict[str, Any], numbers: Mapping[str, int], confidence: float) -> bytes:
    figure, ((axis,),) = panels(1, 1, (6, 4.2))
    tau = profiles["tau"]
    for of in profiles["methods"]:
        drawn = line(numbers[of["method"]], len(tau))
        band = faint(len(profiles["methods"]))[0] / 2  # intervals of profiles are wide, and overlap more than those of curves
        axis.fill_between(tau, of["low"], of["high"], color=drawn["color"], alpha=band, linewidth=0, step="post")
        axis.step(tau, of["fraction"], where="post", **drawn)
    axis.set(xlabel="normalised score t", ylabel="fraction of runs with a score above t", ylim=(-0.02, 1.02))
    caption(figure, f"performance profiles, band: {confidence:.0%} interval at each t", fontsize="small")
    return _finished(figure, axis, profiles["methods"], numbers)


def _finished(figure: Any, axis: Any, methods: Sequence[Mapping[str, Any]], numbers: Mapping[str, int]) -> bytes:
    axis.grid(alpha=0.3)
    add_legend(figure, {numbers[of["method"]]: of["method"] for of in methods}, "method")
    return _png(figure)


def _improvement(pairs: Sequence[dict[str, Any]], confidence: float) -> bytes:
    color = style(0).color
    high = 0.35 if len(pairs) <= 30 else 0.22
    figure, ((axis,),) = panels(1, 1, (6.5, 1.2 + high * len(pairs)))
    for row, pair in enumerate(pairs):
        of = pair["improvement"]
        axis.plot([of["low"], of["high"]], [row, row], color=color, linewidth=6, alpha=0.3, solid_capstyle="butt")
        axis.plot(of["estimate"], row, color=color, marker="o")
    names = [f"{p['x']} > {p['y']}" + (f", {p['task']}" if "task" in p else "") for p in pairs]
    axis.set_yticks(range(len(pairs)), names)
    axis.invert_yaxis()
    axis.axvline(0.5, color="0.6", linewidth=0.8, linestyle=":")
    axis.set(xlabel="probability of improvement", xlim=(-0.02, 1.02))
    axis.grid(alpha=0.3, axis="x")
    by_ranks = any(pair.get("compares") == "ranks" for pair in pairs)
    wider = "; of all pairs at once where runs diverged" if by_ranks else ""
    caption(figure, f"band: {confidence:.0%} interval of each pair by itself{wider}", fontsize="small")
    return _png(figure)


def _png(figure: Any) -> bytes:
    return image(figure, dpi=110, metadata={"Software": None})  # the same bytes for the same input
