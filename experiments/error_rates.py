"""How often the verdicts of `taac report` are wrong, and how often they find a difference: simulations.

`python -m experiments.error_rates` prints the tables of docs/statistics.md; it takes half an hour of one core. `--quick` takes a
tenth of the trials. Runs are drawn from distributions that returns have; the code is the report's
(`taac.analysis.statistics.families`).
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import scipy.stats
from scipy.special import nctdtr, stdtrit

from taac.analysis.statistics import families
from taac.analysis.statistics.families import DIVERGED, POWER, Comparison

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
LEVEL = 0.05
RUNS = (3, 4, 5, 10)
FEWEST = 4  # runs of each method whose permutation test can have a p-value below LEVEL


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.normal(size=shape)


def _unequal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draws normal scores, with a spread of 3 in every other method; shape is [..., methods, runs]."""
    spread = np.where(np.arange(shape[-2]) % 2, 1.0, 3.0)
    return rng.normal(size=shape) * spread[:, None]


def _two_peaks(chance: float) -> Draw:
    """Returns what draws solved or not, with a little noise."""
    return lambda rng, shape: (rng.random(shape) < chance) + 0.02 * rng.normal(size=shape)


def _solved(chance: float) -> Draw:
    return lambda rng, shape: (rng.random(shape) < chance).astype(float)


def _some_diverged(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.where(rng.random(shape) < 0.2, DIVERGED, rng.normal(size=shape))


def _first(of_first: Draw, of_others: Draw) -> Draw:
    """Returns what draws the first method's runs from one distribution, those of the others from another."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        scores = of_others(rng, shape)
        scores[..., 0, :] = of_first(rng, shape)[..., 0, :]
        return scores

    return draw


def _shifted(draw: Draw, shift: float) -> Draw:
    return lambda rng, shape: draw(rng, shape) + shift


KINDS: dict[str, Draw] = {
    "normal": _normal,
    "normal, spreads 1 and 3": _unequal,
    "lognormal": lambda rng, shape: rng.lognormal(sigma=0.75, size=shape),
    "two peaks, half": _two_peaks(0.5),
    "two peaks, 0.8": _two_peaks(0.8),
    "solved or not, half": _solved(0.5),
    # The fraction of 20 evaluation episodes that were solved, by runs of unequal skill: often exactly 1.
    "success rates": lambda rng, shape: rng.binomial(20, rng.beta(2, 0.5, size=shape)) / 20,
    "ties": lambda rng, shape: np.round(rng.normal(size=shape)),
    "a fifth diverged": _some_diverged,
}
DIFFERENT: dict[str, Draw] = {
    "normal, 1.5 sd": _first(_shifted(_normal, 1.5), _normal),
    "normal, 3 sd": _first(_shifted(_normal, 3.0), _normal),
    "two peaks, 1 lower": _first(_shifted(_two_peaks(0.5), -1.0), _two_peaks(0.5)),
    "solved in 0.95 and 0.05": _first(_solved(0.95), _solved(0.05)),
    "3 sd, a fifth of the worse diverged": _first(_shifted(_normal, 3.0), _some_diverged),
}
BOUNDS = dict.fromkeys(("solved or not, half", "success rates", "solved in 0.95 and 0.05"), (0.0, 1.0))


class Family(NamedTuple):
    """Which comparisons a report makes."""

    name: str
    methods: int
    tasks: int
    baseline: bool

    @property
    def pairs(self) -> list[tuple[int, int]]:
        if self.baseline:
            return [(i, 0) for i in range(1, self.methods)]
        return list(itertools.combinations(range(self.methods), 2))


FAMILIES = (
    Family("2 methods, 1 task", 2, 1, False),
    Family("3 methods, 3 tasks, all pairs", 3, 3, False),
    Family("13 methods, 1 task, all pairs", 13, 1, False),
    Family("13 methods, 4 tasks, a baseline", 13, 4, True),
)


class Rates(NamedTuple):
    """By Welch's t with Holm's method and no permutation test, and by the report's procedure."""

    welch_wrong: float  # families with a verdict on methods that do not differ
    wrong: float
    welch_found: float  # the mean fraction of the pairs that differ with a verdict; NaN if none do
    found: float


def simulate(
    draw: Draw,
    family: Family,
    runs: int,
    trials: int,
    seed: int = 0,
    different: bool = False,
    bounds: tuple[float, float] | None = None,
) -> Rates:
    """Draws families of runs and counts verdicts.

    Args:
        draw: scores `[trials, tasks, methods, runs]`.
        different: whether the first method differs from the others; else no method differs from another.
    """
    rng = np.random.default_rng(seed)
    due = np.array([different and 0 in pair for pair in family.pairs] * family.tasks)
    counts = np.zeros((2, 2, trials))
    for trial, scores in enumerate(draw(rng, (trials, family.tasks, family.methods, runs))):
        for row, made in enumerate(_verdicts(scores, family, bounds)):
            counts[0, row, trial] = made[~due].any()
            counts[1, row, trial] = made[due].mean() if different else np.nan
    return Rates(*counts.mean(-1).ravel().tolist())


def _verdicts(scores: np.ndarray, family: Family, bounds) -> tuple[np.ndarray, np.ndarray]:
    """Returns which pairs `[tasks * pairs]` of a family `[tasks, methods, runs]` Welch and Holm decide, and which the report."""
    welch = _welch_p_values(scores, family)
    by_holm = _holm(welch) < LEVEL
    count = welch.size
    candidates = welch * count < LEVEL
    diverged = bool(np.isneginf(scores).any())
    if not (diverged or candidates.any()):
        return by_holm, candidates  # the report would find nothing: spare its permutation tests
    tasks = {str(t): {str(m): runs for m, runs in enumerate(methods)} for t, methods in enumerate(scores)}
    comparisons, names = [], []
    for task, methods in tasks.items():
        for x, y in family.pairs:
            comparisons.append(Comparison([methods[str(x)]], [methods[str(y)]], bounds=bounds, among=task))
            names.append((str(x), str(y)))
    found = families.verdicts(comparisons, tasks, names)
    return by_holm, np.array([v.difference.verdict != "inconclusive" for v in found])


def _holm(p: np.ndarray) -> np.ndarray:
    """Returns adjusted p-values `[m]`: in ascending order, `max over j <= i of min(1, (m - j) p_j)`, j from 0.

    Source: Holm, Scandinavian Journal of Statistics 1979.
    """
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(np.minimum(1, (p.size - np.arange(p.size)) * p[order]))
    return adjusted


def _welch_p_values(scores: np.ndarray, family: Family) -> np.ndarray:
    """Returns Welch's p-values `[tasks * pairs]`: 0 for different means without spread, and without the diverged runs."""
    values, (i, j) = np.where(np.isfinite(scores), scores, np.nan), np.array(family.pairs).T
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of means without spread, and of methods whose runs all diverged
        found = scipy.stats.ttest_ind(values[:, i], values[:, j], axis=-1, equal_var=False, nan_policy="omit")
    p = np.asarray(found.pvalue, dtype=float)
    return np.where(np.isnan(p), 1.0, p).ravel()


# --- Tables ---------------------------------------------------------------------------------------


def tables(trials: int, chosen: Sequence[Family] = FAMILIES) -> Iterator[str]:
    """Yields the tables of docs/statistics.md, of wrong verdicts and of what is found, for each family."""
    for family in chosen:
        comparisons = len(family.pairs) * family.tasks
        fewer = trials if comparisons == 1 else max(1, trials // 10)  # where permutation tests are needed in every family
        errors, power = [], []
        for name, draw in KINDS.items():
            count = fewer if draw is _some_diverged else trials
            of = [simulate(draw, family, runs, count, bounds=BOUNDS.get(name)) for runs in RUNS]
            errors.append([name, *(f"{r.welch_wrong:.3f} {r.wrong:.3f}" for r in of)])
        for name, draw in DIFFERENT.items():
            of = [simulate(draw, family, runs, fewer, different=True, bounds=BOUNDS.get(name)) for runs in RUNS]
            power.append([name, *(f"{r.welch_found:.2f} {r.found:.2f}" for r in of)])
            if comparisons > 1 and not family.baseline:
                errors.append([f"{name}, the others", *(f"{r.welch_wrong:.3f} {r.wrong:.3f}" for r in of)])
        head = [f"{runs} seeds" for runs in RUNS]
        some = f", {fewer} where runs diverged or methods differ" if fewer < trials else ""
        yield f"**{family.name}**: {comparisons} comparison(s), {trials} families for each number{some}.\n"
        yield _table(["wrong verdicts", *head], errors)
        yield _table(["found", *head], power)


def welch_power(effect: float, runs: int, level: float) -> float:
    """Returns the power of Welch's t for two methods of `runs` normal scores each, whose means differ by `effect` spreads.

    The mean of the two sample variances has chi-square's distribution with 2n - 2 degrees of freedom, so t is noncentral t. But
    its critical value has `(n - 1) / (w^2 + (1 - w)^2)` degrees of freedom (Welch, Biometrika 1947), where w, the first method's
    share of the two variances, is Beta((n - 1) / 2, (n - 1) / 2) and independent of their mean: an average over w.
    """
    nodes, weights = np.polynomial.legendre.leggauss(12)
    angles = (nodes + 1) * math.pi / 8  # w = sin(angle)^2, up to the middle of its symmetric distribution
    weights = weights * (np.sin(angles) * np.cos(angles)) ** (runs - 2)
    critical = stdtrit((runs - 1) / (np.sin(angles) ** 4 + np.cos(angles) ** 4), 1 - level / 2)
    shift = effect * math.sqrt(runs / 2)
    found = 1 - nctdtr(2 * runs - 2, shift, critical)  # the other tail is below the level
    return float(weights @ found / weights.sum())


def seeds_needed(effect: float, comparisons: int) -> int:
    """Returns how many runs of each of two methods find a difference of `effect` standard deviations, by Welch's t.

    With fewer than `FEWEST`, no permutation test could find one.
    """
    runs = range(FEWEST, 1000)
    return runs[bisect_left(runs, POWER, key=lambda n: welch_power(effect, n, LEVEL / comparisons))]


def seeds_table() -> str:
    """Returns the seeds that each method needs for a power of 0.8, by effect and number of comparisons."""
    counts = (1, 3, 6, 12, 48, 312)
    rows = [
        [f"{effect:g}", *(str(seeds_needed(effect, m)) for m in counts)] for effect in (0.5, 1, 1.5, 2, 3, 4)
    ]
    return _table(["difference in sd", *(f"{m} comparison{'s' if m > 1 else ''}" for m in counts)], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000, help="families for each number; a tenth where it is slow")
    parser.add_argument("--families", type=int, nargs="*", default=range(len(FAMILIES)), help="numbers of families, from 0")
    parser.add_argument("--quick", action="store_true", help="a tenth of the trials")
    given = parser.parse_args()
    for text in tables(max(1, given.trials // 10) if given.quick else given.trials, [FAMILIES[i] for i in given.families]):
        print(text, flush=True)
    print(seeds_table())


if __name__ == "__main__":
    main()
