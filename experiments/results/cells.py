"""The numbers of a method on a task, as docs/results.md shows them.

- The **final return** of a run is the mean of its last three evaluations, greedy, never a maximum. Over seeds: the mean, from
  `claims.FEWEST_RUNS` seeds on with Student's t interval (95%), and each seed.
- A return **at a step** is the run's evaluation that was due at that step. Over seeds: mean and standard deviation (n - 1).
- **First solved** is the step of a run's first evaluation at or above the return at which Gymnasium calls the task solved; "-" is
  a run that never was there, "never" that no run was, and "no threshold" a task of which Gymnasium does not say it.
- **Repeated** and **decisions** are means of the last three evaluations, too.
- **While exploring** is the mean of the training summaries over the last tenth of the run, each the mean return of the episodes
  that ended since the summary before.
"""

from __future__ import annotations

import csv
from pathlib import Path

import gymnasium
import numpy as np

from experiments.results import claims
from experiments.results.collect import ROLLOUTS
from taac.analysis.readers.run_records import Record
from taac.analysis.statistics.intervals import cut, estimate_interval


def numbers(folder: Path, runs: list[Record], steps: list[int]) -> list[str]:
    """Returns the cells of one method on one task."""
    whole = [r for r in runs if not r.problems]
    found = [final_return(runs), each(runs)]
    if not whole:
        return [*found, *["-"] * (len(steps) + 4)]
    last = [np.array([r.at_end(name) for r in whole]) for name in ("fraction_repeated", "decisions")]
    exploring = np.array([exploring_return(folder / r.folder, r) for r in whole])
    at = [np.array([value_at(r, step) for r in whole]) for step in steps]
    cells = [with_deviation(values) for values in (*at, exploring, *last)]
    return [*found, *cells[: len(at)], first_solved(runs), *cells[len(at) :]]


def final_return(runs: list[Record]) -> str:
    """Returns the mean over the runs that did not diverge, and how many did."""
    values = np.array([r.at_end() for r in runs if not r.problems])
    diverged = len(runs) - values.size
    if not values.size:
        return f"{diverged} diverged"
    return with_interval(values) + (f"; {diverged} of {len(runs)} diverged" if diverged else "")


def each(runs: list[Record]) -> str:
    """Returns the final return of every run, in the order of their seeds."""
    return ", ".join("diverged" if r.problems else number(r.at_end()) for r in runs)


def first_solved(runs: list[Record]) -> str:
    """Returns the step, in thousands, of each run's first evaluation at which Gymnasium calls the task solved."""
    spec = gymnasium.registry.get(runs[0].task or "")
    threshold = None if spec is None else spec.reward_threshold
    if threshold is None:
        return "no threshold"
    reached = [r.steps[r.returns >= threshold] for r in runs]
    return ", ".join(f"{steps[0] / 1000:.4g}k" if steps.size else "-" for steps in reached) if any(map(len, reached)) else "never"


def value_at(record: Record, step: int) -> float:
    """Finds the return of the first evaluation at or after a step, NaN if it is later than a hundredth of the budget."""
    i = int(np.searchsorted(record.steps, step))
    late = 0.01 * (record.budget or record.steps[-1])
    return float(record.returns[i]) if i < record.steps.size and record.steps[i] <= step + late else float("nan")


def exploring_return(folder: Path, record: Record) -> float:
    """Returns the mean return of training episodes in the last tenth of the run; NaN if it was not recorded."""
    path = folder / ROLLOUTS
    if not path.exists():
        return float("nan")
    with path.open(newline="", encoding="utf-8") as file:
        rows = [(float(row["env_steps"]), float(row["return_mean"])) for row in csv.DictReader(file)]
    late = [value for step, value in rows if step > 0.9 * float(record.steps[-1]) and np.isfinite(value)]
    return float(np.mean(late)) if late else float("nan")


def number(value: float) -> str:
    """Formats by three digits, or all before the point; at most three behind it. 0.000 is rounded, 0 is exact."""
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    return f"{value:.3f}".replace("-0.000", "0.000") if abs(value) < 0.1 else f"{value:.3g}"


def with_interval(values: np.ndarray, name: str = "") -> str:
    """Returns the mean, with its interval if the runs are enough and differ, cut to the range of the quantity `name`."""
    if np.isnan(values).any():
        return "-"
    found = estimate_interval([values], "mean") if values.size >= claims.FEWEST_RUNS else None
    if found is None or np.isnan(found.low):
        return number(float(values.mean()))
    low, high = cut(name, found.estimate, found.low, found.high)
    return f"{number(found.estimate)} [{number(float(low))}, {number(float(high))}]"


def with_deviation(values: np.ndarray) -> str:
    if np.isnan(values).any():
        return "-"
    mean = number(float(values.mean()))
    return mean if values.size < 2 else f"{mean} +- {number(float(values.std(ddof=1)))}"
