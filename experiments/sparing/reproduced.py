"""Prints TLA's published table beside the runs of this one, and whether each row is reproduced, by the rule of README.md.

    python -m experiments.sparing.reproduced ROOT_DIR
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from taac.analysis.readers import run_records

SEEDS = 10  # of the published rows
FEWEST = 3  # of ours, for a verdict


class Row(NamedTuple):
    """A published row: return, its standard deviation over seeds, and decisions an episode; what the rule does not ask for."""

    mean: float
    deviation: float
    decisions: float
    longer: bool = True  # whether the published run had more steps
    same: float = math.nan  # percent of the steps whose action is that of the step before
    jerk: float = math.nan  # mean change of the action from step to step, in the environment's units
    macs: float = math.nan  # million multiply-adds an episode


# README of dee0512/Temporally-Layered-Architecture (arXiv:2305.18701)
PUBLISHED = {
    ("Pendulum-v1", "td3"): Row(-147.38, 29.68, 200, False, 7, 1.02, 24),
    ("Pendulum-v1", "temporl_td3"): Row(-149.38, 44.64, 139.39, False, 35, 0.94, 34),
    ("Pendulum-v1", "tla"): Row(-154.92, 31.97, 62.31, False, 70, 0.62, 12),
    ("MountainCarContinuous-v0", "td3"): Row(0, 0, 999, True, 9, 0.10, 121),
    ("MountainCarContinuous-v0", "temporl_td3"): Row(84.56, 28.27, 116.47, True, 76, 1.12, 29),
    ("MountainCarContinuous-v0", "tla"): Row(93.88, 0.75, 10.6, True, 91, 1.11, 2.5),
    ("InvertedPendulum-v5", "td3"): Row(1000, 0, 1000, True, 1, 1.11, 122),
    ("InvertedPendulum-v5", "temporl_td3"): Row(984.21, 47.37, 532.57, True, 46, 1.62, 131),
    ("InvertedPendulum-v5", "tla"): Row(1000, 0, 111.79, True, 89, 0.12, 26),
    ("InvertedDoublePendulum-v5", "td3"): Row(9359.82, 0.07, 1000, True, 1, 0.10, 125),
    ("InvertedDoublePendulum-v5", "temporl_td3"): Row(9352.61, 2.20, 850.95, True, 15, 0.61, 214),
    ("InvertedDoublePendulum-v5", "tla"): Row(9356.67, 1.23, 247.76, True, 75, 0.14, 57),
}
LARGEST = {"Pendulum-v1": 2.0, "InvertedPendulum-v5": 3.0}  # action, in the environment's units; elsewhere 1


def verdict(row: Row, returns: list[float], decisions: list[float]) -> str:
    """Says whether runs reproduce a row.

    Args:
        returns, decisions: of each seed, means over its last evaluations.
    """
    if len(returns) < FEWEST:
        return f"fewer than {FEWEST} seeds"
    mean, decided = (sum(values) / len(values) for values in (returns, decisions))
    deviation = max(row.deviation, 0.01 * abs(row.mean), 0.1)
    near = abs(mean - row.mean) <= 2 * deviation * math.sqrt(1 / len(returns) + 1 / SEEDS)
    often = abs(decided - row.decisions) <= row.decisions / 4
    if near and often:
        return "reproduced"
    missed = " and ".join(word for word, fits in (("return", near), ("decisions", often)) if not fits)
    return f"{missed}: not {'at this budget' if row.longer else 'reproduced'}"


def table(root: Path) -> list[str]:
    """Returns the lines of the Markdown table."""
    lines = ["| task | method | seeds | return | published | decisions | published | |", "|" + "---|" * 8]
    records = finished(root)
    for (task, method), row in PUBLISHED.items():
        runs = [r for r in records if (r.task, r.method) == (task, method)]
        if not runs:
            lines.append(f"| {task} | {method} | 0 | | {row.mean:g} | | {row.decisions:g} | not run |")
            continue
        whole = [r for r in runs if not r.problems]
        returns, decisions = ([r.at_end(name) for r in whole] for name in ("return_mean", "decisions"))
        shown = [f"{sum(values) / len(values):.4g}" if whole else "-" for values in (returns, decisions)]
        diverged = len(runs) - len(whole)
        told = verdict(row, returns, decisions) if not diverged else f"not reproduced: {diverged} of {len(runs)} diverged"
        lines.append(f"| {task} | {method} | {len(runs)} | {shown[0]} | {row.mean:g} | {shown[1]} | {row.decisions:g} | {told} |")
    return lines


def costs(root: Path) -> list[str]:
    """Returns the lines of a Markdown table of what the rule does not ask for, of the rows that have runs."""
    change = "change in the environment's units (TLA's jerk)"
    lines = [f"| task | method | same action % | published | {change} | published | MMACs | published |", "|" + "---|" * 8]
    records = [r for r in finished(root) if not r.problems]
    for (task, method), row in PUBLISHED.items():
        runs = [r for r in records if (r.task, r.method) == (task, method)]
        if not runs:
            continue
        same, jerk, macs = (
            sum(r.at_end(name) for r in runs) / len(runs) for name in ("fraction_same", "action_change", "multiply_adds")
        )
        found = (100 * same, row.same), (jerk * LARGEST.get(task, 1.0), row.jerk), (macs / 1e6, row.macs)
        lines.append(f"| {task} | {method} | {' | '.join(f'{ours:.3g} | {theirs:g}' for ours, theirs in found)} |")
    return lines


def finished(root: Path) -> list[run_records.Record]:
    """Returns the records of the runs below a folder that have ended, those that diverged among them."""
    return [r for r in run_records.find(root) if r.diverged is not None or (r.status == "finished" and not r.problems)]


def command(about: str, print_of: Callable[[Path], list[str]]) -> None:
    """Prints a table of the runs below a folder that is given on the command line."""
    flags = argparse.ArgumentParser(description=about.splitlines()[0])
    flags.add_argument("root_dir", type=Path)
    print("\n".join(print_of(flags.parse_args().root_dir)))


if __name__ == "__main__":
    command(__doc__, lambda root: [*table(root), "", *costs(root)])
