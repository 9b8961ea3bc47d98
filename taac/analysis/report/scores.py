"""Scores of runs for a report: the step at which each task is compared, and the numbers of each run there.

Each task is compared at one step that its runs have reached. It is the requested step, or the last evaluation of the
finished run that ended first, or, if no run is finished, the last step that all of the task's runs have reached. Steps are
those at which evaluations were due (`taac.analysis.report.matching`).

- The final return of a run is the mean of its last k evaluations up to that step, without the one before training. At step 0,
  which is compared only if it is requested, it is that one's.
- Its area under the curve is taken from the first step common to all runs to that step, and divided by their distance, so
  that it is a return again.
- Repetition when acting greedily is the mean over the same k evaluations.
- Repetition when exploring is the mean of the `rollout/` summaries of the same span: after the evaluation before those k,
  up to that step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.analysis import bounds
from taac.analysis.curves.learning_curves import area_under_curve
from taac.analysis.readers.run_records import Record
from taac.analysis.statistics.intervals import RESAMPLES, Interval, estimate_interval
from taac.analysis.statistics.quantiles import CONFIDENCE
from taac.analysis.statistics.scores import STATISTICS, Tasks

REPETITION = (
    "fraction_repeated", "mean_run", "max_run", "decisions", "length", "jerk", "fraction_same", "actor_calls_saved",
)  # fmt: skip
_COLUMNS = REPETITION[:-1]  # the last one is made of others
WORST, LEAVE_OUT = "worst", "leave_out"  # what counts for diverged runs


class Options(NamedTuple):
    """The options of a report."""

    last: int = 3  # the final return is the mean of at most this many last evaluations
    paired: bool = False  # pair runs by seed
    baseline: str | None = None  # compare every method with this one only; None for all pairs
    bounds: tuple[str, ...] = ()  # the lowest and highest possible return; see `taac.analysis.report.return_bounds`
    allow_mixed: bool = False
    group_by: tuple[str, ...] = ()  # settings that the names of methods show
    anchors: Path | None = None  # a file with more anchors
    published: Path | None = None  # a file with published returns
    at_step: int | None = None  # the step of comparison; None for the end of the first finished run; 0 for untrained agents
    diverged: str | float = "worst"  # the score of a diverged run, or "leave_out"; see `taac.analysis.report.diverged`


class Scores(NamedTuple):
    """The runs of one method on one task, in the order of their seeds. Scores of a run that diverged are -inf."""

    records: list[Record]
    final: np.ndarray  # [runs]
    area: np.ndarray  # [runs]; NaN if there is only one evaluation
    repetition: dict[str, np.ndarray]  # [runs] each, acting greedily
    exploring: dict[str, np.ndarray]  # [runs] each; NaN if a run has no summaries in the span

    @property
    def whole(self) -> list[Record]:
        """The runs that did not diverge."""
        return [r for r, score in zip(self.records, self.final) if not np.isneginf(score)]


def has_diverged(record: Record, step: int, policy: str | float) -> bool:
    """Whether a run counts as diverged at the compared step."""
    return policy == WORST and not record.problems and record.diverged is not None and record.diverged <= step


def compared_steps(records: Sequence[Record], at_step: int | None) -> dict[str, int]:
    """The step at which each task is compared, which is `at_step` if given. A task without a usable run has no entry."""
    steps = {}
    for task in sorted({r.task for r in records if r.task}):
        group = [r for r in records if r.task == task]
        runs = [r for r in group if not r.problems and r.last_due is not None and (r.last_due > 0 or at_step == 0)]
        finished = [r for r in runs if r.status == "finished"]
        ended = [int(r.due[-1]) for r in finished or runs]
        if not ended:  # all diverged
            gone = [r for r in group if r.diverged is not None and all(p.startswith("diverged") for p in r.problems)]
            ended = [r.budget or max(int(r.diverged or 0), r.last_due or 0) for r in gone]
        if ended:
            steps[task] = min(ended) if at_step is None else at_step
    return steps


def scores_of(
    used: Sequence[Record], steps: Mapping[str, int], last: int, policy: str | float
) -> tuple[dict[str, dict[str, Scores]], dict[str, int]]:
    """Returns the scores by task and method, and for each task the number of evaluations in a final return."""
    scores: dict[str, dict[str, Scores]] = {}
    kept: dict[str, int] = {}
    for task, step in steps.items():
        group = [r for r in used if r.task == task]
        if not group:
            continue
        whole = [r for r in group if not has_diverged(r, step, policy)]
        kept[task] = k = min([last, *(int(counted(r, step).sum()) for r in whole)])
        start = max((int(r.due[0]) for r in whole), default=step)
        scores[task] = {}
        for method in sorted({r.method for r in group}):
            runs = [r for r in group if r.method == method]
            runs.sort(key=lambda r: (r.seed is None, r.seed or 0, r.folder))
            rows = [_scores(r, step, k, start, has_diverged(r, step, policy)) for r in runs]
            scores[task][method] = Scores(
                runs,
                np.array([row[0] for row in rows]),
                np.array([row[1] for row in rows]),
                {name: np.array([row[2][name] for row in rows]) for name in REPETITION},
                {name: np.array([row[3][name] for row in rows]) for name in REPETITION},
            )
    return scores, kept


def _scores(
    r: Record, step: int, k: int, start: int, diverged: bool
) -> tuple[float, float, dict[str, float], dict[str, float]]:
    """Final return, area, and repetition of one run, greedy and exploring."""
    if diverged:
        nothing = dict.fromkeys(REPETITION, math.nan)
        return -math.inf, -math.inf, nothing, nothing
    return (
        float(_window(r, "return_mean", step, k).mean()),
        area_under_curve(r.due, r.returns, start, step) if start < step else math.nan,
        _repetition(lambda name: _window(r, name, step, k)),
        _repetition(lambda name: _rollouts(r, name, step, k)),
    )


def counted(record: Record, step: int) -> np.ndarray:
    """Which evaluations `[n]` are up to a step, and not of the untrained agent at step 0, unless that is the step."""
    return ((record.steps > 0) | (step == 0)) & (record.due <= step)


def _window(record: Record, name: str, step: int, k: int) -> np.ndarray:
    """The last k evaluations that count up to a step, `[k]`."""
    return record.evaluations[name][counted(record, step)][-k:]


def _repetition(values: Callable[[str], np.ndarray]) -> dict[str, float]:
    """Each of `REPETITION` from the values `[n]` of a column or summary by name; NaN where there are none."""
    found = {name: float(of.mean()) if (of := values(name)).size else math.nan for name in _COLUMNS}
    decisions, length = values("decisions"), values("length")
    known = length.sum() > 0 and decisions.size
    return {**found, "actor_calls_saved": float(1 - decisions.sum() / length.sum()) if known else math.nan}


def _rollouts(record: Record, name: str, step: int, k: int) -> np.ndarray:
    """The finite `rollout/` summaries in the span of the last k evaluations up to a step, `[n]`."""
    found = record.scalars.get(f"rollout/{name}")
    if found is None:
        return np.zeros(0)
    evaluated = record.steps[record.due <= step]
    after = evaluated[-k - 1] if evaluated.size > k else -math.inf
    end = max([step, *evaluated[-1:]])
    return found.value[(found.env_steps > after) & (found.env_steps <= end) & np.isfinite(found.value)]


# --- Intervals --------------------------------------------------------------------------------


def interval_of(tasks: Tasks, statistic: str, resamples: int = RESAMPLES) -> dict[str, Any]:
    """An estimate with its interval. Without an interval if a task has a single run."""
    if any(task.size < 2 for task in tasks):
        alone = float(STATISTICS[statistic](tasks))
        return Interval(alone, math.nan, math.nan, CONFIDENCE, "undefined: one run")._asdict()
    return estimate_interval(tasks, statistic, resamples)._asdict()


def summary(values: np.ndarray, names: Sequence[str] = ("mean", "iqm")) -> dict[str, Any]:
    """Statistics with intervals for one method on one task, over the runs whose value is finite."""
    known = values[np.isfinite(values)]
    return {"runs": int(known.size), **{name: interval_of([known], name) if known.size else None for name in names}}


def within(found: dict[str, Any], limits: bounds.Range | None) -> dict[str, Any]:
    """The statistics of returns that have limits: their intervals end there."""
    return {name: of if name == "runs" else bounds.cut_interval(name, of, limits) for name, of in found.items()}


def repetition_summaries(values: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The mean of each repetition measure with its interval, which ends where the measure does (`bounds.cut`)."""
    found = {name: summary(values[name], ("mean",)) for name in REPETITION}
    return {name: {**of, "mean": bounds.cut_interval(name, of["mean"])} for name, of in found.items()}
