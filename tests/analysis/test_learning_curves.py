"""Learning curves: tables by hand, nothing extrapolated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taac.analysis.curves.learning_curves import area_under_curve, common_steps, interpolate, learning_curve
from taac.analysis.statistics.intervals import estimate_interval
from taac.errors import TaacError

NAN = float("nan")
# Evaluated at unequal steps; the second ends early, the third begins late.
RUNS = [
    tuple(np.array(column, dtype=float) for column in run)
    for run in (([0, 10, 20, 40], [0, 1, 3, 7]), ([0, 20, 30], [2, 4, 5]), ([10, 30, 40], [0, 8, 8]))
]


def test_common_steps_lie_where_all_runs_were():
    assert common_steps(RUNS).tolist() == [10, 20, 30]  # from 10 of the third to 30 of the second
    assert common_steps([(np.array([0, 1]), np.zeros(2)), (np.array([5, 6]), np.zeros(2))]).size == 0


def test_runs_are_interpolated_and_not_extrapolated():
    expected = [
        [NAN, 0, 0.5, 1, 5, 5.2, 7, NAN],
        [NAN, 2, 2.5, 3, 5, NAN, NAN, NAN],
        [NAN, NAN, NAN, 0, 8, 8, 8, NAN],
    ]
    np.testing.assert_array_equal(interpolate(RUNS, [-1, 0, 5, 10, 30, 31, 40, 41]), expected)
    np.testing.assert_array_equal(interpolate([([5], [3])], [4, 5, 6]), [[NAN, 3, NAN]])


def test_area_by_hand():
    # (0 + 1) / 2 * 10 + (1 + 3) / 2 * 10 + (3 + 7) / 2 * 20 = 125, over 40.
    assert area_under_curve(*RUNS[0]) == 125 / 40
    # From 5 (0.5) over 10, 20 to 30 (5): 3.75 + 20 + 40 = 63.75, over 25.
    assert area_under_curve(*RUNS[0], 5, 30) == 63.75 / 25
    assert area_under_curve(*RUNS[0], 21, 22) == pytest.approx(3.3)  # between two evaluations


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=8), st.integers(-5, 5), st.integers(-5, 5), st.data())
def test_area_of_a_line_is_its_value_in_the_middle_and_areas_add(gaps, slope, start, data):
    steps = np.cumsum(gaps)
    middle = (steps[0] + steps[-1]) / 2
    assert area_under_curve(steps, start + slope * steps) == pytest.approx(start + slope * middle)
    values = data.draw(st.lists(st.integers(-9, 9), min_size=len(gaps), max_size=len(gaps)))
    halves = area_under_curve(steps, values, None, middle), area_under_curve(steps, values, middle)
    assert area_under_curve(steps, values) == pytest.approx(sum(halves) / 2)


def test_a_curve_has_the_interval_of_each_step():
    values = np.array([[0, 1, 5.0, 1], [2, 2, 5, NAN], [4, 9, 5, 1], [1, 1, 5, 2], [1, 7, 5, 9]])
    curve = learning_curve(np.array([10, 20, 30, 40]), values)
    assert curve.steps.tolist() == [10, 20, 30, 40]
    for i in (0, 1):
        expected = estimate_interval([values[:, i]], "mean")
        assert (curve.estimate[i], curve.low[i], curve.high[i]) == pytest.approx(expected[:3], rel=1e-12)
        assert curve.low[i] < curve.estimate[i] < curve.high[i]
    assert curve.estimate[2] == 5 and np.isnan([curve.low[2], curve.high[2]]).all()  # all equal: undefined
    assert np.isnan([curve.estimate[3], curve.low[3], curve.high[3]]).all()  # a run is missing


def test_a_value_that_is_nan_leaves_a_gap():
    runs = [(np.array([0, 10, 20, 30]), np.array([0, NAN, 2, 3])), (np.array([5, 25]), np.array([1, 3]))]
    assert common_steps(runs).tolist() == [5, 10, 20, 25]
    np.testing.assert_array_equal(
        interpolate(runs, np.array([0, 5, 10, 15, 20, 25, 30])),
        [[0, NAN, NAN, NAN, 2, 2.5, 3], [NAN, 1, 1.5, 2, 2.5, 3, NAN]],
    )


def test_a_single_run_is_a_curve_without_an_interval():
    curve = learning_curve(np.array([1, 2]), np.array([[3.0, NAN]]))
    np.testing.assert_array_equal(curve, [[1, 2], [3, NAN], [NAN, NAN], [NAN, NAN]])


@pytest.mark.parametrize("low, high", [(-1, 20), (1, 41), (20, 20)])
def test_a_range_that_the_run_does_not_cover_has_no_area(low, high):
    with pytest.raises(TaacError, match=f"no area from step {low} to {high}"):
        area_under_curve(*RUNS[0], low, high)


def test_a_single_evaluation_has_no_area():
    with pytest.raises(TaacError, match="no area from step 3"):
        area_under_curve(np.array([3]), np.array([1]))
