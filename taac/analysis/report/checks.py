"""What makes runs incomparable, and what a reader of a comparison must be warned of."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path, PurePath

import numpy as np

from taac.analysis.readers.run_records import Record
from taac.analysis.report.scores import Scores
from taac.errors import TaacError
from taac.runs import files

FEWEST_SEEDS, ADVISED_SEEDS = 5, 10
# Packages that read and show, but do not decide, a result.
_NO_MATTER = ("tensorboard", "gin-config")
_ENVIRONMENT = ("env_kwargs", "max_episode_steps", "wrappers")
_EVALUATION = ("evaluation_interval", "evaluation_episodes", "evaluation_epsilon")
PLAN = "compare.json"  # what `taac compare` writes of all of its runs
_LONGEST = 1000  # characters of a name or an error in it
_MOST_NAMED = 100  # runs that are missing
_LONGEST = 200  # characters of a value that a message tells
_NAMED = 8  # runs that a message names


def mixtures(records: Sequence[Record]) -> list[str]:
    """What differs between runs that are to be compared, a sentence each, with the runs that differ from most.

    Over all runs: versions of packages. Over the runs of a task: budgets, update ratios, settings of the environment and
    of evaluations. Over the runs of a method on a task: all settings but the seed, and no seed twice.
    """
    found = []
    packages = sorted({p for r in records for p in r.versions} - set(_NO_MATTER))
    for package in packages:
        found += _differing(records, f"version of {package}", lambda r, p=package: _known(r.versions.get(p)))  # type: ignore[misc]
    for task, group in _grouped(records, lambda r: r.task).items():
        found += _differing(group, f"budget on {task}, environment steps", lambda r: _known(r.budget))
        found += _differing(group, f"updates per environment step on {task}", lambda r: _known(r.update_ratio))
        for name in (*(f"create_environment.{n}" for n in _ENVIRONMENT), *(f"Trainer.{n}" for n in _EVALUATION)):
            found += _differing(group, f"{name} on {task}", lambda r, n=name: r.settings.get(n, _UNKNOWN))  # type: ignore[misc]
    for (task, method), group in _grouped(records, lambda r: (r.task, r.method)).items():
        found += _differing(group, f"configuration of {method} on {task}", _configuration, show=False)
        for seed, twice in _grouped(group, lambda r: r.seed).items():
            if seed is not None and len(twice) > 1:
                found.append(f"seed {seed} of {method} on {task} is there more than once: {named(twice)}")
    return found


def refuse_mixtures(records: Sequence[Record], allow_mixed: bool) -> list[str]:
    """`mixtures`, as warnings.

    Raises:
        TaacError: there are some, and they are not allowed.
    """
    found = mixtures(records)
    if found and not allow_mixed:
        raise TaacError(
            "these runs are not comparable; give a folder without those that differ, or --allow_mixed:\n  "
            + "\n  ".join(found)
        )
    return [f"not comparable: {mixture}" for mixture in found]


def run_warnings(records: Sequence[Record], steps: Mapping[str, int]) -> list[str]:
    """Runs that are not in the numbers, and why; what was mended in those that are.

    Args:
        steps: at which the runs of each task are compared.
    """
    warnings = []
    for r in records:
        why = left_out(r, steps)
        if why:
            warnings.append(f"run {r.folder} ({r.method}) is left out: {why}")
        elif r.status != "finished":
            warnings.append(f"run {r.folder} ({r.method}) is in, but not finished: its status is {r.status!r}")
        elif r.budget is not None and r.last_step is not None and r.last_step < r.budget:
            warnings.append(
                f"run {r.folder} ({r.method}) is finished, but its evaluations end at step {r.last_step} of {r.budget}: "
                f"all of {r.task} is compared no later than that"
            )
        warnings += [f"run {r.folder} ({r.method}): {note}" for note in r.notes]
    diverged = Counter((r.task, r.method) for r in records if any(p.startswith("diverged") for p in r.problems))
    for (task, method), n in sorted(diverged.items(), key=str):
        warnings.append(f"{method} on {task}: {n} diverged run(s) left out, which flatters it")
    return warnings


def missing_warnings(root: Path, records: Sequence[Record]) -> list[str]:
    """Runs that `taac compare` planned, by its compare.json in this folder, and that left no folder here.

    A run is known by task, method and seed, or by its folder below the record's. How often it was tried, and when, is not
    told: a campaign that was interrupted and one that was not say the same.
    """
    path = root / PLAN
    if not os.path.lexists(path):
        return []
    tasks = {(r.task, r.method, r.seed) for r in records}
    folders = {r.folder for r in records}
    warnings = []
    try:
        for run in files.read_bounded_json(path, files.MAX_JSON_BYTES)["runs"]:
            task, method, seed, status = (run[name] for name in ("task", "method", "seed", "status"))
            names = (task, method, status, run["folder"])
            if not all(isinstance(name, str) and len(name) <= _LONGEST and name.isprintable() for name in names):
                raise ValueError(f"a run of it has a task, method, status or folder that is no name: {names!r:.200}")
            folder = "/".join(PurePath(run["folder"]).parts[-3:])  # <task>/<method>/seed_<n>: all may have been moved
            if (task, method, seed) in tasks or folder in folders:
                continue
            why = (run.get("error") or "").removesuffix(f" (see {run.get('log')})")
            why = re.sub(r", \d+ times(?=: )", "", why[:_LONGEST], count=1).encode("utf-8", "backslashreplace").decode()
            warnings.append(f"run {folder} ({method}) is planned, and not there: {status}{why and f', {why}'}")
    except (OSError, files.Damaged, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return [f"{PLAN} cannot be read, so runs that left no folder are not known: {type(error).__name__}: {error}"]
    if len(warnings) > _MOST_NAMED:
        warnings[_MOST_NAMED:] = [f"{len(warnings) - _MOST_NAMED} more runs are planned, and not there"]
    return warnings


def left_out(record: Record, steps: Mapping[str, int]) -> str | None:
    """Why a run has no part in the numbers; None: it has."""
    if record.problems:
        return "; ".join(record.problems)
    step = steps.get(record.task or "")
    if step is None or record.last_step is None or record.last_step < step:
        of = f" of {record.budget}" if record.budget else ""
        what = "too short" if record.status == "finished" else "unfinished"
        return f"{what}: evaluated up to step {record.last_step}{of}, compared at {step}"
    if record.steps[0] > step:
        return f"evaluated from step {record.steps[0]:g} on, compared at {step}"
    return None


def seed_warnings(records: Sequence[Record], used: Sequence[Record]) -> list[str]:
    """Too few seeds, unequal ones, and methods that lack a task."""
    warnings = []
    methods = sorted({r.method for r in records})
    by_task = _grouped(used, lambda r: r.task)
    for task in sorted({r.task for r in records if r.task}):
        seeds = {
            m: sorted(r.seed for r in by_task.get(task, []) if r.method == m and r.seed is not None) for m in methods
        }
        counts = {m: sum(r.method == m for r in by_task.get(task, [])) for m in methods}
        union = sorted({s for of in seeds.values() for s in of})
        for method in methods:
            n = counts[method]
            if not n:
                warnings.append(f"{method} on {task}: no run that can be used")
                continue
            if n < FEWEST_SEEDS:
                warnings.append(
                    f"{method} on {task}: {n} seed(s), fewer than {FEWEST_SEEDS}; "
                    f"{ADVISED_SEEDS} are advised before a claim is made"
                )
            missing = [s for s in union if s not in seeds[method]]
            if missing:
                warnings.append(
                    f"unequal seeds on {task}: {method} lacks {', '.join(map(str, missing))}, which others have"
                )
    return warnings


def exploring_warnings(scores: Mapping[str, Mapping[str, Scores]]) -> list[str]:
    """Runs of which nothing tells how much they repeated while exploring."""
    methods = [of for methods in scores.values() for of in methods.values()]
    without = [
        r for of in methods for i, r in enumerate(of.records) if all(np.isnan(v[i]) for v in of.exploring.values())
    ]
    if not without:
        return []
    return [
        f"repetition while exploring is not known of {named(without)}: no rollout/ summaries at the end of training"
    ]


_UNKNOWN = object()  # says nothing, so it differs from nothing


def _known(value: Hashable) -> Hashable:
    return _UNKNOWN if value is None else value


def _configuration(record: Record) -> Hashable:
    return tuple(sorted(record.settings.items())) if record.settings else _UNKNOWN


def _grouped(records: Sequence[Record], key: Callable[[Record], Hashable]) -> dict:
    groups: dict[Hashable, list[Record]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return groups


def _differing(records: Sequence[Record], what: str, key: Callable[[Record], Hashable], show: bool = True) -> list[str]:
    """One sentence where records differ in `key`: the most frequent value (of several, the first), and who has which other."""
    groups = _grouped([r for r in records if key(r) is not _UNKNOWN], key)
    if len(groups) < 2:
        return []
    (usual, most), *others = sorted(groups.items(), key=lambda item: -len(item[1]))
    told = [
        f"{named(group)} {f'has {_short(value)}' if show else _changes(most[0], group[0])}" for value, group in others
    ]
    return [f"{what}: {_short(usual) if show else 'the same'} in {len(most)} run(s), but {'; '.join(told)}"]


def _short(value: Hashable) -> str:
    """A value as text that a message has room for."""
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _changes(usual: Record, other: Record) -> str:
    names = sorted(set(usual.settings) | set(other.settings))
    changed = [n for n in names if usual.settings.get(n) != other.settings.get(n)]
    # A macro and what it is bound to change together; the binding says more.
    changed = [n for n in changed if "." in n] or changed
    shown = [f"{n} = {_short(other.settings.get(n))} for {_short(usual.settings.get(n))}" for n in changed[:3]]
    return f"has {', '.join(shown)}{' and more' if len(changed) > 3 else ''}"


def named(records: Sequence[Record]) -> str:
    """The folders of runs, the first of them."""
    shown = ", ".join(r.folder for r in records[:_NAMED])
    return f"{shown} and {len(records) - _NAMED} more" if len(records) > _NAMED else shown
