"""A report's figures, as the bytes of PNG files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from taac.analysis.styles import add_legend, draw_method, faint, limit, line, shortened, span, style
from taac.pictures.panels import caption, literal_text, panels

NAMES = ("report_return.png", "report_repeated.png", "report_iqm.png", "report_profile.png", "report_improvement.png")
MOST_TASKS, MOST_PAIRS = 60, 250  # of one figure, because its size is limited


@literal_text()
def draw(content: dict[str, Any]) -> dict[str, bytes]:
    """Returns figures by name: those of `NAMES` for which the comparison's content has data, and not too much of it."""
    numbers = {method: number for number, method in enumerate(content["methods"])}
    found = {
        "report_return.png": _curves(content, "return_mean", numbers),
        "report_repeated.png": _curves(content, "fraction_repeated", numbers),
    }
    block = content["over_tasks"]
    if block["curves"]:
        found["report_iqm.png"] = _iqm(block["curves"], numbers, content["options"]["confidence"])
    if block["profiles"]:
        found["report_profile.png"] = _profile(block["profiles"], numbers)
    improvements = block["improvement"] or content["pairs"]
    known = [pair for pair in improvements if pair["improvement"]]
    if 0 < len(known) <= MOST_PAIRS:
        found["report_improvement.png"] = _improvement(known)
    return found


def _curves(content: dict[str, Any], measure: str, numbers: Mapping[str, int]) -> bytes:
    """The curves of every task, or of the first `MOST_TASKS`: means, their bands and, faint, the single runs."""
    tasks = [curve for curve in content["curves"] if curve["measure"] == measure and curve["axis"] == "env_steps"]
    of = tasks[:MOST_TASKS]
    steps = {task["task"]: task["step"] for task in content["tasks"]}
    wide = 2 if len(of) == 4 else min(3, len(of))
    tall = -(-len(of) // wide)
    figure, axes = panels(tall, wide, (5.2 * wide, 3.8 * tall))
    for axis in axes.flat[len(of) :]:
        axis.remove()
    for axis, curve in zip(axes.flat, of):
        x, of_all = curve["x"], curve["methods"]
        for m in of_all:
            each = [(x, run) for run in m.get("each", ())] if m["runs"] > 1 else ()
            draw_method(axis, numbers[m["method"]], len(of_all), (x, m["estimate"], m["low"], m["high"]), each)
        lines = [m["estimate"] for m in of_all] + [run for m in of_all for run in m.get("each", ())]
        limit(axis, lines, [m[end] for m in of_all for end in ("low", "high")])
        axis.axvline(steps[curve["task"]], color="0.6", linewidth=0.8, linestyle=":")
        axis.set(title=shortened(curve["task"], 60), xlabel=content["axes"]["env_steps"])
        axis.set_ylabel(content["measures"][measure])
        axis.grid(alpha=0.3)
    several = any(m["runs"] > 1 for curve in of for m in curve["methods"])
    means = f"mean over seeds, band: {content['options']['confidence']:.0%} interval, may leave the panel; single runs are faint"
    left = f", {len(of)} of {len(tasks)} tasks" if len(of) < len(tasks) else ""
    what = means if several else "single runs"
    caption(figure, f"{content['measures'][measure]}: {what}{left}", fontsize="small")
    runs = {m: [of["runs"] for curve in of for of in curve["methods"] if of["method"] == m] for m in numbers}
    add_legend(figure, {numbers[m]: f"{m} ({span(n)})" for m, n in runs.items() if n}, "method (seeds)")
    return _png(figure)


def _iqm(curves: dict[str, Any], numbers: Mapping[str, int], confidence: float) -> bytes:
    figure, ((axis,),) = panels(1, 1, (6, 4.2))
    for of in curves["methods"]:
        columns = (curves["x"], of["estimate"], of["low"], of["high"])
        draw_method(axis, numbers[of["method"]], len(curves["methods"]), columns)
    axis.set(xlabel=curves["x_label"], ylabel="IQM of normalised returns")
    axis.grid(alpha=0.3)
    caption(figure, f"IQM over tasks, band: {confidence:.0%} interval", fontsize="small")
    add_legend(figure, {numbers[of["method"]]: of["method"] for of in curves["methods"]}, "method")
    return _png(figure)


def _profile(profiles: dict[str, Any], numbers: Mapping[str, int]) -> bytes:
    figure, ((axis,),) = panels(1, 1, (6, 4.2))
    tau = profiles["tau"]
    for of in profiles["methods"]:
        drawn = line(numbers[of["method"]], len(tau))
        band = faint(len(profiles["methods"]))[0] / 2  # intervals of profiles are wide, and overlap more than those of curves
        axis.fill_between(tau, of["low"], of["high"], color=drawn["color"], alpha=band, linewidth=0, step="post")
        axis.step(tau, of["fraction"], where="post", **drawn)
    axis.set(xlabel="normalised score t", ylabel="fraction of runs with a score above t", ylim=(-0.02, 1.02))
    axis.grid(alpha=0.3)
    add_legend(figure, {numbers[of["method"]]: of["method"] for of in profiles["methods"]}, "method")
    return _png(figure)


def _improvement(pairs: Sequence[dict[str, Any]]) -> bytes:
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
    return _png(figure)


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})  # the same bytes for the same input
    return file.getvalue()
