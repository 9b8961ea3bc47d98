"""Families of verdicts: exact tests by hand, intervals that agree, error rates and power by simulation."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import error_rates as experiment
from taac.analysis.statistics import permutations
from taac.analysis.statistics.differences import compare, hedges_g
from taac.analysis.statistics.families import (
    DIVERGED,
    EXTENDED,
    RANKS,
    Comparison,
    detectable_shift,
    permutation_p_value,
    permutation_p_values,
    verdicts,
)
from taac.analysis.statistics.intervals import STATISTICS, student_p_value, student_quantile

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
runs = st.lists(st.integers(-8, 8).map(lambda i: i / 4), min_size=2, max_size=5).map(np.array)


def family(tasks, pairs, bounds=None, **options):
    """The verdicts of pairs of methods on every task, by (task, x, y)."""
    names = [(task, x, y) for task in tasks for x, y in pairs]
    comparisons = [Comparison([tasks[t][x]], [tasks[t][y]], bounds=bounds, among=t) for t, x, y in names]
    return dict(zip(names, verdicts(comparisons, tasks, [name[1:] for name in names], **options)))


def one(x, y, bounds=None, **options):
    """The verdict on one comparison."""
    x, y = np.array(x, dtype=float), np.array(y, dtype=float)
    return family({"T": {"x": x, "y": y}}, [("x", "y")], bounds, **options)["T", "x", "y"]


# --- Permutation tests ----------------------------------------------------------------------------


@pytest.mark.parametrize("m, n", [(5, 5), (4, 6), (3, 3), (10, 10)])
def test_solved_or_not_is_fishers_exact_test(m, n):
    for a, b in itertools.product(range(0, m + 1, 2), range(0, n + 1, 2)):
        x, y = (np.arange(m) < a).astype(float), (np.arange(n) < b).astype(float)
        chance = {k: math.comb(m, k) * math.comb(n, a + b - k) / math.comb(m + n, a + b) for k in range(min(m, a + b) + 1)}
        # Two-sided: the tables whose rates differ as much.
        expected = sum(p for k, p in chance.items() if abs(k / m - (a + b - k) / n) >= abs(a / m - b / n) - 1e-9)
        exact = math.comb(m + n, m) <= permutations.MOST
        tolerance = {"rel": 1e-9} if exact else {"abs": 4 * math.sqrt(expected / permutations.DRAWS) + 2e-4}
        table = [[a, m - a], [b, n - b]]
        alone = permutation_p_value(Comparison([x], [y], bounds=(0.0, 1.0)))
        assert alone == pytest.approx(scipy.stats.fisher_exact(table).pvalue)
        if m == n:  # with unequal numbers Welch's t orders some tables differently
            assert permutations.two_samples(x, y) == pytest.approx(expected, **tolerance)


@pytest.mark.parametrize("pairs, findable, fewest", [(1, True, 4), (3, True, 4), (6, False, 5)])
def test_solved_or_not_needs_runs_whose_interval_can_exclude_0(pairs, findable, fewest):
    """All of 4 solved against none of 4, at the level 0.05 / 6: 1 - sqrt(2) (1 - (0.05 / 12)^(1/4)) < 0."""
    half = np.arange(4) % 2.0
    told = family({"T": dict.fromkeys("abcd", half)}, [*itertools.combinations("abcd", 2)][:pairs], (0.0, 1.0)).values()
    assert [(t.difference.verdict, t.findable, t.fewest) for t in told] == [("inconclusive", findable, fewest)] * pairs


def test_four_of_four_against_none_by_hand():
    # 2 of (8 choose 4) = 70 arrangements; of six runs 2 of 20.
    assert permutations.two_samples(np.ones(4), np.zeros(4)) == 2 / 70 == permutations.smallest_p_value([(4, 4)])
    assert permutations.smallest_p_value([(3, 3)]) == 0.1 and permutations.smallest_p_value([(1, 1)]) == 1
    apart = permutations.two_samples(np.array([10.0, 11.0]), np.arange(5.0))
    assert apart == 1 / 21 == permutations.smallest_p_value([(2, 5)])


@PROPERTY
@given(runs, runs)
def test_the_test_of_two_samples_counts_all_exchanges(x, y):
    pool = np.concatenate([x, y])

    def evidence(of_x):
        a, b = pool[list(of_x)], np.delete(pool, list(of_x))
        return float(permutations.welch_evidence(permutations.moments(a), permutations.moments(b)))

    given_evidence = evidence(range(x.size))
    found = [evidence(c) for c in itertools.combinations(range(pool.size), x.size)]
    expected = np.mean([e >= given_evidence * (1 - 1e-9) for e in found])
    assert permutations.two_samples(x, y) == pytest.approx(expected)


def test_evidence_is_welchs_t():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=6) + 2, 3 * rng.normal(size=4)
    for x, y in ((a, b), (b, a)):
        d = compare([x], [y])
        evidence = float(permutations.welch_evidence(permutations.moments(x), permutations.moments(y)))
        assert evidence == pytest.approx(float(permutations.evidence(abs(d.estimate) / d.spread.error, d.spread.df)))
        # A normal deviate with that p-value: Wallace's approximation is good to some percent.
        t = abs(d.estimate) / d.spread.error
        assert math.erfc(evidence / math.sqrt(2)) == pytest.approx(student_p_value(t, d.spread.df), rel=0.05)


def test_pairs_change_signs():
    # All five differences positive: 2 of 2^5. Four of one sign and the least of the other: by enumeration.
    assert permutations.paired_samples(np.array([1.0, 2, 3, 4, 5])) == 2 / 32
    d = np.array([1.0, -0.5, 2.0])
    t = [abs(np.mean(s * d)) / np.std(s * d, ddof=1) for s in itertools.product([1, -1], repeat=3)]
    assert permutations.paired_samples(d) == np.mean([v >= t[0] - 1e-9 for v in t])
    assert permutations.paired_samples(np.random.default_rng(0).normal(size=20) + 1) < 0.01


@pytest.mark.parametrize("paired", [False, True])
def test_over_tasks_runs_change_places_within_tasks(paired):
    x, y = [np.array([1.0, 2]), np.array([50.0, 60])], [np.array([0.0, 0.5]), np.array([10.0, 20])]
    p = permutations.over_tasks(x, y, STATISTICS["mean"], paired)
    # 2 of (4 choose 2)^2 arrangements, or of 2^4 swaps of partners, have as large a difference.
    assert p == pytest.approx(2 / (16 if paired else 36), abs=0.01)


def test_the_joint_test_goes_on_with_what_is_left():
    """Nine tasks on which all of X is above all of Y: each alone has p = 0.0079, and nine times that is above 0.05."""
    rng = np.random.default_rng(0)
    tasks = [permutations.Group([20 + rng.normal(size=5), rng.normal(size=5)], [(0, 1)]) for _ in range(9)]
    p = np.concatenate(permutations.joint(tasks))
    assert (p < 0.05).all() and p.max() > 0.0079 * 0.9
    # What does not differ stays, and is not smaller than what has more evidence.
    p = np.concatenate(permutations.joint([*tasks, permutations.Group([rng.normal(size=5) for _ in range(2)], [(0, 1)])]))
    assert (p[:9] < 0.05).all() and p[9] > 0.1


def arrangements(runs):
    """All ways of dealing the runs of a group to its methods."""
    pool = list(np.concatenate(runs))

    def deal(left, sizes):
        for picked in itertools.combinations(left, sizes[0]):
            rest = [i for i in left if i not in picked]
            yield from ([picked, *more] for more in (deal(rest, sizes[1:]) if sizes[1:] else [[]]))

    return [[np.array([pool[i] for i in part]) for part in dealt] for dealt in deal(range(len(pool)), [len(r) for r in runs])]


def step_down(groups):
    """The joint test by enumeration: Westfall and Young, algorithm 2.8, one pair after another; and before its last step."""

    def evidence(runs, pairs):
        return [float(permutations.welch_evidence(*(permutations.moments(runs[i]) for i in pair))) for pair in pairs]

    given = [value for group in groups for value in evidence(group.runs, group.pairs)]
    drawn = [[evidence(runs, group.pairs) for runs in arrangements(group.runs)] for group in groups]
    drawn = np.array([np.concatenate(parts) for parts in itertools.product(*drawn)])
    order = np.argsort(given)[::-1]
    raw = np.empty(len(given))
    for number, pair in enumerate(order):  # against the largest of the pairs that are left
        raw[pair] = (drawn[:, order[number:]].max(1) >= given[pair] - 1e-9).mean()
    p = np.empty_like(raw)
    p[order] = np.maximum.accumulate(raw[order])
    return p, raw


@pytest.mark.parametrize("seed", [1, 28, 36])
def test_the_joint_test_against_all_exchanges(seed):
    """Groups of unlike numbers of runs, whose pairs are not in the order of their evidence."""
    rng = np.random.default_rng(seed)
    two = [rng.normal(size=4) + 1.5, rng.normal(size=4)]
    three = [rng.normal(size=2) + 4, rng.normal(size=2), rng.normal(size=2)]
    groups = [permutations.Group(two, [(0, 1)]), permutations.Group(three, [(0, 1), (0, 2), (1, 2)])]
    expected, raw = step_down(groups)
    assert (expected - raw).max() > 0.02  # what has less evidence would have a smaller p-value
    np.testing.assert_allclose(np.concatenate(permutations.joint(groups)), expected, atol=0.015)


def test_the_joint_test_leaves_their_share_to_comparisons_that_it_does_not_cover():
    """Three pairs of a task and one comparison over tasks: three quarters of the level are the pairs'."""
    rng = np.random.default_rng(5)
    runs = {name: rng.normal(size=6) + shift for name, shift in (("a", 0), ("b", 1.2), ("c", 2))}
    pairs = list(itertools.combinations(runs, 2))
    three = [Comparison([runs[x]], [runs[y]], among="T") for x, y in pairs]
    over = Comparison([runs["a"]] * 2, [runs["b"]] * 2)
    alone, joint = permutation_p_values(three, {"T": runs}, pairs)
    assert all(a < j < 0.75 for a, j in zip(alone, joint))  # by the joint test, and not cut at 1
    _, corrected = permutation_p_values([*three, over], {"T": runs}, [*pairs, ("a", "b")])
    assert corrected[:3] == pytest.approx([4 / 3 * p for p in joint])
    assert corrected[3] == min(1.0, 4 * permutation_p_value(over))


# --- Verdicts and intervals -----------------------------------------------------------------------


@pytest.mark.parametrize("seeds, verdict", [(3, "inconclusive"), (4, "better"), (5, "better"), (10, "better")])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), None])
def test_all_against_none_is_a_verdict_from_four_seeds_on(seeds, verdict, bounds):
    v = one(np.ones(seeds), np.zeros(seeds), bounds)
    back = one(np.zeros(seeds), np.ones(seeds), bounds)
    assert v.difference.verdict == verdict
    assert back.difference.verdict == verdict.replace("better", "worse")
    assert v.difference.p_value == pytest.approx(2 / math.comb(2 * seeds, seeds), abs=3e-4)
    if bounds:
        assert (v.difference.low > 0) == (verdict == "better") and v.difference.high == 1
    else:
        assert math.isnan(v.difference.low)


def test_a_p_value_agrees_with_an_interval_that_holds_0():
    # All of seven against two of five: Fisher's 36 of 792, but the interval of the bounds is the wider one.
    v = one(np.ones(7), np.arange(5) < 2, (0, 1))
    assert v.p_value == pytest.approx(36 / 792) and v.difference.low < 0
    assert v.difference.verdict == "inconclusive" and v.difference.p_value > 0.05


@PROPERTY
@given(st.lists(runs.filter(lambda r: r.size > 2), min_size=2, max_size=4), st.booleans(), st.integers(0, 3))
def test_an_interval_excludes_0_if_and_only_if_there_is_a_verdict(methods, bounded, offset):
    scores = {str(i): r + 2 * offset * (i == 0) for i, r in enumerate(methods)}
    bounds = (-2.0, 8.0) if bounded else None
    for v in family({"T": scores}, list(itertools.combinations(scores, 2)), bounds).values():
        d = v.difference
        if not math.isnan(d.low):
            assert d.low <= d.estimate <= d.high
            assert (d.verdict == "better") == (d.low > 0) and (d.verdict == "worse") == (d.high < 0)
        assert (d.verdict != "inconclusive") == (d.p_value <= 0.05)


def test_intervals_are_welchs_for_the_whole_family():
    rng = np.random.default_rng(1)
    scores = {name: rng.normal(size=6) + shift for name, shift in (("a", 0), ("b", 0.2), ("c", 6))}
    found = family({"T": scores}, [("a", "b"), ("a", "c"), ("b", "c")])
    for (_, x, y), v in found.items():
        expected = compare([scores[x]], [scores[y]], confidence=1 - 0.05 / 3)
        assert v.difference[:3] == expected[:3] and v.p_value == expected.p_value
        assert v.difference.method == "Welch t for 3 comparisons at once"
    assert [v.difference.verdict for v in found.values()] == ["inconclusive", "worse", "worse"]


def test_what_only_welch_finds_has_an_interval_that_ends_at_0():
    """Three runs on either side, with little noise: t is 60, and one exchange in ten looks like it."""
    v = one([1.0, 1.01, 0.99], [0.0, 0.01, -0.02])
    assert v.p_value < 1e-4 and v.p_permutation == pytest.approx(0.1)
    assert v.difference.verdict == "inconclusive" and v.difference.low == 0 and v.difference.high > 1
    assert v.difference.method.endswith(EXTENDED) and v.detectable is None


def test_pairs_by_seed_use_one_test_and_need_six():
    y = np.array([0.0, 100, 200, 300, 400, 500])
    v = one(y + [1, 1.1, 0.9, 1, 1.05, 0.95], y, paired=True)
    assert v.difference.verdict == "better" and v.p_permutation == 2 / 64 and v.difference.method == "paired t"
    assert one((y + [1, 1.1, 0.9, 1, 1.05, 0.95])[:5], y[:5], paired=True).difference.verdict == "inconclusive"


# --- Diverged runs --------------------------------------------------------------------------------


def test_a_diverged_run_ranks_below_all_and_leaves_the_power():
    v = one([5, 6, 7, 8, 9.0], [DIVERGED, 1, 2, 3, 4])
    assert v.compares == RANKS and v.difference.verdict == "better" and v.effect == pytest.approx(1)
    assert v.difference.estimate == pytest.approx(0.5) and v.difference.high <= 0.5  # P(X > Y) - 1/2
    # Ranks 6..10 against 1..5: t = 5 / sqrt(2 * 2.5 / 5) = 5 with 8 degrees of freedom.
    assert v.p_value == pytest.approx(student_p_value(5.0, 8)) and v.p_permutation == pytest.approx(2 / 252)
    gone = np.full(5, DIVERGED)
    assert one(gone, gone).difference.verdict == "inconclusive"
    assert one(np.full(5, 3.0), gone).difference.verdict == "better"


def test_ranks_of_methods_that_spread_differently_are_tested_by_brunner_and_munzel():
    x, y = np.array([4.9, 5.0, 5.1, 5.2]), np.array([DIVERGED, 1.0, 3.0, 5.05, 8.0, 9.0])
    v, expected = one(x, y), scipy.stats.brunnermunzel(x, np.maximum(y, -1e9))
    assert v.compares == RANKS and v.difference.estimate == pytest.approx(14.0 / 24 - 0.5)  # 3, 3, 4 and 4 of 6 below
    assert v.p_value == pytest.approx(expected.pvalue)
    error = v.difference.estimate / abs(expected.statistic)
    assert v.difference.spread.error == pytest.approx(error)
    half = student_quantile(0.95, v.difference.spread.df) * error
    assert v.difference.low == pytest.approx(v.difference.estimate - half) and v.difference.low > -0.5


def test_near_separation_the_interval_is_that_of_ranks():
    """Placements hardly vary there: by them alone 5 runs against 5 would put P in [0.91, 1]."""
    v = one([5, 6, 7, 8, 9.0], [DIVERGED, 1, 2, 3, 5])
    assert v.difference.estimate == pytest.approx(24.5 / 25 - 0.5) and v.difference.low < 0.3


def test_rounding_makes_no_verdict():
    """All runs of both methods have the rates 0.6, 0.7 and 0.8 in some order; one run diverged."""
    equal = np.full(5, 0.7)
    assert one(equal, np.array([0.7, 0.7, DIVERGED, 0.7, 0.7])).difference.verdict == "inconclusive"


def test_what_cannot_be_tested_costs_the_others_no_power():
    rng = np.random.default_rng(0)
    two = {"a": rng.normal(size=4) + 300, "b": rng.normal(size=4)}
    alone, more = family({"T": two}, [("a", "b")]), family(
        {"T": {**two, "c": np.array([100.0])}}, [("a", "b"), ("a", "c"), ("b", "c")]
    )
    assert alone["T", "a", "b"] == more["T", "a", "b"] and alone["T", "a", "b"].difference.verdict == "better"
    assert not more["T", "a", "c"].findable and more["T", "a", "c"].fewest == 4
    many = {"c": np.array([100.0]), **{str(i): rng.normal(size=4) for i in range(12)}}
    assert family({"T": many}, [*itertools.combinations(many, 2)])["T", "c", "0"].fewest == 4
    single = one([1.0], rng.normal(size=19))  # one of 20 exchanges, but no spread
    assert not single.findable


def test_a_verdict_that_is_given_was_findable():
    """Of 2 runs against 5 on two tasks: 1.5 / 21 is above 0.05, but the joint test has exchanges among all 22 runs."""
    rng = np.random.default_rng(0)
    sizes = {"x": 2, "a": 5, "b": 5, "c": 5, "d": 5}
    tasks = {t: {m: rng.normal(size=n) + 300 * (m == "x") for m, n in sizes.items()} for t in ("T", "U")}
    pairs = [*itertools.combinations(sizes, 2)]
    names = [(t, pair) for t in tasks for pair in pairs]
    on_tasks = [Comparison([tasks[t][x]], [tasks[t][y]], among=t) for t, (x, y) in names]
    over = [Comparison([tasks[t][x] for t in tasks], [tasks[t][y] for t in tasks]) for x, y in pairs]
    found = verdicts([*on_tasks, *over], tasks, [*(pair for _, pair in names), *pairs])
    assert [v.difference.verdict for v, (_, (x, y)) in zip(found, names)] == [
        "better" if x == "x" else "inconclusive" for _, (x, y) in names
    ]
    assert all(v.findable for v in found if v.difference.verdict != "inconclusive")


@pytest.mark.parametrize("paired, comparisons, fewest", [(False, 3, 4), (True, 1, 6), (True, 3, 7), (True, 25, 10)])
def test_how_many_runs_a_verdict_needs(paired, comparisons, fewest):
    tasks = {f"T{i}": {"x": np.arange(3.0), "y": np.arange(3.0)} for i in range(comparisons)}
    assert {v.fewest for v in family(tasks, [("x", "y")], paired=paired).values()} == {fewest}


def test_an_unrelated_method_changes_no_estimate():
    scores = {"x": np.array([5.0, 6, 7, 8, 9]), "y": np.array([DIVERGED, 6.5, 2, 3, 4])}
    alone = family({"T": scores}, [("x", "y")])["T", "x", "y"]
    more = family({"T": {**scores, "bad": np.full(5, -1e6), "gone": np.full(5, DIVERGED)}}, [("x", "y")])["T", "x", "y"]
    assert alone[1:5] == more[1:5] and alone.difference.estimate == more.difference.estimate


# --- Error rates: python -m experiments.error_rates has more ----------------------------------------


@pytest.mark.parametrize("kind", ["two peaks, half", "success rates", "lognormal", "normal, spreads 1 and 3"])
def test_families_err_at_most_at_the_stated_rate(kind):
    """3 methods on 3 tasks with 3 and 5 seeds. Of two peaks, Welch's t with Holm's method errs in a fifth at 3 seeds."""
    all_pairs = experiment.FAMILIES[1]
    for runs, highest in ((3, 0.0), (5, 0.08)):
        rates = experiment.simulate(experiment.KINDS[kind], all_pairs, runs, 150, bounds=experiment.BOUNDS.get(kind))
        assert rates.wrong <= highest
        if kind == "two peaks, half" and runs == 3:
            assert rates.welch_wrong > 0.1


def test_a_large_difference_is_found():
    rates = experiment.simulate(experiment.DIFFERENT["normal, 3 sd"], experiment.FAMILIES[1], 5, 30, different=True)
    assert 0.55 < rates.found <= rates.welch_found < 0.95  # 0.71 and 0.84
    assert rates.wrong <= 0.2


def test_the_page_has_the_tables():
    page = (Path(__file__).resolve().parents[2] / "docs" / "statistics.md").read_text()
    assert experiment.seeds_table() in page
    assert set(experiment.BOUNDS) <= {*experiment.KINDS, *experiment.DIFFERENT}
    shown = [f for f in experiment.FAMILIES if f"**{f.name}**: {len(f.pairs) * f.tasks} comparison(s)" in page]
    assert shown == list(experiment.FAMILIES)
    rows = [line.split(" |")[0].removeprefix("| ") for line in page.splitlines()]
    assert all(rows.count(name) == len(shown) for name in (*experiment.KINDS, *experiment.DIFFERENT))


def test_an_inconclusive_verdict_tells_what_it_could_have_found():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=5), rng.normal(size=5)
    v = one(x, y)
    d = compare([x], [y])
    assert v.detectable == pytest.approx(detectable_shift(d.spread.df, 0.05) * d.spread.error)
    assert 1.2 < v.detectable / math.sqrt((x.var(ddof=1) + y.var(ddof=1)) / 2) < 2.4
    assert one(x[:3], y[:3]).detectable is None
    of_two = family({"T": {"x": x, "y": y}, "U": {"x": x, "y": y}}, [("x", "y")])["T", "x", "y"]  # at half the level
    assert of_two.detectable == pytest.approx(detectable_shift(d.spread.df, 0.025) * d.spread.error)
    assert of_two.detectable > 1.05 * v.detectable
    # Success rates of four seeds that differ this much: a difference of more than 1 would be needed, and there is none.
    x, y = [0.0, 0.0, 0.9, 1.0], [0.0, 0.1, 1.0, 1.0]
    assert one(x, y, (0, 1)).detectable is None and one(x, y, (0, 2)).detectable == one(x, y).detectable > 1


def test_what_no_exchange_can_find_is_not_said_to_be_found():
    """Pairs by seed, and pairs over tasks, are corrected by Bonferroni: few runs find nothing among many comparisons."""
    rng = np.random.default_rng(0)
    for seeds, family, possible in ((6, 1, True), (6, 2, False), (7, 3, True), (7, 4, False)):  # 2 / 2^n times the family
        near = [Comparison([rng.normal(size=seeds)], [rng.normal(size=seeds)]) for _ in range(family)]
        far = [c._replace(x=[c.x[0] + 1000]) for c in near]
        assert {v.detectable is not None for v in verdicts(near, paired=True)} == {possible}
        assert {v.difference.verdict == "better" for v in verdicts(far, paired=True)} == {possible}
    for seeds, possible in ((2, False), (3, True)):  # 2 / (4 choose 2)^2, and 2 / (6 choose 3)^2
        x, y = ([rng.normal(size=seeds) for _ in range(2)] for _ in range(2))
        [near], [far] = verdicts([Comparison(x, y, "iqm")]), verdicts([Comparison([of + 1000 for of in x], y, "iqm")])
        assert (near.detectable is not None) == (far.difference.verdict == "better") == possible


@pytest.mark.parametrize("seeds, paired", [(5, False), (16, True)])
def test_a_family_of_many_comparisons_can_find_a_difference_over_tasks_and_by_seed(seeds, paired):
    apart = Comparison([np.arange(seeds) + 1e3] * 3, [np.arange(seeds) * 1.1] * 3, "iqm")
    equal = Comparison([np.arange(2.0)], [np.arange(2.0)])
    found = verdicts([apart, *[equal] * 599], paired=paired)
    assert found[0].difference.verdict == "better" and {v.difference.verdict for v in found[1:]} == {"inconclusive"}


def test_hedges_g_by_hand():
    # Means 2 and 4; mean variance (1 + 4) / 2; 1 - 3 / (4 * 4 - 1) = 0.8.
    g = hedges_g(np.array([1.0, 2, 3]), np.array([2.0, 4, 6]))
    assert g == pytest.approx(-2 / math.sqrt(2.5) * 0.8)
    assert math.isnan(hedges_g(np.ones(3), np.ones(3))) and math.isnan(hedges_g(np.ones(1), np.ones(3)))


def test_holm_by_hand():
    # Sorted 0.01 0.02 0.03 0.04 times 4 3 2 1: 0.04 0.06 0.06 0.04, of which the running maximum.
    np.testing.assert_allclose(experiment._holm(np.array([0.03, 0.01, 0.04, 0.02])), [0.06, 0.04, 0.06, 0.06])
    assert experiment._holm(np.array([0.9, 0.8])).tolist() == [1, 1]


# --- Power ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect, seeds", [(0.5, 64), (1.0, 17), (0.8, 26), (2.0, 6)])
def test_seeds_needed_are_those_of_printed_tables(effect, seeds):
    assert experiment.seeds_needed(effect, 1) == seeds  # Cohen 1988, table 2.4.1: 64, 17, 26; docs/comparing.md: 17, 6


def test_seeds_needed_are_at_least_what_a_permutation_test_needs():
    assert experiment.seeds_needed(50.0, 1) == 4 == experiment.seeds_needed(50.0, 9)
    assert experiment.seeds_needed(3.0, 9) == 6


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
        shift = detectable_shift(df, level)
        t = (shift + rng.normal(size=200_000)) / np.sqrt(rng.chisquare(df, 200_000) / df)
        assert (np.abs(t) > student_quantile(1 - level, df)).mean() == pytest.approx(0.8, abs=0.005)


def test_pairs_are_partners_over_tasks_too():
    """Luck that partners share hides the difference from a test that exchanges any two runs."""
    rng = np.random.default_rng(0)
    y = [100 * rng.normal(size=6) for _ in range(2)]
    c = Comparison([of + 1 + 0.1 * rng.normal(size=6) for of in y], y, "mean")
    assert permutation_p_value(c, paired=True) < 0.01 < 0.5 < permutation_p_value(c)
    assert verdicts([c], paired=True)[0].difference.verdict == "better"


def test_pairs_are_partners_where_a_run_diverged():
    y = np.array([DIVERGED, 1, 3, 5, 7, 9, 11, 13])
    x = np.array([0.5, 2, 6, 6.5, 9.5, 10, 14, 15])  # each above its partner
    v = one(x, y, paired=True)
    assert v.compares == RANKS and v.difference.method.startswith("paired") and v.p_value < 0.01 < one(x, y).p_value


def test_pairs_without_a_diverged_run_take_part_in_the_joint_test_of_ranks():
    """Because an exchange may move the diverged run there. Seed 19 is one where it matters: 0.80 and 0.79 without them."""
    rng = np.random.default_rng(19)
    runs = {"a": rng.normal(size=3), "b": rng.normal(size=2) + 1, "c": np.array([DIVERGED, rng.normal() + 2])}
    pairs = [*itertools.combinations(runs, 2)]
    comparisons = [Comparison([runs[x]], [runs[y]], among="T") for x, y in pairs]
    alone, corrected = permutation_p_values(comparisons, {"T": runs}, pairs)
    ranks = np.split(scipy.stats.rankdata(np.concatenate([*runs.values()])), [3, 5])
    whole = permutations.Group([runs["a"], runs["b"]], [(0, 1)])
    _, joint = permutations.joint([whole, permutations.Group(ranks, [(0, 1), (0, 2), (1, 2)])])
    assert corrected[1:] == pytest.approx(np.maximum(alone[1:], joint[1:]), abs=0.015)
