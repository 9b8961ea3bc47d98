"""The sentences of a report: how its numbers were made, what the settings of its methods are, and warnings."""

from __future__ import annotations

import os
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from taac.analysis.readers import run_records
from taac.analysis.readers.comparable import grouped, named
from taac.analysis.readers.run_records import Record
from taac.analysis.report.figures import MOST_POINTS
from taac.analysis.report.scores import AllScores, counted, has_diverged
from taac.runs import files, layout
from taac.runs.layout import deciding

FEWEST_SEEDS, ADVISED_SEEDS = 5, 10
_MOST_NAMED = 100  # the most missing runs named


def html_file(name: str) -> str:
    """Returns the text of a file in `html/`: a part of the page, or of what it says."""
    return Path(__file__).with_name("html").joinpath(name).read_text(encoding="utf-8")


def statements(content: dict[str, Any]) -> list[dict[str, str]]:
    """Returns a subject and a text for each kind of number: what it is and how it was estimated."""
    options = content["options"]
    bounded = ", ".join(f"{task['task']} {task['bounds']}" for task in content["tasks"] if task["bounds"])
    values = {
        **options,
        "level": f"{options['confidence']:.0%}",
        "error": f"{1 - options['confidence']:.2g}",
        "paired": ", here on the differences of runs with equal seeds (--paired)," if options["paired"] else "",
        "bounded": f"Returns have bounds on {bounded}. Where all returns of a pair are at a bound, its own test is Fisher's "
        "exact test and the interval is Newcombe's, from Clopper-Pearson's. " if bounded else "",
        "tuning": "; ".join(f"{method}: {text}" for method, text in content["tuning"].items()),
        "points": MOST_POINTS,
        "compared": "the last evaluation of the finished run that ended first or, if no run is finished, the last step that all "
        "runs have reached; where not all runs that went so far were evaluated there, the last step before it at which all were"
        if options["at_step"] is None else
        f"the last evaluation of all its runs up to step {options['at_step']}, as requested (--at_step)",
    }  # fmt: skip
    sections = (section.split("\n", 1) for section in html_file("statements.md").split("\n## ")[1:])
    return [{"about": about, "text": string.Template(" ".join(text.split())).substitute(values)} for about, text in sections]


def ahead(content: dict[str, Any]) -> list[str]:
    """Says in a sentence for each task which methods are ahead of which, and which are on its front."""
    sentences = []
    for task in content["tasks"]:
        methods = [row["method"] for row in task["methods"]]
        better: dict[str, list[str]] = {}
        pairs = [pair for pair in content["pairs"] if pair["task"] == task["task"]]
        for pair in pairs:
            if pair["verdict"] in ("better", "worse"):
                x, y = (pair["x"], pair["y"]) if pair["verdict"] == "better" else (pair["y"], pair["x"])
                better.setdefault(x, []).append(y)
        told = [f"{x} is ahead of {', '.join(sorted(worse))}" for x, worse in sorted(better.items(), key=lambda b: -len(b[1]))]
        found = "; ".join(told) or _no_verdict(methods, pairs, content["options"]["baseline"])
        for front in content["fronts"]:
            if front["task"] == task["task"] and front["cost"] == "decisions":
                on_front = ", ".join(
                    row["method"] + (f" ({row['diverged']} of its runs diverged)" if row["diverged"] else "")
                    for row in front["methods"]
                    if row["on_front"]
                )
                found += f". On the front of return against decisions: {on_front}"
        sentences.append(f"{task['task']}: {found}.")
    return sentences


def _no_verdict(methods: Sequence[str], pairs: Sequence[Mapping[str, Any]], baseline: str | None) -> str:
    if len(methods) == 1:
        return "one method"
    if not any(pair["findable"] for pair in pairs):
        return "too few runs for a verdict" if pairs else f"{baseline} has no runs here"
    return "no difference in final returns was found" + ("" if baseline is None else f" from {baseline}")


def describe_family(content: dict[str, Any]) -> str:
    """Says what was compared, by which test, and for how many comparisons it is corrected."""
    family, options = content["family"], content["options"]
    kind = "every two methods" if options["baseline"] is None else f"every method with {options['baseline']}"
    level = 1 - options["confidence"]
    one = family["final"] == 1
    if not family["final"]:
        return "No two methods have two runs each on the same task, so nothing can be tested."
    return (
        f"{family['final']} comparison{'' if one else 's'} of final returns ({kind}, on each task and over tasks) "
        f"{'is' if one else 'are'} one family, {family['area']} of areas under the curve another. Within each, the probability "
        f"of any wrong verdict is at most "
        f"{level:.2g} if no method differs; in both together, {2 * level:.2g}. All pairs are compared "
        + ("by seed, by Student's t of differences" if options["paired"] else "unpaired, by Welch's t")
        + " and a permutation test."
    )


def settings_told(records: Sequence[Record]) -> list[str]:
    """Returns the settings of `deciding` in lines: one for all that are equal, and one for each that is not."""
    told = [(str(r.task), r.method, deciding(r.settings, r.update_ratio)) for r in records]
    equal: list[str] = []
    others: list[str] = []
    for label in told[0][2]:
        by_task: dict[str, dict[str, set[str]]] = {}
        for task, method, values in told:
            by_task.setdefault(task, {}).setdefault(method, set()).add(values[label])
        of_tasks = {task: _by_method(methods) for task, methods in sorted(by_task.items())}
        first, *more = dict.fromkeys(of_tasks.values())
        if more:
            others.append(f"{label}: " + "; ".join(f"{text} on {task}" for task, text in of_tasks.items()))
        else:
            differ = len({frozenset(values) for values in next(iter(by_task.values())).values()}) > 1
            (others if differ else equal).append(f"{label}: {first}")
    return [*(["; ".join(equal)] if equal else []), *others]


def _by_method(methods: Mapping[str, set[str]]) -> str:
    """Returns the values of each method; once if they are equal."""
    texts = {method: " or ".join(sorted(values)) for method, values in sorted(methods.items())}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{text} ({method})" for method, text in texts.items())


def tuning_told(records: Sequence[Record]) -> dict[str, str]:
    """Returns what the settings of each method were chosen for, as its runs have it in `create_experiment.tuning`."""
    methods = sorted(grouped(records, lambda r: r.method).items())
    return {method: "; ".join(sorted({run_records.tuning(r) or "not stated" for r in of})) for method, of in methods}


# --- Warnings -------------------------------------------------------------------------------------


def run_warnings(records: Sequence[Record], steps: Mapping[str, int]) -> list[str]:
    """Warns about runs that are left out, and about repaired data in those that are included."""
    warnings = []
    for note, n in Counter(note for r in records for note in r.notes).items():
        first = next(f"run {r.folder} ({r.method})" for r in records if note in r.notes)
        warnings.append(f"{first if n == 1 else f'{n} runs, the first {first}'}: {note}")
    for r in records:
        if why := left_out(r, steps):
            warnings.append(f"run {r.folder} ({r.method}) is left out: {why}")
        elif has_diverged(r, steps[str(r.task)]):
            pass  # its note says so
        elif r.status != "finished":
            warnings.append(f"run {r.folder} ({r.method}) is included, but not finished: its status is {r.status!r}")
        elif r.budget is not None and r.last_due is not None and r.last_due < r.budget:
            warnings.append(
                f"run {r.folder} ({r.method}) is finished, but its evaluations end at step {r.last_step} of {r.budget}; "
                f"runs on {r.task} are compared no later than that"
            )
    return warnings


def missing_warnings(root: Path, records: Sequence[Record]) -> list[str]:
    """Warns about runs that `taac compare` planned in this folder's compare.json but that have no folder here.

    A run is identified by task, method and seed, or by its folder relative to the plan. The warnings leave out how often
    and when a run was tried, so that an interrupted campaign and an uninterrupted one produce the same report.
    """
    path = root / layout.COMPARISON
    if not os.path.lexists(path):
        return []
    known = {(r.task, r.method, r.seed) for r in records}
    folders = {r.folder for r in records}
    warnings = []
    try:
        for run in files.read_json(path, files.MAX_JSON_BYTES)["runs"]:
            folder = "/".join(PurePath(run["folder"]).parts[-3:])  # <task>/<method>/seed_<n>: all may have been moved
            if (run["task"], run["method"], run["seed"]) in known or folder in folders:
                continue
            why = (run.get("error") or "").removesuffix(f" (see {run.get('log')})")
            why = re.sub(r", \d+ times(?=: )", "", why, count=1)
            warnings.append(f"run {folder} ({run['method']}) is planned but missing: {run['status']}{why and f', {why}'}")
    except (OSError, files.Damaged, ValueError, KeyError, TypeError, AttributeError) as error:
        told = "cannot be read, so runs without a folder are unknown"
        return [f"{layout.COMPARISON} {told}: {type(error).__name__}: {error}"]
    if len(warnings) > _MOST_NAMED:
        warnings[_MOST_NAMED:] = [f"{len(warnings) - _MOST_NAMED} more runs are planned but missing"]
    return warnings


def left_out(record: Record, steps: Mapping[str, int]) -> str | None:
    """Returns why a run is left out, or None if it is included."""
    if record.problems:
        return "; ".join([*record.problems, *(["it failed"] if record.status == "failed" else [])])
    step = steps.get(record.task or "")
    if step is not None and has_diverged(record, step):
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
    groups = grouped(used, lambda r: (r.task, r.method))
    for task in sorted({r.task for r in records if r.task}):
        seeds = {m: [r.seed for r in groups.get((task, m), [])] for m in sorted({r.method for r in records})}
        every = {seed for of in seeds.values() for seed in of if seed is not None}
        for method, of in seeds.items():
            if not of:
                warnings.append(f"{method} on {task}: no usable run")
                continue
            if len(of) < FEWEST_SEEDS:
                few = f"{len(of)} seed(s), fewer than {FEWEST_SEEDS}; {ADVISED_SEEDS} are advised before a claim is made"
                warnings.append(f"{method} on {task}: {few}")
            if missing := sorted(every.difference(of)):
                lacking = ", ".join(map(str, missing))
                warnings.append(f"unequal seeds on {task}: {method} lacks {lacking}, which others have")
    return warnings


def untrained_warnings(by_task: AllScores, steps: Mapping[str, int], kept: Mapping[str, int]) -> list[str]:
    """Says on which tasks final returns, means of the last `kept` evaluations, count some before the first update."""
    warnings = []
    for task, methods in by_task.items():
        early = []
        for r in (r for of in methods.values() for r, final in zip(of.records, of.final) if np.isfinite(final)):
            updates = r.evaluations.get("updates", r.steps)[counted(r, steps[task])]
            early += [] if updates[-kept[task] :].all() else [r]
        if early:
            warnings.append(f"final returns on {task} count evaluations before the first update: {named(early)}")
    return warnings
