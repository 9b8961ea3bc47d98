"""What the runs say about the claims of TAAC's paper (arXiv:2104.06521), by rules that were written beforehand.

They were written when three runs of `simple_control` were done. That a verdict waits for the planned seeds and that all planned
comparisons count was added when nine were collected; both only make verdicts rarer, and no claim had the seeds for one. Which
claims are pooled was decided before the first run of their campaign.

`claims.json` lists the claims and the campaigns that test them; `planned` in a campaign's `campaign.json` says which tasks and
seeds it has. **A verdict waits until both methods have all planned seeds** on the task, so that nobody can stop where it looks
best, and rests on these seeds only. Change a plan before its campaign starts, never after. There are two kinds of claims:

- **X is better than Y** on a task, by the final return or by the mean return over all evaluations ("area"). All claims of this
  kind on all planned tasks of one campaign are one family of m comparisons, however many are complete: each is tested at a level
  of 5% / m, with an interval of confidence 1 - 5% / m (`taac.analysis.statistics.families`; Bonferroni). A run that diverged
  counts as the worst. "agrees" if X is better, "disagrees" if Y is, else "not decidable at this n". The permutation test needs
  `2 / (2n choose n) <= 0.05 / m`: 5 seeds of each can decide up to 6 comparisons, 6 seeds 23, 7 seeds 85. Plan as many.
  A **pooled** claim is one comparison over all planned tasks, as in the figures of the paper: returns are normalised by the
  anchors of `taac report` (0: a random policy, 1: solved), and the mean over tasks is compared. Its runs change places within
  tasks only, so 3 seeds on 3 tasks can decide it. "campaign/method" takes a method's runs from another campaign.
- **X repeats a fraction of its steps** on a task. The published fraction is read off a figure, with an error of
  `reading_error`; its own spread over seeds is not known and counts as none. Our 95% interval is Student's t over seeds, each by
  itself, not corrected for the number of tasks, and the point itself if all seeds are equal. Widened by the reading error:
  "disagrees" if it excludes the published fraction; "agrees" if it includes it and ours is narrower than 0.3, with the words
  "within the error of reading" if ours alone excludes it; else, or if a run diverged, "not decidable at this n".

A claim that somebody thought of after the runs has `"post_hoc": true`: it is shown with its uncorrected interval, belongs to no
family, and gets no verdict.

A campaign's own comparisons (`differences` in its campaign.json) are judged by the same rules, in a family of their own.

Fewer than 3 seeds decide nothing.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.analysis.readers import comparable
from taac.analysis.readers.run_records import LAST, Record
from taac.analysis.report.scores import match
from taac.analysis.report.verdicts import load_anchors
from taac.analysis.statistics import families
from taac.analysis.statistics.intervals import estimate_interval
from taac.errors import TaacError

HERE = Path(__file__).resolve().parent
AGREES, DISAGREES, OPEN, NOT_RUN = "agrees", "disagrees", "not decidable at this n", "not run"
AGREES_AS_READ = "agrees within the error of reading"
WAITS = "waits for the planned seeds"
POST_HOC = "none: post hoc"
EVERYWHERE = "all tasks"
LEVEL, FEWEST_RUNS, WIDEST = 0.05, 3, 0.3
Groups = Mapping[tuple[str, str], list[Record]]  # runs by task and method
Plan = Mapping[str, Any]  # `planned` in campaign.json: "tasks", the number of "seeds", and "first_seed" if it is not 0


class Row(NamedTuple):
    """A claim on one task, and what the runs say about it."""

    claim: str
    task: str
    here: str
    published: str
    verdict: str
    p_values: str = "-"  # Welch's and the permutation test's, of this comparison alone, and what both must be below


class Runs(NamedTuple):
    """The planned runs of one method."""

    method: str
    by_task: list[list[Record]]
    seeds: int  # that are planned on each task

    @property
    def fewest(self) -> int:
        return min(map(len, self.by_task))


def rows(groups_of: Mapping[str, Groups], plans: Mapping[str, Plan], published: Mapping[str, Any]) -> list[Row]:
    """Returns every claim on every planned task of its campaign.

    Args:
        groups_of: the runs of each campaign.
        plans: the plan of each campaign.
        published: `taac_paper` in `published.json`.
    """
    found = []
    for name in dict.fromkeys(claim["campaign"] for claim in listed()["claims"]):
        of_campaign = [claim for claim in listed()["claims"] if claim["campaign"] == name]
        on_returns = rows_of_returns([claim for claim in of_campaign if "better" in claim], name, groups_of, plans)
        found += [with_scores(row, published["normalised_score_at_the_end"]) for row in on_returns]
        for claim in (claim for claim in of_campaign if "repeats" in claim):
            for task in plans[name]["tasks"] if name in plans else [EVERYWHERE]:
                fraction = published["fraction_repeated"]["by_task"].get(re.sub(r"-v\d+$", "", task))
                plan = plans.get(name, {"seeds": 0})
                found.append(row_of_fractions(claim, task, groups_of.get(name, {}), plan, fraction, listed()["reading_error"]))
    return found


def with_scores(row: Row, scores: Mapping[str, float]) -> Row:
    """Returns a pooled claim with the paper's scores at the end of training beside it, where both are known."""
    methods = row.published.split(" above ")
    if row.task != EVERYWHERE or not all(method in scores for method in methods):
        return row
    return row._replace(published=f"{row.published}: {' and '.join(f'{scores[method]:.2f}' for method in methods)}")


def listed() -> dict[str, Any]:
    """Returns the content of claims.json."""
    return json.loads((HERE / "claims.json").read_text(encoding="utf-8"))


def planned_runs(groups: Groups, task: str, method: str, plan: Plan) -> list[Record]:
    """Returns the runs with a planned seed: 0, 1, ... seeds - 1, or as many from the plan's `first_seed` on."""
    first = plan.get("first_seed", 0)
    return [r for r in groups.get((task, method), []) if r.seed in range(first, first + plan["seeds"])]


# Returns -------------------------------------------------------------------------------------------------------------


def family_of(claims: Sequence[Mapping[str, Any]], plan: Plan) -> int:
    """Returns the number of comparisons that claims on returns make on the planned tasks."""
    return sum(1 if claim.get("pooled") else len(plan["tasks"]) for claim in claims if not claim.get("post_hoc"))


def rows_of_returns(
    claims: Sequence[Mapping[str, Any]], campaign: str, groups_of: Mapping[str, Groups], plans: Mapping[str, Plan]
) -> list[Row]:
    """Returns all claims of one campaign that X is better than Y: one family of comparisons."""
    if campaign not in plans:
        return [Row(claim["claim"], EVERYWHERE, "-", said(claim), NOT_RUN) for claim in claims]
    tasks, found = plans[campaign]["tasks"], []
    for claim in claims:
        for chosen in [tasks] if claim.get("pooled") else [[task] for task in tasks]:
            x, y = (of_method(name, campaign, chosen, groups_of, plans) for name in claim["better"])
            found.append(row_of_returns(claim, chosen, x, y, family_of(claims, plans[campaign])))
    return found


def of_method(
    name: str, campaign: str, tasks: Sequence[str], groups_of: Mapping[str, Groups], plans: Mapping[str, Plan]
) -> Runs:
    """Returns the planned runs of a method of this campaign, or of "other_campaign/method"."""
    other, _, method = name.rpartition("/")
    groups, plan = groups_of.get(other or campaign, {}), plans[other or campaign]
    return Runs(method, [planned_runs(groups, task, method, plan) for task in tasks], plan["seeds"])


def said(claim: Mapping[str, Any]) -> str:
    x, y = (name.rpartition("/")[2] for name in claim["better"])
    return f"{x} above {y}"


def row_of_returns(claim: Mapping[str, Any], tasks: Sequence[str], x: Runs, y: Runs, family: int) -> Row:
    """Returns a claim that X is better than Y on a task, or over tasks, one of `family` comparisons unless it is post hoc."""
    family = 1 if claim.get("post_hoc") else family
    text, where = claim["claim"], EVERYWHERE if claim.get("pooled") else tasks[0]
    if not (x.fewest and y.fewest):
        return Row(text, where, "-", said(claim), NOT_RUN)
    count = f"n = {x.fewest}, {y.fewest}"
    if x.fewest < x.seeds or y.fewest < y.seeds:
        return Row(text, where, f"{x.fewest} of {x.seeds} and {y.fewest} of {y.seeds} seeds", said(claim), WAITS)
    if min(x.seeds, y.seeds) < FEWEST_RUNS:
        return Row(text, where, count, said(claim), OPEN)
    of_x, of_y = map(list, zip(*(scores(a, b, claim["measure"]) for a, b in zip(x.by_task, y.by_task))))
    if claim.get("pooled"):
        of_x, of_y = normalised(of_x, tasks), normalised(of_y, tasks)
    [found] = families.verdicts([families.Comparison(of_x, of_y)], confidence=1 - LEVEL / family)
    d = found.difference
    if np.isnan(d.low):
        here = f"{digits(d.estimate, '+')}, no run differs from another of its method"
    else:
        unit = "" if found.compares == families.MEANS else f" (P({x.method} > {y.method}) - 1/2, as runs diverged)"
        here = f"{digits(d.estimate, '+')} [{digits(d.low)}, {digits(d.high)}]{unit}"
    verdict = POST_HOC if claim.get("post_hoc") else {"better": AGREES, "worse": DISAGREES}.get(d.verdict, OPEN)
    detectable = digits(found.detectable) if found.detectable else "nothing"
    count += f"; detectable: {detectable}" if verdict == OPEN else ""
    p_values = f"{found.p_value:.2g}, {found.p_permutation:.2g} ({LEVEL / family:.2g})"
    return Row(text, where, f"{here}, {count}", said(claim), verdict, p_values)


def digits(value: float, sign: str = "") -> str:
    """Formats by three digits, without an exponent below a million."""
    return f"{float(f'{value:.3g}'):{sign}g}"


def normalised(returns: Sequence[np.ndarray], tasks: Sequence[str]) -> list[np.ndarray]:
    """Scores of runs by task on the scale of `taac report`. A diverged run keeps -inf."""
    _, scales = load_anchors()
    if unknown := [task for task in tasks if task not in scales]:
        raise TaacError(f"a pooled claim needs anchors of all planned tasks; taac/analysis/report/anchors.json lacks {unknown}")
    return [scales[task].scores(of) for task, of in zip(tasks, returns)]


def scores(x: Sequence[Record], y: Sequence[Record], measure: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a number for each run of two methods on a task, from the evaluations that were due at the same steps in all.

    It is the mean of the last three ("final"), or of all ("area"); the lowest number for a run that diverged.

    Raises:
        TaacError: evaluations were due at other steps, or the runs, which may be of two campaigns, differ in budget, update
            ratio, versions, environment or evaluations. The methods' own settings may differ.
    """
    sides = [r._replace(method=f"{side} {r.method}") for side, runs in (("X", x), ("Y", y)) for r in runs]
    if mixed := comparable.mixtures(sides):
        raise TaacError(f"{x[0].method} and {y[0].method} on {x[0].task} are not comparable: {'; '.join(mixed)}")
    matched, _ = match([r._replace(folder=str(i)) for i, r in enumerate([*x, *y])])  # two campaigns may have folders of one name
    whole = [r for r in matched if not r.problems]
    common = functools.reduce(np.intersect1d, (r.due for r in whole)) if whole else np.zeros(0)
    if any(common.size < 0.75 * r.due.size for r in whole):
        raise TaacError(f"the evaluations of {x[0].method} and {y[0].method} on {x[0].task} were due at other steps")
    kept = common[-LAST:] if measure == "final" else common
    found = np.array([families.DIVERGED if r.problems else r.returns[np.isin(r.due, kept)].mean() for r in matched])
    return found[: len(x)], found[len(x) :]


# Fractions repeated --------------------------------------------------------------------------------------------------


def row_of_fractions(
    claim: Mapping[str, Any], task: str, groups: Groups, plan: Plan, published: float | None, error: float
) -> Row:
    """Returns a claim on the fraction of steps that a method repeats on a task."""
    text, said = claim["claim"], "-" if published is None else f"{published:g}"
    runs, seeds = planned_runs(groups, task, claim["repeats"], plan), plan["seeds"]
    values = np.array([r.at_end("fraction_repeated") for r in runs if not r.problems])
    diverged = f", {len(runs) - values.size} diverged" if values.size < len(runs) else ""
    count = f"{len(runs)} of {seeds} seeds{diverged}"
    if not values.size:
        return Row(text, task, count if runs else "-", said, OPEN if diverged else NOT_RUN)
    if len(runs) < seeds or values.size < FEWEST_RUNS:
        return Row(text, task, f"{values.mean():.2f}, {count}", said, WAITS if len(runs) < seeds else OPEN)
    found = estimate_interval([values], "mean")
    low, high = (found.estimate, found.estimate) if np.isnan(found.low) else (found.low, found.high)
    here = f"{found.estimate:.2f} [{low:.2f}, {high:.2f}], {count}"
    return Row(text, task, here, said, OPEN if published is None or diverged else judged(low, high, published, error))


def judged(low: float, high: float, published: float, error: float) -> str:
    """Returns the verdict on a published fraction, given the interval of ours."""
    if not low - error <= published <= high + error:
        return DISAGREES
    if high - low >= WIDEST:
        return OPEN
    return AGREES if low <= published <= high else AGREES_AS_READ
