"""A report's pictures, as the bytes of PNG files."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from taac.analysis.learning_curves import Curve, common_steps, interpolate, learning_curve
from taac.analysis.report import Comparison
from taac.analysis.run_records import Record

NAMES = ("report_return.png", "report_repeated.png", "report_profile.png", "report_improvement.png")


def draw(comparison: Comparison) -> dict[str, bytes]:
    """Pictures by name, of `NAMES` those for which there is something to draw.

    Curves are means over the runs of the tables with an interval at each step, on the steps that all runs of the method
    cover; one run alone is drawn without. Nothing is smoothed or extrapolated.
    """
    import matplotlib

    matplotlib.use("Agg")
    content = comparison.content
    methods = content["methods"]
    colors = {m: f"C{i % 10}" for i, m in enumerate(methods)}
    found = {
        "report_return.png": _curves(comparison, "return_mean", "return", colors),
        "report_repeated.png": _curves(comparison, "fraction_repeated", "fraction of steps repeated", colors),
    }
    block = content["over_tasks"]
    if block["profiles"]:
        found["report_profile.png"] = _profile(block["profiles"], colors)
    improvements = block["improvement"] or content["pairs"]
    known = [pair for pair in improvements if pair["improvement"]]
    if known:
        found["report_improvement.png"] = _improvement(known)
    return found


def curve(records: Sequence[Record], column: str) -> Curve | None:
    """The mean over runs of one method on one task; None where no run, or no step common to all, is known."""
    runs = []
    for r in records:
        known = np.isfinite(r.evaluations[column])
        if known.any():
            runs.append((r.steps[known], r.evaluations[column][known]))
    if not runs:
        return None
    steps = common_steps(runs)
    if not steps.size:
        return None
    values = interpolate(runs, steps)
    if len(runs) > 1:
        return learning_curve(steps, values)
    nothing = np.full(steps.size, math.nan)
    return Curve(steps, values[0], nothing, nothing)


def _curves(comparison: Comparison, column: str, label: str, colors: dict[str, str]) -> bytes:
    from matplotlib import pyplot

    tasks = comparison.scores
    wide = min(3, len(tasks))
    high = -(-len(tasks) // wide)
    figure, axes = pyplot.subplots(high, wide, figsize=(5.2 * wide, 3.8 * high), squeeze=False, layout="constrained")
    for axis in axes.flat[len(tasks) :]:
        axis.remove()
    for axis, (task, methods) in zip(axes.flat, tasks.items()):
        for method, scores in methods.items():
            drawn = curve(scores.records, column)
            if drawn is None:
                continue
            name = f"{method} ({len(scores.records)})"
            axis.fill_between(drawn.steps, drawn.low, drawn.high, color=colors[method], alpha=0.2, linewidth=0)
            axis.plot(drawn.steps, drawn.estimate, color=colors[method], marker="o", markersize=2.5, label=name)
        axis.axvline(comparison.steps[task], color="0.6", linewidth=0.8, linestyle=":")
        axis.set(title=task, xlabel="environment steps", ylabel=label)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(loc="best", fontsize="small", title="method (seeds)")
        axis.grid(alpha=0.3)
    return _png(figure)


def _profile(profiles: dict[str, Any], colors: dict[str, str]) -> bytes:
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4.2), layout="constrained")
    for of in profiles["methods"]:
        color = colors[of["method"]]
        axis.fill_between(profiles["tau"], of["low"], of["high"], color=color, alpha=0.15, linewidth=0, step="post")
        axis.step(profiles["tau"], of["fraction"], color=color, where="post", label=of["method"])
    axis.set(xlabel="normalised score t", ylabel="fraction of runs with a score above t", ylim=(-0.02, 1.02))
    axis.legend(loc="best", fontsize="small")
    axis.grid(alpha=0.3)
    return _png(figure)


def _improvement(pairs: Sequence[dict[str, Any]]) -> bytes:
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6.5, 1.2 + 0.35 * len(pairs)), layout="constrained")
    for row, pair in enumerate(pairs):
        of = pair["improvement"]
        axis.plot([of["low"], of["high"]], [row, row], color="C0", linewidth=6, alpha=0.3, solid_capstyle="butt")
        axis.plot(of["estimate"], row, color="C0", marker="o")
    names = [f"{p['x']} > {p['y']}" + (f", {p['task']}" if "task" in p else "") for p in pairs]
    axis.set_yticks(range(len(pairs)), names)
    axis.invert_yaxis()
    axis.axvline(0.5, color="0.6", linewidth=0.8, linestyle=":")
    axis.set(xlabel="probability of improvement", xlim=(-0.02, 1.02))
    axis.grid(alpha=0.3, axis="x")
    return _png(figure)


def _png(figure: Any) -> bytes:
    from matplotlib import pyplot

    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})  # the same bytes for the same input
    pyplot.close(figure)
    return file.getvalue()
