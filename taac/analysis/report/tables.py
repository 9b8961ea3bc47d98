"""A report's content as Markdown, as lines and as CSV, with rounded numbers except in CSV, which has full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from taac.analysis.report.published import NOTE
from taac.analysis.report.scores import REPETITION
from taac.analysis.statistics.permutations import fewest_runs
from taac.analysis.untrusted_text import csv_cell

CSV_COLUMNS = (
    "block", "task", "method", "versus", "measure", "statistic", "runs", "estimate", "low", "high", "confidence",
    "interval", "diverged", "effect", "p", "p_permutation", "p_adjusted", "would_find", "verdict",
)  # fmt: skip
MEASURES = {"final": "final return", "area": "area under the curve"}


def number(value: float | None) -> str:
    """Formats a number with four digits, and None as a dash."""
    return "-" if value is None else f"{value:.4g}"


def with_interval(found: dict[str, Any] | None) -> str:
    """Formats an estimate with its interval as `1.234 [1, 1.5]`."""
    if found is None:
        return "-"
    if found["low"] is None:
        return number(found["estimate"])
    return f"{number(found['estimate'])} [{number(found['low'])}, {number(found['high'])}]"


def markdown(content: dict[str, Any], figures: Sequence[str]) -> str:
    """The text of report.md. Names from runs stay text, without HTML or links."""
    content, figures = _as_text(content), _as_text(list(figures))
    options = content["options"]
    lines = ["# Comparison", ""]
    lines += [
        f"Brackets are {options['confidence']:.0%} intervals. A number without an interval is one whose spread the runs do not "
        "show. Intervals of differences hold together, and a verdict is given if and only if one excludes 0. Overlapping "
        "intervals of two methods say nothing.",
        "",
        content["family_told"],
        "",
    ]
    lines += ["Settings that decide most:", "", *(f"- {text}" for text in content["settings_told"]), ""]
    lines += ["## Warnings", "", *([f"- {text}" for text in content["warnings"]] or ["None."]), ""]
    for task in content["tasks"]:
        of = [[p for p in content[name] if p["task"] == task["task"]] for name in ("pairs", "area_pairs")]
        lines += _task(task, *of)
    lines += _over_tasks(content["over_tasks"])
    lines += _published(content["published"])
    lines += ["## How these numbers were made", ""]
    lines += [*(f"- **{statement['about']}.** {statement['text']}" for statement in content["statements"]), ""]
    if figures:
        lines += ["## Figures", "", *(f"![{name}]({name})" for name in figures), ""]
    return "\n".join(lines)


def _as_text(value: Any) -> Any:
    """Escapes every string in nested lists and dicts, including keys, so that Markdown sees no HTML, link or new line."""
    if isinstance(value, str):
        return " ".join(value.split("\n")).replace("<", "&lt;").replace("](", "]\\(")
    if isinstance(value, dict):
        return {_as_text(key): _as_text(part) for key, part in value.items()}
    return [_as_text(part) for part in value] if isinstance(value, (list, tuple)) else value


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in cells] + [""]


def _task(task: dict[str, Any], pairs: Sequence[dict[str, Any]], areas: Sequence[dict[str, Any]]) -> list[str]:
    lines = [f"## {task['task']}", ""]
    lines += [f"At step {task['step']}. Final return: the mean of the last {task['evaluations']} evaluation(s).", ""]
    of = [f"{name}, {s}" for name in MEASURES.values() for s in ("mean", "IQM")]
    head = ["method", "seeds", "diverged", "rank", *of]
    rows = [
        [
            *(m["method"], m["runs"], m["diverged"], with_interval(m.get("rank"))),
            *(with_interval(m[measure][s]) for measure in MEASURES for s in ("mean", "iqm")),
        ]
        for m in task["methods"]
    ]
    lines += _table(head, rows)
    if pairs:
        lines += ["Differences of mean final returns:", "", *_pairs(pairs)]
    if areas:
        lines += ["Differences of mean areas under the curve:", "", *_pairs(areas)]
    lines += [
        f"Repetition at the end of training: acting greedily in the last {task['evaluations']} evaluation(s), and exploring "
        "(mean of the rollout/ summaries since the evaluation before those):",
        "",
    ]
    acting = {"greedy": "repetition", "exploring": "repetition_exploring"}
    head = ["method", "acting", *(name.replace("_", " ") for name in REPETITION)]
    rows = [
        [m["method"], how, *(with_interval(m[block][name]["mean"]) for name in REPETITION)]
        for m in task["methods"]
        for how, block in acting.items()
    ]
    return lines + _table(head, rows)


def _pairs(pairs: Sequence[dict[str, Any]]) -> list[str]:
    head = ["X", "Y", "verdict on X", "X - Y", "p, corrected", "P(X > Y)", "effect", "would find", "diverged X, Y"]
    return _table(
        head,
        [
            [
                p["x"],
                p["y"],
                p["verdict"] if p["findable"] else f"{p['verdict']} (too few runs)",
                with_interval(p["difference"]),
                number(p["p_adjusted"]),
                with_interval(p["improvement"]),
                number(p["effect"]),
                number(p["detectable"]),
                ", ".join(map(str, p["diverged"])) if any(p["diverged"]) else "0",
            ]
            for p in pairs
        ],
    )


def _published(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    head = ["task", "method", "step", "here", "published", "source", "environment", "protocol"]
    cells = [
        [r["task"], r["method"], _steps(r), _spread(r["here"], r["diverged"]), _spread(r)]
        + [r[name] for name in ("source", "environment_version", "protocol")]
        for r in rows
    ]
    return ["## Published numbers", "", NOTE, "", *_table(head, cells)]


def _steps(row: dict[str, Any]) -> str:
    """The published step, with those that it does not count."""
    return str(row["env_steps"]) + (f" + {row['uncounted_steps']}" if row["uncounted_steps"] else "")


def _spread(of: dict[str, Any] | None, diverged: int = 0) -> str:
    """A mean with its standard deviation and number of runs; a dash if this comparison has no evaluation at the step."""
    lost = f"{diverged} diverged" if diverged else ""
    if of is None:
        return f"- ({lost})" if lost else "-"
    spread = "" if of["sd"] is None else f" +- {number(of['sd'])}"
    return f"{number(of['mean'])}{spread} (n = {of['n']}{lost and f'; {lost}'})"


def _over_tasks(block: dict[str, Any]) -> list[str]:
    lines = ["## Over tasks", ""]
    if block["why_none"]:
        lines += [f"No normalised scores: {block['why_none']}.", ""]
    else:
        lines += [f"Normalised scores, (y - y0) / (y1 - y0), over {len(block['tasks'])} tasks:", ""]
        for measure, name in MEASURES.items():
            head = ["method", "diverged", "rank", *(f"{name}, {s}" for s in ("IQM", "median", "mean", "optimality gap"))]
            rows = [
                [m["method"], m["diverged"], with_interval(m.get("rank")), *map(with_interval, m[measure].values())]
                for m in block["methods"]
                if m[measure]
            ]
            lines += _table(head, rows) if rows else []
        if block["pairs"]:
            lines += ["Differences of the IQM of final scores:", "", *_pairs(block["pairs"])]
        if block["area_pairs"]:
            lines += ["Differences of the IQM of areas under the curve:", "", *_pairs(block["area_pairs"])]
    if block["left_out"]:
        lines += [f"Left out because they have no anchors: {', '.join(block['left_out'])}.", ""]
    if block["anchors"]:
        lines += [f"Anchors, version {block['anchors_version']}:", ""]
        lines += _table(
            ["task", "y0", "y1", "source"],
            [[task, f"{a['y0']:g}", f"{a['y1']:g}", a["source"]] for task, a in block["anchors"].items()],
        )
    if block["improvement"]:
        lines += ["Probability of improvement in the final return, mean over the tasks that both methods have:", ""]
        rows = [[i["x"], i["y"], len(i["tasks"]), with_interval(i["improvement"])] for i in block["improvement"]]
        lines += _table(["X", "Y", "tasks", "P(X > Y)"], rows)
    return lines


def too_few(paired: bool) -> str:
    """Says how many runs a verdict on one task needs at least."""
    return f"so few runs can give no verdict, {fewest_runs(paired)} {'pairs' if paired else 'of each method'} are the least"


def note_on_seeds(methods: int, seeds: int) -> list[str]:
    """Says before a comparison runs that it can give no verdict on a task, in a list; an empty one if it can."""
    least = fewest_runs()
    if methods < 2 or seeds >= least:
        return []
    return [f"note: {seeds} seed{'s'[: seeds - 1]} of each method can give no verdict on a task; {least} are the least"]


def verdict_line(pair: dict[str, Any]) -> str:
    """Returns a verdict in one line, with what it rests on."""
    by_ranks = pair["compares"] == "ranks"
    found = pair["improvement"] if by_ranks else pair["difference"]
    what = f"P({pair['x']} > {pair['y']})" if by_ranks else f"{pair['x']} - {pair['y']}"
    estimate = "unknown" if found["estimate"] is None else number(found["estimate"])
    interval = "no interval" if found["low"] is None else f"[{number(found['low'])}, {number(found['high'])}]"
    verdict = f"{pair['x']} is {pair['verdict']}"
    if pair["verdict"] == "inconclusive":
        size = pair["detectable"]
        verdict = "inconclusive" + ("" if size is None else f"; so many runs would find {size:.3g} or more with a power of 0.8")
        verdict += "" if pair["findable"] else f"; {too_few(pair['paired'])}"
    gone = f" ({sum(pair['diverged'])} diverged)" if any(pair["diverged"]) else ""
    return f"{pair['task']}: {what} = {estimate} {interval}{gone}: {verdict}"


# --- CSV ------------------------------------------------------------------------------------------


def table(content: dict[str, Any]) -> str:
    """The text of report.csv, with one row for each number and its interval."""
    file = io.StringIO()
    writer = csv.DictWriter(file, CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in _rows(content))
    return file.getvalue()


def _rows(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for task in content["tasks"]:
        for m in task["methods"]:
            exploring = {f"{name}, exploring": found for name, found in m["repetition_exploring"].items()}
            measures = {**{name: m[name] for name in MEASURES}, **m["repetition"], **exploring}
            for measure, found in measures.items():
                about = {"block": "task", "task": task["task"], "method": m["method"], "measure": measure}
                for statistic in (s for s in found if s != "runs"):
                    counts = {"runs": found["runs"], "diverged": m["diverged"]}
                    yield {**about, "statistic": statistic, **counts, **_interval(found[statistic])}
    block = content["over_tasks"]
    for m in block["methods"]:
        for measure in MEASURES:
            for statistic, found in (m[measure] or {}).items():
                about = {"block": "over tasks", "method": m["method"], "measure": measure}
                yield {**about, "statistic": statistic, "diverged": m["diverged"], **_interval(found)}
    for where, measure, pairs, statistic in (
        ("pair", "final", content["pairs"], "mean"),
        ("pair", "area", content["area_pairs"], "mean"),
        ("pair over tasks", "final", block["pairs"], "iqm"),
        ("pair over tasks", "area", block["area_pairs"], "iqm"),
    ):
        for p in pairs:
            about = {"block": where, "task": p.get("task", ""), "method": p["x"], "versus": p["y"]}
            yield {
                **about, "measure": f"difference of {measure}", "statistic": statistic, **_interval(p["difference"]),
                "diverged": sum(p["diverged"]), "effect": p["effect"], "p": p["p_value"],
                "p_permutation": p["p_permutation"], "p_adjusted": p["p_adjusted"], "would_find": p["detectable"],
                "verdict": p["verdict"],
            }  # fmt: skip
            yield {**about, "measure": f"probability of improvement of {measure}", **_interval(p["improvement"])}
    for i in block["improvement"]:
        about = {"block": "pair over tasks", "method": i["x"], "versus": i["y"]}
        yield {**about, "measure": "probability of improvement", **_interval(i["improvement"])}


def _interval(found: dict[str, Any] | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {**{k: found[k] for k in ("estimate", "low", "high", "confidence")}, "interval": found["method"]}
