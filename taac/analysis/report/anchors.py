"""Anchors of normalised scores: for each task, the returns (y0, y1) that are mapped to 0 and 1."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.analysis.readers.events import LARGEST
from taac.errors import TaacError
from taac.runs import files

MAX_BYTES = 4 << 20
SMALLEST = 1e-30  # the smallest difference between the two returns of a scale
FILE = Path(__file__).with_name("anchors.json")


class Anchor(NamedTuple):
    """The scale of one task."""

    y0: float
    y1: float
    source: str
    bounds: tuple[float, float] | None = None  # the lowest and highest possible return, where a file declares them

    def scores(self, returns: np.ndarray) -> np.ndarray:
        """Normalised scores, `(y - y0) / (y1 - y0)`, of returns `[...]`. A diverged run keeps -inf."""
        return np.where(np.isneginf(returns), -math.inf, (returns - self.y0) / (self.y1 - self.y0))


def load(extra: Path | None = None) -> tuple[str, dict[str, Anchor]]:
    """Returns the version and the anchors by environment id. Anchors in `extra` replace the package's own.

    A file is `{"version": ..., "tasks": {"Hopper-v5": {"y0": 18.0, "y1": 3800.0, "source": "..."}}}`, with
    `"bounds": [0, 1]` for a task whose returns have some. Other entries are ignored.

    Raises:
        TaacError: a file cannot be read, or its anchors are not finite or not different.
    """
    version, anchors = _read(FILE)
    if extra is not None:
        added, more = _read(extra)
        version, anchors = f"{version}, and {extra.name} {added}".rstrip(), {**anchors, **more}
    return version, anchors


def _read(path: Path) -> tuple[str, dict[str, Anchor]]:
    try:
        content = files.read_json(path.resolve(), MAX_BYTES)
    except (OSError, files.Damaged) as error:
        raise TaacError(f"anchors {path} cannot be read: {error}") from error
    tasks = content.get("tasks") if isinstance(content, dict) else None
    if not isinstance(tasks, dict):
        raise TaacError(
            f'anchors {path} hold no "tasks": expected {{"tasks": {{"Hopper-v5": {{"y0": .., "y1": ..}}}}}}'
        )
    return str(content.get("version", "")), {task: _anchor(path, task, given) for task, given in tasks.items()}


def _anchor(path: Path, task: str, given: Any) -> Anchor:
    try:
        y0, y1 = float(given["y0"]), float(given["y1"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TaacError(f"anchors {path}: {task:.200} has no numbers y0 and y1, got {given!r:.200}") from error
    if not (abs(y0) <= LARGEST and abs(y1) <= LARGEST) or abs(y1 - y0) < SMALLEST:
        raise TaacError(f"anchors {path}: ({y0}, {y1}) of {task} define no scale; use two different finite returns")
    bounds = given.get("bounds")
    if bounds is not None:
        try:
            low, high = (float(end) for end in bounds)
        except (TypeError, ValueError, OverflowError) as error:
            raise TaacError(f"anchors {path}: bounds of {task:.200} are no two numbers, got {bounds!r:.200}") from error
        if not -LARGEST <= low < high <= LARGEST:
            raise TaacError(f"anchors {path}: bounds ({low}, {high}) of {task:.200} are no range")
        bounds = (low, high)
    return Anchor(y0, y1, str(given.get("source", path.name)), bounds)
