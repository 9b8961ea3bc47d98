"""Fronts: what is dominated, hypervolumes by hand, and what a report says of them."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes

from taac.analysis.report import figures, fronts
from taac.analysis.report.fronts import hypervolume, nondominated
from taac.analysis.report.page import make_report
from taac.analysis.report.scores import Options
from taac.analysis.report.tables import front_table
from taac.analysis.statistics.intervals import Spread
from tests.analysis.campaigns import COLUMNS, STEPS, make_run


@pytest.mark.parametrize(
    "costs, returns, expected",
    [
        ([1, 2, 3], [1, 2, 3], [True, True, True]),  # each costs more and returns more
        ([1, 2, 3], [3, 2, 1], [True, False, False]),
        ([1, 2, 2], [1, 2, 3], [True, False, True]),  # at equal cost
        ([1, 2, 3], [1, 2, 2], [True, True, False]),  # at equal return
        ([2, 2], [5, 5], [True, True]),  # equal in both: neither is better
    ],
)
def test_what_no_other_one_beats_in_both(costs, returns, expected):
    points = np.array([costs, returns], dtype=float)
    assert nondominated(points).tolist() == expected
    order = np.random.default_rng(0).permutation(len(costs))
    assert nondominated(points[:, order]).tolist() == [expected[i] for i in order]


@pytest.mark.parametrize(
    "costs, returns, expected",
    [
        ([0, 100], [10, 0], 1.0),  # the highest return at no cost
        ([50, 100], [0, 10], 0.0),  # the highest return at the highest cost, the lowest before it
        ([20, 60, 100], [4, 10, 0], (40 * 4 + 40 * 10) / 1000),
        ([60, 20, 80, 100], [10, 4, 5, 0], (40 * 4 + 40 * 10) / 1000),  # what is dominated adds nothing
        ([20, 20, 60, 100], [4, 1, 10, 0], (40 * 4 + 40 * 10) / 1000),  # of equal cost the better
        ([25, 100], [7, 7], 0.75),  # equal returns: all have the highest
        ([0, 0], [7, 9], 1.0),
    ],
)
def test_hypervolume_by_hand(costs, returns, expected):
    assert hypervolume(np.array([costs, returns], dtype=float)) == pytest.approx(expected)
    assert hypervolume(np.array([np.multiply(3, costs), np.multiply(2, returns) - 9.0])) == pytest.approx(expected)


def test_hypervolume_is_the_share_of_random_points_that_are_dominated():
    rng = np.random.default_rng(1)
    points, inside = rng.uniform(0, 1, (2, 4, 5)), rng.uniform(0, 1, (2, 40_000))
    points[0, :, 0] = points[1, :, 1] = 1.0  # so that the box is the unit square
    points[1, :, 2] = 0.0
    for of, found in zip(points.swapaxes(0, 1), hypervolume(points)):
        dominated = ((of[0][:, None] <= inside[0]) & (of[1][:, None] >= inside[1])).any(0).mean()
        assert found == pytest.approx(dominated, abs=0.015)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Every method but `sparse` decides at each step; `worse` has the lowest return."""
    root = tmp_path_factory.mktemp("front")
    for method, (value, repeated) in {"sparse": (400, 0.75), "best": (500, 0.0), "worse": (0, 0.5)}.items():
        for seed in range(4):
            returns = np.full(len(STEPS), value) + [3, -1, -3, 1][seed]
            make_run(root / method / f"seed_{seed}", method, "Own-v0", seed, returns, repeated=repeated)
    return make_report(root, Options(last=1))


def test_the_picture_has_the_costs_across_the_returns_up_and_their_intervals(compared, monkeypatch):
    drawn, named, stairs, real, step = [], [], [], Axes.errorbar, Axes.step
    monkeypatch.setattr(Axes, "errorbar", lambda axis, *given, **more: drawn.append(given) or real(axis, *given, **more))
    monkeypatch.setattr(Axes, "annotate", lambda axis, name, at, *given, **more: named.append((name, at)))
    monkeypatch.setattr(Axes, "step", lambda axis, *at, **more: step(axis, *at, **more) and stairs.append((axis, at)))
    figures.draw(compared)
    assert [name for name, _ in named[:2]] == ["sparse", "best"] and named[0][1] == pytest.approx((27.5, 400))
    axis, (x, y) = stairs[0]
    assert x == pytest.approx((27.5, 27.5, 110, axis.get_xlim()[1])) and y == pytest.approx((axis.get_ylim()[0], 400, 500, 500))
    decisions, = (front for front in compared["fronts"] if front["cost"] == "decisions")
    for m, (x, y, of_y, of_x) in zip(decisions["methods"], drawn):
        assert (x, y) == (m["x"]["estimate"], m["y"]["estimate"])
        assert of_x is None and m["x"]["low"] is None, "all seeds decide alike"
        assert (y - of_y[0][0], y + of_y[1][0]) == pytest.approx((m["y"]["low"], m["y"]["high"]))


def test_of_a_report(compared):
    decisions, = (front for front in compared["fronts"] if front["cost"] == "decisions")
    assert [(m["method"], m["on_front"], m["share"]) for m in decisions["methods"]] == [
        ("sparse", True, 1.0), ("worse", False, 0.0), ("best", True, 1.0)  # by rising cost
    ]  # fmt: skip
    for m, x, y in zip(decisions["methods"], (27.5, 55, 110), (400, 0, 500), strict=True):
        assert (m["x"]["estimate"], m["y"]["estimate"]) == pytest.approx((x, y)) and m["y"]["low"] < y < m["y"]["high"]
    # Episodes of 110 steps: best (110, 500), sparse (27.5, 400), worse (55, 0); the box from (0, 500) to (110, 0)
    volume = decisions["hypervolume"]
    assert volume["estimate"] == pytest.approx(82.5 * 400 / (110 * 500))
    assert volume["low"] is None, "in each resample all methods move by the same, and so does the box"
    assert "sparse" in compared["ahead"][0].split("front of return against decisions: ")[1]
    assert "best is ahead of sparse, worse" in compared["ahead"][0]


def test_the_interval_of_the_hypervolume_is_that_of_the_differences_between_methods(tmp_path):
    """Start states are worth -300 to 300 to all methods; `sparse` is at 0.7 to 0.9 of the way from `worse` to `best`."""
    for seed, (luck, part) in enumerate(zip([-300, 300, 100, -100], [0.7, 0.8, 0.9, 0.8])):
        for method, (value, repeated) in {"sparse": (100 * part, 0.75), "best": (100, 0.0), "worse": (0, 0.5)}.items():
            returns = np.full(len(STEPS), value + luck)
            make_run(tmp_path / f"{method}{seed}", method, "Own-v0", seed, returns, repeated=repeated)
    volume = next(f for f in make_report(tmp_path, Options(last=1))["fronts"] if f["cost"] == "decisions")["hypervolume"]
    error = 0.75 * np.std([0.7, 0.8, 0.9, 0.8], ddof=1) / 2
    assert volume["estimate"] == pytest.approx(0.75 * 0.8)
    assert volume["high"] - volume["estimate"] == pytest.approx(3.182 * error, rel=0.02)  # Student's t of 3 degrees


@pytest.mark.parametrize("first, share", [(0, 0.0), (1, 0.4), (None, 0.4)])
def test_runs_of_equal_seeds_are_resampled_together(tmp_path, first, share):
    """`dense` costs more and returns 1 less than `sparse` with each seed, whose start states are worth -300 to 300."""
    for method, (less, repeated) in {"sparse": (0, 0.5), "dense": (1, 0.0)}.items():
        for seed in range(4):
            number = seed + (first or 0 if method == "dense" else 0)
            returns = np.full(len(STEPS), [-300, 100, 300, -100][seed] - less)
            folder = make_run(tmp_path / method / str(seed), method, "Own-v0", number, returns, repeated=repeated)
            if first is None:  # unknown seeds
                for name, said in (("run.json", f'"seed": {number}'), ("config.gin", f"create_experiment.seed = {number}")):
                    (folder / name).write_text((folder / name).read_text().replace(said, said.replace(str(number), "null")))
    front = next(front for front in make_report(tmp_path, Options(last=1))["fronts"] if front["cost"] == "decisions")
    shares = {m["method"]: m["share"] for m in front["methods"]}
    assert shares["sparse"] == 1.0 and shares["dense"] == pytest.approx(share, abs=0.2 * (share > 0))


@pytest.mark.parametrize("seeds", [3, 5])
def test_equal_methods_of_few_runs_are_seldom_told_apart(seeds, monkeypatch):
    """The dear one of two methods with equal returns is surely on the front, or surely not, in one of 20 studies, not in 6."""
    monkeypatch.setattr(fronts, "RESAMPLES", 1000)
    monkeypatch.setattr(fronts, "bootstrap_spread", lambda *given: Spread(1.0, 1.0))
    rng, sure = np.random.default_rng(0), 0
    for _ in range(300):
        runs = [np.stack([np.full(seeds, cost), rng.normal(size=seeds)]) for cost in (1.0, 2.0)]
        _, rows = fronts._front(["cheap", "dear"], runs, same_seeds=True)
        sure += not 0.025 < rows[1]["share"] < 0.975
    assert 0.02 < sure / 300 < 0.09  # without the spread of Student's t 0.29 and 0.14


def test_rounding_puts_nothing_on_a_front():
    """Means of 3 and of 5 rates of 0.7 differ in the last digit."""
    runs = [np.stack([np.full(n, cost), np.full(n, 0.7)]) for n, cost in ((3, 1.0), (5, 10.0))]
    points = np.stack([of.mean(1) for of in runs], 1)
    assert points[1, 0] < points[1, 1] and nondominated(points).tolist() == [True, False]
    assert hypervolume(points) == pytest.approx(0.9)


def test_there_is_none_where_all_cost_the_same(compared):
    """Jerk depends on the seed alone."""
    assert {front["cost"] for front in compared["fronts"]} == {"decisions"}
    assert set(fronts.COSTS) == {"decisions", "jerk"}


def test_a_single_run_of_a_method_has_no_interval_and_no_share(tmp_path):
    make_run(tmp_path / "a", "a", "Own-v0", repeated=0.5)
    for seed in range(2):
        make_run(tmp_path / f"b{seed}", "b", "Own-v0", seed, np.array(STEPS) + 5 + seed)
    front, _ = make_report(tmp_path, Options())["fronts"]
    assert front["hypervolume"]["estimate"] == 0.0 and front["hypervolume"]["low"] is None
    assert [(m["on_front"], m["share"]) for m in front["methods"]] == [(True, None), (True, None)]
    assert "| yes | undefined |" in "\n".join(front_table(front, "decisions"))


@pytest.mark.parametrize("seeds, baseline, expected", [
    (2, None, "too few runs for a verdict"),
    (4, None, "no difference in final returns was found"),
    (4, "a", "no difference in final returns was found from a"),
    (4, "c", "c has no runs here"),
])  # fmt: skip
def test_without_a_verdict_the_reason_is_told(tmp_path, seeds, baseline, expected):
    for seed in range(seeds):
        for method in ("a", "b"):
            make_run(tmp_path / f"{method}{seed}", method, "Own-v0", seed, np.array(STEPS) + 9 * seed)
        make_run(tmp_path / f"c{seed}", "c", "Other-v0", seed)
    told = make_report(tmp_path, Options(baseline=baseline))["ahead"]
    assert told[1] == f"Own-v0: {expected}." and told[0] == "Other-v0: one method."


def test_a_method_whose_cost_is_unknown_in_one_run_is_on_no_front(tmp_path):
    """The one run of `a` whose jerk is known returns the most of all, the mean of its three the least."""
    for seed in range(3):
        make_run(tmp_path / f"b{seed}", "b", "Own-v0", seed, np.array(STEPS) + 10)
        make_run(tmp_path / f"c{seed}", "c", "Own-v0", seed + 1, np.array(STEPS) + 10)
        returns = np.array(STEPS) + (100 if seed == 0 else -900)
        make_run(tmp_path / f"a{seed}", "a", "Own-v0", seed, returns, columns=COLUMNS if seed == 0 else COLUMNS[:12])
    (front,) = make_report(tmp_path, Options())["fronts"]
    assert front["cost"] == "jerk" and [row["method"] for row in front["methods"]] == ["b", "c"]


def test_diverged_runs_are_left_out(tmp_path):
    for method, repeated in (("a", 0.5), ("b", 0.0)):
        for seed in range(2):
            returns = np.array(STEPS) + seed + (0 if repeated else 10)
            make_run(tmp_path / f"{method}{seed}", method, "Own-v0", seed, returns, repeated=repeated)
    make_run(tmp_path / "b2", "b", "Own-v0", 2, [*STEPS[:-1], float("nan")])
    content = make_report(tmp_path, Options())
    front = content["fronts"][0]
    assert [row["on_front"] for row in front["methods"]] == [True, True] and np.isfinite(front["hypervolume"]["estimate"])
    assert [(row["method"], row["runs"], row["diverged"]) for row in front["methods"]] == [("a", 2, 0), ("b", 2, 1)]
    assert "| b | 2; 1 diverged |" in "\n".join(front_table(front, "decisions"))
    assert content["ahead"][0].endswith("On the front of return against decisions: a, b (1 of its runs diverged).")
