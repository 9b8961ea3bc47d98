"""Reports, curves and estimates of runs that were evaluated before training."""

from __future__ import annotations

import pytest

from taac.analysis.curves import tag_curves
from taac.analysis.report.content import make_report
from taac.analysis.report.files import write_report
from taac.analysis.report.scores import Options
from taac.campaigns.time_left import read_pace
from taac.errors import TaacError
from tests.analysis.campaigns import make_run

QUICK = Options()


def only_method(content):
    (task,) = content["tasks"]
    (method,) = task["methods"]
    return task, method


def test_the_final_return_is_of_trained_agents_and_the_area_begins_at_step_0(tmp_path):
    """Two evaluations of training, fewer than the three of a final return. Area: (0+8)/2 and (8+10)/2, each of half the steps."""
    for seed in range(2):
        make_run(tmp_path / f"{seed}", seed=seed, steps=(0, 500, 1000), returns=(0, 8, 10))
    task, method = only_method(make_report(tmp_path, QUICK))
    assert task["evaluations"] == 2 and method["final"]["mean"]["estimate"] == 9
    assert method["area"]["mean"]["estimate"] == 6.5
    curve = next(c for c in make_report(tmp_path, QUICK)["curves"] if c["axis"] == "env_steps")
    assert curve["x"] == [0, 500, 1000]


def test_runs_with_and_without_it_are_compared_where_both_were_evaluated(tmp_path):
    """The area of both is from step 500 on."""
    make_run(tmp_path / "with", "a", steps=(0, 500, 1000), returns=(0, 8, 10), extra_gin="Evaluator.initial_evaluation = True\n")
    make_run(tmp_path / "without", "a", seed=1, steps=(500, 1000), returns=(8, 10))
    content = make_report(tmp_path, QUICK)
    assert content["methods"] == ["a"] and [r["area"] for r in content["runs"]] == [9, 9]
    (curve,) = tag_curves.make_curves([tmp_path], tag_curves.Options(("evaluation/return",))).curves
    assert curve.curve.steps.tolist() == [500, 1000]


def test_a_run_that_has_only_begun_is_left_out(tmp_path):
    make_run(tmp_path / "begun", seed=1, steps=(0,), returns=(5,), status="running")
    told = "unfinished: evaluated up to step 0 of 1000, and no usable run on Hopper-v5 was evaluated later$"
    with pytest.raises(TaacError, match=f"(?s)none of the 1 runs.*{told}"):
        make_report(tmp_path, QUICK)
    make_run(tmp_path / "running", steps=(0, 100, 200), status="running")
    content = make_report(tmp_path, QUICK)
    assert [(r["folder"], r["left_out"] is None) for r in content["runs"]] == [("begun", False), ("running", True)]
    assert content["tasks"][0]["step"] == 200


def test_a_run_without_an_evaluation_of_training_up_to_the_compared_step_is_left_out(tmp_path):
    """The others keep theirs: with the first run, a final return would have been a mean of no evaluations."""
    make_run(tmp_path / "rare", "a", steps=(0, 500, 1000), returns=(0, 8, 10))
    make_run(tmp_path / "often", "b", steps=(0, 100, 200, 1000), returns=(0, 2, 4, 6))
    content = make_report(tmp_path, Options(at_step=200, allow_mixed=True))
    assert {r["folder"]: r["left_out"] for r in content["runs"]} == {
        "rare": "evaluated from step 500 on, compared at 200", "often": None,
    }  # fmt: skip
    assert [r["final"] for r in content["runs"]] == [3, None]


def test_untrained_agents_are_compared_where_step_0_is_asked_for(tmp_path):
    """It compared the end instead. Returns at step 0 are 5 to 8 and 1 to 4; there is no area, and no share of no steps."""
    for task in ("Hopper-v5", "Ant-v5"):
        for method, first in {"a": 5, "b": 1}.items():
            for seed in range(4):
                returns = (first + seed, 80, 90)
                make_run(tmp_path / task / f"{method}{seed}", method, task, seed, returns, steps=(0, 500, 1000))
    make_run(tmp_path / "begun", "b", "Ant-v5", 4, (5,), steps=(0,), status="running")
    make_run(tmp_path / "without", "b", "Ant-v5", 5, (80, 90), steps=(500, 1000))
    content = make_report(tmp_path, Options(at_step=0))
    assert [(task["task"], task["step"], task["evaluations"]) for task in content["tasks"]] == [
        ("Ant-v5", 0, 1), ("Hopper-v5", 0, 1),
    ]  # fmt: skip
    means = {m["method"]: m["final"]["mean"]["estimate"] for m in content["tasks"][1]["methods"]}
    assert means == {"a": 6.5, "b": 2.5} and content["family"] == {"final": 3, "area": 0}
    assert {r["folder"]: r["left_out"] for r in content["runs"] if "/" not in r["folder"]} == {
        "begun": None, "without": "evaluated from step 500 on, compared at 0",
    }  # fmt: skip
    told = {row["about"]: row["text"] for row in content["statements"]}
    assert "step 0, as requested" in told["Compared step"] and "untrained agents" in told["Final return"]
    assert content["over_tasks"]["curves"] is None
    write_report(content, tmp_path / "out")


def test_a_run_that_diverged_before_training_counts_at_step_0(tmp_path):
    for seed in range(3):
        make_run(tmp_path / f"{seed}", seed=seed, returns=["nan" if seed == 2 else 5, 8, 10], steps=(0, 500, 1000))
    (method,) = only_method(make_report(tmp_path, Options(at_step=0)))[1:]
    assert (method["runs"], method["diverged"], method["final"]["mean"]["estimate"]) == (3, 1, 5)
    (method,) = only_method(make_report(tmp_path, Options(at_step=0, diverged=-1000.0)))[1:]
    assert (method["runs"], method["diverged"]) == (3, 0) and method["final"]["mean"]["estimate"] == pytest.approx(-330)


def test_a_step_before_0_is_refused(tmp_path):
    make_run(tmp_path / "run")
    with pytest.raises(TaacError, match="--at_step must be 0 or more, got -1"):
        make_report(tmp_path, Options(at_step=-1))


def test_a_run_without_updates_is_drawn_from_step_0(tmp_path):
    make_run(tmp_path / "run", steps=(0, 100, 200), returns=(1, 2, 3))
    for x in ("env_steps", "updates", "decisions", "wall_time"):
        (curve,) = tag_curves.make_curves([tmp_path], tag_curves.Options(("evaluation/return",), x=x)).curves
        assert curve.curve.steps[0] == 0 and curve.curve.estimate.tolist() == [1, 2, 3]


def test_the_time_left_is_not_estimated_from_it(tmp_path):
    """Planted: a tenth of a second for each step; the budget is 1000 steps."""
    assert read_pace(make_run(tmp_path / "begun", steps=(0,)), 0.0) is None
    pace = read_pace(make_run(tmp_path / "running", steps=(0, 400)), 0.0)
    assert pace.spent == 40 and pace.left == pytest.approx(60)
