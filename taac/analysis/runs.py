"""What a run folder holds, read back."""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.errors import TaacError


class Scalar(NamedTuple):
    """One series of a TensorBoard summary."""

    env_steps: np.ndarray  # [n] int64
    wall_time: np.ndarray  # [n] seconds since the epoch
    value: np.ndarray  # [n]


def read_evaluations(folder: Path) -> dict[str, np.ndarray]:
    """The columns of evaluations.csv, `[n]` float64 each.

    Raises:
        TaacError: no such file, or a damaged one.
    """
    path = folder / "evaluations.csv"
    if not path.exists():
        raise TaacError(f"{path} does not exist; is {folder} the folder of a run?")
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        rows, names = list(reader), list(reader.fieldnames or [])
    try:
        return {name: np.array([float(row[name]) for row in rows]) for name in names}
    except (TypeError, ValueError) as error:
        raise TaacError(f"{path} is damaged: {error}") from error


def read_run(folder: Path) -> dict[str, Any]:
    """run.json."""
    try:
        content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise TaacError(f"{folder / 'run.json'} cannot be read: {error}; is {folder} the folder of a run?") from error
    if not isinstance(content, dict):
        raise TaacError(f"{folder / 'run.json'} holds no run: expected a JSON object, got {type(content).__name__}")
    return content


def read_scalars(folder: Path) -> dict[str, Scalar]:
    """All scalar summaries of a folder's event files by tag; what a resumed run did again is there once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # a resumed run is no cause for a warning
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    series = {}
    for tag in events.Tags()["scalars"]:
        points = events.Scalars(tag)
        series[tag] = Scalar(
            np.array([p.step for p in points], dtype=np.int64),
            np.array([p.wall_time for p in points]),
            np.array([p.value for p in points]),
        )
    return series
