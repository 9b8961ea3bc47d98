"""Computes the numbers of a comparison from run folders, as one object of plain JSON values.

`taac.analysis.report.scores` defines each number.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taac import __version__
from taac.analysis.readers import comparable, groups, run_records
from taac.analysis.readers.run_records import Record
from taac.analysis.report import anchors, checks, curves, diverged, iqm_curves, statements, terms
from taac.analysis.report.over_tasks import over_tasks
from taac.analysis.report.scores import (
    Options,
    Scores,
    compared_steps,
    corrected,
    difference_of,
    improvement_of,
    matched,
    repetition_summaries,
    scores_of,
    summary,
)
from taac.analysis.statistics.differences import Difference
from taac.errors import TaacError

SCHEMA = 1


def make_report(root: Path, options: Options) -> dict[str, Any]:
    """Compares all runs below a folder. Returns the content of report.json.

    Raises:
        TaacError: there are no runs or no usable ones, they are not comparable (without `allow_mixed`), or the anchors or
            options are wrong.
    """
    if options.last < 1:
        raise TaacError(f"--last_evaluations must be 1 or more, got {options.last}")
    diverged.check_policy(options.diverged)
    version, scales = anchors.load(options.anchors)
    found = run_records.find(root)
    records, told_apart = groups.labelled(found, options.group_by)
    warnings = [*told_apart, *comparable.refuse_mixtures(records, options.allow_mixed)]
    steps = compared_steps(records, options.at_step)
    records, imputed = diverged.impute_diverged(records, steps, scales, options.diverged)
    used = [r for r in records if checks.left_out(r, steps) is None]
    warnings += checks.run_warnings(records, steps)
    warnings += checks.missing_warnings(root, found)
    if not used:
        raise TaacError(f"none of the {len(records)} runs below {root} can be used:\n  " + "\n  ".join(warnings))
    warnings += checks.seed_warnings(records, used)
    scores, kept = scores_of(used, steps, options.last)
    for task in sorted(kept):
        if kept[task] < options.last:
            warnings.append(f"final returns on {task} are means of {kept[task]} evaluation(s), not {options.last}")
        if options.at_step is None and not any(r.status == "finished" for r in used if r.task == task):
            warnings.append(f"no run on {task} is finished; compared at step {steps[task]}, which all have reached")
    warnings += checks.exploring_warnings(scores)
    block = over_tasks(scores, scales, version, options, warnings)
    block["curves"] = iqm_curves.iqm_curves(scores, scales, steps, [m["method"] for m in block["methods"]], options)
    content = {
        "schema": SCHEMA,
        "taac": __version__,
        "options": {**options._asdict(), "anchors": options.anchors and options.anchors.name},
        "methods": sorted({r.method for r in used}),
        "runs": [_run(r, scores, steps) for r in records],
        "tasks": [
            {**_task(task, scores[task], steps[task], kept[task], options), "diverged_score": imputed.get(task)}
            for task in sorted(scores)
        ],
        "pairs": _pairs(scores, options),
        "over_tasks": block,
        "axes": curves.AXES,
        "measures": curves.MEASURES,
        "curves": curves.curves(scores, options.confidence),
        "warnings": warnings,
    }
    content["terms"] = terms.terms()
    content["statements"] = statements.statements(plain(content))
    return plain(content)


# --- Blocks ---------------------------------------------------------------------------------------


def _run(r: Record, scores: Mapping[str, Mapping[str, Scores]], steps: Mapping[str, int]) -> dict[str, Any]:
    out = checks.left_out(r, steps)
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


def _task(task: str, methods: Mapping[str, Scores], step: int, k: int, options: Options) -> dict[str, Any]:
    return {
        "task": task,
        "step": step,
        "evaluations": k,
        "methods": [
            {
                "method": method,
                "seeds": [r.seed for r in of.records],
                "runs": len(of.records),
                "final": summary(of.final, options),
                "area": summary(of.area, options),
                "repetition": repetition_summaries(of.repetition, options),
                "repetition_exploring": repetition_summaries(of.exploring, options),
            }
            for method, of in methods.items()
        ],
    }


def _pairs(scores: Mapping[str, Mapping[str, Scores]], options: Options) -> list[dict[str, Any]]:
    """Compares every two methods on each task by final return. All comparisons are one family, corrected by Holm's method."""
    rows: list[dict[str, Any]] = []
    differences: list[Difference] = []
    for task, methods in scores.items():
        for x, y in itertools.combinations(methods, 2):
            a, b = methods[x], methods[y]
            paired = options.paired and matched([a], [b])
            improvement = improvement_of([a.final], [b.final], options)
            rows.append({"task": task, "x": x, "y": y, "paired": paired, "improvement": improvement})
            differences.append(difference_of([a.final], [b.final], "mean", paired, options))
    return corrected(rows, differences)


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
