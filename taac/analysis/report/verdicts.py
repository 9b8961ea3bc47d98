"""The verdicts of a report: which methods are compared, in which families, on which scales, and the rows that tables show.

The comparisons of final returns, on each task and over tasks, are one family; those of areas under the curve are another.
`taac.analysis.statistics.families` says how a family is tested. Over tasks, returns are normalised by anchors: for each task, the
returns (y0, y1) that are mapped to 0 and 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

from taac.analysis.readers.events import LARGEST
from taac.analysis.readers.run_records import RETURN_BOUNDS, value_of
from taac.analysis.report.scores import AllScores, Options, Scores, exact
from taac.analysis.statistics import families, intervals
from taac.analysis.statistics.differences import improvement_interval
from taac.analysis.statistics.families import Comparison, Verdict
from taac.analysis.statistics.intervals import CONFIDENCE, Interval, Range, Tasks
from taac.errors import TaacError
from taac.runs import files

MEASURES = ("final", "area")
AGGREGATES = ("iqm", "median", "mean")
PROFILE_POINTS = 101
MAX_BYTES = 4 << 20  # of a file of anchors, or of published returns
SMALLEST = 1e-30  # the smallest difference between the two returns of a scale
ANCHORS = Path(__file__).with_name("anchors.json")
Normal = Mapping[str, Mapping[str, list[np.ndarray]]]  # normalised scores, by method and measure: [runs] for each task
Rows = list[dict[str, Any]]
Made = Mapping[str, tuple[Rows, Rows]]  # by measure: rows of pairs on tasks, and over tasks


# --- Anchors and bounds ---------------------------------------------------------------------------


class Anchor(NamedTuple):
    """The scale of one task."""

    y0: float
    y1: float
    source: str
    bounds: Range | None = None  # the lowest and highest possible return, where a file declares them

    def scores(self, returns: np.ndarray) -> np.ndarray:
        """Normalises returns `[...]` to scores, `(y - y0) / (y1 - y0)`. A diverged run keeps -inf."""
        return np.where(np.isneginf(returns), -math.inf, (returns - self.y0) / (self.y1 - self.y0))


def load_anchors(extra: Path | None = None) -> tuple[str, dict[str, Anchor]]:
    """Returns the version and the anchors by environment id. Anchors in `extra` replace the package's own.

    A file is `{"version": ..., "tasks": {"Hopper-v5": {"y0": 18.0, "y1": 3800.0, "source": "..."}}}`, with
    `"bounds": [0, 1]` for a task whose returns have some. Other entries are ignored. Anchors must be finite and different.
    """
    versions: list[str] = []
    anchors: dict[str, Anchor] = {}
    for path in (ANCHORS, *([extra] if extra else [])):
        try:
            content = files.read_json(path.resolve(), MAX_BYTES)
        except (OSError, files.Damaged) as error:
            raise TaacError(f"anchors {path} cannot be read: {error}") from error
        tasks = content.get("tasks") if isinstance(content, dict) else None
        if not isinstance(tasks, dict):
            expected = '{"tasks": {"Hopper-v5": {"y0": .., "y1": ..}}}'
            raise TaacError(f'anchors {path} hold no "tasks": expected {expected}')
        versions.append(f"{'' if path == ANCHORS else f'{path.name} '}{content.get('version', '')}".rstrip())
        anchors |= {task: _anchor(path, task, given) for task, given in tasks.items()}
    return ", and ".join(versions), anchors


def _anchor(path: Path, task: str, given: Any) -> Anchor:
    try:
        y0, y1 = float(given["y0"]), float(given["y1"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise TaacError(f"anchors {path}: {task:.200} has no numbers y0 and y1, got {given!r:.200}") from error
    if not (abs(y0) <= LARGEST and abs(y1) <= LARGEST) or abs(y1 - y0) < SMALLEST:
        raise TaacError(f"anchors {path}: ({y0}, {y1}) of {task} define no scale; use two different finite returns")
    bounds = given.get("bounds")
    if bounds is not None and (bounds := _range(bounds)) is None:
        raise TaacError(f"anchors {path}: bounds of {task:.200} are no range, got {given['bounds']!r:.200}")
    return Anchor(y0, y1, str(given.get("source", path.name)), bounds)


def _range(ends: Any) -> Range | None:
    """Returns two numbers, the lower first, or None for anything else."""
    try:
        low, high = (float(end) for end in ends)
    except (TypeError, ValueError, OverflowError):
        return None
    return (low, high) if -LARGEST <= low < high <= LARGEST else None


def read_bounds(given: Sequence[str], scales: Mapping[str, Anchor], scores: AllScores, warnings: list[str]) -> dict[str, Range]:
    """Returns the possible lowest and highest return of tasks that have them. Appends to `warnings` which are not used, and why.

    Args:
        given: "LOW,HIGH" for all tasks, "TASK=LOW,HIGH" for one, or "none". They win over what task files declare
            (`create_experiment.return_bounds`), and that over the anchors.

    Raises:
        TaacError: a text is none of these, names a task without runs, or has a return outside of it.
    """
    asked: dict[str, Range] = {}  # "" for all tasks
    for text in given:
        task, _, ends = text.rpartition("=")
        if task and task not in scores:
            raise TaacError(f"--bounds {text}: there are no runs on {task}; there are on {', '.join(scores)}")
        if text == "none":
            continue
        if (limits := _range(ends.split(","))) is None:
            raise TaacError(
                f"--bounds {text} is no range; pass the lowest and highest possible return as 0,1, or for one task as "
                "FetchReach-v4=0,1, or none"
            )
        asked[task] = limits
    found: dict[str, Range] = {}
    for task, methods in scores.items():
        limits = asked.get(task, asked.get(""))
        if limits is None and "none" not in given:
            limits = _declared(task, methods, scales, warnings)
        if limits is None:
            continue
        low, high = limits
        outside = [(m, v) for m, of in methods.items() for v in of.final if math.isfinite(v) and not low <= v <= high]
        if not outside:
            found[task] = limits
        elif task in asked or "" in asked:
            raise TaacError(
                f"{outside[0][0]} on {task} has a return of {outside[0][1]:g}, outside of the bounds {limits}; "
                "pass the lowest and highest possible return with --bounds, or --bounds none"
            )
        else:
            told = f"a return of {outside[0][1]:g} on {task} is outside of the declared bounds {limits}"
            warnings.append(f"{told}, so they are not used")
    return found


def fitting_anchors(scores: AllScores, scales: Mapping[str, Anchor], warnings: list[str]) -> dict[str, Anchor]:
    """Returns the anchors without those of tasks with a return outside of the anchors' bounds: they are of another return."""
    found = dict(scales)
    for task, methods in scores.items():
        if task in scales and (limits := scales[task].bounds) is not None:
            low, high = limits
            of_task = np.concatenate([of.final for of in methods.values()])
            if (outside := of_task[np.isfinite(of_task) & ((of_task < low) | (of_task > high))]).size:
                del found[task]
                told = f"a return of {outside[0]:g} on {task} is outside of its anchors' bounds {limits}"
                warnings.append(f"{told}: they are not used")
    return found


def _declared(task: str, methods: Mapping[str, Scores], scales: Mapping[str, Anchor], warnings: list[str]) -> Range | None:
    texts = {r.statements.get(RETURN_BOUNDS, "None") for of in methods.values() for r in of.records}
    if len(texts) > 1:
        warnings.append(f"runs on {task} declare different {RETURN_BOUNDS}, so none are used")
        return None
    limits = _range(value_of(texts.pop())) if texts else None
    return scales[task].bounds if limits is None and task in scales else limits


# --- Families of comparisons ----------------------------------------------------------------------


def compared(methods: Iterable[str], baseline: str | None) -> list[tuple[str, str]]:
    """Returns the pairs (X, Y) that are compared: every two methods, or each other method with the baseline as Y."""
    names = list(methods)
    if baseline is None:
        return list(itertools.combinations(names, 2))
    return [(method, baseline) for method in names if method != baseline] if baseline in names else []


def families_of(scores: AllScores, normal: Normal, bounds: Mapping[str, Range], options: Options) -> Made:
    """Returns, for each measure, the rows of pairs on tasks and the rows of pairs over tasks, which are one family.

    Methods without a score in every run are not compared; that of a diverged run is -inf. `normal` is the result of `normalized`.
    Refuses a baseline that is no method, and pairs by seed without partners.
    """
    known = sorted({m for of in scores.values() for m in of})
    if options.baseline is not None and options.baseline not in known:
        raise TaacError(f"--baseline {options.baseline} is no method of these runs; they are {', '.join(known)}")
    for task, of in scores.items() if options.paired else ():
        seeds = {m: [r.seed for r in found.records] for m, found in of.items()}
        first = next(iter(seeds))
        for method, given in seeds.items():
            if given != seeds[first] or None in given or len(set(given)) < len(given):
                raise TaacError(
                    f"--paired needs every seed once in every method of a task, but on {task} {first} has {seeds[first]} and "
                    f"{method} has {given}; leave out --paired"
                )
    made = {}
    for measure in MEASURES:
        methods: dict[str, dict[str, np.ndarray]] = {}
        rows: Rows = []
        comparisons: list[Comparison] = []
        for task, found in scores.items():
            values = {m: getattr(of, measure) for m, of in found.items()}
            methods[task] = whole = {m: v for m, v in values.items() if not np.isnan(v).any()}
            for x, y in compared(whole, options.baseline):
                rows.append({"task": task, "x": x, "y": y})
                comparisons.append(Comparison([whole[x]], [whole[y]], "mean", bounds.get(task), task))
        on_tasks = len(rows)
        for x, y in compared((m for m, measures in normal.items() if measure in measures), options.baseline):
            rows.append({"x": x, "y": y})
            comparisons.append(Comparison(normal[x][measure], normal[y][measure], "iqm"))
        verdicts = families.verdicts(comparisons, methods, [(row["x"], row["y"]) for row in rows], options.paired)
        rows = [{**row, **_row(c, v, options.paired)} for row, c, v in zip(rows, comparisons, verdicts)]
        made[measure] = rows[:on_tasks], rows[on_tasks:]
    return made


def _row(c: Comparison, v: Verdict, paired: bool) -> dict[str, Any]:
    """Returns the numbers of a verdict. What is compared by ranks has its interval on P(X > Y), and none on the difference."""
    d = v.difference
    interval = Interval(d.estimate, d.low, d.high, CONFIDENCE, d.method)
    improvement: dict[str, Any] | None = improvement_of(c.x, c.y)
    if v.compares == families.RANKS:
        improvement = Interval(d.estimate + 0.5, d.low + 0.5, d.high + 0.5, CONFIDENCE, f"ranks, {d.method}")._asdict()
        left = families.finite_difference(c)
        interval = Interval(left, math.nan, math.nan, CONFIDENCE, "of the runs that did not diverge; see P(X > Y)")
    return {
        "difference": interval._asdict(), "improvement": improvement, "compares": v.compares, "paired": paired,
        "diverged": [sum(int(np.isneginf(task).sum()) for task in tasks) for tasks in (c.x, c.y)], "effect": v.effect,
        "p_value": v.p_value, "p_permutation": v.p_permutation, "p_adjusted": d.p_value, "fewest": v.fewest,
        "findable": v.findable, "detectable": v.detectable, "verdict": d.verdict,
    }  # fmt: skip


def improvement_of(x: Tasks, y: Tasks) -> dict[str, Any] | None:
    """Returns the probability of improvement with its interval, or None with fewer than two runs on a task.

    A diverged run is below all others; such runs are tied.
    """
    if any(task.size < 2 for task in (*x, *y)):
        return None
    ranked = [rankdata(np.concatenate([a, b])) for a, b in zip(x, y)]
    of_x, of_y = [r[: a.size] for r, a in zip(ranked, x)], [r[a.size :] for r, a in zip(ranked, x)]
    return improvement_interval(of_x, of_y)._asdict()


def ranks(pairs: Sequence[Mapping[str, Any]], scores: Mapping[str, float | None]) -> dict[str, dict[str, Any]]:
    """Returns the rank of each method of a task, 1 for the best, with an interval that agrees with the verdicts of all pairs.

    The rank is 1, plus 1 for each higher score and 1/2 for each equal one. Of two methods, one of which has diverged runs,
    the one that is more often better by P(X > Y) counts as higher.

    The interval reaches from 1 + (methods with a verdict of being better) to K - (methods with one of being worse), of K methods.
    All intervals hold together with the family's confidence. A rank that the verdicts exclude is moved to the nearest end.
    What is unknown (None) is the last.

    Source: Mohamad, Goeman and van Zwet, Simultaneous confidence intervals for ranks, 2019, section 3.
    """
    above, below = dict.fromkeys(scores, 0), dict.fromkeys(scores, 0)
    for pair in pairs:
        x, y = (pair["x"], pair["y"]) if pair["verdict"] != "worse" else (pair["y"], pair["x"])
        if pair["verdict"] != "inconclusive":
            below[x] += 1
            above[y] += 1
    value = {m: -math.inf if s is None else exact(s) for m, s in scores.items()}
    lead = {(a, b): value[a] - value[b] if value[a] != value[b] else 0.0 for a, b in itertools.permutations(scores, 2)}
    for pair in pairs:
        if pair["improvement"] is not None and any(pair["diverged"]):
            x, y, p = pair["x"], pair["y"], pair["improvement"]["estimate"] - 0.5
            lead[x, y], lead[y, x] = p, -p
    found = {}
    for m in scores:
        place = 1 + sum(1.0 if ahead > 0 else 0.5 if ahead == 0 else 0.0 for (_, other), ahead in lead.items() if other == m)
        low, high = 1 + above[m], len(scores) - below[m]
        found[m] = {"estimate": min(max(place, low), high), "low": low, "high": high}
    return found


# --- Over tasks -----------------------------------------------------------------------------------


def normalized(scores: AllScores, scales: Mapping[str, Anchor]) -> dict[str, dict[str, list[np.ndarray]]]:
    """Returns normalised scores `[runs]` for each task with anchors, by method and measure; empty with fewer than two such tasks.

    Only methods with runs on all of these tasks are in it. A diverged run keeps -inf. The measure "area" is missing if a run
    has none.
    """
    tasks = [task for task in scores if task in scales]
    found: dict[str, dict[str, list[np.ndarray]]] = {}
    for method in sorted({m for task in tasks for m in scores[task]}) if len(tasks) >= 2 else ():
        if all(method in scores[task] for task in tasks):
            of = {measure: [getattr(scores[task][method], measure) for task in tasks] for measure in MEASURES}
            found[method] = {
                measure: [scales[task].scores(values) for task, values in zip(tasks, by_task)]
                for measure, by_task in of.items()
                if measure == "final" or not any(np.isnan(values).any() for values in by_task)
            }
    return found


def over_tasks(
    scores: AllScores,
    scales: Mapping[str, Anchor],
    version: str,
    normal: Normal,
    made: Made,
    baseline: str | None,
    warnings: list[str],
) -> dict[str, Any]:
    """Returns the block over tasks. Appends to `warnings` what it leaves out.

    Scores are normalised, `(y - y0) / (y1 - y0)`, on the tasks that have anchors. A method must have runs on all of these
    tasks. The probability of improvement needs no scale; it is the mean over the tasks that both methods have.

    `normal` is the result of `normalized`, `made` that of `families_of`.
    """
    tasks = [task for task in scores if task in scales]
    without = [task for task in scores if task not in scales]
    enough = len(tasks) >= 2
    if len(scores) > 1 and without:
        left = "is left out: it has" if len(without) == 1 else "are left out: they have"
        warnings.append(f"over tasks, {', '.join(without)} {left} no anchors; add them with --anchors")
    for method in sorted({m for task in tasks for m in scores[task]} - set(normal)) if enough else ():
        lacking = [task for task in tasks if method not in scores[task]]
        warnings.append(f"over tasks, {method} is left out: it has no run on {', '.join(lacking)}")
    rows: Rows = [{"method": m, **_aggregates(measures)} for m, measures in normal.items()]
    if baseline is None:
        estimates = {row["method"]: ((row["final"] or {}).get("iqm") or {}).get("estimate") for row in rows}
        ranked = ranks(made["final"][1], estimates)
        for row in rows:
            row["rank"] = ranked[row["method"]]
    return {
        "tasks": tasks if enough else [],
        "left_out": without,
        "why_none": None if enough else f"scores over tasks need two tasks with anchors, there are {len(tasks)}",
        "anchors": {task: scales[task]._asdict() for task in tasks},
        "anchors_version": version,
        "methods": rows,
        "pairs": made["final"][1],
        "area_pairs": made["area"][1],
        "profiles": _profiles(normal),
        "improvement": _improvements(scores, baseline) if len(scores) > 1 else [],
    }


def _aggregates(measures: Mapping[str, list[np.ndarray]]) -> dict[str, Any]:
    """Aggregates of the runs that did not diverge, and how many did; None for a method that has no other on some task."""
    found: dict[str, Any] = {"diverged": sum(int(np.isneginf(v).sum()) for v in measures["final"])}
    for name in MEASURES:
        known = [v[np.isfinite(v)] for v in measures.get(name, [])]
        found[name] = None
        if known and all(v.size for v in known):
            found[name] = {s: intervals.estimate_interval(known, s)._asdict() for s in AGGREGATES}
            gap = intervals.estimate_interval([np.maximum(1 - v, 0) for v in known], "mean")
            found[name]["optimality_gap"] = intervals.cut_interval("optimality_gap", gap._asdict())
    return found


def _profiles(normal: Normal) -> dict[str, Any] | None:
    """Returns the performance profiles; a diverged run is above no threshold."""
    every = np.concatenate([np.zeros(0), *(task for measures in normal.values() for task in measures["final"])])
    every = every[np.isfinite(every)]
    if not every.size:
        return None
    taus = np.linspace(min(0.0, every.min()), max(1.0, every.max()), PROFILE_POINTS)
    methods = [{"method": m, **intervals.performance_profile(of["final"], taus)._asdict()} for m, of in normal.items()]
    return {"tau": taus, "methods": methods}


def _improvements(scores: AllScores, baseline: str | None) -> Rows:
    found = []
    for x, y in compared(sorted({m for methods in scores.values() for m in methods}), baseline):
        both = [task for task in scores if x in scores[task] and y in scores[task]]
        if both:
            a, b = ([scores[task][m].final for task in both] for m in (x, y))
            found.append({"x": x, "y": y, "tasks": both, "improvement": improvement_of(a, b)})
    return found
