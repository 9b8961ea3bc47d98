"""What the runs say about the claims of TAAC's paper (arXiv:2104.06521), by rules that were written before the runs.

`claims.json` lists the claims and the campaigns that test them. There are two kinds:

- **X is better than Y** on a task, by the final return or by the mean return over all evaluations ("area"). The claims of one
  campaign, on all its tasks and both measures, are one family of comparisons, tested at 5% as `taac report` does
  (`taac.analysis.statistics.families`). "agrees" if X is better, "disagrees" if Y is, else "not decidable at this n".
- **X repeats a fraction of its steps** on a task. The published fraction is read off a figure, with an error of
  `reading_error`. With 95% intervals (Student's t over seeds), widened by that error: "disagrees" if the interval excludes the
  published fraction; "agrees" if it includes it and is narrower than 0.3; else "not decidable at this n".

Fewer than 3 runs of either method decide nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.analysis.readers.run_records import Record
from taac.analysis.statistics import families
from taac.analysis.statistics.intervals import estimate_interval

HERE = Path(__file__).resolve().parent
AGREES, DISAGREES, OPEN, NOT_RUN = "agrees", "disagrees", "not decidable at this n", "not run"
FEWEST_RUNS, WIDEST, LAST = 3, 0.3, 3
Groups = Mapping[tuple[str, str], list[Record]]  # runs by task and method


class Row(NamedTuple):
    """A claim on one task, and what the runs say about it."""

    claim: str
    task: str
    here: str
    published: str
    verdict: str


def rows(groups_of: Mapping[str, Groups], tasks_of: Mapping[str, list[str]], published: Mapping[str, Any]) -> list[Row]:
    """Returns every claim on every task of its campaign.

    Args:
        groups_of: the runs of each campaign.
        tasks_of: the tasks that each campaign plans.
        published: `taac_paper` in `published.json`.
    """
    listed = json.loads((HERE / "claims.json").read_text(encoding="utf-8"))
    compared = comparisons(listed["claims"], groups_of)
    found = []
    for number, claim in enumerate(listed["claims"]):
        for task in tasks_of.get(claim["campaign"], ["all tasks"]):
            if "better" in claim:
                found.append(row_of_returns(claim, task, compared.get((number, task))))
            else:
                fraction = published["fraction_repeated"]["by_task"].get(re.sub(r"-v\d+$", "", task))
                runs = groups_of.get(claim["campaign"], {}).get((task, claim["repeats"]), [])
                found.append(row_of_fractions(claim, task, runs, fraction, listed["reading_error"]))
    return found


# Returns -------------------------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """A claim on one task that has runs of both methods."""

    runs: tuple[int, int]
    verdict: families.Verdict | None  # None: too few runs


def comparisons(claims: list[dict[str, Any]], groups_of: Mapping[str, Groups]) -> dict[tuple[int, str], Compared]:
    """Returns the verdicts by number of the claim and task. Those of one campaign are corrected together."""
    found: dict[tuple[int, str], Compared] = {}
    for campaign, groups in groups_of.items():
        family: dict[tuple[int, str], families.Comparison] = {}
        for number, claim in enumerate(claims):
            if claim["campaign"] != campaign or "better" not in claim:
                continue
            for task in sorted({task for task, _ in groups}):
                x, y = (scores(groups.get((task, method), []), claim["measure"]) for method in claim["better"])
                if min(x.size, y.size) >= FEWEST_RUNS:
                    family[number, task] = families.Comparison([x], [y])
                elif x.size and y.size:
                    found[number, task] = Compared((x.size, y.size), None)
        for key, verdict in zip(family, families.verdicts(list(family.values()))):
            found[key] = Compared((family[key].x[0].size, family[key].y[0].size), verdict)
    return found


def scores(runs: list[Record], measure: str) -> np.ndarray:
    """One number a run: its last three evaluations' mean, or that of all; the lowest for a run that diverged."""
    values = [families.DIVERGED if r.problems else (r.returns[-LAST:] if measure == "final" else r.returns).mean() for r in runs]
    return np.array(values)


def row_of_returns(claim: dict[str, Any], task: str, compared: Compared | None) -> Row:
    text, (x, y) = claim["claim"], claim["better"]
    if compared is None:
        return Row(text, task, "-", f"{x} above {y}", NOT_RUN)
    count = f"{compared.runs[0]} and {compared.runs[1]} seeds"
    if compared.verdict is None:
        return Row(text, task, count, f"{x} above {y}", OPEN)
    d = compared.verdict.difference
    unit = "" if compared.verdict.compares == families.MEANS else " (ranks)"
    here = f"{d.estimate:+.3g} [{d.low:.3g}, {d.high:.3g}]{unit}, {count}"
    return Row(text, task, here, f"{x} above {y}", {"better": AGREES, "worse": DISAGREES}.get(d.verdict, OPEN))


# Fractions repeated --------------------------------------------------------------------------------------------------


def row_of_fractions(claim: dict[str, Any], task: str, runs: list[Record], published: float | None, error: float) -> Row:
    text, said = claim["claim"], "-" if published is None else f"{published:g}"
    values = np.array([r.evaluations["fraction_repeated"][-LAST:].mean() for r in runs if not r.problems])
    if not values.size:
        return Row(text, task, "-", said, NOT_RUN)
    if values.size < FEWEST_RUNS:
        return Row(text, task, f"{values.mean():.2f}, {values.size} seed(s)", said, OPEN)
    found = estimate_interval([values], "mean")
    here = f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}], {values.size} seeds"
    return Row(text, task, here, said, OPEN if published is None else judged(found.low, found.high, published, error))


def judged(low: float, high: float, published: float, error: float) -> str:
    """Returns the verdict on a published fraction, given the interval of ours."""
    if not low - error <= published <= high + error:
        return DISAGREES
    return AGREES if high - low < WIDEST else OPEN
