"""Reports, curves and estimates of runs that were evaluated before training."""

from __future__ import annotations

import pytest

from taac.analysis.curves import tag_curves
from taac.analysis.report.content import make_report
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
    make_run(tmp_path / "with", "a", steps=(0, 500, 1000), returns=(0, 8, 10), extra_gin="Trainer.initial_evaluation = True\n")
    make_run(tmp_path / "without", "a", seed=1, steps=(500, 1000), returns=(8, 10))
    content = make_report(tmp_path, QUICK)
    assert content["methods"] == ["a"] and [r["area"] for r in content["runs"]] == [9, 9]
    (curve,) = tag_curves.make_curves([tmp_path], tag_curves.Options(("evaluation/return",))).curves
    assert curve.curve.steps.tolist() == [500, 1000]


def test_a_run_that_has_only_begun_is_left_out(tmp_path):
    make_run(tmp_path / "begun", seed=1, steps=(0,), returns=(5,), status="running")
    with pytest.raises(TaacError, match="none of the 1 runs"):
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
