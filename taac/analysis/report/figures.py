"""A report's figures, as the bytes of PNG files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from taac.analysis.untrusted_text import literal_text

NAMES = ("report_return.png", "report_repeated.png", "report_profile.png", "report_improvement.png")


@literal_text()
def draw(content: dict[str, Any]) -> dict[str, bytes]:
    """Returns figures by name: those of `NAMES` for which the comparison's content has data."""
    import matplotlib

    matplotlib.use("Agg")
    methods = content["methods"]
    colors = {m: f"C{i % 10}" for i, m in enumerate(methods)}
    found = {
        "report_return.png": _curves(content, "return_mean", colors),
        "report_repeated.png": _curves(content, "fraction_repeated", colors),
    }
    block = content["over_tasks"]
    if block["profiles"]:
        found["report_profile.png"] = _profile(block["profiles"], colors)
    improvements = block["improvement"] or content["pairs"]
    known = [pair for pair in improvements if pair["improvement"]]
    if known:
        found["report_improvement.png"] = _improvement(known)
    return found


def _curves(content: dict[str, Any], measure: str, colors: dict[str, str]) -> bytes:
    from matplotlib import pyplot

    of = [curve for curve in content["curves"] if curve["measure"] == measure and curve["axis"] == "env_steps"]
    steps = {task["task"]: task["step"] for task in content["tasks"]}
    wide = min(3, len(of))
    tall = -(-len(of) // wide)
    figure, axes = pyplot.subplots(tall, wide, figsize=(5.2 * wide, 3.8 * tall), squeeze=False, layout="constrained")
    for axis in axes.flat[len(of) :]:
        axis.remove()
    for axis, curve in zip(axes.flat, of):
        x = curve["x"]
        for m in curve["methods"]:
            color = colors[m["method"]]
            estimate, low, high = (np.array(m[name], dtype=np.float64) for name in ("estimate", "low", "high"))
            axis.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
            axis.plot(x, estimate, color=color, marker="o", markersize=2.5, label=f"{m['method']} ({m['runs']})")
        axis.axvline(steps[curve["task"]], color="0.6", linewidth=0.8, linestyle=":")
        axis.set(title=curve["task"], xlabel=content["axes"]["env_steps"], ylabel=content["measures"][measure])
        if curve["methods"]:
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
