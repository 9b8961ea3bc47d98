"""Intervals of quantities that cannot leave a range."""

from __future__ import annotations

import math

import numpy as np
import pytest

from taac.analysis import bounds
from taac.analysis.report.scores import REPETITION

NAN = math.nan


def test_ends_by_hand():
    low, high = bounds.cut("rollout/fraction_repeated", [0.5, 0.9, NAN, 1.5], [-0.2, 0.6, NAN, 1.2], [0.7, 1.4, NAN, 1.8])
    np.testing.assert_array_equal(low, [0, 0.6, NAN, 1.2])  # where the estimate is out of range, nothing is cut
    np.testing.assert_array_equal(high, [0.7, 1, NAN, 1.8])
    assert [float(end) for end in bounds.cut("jerk", -0.5, -0.9, -0.1)] == [-0.9, -0.1]
    assert [float(end) for end in bounds.cut("max_run", 33.8, -35.6, 103.1)] == [1, 103.1]
    assert [float(end) for end in bounds.cut("return", 33.8, -35.6, 103.1)] == [-35.6, 103.1]


def test_what_was_cut_is_said_once():
    found = {"estimate": 0.2, "low": -0.1, "high": 0.5, "confidence": 0.95, "method": "Student t"}
    cut = bounds.cut_interval("jerk", found)
    assert cut == {**found, "low": 0.0, "method": "Student t, cut to 0 or more"}
    assert bounds.cut_interval("jerk", cut) == cut and found["low"] == -0.1
    assert bounds.cut_interval("return_mean", found) is found and bounds.cut_interval("jerk", None) is None


def test_a_range_may_be_given():
    found = {"estimate": 0.9, "low": 0.6, "high": 1.2, "confidence": 0.95, "method": "Student t"}
    assert bounds.cut_interval("final", found, (0.0, 1.0)) == {**found, "high": 1.0, "method": "Student t, cut to [0, 1]"}
    low, high = bounds.cut("return_mean", [0.9, NAN], [-0.6, NAN], [1.2, NAN], (-0.5, 1.0))
    np.testing.assert_array_equal([low, high], [[-0.5, NAN], [1, NAN]])


def test_every_repetition_measure_has_its_range():
    assert set(REPETITION) <= set(bounds.BOUNDS)


@pytest.mark.parametrize("name", ["fraction_repeated", "max_run"])
def test_a_cut_interval_covers_as_often(name):
    """2000 samples of 4 runs: whatever whole interval covers the mean, the cut one does."""
    rng = np.random.default_rng(0)
    if name == "max_run":
        values, mean = 1 + rng.lognormal(1, 1.5, size=(2000, 4)), 1 + math.exp(1 + 1.5**2 / 2)
    else:
        values, mean = rng.beta(0.3, 1.2, size=(2000, 4)), 0.2
    middle, half = values.mean(1), 3.182 * values.std(1, ddof=1) / 2  # t of 3 degrees of freedom
    low, high = bounds.cut(name, middle, middle - half, middle + half)
    whole = (middle - half <= mean) & (mean <= middle + half)
    np.testing.assert_array_equal((low <= mean) & (mean <= high), whole)
    assert (low > middle - half).mean() > 0.2 and whole.mean() > 0.6
