"""Prints how far each method's final return is from SAC's, on equal seeds, which are evaluated in the same episodes.

    python -m experiments.sparing.pairs ROOT_DIR

The interval is Student's of the differences, each alone, at 95%; it is no verdict. Where the start state decides the return, as
on Pendulum, it is a tenth as wide as that of two methods on their own.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.sparing.reproduced import command, finished
from taac.analysis.statistics.intervals import estimate_interval

BASE = "sac"


def table(root: Path) -> list[str]:
    """Returns the lines of the Markdown table."""
    records = finished(root)
    found = {(r.task, r.method, r.seed): (r.at_end("return_mean"), r.at_end("decisions")) for r in records if not r.problems}
    lines = [f"| task | method | seeds of both | return less {BASE}'s, same seeds | decisions |", "|" + "---|" * 5]
    for task, method in dict.fromkeys((task, method) for task, method, _ in found):
        seeds = [s for t, m, s in found if (t, m) == (task, method) and (task, BASE, s) in found]
        if method == BASE or len(seeds) < 3:
            continue
        pairs = np.array([[found[task, method, s][0] - found[task, BASE, s][0], found[task, method, s][1]] for s in seeds])
        of = estimate_interval([pairs[:, 0]], "mean")
        told = f"{of.estimate:+.3g}" + (f" [{of.low:.3g}, {of.high:.3g}]" if np.isfinite(of.low) else "")
        diverged = sum((r.task, r.method) == (task, method) for r in records if r.problems)
        count = f"{len(seeds)}; {diverged} more diverged" if diverged else len(seeds)
        lines.append(f"| {task} | {method} | {count} | {told} | {pairs[:, 1].mean():.3g} |")
    return lines


if __name__ == "__main__":
    command(__doc__, table)
