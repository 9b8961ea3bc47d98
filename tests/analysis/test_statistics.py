"""Aggregates, intervals and comparisons: tables, identities, and coverage by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from taac.analysis.report.scores import REPETITION
from taac.analysis.statistics import intervals
from taac.analysis.statistics.differences import bounded_difference, compare, improvement_interval
from taac.analysis.statistics.intervals import (
    STATISTICS,
    bounded_interval,
    estimate_interval,
    performance_profile,
    proportion_interval,
    student_p_value,
    student_quantile,
)

NAN = math.nan
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
mean, median, iqm = STATISTICS["mean"], STATISTICS["median"], STATISTICS["iqm"]

tables = hnp.arrays(
    np.float64, st.tuples(st.integers(1, 5), st.integers(2, 7)), elements=st.integers(-40, 40).map(lambda i: i / 8)
)  # [tasks, runs]
ragged = st.lists(
    st.lists(st.integers(-40, 40).map(lambda i: i / 8), min_size=2, max_size=6).map(np.array), min_size=1, max_size=4
)


def one(*scores):
    """The scores of one task."""
    return [np.array(scores, dtype=float)]


# --- Aggregates -----------------------------------------------------------------------------------
# Three runs of two tasks: task means 2 and 12, sorted together 0 1 5 6 10 20.
TABLE = np.array([[1.0, 0.0, 5.0], [6.0, 10.0, 20.0]])


def test_a_table_by_hand():
    assert mean(TABLE) == 7  # (2 + 12) / 2
    assert median(TABLE) == 7
    assert iqm(TABLE) == 5.5  # floor(6 / 4) = 1 dropped at each end: (1 + 5 + 6 + 10) / 4


@pytest.mark.parametrize(
    "scores, expected",
    [
        ([1, 2, 9], 4),  # floor(3 / 4) = 0: the mean
        ([0, 1, 2, 6, 90], 3),  # floor(5 / 4) = 1
        ([0, 1, 2, 6, 7, 8, 100, 100], 5.75),  # 2: (2 + 6 + 7 + 8) / 4
    ],
)
def test_iqm_drops_whole_runs(scores, expected):
    assert iqm(one(*scores)) == expected == iqm(one(*reversed(scores)))


def test_tasks_weigh_the_same_however_many_runs_they_have():
    scores = [np.array([0.0, 0.0, 0.0, 4.0]), np.array([5.0, 7.0])]
    assert mean(scores) == 3.5  # (1 + 6) / 2, not 16 / 6
    assert median([*scores, np.array([100.0])]) == 6
    # Weights 1 1 1 1 and 2 2: 8 in all, 2 at each end. Low: 0 and 0. High: 7. What stays: 0, 4 and 5 twice.
    assert iqm(scores) == 3.5
    # Weights 2 2 2 and 3 3: 12 in all, 3 at each end. Low: 0 (2), then 1 (2) does not fit. High: 9 (3).
    # What stays: 1 and 2 (2 each), 8 (3): 30 / 7.
    assert iqm([np.array([0.0, 1.0, 2.0]), np.array([8.0, 9.0])]) == pytest.approx(30 / 7)


@PROPERTY
@given(tables)
def test_weighted_and_plain_iqm_agree_where_runs_are_as_many(table):
    weights = np.full(table.size, 3)
    flat = table.ravel()
    kept = ~(intervals._lowest_quarter(flat, weights) | intervals._lowest_quarter(-flat, weights))
    assert iqm(table) == pytest.approx(flat[kept].mean(), abs=1e-12)


@PROPERTY
@given(ragged, st.integers(1, 9), st.integers(-9, 9), st.sampled_from(sorted(STATISTICS)))
def test_aggregates_follow_scale_shift_sign_and_order(scores, scale, shift, name):
    aggregate = STATISTICS[name]
    value = aggregate(scores)
    assert aggregate([scale * t + shift for t in scores]) == pytest.approx(scale * value + shift, abs=1e-9)
    assert aggregate([-t for t in scores]) == pytest.approx(-value, abs=1e-9)
    assert aggregate([t[::-1] for t in reversed(scores)]) == pytest.approx(value, abs=1e-9)
    assert min(t.min() for t in scores) - 1e-9 <= value <= max(t.max() for t in scores) + 1e-9


# --- Quantiles ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "confidence, df, expected",
    [
        (0.95, 1, math.tan(0.475 * math.pi)),  # Cauchy
        (0.95, 9, 2.262157),  # printed tables
        (0.99, 4, 4.604095),
    ],
)
def test_students_quantiles(confidence, df, expected):
    assert student_quantile(confidence, df) == pytest.approx(expected, rel=1e-6)
    assert student_p_value(-expected, df) == pytest.approx(1 - confidence, rel=1e-5)


def test_clopper_pearson_by_hand():
    # All of three: the lowest p with p^3 = 0.025. Of one: p = 0.025. None of three mirrors all of three.
    assert proportion_interval(1, 3) == pytest.approx((0.025 ** (1 / 3), 1))
    assert proportion_interval(0, 3) == pytest.approx((0, 1 - 0.025 ** (1 / 3)))
    assert proportion_interval(1, 1) == pytest.approx((0.025, 1))
    assert proportion_interval(0.7, 10) == pytest.approx((0.347547, 0.933260), abs=1e-6)  # printed table


# --- Intervals ------------------------------------------------------------------------------------


def test_one_tasks_mean_has_students_interval():
    # Mean 2, s = 1, n = 3: 2 -+ 4.302653 / sqrt(3).
    interval = estimate_interval(one(1, 2, 3), "mean")
    assert interval[:3] == pytest.approx((2, 2 - 2.484138, 2 + 2.484138), abs=1e-6)


def test_the_mean_over_tasks_has_welch_satterthwaites_interval():
    # s^2 / n = 1 / 3 and 8 / 2 = 4; error^2 = (1/3 + 4) / 4; df = (13/3)^2 / ((1/3)^2 / 2 + 4^2 / 1) = 169 / 144.5.
    interval = estimate_interval([np.array([1.0, 2, 3]), np.array([0.0, 4])], "mean")
    half = student_quantile(0.95, 169 / 144.5) * math.sqrt(13 / 12)
    assert interval[:3] == pytest.approx((2, 2 - half, 2 + half))


def test_the_bootstrap_spread_of_a_mean_is_its_closed_form(monkeypatch):
    monkeypatch.setattr(intervals, "_COMPONENT_RESAMPLES", 40_000)  # with the usual 200, components are good to some 10%
    tasks = [np.array([1.0, 2, 4]), np.array([0.0, 4, 5, 9, 3]), np.array([2.0, 8])]
    exact = intervals.linear_spread(tasks, 1 / 3)
    drawn = intervals.bootstrap_spread(lambda numbers: mean([t[i] for t, i in zip(tasks, numbers)]), [3, 5, 2], 40_000)
    assert drawn.error == pytest.approx(exact.error, rel=0.02)
    assert drawn.df == pytest.approx(exact.df, rel=0.03)
    # One task: no components to weigh.
    single = intervals.bootstrap_spread(lambda i: tasks[0][i[0]].mean(-1), [3], 40_000)
    assert single.error == pytest.approx(intervals.linear_spread(tasks[:1], 1).error, rel=0.02)
    assert single.df == 2


def test_the_bootstrap_spread_of_a_product_of_means_by_hand(monkeypatch):
    """Each sample's own share is resampled alone, with the others as they are: it depends on their means."""
    monkeypatch.setattr(intervals, "_COMPONENT_RESAMPLES", 40_000)
    x, y = np.array([1.0, 3]), np.array([0.0, 0, 0, 0, 0, 0, 1, 2, 3, 4])
    drawn = intervals.bootstrap_spread(lambda i: x[i[0]].mean(-1) * y[i[1]].mean(-1), [2, 10], 40_000)
    # Means 2 and 1; variances of the resampled means 1/2 and 2/10. Alone: 1^2 0.5 and 2^2 0.2; together also 0.5 x 0.2.
    components = np.array([0.5 * 2 / 1, 0.8 * 10 / 9])
    shares = components / components.sum()
    assert drawn.error == pytest.approx(math.sqrt(1.4 * components.sum() / 1.3), rel=0.02)
    assert drawn.df == pytest.approx(1 / (shares[0] ** 2 / 1 + shares[1] ** 2 / 9), rel=0.03)


@pytest.mark.parametrize("statistic", sorted(STATISTICS))
def test_where_runs_do_not_differ_the_interval_is_undefined(statistic):
    tasks = [np.full(3, 0.1), np.full(3, 0.1 * 7)]
    interval = estimate_interval(tasks, statistic)
    assert math.isnan(interval.low) and math.isnan(interval.high) and "undefined" in interval.method
    assert interval.estimate == STATISTICS[statistic](tasks)


@PROPERTY
@given(tables, st.integers(1, 5), st.integers(-9, 9), st.sampled_from(["mean", "iqm", "median"]))
def test_intervals_follow_scale_and_shift(table, scale, shift, statistic):
    before = estimate_interval(table, statistic, resamples=200)
    after = estimate_interval(scale * table + shift, statistic, resamples=200)
    if math.isnan(before.low):
        assert math.isnan(after.low)
        return
    assert after[:3] == pytest.approx([scale * v + shift for v in before[:3]], rel=1e-6, abs=1e-6)
    assert before.low <= before.estimate <= before.high


def test_bounded_interval_by_hand():
    # Two of three episodes solved, on bounds (-1, 1): the proportion's interval, stretched.
    low, high = proportion_interval(2 / 3, 3)
    interval = bounded_interval(np.array([1, 1, -1]), (-1, 1))
    assert interval[:3] == pytest.approx((1 / 3, 2 * low - 1, 2 * high - 1))
    assert bounded_interval(np.ones(3), (0, 1)).low == pytest.approx(0.025 ** (1 / 3))
    assert bounded_interval(np.array([0.5]), (0, 1)).low > 0  # even a single run is informative


# --- Ranges ---------------------------------------------------------------------------------------


def test_ends_by_hand():
    low, high = intervals.cut("rollout/fraction_repeated", [0.5, 0.9, NAN, 1.5], [-0.2, 0.6, NAN, 1.2], [0.7, 1.4, NAN, 1.8])
    np.testing.assert_array_equal(low, [0, 0.6, NAN, 1.2])  # where the estimate is out of range, nothing is cut
    np.testing.assert_array_equal(high, [0.7, 1, NAN, 1.8])
    assert [float(end) for end in intervals.cut("jerk", -0.5, -0.9, -0.1)] == [-0.9, -0.1]
    assert [float(end) for end in intervals.cut("max_run", 33.8, -35.6, 103.1)] == [1, 103.1]
    assert [float(end) for end in intervals.cut("return", 33.8, -35.6, 103.1)] == [-35.6, 103.1]


def test_numbers_of_the_environments_own_have_no_range_but_success():
    found = {"estimate": 0.9, "low": -0.1, "high": 1.1, "method": "Student t"}
    assert intervals.cut_interval("info/jerk", found) is found
    assert all(intervals.cut_interval(f"info/{name}", found)["high"] == 1.0 for name in ("is_success", "success"))
    assert intervals.cut_interval("evaluation/info/is_success", found)["high"] == 1.0  # as a tag, too
    assert all(intervals.cut_interval(f"rollout/info/{name}", found) is found for name in ("jerk", "length", "robot/effort"))


def test_what_was_cut_is_said_once():
    found = {"estimate": 0.2, "low": -0.1, "high": 0.5, "confidence": 0.95, "method": "Student t"}
    cut = intervals.cut_interval("jerk", found)
    assert cut == {**found, "low": 0.0, "method": "Student t, cut to 0 or more"}
    assert intervals.cut_interval("jerk", cut) == cut and found["low"] == -0.1
    assert intervals.cut_interval("return_mean", found) is found and intervals.cut_interval("jerk", None) is None


def test_a_range_may_be_given():
    found = {"estimate": 0.9, "low": 0.6, "high": 1.2, "confidence": 0.95, "method": "Student t"}
    assert intervals.cut_interval("final", found, (0.0, 1.0)) == {**found, "high": 1.0, "method": "Student t, cut to [0, 1]"}
    low, high = intervals.cut("return_mean", [0.9, NAN], [-0.6, NAN], [1.2, NAN], (-0.5, 1.0))
    np.testing.assert_array_equal([low, high], [[-0.5, NAN], [1, NAN]])


def test_every_repetition_measure_has_its_range():
    assert set(REPETITION) <= set(intervals.BOUNDS)


# --- Coverage -------------------------------------------------------------------------------------
# "95%" intervals against the truth. Measured numbers are in the docstrings; the bounds asserted leave three standard
# errors of the simulation.


def draw(kind, rng, shape):
    if kind == "normal":
        return rng.normal(size=shape)
    if kind == "lognormal":
        return rng.lognormal(0, 0.75, size=shape)
    solved = (rng.random(shape) < 0.7).astype(float)  # solved or not
    return solved + 0.02 * rng.normal(size=shape) if kind == "jitter" else solved


TRUE_MEAN = {"normal": 0.0, "lognormal": math.exp(0.75**2 / 2), "jitter": 0.7, "solved": 0.7}


def coverage(interval, kind, runs, truth, simulations, tasks=1, seed=0):
    """Fractions of simulations whose interval holds the truth, and whose interval is undefined."""
    rng = np.random.default_rng(seed)
    found = [interval(list(draw(kind, rng, (runs, tasks)).T)) for _ in range(simulations)]
    holds = np.mean([i.low <= truth <= i.high for i in found])
    return float(holds), float(np.mean([math.isnan(i.low) for i in found]))


@pytest.mark.parametrize(
    "kind, runs, low, high",
    [
        ("normal", 3, 0.93, 0.97), ("normal", 5, 0.93, 0.97), ("normal", 10, 0.93, 0.97),  # exact: 0.95
        ("lognormal", 3, 0.85, 0.92), ("lognormal", 5, 0.84, 0.92), ("lognormal", 10, 0.85, 0.93),  # 0.89, 0.88, 0.89
        ("jitter", 3, 0.57, 0.67), ("jitter", 5, 0.78, 0.88), ("jitter", 10, 0.93, 0.98),  # 0.62, 0.83, 0.96
    ],
)  # fmt: skip
def test_coverage_of_a_tasks_mean(kind, runs, low, high):
    holds, undefined = coverage(lambda s: estimate_interval(s, "mean"), kind, runs, TRUE_MEAN[kind], 1000)
    assert low <= holds <= high and undefined == 0


@pytest.mark.parametrize("runs", [3, 10])
def test_solved_or_not_is_covered_by_bounds_or_called_undefined(runs):
    # All runs alike with probability 0.7^n + 0.3^n: 0.37, 0.17, 0.03; else the t interval covers 1.00, 1.00, 0.99.
    holds, undefined = coverage(lambda s: estimate_interval(s, "mean"), "solved", runs, 0.7, 1000)
    assert undefined == pytest.approx(0.7**runs + 0.3**runs, abs=0.05)
    assert holds / (1 - undefined) >= 0.97
    # Clopper-Pearson: 1.00, 1.00, 0.99, and always there.
    holds, undefined = coverage(lambda s: bounded_interval(s[0], (0, 1)), "solved", runs, 0.7, 500)
    assert holds >= 0.97 and undefined == 0


# IQM of all scores: of a symmetric distribution the middle; of lognormal(0, s): (F(q3) - F(q1)) e^{s^2/2} / (1/2) with
# F(q) = Phi(z - s), z = -+0.67449: 2 e^{0.28125} (Phi(-0.07551) - Phi(-1.42449)).
LOGNORMAL_IQM = 2 * math.exp(0.28125) * (math.erf(-0.07551 / math.sqrt(2)) / 2 - math.erf(-1.42449 / math.sqrt(2)) / 2)


@pytest.mark.parametrize("runs", [3, 10])
@pytest.mark.parametrize("kind, truth", [("normal", 0.0), ("lognormal", LOGNORMAL_IQM)])
def test_coverage_of_the_iqm_over_tasks(kind, truth, runs):
    # On three like tasks, three runs each: 0.95; the percentile bootstrap 0.86.
    holds, undefined = coverage(lambda s: estimate_interval(s, "iqm", 200), kind, runs, truth, 300, tasks=3)
    assert 0.91 <= holds <= 1 and undefined == 0


# --- Performance profiles -------------------------------------------------------------------------


def test_a_profile_by_hand():
    profile = performance_profile([np.array([0.0, 1, 2]), np.array([1.0, 3])], np.array([-1, 0, 1, 2.5, 3]))
    # Strictly above: 3 and 2; 2 and 2; 1 and 1; 0 and 1; none.
    np.testing.assert_allclose(profile.fraction, [1, (2 / 3 + 1) / 2, (1 / 3 + 1 / 2) / 2, 1 / 4, 0])
    n = 4 / (1 / 3 + 1 / 2)
    for f, low, high in zip(*profile):
        assert (low, high) == proportion_interval(f, n)


@PROPERTY
@given(hnp.arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(1, 4)), elements=st.integers(0, 20)))
def test_a_profile_of_scores_in_the_unit_interval_integrates_to_their_mean(twentieths):
    scores = twentieths / 20
    cells = (np.arange(20) + 0.5) / 20  # the profile is constant between multiples of 1/20
    profile = performance_profile(scores, cells)
    assert profile.fraction.mean() == pytest.approx(mean(scores))
    assert (np.diff(profile.fraction) <= 1e-12).all()
    assert (profile.low <= profile.fraction + 1e-12).all() and (profile.fraction <= profile.high + 1e-12).all()


# --- Probability of improvement -------------------------------------------------------------------


def test_probability_of_improvement_by_hand():
    # Task 0: of (1, 3) against (0, 1, 2): 1 > 0, 1 = 1, 3 above all: 4.5 / 6. Task 1: all below.
    x, y = [np.array([1.0, 3]), np.array([0.0, 4])], [np.array([0.0, 1, 2]), np.array([5.0, 6])]
    assert improvement_interval(x, y).estimate == pytest.approx((0.75 + 0) / 2)


@PROPERTY
@given(ragged, ragged)
def test_improvements_of_both_over_each_other_add_to_one(x, y):
    x, y = x[: len(y)], y[: len(x)]
    there, back = improvement_interval(x, y), improvement_interval(y, x)
    assert there[:3] == pytest.approx((1 - back.estimate, 1 - back.high, 1 - back.low), abs=1e-9)
    assert 0 <= there.low <= there.estimate + 1e-9 <= there.high + 2e-9 <= 1 + 2e-9


def test_improvement_interval_solves_its_equation():
    x, y = np.array([[1.0, 3, 5], [2, 4, 1]]), np.array([[0.0, 2], [2, 1]])
    interval = improvement_interval(x, y)
    for p in (interval.low, interval.high):
        variance = p * (1 - p) * (1 + 1.5 * ((1 - p) / (2 - p) + p / (1 + p))) / 6 / 2  # m = 3, n = 2, T = 2
        assert (interval.estimate - p) ** 2 == pytest.approx(1.959964**2 * variance, rel=1e-5)


@pytest.mark.parametrize("runs", [3, 10])
def test_coverage_of_the_probability_of_improvement(runs):
    # P(X > Y) = Phi(1 / sqrt 2) = 0.76. Measured 0.96, 0.96, 0.96.
    truth = 0.5 * (1 + math.erf(0.5))
    rng = np.random.default_rng(0)
    pairs = [(1 + rng.normal(size=(1, runs)), rng.normal(size=(1, runs))) for _ in range(500)]
    found = [improvement_interval(x, y) for x, y in pairs]
    assert 0.92 <= np.mean([i.low <= truth <= i.high for i in found]) <= 0.99


# --- Differences ----------------------------------------------------------------------------------


def sign(d):
    """1 or -1 if the interval excludes 0, else 0."""
    return (d.low > 0) - (d.high < 0)


def test_welch_by_hand():
    # Means 2 and 8; s^2 / n = 1 / 3 and (20 / 3) / 4 = 5 / 3, together 2; df = 2^2 / ((1/3)^2 / 2 + (5/3)^2 / 3).
    d = compare(one(1, 2, 3), one(5, 7, 9, 11))
    t, df = 6 / math.sqrt(2), 4 / (1 / 18 + 25 / 27)
    half = student_quantile(0.95, df) * math.sqrt(2)
    assert d[:3] == pytest.approx((-6, -6 - half, -6 + half))
    assert d.p_value == pytest.approx(student_p_value(t, df)) and d.verdict == "inconclusive"


def test_pairs_by_hand():
    # Differences 1, 2, 3: t with df 2, whatever the runs have in common.
    x, y = one(101, 202, 303), one(100, 200, 300)
    assert compare(x, y, paired=True)[:3] == pytest.approx(estimate_interval(one(1, 2, 3), "mean")[:3])
    assert sign(compare(x, y, paired=True)) == 0
    assert sign(compare(x, y, paired=True, confidence=0.9)) == 1
    assert sign(compare(x, y, confidence=0.9)) == 0


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("statistic", sorted(STATISTICS))
def test_a_planted_difference_is_found_both_ways(statistic, paired):
    rng = np.random.default_rng(0)
    x, y = list(0.6 + 0.1 * rng.random((4, 5))), list(0.1 * rng.random((4, 5)))
    found, back = compare(x, y, statistic, paired), compare(y, x, statistic, paired)
    assert (sign(found), sign(back)) == (1, -1)
    assert found.estimate == pytest.approx(0.6, abs=0.1)
    # The interval of the difference is of the size that the data have: two of some 0.03 / sqrt(5 * 4).
    assert 0.01 < found.high - found.low < 0.4
    assert back.p_value < 0.001 and found.p_value < 0.001


def test_pairs_move_together_in_the_bootstrap():
    rng = np.random.default_rng(1)
    y = rng.normal(size=(2, 6))
    x = y + 0.1 + 1e-3 * rng.normal(size=(2, 6))
    paired, unpaired = compare(x, y, "iqm", paired=True), compare(x, y, "iqm")
    assert (sign(paired), sign(unpaired)) == (1, 0)
    assert paired.high - paired.low < 0.01 < unpaired.high - unpaired.low


def test_runs_that_do_not_differ_have_an_interval_by_bounds_only():
    solved, failed = np.ones(5), np.zeros(5)
    d = compare([solved], [failed])
    assert (d.verdict, d.p_value) == ("inconclusive", 1) and math.isnan(d.low) and "undefined" in d.method
    d = bounded_difference(solved, failed, (0, 1))
    # Both ends of proportions: 1 - sqrt 2 (1 - 0.025^(1/5)).
    assert d.low == pytest.approx(1 - math.sqrt(2) * (1 - 0.025**0.2)) and d.high == 1
    back, same = bounded_difference(failed, solved, (0, 1)), bounded_difference(solved, solved, (0, 1))
    assert (back.low, back.high) == (-d.high, -d.low) and same.low < 0 == same.estimate < same.high
    assert bounded_difference(solved[:3], failed[:3], (0, 1)).low < 0 < d.low


@pytest.mark.parametrize("runs", [3, 10])
@pytest.mark.parametrize("kind, highest", [("normal", 0.07), ("lognormal", 0.06), ("jitter", 0.07), ("solved", 0.07)])
def test_intervals_of_no_difference_exclude_0_at_the_stated_rate(kind, highest, runs):
    # Measured at 3, 5, 10 runs: normal 0.04 0.05 0.05, lognormal 0.02 0.03 0.03, the others below 0.05.
    rng = np.random.default_rng(0)
    signs = [sign(compare([draw(kind, rng, runs)], [draw(kind, rng, runs)])) for _ in range(600)]
    assert signs.count(0) / 600 >= 1 - highest
    if kind == "normal" and runs > 3:
        assert signs.count(0) / 600 <= 0.98
        assert min(signs.count(1), signs.count(-1)) > 5
