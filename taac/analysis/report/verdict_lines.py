"""The verdicts of a report, a line each."""

from __future__ import annotations

from typing import Any


def verdict_line(pair: dict[str, Any]) -> str:
    """Returns a verdict in one line, with what it rests on."""
    by_ranks = pair["compares"] == "ranks"
    found = pair["improvement"] if by_ranks else pair["difference"]
    what = f"P({pair['x']} > {pair['y']})" if by_ranks else f"{pair['x']} - {pair['y']}"
    estimate = "unknown" if found["estimate"] is None else f"{found['estimate']:.4g}"
    interval = "no interval" if found["low"] is None else f"[{found['low']:.4g}, {found['high']:.4g}]"
    verdict = f"{pair['x']} is {pair['verdict']}"
    if pair["verdict"] == "inconclusive":
        size = pair["detectable"]
        verdict = "inconclusive" + ("" if size is None else f"; so many runs would find {size:.3g} or more with a power of 0.8")
    gone = f" ({sum(pair['diverged'])} diverged)" if any(pair["diverged"]) else ""
    return f"{pair['task']}: {what} = {estimate} {interval}{gone}: {verdict}"
