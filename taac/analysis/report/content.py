"""Computes the numbers of a comparison from run folders, as one object of plain JSON values.

`taac.analysis.report.scores` defines each number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taac import __version__
from taac.analysis.readers import comparable, groups, run_records
from taac.analysis.readers.run_records import Record
from taac.analysis.report import (
    anchors,
    checks,
    curves,
    diverged,
    iqm_curves,
    matching,
    over_tasks,
    published,
    return_bounds,
    statements,
    terms,
    verdicts,
)
from taac.analysis.report.scores import (
    Options,
    Scores,
    compared_steps,
    has_diverged,
    repetition_summaries,
    scores_of,
    summary,
    within,
)
from taac.analysis.statistics.intervals import RESAMPLES, SEED
from taac.analysis.statistics.quantiles import CONFIDENCE
from taac.errors import TaacError

SCHEMA = 2
Made = Mapping[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]]  # the rows of `verdicts.families_of`


def make_report(root: Path, options: Options) -> dict[str, Any]:
    """Compares all runs below a folder. Returns the content of report.json.

    Raises:
        TaacError: there are no runs or no usable ones, they are not comparable (without `allow_mixed`), or the anchors or
            options are wrong.
    """
    if options.last < 1:
        raise TaacError(f"--last_evaluations must be 1 or more, got {options.last}")
    if options.at_step is not None and options.at_step < 0:
        raise TaacError(f"--at_step must be 0 or more, got {options.at_step}")
    diverged.check_policy(options.diverged)
    version, scales = anchors.load(options.anchors)
    entries = published.load(options.published)
    found = run_records.find(root)
    records, told_apart = groups.labelled(found, options.group_by)
    warnings = [*told_apart, *comparable.refuse_mixtures(records, options.allow_mixed)]
    records, late = matching.match(records)
    warnings += late + comparable.roundings(records)
    steps = compared_steps(records, options.at_step)
    policy = options.diverged
    records = diverged.treat_diverged(records, steps, policy)
    used = [r for r in records if checks.left_out(r, steps, policy) is None]
    warnings += checks.run_warnings(records, steps, policy)
    warnings += checks.missing_warnings(root, found)
    if not used:
        raise TaacError(f"none of the {len(records)} runs below {root} can be used:\n  " + "\n  ".join(warnings))
    warnings += checks.seed_warnings(records, used)
    scores, kept = scores_of(used, steps, options.last, policy)
    limits = return_bounds.read(options.bounds, scales, scores, warnings)
    verdicts.check(scores, options)
    normal = over_tasks.normalized(scores, scales)
    made = verdicts.families_of(scores, normal, limits, options)
    for task in sorted(kept):
        if kept[task] < options.last:
            warnings.append(f"final returns on {task} are means of {kept[task]} evaluation(s), not {options.last}")
        running = not any(r.status == "finished" or has_diverged(r, steps[task], policy) for r in used if r.task == task)
        if options.at_step is None and running:
            warnings.append(f"no run on {task} is finished; compared at step {steps[task]}, which all have reached")
    warnings += checks.exploring_warnings(scores)
    warnings += published.unused(options.published, entries, scores)
    block = over_tasks.over_tasks(scores, scales, version, normal, made, options, warnings)
    block["curves"] = iqm_curves.iqm_curves(scores, scales, steps, normal)
    content = {
        "schema": SCHEMA,
        "taac": __version__,
        "options": {
            "last": options.last,
            "confidence": CONFIDENCE,
            **options._asdict(),
            "anchors": options.anchors and options.anchors.name,
            "published": options.published and options.published.name,
            "resamples": RESAMPLES,
            "seed": SEED,
        },
        "methods": sorted({r.method for r in used}),
        "runs": [_run(r, scores, steps, options) for r in records],
        "tasks": [
            _task(task, scores[task], steps[task], kept[task], made, limits.get(task), options) for task in sorted(scores)
        ],
        "family": {measure: sum(map(len, rows)) for measure, rows in made.items()},
        "pairs": made["final"][0],
        "area_pairs": made["area"][0],
        "over_tasks": block,
        "published": published.beside(entries, scores),
        "axes": curves.AXES,
        "measures": curves.MEASURES,
        "curves": curves.curves(scores, limits),
        "warnings": warnings,
    }
    content["published_told"] = published.NOTE
    content["tuning"] = _tuning(used)
    content["settings_told"] = statements.settings_told(used)
    content["family_told"] = statements.family_told(content)
    content["terms"] = terms.terms()
    content["statements"] = statements.statements(plain(content))
    return plain(content)


# --- Blocks ---------------------------------------------------------------------------------------


def _run(
    r: Record, scores: Mapping[str, Mapping[str, Scores]], steps: Mapping[str, int], options: Options
) -> dict[str, Any]:
    out = checks.left_out(r, steps, options.diverged)
    row: dict[str, Any] = {
        "folder": r.folder, "task": r.task, "method": r.method, "method_from": r.method_rule, "seed": r.seed,
        "status": r.status, "last_step": r.last_step, "budget": r.budget, "update_ratio": r.update_ratio,
        "diverged": r.diverged, "left_out": out, "final": None, "area": None,
    }  # fmt: skip
    if out is None and r.task is not None:
        of = scores[r.task][r.method]
        at = next(i for i, other in enumerate(of.records) if other.folder == r.folder)
        row["final"], row["area"] = of.final[at], of.area[at]
    return row


def _task(
    task: str,
    methods: Mapping[str, Scores],
    step: int,
    k: int,
    made: Made,
    limits: tuple[float, float] | None,
    options: Options,
) -> dict[str, Any]:
    """The rows of a task's methods. Their numbers are of the runs that did not diverge."""
    pairs = [pair for pair in made["final"][0] if pair["task"] == task]
    rows: list[dict[str, Any]] = []
    for method, of in methods.items():
        known, final = of.whole, within(summary(of.final), limits)
        rows.append({
            "method": method,
            "seeds": [r.seed for r in of.records],
            "runs": len(of.records),
            "diverged": len(of.records) - len(known),
            "final": final,
            "area": within(summary(of.area), limits),
            "repetition": repetition_summaries(of.repetition),
            "repetition_exploring": repetition_summaries(of.exploring),
        })  # fmt: skip
    if options.baseline is None:
        found = verdicts.ranks(pairs, {row["method"]: (row["final"]["mean"] or {}).get("estimate") for row in rows})
        for row in rows:
            row["rank"] = found[row["method"]]
    return {"task": task, "step": step, "evaluations": k, "bounds": limits, "methods": rows}


def _tuning(records: Sequence[Record]) -> dict[str, str]:
    """What the settings of each method were chosen for, as its runs have it in `create_experiment.tuning`."""
    found: dict[str, set[str]] = {}
    for r in records:
        found.setdefault(r.method, set()).add(run_records.tuning(r) or "not stated")
    return {method: "; ".join(sorted(texts)) for method, texts in sorted(found.items())}


def plain(value: Any) -> Any:
    """Converts to built-in types, with None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        return plain(value.tolist())
    if isinstance(value, str):  # JSON can hold a lone surrogate, which cannot be written as UTF-8
        return value.encode("utf-8", "backslashreplace").decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value
