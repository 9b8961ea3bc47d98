"""What diverged runs score, by hand, and comparing at a step that is asked for."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from taac.analysis.readers import run_records
from taac.analysis.report import diverged
from taac.analysis.report.content import make_report
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


@pytest.mark.parametrize("policy, score", [("worst", -7.0), (-1000.0, -1000.0), (0, 0.0)])
def test_a_diverged_run_counts_from_there_on(tmp_path, policy, score):
    campaign(tmp_path)
    content = make_report(tmp_path, Options(diverged=policy))
    final, area = scores(content, "odd")
    assert final == score
    # 100 to 600 along the steps, then (600 + X) / 2 over a hundred, and X to the end.
    assert area == pytest.approx(((100 + 600) / 2 * 500 + (600 + score) / 2 * 100 + score * 300) / 900)
    (task,) = content["tasks"]
    assert task["diverged_score"] == score and {m["method"]: m["runs"] for m in task["methods"]} == {
        "sac": 3,
        "taac": 1,
    }
    assert f"run odd (taac): diverged at step 700; from there on its return counts as {score:g}" in content["warnings"]
    assert [r["diverged"] for r in content["runs"]] == [700, None, None, None]
    repetition = task["methods"][1]["repetition"]
    assert all(of == {"runs": 0, "mean": None} for of in repetition.values())


def test_the_mean_of_the_last_evaluations_may_hold_some_from_before(tmp_path):
    campaign(tmp_path)
    assert scores(make_report(tmp_path, Options(last=5)), "odd")[0] == pytest.approx((600 - 4 * 7) / 5)


def test_the_worst_is_the_anchor_where_that_is_lower(tmp_path):
    campaign(tmp_path, task="Ant-v5")  # y0 is -58.04
    content = make_report(tmp_path, Options())
    assert scores(content, "odd")[0] == -58.04
    campaign(tmp_path / "mine", task="Mine-v0")
    both = make_report(tmp_path, Options())
    assert {t["task"]: t["diverged_score"] for t in both["tasks"]} == {"Ant-v5": -58.04, "Mine-v0": -7.0}


def test_the_worst_is_of_what_was_compared(tmp_path):
    """A return of -50 that comes after the compared step has no part in it."""
    campaign(tmp_path)
    make_run(tmp_path / "long", "sac", "Mine-v0", 4, [*RISING, -50.0], steps=(*STEPS, 1100), budget=1000)
    assert scores(make_report(tmp_path, Options()), "odd")[0] == -7


def test_a_run_that_ended_when_its_actions_were_no_longer_finite(tmp_path):
    """Divergence read from run.json. Evaluations that the run never reached count as the worst, at the other runs' steps."""
    folder = campaign(tmp_path, steps=STEPS[:4])  # evaluated up to 400
    told(folder, 450)
    record = next(r for r in run_records.find(tmp_path) if r.folder == "odd")
    assert record.diverged == 450 and record.problems == (
        "diverged: training met numbers that are not finite, at step 450",
    )
    final, area = scores(make_report(tmp_path, Options()), "odd")
    assert final == -7 and area == pytest.approx(((100 + 400) / 2 * 300 + (400 - 7) / 2 * 100 - 7 * 500) / 900)
    content = make_report(tmp_path, Options(diverged="leave_out"))
    assert scores(content, "odd") == (None, None)
    told(folder, 450, status="finished")  # it was trained again, and came to its end
    assert next(r for r in run_records.find(tmp_path) if r.folder == "odd").diverged is None


def test_others_that_are_shorter_do_not_end_a_diverged_run(tmp_path):
    told(campaign(tmp_path, steps=STEPS[:4]), 450)
    make_run(tmp_path / "short", "sac", "Mine-v0", 5, steps=STEPS[:5], status="running")
    assert scores(make_report(tmp_path, Options()), "odd")[0] == -7


def test_evaluations_that_are_missing_before_it_diverged_are_not_made_up(tmp_path):
    """Known up to 400, diverged at 650: a line from 400 to the worst at 700."""
    told(campaign(tmp_path, steps=STEPS[:4]), 650)
    final, area = scores(make_report(tmp_path, Options()), "odd")
    assert final == -7 and area == pytest.approx(((100 + 400) / 2 * 300 + (400 - 7) / 2 * 300 - 7 * 300) / 900)


def test_a_run_that_diverged_before_its_first_evaluation(tmp_path):
    folder = campaign(tmp_path, steps=())
    told(folder, 50)
    assert scores(make_report(tmp_path, Options()), "odd") == (-7, -7)


def test_a_diverged_run_with_another_problem_is_left_out(tmp_path):
    (campaign(tmp_path) / "run.json").unlink()
    make_run(tmp_path / "b", "taac", "Mine-v0", 4)
    content = make_report(tmp_path, Options())
    assert scores(content, "odd") == (None, None) and any("no run.json" in w for w in content["warnings"])


def test_all_diverged_is_no_comparison(tmp_path):
    make_run(tmp_path / "a", returns=[NAN] * 10)
    with pytest.raises(TaacError, match="none of the 1 runs"):
        make_report(tmp_path, Options())


@pytest.mark.parametrize("policy", ["best", "", NAN, math.inf, 1e200, -1e61])
def test_policies_that_are_none(tmp_path, policy):
    campaign(tmp_path)
    with pytest.raises(TaacError, match="--diverged must be"):
        make_report(tmp_path, Options(diverged=policy))


def test_a_policy_is_read_from_a_word():
    assert diverged.parse("-12.5") == -12.5 and diverged.parse("leave_out") == "leave_out"


def test_the_curve_of_a_diverged_run_continues_where_it_is_known(tmp_path):
    """Against environment steps it continues at the worst return. Updates are unknown after the end of a stopped run."""
    folder = campaign(tmp_path, steps=STEPS[:4])
    told(folder, 450)
    content = make_report(tmp_path, Options())
    by_axis = {
        c["axis"]: dict(zip(c["x"], next(m["estimate"] for m in c["methods"] if m["method"] == "taac")))
        for c in content["curves"]
        if c["measure"] == "return_mean"
    }
    assert [by_axis["env_steps"][s] for s in STEPS] == [100, 200, 300, 400, *[-7] * 6]
    assert [by_axis["updates"][s] for s in STEPS] == [100, 200, 300, 400, *[None] * 6]


# --- At a step ------------------------------------------------------------------------------------


def test_scores_at_a_step_are_of_the_last_evaluations_up_to_it(tmp_path):
    for seed in range(2):
        make_run(tmp_path / str(seed), "sac", "Mine-v0", seed, RISING + seed)
    content = make_report(tmp_path, Options(at_step=650))
    (task,) = content["tasks"]
    assert task["step"] == 650 and task["evaluations"] == 3
    assert scores(content, "0") == (500, pytest.approx(375))  # of 400, 500, 600; from 100 to 650 along the steps
    assert not any("no run on" in w for w in content["warnings"])
    assert max(content["curves"][0]["x"]) == 1000  # the curves are whole


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


def test_a_step_that_no_run_has_reached(tmp_path):
    make_run(tmp_path / "a")
    with pytest.raises(TaacError, match="evaluated up to step 1000 of 1000, compared at 1001"):
        make_report(tmp_path, Options(at_step=1001))
