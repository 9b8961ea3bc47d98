"""What diverged runs score, by hand; comparing at a step that is asked for; and runs that were evaluated before training."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from taac.analysis.curves import tag_curves
from taac.analysis.readers import run_records
from taac.analysis.report.page import make_report, write_report
from taac.analysis.report.scores import Options
from taac.errors import TaacError
from tests.analysis.campaigns import STEPS, make_run

RISING = np.array(STEPS, dtype=float)
NAN = math.nan


def campaign(root, task="Mine-v0", **changes):
    """Three whole runs, whose lowest return is -7, and one that diverged at step 700."""
    for seed in range(3):
        make_run(root / f"run{seed}", "sac", task, seed, [-7.0 if s == 300 and seed == 1 else s for s in STEPS])
    returns = [*RISING[:6], NAN, 8.0, NAN, -math.inf]
    return make_run(root / "odd", "taac", task, 3, returns, **changes)


def scores(content, folder):
    (run,) = [r for r in content["runs"] if r["folder"] == folder]
    return run["final"], run["area"]


def told(folder, env_steps, status="running"):
    about = json.loads((folder / "run.json").read_text())
    about.update(status=status, diverged={"env_steps": env_steps, "error": "the action was nan"})
    (folder / "run.json").write_text(json.dumps(about))


def test_a_diverged_run_ranks_below_all_and_enters_no_mean(tmp_path):
    for seed in range(5):
        make_run(tmp_path / f"a{seed}", "a", "Mine-v0", seed, RISING + seed)
        returns = RISING - 50 + seed
        make_run(tmp_path / f"b{seed}", "b", "Mine-v0", seed, [*returns[:6], NAN, *returns[7:]] if seed == 2 else returns)
    content = make_report(tmp_path, Options())
    (task,), (pair,) = content["tasks"], content["pairs"]
    a, b = task["methods"]
    assert (a["runs"], a["diverged"], b["runs"], b["diverged"]) == (5, 0, 5, 1)
    assert b["final"]["runs"] == 4 and b["final"]["mean"]["estimate"] == pytest.approx(850 + (0 + 1 + 3 + 4) / 4)
    assert scores(content, "b2") == (None, None)
    assert "run b2 (b): diverged at step 700; from there on it ranks below every run that did not, and enters no mean" in (
        content["warnings"]
    )
    # All of a above all of b: by ranks, although the means of those that did not diverge differ too.
    assert pair["compares"] == "ranks" and pair["verdict"] == "better" and pair["diverged"] == [0, 1]
    assert pair["improvement"]["estimate"] == 1 and pair["improvement"]["low"] > 0.5 and pair["improvement"]["high"] == 1
    assert pair["difference"]["estimate"] == pytest.approx(50) and pair["difference"]["low"] is None
    curve = next(c for c in content["curves"] if c["measure"] == "return_mean" and c["axis"] == "env_steps")
    assert curve["methods"][1]["runs"] == 4 and curve["methods"][1]["estimate"][-1] == pytest.approx(952)


@pytest.mark.parametrize("ended", [True, False])
def test_a_divergence_that_was_due_at_the_compared_step_counts(tmp_path, ended):
    """At 1002 of 1000 steps, in an evaluation or before it: the run was left out as too short, which flatters its method."""
    gin, late = "Intervals.evaluation_interval = 100\n", [step + 2 for step in STEPS]
    for seed in range(2):
        make_run(tmp_path / f"a{seed}", "a", "Mine-v0", seed, extra_gin=gin)
        make_run(tmp_path / f"b{seed}", "b", "Mine-v0", seed, steps=late, extra_gin=gin)
    returns = [*late[:9], NAN] if ended else late[:9]
    folder = make_run(tmp_path / "b2", "b", "Mine-v0", 2, returns, late[: len(returns)], extra_gin=gin)
    if not ended:
        told(folder, 1001, "diverged")
    content = make_report(tmp_path, Options(last=1))
    (run,) = [r for r in content["runs"] if r["folder"] == "b2"]
    assert (run["left_out"], run["diverged"], run["final"]) == (None, 1000, None)
    assert [(m["runs"], m["diverged"]) for m in content["tasks"][0]["methods"]] == [(2, 0), (3, 1)]
    assert content["tasks"][0]["step"] == 1000


def test_a_task_on_which_all_diverged_stays(tmp_path):
    for method in "ab":
        for seed in range(4):
            make_run(tmp_path / f"{method}{seed}", method, "Mine-v0", seed, [1.0, *[NAN] * 9])
            make_run(tmp_path / f"{method}{seed}fine", method, "Yours-v0", seed, RISING + seed)
    content = make_report(tmp_path, Options())
    task = next(t for t in content["tasks"] if t["task"] == "Mine-v0")
    assert [(m["runs"], m["diverged"], m["final"]["mean"]) for m in task["methods"]] == [(4, 4, None)] * 2
    pair = next(p for p in content["pairs"] if p["task"] == "Mine-v0")
    assert pair["verdict"] == "inconclusive" and pair["diverged"] == [4, 4]
    write_report(content, tmp_path / "out")


def test_over_tasks_diverged_runs_are_counted_and_compared_by_ranks(tmp_path):
    for task in ("Hopper-v5", "Ant-v5"):
        for seed in range(5):
            make_run(tmp_path / task / f"a{seed}", "a", task, seed, RISING + seed)
            bad = task == "Ant-v5" and seed == 0
            make_run(tmp_path / task / f"b{seed}", "b", task, seed, [1.0, *[NAN] * 9] if bad else RISING - 90 + seed)
    block = make_report(tmp_path, Options())["over_tasks"]
    assert [m["diverged"] for m in block["methods"]] == [0, 1] and block["methods"][1]["final"]["iqm"]["estimate"] < 1
    (pair,) = block["pairs"]
    assert pair["compares"] == "ranks" and pair["verdict"] == "better" and pair["improvement"]["estimate"] == 1
    profile = next(m for m in block["profiles"]["methods"] if m["method"] == "b")
    assert profile["fraction"][0] == 0.9  # one of ten is above no threshold


def test_a_run_that_diverged_after_the_compared_step_is_like_others(tmp_path):
    campaign(tmp_path)
    content = make_report(tmp_path, Options(at_step=600))
    assert scores(content, "odd")[0] == 500 and content["tasks"][0]["methods"][1]["diverged"] == 0


def test_a_run_that_ended_when_its_actions_were_no_longer_finite(tmp_path):
    """Divergence read from run.json."""
    folder = campaign(tmp_path, steps=STEPS[:4])  # evaluated up to 400
    told(folder, 450)
    record = next(r for r in run_records.find(tmp_path) if r.folder == "odd")
    assert record.diverged == 450 and record.problems == (
        "diverged: training met numbers that are not finite, at step 450",
    )
    content = make_report(tmp_path, Options())
    odd = next(r for r in content["runs"] if r["folder"] == "odd")
    assert (odd["left_out"], odd["diverged"], odd["final"]) == (None, 450, None)
    told(folder, 450, status="finished")  # it was trained again, and came to its end
    assert next(r for r in run_records.find(tmp_path) if r.folder == "odd").diverged is None


def test_a_run_that_is_trained_again_has_diverged_until_it_gets_further(tmp_path):
    folder = campaign(tmp_path, steps=STEPS[:4])  # evaluated up to 400
    about = json.loads((folder / "run.json").read_text())
    for at, found in ((450, 450), (400, 400), (399, None)):
        again = {"env_steps": 300, "diverged": {"env_steps": at, "error": "the loss"}}
        (folder / "run.json").write_text(json.dumps({**about, "status": "interrupted", "diverged": None, "resumed": [again]}))
        record = next(r for r in run_records.find(tmp_path) if r.folder == "odd")
        assert record.diverged == found
        assert f"it diverged at {at} environment steps, and was trained again from 300 on" in record.notes
    twice = {"env_steps": 400, "diverged": {"env_steps": 450, "error": "the loss"}}
    now = {"status": "diverged", "diverged": {"env_steps": 420, "error": "the loss"}, "resumed": [twice]}
    (folder / "run.json").write_text(json.dumps({**about, **now}))
    assert next(r for r in run_records.find(tmp_path) if r.folder == "odd").diverged == 420


def test_a_diverged_run_with_another_problem_is_left_out(tmp_path):
    (campaign(tmp_path) / "run.json").unlink()
    make_run(tmp_path / "b", "taac", "Mine-v0", 4)
    content = make_report(tmp_path, Options())
    assert scores(content, "odd") == (None, None) and any("no run.json" in w for w in content["warnings"])


# --- At a step ------------------------------------------------------------------------------------


def test_scores_at_a_step_are_of_the_last_evaluations_up_to_it(tmp_path):
    for seed in range(2):
        make_run(tmp_path / str(seed), "sac", "Mine-v0", seed, RISING + seed)
    content = make_report(tmp_path, Options(at_step=650))
    (task,) = content["tasks"]
    assert task["step"] == 600 and task["evaluations"] == 3
    assert scores(content, "0") == (500, pytest.approx(350))  # of 400, 500, 600; from 100 to 600 along the steps
    told = "Mine-v0 is compared at step 600, the last evaluation of all its runs up to step 650 (--at_step)"
    assert told in content["warnings"]
    assert not any("no run on" in w for w in content["warnings"])
    assert max(content["curves"][0]["x"]) == 1000  # the curves are whole


def test_a_run_that_ended_between_evaluations_moves_all_to_the_last_that_they_share(tmp_path):
    make_run(tmp_path / "0", "sac", "Mine-v0", 0, RISING)
    make_run(tmp_path / "1", "sac", "Mine-v0", 1, [*RISING[:6], 99.0], steps=[*STEPS[:6], 630])
    content = make_report(tmp_path, Options())
    assert content["tasks"][0]["step"] == 600
    assert scores(content, "0") == scores(content, "1") == (500, pytest.approx(350))


def test_a_step_before_the_first_evaluation_is_not_the_untrained_agents(tmp_path):
    for seed in range(2):
        make_run(tmp_path / str(seed), "sac", "Mine-v0", seed, np.arange(11.0), steps=(0, *STEPS))
    with pytest.raises(TaacError, match="evaluated from step 100 on, compared at 50"):
        make_report(tmp_path, Options(at_step=50))


def test_runs_that_were_not_there_are_left_out_of_a_comparison_at_a_step(tmp_path):
    make_run(tmp_path / "short", "sac", seed=0, steps=STEPS[:5])
    make_run(tmp_path / "late", "sac", seed=1, steps=STEPS[7:])
    make_run(tmp_path / "whole", "sac", seed=2)
    make_run(tmp_path / "running", "sac", seed=3, steps=STEPS[:3], status="running")
    content = make_report(tmp_path, Options(at_step=600))
    assert {r["folder"]: r["left_out"] for r in content["runs"]} == {
        "late": "evaluated from step 800 on, compared at 600",
        "running": "unfinished: evaluated up to step 300 of 1000, compared at 600",
        "short": "too short: evaluated up to step 500 of 1000, compared at 600",
        "whole": None,
    }


# --- Evaluated before training ---------------------------------------------------------------------


def only_method(content):
    (task,) = content["tasks"]
    (method,) = task["methods"]
    return task, method


def test_the_final_return_is_of_trained_agents_and_the_area_begins_at_step_0(tmp_path):
    """Two evaluations of training, fewer than the three of a final return. Area: (0+8)/2 and (8+10)/2, each of half the steps."""
    for seed in range(2):
        make_run(tmp_path / f"{seed}", seed=seed, steps=(0, 500, 1000), returns=(0, 8, 10))
    task, method = only_method(make_report(tmp_path, Options()))
    assert task["evaluations"] == 2 and method["final"]["mean"]["estimate"] == 9
    assert method["area"]["mean"]["estimate"] == 6.5
    curve = next(c for c in make_report(tmp_path, Options())["curves"] if c["axis"] == "env_steps")
    assert curve["x"] == [0, 500, 1000]


def test_runs_with_and_without_it_are_compared_where_both_were_evaluated(tmp_path):
    """The area of both is from step 500 on."""
    make_run(tmp_path / "with", "a", steps=(0, 500, 1000), returns=(0, 8, 10), extra_gin="Evaluator.initial_evaluation = True\n")
    make_run(tmp_path / "without", "a", seed=1, steps=(500, 1000), returns=(8, 10))
    content = make_report(tmp_path, Options())
    assert content["methods"] == ["a"] and [r["area"] for r in content["runs"]] == [9, 9]
    (curve,) = tag_curves.make_curves([tmp_path], tag_curves.Options(("evaluation/return",))).curves
    assert curve.curve.steps.tolist() == [500, 1000]


def test_a_run_that_has_only_begun_is_left_out(tmp_path):
    make_run(tmp_path / "begun", seed=1, steps=(0,), returns=(5,), status="running")
    told = "unfinished: evaluated up to step 0 of 1000, and no usable run on Hopper-v5 was evaluated later$"
    with pytest.raises(TaacError, match=f"(?s)none of the 1 runs.*{told}"):
        make_report(tmp_path, Options())
    make_run(tmp_path / "running", steps=(0, 100, 200), status="running")
    content = make_report(tmp_path, Options())
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


def test_a_task_on_which_all_diverged_is_compared_at_its_budget(tmp_path):
    """Not where the first of them did, at which the others had not."""
    for seed, count in enumerate((3, 6, 8)):
        folder = make_run(tmp_path / str(seed), "a", "Mine-v0", seed, RISING[:count], STEPS[:count])
        told(folder, STEPS[count - 1] + 50, "diverged")
    (task,) = make_report(tmp_path, Options())["tasks"]
    assert task["step"] == 1000 and (task["methods"][0]["runs"], task["methods"][0]["diverged"]) == (3, 3)


def test_the_last_evaluation_is_due_at_the_budget(tmp_path):
    """Which is no multiple of the interval here; methods whose actions last several steps come late."""
    interval, steps = "Intervals.evaluation_interval = 100\n", [*STEPS, 1050]
    for seed in range(2):
        for method, late in (("a", 0), ("b", 2)):
            at = [step + late for step in steps]
            make_run(tmp_path / f"{method}{seed}", method, "Mine-v0", seed, steps=at, budget=1050, extra_gin=interval)
    assert make_report(tmp_path, Options())["tasks"][0]["step"] == 1050
