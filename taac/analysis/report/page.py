"""Makes a report: all its numbers from run folders, as one object of plain JSON values, and the files that show them.

The page needs no network and no other file. It contains report.json, and its script (in `html/`) draws tables and curves from
exactly those numbers. Names enter the page as text and are never parsed as markup.
"""

from __future__ import annotations

import json
import math
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taac import __version__
from taac.analysis import styles
from taac.analysis.readers import comparable, groups, run_records
from taac.analysis.readers.run_records import Record
from taac.analysis.report import figures, fronts, scores, tables, text, verdicts
from taac.analysis.report.scores import AllScores, Options, Scores, summary
from taac.analysis.statistics.intervals import CONFIDENCE, RESAMPLES, SEED, Range
from taac.errors import TaacError
from taac.runs import durable, files

SCHEMA = 3
SCRIPTS = ("chart.js", "tables.js", "page.js")  # in order


def make_report(root: Path, options: Options) -> dict[str, Any]:
    """Compares all runs below a folder. Returns the content of report.json.

    Raises:
        TaacError: there are no runs or no usable ones, they are not comparable (without `allow_mixed`), or the anchors or
            options are wrong.
    """
    version, scales = verdicts.load_anchors(options.anchors)
    entries = tables.load_published(options.published)
    found = run_records.find(root)
    records, told_apart = groups.labelled(found, options.group_by)
    warnings = [*told_apart, *comparable.refuse_mixtures(records, options.allow_mixed)]
    records, late = scores.match(records)
    warnings += late + comparable.origins(records)
    steps = scores.compared_steps(records, options.at_step)
    warnings += [
        f"{task} is compared at step {step}, the last evaluation of all its runs up to step {options.at_step} (--at_step)"
        for task, step in steps.items()
        if options.at_step not in (None, step)
    ]
    records = scores.treat_diverged(records, steps)
    used = [r for r in records if text.left_out(r, steps) is None]
    warnings += text.run_warnings(records, steps)
    warnings += text.missing_warnings(root, found)
    if not used:
        raise TaacError(f"none of the {len(records)} runs below {root} can be used:\n  " + "\n  ".join(warnings))
    warnings += text.seed_warnings(records, used)
    by_task, kept = scores.scores_of(used, steps, options.last)
    scales = verdicts.fitting_anchors(by_task, scales, warnings)
    limits = verdicts.read_bounds(options.bounds, scales, by_task, warnings)
    normal = verdicts.normalized(by_task, scales)
    made = verdicts.families_of(by_task, normal, limits, options)
    for task in sorted(kept):
        if kept[task] < options.last:
            warnings.append(f"final returns on {task} are means of {kept[task]} evaluation(s), not {options.last}")
        running = not any(r.status == "finished" or scores.has_diverged(r, steps[task]) for r in used if r.task == task)
        if options.at_step is None and running:
            warnings.append(f"no run on {task} is finished; compared at step {steps[task]}, which all have reached")
    warnings += text.untrained_warnings(by_task, steps, kept)
    beside = tables.beside_published(entries, by_task)
    if options.published and not beside:
        compared = ", ".join(f"{method} on {task}" for task, methods in by_task.items() for method in methods)
        warnings.append(
            f"none of the {len(entries)} entries of --published {options.published.name} is of a task and a method compared "
            f"here: {compared:.500}"
        )
    block = verdicts.over_tasks(by_task, scales, version, normal, made, options.baseline, warnings)
    block["curves"] = figures.iqm_curves(by_task, scales, steps, normal)
    tasks = [
        {
            "task": task,
            "step": steps[task],
            "evaluations": kept[task],
            "bounds": limits.get(task),
            "methods": _methods(task, by_task[task], made, limits.get(task), options.baseline),
        }
        for task in sorted(by_task)
    ]
    content = {
        "schema": SCHEMA,
        "taac": __version__,
        "options": {
            "confidence": CONFIDENCE,
            **options._asdict(),
            "anchors": options.anchors and options.anchors.name,
            "published": options.published and options.published.name,
            "resamples": RESAMPLES,
            "seed": SEED,
        },
        "methods": sorted({r.method for r in used}),
        "runs": [_run(r, by_task, text.left_out(r, steps)) for r in records],
        "tasks": tasks,
        "family": {measure: sum(row["improvement"] is not None for of in rows for row in of) for measure, rows in made.items()},
        "pairs": made["final"][0],
        "area_pairs": made["area"][0],
        "over_tasks": block,
        "published": beside,
        "axes": figures.AXES,
        "measures": figures.MEASURES,
        "curves": figures.curves(by_task, limits),
        "costs": fronts.COSTS,
        "fronts": fronts.fronts(by_task, tasks),
        "warnings": warnings,
        "published_told": tables.PUBLISHED_NOTE,
        "tuning": text.tuning_told(used),
        "settings_told": text.settings_told(used),
    }
    content["family_told"] = text.describe_family(content)
    content["ahead"] = text.ahead(content)
    content["terms"] = json.loads(text.html_file("terms.json"))
    content["statements"] = text.statements(plain(content))
    return plain(content)


def _run(r: Record, by_task: AllScores, out: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "folder": r.folder, "task": r.task, "method": r.method, "seed": r.seed,
        "status": r.status, "last_step": r.last_step, "budget": r.budget, "update_ratio": r.update_ratio,
        "diverged": r.diverged, "left_out": out, "final": None, "area": None,
    }  # fmt: skip
    if out is None and r.task is not None:
        of = by_task[r.task][r.method]
        at = [other.folder for other in of.records].index(r.folder)
        row |= {"final": of.final[at], "area": of.area[at]}
    return row


def _methods(
    task: str, methods: Mapping[str, Scores], made: verdicts.Made, limits: Range | None, baseline: str | None
) -> list[dict[str, Any]]:
    """Returns the rows of a task's methods. Their numbers are of the runs that did not diverge."""
    rows: list[dict[str, Any]] = [
        {
            "method": method,
            "seeds": [r.seed for r in of.records],
            "runs": len(of.records),
            "diverged": len(of.records) - len(of.whole),
            "final": summary("final", of.final, limits=limits),
            "area": summary("area", of.area, limits=limits),
            "repetition": {name: summary(name, of.repetition[name], ("mean",)) for name in scores.REPETITION},
            "info": {name: summary(name, values, ("mean",)) for name, values in of.info.items()},
            "repetition_exploring": {name: summary(name, of.exploring[name], ("mean",)) for name in scores.REPETITION},
        }
        for method, of in methods.items()
    ]
    if baseline is None:
        means = {row["method"]: (row["final"]["mean"] or {}).get("estimate") for row in rows}
        found = verdicts.ranks([pair for pair in made["final"][0] if pair["task"] == task], means)
        for row in rows:
            row["rank"] = found[row["method"]]
    return rows


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


def write_report(comparison: dict[str, Any], folder: Path) -> list[Path]:
    """Writes report.md, report.csv, report.html, report.json and the figures from the result of `make_report`; returns the files.

    The same comparison produces the same bytes. All contents are created before the first file is touched, and each file is
    replaced by one rename. Figures of an earlier report that this one lacks are removed.
    """
    pictures = figures.draw(comparison)
    contents = {
        "report.md": tables.markdown(comparison, list(pictures)).encode(),
        "report.csv": tables.table(comparison).encode(),
        "report.html": html_page(comparison).encode(),
        "report.json": (json.dumps(comparison, indent=1, allow_nan=False) + "\n").encode(),
        **pictures,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*contents, *figures.NAMES):
        files.check_file(folder / name)
    for name, data in contents.items():
        durable.write(folder / name, data)
    for name in set(figures.NAMES) - set(pictures):
        (folder / name).unlink(missing_ok=True)
    return [folder / name for name in contents]


def html_page(content: dict[str, Any]) -> str:
    """Returns the text of report.html. `<` is escaped in its JSON, so that no text ends the script by `</script>` or `<!--`."""
    data = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    methods = len(content["methods"])
    return string.Template(text.html_file("page.html")).substitute(
        style=f"{text.html_file('page.css')}\n{styles.css(methods)}",
        styles=json.dumps(styles.svg_markers(methods)),
        script="\n".join(map(text.html_file, SCRIPTS)),
        data=data,
    )
