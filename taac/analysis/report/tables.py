"""A report's content as Markdown, as lines and as CSV, with rounded numbers except in CSV, which has full precision.

Published returns stand beside those of a comparison. They are of another protocol, so no verdict is made of them.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.analysis.curves.plots import csv_cell
from taac.analysis.readers.events import LARGEST, MAX_STEP
from taac.analysis.report.scores import REPETITION, AllScores, Scores
from taac.analysis.report.verdicts import MAX_BYTES
from taac.analysis.statistics.permutations import fewest_runs
from taac.errors import TaacError
from taac.runs import files
from taac.runs.layout import INFO

CSV_COLUMNS = (
    "block", "task", "method", "versus", "measure", "statistic", "runs", "estimate", "low", "high", "confidence",
    "interval", "diverged", "effect", "p", "p_permutation", "p_adjusted", "would_find", "verdict",
)  # fmt: skip
MEASURES = {"final": "final return", "area": "area under the curve"}
MAX_TEXT = 500  # characters of a published source or protocol
TEXTS = ("task", "method", "source", "environment_version", "protocol")
PUBLISHED_NOTE = (
    "Published numbers are of another protocol, and mostly of other versions of the environment: they say roughly where a "
    "method should be. No verdict is made of them. A number is a mean +- standard deviation over n runs, unless "
    "its protocol says otherwise. Random steps that a source does not count are added to its step: 100000 + 10000."
)
EXAMPLE = (
    '{"returns": [{"task": "Hopper", "method": "sac", "env_steps": 100000, "mean": 2613, "sd": 991, "n": 10, '
    '"source": "..", "environment_version": "v3", "protocol": ".."}]}'
)


# --- Published returns ----------------------------------------------------------------------------


class Published(NamedTuple):
    """One published return."""

    task: str  # an environment id, or one without its version
    method: str
    env_steps: int
    mean: float
    sd: float | None  # over seeds, unless the protocol says otherwise
    n: int
    source: str
    environment_version: str
    protocol: str
    uncounted_steps: int = 0  # random ones before the first step that it counts

    @property
    def all_steps(self) -> int:
        """The published step as a run here counts it."""
        return self.env_steps + self.uncounted_steps

    def concerns(self, task: str, method: str) -> bool:
        """Returns whether it is of a method on an environment id, of any version if it names none."""
        return self.method == method and self.task in (task, re.sub(r"-v\d+$", "", task))


def load_published(path: Path | None) -> list[Published]:
    """Returns the entries of a file such as `experiments/results/published.json`; none without a file."""
    if path is None:
        return []
    try:
        content = files.read_json(path.resolve(), MAX_BYTES)
    except (OSError, files.Damaged) as error:
        raise TaacError(f"--published {path} cannot be read: {error}") from error
    given = content.get("returns") if isinstance(content, dict) else None
    if not isinstance(given, list):
        raise TaacError(f'--published {path} holds no "returns": expected {EXAMPLE}')
    return [_entry(path, number, entry) for number, entry in enumerate(given, 1)]


def _entry(path: Path, number: int, given: Any) -> Published:
    given = given if isinstance(given, dict) else {}
    wrong = [name for name in TEXTS if not (isinstance(given.get(name), str) and 0 < len(given[name]) <= MAX_TEXT)]
    wrong += [name for name in ("env_steps", "n") if not (type(given.get(name)) is int and 0 < given[name] <= MAX_STEP)]
    uncounted = given.get("uncounted_steps", 0)
    wrong += [] if type(uncounted) is int and 0 <= uncounted <= MAX_STEP else ["uncounted_steps"]
    wrong += [] if _is_number(given.get("mean")) else ["mean"]
    sd = given.get("sd", "")
    wrong += [] if sd is None or (_is_number(sd) and sd >= 0) else ["sd"]
    if wrong:
        told = f"{', '.join(wrong)} of entry {number} {'is' if len(wrong) == 1 else 'are'} missing or wrong"
        raise TaacError(f"--published {path}: {told}; expected {EXAMPLE}, with null for an unknown sd")
    return Published(**{name: given[name] for name in Published._fields if name in given})


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


def beside_published(entries: list[Published], scores: AllScores) -> list[dict[str, Any]]:
    """Returns a row for each published return of a task and a method that are compared here.

    `here` is the mean, the standard deviation (n - 1) and the number of this comparison's runs at the evaluation that was due
    at the published step, with the steps that the source does not count. It is None unless all runs of the method have that
    evaluation. Diverged runs are left out of it, and `diverged` is their number.
    """
    return [
        {**entry._asdict(), "task": task, "here": _at(of, entry.all_steps), "diverged": len(of.records) - len(of.whole)}
        for task, methods in scores.items()
        for entry in entries
        for method, of in methods.items()
        if entry.concerns(task, method)
    ]


def _at(of: Scores, step: int) -> dict[str, Any] | None:
    found = [r.returns[r.evaluations["due"] == step] for r in of.whole]
    if not found or any(values.size != 1 for values in found):
        return None
    values = np.concatenate(found)
    sd = float(values.std(ddof=1)) if values.size > 1 else math.nan
    return {"mean": float(values.mean()), "sd": sd, "n": int(values.size)}


# --- Markdown -------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Formats a number with four digits, or all of its integer part if there are more, and None as a dash."""
    if value is None:
        return "-"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def with_interval(found: dict[str, Any] | None) -> str:
    """Formats an estimate with its interval as `1.234 [1, 1.5]`."""
    if found is None:
        return "-"
    interval = "" if found["low"] is None else f" [{number(found['low'])}, {number(found['high'])}]"
    return f"{number(found['estimate'])}{interval}"


def markdown(content: dict[str, Any], figures: Sequence[str]) -> str:
    """Returns the text of report.md. Names from runs stay text, without HTML or links."""
    content, figures = _as_text(content), _as_text(list(figures))
    brackets = (
        f"Brackets are {content['options']['confidence']:.0%} intervals. A number without an interval is one whose spread the "
        "runs do not show. Intervals of differences hold together, and a verdict is given if and only if one excludes 0. "
        "Overlapping intervals of two methods say nothing."
    )
    lines = ["# Comparison", "", *(f"![{name}]({name})\n" for name in figures)]
    lines += [*(f"- {text}" for text in content["ahead"]), "", brackets, "", content["family_told"], ""]
    lines += ["Settings that decide most:", "", *(f"- {text}" for text in content["settings_told"]), ""]
    lines += ["## Warnings", "", *([f"- {text}" for text in content["warnings"]] or ["None."]), ""]
    for task in content["tasks"]:
        lines += _task(task, *([p for p in content[of] if p["task"] == task["task"]] for of in ("pairs", "area_pairs")))
        for front in (front for front in content["fronts"] if front["task"] == task["task"]):
            lines += front_table(front, content["costs"][front["cost"]])
    lines += _over_tasks(content["over_tasks"]) + _published(content["published"])
    lines += ["## How these numbers were made", ""]
    lines += [*(f"- **{statement['about']}.** {statement['text']}" for statement in content["statements"]), ""]
    return "\n".join(lines)


def _as_text(value: Any) -> Any:
    """Escapes every string in nested lists and dicts, including keys, so that Markdown sees no HTML, link or new line."""
    if isinstance(value, str):
        return " ".join(value.split("\n")).replace("<", "&lt;").replace("](", "]\\(")
    if isinstance(value, dict):
        return {_as_text(key): _as_text(part) for key, part in value.items()}
    return [_as_text(part) for part in value] if isinstance(value, (list, tuple)) else value


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in cells] + [""]


def _task(task: dict[str, Any], pairs: Sequence[dict[str, Any]], areas: Sequence[dict[str, Any]]) -> list[str]:
    lines = [f"## {task['task']}", ""]
    lines += [f"At step {task['step']}. Final return: the mean of the last {task['evaluations']} evaluation(s).", ""]
    head = ["method", "seeds", "diverged", "rank", *(f"{name}, {s}" for name in MEASURES.values() for s in ("mean", "IQM"))]
    lines += _table(head, [
        [m["method"], m["runs"], m["diverged"], with_interval(m.get("rank"))]
        + [with_interval(m[measure][s]) for measure in MEASURES for s in ("mean", "iqm")]
        for m in task["methods"]
    ])  # fmt: skip
    lines += _pairs("Differences of mean final returns", pairs) + _pairs("Differences of mean areas under the curve", areas)
    told = f"acting greedily in the last {task['evaluations']} evaluation(s), and exploring"
    since = "(mean of the rollout/ summaries since the evaluation before those)"
    lines += [f"Repetition at the end of training: {told} {since}:", ""]
    lines += _table(["method", "seeds", "acting", *(name.replace("_", " ") for name in REPETITION)], [
        [m["method"], _seeds(m["final"]["runs"], m["diverged"]), how]
        + [with_interval(m[block][name]["mean"]) for name in REPETITION]
        for m in task["methods"]
        for how, block in (("greedy", "repetition"), ("exploring", "repetition_exploring"))
    ])  # fmt: skip
    names = list(dict.fromkeys(name for m in task["methods"] for name in m["info"]))
    if not names:
        return lines
    lines += [f"What the environment reports, acting greedily in the last {task['evaluations']} evaluation(s):", ""]
    return lines + _table(["method", "runs", *(name.removeprefix(INFO) for name in names)], [
        [m["method"], max((of["runs"] for of in m["info"].values()), default=0)]  # none that diverged
        + [with_interval(m["info"][name]["mean"]) if name in m["info"] else "" for name in names]
        for m in task["methods"]
    ])  # fmt: skip


def front_table(front: dict[str, Any], cost: str) -> list[str]:
    """Returns the lines of a front: each method's cost and final return, and whether it is on the front."""
    rows = [
        [m["method"], _seeds(m["runs"], m["diverged"]), with_interval(m["x"]), with_interval(m["y"])]
        + ["yes" if m["on_front"] else "no", _percent(m["share"])]
        for m in front["methods"]
    ]
    told = f"Return against {cost}. Hypervolume of the front: {with_interval(front['hypervolume'])}:"
    return [told, "", *_table(["method", "seeds", cost, "final return", "on the front", "of resamples"], rows)]


def _seeds(runs: int, diverged: int) -> str:
    return f"{runs}; {diverged} diverged" if diverged else str(runs)


def _percent(share: float | None) -> str:
    return "undefined" if share is None else f"{share:.0%}"


def _pairs(caption: str, pairs: Sequence[dict[str, Any]]) -> list[str]:
    head = ["X", "Y", "verdict on X", "X - Y", "p, corrected", "P(X > Y)", "effect", "would find", "diverged X, Y"]
    rows = [
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
    ]
    return [f"{caption}:", "", *_table(head, rows)] if rows else []


def _published(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    head = ["task", "method", "step", "here", "published", "source", "environment", "protocol"]
    cells = [
        [r["task"], r["method"], str(r["env_steps"]) + (f" + {r['uncounted_steps']}" if r["uncounted_steps"] else "")]
        + [_spread(r["here"], r["diverged"]), _spread(r), r["source"], r["environment_version"], r["protocol"]]
        for r in rows
    ]
    return ["## Published numbers", "", PUBLISHED_NOTE, "", *_table(head, cells)]


def _spread(of: dict[str, Any] | None, diverged: int = 0) -> str:
    """Returns a mean with its standard deviation and number of runs; a dash if this comparison has no evaluation at the step."""
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
            ranked = ["rank"] if measure == "final" else []  # by the IQM of final scores
            head = ["method", "diverged", *ranked, *(f"{name}, {s}" for s in ("IQM", "median", "mean", "optimality gap"))]
            rows = [
                [m["method"], m["diverged"], *(with_interval(m.get(r)) for r in ranked), *map(with_interval, m[measure].values())]
                for m in block["methods"]
                if m[measure]
            ]
            lines += _table(head, rows) if rows else []
        lines += _pairs("Differences of the IQM of final scores", block["pairs"])
        lines += _pairs("Differences of the IQM of areas under the curve", block["area_pairs"])
    if block["left_out"]:
        lines += [f"Left out because they have no anchors: {', '.join(block['left_out'])}.", ""]
    if block["anchors"]:
        rows = [[task, f"{a['y0']:g}", f"{a['y1']:g}", a["source"]] for task, a in block["anchors"].items()]
        lines += [f"Anchors, version {block['anchors_version']}:", "", *_table(["task", "y0", "y1", "source"], rows)]
    if block["improvement"]:
        rows = [[i["x"], i["y"], len(i["tasks"]), with_interval(i["improvement"])] for i in block["improvement"]]
        lines += ["Probability of improvement in the final return, mean over the tasks that both methods have:", ""]
        lines += _table(["X", "Y", "tasks", "P(X > Y)"], rows)
    return lines


# --- Lines ----------------------------------------------------------------------------------------


def note_on_seeds(methods: int, seeds: int) -> list[str]:
    """Returns, before a comparison runs, a note in a list if it can give no verdict on a task; else an empty list."""
    least = fewest_runs()
    if methods < 2 or seeds >= least:
        return []
    few = f"{seeds} seed{'s'[: seeds - 1]} of each method"
    return [f"note: {few} can give no verdict on a task: at least {least} are needed"]


def verdict_line(pair: dict[str, Any]) -> str:
    """Returns a verdict in one line, with what it rests on."""
    by_ranks = pair["compares"] == "ranks"
    found = pair["improvement"] if by_ranks else pair["difference"]
    what = f"P({pair['x']} > {pair['y']})" if by_ranks else f"{pair['x']} - {pair['y']}"
    estimate = "unknown" if found["estimate"] is None else number(found["estimate"])
    interval = "no interval" if found["low"] is None else f"[{number(found['low'])}, {number(found['high'])}]"
    verdict = f"{pair['x']} is {pair['verdict']}"
    if pair["verdict"] == "inconclusive":
        verdict, size = "inconclusive", pair["detectable"]
        if size is not None:
            verdict += f"; this many runs would find a difference of {size:.3g} with a power of at most 0.8"
        if not pair["findable"]:
            least = f"{pair['fewest']} {'pairs' if pair['paired'] else 'of each method'}"
            verdict += f"; so few runs can give no verdict: at least {least} are needed"
    gone = f" ({sum(pair['diverged'])} diverged)" if any(pair["diverged"]) else ""
    return f"{pair['task']}: {what} = {estimate} {interval}{gone}: {verdict}"


# --- CSV ------------------------------------------------------------------------------------------


def table(content: dict[str, Any]) -> str:
    """Returns the text of report.csv, with one row for each number and its interval."""
    file = io.StringIO()
    writer = csv.DictWriter(file, CSV_COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in _rows(content))
    return file.getvalue()


def _rows(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    block = content["over_tasks"]
    for task in content["tasks"]:
        for m in task["methods"]:
            exploring = {f"{name}, exploring": found for name, found in m["repetition_exploring"].items()}
            for measure, found in {**{name: m[name] for name in MEASURES}, **m["repetition"], **m["info"], **exploring}.items():
                about = {"block": "task", "task": task["task"], "method": m["method"], "measure": measure}
                about |= {"runs": found["runs"], "diverged": m["diverged"]}
                for statistic in (s for s in found if s != "runs"):
                    yield {**about, "statistic": statistic, **_interval(found[statistic])}
    for front in content["fronts"]:
        about = {"block": "front", "task": front["task"], "measure": f"return against {front['cost']}"}
        yield {**about, "statistic": "hypervolume", **_interval(front["hypervolume"])}
        for row in front["methods"]:
            yield {**about, "method": row["method"], "statistic": "share on the front", "estimate": row["share"]}
    for m in block["methods"]:
        for measure in MEASURES:
            about = {"block": "over tasks", "method": m["method"], "measure": measure, "diverged": m["diverged"]}
            for statistic, found in (m[measure] or {}).items():
                yield {**about, "statistic": statistic, **_interval(found)}
    for where, of, statistic in (("pair", content, "mean"), ("pair over tasks", block, "iqm")):
        for measure, pairs in (("final", of["pairs"]), ("area", of["area_pairs"])):
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
    return {"interval" if k == "method" else k: value for k, value in (found or {}).items()}
