"""Reads TensorBoard's event files: the scalar series of a run folder, and notes on damage.

`tensorboard`'s own reader takes a fraction of a millisecond per point, mostly for checksums in Python. Here, scalar records
as written by `SummaryWriter.add_scalar` are decoded all at once (`_decode`). The few records of other kinds are decoded by
`tensorboard`'s Event message.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.analysis.readers import tfrecords
from taac.analysis.readers.tfrecords import Records
from taac.errors import TaacError
from taac.runs import files, layout
from taac.runs.files import Damaged

MAX_STEP = 1 << 53  # every step up to this is also an exact float64
LARGEST = 1e60  # means and variances of values up to this are finite; 1e9 float32 rewards sum to less
_SHORT = 1024  # bytes; longer records hold texts and pictures, and are checked only if they do hold scalars
_LONGEST = 1 << 16  # bytes; longer records are not decoded
_MAX_TIME = 1e12  # seconds since the epoch
_NAMED = 4  # the most tags named in a note
_MOST_NOTES = 50  # the most notes on files
_NO_STEP = np.iinfo(np.int64).max
# Limits per folder. A run writes a file each time that it starts or resumes.
MAX_FILES = 1000
MAX_TAGS = 10_000


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


class _Points(NamedTuple):
    """Scalars in the order in which they were written."""

    place: np.ndarray  # [n] int64, number of the record in its file
    tag: np.ndarray  # [n] int64, index in a list of tags
    step: np.ndarray  # [n] int64
    wall_time: np.ndarray  # [n]
    value: np.ndarray  # [n]

    def of(self, rows: np.ndarray) -> _Points:
        return _Points(*(column[rows] for column in self))


class _File(NamedTuple):
    name: str
    began: float  # wall time of the first record
    starts: list[tuple[int, int]]  # (place, step) where a writer started; earlier points at this step or later are void
    points: _Points
    notes: tuple[str, ...]
    records: int  # number of records


def read(folder: Path) -> Events:
    """Reads all scalars of a folder's event files (not of folders below). Leaves out damaged records and notes them.

    - Files are ordered by the numbers in the names that the run chose, which do not depend on clocks. A file without a number
      (from another program) is placed by the time of its first record.
    - A restarted run begins its file with a step. Earlier points at this step or later are void.
    - A file without such a start (from another program) voids, for each of its tags, earlier points at or after the tag's
      first step in the file.
    - If a step occurs twice, the later point counts.
    - Links, pipes and devices are not opened, but noted. Event files beyond the first `MAX_FILES`, or the first GiB, of a
      folder are not read.
    - Records of more than 64 KiB are not decoded, as they hold texts and pictures.
    - A value beyond `LARGEST` becomes infinite.
    """
    tags: dict[str, int] = {}
    paths, notes = [], []
    for path in sorted(folder.glob("*tfevents*")):
        try:
            if not path.is_dir() and files.check_file(path):
                paths.append(path)
        except TaacError as error:
            notes.append(str(error))
    found = _in_order(_read_files(paths, tags, notes))
    points, seconds = _merged(found)
    on_files = [f"{file.name}: {note}" for file in found for note in file.notes]
    notes += on_files[:_MOST_NOTES]
    if len(on_files) > _MOST_NOTES:
        notes.append(f"{len(on_files) - _MOST_NOTES} more notes on event files")
    if len(tags) > MAX_TAGS:
        notes.append(f"{len(tags)} tags, of which {MAX_TAGS} are read")
        few = points.tag < MAX_TAGS
        points, seconds = points.of(few), seconds[few]
    # Sort by tag, then step, then order of writing, so that the last of equal steps counts.
    order = np.lexsort((np.arange(points.step.size), points.step, points.tag))
    points, seconds = points.of(order), seconds[order]
    again = (points.tag[1:] == points.tag[:-1]) & (points.step[1:] == points.step[:-1])
    last = np.append(~again, True)[: points.step.size]
    names = list(tags)[:MAX_TAGS]
    if again.any():
        twice = [names[tag] for tag in np.unique(points.tag[1:][again])]
        notes.append(f"steps that occur twice, in {_some(twice)}; the later point counts")
    points, seconds = points.of(last), seconds[last]
    at = np.searchsorted(points.tag, np.arange(len(names) + 1))
    scalars = {
        name: Scalar(points.step[a:b], points.wall_time[a:b], seconds[a:b], points.value[a:b])
        for name, a, b in zip(names, at[:-1].tolist(), at[1:].tolist())
        if a < b
    }
    return Events(dict(sorted(scalars.items())), tuple(notes))


def flaws(scalar: Scalar) -> list[str]:
    """Describes flaws of a curve: values that are not finite, and gaps much longer than the usual distance."""
    found = []
    wrong = ~np.isfinite(scalar.value)
    if wrong.any():
        found.append(f"{wrong.sum()} value(s) that are not finite, first at step {scalar.env_steps[wrong][0]}")
    distance = np.diff(scalar.env_steps)
    (gaps,) = np.nonzero(distance > 10 * np.median(distance)) if distance.size else (distance,)
    if gaps.size:
        low, high = scalar.env_steps[gaps[0]], scalar.env_steps[gaps[0] + 1]
        more = f", and {gaps.size - 1} more" if gaps.size > 1 else ""
        found.append(f"a gap from step {low} to {high}{more}")
    return found


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


# --- Files of a folder ----------------------------------------------------------------------------


def _in_order(found: list[_File]) -> list[_File]:
    """Sorts by the run's own numbers. Other files follow the last numbered file that began no later than they did."""
    number = {file.name: layout.number_of_event_file(file.name) for file in found}
    own = [(n, file.began) for file in found if (n := number[file.name]) is not None]

    def place(file: _File) -> tuple[int, bool, float, str]:
        n = number[file.name]
        if n is None:
            before = max((other for other, began in own if began <= file.began), default=-1)
            return before, True, file.began, file.name
        return n, False, file.began, file.name

    return sorted(found, key=place)


def _read_files(paths: list[Path], tags: dict[str, int], notes: list[str]) -> list[_File]:
    """Reads files in order of their names until the folder's limits are reached. Adds to `notes` what was left out."""
    found: list[_File] = []
    left, records = tfrecords.MAX_BYTES, tfrecords.MAX_RECORDS
    for path in paths[:MAX_FILES]:
        try:
            left -= path.stat().st_size if path.stat().st_size <= tfrecords.MAX_BYTES else 0  # larger ones are refused anyway
        except OSError:
            continue
        if left < 0 or records <= 0:
            break
        found.append(_read_file(path, tags, records))
        records -= found[-1].records
    if len(found) < len(paths):
        notes.append(f"{len(paths) - len(found)} event file(s) left out: there are more, or longer ones, than are read")
    return found


def _merged(found: list[_File]) -> tuple[_Points, np.ndarray]:
    """The valid points of all files in order, and the running time in seconds at each."""
    points = [_without_own_restarts(file) for file in found]
    every = _Points(*(np.concatenate(columns) for columns in zip(_no_points(), *points)))
    live, seconds = np.ones(every.step.size, dtype=bool), np.zeros(every.step.size)
    first_of_tag = np.full(every.tag.max(initial=0) + 1, _NO_STEP)
    latest = -_NO_STEP  # no live point has a later step
    at, offset = 0, 0.0
    for i, (file, own) in enumerate(zip(found, points)):
        before, end = slice(0, at), at + own.step.size
        if file.starts and (step := min(step for _, step in file.starts)) <= latest:
            live[before] &= every.step[before] < step
            latest = step - 1
        if not file.starts and own.step.size and own.step.min() <= latest:
            np.minimum.at(first_of_tag, own.tag, own.step)
            live[before] &= every.step[before] < first_of_tag[every.tag[before]]
            first_of_tag[own.tag] = _NO_STEP
        if i == 0 or file.starts:  # a restart continues the clock of the valid points; other programs share the clock
            offset = file.began - seconds[before].max(initial=0, where=live[before])
        seconds[at:end] = own.wall_time - offset
        latest, at = max(latest, own.step.max(initial=-_NO_STEP)), end
    return every.of(live), seconds[live]


def _without_own_restarts(file: _File) -> _Points:
    """The points that no later writer in the same file has made void."""
    points = file.points
    if not file.starts:
        return points
    places, steps = (np.array(column, dtype=np.int64) for column in zip(*file.starts))  # by rising place
    least = np.append(np.minimum.accumulate(steps[::-1])[::-1], _NO_STEP)  # of this start and those after it
    return points.of(points.step < least[np.searchsorted(places, points.place)])


def _read_file(path: Path, tags: dict[str, int], most: int) -> _File:
    """Reads at most `most` records of one file. Adds new tags to `tags`."""
    try:
        records = tfrecords.read(path, most)
    except (OSError, Damaged) as error:
        return _File(path.name, 0.0, [], _no_points(), (f"cannot be read, left out: {error}",), 0)
    short = records.length <= _SHORT
    good = np.ones(short.shape, dtype=bool)
    good[short] = tfrecords.intact(records, np.flatnonzero(short))
    raw = records.data.tobytes()
    rows, points = _decode(records, np.flatnonzero(short & good), raw, tags)
    good_others = good & (records.length <= _LONGEST)
    good_others[rows] = False
    starts, others, began = [], [], points.wall_time[0] if rows.size and rows[0] == 0 else None
    for i in np.flatnonzero(good_others).tolist():
        event = _event(raw[records.start[i] : records.start[i] + records.length[i]])
        if event is None:
            good[i] = False
            continue
        began = event.wall_time if began is None else began
        if event.session_log.status == event.session_log.START:
            starts.append((i, event.step))
        others += [(i, tag, event.step, event.wall_time, value) for tag, value in _scalars(event)]
    long = np.unique([i for i, *_ in others if not short[i]]).astype(np.int64)  # all at once, because one by one is slow
    good[long] = tfrecords.intact(records, long)
    others = [(i, tags.setdefault(tag, len(tags)), *rest) for i, tag, *rest in others if good[i]]
    if others:
        columns = [np.concatenate([a, np.array(b, dtype=a.dtype)]) for a, b in zip(points, zip(*others))]
        points = _Points(*columns).of(np.argsort(columns[0], kind="stable"))
    notes = list(records.notes)
    if not good.all():
        notes.append(f"{int((~good).sum())} damaged record(s), left out")
    usable = (points.step >= -MAX_STEP) & (points.step <= MAX_STEP) & (np.abs(points.wall_time) <= _MAX_TIME)
    if not usable.all():
        notes.append(f"{int((~usable).sum())} value(s) whose step or time is out of range, left out")
    began = 0.0 if began is None or not abs(began) <= _MAX_TIME else float(began)
    return _File(path.name, began, starts, points.of(usable), tuple(notes), records.start.size)


def _no_points() -> _Points:
    return _Points(*(np.zeros(0, dtype=t) for t in (int, int, int, float, float)))


# --- Records --------------------------------------------------------------------------------------


def _decode(records: Records, rows: np.ndarray, raw: bytes, tags: dict[str, int]) -> tuple[np.ndarray, _Points]:
    """Decodes the records among `rows` that hold exactly one scalar. Returns these rows and their points.

    On the wire such an event is `09 wall_time:f8 [10 step:varint] 2a n 0a n 0a n tag 15 value:f4`, where each n is the
    number of bytes that follow in that part, here below 128. Records of any other form are skipped.
    """
    data, at = records.data, records.start[rows]
    end = at + records.length[rows]
    fits = records.length[rows] >= 21
    rows, at, end = rows[fits], at[fits], end[fits]
    plain = (data[at] == 0x09) & (data[end - 5] == 0x15)
    wall_time = data[at[:, None] + np.arange(1, 9)].view("<f8")[:, 0]
    at = at + 9
    has_step = data[at] == 0x10
    at = at + has_step
    step, going = np.zeros(at.shape, dtype=np.int64), has_step
    for k in range(9):  # 9 bytes of 7 bits hold every step that is not negative
        step |= np.where(going, (data[at] & 0x7F).astype(np.int64) << (7 * k), 0)
        at, going = at + going, going & (data[at] >= 0x80)
        if not going.any():
            break
    plain &= ~going & (at + 6 <= end - 5)
    at = np.where(plain, at, 0)  # any valid position, for records of other forms
    for offset, mark in ((0, 0x2A), (2, 0x0A), (4, 0x0A)):
        plain &= data[at + offset] == mark
        behind = 5 if offset == 4 else 0  # the value, which follows the tag
        plain &= data[at + offset + 1] == end - (at + offset + 2) - behind
    rows, at, end = rows[plain], at[plain] + 6, end[plain]
    names = [raw[a:b] for a, b in zip(at.tolist(), (end - 5).tolist())]
    numbers = {name: tags.setdefault(name.decode(errors="replace"), len(tags)) for name in dict.fromkeys(names)}
    tag = np.fromiter((numbers[name] for name in names), dtype=np.int64, count=len(names))
    value = data[end[:, None] + np.arange(-4, 0)].view("<f4")[:, 0].astype(np.float64)
    return rows, _Points(rows, tag, step[plain], wall_time[plain], value)


def _event(payload: bytes) -> Any:
    """Parses the message, or returns None if it cannot be parsed."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    try:
        return Event.FromString(payload)
    except DecodeError:
        return None


def _scalars(event: Any) -> Iterator[tuple[str, float]]:
    """Yields tags and values, including TensorFlow 2's scalars, which are tensors with one number."""
    for value in event.summary.value:
        kind = value.WhichOneof("value")
        number = None
        if kind == "simple_value":
            number = value.simple_value
        elif kind == "tensor" and value.metadata.plugin_data.plugin_name == "scalars":
            number = _number(value.tensor)
        if number is not None and len(value.tag) <= _SHORT:
            yield value.tag, math.copysign(math.inf, number) if abs(number) > LARGEST else number


def _number(tensor: Any) -> float | None:
    """The number in a tensor, or None if it holds text or not exactly one number. Checks its shape before allocating."""
    from tensorboard.compat.proto import types_pb2
    from tensorboard.util.tensor_util import make_ndarray

    numbers = (getattr(types_pb2, f"DT_{name}") for name in ("FLOAT", "DOUBLE", "HALF", "INT32", "INT64", "BOOL"))
    sizes = [d.size for d in tensor.tensor_shape.dim]
    if tensor.dtype not in numbers or len(sizes) > 8 or any(size != 1 for size in sizes):
        return None
    try:
        array = make_ndarray(tensor)
        return float(array.reshape(())) if array.size == 1 else None
    except (ValueError, TypeError, IndexError, OverflowError):  # the content does not fit the shape
        return None
