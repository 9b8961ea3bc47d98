"""What diverged runs count as.

Leaving them out would flatter their method, because the missing returns are missing for being bad. A diverged run therefore
ranks below every other run of its task, tied with others that diverged, and enters no mean; tables have the share of runs
that diverged beside each mean. This follows worst-rank scores in clinical trials. It depends on no other run, as an imputed
return would. A return may be assigned instead where the task has a lowest one.

Source: Lachin, Worst-rank score analysis with informatively missing observations in clinical trials, Controlled Clinical
Trials 1999.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from taac.analysis.readers.events import LARGEST
from taac.analysis.readers.run_records import Record
from taac.analysis.report import matching
from taac.analysis.report.scores import LEAVE_OUT, WORST
from taac.errors import TaacError
from taac.runs.layout import COLUMNS

_MOST_ADDED = 10_000  # evaluations after those of the longest run, whatever interval a stranger's settings have
_KEPT = ("env_steps", "updates", "training_decisions", "seconds", "episodes")  # progress, not performance


def check_policy(policy: str | float) -> None:
    """Raises TaacError unless it is "worst", "leave_out" or a return that a run may have."""
    if not (policy in (WORST, LEAVE_OUT) if isinstance(policy, str) else abs(policy) <= LARGEST):
        finite = f"a finite return, at most {LARGEST:g} in size"
        raise TaacError(f"--diverged must be {WORST}, {LEAVE_OUT} or {finite}, got {policy!r}")


def parse(text: str) -> str | float:
    """Parses the policy from a command's flag."""
    try:
        return float(text)
    except ValueError:
        return text


def treat_diverged(records: Sequence[Record], steps: Mapping[str, int], policy: str | float) -> list[Record]:
    """Makes diverged runs usable, unless they are left out.

    A diverged run keeps its evaluations from before the divergence. With "worst" it has no later ones. With a return as the
    policy, later evaluations, including those that it never reached at the steps of the longest run of the task and on to the
    compared step, have that return; all their other values are NaN.

    Args:
        steps: the step at which each task is compared. Runs of other tasks are not changed.
    """
    if policy == LEAVE_OUT:
        return list(records)
    found = []
    for r in records:
        if not _only_diverged(r) or r.task is None or r.task not in steps:
            found.append(r)
        elif isinstance(policy, str):
            found.append(_before(r))
        else:
            found.append(_imputed(r, _evaluation_steps(records, r, steps[r.task]), float(policy)))
    return found


def _before(record: Record) -> Record:
    """A run with its evaluations from before it diverged."""
    at = record.diverged
    assert at is not None
    kept = record.steps < at
    table = {name: values[kept] for name, values in record.evaluations.items()}
    note = f"diverged at step {at}; from there on it ranks below every run that did not, and enters no mean"
    return record._replace(evaluations=table, problems=(), notes=(*record.notes, note))


def _only_diverged(record: Record) -> bool:
    return record.diverged is not None and all(problem.startswith("diverged") for problem in record.problems)


def _evaluation_steps(records: Sequence[Record], record: Record, end: int) -> np.ndarray:
    """The steps `[n]` at which the longest run of the same task was evaluated, continued to the compared step, `end`.

    It is the longest of those that did not diverge or, if all did, of all. Evaluations continue at the interval of its settings,
    or else at the distance that they had; without any, the only one is at the compared step.
    """
    of_task = [r for r in records if r.task == record.task and r.last_step is not None]
    runs = [r for r in of_task if not r.problems] or [r for r in of_task if _only_diverged(r)]
    longest = max(runs, key=lambda r: (r.due[-1], r.due.size), default=record)
    due, (interval, _) = longest.due, matching.plan(longest)
    last = due[-1] if due.size else 0
    if due.size and last >= end:
        return due
    had = np.diff(np.union1d(due, 0))
    distance = interval or (float(np.median(had)) if had.size else end - last)
    distance = max(1, math.ceil(max(distance, (end - last) / _MOST_ADDED)))
    return np.union1d(due, [*np.arange((last // distance + 1) * distance, end, distance), end])


def _imputed(record: Record, task_steps: np.ndarray, score: float) -> Record:
    at = record.diverged
    assert at is not None
    last = -1 if record.last_step is None else record.last_step
    steps = np.union1d(record.steps, task_steps[task_steps > max(at - 1, last)])
    table = {name: np.full(steps.size, math.nan) for name in COLUMNS}
    known = np.isin(steps, record.steps)
    for name in COLUMNS:
        table[name][known] = record.evaluations[name]
        if name not in _KEPT:
            table[name][steps >= at] = math.nan
    table["env_steps"] = steps
    table["due"] = steps.copy()
    table["due"][known] = record.due
    table["return_mean"][steps >= at] = score
    note = f"diverged at step {at}; from there on its return counts as {score:.4g}"
    return record._replace(evaluations=table, problems=(), notes=(*record.notes, note))
