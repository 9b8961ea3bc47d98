"""Warnings for the readers of a comparison."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

import numpy as np

from taac.analysis.readers.comparable import grouped, named
from taac.analysis.readers.run_records import Record
from taac.analysis.report.scores import Scores, counted, has_diverged
from taac.runs import files, layout

FEWEST_SEEDS, ADVISED_SEEDS = 5, 10
PLAN = layout.COMPARISON  # the plan that `taac compare` writes
_LONGEST = 1000  # the most characters of a name or an error in the plan
_MOST_NAMED = 100  # the most missing runs named


def run_warnings(records: Sequence[Record], steps: Mapping[str, int], policy: str | float) -> list[str]:
    """Warns about runs that are left out, and about repaired data in those that are included.

    Args:
        steps: the step at which the runs of each task are compared.
    """
    warnings = []
    for r in records:
        why = left_out(r, steps, policy)
        if why:
            warnings.append(f"run {r.folder} ({r.method}) is left out: {why}")
        elif has_diverged(r, steps[str(r.task)], policy):
            pass  # its note says so
        elif r.status != "finished":
            warnings.append(f"run {r.folder} ({r.method}) is included, but not finished: its status is {r.status!r}")
        elif r.budget is not None and r.last_due is not None and r.last_due < r.budget:
            warnings.append(
                f"run {r.folder} ({r.method}) is finished, but its evaluations end at step {r.last_step} of {r.budget}; "
                f"runs on {r.task} are compared no later than that"
            )
        warnings += [f"run {r.folder} ({r.method}): {note}" for note in r.notes]
    diverged = Counter((r.task, r.method) for r in records if any(p.startswith("diverged") for p in r.problems))
    for (task, method), n in sorted(diverged.items(), key=str):
        warnings.append(f"{method} on {task}: {n} diverged run(s) left out, which flatters it")
    return warnings


def missing_warnings(root: Path, records: Sequence[Record]) -> list[str]:
    """Warns about runs that `taac compare` planned in this folder's compare.json but that have no folder here.

    A run is identified by task, method and seed, or by its folder relative to the plan. The warnings leave out how often
    and when a run was tried, so that an interrupted campaign and an uninterrupted one produce the same report.
    """
    path = root / PLAN
    if not os.path.lexists(path):
        return []
    tasks = {(r.task, r.method, r.seed) for r in records}
    folders = {r.folder for r in records}
    warnings = []
    try:
        for run in files.read_json(path, files.MAX_JSON_BYTES)["runs"]:
            task, method, seed, status = (run[name] for name in ("task", "method", "seed", "status"))
            names = (task, method, status, run["folder"])
            if not all(isinstance(name, str) and len(name) <= _LONGEST and name.isprintable() for name in names):
                raise ValueError(f"the task, method, status or folder of a run in it is not a name: {names!r:.200}")
            folder = "/".join(PurePath(run["folder"]).parts[-3:])  # <task>/<method>/seed_<n>: all may have been moved
            if (task, method, seed) in tasks or folder in folders:
                continue
            why = (run.get("error") or "").removesuffix(f" (see {run.get('log')})")
            why = re.sub(r", \d+ times(?=: )", "", why[:_LONGEST], count=1).encode("utf-8", "backslashreplace").decode()
            warnings.append(f"run {folder} ({method}) is planned but missing: {status}{why and f', {why}'}")
    except (OSError, files.Damaged, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return [f"{PLAN} cannot be read, so runs without a folder are unknown: {type(error).__name__}: {error}"]
    if len(warnings) > _MOST_NAMED:
        warnings[_MOST_NAMED:] = [f"{len(warnings) - _MOST_NAMED} more runs are planned but missing"]
    return warnings


def left_out(record: Record, steps: Mapping[str, int], policy: str | float) -> str | None:
    """Why a run is left out, or None if it is included."""
    if record.problems:
        return "; ".join([*record.problems, *(["it failed"] if record.status == "failed" else [])])
    step = steps.get(record.task or "")
    if step is not None and has_diverged(record, step, policy):
        return None
    if step is None or record.last_due is None or record.last_due < step:
        of = f" of {record.budget}" if record.budget else ""
        what = {"finished": "too short", "failed": "it failed"}.get(record.status, "unfinished")
        reached = "not evaluated" if record.last_due is None else f"evaluated up to step {record.last_step}{of}"
        # Only where all usable runs of a task were evaluated at step 0 alone is there no step to compare them at.
        where = f"compared at {step}" if step is not None else f"and no usable run on {record.task} was evaluated later"
        return f"{what}: {reached}, {where}"
    if not counted(record, step).any():
        first = record.due[record.steps > 0].min(initial=np.inf)  # an evaluation at step 0 is of the untrained agent
        return f"evaluated from step {first:g} on, compared at {step}"
    return None


def seed_warnings(records: Sequence[Record], used: Sequence[Record]) -> list[str]:
    """Warns about too few seeds, unequal seeds, and methods without runs on a task."""
    warnings = []
    methods = sorted({r.method for r in records})
    groups = grouped(used, lambda r: (r.task, r.method))
    for task in sorted({r.task for r in records if r.task}):
        seeds = {m: [r.seed for r in groups.get((task, m), [])] for m in methods}
        every = {seed for of in seeds.values() for seed in of if seed is not None}
        for method, of in seeds.items():
            if not of:
                warnings.append(f"{method} on {task}: no usable run")
                continue
            if len(of) < FEWEST_SEEDS:
                warnings.append(
                    f"{method} on {task}: {len(of)} seed(s), fewer than {FEWEST_SEEDS}; "
                    f"{ADVISED_SEEDS} are advised before a claim is made"
                )
            if missing := sorted(every.difference(of)):
                warnings.append(
                    f"unequal seeds on {task}: {method} lacks {', '.join(map(str, missing))}, which others have"
                )
    return warnings


def exploring_warnings(scores: Mapping[str, Mapping[str, Scores]]) -> list[str]:
    """Warns about runs whose repetition while exploring is unknown."""
    without = [
        r
        for methods in scores.values()
        for of in methods.values()
        for i, r in enumerate(of.records)
        if not np.isneginf(of.final[i]) and all(np.isnan(v[i]) for v in of.exploring.values())
    ]
    told = f"repetition while exploring is not known for {named(without)}: no rollout/ summaries at the end of training"
    return [told] if without else []
