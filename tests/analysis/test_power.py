"""Power of Welch's t and the seeds that a comparison needs: printed tables, and simulation."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import error_rates as experiment
from taac.analysis.statistics import power
from taac.analysis.statistics.quantiles import student_quantile


@pytest.mark.parametrize("effect, seeds", [(0.5, 64), (1.0, 17), (0.8, 26)])
def test_seeds_needed_are_those_of_printed_tables(effect, seeds):
    assert experiment.seeds_needed(effect, 1) == seeds  # Cohen 1988, table 2.4.1: 64, 17, 26 for a power of 0.8


def test_seeds_needed_are_at_least_what_a_permutation_test_needs():
    assert experiment.seeds_needed(50.0, 1) == 4 == experiment.seeds_needed(50.0, 9)
    assert experiment.seeds_needed(3.0, 9) == 6


def test_seeds_needed_count_the_degrees_of_freedom_that_welch_loses():
    assert experiment.seeds_needed(4.0, 12) == 5  # Student's t of one spread would need 4


@pytest.mark.parametrize("effect, runs, level", [(4.0, 4, 0.05 / 12), (2.0, 8, 0.05 / 6), (1.0, 3, 0.05)])
def test_power_of_welchs_t_is_that_of_simulated_runs(effect, runs, level):
    """Each simulated pair is judged as the report does, by its own degrees of freedom."""
    rng = np.random.default_rng(0)
    x, y = effect + rng.normal(size=(100_000, runs)), rng.normal(size=(100_000, runs))
    a, b = x.var(axis=1, ddof=1), y.var(axis=1, ddof=1)
    t, df = np.abs(x.mean(axis=1) - y.mean(axis=1)) / np.sqrt((a + b) / runs), (a + b) ** 2 / (a**2 + b**2) * (runs - 1)
    grid = np.linspace(runs - 1, 2 * runs - 2, 50)
    found = t > np.interp(df, grid, [student_quantile(1 - level, nu) for nu in grid])
    assert experiment.welch_power(effect, runs, level) == pytest.approx(found.mean(), abs=0.005)


def test_the_detectable_shift_is_found_in_four_of_five_studies():
    """A simulation of t with a true difference of so many standard errors."""
    rng = np.random.default_rng(0)
    for df, level in ((4, 0.05), (8, 0.01), (30, 0.05 / 12)):
        shift = power.detectable_shift(df, level)
        t = (shift + rng.normal(size=200_000)) / np.sqrt(rng.chisquare(df, 200_000) / df)
        assert (np.abs(t) > student_quantile(1 - level, df)).mean() == pytest.approx(0.8, abs=0.005)
