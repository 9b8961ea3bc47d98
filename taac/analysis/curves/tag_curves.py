"""Curves of any summaries of any runs, averaged over the runs of a method on a task, by steps, decisions, updates or time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taac.analysis.curves.learning_curves import Curve, Run, common_steps, interpolate, learning_curve
from taac.analysis.readers import comparable, groups, run_records
from taac.analysis.readers.events import Scalar
from taac.analysis.readers.run_records import Record
from taac.analysis.statistics.intervals import cut
from taac.errors import TaacError, nearest

AXES = {
    "env_steps": "environment steps",
    "decisions": "decisions",
    "updates": "gradient steps",
    "wall_time": "seconds of training",
}
DEFAULT_TAGS = ("evaluation/return", "evaluation/fraction_repeated")
_JUMP = 1.0  # seconds by which a clock may run away from another between two evaluations
_NO_TASK = "unknown task"
_COUNTS = {"updates": "updates", "decisions": "training_decisions"}  # axis -> column of evaluations.csv


class Options(NamedTuple):
    """What is drawn, and how."""

    tags: tuple[str, ...] = DEFAULT_TAGS  # or patterns with * ? [...]
    x: str = "env_steps"  # a key of AXES
    smoothing: float = 0.0  # width in units of x; 0 for none
    allow_mixed: bool = False
    group_by: tuple[str, ...] = ()  # settings that the names of methods show


class TagCurve(NamedTuple):
    """The mean over the runs of one method on one task."""

    tag: str
    task: str
    method: str
    runs: int
    curve: Curve  # against x; the interval is NaN with a single run, or where runs do not differ
    each: tuple[Run, ...]  # x and values of every run


class TagCurves(NamedTuple):
    """The content of a figure or a table."""

    curves: list[TagCurve]  # ordered by tag as requested, task, method
    options: Options
    notes: list[str]  # for readers

    @property
    def smoothing(self) -> str:
        """A description of the smoothing."""
        width = self.options.smoothing
        return f"mean of the run's points in the last {width:g} {AXES[self.options.x]}" if width else "none"


def make_curves(roots: Sequence[Path], options: Options) -> TagCurves:
    """Computes the curves of all runs below some folders.

    A group is the runs of one method on one task, all of the same settings (see `groups.labelled`). The points of each run
    are smoothed (`smooth`), interpolated linearly at the union of the group's points within the range that all its runs
    cover, and averaged, with Student's t interval at each point separately. Nothing is extrapolated. A value that is not
    finite leaves a gap.

    Raises:
        TaacError: the options are wrong, there are no runs, runs are not comparable (without `allow_mixed`), or no run has a
            requested tag.
    """
    if options.x not in AXES:
        raise TaacError(f"--x must be one of {', '.join(AXES)}, got '{options.x}'")
    if not (math.isfinite(options.smoothing) and options.smoothing >= 0):
        raise TaacError(f"--smoothing must be 0 or more {AXES[options.x]}, got {options.smoothing}")
    if not options.tags:
        raise TaacError("--tags is empty; use tags, such as rollout/return, or patterns, such as 'beta/*'")
    unique: dict[Path, Record] = {}  # each run once, named by its whole path if there are several folders
    for root in roots:
        for record in run_records.find(root):
            path = root / record.folder
            unique.setdefault(path.resolve(), record if len(roots) == 1 else record._replace(folder=path.as_posix()))
    records, told_apart = groups.labelled(list(unique.values()), options.group_by)
    notes = _Notes()
    for note in (*told_apart, *comparable.refuse_mixtures(records, options.allow_mixed)):
        notes.add(note)
    series = {r.folder: _series(r) for r in records}
    tags = choose(options.tags, sorted({tag for of in series.values() for tag in of}))
    for r in records:
        for problem in (*r.problems, *r.notes, *([] if r.status == "finished" else [f"not finished: {r.status}"])):
            notes.add(problem, r)
    found = []
    by_method = sorted(comparable.grouped(records, lambda r: (r.task or _NO_TASK, r.method)).items())
    for tag, ((task, method), group) in itertools.product(tags, by_method):
        lines = []
        for r in group:
            if tag not in series[r.folder]:
                notes.add(f"no {tag}", r)
            elif (line := _line(r, tag, series[r.folder][tag], options, notes))[0].size:
                lines.append(line)
        curve = _mean(lines, f"{tag} of {method} on {task}", options, notes)
        if curve is not None:
            low, high = cut(tag, curve.estimate, curve.low, curve.high)
            found.append(TagCurve(tag, task, method, len(lines), curve._replace(low=low, high=high), tuple(lines)))
    if not found:
        raise TaacError("there is nothing to draw:\n  " + "\n  ".join(notes.lines()))
    return TagCurves(found, options, notes.lines())


def choose(patterns: Sequence[str], known: Sequence[str]) -> list[str]:
    """Returns the tags that match the patterns, each once, in the order of the patterns. Refuses a pattern that matches none."""
    chosen: list[str] = []
    for pattern in patterns:
        matching = [tag for tag in known if tag == pattern or fnmatchcase(tag, pattern)]
        if not matching:
            if not known:
                raise TaacError(f"--tags {pattern}: the runs have neither evaluations nor summaries yet")
            raise TaacError(f"--tags {pattern}: no run has such a series{nearest(pattern, known)}; there are: {', '.join(known)}")
        chosen += [tag for tag in matching if tag not in chosen]
    return chosen


def smooth(x: np.ndarray, y: np.ndarray, width: float) -> np.ndarray:
    """Returns the trailing mean of `[n]`: each point becomes the mean of the points in `(x - width, x]`. Width 0 changes nothing.

    NaN points are left out of the means, and stay NaN.
    """
    if not width:
        return y
    known = np.isfinite(y)
    at, values = x[known], y[known]
    first = np.searchsorted(at, at - width, side="right")
    ends = np.arange(1, at.size + 1)
    # Each stretch is summed separately, as differences of running sums would lose small values after a large one.
    sums = np.add.reduceat(np.append(values, 0.0), np.stack([first, ends], axis=1).ravel())[::2] if at.size else values
    out = np.full(y.shape, math.nan)
    out[known] = sums / (ends - first)
    return out


def _series(record: Record) -> dict[str, Scalar]:
    """Returns all series of a run. Those in evaluations.csv replace the summaries, unless it is damaged."""
    if any(problem.startswith(run_records.DAMAGED) for problem in record.problems):
        return {tag: scalar for tag, scalar in record.scalars.items() if not tag.startswith("evaluation/")}
    table = record.evaluations
    steps, seconds = table["env_steps"], table["seconds"]
    found = _timed(dict(record.scalars), steps, seconds)
    for name in table:
        if name not in ("env_steps", "seconds", "episodes", *_COUNTS.values()) and np.isfinite(table[name]).any():
            tag = f"evaluation/{'return' if name == 'return_mean' else name}"
            found[tag] = Scalar(steps.astype(np.int64), np.full(steps.shape, math.nan), seconds, table[name])
    return found


def _timed(found: dict[str, Scalar], steps: np.ndarray, seconds: np.ndarray) -> dict[str, Scalar]:
    """Corrects the seconds of summaries by those of evaluations.csv, which neither a suspended machine nor a set clock changes.

    Between two evaluations across which the two differ by a pause or a jump, seconds are interpolated.
    """
    if (told := found.get("evaluation/return")) is None:
        return found
    steps, of_events, of_table = np.intersect1d(told.env_steps, steps[np.isfinite(seconds)], return_indices=True)
    if not steps.size:
        return found
    seconds = seconds[np.isfinite(seconds)][of_table]
    lag = seconds - told.seconds[of_events]
    jump = np.concatenate([[False], np.abs(np.diff(lag)) > _JUMP, [False]])  # before, between and after these steps

    def corrected(of: Scalar) -> np.ndarray:
        between = jump[np.searchsorted(steps, of.env_steps)]
        shifted = of.seconds + np.interp(of.env_steps, steps, lag)
        return np.where(between, np.interp(of.env_steps, steps, seconds), shifted)

    return {tag: of._replace(seconds=corrected(of)) for tag, of in found.items()}


def _line(record: Record, tag: str, scalar: Scalar, options: Options, notes: _Notes) -> Run:
    """Returns a run's points `[n]` with rising x, smoothed, and NaN for values that are not finite."""
    if (wrong := ~np.isfinite(scalar.value)).any():
        first = scalar.env_steps[wrong][0]
        notes.add(f"{tag} has {wrong.sum()} value(s) that are not finite, first at step {first}", record)
    x, y = _along(record, scalar, options.x), np.where(wrong, math.nan, scalar.value)
    known = np.isfinite(x)
    if not known.all():
        notes.add(f"{tag} has {(~known).sum()} point(s) whose {AXES[options.x]} are not known, left out", record)
    x, y = np.maximum.accumulate(x[known]), y[known]
    last = np.append(x[1:] > x[:-1], True)[: x.size]  # keep the last of several points at one x
    x, y = x[last], y[last]
    return x, smooth(x, y, options.smoothing)


def _along(record: Record, scalar: Scalar, axis: str) -> np.ndarray:
    """Returns the positions of a series' points on an axis, `[n]`. Counts are interpolated between the recorded ones."""
    if axis == "env_steps":
        return scalar.env_steps.astype(np.float64)
    if axis == "wall_time":
        return scalar.seconds
    counts = {0: 0.0}
    if f"count/{axis}" in record.scalars:
        of = record.scalars[f"count/{axis}"]
        counts.update(zip(of.env_steps.tolist(), of.value.tolist()))
    if _COUNTS[axis] in record.evaluations:  # not rounded to float32 as summaries are, and recorded at the very end
        at_evaluations = zip(record.steps.astype(int).tolist(), record.evaluations[_COUNTS[axis]].tolist())
        counts.update((step, count) for step, count in at_evaluations if math.isfinite(count))
    at = sorted(step for step, count in counts.items() if math.isfinite(count))
    if len(at) == 1:
        return np.full(scalar.env_steps.shape, math.nan)
    return np.interp(scalar.env_steps, at, [counts[step] for step in at], left=math.nan, right=math.nan)


def _mean(lines: list[Run], what: str, options: Options, notes: _Notes) -> Curve | None:
    """Returns the mean of several runs, or None if there are none or they have no point in common."""
    steps = common_steps(lines) if lines else np.zeros(0)
    if not steps.size:
        if lines:
            notes.add(f"{what}: the {AXES[options.x]} of its {len(lines)} runs do not overlap; not drawn")
        return None
    longest = max(x[-1] for x, _ in lines)
    if longest - steps[-1] > 0.05 * longest:
        notes.add(f"{what}: drawn up to {steps[-1]:g} {AXES[options.x]}, which all {len(lines)} runs have reached")
    return learning_curve(steps, interpolate(lines, steps))


class _Notes:
    """Collects notes for readers. Each note is listed once, with all runs to which it applies."""

    def __init__(self) -> None:
        self._runs: dict[str, list[Record]] = {}

    def add(self, text: str, record: Record | None = None) -> None:
        self._runs.setdefault(text, []).extend([] if record is None else [record])

    def lines(self) -> list[str]:
        return [f"{comparable.named(runs)}: {text}" if runs else text for text, runs in self._runs.items()]
