"""Scores of runs for a report: the step at which each task is compared, and the numbers of each run there.

Evaluations of different runs belong together if they were due at the same step. One is due when a multiple of
`Intervals.evaluation_interval`, or the end of the run, is reached or passed. A method that repeats an action inside the
environment passes it by some steps: it is evaluated at 1002 instead of 1000.

Each task is compared at one step that its runs have reached. It is the requested step, or the last evaluation of the
finished run that ended first, or, if no run is finished, the last step that all of the task's runs have reached. Where not all
runs that went that far were evaluated there (a hook may have ended one), it is the last step before at which all were.

- The final return of a run is the mean of its last k evaluations up to that step, without the one before training.
  Finals and areas keep 12 digits, so that rounding makes no difference of equal success rates.
- Its area under the curve is taken from the first step common to all runs to that step, and divided by their distance, so
  that it is a return again.
- Repetition when acting greedily is the mean over the same k evaluations.
- Repetition when exploring is the mean of the `rollout/` summaries of the same span: after the evaluation before those k,
  up to that step.

Leaving out diverged runs would flatter their method, because the missing returns are missing for being bad. A diverged run
therefore ranks below every other run of its task, tied with others that diverged, and enters no mean; tables have the share of
runs that diverged beside each mean. This follows worst-rank scores in clinical trials. It depends on no other run, as an imputed
return would.

Source: Lachin, Worst-rank score analysis with informatively missing observations in clinical trials, Controlled Clinical
Trials 1999.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.analysis.curves.learning_curves import area_under_curve
from taac.analysis.readers.comparable import grouped
from taac.analysis.readers.run_records import LAST, Record, value_of
from taac.analysis.statistics.intervals import Range, cut_interval, estimate_interval
from taac.runs import layout

REPETITION = (
    "fraction_repeated", "mean_run", "max_run", "decisions", "length", "jerk", "action_change", "high_frequency", "effort",
    "fraction_same", "multiply_adds",
)  # fmt: skip


class Options(NamedTuple):
    """The options of a report."""

    last: int = LAST  # the final return is the mean of at most this many last evaluations
    paired: bool = False  # pair runs by seed
    baseline: str | None = None  # compare every method with this one only; None for all pairs
    bounds: tuple[str, ...] = ()  # the lowest and highest possible return; see `verdicts.read_bounds`
    allow_mixed: bool = False
    group_by: tuple[str, ...] = ()  # settings that the names of methods show
    anchors: Path | None = None  # a file with more anchors
    published: Path | None = None  # a file with published returns
    at_step: int | None = None  # the step of comparison; None for the end of the first finished run


class Scores(NamedTuple):
    """The runs of one method on one task, in the order of their seeds. Scores of a run that diverged are -inf."""

    records: list[Record]
    final: np.ndarray  # [runs]
    area: np.ndarray  # [runs]; NaN if there is only one evaluation
    repetition: dict[str, np.ndarray]  # [runs] each, acting greedily
    exploring: dict[str, np.ndarray]  # [runs] each; NaN if a run has no summaries in the span
    info: dict[str, np.ndarray]  # [runs] each, acting greedily: what the environment reports; NaN where a run does not

    @property
    def whole(self) -> list[Record]:
        """The runs that did not diverge."""
        return [r for r, score in zip(self.records, self.final) if not np.isneginf(score)]


AllScores = Mapping[str, Mapping[str, Scores]]  # by task and method


# --- Evaluations that were due at the same step ---------------------------------------------------


def match(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Returns the records with a column `due`, and a sentence for each method with evaluations later than they were due.

    The step at which a run diverged becomes the one that was due there, too: a divergence at 1002 is one at 1000.
    """
    matched: list[Record] = []
    late: dict[tuple[str, str], int] = {}
    for r in records:
        steps = r.steps if r.diverged is None else np.union1d(r.steps, r.diverged)
        due = due_steps(steps, *evaluation_plan(r))
        at = None if r.diverged is None else int(due[steps == r.diverged][0])
        due = due[np.isin(steps, r.steps)]
        matched.append(r._replace(evaluations={**r.evaluations, "due": due}, diverged=at))
        by = int(np.abs(r.steps - due).max(initial=0))
        late[str(r.task), r.method] = max(late.get((str(r.task), r.method), 0), by)
    return matched, [
        f"{method} on {task}: evaluations up to {by} step(s) after they were due count as those of the step they were due at"
        for (task, method), by in sorted(late.items())
        if by
    ]


def due_steps(steps: np.ndarray, interval: int | None, budget: int | None) -> np.ndarray:
    """Returns the steps `[n]` at which evaluations at `steps` were due; see `layout.due_step`.

    `steps` if the interval is unknown. An evaluation keeps its own step where another one was due at the same.
    """
    if interval is None:
        return steps
    due = np.array([layout.due_step(int(step), interval, budget) for step in steps], dtype=steps.dtype)
    due = np.where(due == 0, steps, due)
    passed = np.zeros(due.size, dtype=bool)
    passed[1:] = due[1:] <= steps[:-1]  # the evaluation before came at that step, or later
    return np.where(passed, steps, due)


def evaluation_plan(record: Record) -> tuple[int | None, int | None]:
    """Returns the distance between a run's evaluations, and its budget; None if unknown."""

    def whole(name: str) -> int | None:
        value = value_of(record.settings.get(f"Intervals.{name}", ""))
        return int(value) if type(value) in (int, float) and 1 <= value < 1e15 and value == int(value) else None

    return whole("evaluation_interval"), whole("num_env_steps")


# --- Diverged runs --------------------------------------------------------------------------------


def only_diverged(record: Record) -> bool:
    """Returns whether a run diverged, and has no other problem."""
    return record.diverged is not None and all(problem.startswith("diverged") for problem in record.problems)


def has_diverged(record: Record, step: int) -> bool:
    """Returns whether a run counts as diverged at the compared step; see `treat_diverged`."""
    return not record.problems and record.diverged is not None and record.diverged <= step


def treat_diverged(records: Sequence[Record], steps: Mapping[str, int]) -> list[Record]:
    """Makes diverged runs usable: they keep their evaluations from before the divergence."""
    found = []
    for r in records:
        if not only_diverged(r) or r.task is None or r.task not in steps:
            found.append(r)
        else:
            kept = r.steps < r.diverged
            note = f"diverged at step {r.diverged}; from there on it ranks below every run that did not, and enters no mean"
            table = {name: values[kept] for name, values in r.evaluations.items()}
            found.append(r._replace(evaluations=table, problems=(), notes=(*r.notes, note)))
    return found


# --- Scores ---------------------------------------------------------------------------------------


def compared_steps(records: Sequence[Record], at_step: int | None) -> dict[str, int]:
    """Returns the step at which each task is compared. A task without a usable run has no entry.

    Up to a given `at_step`, it is the last step at which all runs that went that far were evaluated; without one, the last at
    which any run was; without that, `at_step`.
    """
    steps = {}
    for task in sorted({r.task for r in records if r.task}):
        group = [r for r in records if r.task == task]
        runs = [r for r in group if not r.problems and r.last_due]
        finished = [r for r in runs if r.status == "finished"]
        ended = [int(r.due[-1]) for r in finished or runs]
        if not ended:  # all diverged
            ended = [r.budget or max(int(r.diverged or 0), r.last_due or 0) for r in group if only_diverged(r)]
        if ended:
            end = min(ended)
            if at_step is not None:
                end = max((int(due) for r in runs for due in r.due if 0 < due <= at_step), default=at_step)
            due = [set(map(int, r.due[(r.due > 0) & (r.due <= end)])) for r in runs if r.due[-1] >= end]
            steps[task] = max(set.intersection(*due), default=end) if due else end
    return steps


def scores_of(
    used: Sequence[Record], steps: Mapping[str, int], last: int
) -> tuple[dict[str, dict[str, Scores]], dict[str, int]]:
    """Returns the scores by task and method, and for each task the number of evaluations in a final return."""
    scores: dict[str, dict[str, Scores]] = {}
    kept: dict[str, int] = {}
    for task, step in steps.items():
        group = [r for r in used if r.task == task]
        if not group:
            continue
        whole = [r for r in group if not has_diverged(r, step)]
        kept[task] = k = min([last, *(int(counted(r, step).sum()) for r in whole)])
        start = max((int(r.due[0]) for r in whole), default=step)
        scores[task] = {}
        for method, runs in sorted(grouped(group, lambda r: r.method).items()):
            runs.sort(key=lambda r: (r.seed is None, r.seed or 0, r.folder))
            final, area, *acting = zip(*(_scores(r, step, k, start, has_diverged(r, step)) for r in runs))
            reported = dict.fromkeys(name for r in runs for name in r.evaluations if name.startswith(layout.INFO))
            found = [
                {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
                for names, rows in zip((REPETITION, REPETITION, reported), acting)
            ]
            scores[task][method] = Scores(runs, np.array(final), np.array(area), *found)
    return scores, kept


def _scores(
    r: Record, step: int, k: int, start: int, diverged: bool
) -> tuple[float, float, dict[str, float], dict[str, float], dict[str, float]]:
    """Returns final return, area, repetition, greedy and exploring, and what the environment reports, of one run."""
    if diverged:
        return -math.inf, -math.inf, {}, {}, {}

    def window(name: str) -> np.ndarray:
        """Returns the last k evaluations that count up to the step, `[k]`."""
        return r.evaluations[name][counted(r, step)][-k:]

    area = area_under_curve(r.due, r.returns, start, step) if start < step else math.nan
    exploring = _repetition(lambda name: _rollouts(r, name, step, k))
    info = {name: float(window(name).mean()) for name in r.evaluations if name.startswith(layout.INFO)}
    return exact(float(window("return_mean").mean())), exact(area), _repetition(window), exploring, info


def exact(value: float) -> float:
    """Rounds to 12 digits: means of the same numbers in another order are then equal."""
    return float(f"{value:.12g}")


def counted(record: Record, step: int) -> np.ndarray:
    """Returns which evaluations `[n]` are up to a step, and not of the untrained agent at step 0."""
    return (record.steps > 0) & (record.due <= step)


def _repetition(values: Callable[[str], np.ndarray]) -> dict[str, float]:
    """Returns each of `REPETITION` from the values `[n]` of a column or summary by name; NaN where there are none."""
    return {name: float(of.mean()) if (of := values(name)).size else math.nan for name in REPETITION}


def _rollouts(record: Record, name: str, step: int, k: int) -> np.ndarray:
    """Returns the finite `rollout/` summaries in the span of the last k evaluations up to a step, `[n]`."""
    found = record.scalars.get(f"rollout/{name}")
    if found is None:
        return np.zeros(0)
    evaluated = record.steps[record.due <= step]
    after = evaluated[-k - 1] if evaluated.size > k else -math.inf
    end = max([step, *evaluated[-1:]])
    return found.value[(found.env_steps > after) & (found.env_steps <= end) & np.isfinite(found.value)]


def summary(
    name: str, values: np.ndarray, statistics: Sequence[str] = ("mean", "iqm"), limits: Range | None = None
) -> dict[str, Any]:
    """Statistics with intervals for one method on one task, over the runs whose value is finite.

    Intervals end at `limits`, or where the quantity `name` does (`cut_interval`).
    """
    known = values[np.isfinite(values)]
    found = {s: estimate_interval([known], s)._asdict() if known.size else None for s in statistics}
    return {"runs": int(known.size), **{s: cut_interval(name, of, limits) for s, of in found.items()}}
