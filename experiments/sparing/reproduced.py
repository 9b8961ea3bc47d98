"""Prints TLA's published table beside the runs of this one, and whether each row is reproduced, by the rule of README.md.

    python -m experiments.sparing.reproduced ROOT_DIR
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import NamedTuple

from taac.analysis.readers import run_records

SEEDS = 10  # of the published rows
METHODS = ("td3", "temporl_ddpg", "tla")


class Row(NamedTuple):
    """A published row: return, its standard deviation over seeds (None: not published), and decisions an episode."""

    mean: float
    deviation: float | None
    decisions: float
    longer: bool = True  # whether the published run had more steps


# README of dee0512/Temporally-Layered-Architecture (arXiv:2305.18701). Of Pendulum's deviations, 30 to 45, the middle.
PUBLISHED = {
    ("Pendulum-v1", "td3"): Row(-147, 37.5, 200, False),
    ("Pendulum-v1", "temporl_ddpg"): Row(-149, 37.5, 139, False),
    ("Pendulum-v1", "tla"): Row(-155, 37.5, 62, False),
    ("MountainCarContinuous-v0", "td3"): Row(0, None, 999),
    ("MountainCarContinuous-v0", "temporl_ddpg"): Row(84.6, 28.3, 116),
    ("MountainCarContinuous-v0", "tla"): Row(93.9, 0.75, 10.6),
    ("InvertedPendulum-v5", "td3"): Row(1000, None, 1000),
    ("InvertedPendulum-v5", "temporl_ddpg"): Row(984, None, 533),
    ("InvertedPendulum-v5", "tla"): Row(1000, None, 112),
    ("InvertedDoublePendulum-v5", "td3"): Row(9360, None, 1000),
    ("InvertedDoublePendulum-v5", "temporl_ddpg"): Row(9353, None, 851),
    ("InvertedDoublePendulum-v5", "tla"): Row(9357, 1.2, 248),
}


def verdict(row: Row, returns: list[float], decisions: list[float]) -> str:
    """Says whether runs reproduce a row.

    Args:
        returns, decisions: of each seed, means over its last evaluations.
    """
    mean, decided = (sum(values) / len(values) for values in (returns, decisions))
    deviation = 0.05 * abs(row.mean) if row.deviation is None else row.deviation
    near = abs(mean - row.mean) <= 2 * deviation * math.sqrt(1 / len(returns) + 1 / SEEDS)
    often = abs(decided - row.decisions) <= row.decisions / 4
    if near and often:
        return "reproduced"
    missed = " and ".join(word for word, fits in (("return", near), ("decisions", often)) if not fits)
    return f"{missed}: not {'at this budget' if row.longer else 'reproduced'}"


def table(root: Path) -> list[str]:
    """Returns the lines of the Markdown table."""
    lines = ["| task | method | seeds | return | published | decisions | published | |", "|" + "---|" * 8]
    records = [r for r in run_records.find(root) if not r.problems and r.status == "finished"]
    for (task, method), row in PUBLISHED.items():
        runs = [r for r in records if (r.task, r.method) == (task, method)]
        if not runs:
            lines.append(f"| {task} | {method} | 0 | | {row.mean:g} | | {row.decisions:g} | not run |")
            continue
        returns, decisions = ([r.at_end(name) for r in runs] for name in ("return_mean", "decisions"))
        shown = [f"{sum(values) / len(values):.4g}" for values in (returns, decisions)]
        lines.append(
            f"| {task} | {method} | {len(runs)} | {shown[0]} | {row.mean:g} | {shown[1]} | {row.decisions:g} | "
            f"{verdict(row, returns, decisions)} |"
        )
    return lines


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("root_dir", type=Path)
    print("\n".join(table(flags.parse_args().root_dir)))


if __name__ == "__main__":
    main()
