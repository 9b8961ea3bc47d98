"""Plays the finished agents of the table with other thresholds of the switch, and with actions that come late.

    python -m experiments.sparing.conditions ROOT_DIR FILE.csv

Adds a row to the file for each run and condition that it lacks, 10 episodes each. `tables` shows them beside
the claims of README.md.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from taac.analysis.readers import run_records
from taac.analysis.statistics.intervals import estimate_interval
from taac.runs.run_folder import RunFolder

THRESHOLDS, DELAYS, EPISODES = (0.5, 0.6, 0.7, 0.8, 0.9), (0, 1, 2), 10
COLUMNS = ("task", "method", "seed", "threshold", "delay", "return_mean", "decisions")
Rows = list[dict[str, Any]]


def wanted(root: Path) -> Iterator[dict[str, Any]]:
    """Yields each finished run below a folder with each condition; its `folder` too."""
    for r in run_records.find(root):
        if r.status == "finished" and not r.problems and RunFolder(root / r.folder).has_checkpoints():
            run = {"folder": root / r.folder, "task": r.task, "method": r.method, "seed": r.seed}
            yield from ({**run, "threshold": "", "delay": delay} for delay in DELAYS)
            if r.method.startswith("taac"):
                yield from ({**run, "threshold": threshold, "delay": 0} for threshold in THRESHOLDS)


def read(file: Path) -> Rows:
    """Returns the rows of a file, with numbers; none if there is no file."""
    if not file.exists():
        return []
    with file.open() as lines:
        return [
            {name: value if name in ("task", "method") or not value else float(value) for name, value in row.items()}
            for row in csv.DictReader(lines)
        ]


def play(root: Path, file: Path) -> None:
    """Adds the rows that a file lacks."""
    import taac

    done = {tuple(row[name] for name in COLUMNS[:5]) for row in read(file)}
    new = not file.exists()
    with file.open("a", newline="") as lines:
        writer = csv.DictWriter(lines, COLUMNS, extrasaction="ignore", lineterminator="\n")
        if new:
            writer.writeheader()
        for one in wanted(root):
            if tuple(one[name] for name in COLUMNS[:5]) in done:
                continue
            threshold = None if one["threshold"] == "" else one["threshold"]
            (point,) = taac.evaluate(
                one["folder"], num_episodes=EPISODES, switch_threshold=threshold, delay=one["delay"], trust=True
            ).points
            found = {"return_mean": f"{point.summary.return_mean:.6g}", "decisions": f"{point.summary.decisions:.6g}"}
            writer.writerow({**one, **found})
            lines.flush()


def tables(rows: Rows) -> list[str]:
    """Returns the lines of two Markdown tables: thresholds of finished TAAC agents, and methods with late actions."""
    lines = ["TAAC's finished agents (checkpoints at hand) with other thresholds of the switch, return (decisions):", ""]
    lines += _table([f"{t:g}" for t in THRESHOLDS], rows, lambda r: r["threshold"] != "", "threshold", THRESHOLDS, _half)
    lines += ["All methods, trained without a delay, with actions that come late by 0, 1 or 2 steps:", ""]
    late = [f"{d} late" for d in DELAYS]
    return lines + _table(late, rows, lambda r: r["threshold"] == "", "delay", DELAYS, None)


def _table(
    names: list[str], rows: Rows, belongs: Callable[[dict[str, Any]], bool], by: str, values: tuple[float, ...],
    judge: Callable[[list[Rows]], str] | None,
) -> list[str]:  # fmt: skip
    head = ["task", "method", "seeds", *names, *(["half the decisions at 0.7, return in the interval"] if judge else [])]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    rows = [row for row in rows if belongs(row)]
    for task, method in dict.fromkeys((row["task"], row["method"]) for row in rows):
        of = _on_equal_seeds([[r for r in rows if (r["task"], r["method"], r[by]) == (task, method, value)] for value in values])
        if not of[0]:
            continue
        cells = [f"{_mean(found, 'return_mean'):.4g} ({_mean(found, 'decisions'):.3g})" for found in of]
        verdict = [judge(of)] if judge else []
        lines.append("| " + " | ".join([task, method, str(len(of[0])), *cells, *verdict]) + " |")
    return [*lines, ""]


def _on_equal_seeds(of: list[Rows]) -> list[Rows]:
    """Returns the rows of the seeds that were played under every condition."""
    played = set.intersection(*({row["seed"] for row in rows} for rows in of))
    return [[row for row in rows if row["seed"] in played] for rows in of]


def _mean(rows: Rows, name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def _half(of: list[Rows]) -> str:
    """Says whether claim 4 of README.md holds: at 0.7 half the decisions of 0.5, and a return within the interval there."""
    first, other = (of[THRESHOLDS.index(threshold)] for threshold in (0.5, 0.7))
    if len(first) < 3:
        return "fewer than 3 seeds"
    at_half = estimate_interval([np.array([row["return_mean"] for row in first])], "mean")
    fewer = _mean(other, "decisions") <= _mean(first, "decisions") / 2
    mean = _mean(other, "return_mean")
    near = at_half.low <= mean <= at_half.high or mean == at_half.estimate  # without an interval, where all seeds are equal
    return f"{'yes' if fewer else 'no'}, {'yes' if near else 'no'}"


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("root_dir", type=Path)
    flags.add_argument("file", type=Path)
    given = flags.parse_args()
    play(given.root_dir, given.file)
    print("\n".join(tables(read(given.file))))


if __name__ == "__main__":
    main()
