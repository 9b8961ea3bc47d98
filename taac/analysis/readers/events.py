"""Reads TensorBoard's event files: the scalar series of a run folder, and notes on damage.

A record is the length of its payload (8 bytes), a checksum (4), the payload, an `Event` message, and another checksum (4). The
checksums are not looked at: tensorboard's own reader, which computes them in Python, takes three times as long.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.errors import TaacError
from taac.runs import files, layout
from taac.runs.files import Damaged

MAX_STEP = 1 << 53  # every step up to this is also an exact float64
LARGEST = 1e60  # means and variances of values up to this are finite; 1e9 float32 rewards sum to less
MAX_BYTES, MAX_POINTS, MAX_TAGS, MAX_RESTARTS = 1 << 30, 1 << 22, 10_000, 1000  # of a folder
_LONGEST = 1 << 16  # bytes; longer records hold pictures and texts, and are not decoded
_MAX_TIME = 1e12  # seconds since the epoch
_NAMED = 4  # tags in a note


class Scalar(NamedTuple):
    """One series in order of rising steps, each step once."""

    env_steps: np.ndarray  # [n] int64
    wall_time: np.ndarray  # [n] seconds since the epoch
    seconds: np.ndarray  # [n] running time so far, without pauses before restarts and without repeated work
    value: np.ndarray  # [n], may hold NaN and infinities


class Events(NamedTuple):
    """The contents of a folder's event files."""

    scalars: dict[str, Scalar]  # by tag, in alphabetical order
    notes: tuple[str, ...]  # on damage and repairs


def read(folder: Path) -> Events:
    """Reads all scalars of a folder's event files (not of folders below).

    - Files are read in the order of the numbers that the run gave them, which does not depend on clocks; files of other programs
      come last, by name. A file is read up to its first damaged record, which is noted.
    - A restarted run begins its file with a step. This voids earlier points at that step or
      later; files of other programs void none.
    - If a step occurs twice, the later point counts.
    - Links, pipes and devices are not opened, but noted, and so is what lies beyond the limits above.
    """
    reader, notes, left = _Reader(), [], MAX_BYTES
    numbers = {path: layout.number_of_event_file(path.name) for path in folder.glob("*tfevents*")}
    own = any(number is not None for number in numbers.values())
    for path in sorted(numbers, key=lambda path: (numbers[path] is None, numbers[path] or 0, path.name)):
        try:
            if path.is_dir() or not files.check_file(path):
                continue
            raw = files.read_bytes(path, left)
        except (OSError, TaacError) as error:
            notes.append(f"{path.name}: left out: {error}" if path.name not in str(error) else f"left out: {error}")
            continue
        left -= len(raw)
        try:
            reader.read(raw, restarts=numbers[path] is not None or not own)
        except Damaged as error:
            notes.append(f"{path.name}: {error}")
    scalars, twice = {}, []
    for tag, columns in sorted(reader.curves.items()):
        points = [np.frombuffer(column, column.typecode) for column in columns]
        order = np.argsort(points[0], kind="stable")
        last = np.append(np.diff(points[0][order]) > 0, True)[: order.size]
        if order.size:
            scalars[tag] = Scalar(*(column[order[last]] for column in points))
        twice += [] if last.all() else [tag]
    if twice:
        more = f" and {len(twice) - _NAMED} more" if len(twice) > _NAMED else ""
        notes.append(f"steps that occur twice, in {', '.join(twice[:_NAMED])}{more}; the later point counts")
    return Events(scalars, tuple(notes))


class _Reader:
    """Collects the points of one file after another: for each tag, the columns of a `Scalar`."""

    def __init__(self) -> None:
        self.curves: dict[str, list[Any]] = {}
        self._points, self._restarts = 0, 0
        self._newest = -MAX_STEP  # no point has a later step
        self._began: float | None = None  # wall time at which the run would have begun without its pauses

    def read(self, raw: bytes, restarts: bool) -> None:
        """Adds a file's points. Raises `Damaged` at a damaged record; those before it were read."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        for event in _events(raw):
            step, wall_time = event.step, event.wall_time
            if restarts and event.session_log.status == SessionLog.START:
                self._restart(step, wall_time)
            if self._began is None:
                self._began = wall_time
            for tag, value in ((v.tag, v.simple_value) for v in event.summary.value if v.HasField("simple_value")):
                if not (abs(step) <= MAX_STEP and abs(wall_time) <= _MAX_TIME):
                    raise Damaged(f"the step {step} or the time {wall_time} is out of range; the rest is left out")
                self._points += 1
                if self._points > MAX_POINTS or (tag not in self.curves and len(self.curves) >= MAX_TAGS):
                    raise Damaged(f"only {MAX_POINTS} points and {MAX_TAGS} tags of a folder are read; the rest is left out")
                columns = self.curves.setdefault(tag, [array("q"), array("d"), array("d"), array("d")])
                for column, number in zip(columns, (step, wall_time, wall_time - self._began, value)):
                    column.append(number)
                self._newest = max(self._newest, step)

    def _restart(self, step: int, wall_time: float) -> None:
        """Makes points at this step or later void. The clock goes on from the last of the others."""
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise Damaged(f"only {MAX_RESTARTS} restarts of a run are read; the rest is left out")
        if step <= self._newest:
            for columns in self.curves.values():
                kept = np.frombuffer(columns[0], "q") < step
                columns[:] = [array(c.typecode, np.frombuffer(c, c.typecode)[kept].tobytes()) for c in columns]
            self._newest = step - 1
        self._began = wall_time - max((max(columns[2]) for columns in self.curves.values() if columns[2]), default=0.0)


def _events(raw: bytes) -> Iterator[Any]:
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    at = 0
    while at < len(raw):
        end = at + 12 + (struct.unpack_from("<Q", raw, at)[0] if at + 8 <= len(raw) else 0)
        if end + 4 > len(raw):
            raise Damaged(f"the record at byte {at} is torn or damaged; the rest is left out")
        if end - at <= _LONGEST:
            try:
                yield Event.FromString(raw[at + 12 : end])
            except DecodeError:
                raise Damaged(f"the record at byte {at} is damaged; the rest is left out") from None
        at = end + 4
