"""Seconds to read TensorBoard's event files, beside tensorboard's own reader.

    python -m experiments.benchmarks.event_files [--runs 100] [--points 1000] [--tags 25]

The files are written first, as training writes them. tensorboard reads a few of the runs only; both are shown for all runs,
by proportion.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.benchmarks import common
from taac.analysis.readers import events

THEIRS = 5  # runs that tensorboard reads


def parser() -> argparse.ArgumentParser:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--runs", type=int, default=100)
    flags.add_argument("--points", type=int, default=1000, help="of each series")
    flags.add_argument("--tags", type=int, default=25, help="series a run")
    return flags


def write(folder: Path, points: int, tags: int) -> Path:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder), purge_step=0)
    for point in range(points):
        for tag in range(tags):
            writer.add_scalar(f"group/series_{tag}", point / (tag + 1), point * 1000)
    writer.close()
    return folder


def theirs(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    for tag in found.Tags()["scalars"]:
        found.Scalars(tag)


def seconds(read: Callable[[Path], Any], folders: Sequence[Path], runs: int) -> float:
    begin = time.perf_counter()
    for folder in folders:
        read(folder)
    return (time.perf_counter() - begin) * runs / len(folders)


def run(options: argparse.Namespace) -> dict[str, Any]:
    common.say("reading event files")
    with tempfile.TemporaryDirectory() as root:
        folders = [write(Path(root) / str(i), options.points, options.tags) for i in range(options.runs)]
        found: dict[str, list[float]] = {"taac": [], "tensorboard": []}
        for _ in range(options.rounds):
            found["taac"].append(seconds(events.read, folders, options.runs))
            found["tensorboard"].append(seconds(theirs, folders[:THEIRS], options.runs))
    what = f"{options.runs} runs of {options.points} points of {options.tags} series"
    return {
        "title": "Reading event files",
        "figures": [common.figure(f"{name}, {what}", values, "s") for name, values in found.items()],
        "goals": [],
    }


if __name__ == "__main__":
    common.main("event_files", parser(), run)
