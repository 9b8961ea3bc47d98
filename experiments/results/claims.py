"""What the runs say about the claims of TAAC's paper (arXiv:2104.06521), by rules that were written beforehand.

They were written when three runs of `simple_control` were done. That a verdict waits for the planned seeds and that all planned
comparisons count was added when nine were; both only make verdicts rarer, and no claim had the seeds for one.

`claims.json` lists the claims and the campaigns that test them; `planned` in a campaign's `campaign.json` says which tasks and
seeds it has. **A verdict waits until both methods have all planned seeds** on the task, so that nobody can stop where it looks
best, and rests on these seeds only. Change a plan before its campaign starts, never after. There are two kinds of claims:

- **X is better than Y** on a task, by the final return or by the mean return over all evaluations ("area"). All claims of this
  kind on all planned tasks of one campaign are one family of m comparisons, however many are complete: each is tested at a level
  of 5% / m, with an interval of confidence 1 - 5% / m (`taac.analysis.statistics.families`; Bonferroni). A run that diverged
  counts as the worst. "agrees" if X is better, "disagrees" if Y is, else "not decidable at this n". The permutation test needs
  `2 / (2n choose n) <= 0.05 / m`: 5 seeds of each can decide up to 6 comparisons, 6 seeds 23, 7 seeds 85. Plan as many.
- **X repeats a fraction of its steps** on a task. The published fraction is read off a figure, with an error of
  `reading_error`; its own spread over seeds is not known and counts as none. Our 95% interval is Student's t over seeds, each by
  itself, not corrected for the number of tasks, and the point itself if all seeds are equal. Widened by the reading error:
  "disagrees" if it excludes the published fraction; "agrees" if it includes it and ours is narrower than 0.3; else, or if a run
  diverged, "not decidable at this n".

Fewer than 3 seeds decide nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.analysis.readers.run_records import Record
from taac.analysis.statistics import families
from taac.analysis.statistics.intervals import estimate_interval

HERE = Path(__file__).resolve().parent
AGREES, DISAGREES, OPEN, NOT_RUN = "agrees", "disagrees", "not decidable at this n", "not run"
WAITS = "waits for the planned seeds"
LEVEL, FEWEST_RUNS, WIDEST, LAST = 0.05, 3, 0.3, 3
Groups = Mapping[tuple[str, str], list[Record]]  # runs by task and method
Plan = Mapping[str, Any]  # `planned` in campaign.json: "tasks" and the number of "seeds"


class Row(NamedTuple):
    """A claim on one task, and what the runs say about it."""

    claim: str
    task: str
    here: str
    published: str
    verdict: str


def rows(groups_of: Mapping[str, Groups], plans: Mapping[str, Plan], published: Mapping[str, Any]) -> list[Row]:
    """Returns every claim on every planned task of its campaign.

    Args:
        groups_of: the runs of each campaign.
        plans: the plan of each campaign.
        published: `taac_paper` in `published.json`.
    """
    listed = json.loads((HERE / "claims.json").read_text(encoding="utf-8"))
    returns = [claim for claim in listed["claims"] if "better" in claim]
    found = []
    for claim in listed["claims"]:
        plan = plans.get(claim["campaign"])
        groups = groups_of.get(claim["campaign"], {})
        for task in plan["tasks"] if plan else ["all tasks"]:
            seeds = plan["seeds"] if plan else 0
            if "better" in claim:
                family = len(plan["tasks"]) * sum(c["campaign"] == claim["campaign"] for c in returns) if plan else 1
                found.append(row_of_returns(claim, task, groups, seeds, family))
            else:
                fraction = published["fraction_repeated"]["by_task"].get(re.sub(r"-v\d+$", "", task))
                found.append(row_of_fractions(claim, task, groups, seeds, fraction, listed["reading_error"]))
    return found


def planned_runs(groups: Groups, task: str, method: str, seeds: int) -> list[Record]:
    """The runs with a planned seed: 0, 1, ... seeds - 1."""
    return [r for r in groups.get((task, method), []) if r.seed in range(seeds)]


# Returns -------------------------------------------------------------------------------------------------------------


def row_of_returns(claim: Mapping[str, Any], task: str, groups: Groups, seeds: int, family: int) -> Row:
    """A claim that X is better than Y on a task, one of `family` comparisons."""
    text, (x, y) = claim["claim"], claim["better"]
    said = f"{x} above {y}"
    runs = [planned_runs(groups, task, method, seeds) for method in (x, y)]
    if not all(runs):
        return Row(text, task, "-", said, NOT_RUN)
    count = f"{len(runs[0])} and {len(runs[1])} of {seeds} seeds"
    if min(map(len, runs)) < seeds:
        return Row(text, task, count, said, WAITS)
    if seeds < FEWEST_RUNS:
        return Row(text, task, count, said, OPEN)
    of_x, of_y = (scores(of, claim["measure"]) for of in runs)
    [found] = families.verdicts([families.Comparison([of_x], [of_y])], confidence=1 - LEVEL / family)
    d = found.difference
    if np.isnan(d.low):
        here = f"{d.estimate:+.3g}, no run differs from another of its method"
    else:
        unit = "" if found.compares == families.MEANS else f" (P({x} > {y}) - 1/2, as runs diverged)"
        here = f"{d.estimate:+.3g} [{d.low:.3g}, {d.high:.3g}]{unit}"
    return Row(text, task, f"{here}, {count}", said, {"better": AGREES, "worse": DISAGREES}.get(d.verdict, OPEN))


def scores(runs: Sequence[Record], measure: str) -> np.ndarray:
    """One number a run: its last three evaluations' mean, or that of all; the lowest for a run that diverged."""
    values = [families.DIVERGED if r.problems else (r.returns[-LAST:] if measure == "final" else r.returns).mean() for r in runs]
    return np.array(values)


# Fractions repeated --------------------------------------------------------------------------------------------------


def row_of_fractions(
    claim: Mapping[str, Any], task: str, groups: Groups, seeds: int, published: float | None, error: float
) -> Row:
    """A claim on the fraction of steps that a method repeats on a task."""
    text, said = claim["claim"], "-" if published is None else f"{published:g}"
    runs = planned_runs(groups, task, claim["repeats"], seeds)
    values = np.array([r.evaluations["fraction_repeated"][-LAST:].mean() for r in runs if not r.problems])
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
    return AGREES if high - low < WIDEST else OPEN
