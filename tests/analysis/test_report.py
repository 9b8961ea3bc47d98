"""Reports on planted campaigns: the numbers by hand, the verdicts that were planted, and what is warned of."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from taac.analysis.report import figures
from taac.analysis.report.page import make_report, write_report
from taac.analysis.report.scores import Options, due_steps
from taac.analysis.report.tables import markdown, note_on_seeds, table, verdict_line, with_interval
from taac.analysis.report.verdicts import load_anchors, ranks
from taac.analysis.statistics.differences import compare, hedges_g
from taac.errors import TaacError
from tests.analysis.campaigns import (
    COLUMNS,
    EFFECTS,
    REPEATED,
    STEPS,
    TASKS,
    listing,
    make_campaign,
    make_run,
    planted_returns,
    summarize,
)

ROOT = Path(__file__).resolve().parents[2]
ACTING = {"greedy": "repetition", "exploring": "repetition_exploring"}
SCALES = {"Hopper-v5": (18.01, 3800.0), "Ant-v5": (-58.04, 6000.0)}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    return make_campaign(tmp_path_factory.mktemp("campaign"))


@pytest.fixture(scope="module")
def comparison(campaign):
    return make_report(campaign, Options())


@pytest.fixture(scope="module")
def written(comparison, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_report(comparison, folder)
    return folder


def finals(task, method, last=3, seeds=range(5)):
    return np.array([planted_returns(task, method, seed)[-last:].mean() for seed in seeds])


def area(returns):
    """Under evaluations at equal distances, from the first to the last."""
    return (returns.sum() - (returns[0] + returns[-1]) / 2) / (len(returns) - 1)


def method_of(content, task, method):
    (of,) = [t for t in content["tasks"] if t["task"] == task]
    return next(m for m in of["methods"] if m["method"] == method)


# --- Numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [1, 3])
def test_final_returns_are_means_of_the_last_evaluations(campaign, comparison, last):
    content = comparison if last == 3 else make_report(campaign, Options(last=last))
    for task in TASKS:
        for method in EFFECTS:
            of, expected = method_of(content, task, method), finals(task, method, last)
            assert of["seeds"] == [0, 1, 2, 3, 4] and of["final"]["runs"] == 5
            mean = of["final"]["mean"]
            assert mean["estimate"] == pytest.approx(expected.mean(), rel=1e-11)
            half = 2.7764451052 * expected.std(ddof=1) / np.sqrt(5)  # t of 4 degrees of freedom
            assert (mean["low"], mean["high"]) == pytest.approx((expected.mean() - half, expected.mean() + half))
            assert of["final"]["iqm"]["estimate"] == pytest.approx(np.sort(expected)[1:4].mean())
    for run in content["runs"]:
        assert run["folder"] == f"{run['task']}/{run['method']}/seed_{run['seed']}" and run["left_out"] is None
        assert run["final"] == pytest.approx(planted_returns(run["task"], run["method"], run["seed"])[-last:].mean())


def test_area_under_the_curve_is_the_trapezoids(comparison):
    for task in TASKS:
        for method in EFFECTS:
            areas = [area(planted_returns(task, method, s)) for s in range(5)]
            assert method_of(comparison, task, method)["area"]["mean"]["estimate"] == pytest.approx(np.mean(areas))


def test_repetition_is_that_of_the_last_evaluations(comparison):
    lengths = np.array([108, 109, 110.0])
    for method, repeated in REPEATED.items():
        of = {name: s["mean"] for name, s in method_of(comparison, "Ant-v5", method)["repetition"].items()}
        assert of["fraction_repeated"]["estimate"] == of["fraction_same"]["estimate"] == repeated
        assert of["length"]["estimate"] == pytest.approx(109)
        assert of["decisions"]["estimate"] == pytest.approx((lengths * (1 - repeated)).mean())
        assert of["mean_run"]["estimate"] == pytest.approx(1 / (1 - repeated)) and of["max_run"]["estimate"] == 5
        assert of["jerk"]["estimate"] == pytest.approx(0.03) and of["jerk"]["low"] < 0.03
        assert of["length"]["low"] is None  # no run differs from another


def test_exploring_repetition_is_that_of_the_summaries_since_the_evaluation_before_the_last(tmp_path):
    """Evaluations at 100, ..., 1000: the last three begin behind 700. What is later than the compared step is out."""
    for seed in range(2):
        folder = make_run(tmp_path / f"run{seed}", seed=seed, repeated=0.5)
        summary = {700: (0.9, 90, 100), 750: (0.1, 60, 100), 900: (0.2, 120, 300), 1000: (math.nan, 0, 0), 1001: (1, 1, 1)}
        summarize(folder, {
            "rollout/fraction_repeated": {step: of[0] + seed / 10 for step, of in summary.items()},
            "rollout/decisions": {step: of[1] for step, of in summary.items()},
            "rollout/length": {step: of[2] for step, of in summary.items()},
        })  # fmt: skip
    make_run(tmp_path / "bare", seed=2, repeated=0.5)
    content = make_report(tmp_path, Options())
    of = method_of(content, "Hopper-v5", "sac")
    exploring = of["repetition_exploring"]
    assert list(exploring) == list(of["repetition"])
    assert exploring["fraction_repeated"]["runs"] == 2 and exploring["fraction_repeated"]["mean"]["low"] < 0.2
    assert exploring["fraction_repeated"]["mean"]["estimate"] == pytest.approx((0.15 + 0.25) / 2)
    assert exploring["decisions"]["mean"]["estimate"] == pytest.approx(60)  # 0 at step 1000 is a number
    assert exploring["jerk"] == {"runs": 0, "mean": None}
    assert of["repetition"]["fraction_repeated"]["mean"]["estimate"] == 0.5 and of["repetition"]["jerk"]["runs"] == 3
    exploring = method_of(make_report(tmp_path, Options(last=10)), "Hopper-v5", "sac")["repetition_exploring"]
    assert exploring["fraction_repeated"]["mean"]["estimate"] == pytest.approx(0.4 + 0.05)  # all since the beginning


def test_summaries_of_an_evaluation_that_came_late_count(tmp_path):
    """At 1002 in place of 1000, because actions last several steps."""
    late, interval = [step + 2 for step in STEPS], "Intervals.evaluation_interval = 100\n"
    folder = make_run(tmp_path / "run", steps=late, extra_gin=interval)
    summarize(folder, {"rollout/fraction_repeated": {802: 0.2, 902: 0.2, 1002: 0.8, 1003: 1.0}})
    of = method_of(make_report(tmp_path, Options()), "Hopper-v5", "sac")["repetition_exploring"]
    assert of["fraction_repeated"]["mean"]["estimate"] == pytest.approx(0.4)


def test_planted_differences_are_found_and_planted_nulls_are_not(comparison):
    pairs = comparison["pairs"]
    assert [(p["task"], p["x"], p["y"]) for p in pairs] == [
        (task, *pair) for task in sorted(TASKS) for pair in (("better", "null"), ("better", "plain"), ("null", "plain"))
    ]
    family = [*pairs, *comparison["over_tasks"]["pairs"]]
    assert comparison["family"] == {"final": 9, "area": 9} and len(family) == 9
    for p in pairs:
        x, y = finals(p["task"], p["x"]), finals(p["task"], p["y"])
        expected = compare([x], [y], confidence=1 - 0.05 / 9)
        assert not p["paired"] and p["difference"]["method"] == "Welch t for 9 comparisons at once"
        assert (p["difference"]["estimate"], p["difference"]["low"]) == pytest.approx((expected.estimate, expected.low))
        assert p["p_value"] == pytest.approx(expected.p_value) and p["effect"] == pytest.approx(hedges_g(x, y))
        assert p["improvement"]["estimate"] == pytest.approx(np.mean(x[:, None] > y))
        assert p["verdict"] == ("better" if p["x"] == "better" else "inconclusive")
        assert (p["detectable"] is None) == (p["verdict"] == "better")
    for p in family:
        low, high = p["difference"]["low"], p["difference"]["high"]
        assert (p["verdict"] == "inconclusive") == (low <= 0 <= high) == (p["p_adjusted"] > 0.05)
    assert "9 comparisons of final returns (every two methods, on each task and over tasks)" in comparison["family_told"]


def test_methods_have_ranks_that_agree_with_the_verdicts(comparison):
    for task in [*comparison["tasks"], comparison["over_tasks"]]:
        ranks = {m["method"]: m["rank"] for m in task["methods"]}
        assert ranks["better"] == {"estimate": 1, "low": 1, "high": 1}
        assert {(ranks[m]["low"], ranks[m]["high"]) for m in ("null", "plain")} == {(2, 3)}
        assert {ranks[m]["estimate"] for m in ("null", "plain")} == {2, 3}


def test_ranks_by_hand():
    verdict = lambda x, y, word: {"x": x, "y": y, "verdict": word, "diverged": [0, 0], "improvement": None}  # noqa: E731
    pairs = [verdict("a", "b", "better"), verdict("a", "c", "inconclusive"), verdict("b", "c", "worse")]
    found = ranks(pairs, {"a": 2.0, "b": 1.0, "c": 2.0})
    assert found["a"] == {"estimate": 1.5, "low": 1, "high": 2} and found["b"] == {"estimate": 3, "low": 3, "high": 3}
    assert ranks([], {"a": None, "b": 0.0})["a"] == {"estimate": 2, "low": 1, "high": 2}
    # The mean of a's few survivors is the highest; by ranks among all runs it is worse than b, and no better than c.
    pairs = [verdict("a", "b", "inconclusive"), verdict("a", "c", "inconclusive"), verdict("b", "c", "inconclusive")]
    for pair, p in zip(pairs, (0.2, 0.5)):
        pair |= {"diverged": [4, 0], "improvement": {"estimate": p}}
    found = ranks(pairs, {"a": 2.0, "b": 1.0, "c": 0.0})
    assert {m: r["estimate"] for m, r in found.items()} == {"a": 2.5, "b": 1, "c": 2.5}
    found = ranks([verdict("a", "b", "worse")], {"a": 2.0, "b": 1.0})
    assert {m: r["estimate"] for m, r in found.items()} == {"a": 2, "b": 1}


def test_with_a_baseline_every_method_is_compared_with_it_only(campaign, comparison):
    content = make_report(campaign, Options(baseline="plain"))
    assert [(p["x"], p["y"]) for p in content["pairs"]] == 2 * [("better", "plain"), ("null", "plain")]
    assert [(p["x"], p["y"]) for p in content["over_tasks"]["pairs"]] == [("better", "plain"), ("null", "plain")]
    assert content["family"] == {"final": 6, "area": 6} and "rank" not in content["tasks"][0]["methods"][0]
    assert "6 comparisons of final returns (every method with plain" in content["family_told"]
    for few, more in zip(content["pairs"], [p for p in comparison["pairs"] if p["y"] == "plain"], strict=True):
        assert few["p_value"] == more["p_value"] and few["difference"]["high"] < more["difference"]["high"]
    with pytest.raises(TaacError, match="--baseline sac is no method of these runs; they are better, null, plain"):
        make_report(campaign, Options(baseline="sac"))


def test_a_verdict_is_printed_with_what_it_rests_on(comparison):
    lines = [verdict_line(p) for p in comparison["pairs"]]
    assert re.fullmatch(r"Ant-v5: better - null = [\d.]+ \[[\d.]+, [\d.]+\]: better is better", lines[0])
    found = r"inconclusive; this many runs would find a difference of [\d.]+ with a power of at most 0.8"
    assert re.fullmatch(rf"Ant-v5: null - plain = \S+ \[\S+, \S+\]: {found}", lines[2])


def test_areas_under_the_curve_have_verdicts_of_their_own(comparison):
    for p in comparison["area_pairs"]:
        x, y = (np.array([area(planted_returns(p["task"], m, s)) for s in range(5)]) for m in (p["x"], p["y"]))
        assert p["difference"]["estimate"] == pytest.approx(x.mean() - y.mean())
        assert p["verdict"] == ("better" if p["x"] == "better" else "inconclusive")
    assert len(comparison["area_pairs"]) == 6 and len(comparison["over_tasks"]["area_pairs"]) == 3


def test_pairs_by_seed_are_asked_for(campaign, tmp_path):
    for p in make_report(campaign, Options(paired=True))["pairs"]:
        x, y = finals(p["task"], p["x"]), finals(p["task"], p["y"])
        assert p["paired"] and p["difference"]["method"].startswith("paired t") and p["verdict"] == "inconclusive"
        assert p["p_value"] == pytest.approx(compare([x], [y], paired=True).p_value)
        assert p["p_permutation"] >= 2 / 2**5  # five pairs find nothing
    make_run(tmp_path / "a", "a", seed=0)
    make_run(tmp_path / "b", "b", seed=1)
    with pytest.raises(TaacError, match=r"on Hopper-v5 a has \[0\] and b has \[1\]; leave out --paired"):
        make_report(tmp_path, Options(paired=True))


# --- Bounded returns ------------------------------------------------------------------------------


def solve_rates(root, task="Mine-v0", seeds=5, **changes):
    for seed in range(seeds):
        make_run(root / f"a{seed}", "a", task, seed, [1.0] * 10, **changes)
        make_run(root / f"b{seed}", "b", task, seed, [0.0] * 10, **changes)


@pytest.mark.parametrize(
    "task, bounds, extra",
    [
        ("Mine-v0", ("0,1",), ""),
        ("Mine-v0", ("Mine-v0=0,1",), ""),
        ("FetchReach-v4", (), ""),  # the anchors declare it
        ("Mine-v0", (), "create_experiment.return_bounds = (0, 1)\n"),
    ],
)
def test_all_solved_against_none_is_a_verdict(tmp_path, task, bounds, extra):
    solve_rates(tmp_path, task, extra_gin=extra)
    content = make_report(tmp_path, Options(bounds=bounds))
    (pair,) = content["pairs"]
    assert content["tasks"][0]["bounds"] == [0, 1]
    assert pair["verdict"] == "better" and pair["p_adjusted"] == pytest.approx(2 / 252)
    # Both ends of proportions: 1 - sqrt 2 (1 - 0.025^(1/5)).
    assert pair["difference"]["low"] == pytest.approx(1 - math.sqrt(2) * (1 - 0.025**0.2)) and pair["difference"]["high"] == 1
    text = next(s["text"] for s in content["statements"] if s["about"] == "Verdicts")
    assert "Fisher's exact test" in text


def test_anchors_of_another_return_are_not_used(tmp_path):
    """Those of FetchReach-v4 are of success, 0 or 1; here each step before the goal costs 1."""
    for method, value in (("a", -2.0), ("b", -40.0)):
        for seed in range(2):
            make_run(tmp_path / f"{method}{seed}", method, "FetchReach-v4", seed, [value] * 10)
            make_run(tmp_path / f"{method}h{seed}", method, "Hopper-v5", seed, [1000.0] * 10)
            make_run(tmp_path / f"{method}c{seed}", method, "HalfCheetah-v5", seed, [2000.0] * 10)
    content = make_report(tmp_path, Options(bounds=("none",)))
    assert content["over_tasks"]["tasks"] == ["HalfCheetah-v5", "Hopper-v5"]
    told = "a return of -2 on FetchReach-v4 is outside of its anchors' bounds (0.0, 1.0): they are not used"
    assert told in content["warnings"] and content["tasks"][0]["bounds"] is None


def test_runs_of_other_code_are_told(tmp_path):
    for seed, commit in enumerate(("a1", "a1", "b2", None)):
        about = json.loads((make_run(tmp_path / str(seed), seed=seed) / "run.json").read_text())
        (tmp_path / str(seed) / "run.json").write_text(json.dumps(about | ({} if commit is None else {"commit": commit})))
    (told,) = [w for w in make_report(tmp_path, Options())["warnings"] if w.startswith("commit on Hopper-v5")]
    assert told == "commit on Hopper-v5: a1 in 2 run(s), but 2 has b2"


@pytest.mark.parametrize(
    "bounds, message",
    [
        (("0",), "--bounds 0 is no range; .* as 0,1"),
        (("1,0",), "no range"),
        (("0,nan",), "no range"),
        (("Other-v0=0,1",), "no runs on Other-v0; there are on Mine-v0"),
        (("0,0.5",), r"a on Mine-v0 has a return of 1, outside of the bounds \(0.0, 0.5\)"),
    ],
)
def test_bounds_that_are_none(tmp_path, bounds, message):
    solve_rates(tmp_path, seeds=2)
    with pytest.raises(TaacError, match=message):
        make_report(tmp_path, Options(bounds=bounds))


def test_declared_bounds_that_do_not_fit_are_not_used_and_named(tmp_path):
    solve_rates(tmp_path, seeds=2, extra_gin="create_experiment.return_bounds = (0, 0.5)\n")
    content = make_report(tmp_path, Options())
    assert content["tasks"][0]["bounds"] is None
    assert any("a return of 1 on Mine-v0 is outside of the declared bounds (0.0, 0.5)" in w for w in content["warnings"])


def test_of_different_declared_bounds_none_are_used_nor_those_of_anchors(tmp_path):
    """Anchors of FetchReach-v4 have the bounds 0 and 1."""
    for seed in range(2):
        for method, value, bounds in (("a", 1.0, "(0, 1)"), ("b", 0.0, "None")):
            extra = f"create_experiment.return_bounds = {bounds}\n"
            make_run(tmp_path / f"{method}{seed}", method, "FetchReach-v4", seed, [value] * 10, extra_gin=extra)
    content = make_report(tmp_path, Options())
    assert "runs on FetchReach-v4 declare different create_experiment.return_bounds, so none are used" in content["warnings"]
    assert content["tasks"][0]["bounds"] is None


# --- Evaluations that are due at the same step ----------------------------------------------------


def test_evaluations_that_come_late_are_matched_by_when_they_were_due(tmp_path):
    """A method that repeats 3 actions is evaluated at 102, 201, ..., 1002. Its last evaluation was dropped."""
    late, extra = [-(-step // 3) * 3 for step in STEPS], "Intervals.evaluation_interval = 100\n"
    assert late[-1] == 1002
    for seed in range(4):
        returns = np.array(STEPS) + np.random.default_rng(seed).normal(size=10)
        make_run(tmp_path / f"a{seed}", "a", "Hopper-v5", seed, returns, extra_gin=extra)
        make_run(tmp_path / f"b{seed}", "b", "Hopper-v5", seed, returns, late, extra_gin=extra)
    content = make_report(tmp_path, Options())
    a, b = content["tasks"][0]["methods"]
    assert content["tasks"][0]["step"] == 1000 and a["final"] == b["final"] and a["area"] == b["area"]
    assert content["pairs"][0]["difference"]["estimate"] == 0
    assert any(w.startswith("b on Hopper-v5: evaluations up to 2 step(s) after they were due") for w in content["warnings"])
    assert not any("evaluations end at" in w for w in content["warnings"])


def test_due_steps_by_hand():
    due = lambda steps, *of: due_steps(np.array(steps, dtype=float), *of)  # noqa: E731
    assert due([0, 102, 201, 303, 352], 100, 350).tolist() == [0, 100, 200, 300, 350]
    assert due([102, 190, 205], 100, 1000).tolist() == [100, 190, 200]  # two due at one step: the later keeps its own
    assert due([5, 10], None, 10).tolist() == [5, 10]


def test_what_settings_were_chosen_for_is_what_runs_say(tmp_path):
    make_run(tmp_path / "a", "a", extra_gin="create_experiment.tuning = 'a, on Hopper, 20 trials'\n")
    make_run(tmp_path / "b", "b", extra_gin="create_experiment.tuning = 'b\\nx'\n")
    content = make_report(tmp_path, Options())
    assert content["tuning"] == {"a": "a, on Hopper, 20 trials", "b": "not stated"}
    text = next(s["text"] for s in content["statements"] if s["about"] == "Tuning")
    assert "a: a, on Hopper, 20 trials; b: not stated." in text


def test_names_are_text_in_markdown_and_no_formulas_in_spreadsheets(comparison):
    names = {TASKS[0]: "<script>alert(1)</script>", "better": "=cmd|' /C calc'!A0", "plain": "![x](https://elsewhere/x.png)\n# y"}
    text = json.dumps(comparison)
    for name, hostile in names.items():
        text = text.replace(json.dumps(name), json.dumps(hostile))
    content = json.loads(text)
    shown = markdown(content, ["<b>.png"])
    assert "<" not in shown and "](https" not in shown and "\n# y" not in shown
    assert "&lt;script>alert(1)&lt;/script>" in shown and "=cmd" in shown
    rows = list(csv.DictReader(io.StringIO(table(content))))
    assert {"'=cmd|' /C calc'!A0"} == {row["method"] for row in rows if "cmd" in row["method"]}
    assert not any(value.startswith(("=", "+", "@")) for row in rows for value in row.values())
    assert any(float(row["low"]) < 0 for row in rows if row["low"])  # a number is none


def test_unequal_seeds_are_compared_unpaired(tmp_path):
    make_campaign(tmp_path, tasks=("Ant-v5",), methods=("better", "null"))
    shutil.rmtree(tmp_path / "Ant-v5" / "null" / "seed_3")
    content = make_report(tmp_path, Options())
    (p,) = content["pairs"]
    x, y = finals("Ant-v5", "better"), finals("Ant-v5", "null", seeds=(0, 1, 2, 4))
    expected = compare([x], [y])
    assert not p["paired"] and p["difference"]["method"] == "Welch t"
    assert p["difference"]["low"] == pytest.approx(expected.low)
    assert "unequal seeds on Ant-v5: null lacks 3, which others have" in content["warnings"]
    assert any("null on Ant-v5: 4 seed(s), fewer than 5; 10 are advised" in w for w in content["warnings"])


def test_over_tasks_are_normalised_by_the_anchors(comparison):
    block = comparison["over_tasks"]
    assert block["tasks"] == sorted(TASKS) and block["why_none"] is None and block["anchors_version"] == "1"
    assert {t: (a["y0"], a["y1"]) for t, a in block["anchors"].items()} == SCALES
    for of in block["methods"]:
        returns = np.array([[planted_returns(t, of["method"], s) for s in range(5)] for t in block["tasks"]])
        low, high = (np.array([SCALES[t][end] for t in block["tasks"]])[:, None] for end in (0, 1))
        scores = (returns[..., -3:].mean(-1) - low) / (high - low)
        assert of["final"]["mean"]["estimate"] == pytest.approx(scores.mean())
        assert of["final"]["median"]["estimate"] == pytest.approx(np.median(scores.mean(1)))
        assert of["final"]["iqm"]["estimate"] == pytest.approx(np.sort(scores.ravel())[2:8].mean())
        assert of["final"]["optimality_gap"]["estimate"] == pytest.approx((1 - scores).mean())
        assert of["final"]["iqm"]["low"] < of["final"]["iqm"]["estimate"] < of["final"]["iqm"]["high"]
        areas = (np.apply_along_axis(area, -1, returns) - low) / (high - low)
        assert of["area"]["mean"]["estimate"] == pytest.approx(areas.mean())
        fraction = next(p for p in block["profiles"]["methods"] if p["method"] == of["method"])["fraction"]
        assert fraction == pytest.approx([(scores > tau).mean() for tau in block["profiles"]["tau"]])
    assert [p["verdict"] for p in block["pairs"]] == ["better", "better", "inconclusive"]
    for i in block["improvement"]:
        of = [p["improvement"]["estimate"] for p in comparison["pairs"] if (p["x"], p["y"]) == (i["x"], i["y"])]
        assert i["improvement"]["estimate"] == pytest.approx(np.mean(of))


# --- Anchors --------------------------------------------------------------------------------------


def test_anchors_of_the_package_are_what_their_source_says():
    version, given = load_anchors()
    assert version == "1" and len(given) >= 8
    for task, anchor in given.items():
        if "registers" in anchor.source:
            assert gymnasium.spec(task).reward_threshold == anchor.y1
        assert anchor.y0 < anchor.y1 and anchor.source


def test_published_anchors_are_what_their_source_says():
    results = ROOT / "experiments" / "results"
    _, given = load_anchors(results / "published_anchors.json")
    own = load_anchors()[1]
    published = json.loads((results / "published.json").read_text())["returns"]
    found = 0
    for task, anchor in given.items():
        if match := re.search(r"y1: SAC of (.+) on (\w+) at (\d+) steps, (\d+) run", anchor.source):
            source, name, steps, runs = match.groups()
            of = [r for r in published if (r["source"], r["task"], r["method"]) == (source, name, "sac")]
            assert [(r["mean"], r["n"]) for r in of if r["env_steps"] == int(steps)] == [(anchor.y1, int(runs))]
            assert task.startswith(name) and (task == "Walker2d-v5" or anchor.y0 in (0.0, own[task].y0))
            found += 1
    assert found == 6


def test_a_task_without_anchors_is_left_out_and_can_be_given_some(tmp_path):
    for task in ("Hopper-v5", "Mine-v0"):
        for seed in range(2):
            make_run(tmp_path / "runs" / task / str(seed), "sac", task, seed, np.array(STEPS) + seed)
    content = make_report(tmp_path / "runs", Options())
    assert content["over_tasks"]["methods"] == [] and "two tasks" in content["over_tasks"]["why_none"]
    assert content["over_tasks"]["left_out"] == ["Mine-v0"]
    assert any("Mine-v0 is left out: it has no anchors" in w for w in content["warnings"])
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"tasks": {"Mine-v0": {"y0": 0, "y1": 2000}, "Hopper-v5": {"y0": 0, "y1": 1000}}}))
    block = make_report(tmp_path / "runs", Options(anchors=file))["over_tasks"]
    assert block["methods"][0]["final"]["mean"]["estimate"] == pytest.approx((900.5 / 2000 + 900.5 / 1000) / 2)
    assert block["anchors_version"] == "1, and mine.json"


@pytest.mark.parametrize(
    "text, message",
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "not JSON"),
        ("[]", 'hold no "tasks"'),
        ('{"tasks": {"A": {"y0": 1}}}', "no numbers y0 and y1"),
        ('{"tasks": {"A": {"y0": 1, "y1": 1}}}', "define no scale"),
        ('{"tasks": {"A": {"y0": 1, "y1": NaN}}}', "define no scale"),
        ('{"tasks": {"A": {"y0": 1e300, "y1": 0}}}', "define no scale"),
        ('{"tasks": {"A": {"y0": %s, "y1": 0}}}' % ("9" * 400), "no numbers"),
        ('{"tasks": {"A": {"y0": 0, "y1": 1, "bounds": [1, 0]}}}', "bounds of A are no range"),
    ],
)
def test_anchors_that_are_none(tmp_path, text, message):
    (tmp_path / "anchors.json").write_text(text)
    with pytest.raises(TaacError, match=message):
        load_anchors(tmp_path / "anchors.json")


def test_a_method_that_lacks_a_task_is_left_out_over_tasks(tmp_path):
    make_campaign(tmp_path, seeds=range(2), methods=("better", "null"))
    shutil.rmtree(tmp_path / "Ant-v5" / "null")
    content = make_report(tmp_path, Options())
    assert [m["method"] for m in content["over_tasks"]["methods"]] == ["better"]
    assert "over tasks, null is left out: it has no run on Ant-v5" in content["warnings"]
    assert "null on Ant-v5: no usable run" in content["warnings"]
    assert content["over_tasks"]["improvement"][0]["tasks"] == ["Hopper-v5"]


# --- Runs that are not whole ----------------------------------------------------------------------


def left_out(content):
    return {r["folder"]: r["left_out"] for r in content["runs"] if r["left_out"]}


def test_unfinished_runs_are_left_out_and_reported(tmp_path):
    for seed in range(3):
        make_run(tmp_path / f"run{seed}", seed=seed, returns=np.array(STEPS) + seed)
    make_run(tmp_path / "short", seed=3, steps=STEPS[:4], status="running")
    make_run(tmp_path / "nearly", seed=5, returns=np.array(STEPS) + 3, status="running")
    make_run(tmp_path / "crashed", seed=6, steps=STEPS[:2], status="failed")
    make_run(tmp_path / "at_once", seed=7, steps=[], status="failed")
    make_run(tmp_path / "pruned", seed=8, status="pruned")
    content = make_report(tmp_path, Options())
    assert left_out(content) == {
        "crashed": "it failed: evaluated up to step 200 of 1000, compared at 1000",
        "at_once": "it has no evaluation yet; it failed",
        "pruned": "a sweep pruned it",
        "short": "unfinished: evaluated up to step 400 of 1000, compared at 1000",
    }
    of = method_of(content, "Hopper-v5", "sac")
    assert of["seeds"] == [0, 1, 2, 5] and of["final"]["mean"]["estimate"] == pytest.approx(900 + 1.5)
    told = "\n".join(content["warnings"])
    assert "run short (sac) is left out: unfinished" in told
    assert "run nearly (sac) is included, but not finished: its status is 'running'" in told


def test_a_finished_run_whose_evaluations_end_early_is_reported(tmp_path):
    for seed in range(3):
        make_run(tmp_path / f"run{seed}", seed=seed)
    make_run(tmp_path / "cut", seed=3, steps=STEPS[:7])
    content = make_report(tmp_path, Options())
    assert content["tasks"][0]["step"] == 700
    told = (
        "run cut (sac) is finished, but its evaluations end at step 700 of 1000; "
        "runs on Hopper-v5 are compared no later than that"
    )
    assert [w for w in content["warnings"] if "evaluations end" in w] == [told]


PLANNED = {"task": "Hopper-v5", "method": "bad", "seed": 0, "folder": "old/root/Hopper-v5/bad/seed_0"}
LOG = "old/root/Hopper-v5/bad/seed_0.log"


@pytest.mark.parametrize(
    "status, error, told",
    [
        ("failed", f"exit code 1: taac train: no (see {LOG})", "failed, exit code 1: taac train: no"),
        ("failed", f"killed by SIGKILL, 4 times: nothing (see {LOG})", "failed, killed by SIGKILL: nothing"),
        ("waiting", None, "waiting"),
    ],
)
def test_planned_runs_without_a_folder_are_reported(tmp_path, status, error, told):
    planned = [{**PLANNED, "log": LOG, "status": status, "error": error}]
    for seed in range(2):  # moved since: one is known by what it says of itself, the other by where it is
        make_run(tmp_path / "Hopper-v5" / "sac" / f"seed_{seed}", seed=seed, returns=np.array(STEPS) + seed)
        planned.append({**PLANNED, "method": "sac", "seed": seed, "folder": "elsewhere", "status": "finished"})
    planned[-1].update(method="sack", folder="/old/root/Hopper-v5/sac/seed_1")
    (tmp_path / "compare.json").write_text(json.dumps({"updated": "then", "runs": planned}))
    warnings = make_report(tmp_path, Options())["warnings"]
    expected = f"run Hopper-v5/bad/seed_0 (bad) is planned but missing: {told}"
    assert [w for w in warnings if "planned" in w] == [expected]


@pytest.mark.parametrize("text", ["{", "[]", '{"runs": [{"task": "T"}]}'])
def test_a_damaged_plan_is_reported(tmp_path, text):
    make_run(tmp_path / "run")
    (tmp_path / "compare.json").write_text(text)
    warnings = make_report(tmp_path, Options())["warnings"]
    assert sum(w.startswith("compare.json cannot be read") for w in warnings) == 1


def test_intervals_end_where_their_quantities_do(tmp_path):
    """Of max_run the runs have 1, 1, 99: a mean of 33.7 with a t interval from -107 to 174."""
    for seed, repeated in enumerate((0.0, 0.0, 0.9)):
        folder = make_run(tmp_path / str(seed), seed=seed, repeated=repeated, returns=np.array(STEPS) + 1000.0 * seed)
        text = (folder / "evaluations.csv").read_text()
        (folder / "evaluations.csv").write_text(text.replace(",5,", f",{99 if repeated else 1},"))
    content = make_report(tmp_path, Options())
    of = {name: s["mean"] for name, s in method_of(content, "Hopper-v5", "sac")["repetition"].items()}
    for name in ("fraction_repeated", "fraction_same"):
        assert of[name]["estimate"] == pytest.approx(0.3) and (of[name]["low"], of[name]["high"]) == (0, 1), "0.3 -+ 1.3"
        assert of[name]["method"] == "Student t, cut to [0, 1]"
    half = 4.30265 * (98**2 / 3) ** 0.5 / 3**0.5  # t of 2 degrees of freedom; the deviations are -32.7, -32.7, 65.3
    assert (of["max_run"]["low"], of["max_run"]["high"]) == (1, pytest.approx(101 / 3 + half, rel=1e-5))
    assert of["max_run"]["method"] == "Student t, cut to 1 or more"
    assert of["mean_run"]["low"] == 1 and of["jerk"]["low"] == of["decisions"]["low"] == 0
    final = method_of(content, "Hopper-v5", "sac")["final"]["mean"]
    assert final["method"] == "Student t" and final["low"] < 0, "a return has no such ends"
    curve = next(c for c in content["curves"] if c["measure"] == "fraction_repeated" and c["axis"] == "env_steps")
    assert set(curve["methods"][0]["low"]) == {0} and set(curve["methods"][0]["high"]) == {1}


def test_intervals_and_bands_of_bounded_returns_end_at_the_bounds(tmp_path):
    """Success rates 0.9, 1, 1: without bounds, means have intervals up to 1.11."""
    for seed, rate in enumerate((0.9, 1.0, 1.0)):
        make_run(tmp_path / str(seed), "sac", "Maze-v0", seed, [rate * s / 1000 for s in STEPS])
    for bounds, high in (((), 1.11), (("0,1",), 1.0)):
        content = make_report(tmp_path, Options(last=1, bounds=bounds))
        final = method_of(content, "Maze-v0", "sac")["final"]["mean"]
        assert final["estimate"] == pytest.approx(2.9 / 3) and final["high"] == pytest.approx(high, abs=0.001)
        assert ("cut to [0, 1]" in final["method"]) == bool(bounds)
        curve = next(c for c in content["curves"] if c["measure"] == "return_mean" and c["axis"] == "env_steps")
        assert curve["methods"][0]["high"][-1] == pytest.approx(high, abs=0.001)


def test_the_optimality_gap_is_not_negative(tmp_path):
    for task, top in (("Ant-v5", 6000), ("Hopper-v5", 3800)):  # nearly solved, but for one run
        for seed in range(3):
            returns = np.linspace(0, top * (0.4 if seed == 0 else 1.1), 10)
            make_run(tmp_path / f"{task}{seed}", "sac", task, seed, returns)
    block = make_report(tmp_path, Options(last=1))["over_tasks"]
    gap = block["methods"][0]["final"]["optimality_gap"]
    assert gap["low"] == 0 < gap["estimate"] < gap["high"] and gap["method"] == "Student t, cut to 0 or more"
    # A run above 1 has a gap of 0, so only the one run of three counts.
    short = [1 - (0.4 * top - a["y0"]) / (a["y1"] - a["y0"]) for top, a in zip((6000, 3800), block["anchors"].values())]
    assert gap["estimate"] == pytest.approx(np.mean(short) / 3)


def test_without_a_finished_run_all_are_compared_where_all_have_been(tmp_path):
    for seed, n in enumerate((5, 7, 9)):
        make_run(tmp_path / f"run{seed}", seed=seed, steps=STEPS[:n], status="running")
    content = make_report(tmp_path, Options())
    assert content["tasks"][0]["step"] == 500 and not left_out(content)
    assert method_of(content, "Hopper-v5", "sac")["final"]["mean"]["estimate"] == pytest.approx(400)  # of 300, 400, 500
    assert "no run on Hopper-v5 is finished; compared at step 500, which all have reached" in content["warnings"]


def test_mixed_budgets_are_compared_at_the_smaller(tmp_path):
    for seed in range(2):
        make_run(tmp_path / f"a{seed}", "a", seed=seed)
        make_run(tmp_path / f"b{seed}", "b", seed=seed, steps=range(100, 2001, 100), budget=2000)
    with pytest.raises(TaacError, match=r"budget on Hopper-v5.*b0, b1 has 2000"):
        make_report(tmp_path, Options())
    content = make_report(tmp_path, Options(allow_mixed=True))
    assert content["tasks"][0]["step"] == 1000
    assert method_of(content, "Hopper-v5", "b")["final"]["mean"]["estimate"] == pytest.approx(900)
    assert content["warnings"][0].startswith("not comparable: budget on Hopper-v5")


@pytest.mark.parametrize("last, told", [(2, False), (3, True)])
def test_evaluations_before_the_first_update_are_told(tmp_path, last, told):
    table = make_run(tmp_path / "a") / "evaluations.csv"
    make_run(tmp_path / "b", "b")
    table.write_text(re.sub(r"^([1-8]00),\d+,", r"\1,0,", table.read_text(), flags=re.MULTILINE))  # the first 8 of 10
    warnings = make_report(tmp_path, Options(last=last))["warnings"]
    assert ("final returns on Hopper-v5 count evaluations before the first update: a" in warnings) == told


def test_fewer_evaluations_than_requested_are_reported(tmp_path):
    make_run(tmp_path / "a", steps=(1000,), returns=(7,))
    comparison = make_report(tmp_path, Options())
    content = comparison
    assert content["tasks"][0]["evaluations"] == 1
    assert "final returns on Hopper-v5 are means of 1 evaluation(s), not 3" in content["warnings"]
    of = method_of(content, "Hopper-v5", "sac")
    assert of["final"]["mean"]["estimate"] == 7 and of["final"]["mean"]["low"] is None
    assert of["area"]["mean"] is None and of["area"]["runs"] == 0
    write_report(comparison, tmp_path)


def test_one_run_of_each_is_inconclusive_without_an_interval(tmp_path):
    for method in ("a", "b"):
        make_run(tmp_path / method, method, returns=np.array(STEPS) * (1 if method == "a" else 9))
    comparison = make_report(tmp_path, Options())
    (p,) = comparison["pairs"]
    assert p["verdict"] == "inconclusive" and p["difference"]["low"] is None and p["improvement"] is None
    assert p["difference"]["estimate"] == pytest.approx(-7200)
    assert verdict_line(p).endswith(": inconclusive; so few runs can give no verdict: at least 4 of each method are needed")
    assert "inconclusive (too few runs)" in markdown(comparison, [])
    assert "report_improvement.png" not in [path.name for path in write_report(comparison, tmp_path / "out")]


@pytest.mark.parametrize("seeds, told", [(1, 1), (3, 1), (4, 0), (5, 0)])
def test_too_few_seeds_are_told_before_and_after(tmp_path, seeds, told):
    assert len(note_on_seeds(2, seeds)) == told and note_on_seeds(1, seeds) == []
    for method in "ab":
        for seed in range(seeds):
            make_run(tmp_path / f"{method}{seed}", method, seed=seed, returns=np.array(STEPS) + seed)
    (p,) = make_report(tmp_path, Options())["pairs"]
    assert p["verdict"] == "inconclusive" and ("so few runs" in verdict_line(p)) == told


def test_the_settings_that_decide_are_told_once_or_by_method_and_task(tmp_path):
    def run(task, method, rate, steps=5000, normalized="False", clip="None"):
        make_run(tmp_path / task / method, method, task, extra_gin=(
            f"Learner.learning_rate = {rate}\nUpdateRatio.initial_collect_steps = {steps}\nTrainer.batch_size = 256\n"
            f"Trainer.segment_length = {2 if method == 'a' else 4}\ncreate_agent.normalize_rewards = {normalized}\n"
            f"create_agent.reward_clip = {clip}\n"
        ))  # fmt: skip

    run("Hopper-v5", "a", 0.001)
    run("Hopper-v5", "b", 0.001)
    content = make_report(tmp_path, Options())
    assert content["settings_told"] == [
        "learning rate: 0.001; random steps first: 5000; rewards: raw; updates a step: 0.5",
        "batch: 256 x 2 frames (a), 256 x 4 frames (b)",
    ]
    run("Ant-v5", "a", 0.001, 100, "True", "5.0")
    run("Ant-v5", "b", 0.003, 100, "True", "5.0")
    content = make_report(tmp_path, Options())
    assert content["settings_told"] == [
        "updates a step: 0.5",
        "learning rate: 0.001 (a), 0.003 (b) on Ant-v5; 0.001 on Hopper-v5",
        "random steps first: 100 on Ant-v5; 5000 on Hopper-v5",
        "rewards: normalised, with their mean subtracted, clipped at 5.0 on Ant-v5; raw on Hopper-v5",
        "batch: 256 x 2 frames (a), 256 x 4 frames (b)",
    ]
    assert all(f"- {line}" in markdown(content, []) for line in content["settings_told"])


def test_columns_that_are_missing_are_dashes(tmp_path):
    for seed in range(2):
        make_run(tmp_path / f"a{seed}", seed=seed, columns=[c for c in COLUMNS if c not in ("jerk", "fraction_repeated")])
    comparison = make_report(tmp_path, Options())
    of = method_of(comparison, "Hopper-v5", "sac")["repetition"]
    assert of["jerk"] == {"runs": 0, "mean": None} and of["decisions"]["runs"] == 2
    write_report(comparison, tmp_path)
    (told,) = (w for w in comparison["warnings"] if "has no column fraction_repeated, jerk" in w)
    assert told.startswith("2 runs, the first run a0 (sac): ")


def test_nothing_to_compare(tmp_path):
    make_run(tmp_path / "a", steps=())
    with pytest.raises(TaacError, match="none of the 1 runs"):
        make_report(tmp_path, Options())


# --- Files ----------------------------------------------------------------------------------------


def test_all_files_are_there_and_nothing_else(written):
    assert sorted(listing(written)) == [
        "report.csv", "report.html", "report.json", "report.md", "report_front.png", "report_improvement.png", "report_iqm.png",
        "report_profile.png", "report_repeated.png", "report_return.png",
    ]  # fmt: skip
    for name, data in listing(written).items():
        if name.endswith(".png"):
            assert data.startswith(b"\x89PNG") and len(data) > 5000


def test_the_same_runs_give_the_same_bytes(campaign, comparison, written, tmp_path):
    write_report(make_report(campaign, Options()), tmp_path)
    assert listing(tmp_path) == listing(written)
    content = json.loads((written / "report.json").read_text(), parse_constant=lambda constant: 1 / 0)  # no NaN
    assert content == comparison


def tables(text):
    """Every Markdown table as rows of cells, without the head's rule."""
    found, rows = [], []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split(" | ")])
        elif rows:
            found.append([rows[0], *rows[2:]])
            rows = []
    return found


def test_markdown_tables_hold_the_numbers_of_json(written):
    content = json.loads((written / "report.json").read_text())
    found = tables((written / "report.md").read_text())
    assert len(found) == 5 * len(TASKS) + 6
    show = with_interval
    for i, task in enumerate(content["tasks"]):
        scores, pairs, areas, repetition, front = found[5 * i : 5 * i + 5]
        for row, m in zip(scores[1:], task["methods"], strict=True):
            summaries = [show(m[k][s]) for k in ("final", "area") for s in ("mean", "iqm")]
            assert row == [m["method"], "5", "0", show(m["rank"]), *summaries]
            mean = m["final"]["mean"]
            assert [float(x) for x in re.findall(r"-?[\d.]+", row[4])] == pytest.approx(
                [mean["estimate"], mean["low"], mean["high"]], rel=1e-3
            )
        for name, given in (("pairs", pairs), ("area_pairs", areas)):
            expected = [p for p in content[name] if p["task"] == task["task"]]
            for row, p in zip(given[1:], expected, strict=True):
                finds = "-" if p["detectable"] is None else f"{p['detectable']:.4g}"
                assert row == [
                    p["x"], p["y"], p["verdict"], show(p["difference"]), f"{p['p_adjusted']:.4g}", show(p["improvement"]),
                    f"{p['effect']:.4g}", finds, "0",
                ]  # fmt: skip
        blocks = [(m, how, block) for m in task["methods"] for how, block in ACTING.items()]
        for row, (m, how, block) in zip(repetition[1:], blocks, strict=True):
            assert row == [m["method"], "5", how, *(show(s["mean"]) for s in m[block].values())]
        (of_task,) = (of for of in content["fronts"] if of["task"] == task["task"])  # of decisions: jerk is the same for all
        means = {m["method"]: [show(m["repetition"]["decisions"]["mean"]), show(m["final"]["mean"])] for m in task["methods"]}
        told = [
            [m["method"], str(m["runs"]), *means[m["method"]], ["no", "yes"][m["on_front"]], f"{m['share']:.0%}"]
            for m in of_task["methods"]
        ]
        assert sorted(front[1:]) == sorted(told)
        assert front[1][:1] == ["better"] and front[1][4] == "yes"  # the least decisions come first
    block = content["over_tasks"]
    for measure, rows in zip(("final", "area"), found[10:12], strict=True):
        rank = ["rank"] * (measure == "final")
        assert rows[0][: 2 + len(rank)] == ["method", "diverged", *rank]
        told = [[m["method"], "0", *(show(m[r]) for r in rank), *map(show, m[measure].values())] for m in block["methods"]]
        assert rows[1:] == told
    for name, rows in zip(("pairs", "area_pairs"), found[12:14], strict=True):
        assert [row[:4] for row in rows[1:]] == [[p["x"], p["y"], p["verdict"], show(p["difference"])] for p in block[name]]
    assert [row[:3] for row in found[14][1:]] == [
        [task, f"{y0:g}", f"{y1:g}"] for task, (y0, y1) in sorted(SCALES.items())
    ]
    assert [row[-1] for row in found[15][1:]] == [show(i["improvement"]) for i in block["improvement"]]


def test_csv_holds_the_numbers_of_json(written):
    content = json.loads((written / "report.json").read_text())
    with open(written / "report.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    by_key = {tuple(r[k] for k in ("block", "task", "method", "versus", "measure", "statistic")): r for r in rows}
    assert len(by_key) == len(rows) == 2 * 3 * (4 + 11 + 11) + 2 * (1 + 3) + 3 * 8 + 2 * 9 * 2 + 3
    for task in content["tasks"]:
        for m in task["methods"]:
            row = by_key["task", task["task"], m["method"], "", "final", "iqm"]
            assert float(row["estimate"]) == m["final"]["iqm"]["estimate"] and row["runs"] == "5"
            assert float(row["low"]) == m["final"]["iqm"]["low"] and float(row["high"]) == m["final"]["iqm"]["high"]
            for block, suffix in (("repetition", ""), ("repetition_exploring", ", exploring")):
                for name, found in m[block].items():
                    row = by_key["task", task["task"], m["method"], "", name + suffix, "mean"]
                    assert row["estimate"] == ("" if found["mean"] is None else str(found["mean"]["estimate"]))
    for p in content["pairs"]:
        row = by_key["pair", p["task"], p["x"], p["y"], "difference of final", "mean"]
        assert float(row["estimate"]) == p["difference"]["estimate"] and row["verdict"] == p["verdict"]
        assert float(row["p_adjusted"]) == p["p_adjusted"]
    for measure, name in (("final", "pairs"), ("area", "area_pairs")):
        for block, held, statistic in (("pair", content, "mean"), ("pair over tasks", content["over_tasks"], "iqm")):
            for p in held[name]:
                row = by_key[block, p.get("task", ""), p["x"], p["y"], f"difference of {measure}", statistic]
                assert float(row["estimate"]) == p["difference"]["estimate"]
    for m in content["over_tasks"]["methods"]:
        for measure in ("final", "area"):
            for statistic, found in m[measure].items():
                row = by_key["over tasks", "", m["method"], "", measure, statistic]
                assert float(row["estimate"]) == found["estimate"]


def test_verdicts_over_tasks_are_of_their_own_measure(comparison):
    block = comparison["over_tasks"]
    for measure, name in (("final", "pairs"), ("area", "area_pairs")):
        iqm = {m["method"]: m[measure]["iqm"]["estimate"] for m in block["methods"]}
        found = [p["difference"]["estimate"] for p in block[name]]
        assert found == pytest.approx([iqm[p["x"]] - iqm[p["y"]] for p in block[name]], abs=1e-12)


@pytest.mark.slow
def test_a_picture_that_is_no_longer_of_this_report_is_removed_and_others_are_kept(comparison, tmp_path):
    write_report(comparison, tmp_path)
    (tmp_path / "mine.png").write_text("mine")
    make_run(tmp_path / "one" / "run")
    write_report(make_report(tmp_path / "one", Options()), tmp_path)
    assert not (tmp_path / "report_profile.png").exists() and (tmp_path / "mine.png").exists()


@pytest.mark.slow
def test_more_tasks_and_pairs_than_a_picture_can_hold(comparison, monkeypatch):
    """A picture has at most 65535 pixels each way."""
    from matplotlib.figure import Figure

    titles = []
    monkeypatch.setattr(Figure, "suptitle", lambda self, text, **_: titles.append(text))
    monkeypatch.setattr(figures, "MOST_TASKS", 1)
    pairs = [pair for pair in comparison["pairs"] if pair["improvement"]] * 2000
    found = figures.draw({**comparison, "pairs": pairs, "over_tasks": {**comparison["over_tasks"], "improvement": []}})
    assert found["report_return.png"].startswith(b"\x89PNG")
    assert " ".join(titles[0].split()).endswith("single runs are faint, 1 of 2 tasks")
    assert "report_improvement.png" not in found


@pytest.mark.slow
def test_a_report_that_cannot_be_made_leaves_the_old_one(written, comparison, tmp_path, monkeypatch):
    write_report(comparison, tmp_path)
    before = listing(tmp_path)
    monkeypatch.setattr("taac.analysis.report.tables.table", lambda content: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(comparison, tmp_path)
    assert listing(tmp_path) == before


def test_matrix_products_that_differ_are_told(tmp_path):
    """Those of one task: runs of other tasks are compared with none of them."""
    make_campaign(tmp_path, seeds=range(2), tasks=("Ant-v5",))
    make_run(tmp_path / "elsewhere", "sac", "Hopper-v5", products="bfloat16x6")
    assert not any("matrix products" in warning for warning in make_report(tmp_path, Options())["warnings"])
    make_run(tmp_path / "odd", "null", "Ant-v5", 2, products="onednn")
    (told,) = (w for w in make_report(tmp_path, Options())["warnings"] if "matrix products" in w)
    assert told.startswith("matrix products on Ant-v5: plain in 6 run(s), but odd has onednn; their numbers are rounded")
