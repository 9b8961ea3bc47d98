"""The scores of diverged runs.

Leaving them out would flatter their method, because the missing returns are missing for being bad. A diverged run
therefore counts, from the divergence on, as the worst return observed on its task, unless another number is requested. This
follows worst-rank scores in clinical trials.

Source: Lachin, Worst-rank score analysis with informatively missing observations in clinical trials, Controlled Clinical
Trials 1999.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from taac.analysis.readers.events import LARGEST
from taac.analysis.readers.run_records import Record
from taac.analysis.report.anchors import Anchor
from taac.errors import TaacError
from taac.runs.layout import COLUMNS

WORST, LEAVE_OUT = "worst", "leave_out"
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


def impute_diverged(
    records: Sequence[Record], steps: Mapping[str, int], scales: Mapping[str, Anchor], policy: str | float
) -> tuple[list[Record], dict[str, float]]:
    """Imputes the missing returns of diverged runs.

    A diverged run keeps its evaluations from before the divergence. Later evaluations, including those that it never reached
    at the steps of the longest run of the task, get the return X of the policy. All their other values are NaN.

    Args:
        steps: the step at which each task is compared. Runs of other tasks are not changed.
        policy: "leave_out" changes no record. "worst" sets X to the lowest return of any evaluation on the task, over all
            runs up to the compared step, or to the anchor y0 if that is lower. A number is X itself.

    Returns:
        The records, and X for each task where it was used.
    """
    if policy == LEAVE_OUT:
        return list(records), {}
    scores: dict[str, float] = {}
    found = []
    for r in records:
        whole = r.diverged is None or any(not problem.startswith("diverged") for problem in r.problems)
        if whole or r.task is None or r.task not in steps:
            found.append(r)
            continue
        if r.task not in scores:
            scores[r.task] = (
                _worst(records, r.task, steps[r.task], scales) if isinstance(policy, str) else float(policy)
            )
        known = math.isfinite(scores[r.task])
        found.append(_imputed(r, _evaluation_steps(records, r.task), scores[r.task]) if known else r)
    return found, {task: score for task, score in scores.items() if math.isfinite(score)}


def _worst(records: Sequence[Record], task: str, step: int, scales: Mapping[str, Anchor]) -> float:
    returns = np.concatenate([r.returns[r.steps <= step] for r in records if r.task == task])
    worst = float(returns[np.isfinite(returns)].min(initial=math.inf))
    return min(worst, scales[task].y0) if task in scales else worst


def _evaluation_steps(records: Sequence[Record], task: str) -> np.ndarray:
    """The steps `[n]` at which the longest run of the task was evaluated."""
    runs = [r.steps for r in records if r.task == task and not r.problems and r.last_step is not None]
    return max(runs, key=lambda s: (s[-1], s.size))


def _imputed(record: Record, task_steps: np.ndarray, score: float) -> Record:
    at = record.diverged
    assert at is not None
    steps = np.union1d(record.steps, task_steps[task_steps >= max(at, record.last_step or 0)])
    table = {name: np.full(steps.size, math.nan) for name in COLUMNS}
    known = np.isin(steps, record.steps)
    for name in COLUMNS:
        table[name][known] = record.evaluations[name]
        if name not in _KEPT:
            table[name][steps >= at] = math.nan
    table["env_steps"] = steps
    table["return_mean"][steps >= at] = score
    note = f"diverged at step {at}; from there on its return counts as {score:.4g}"
    return record._replace(evaluations=table, problems=(), notes=(*record.notes, note))
