"""What diverged runs score, by hand, and comparing at a step that is asked for."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from taac.analysis.readers import run_records
from taac.analysis.report import diverged
from taac.analysis.report.content import make_report
from taac.analysis.report.files import write_report
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


@pytest.mark.parametrize("policy, score", [(-7.0, -7.0), (-1000.0, -1000.0), (0, 0.0)])
def test_a_diverged_run_counts_as_an_assigned_return_from_there_on(tmp_path, policy, score):
    campaign(tmp_path)
    content = make_report(tmp_path, Options(diverged=policy))
    final, area = scores(content, "odd")
    assert final == score
    # 100 to 600 along the steps, then (600 + X) / 2 over a hundred, and X to the end.
    assert area == pytest.approx(((100 + 600) / 2 * 500 + (600 + score) / 2 * 100 + score * 300) / 900)
    (task,) = content["tasks"]
    assert {m["method"]: m["runs"] for m in task["methods"]} == {"sac": 3, "taac": 1}
    assert f"run odd (taac): diverged at step 700; from there on its return counts as {score:g}" in content["warnings"]
    assert [r["diverged"] for r in content["runs"]] == [700, None, None, None]
    repetition = task["methods"][1]["repetition"]
    assert all(of == {"runs": 0, "mean": None} for of in repetition.values())


def test_the_mean_of_the_last_evaluations_may_hold_some_from_before(tmp_path):
    campaign(tmp_path)
    assert scores(make_report(tmp_path, Options(last=5, diverged=-7.0)), "odd")[0] == pytest.approx((600 - 4 * 7) / 5)


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


def test_what_a_diverged_run_counts_as_does_not_depend_on_unrelated_runs(tmp_path):
    """The lowest return of the task was assigned: a bad third method moved a difference from -50 to +782."""
    campaign(tmp_path)
    for seed in range(4, 6):
        make_run(tmp_path / f"more{seed}", "taac", "Mine-v0", seed, RISING - seed)

    def told():
        pair = next(p for p in make_report(tmp_path, Options())["pairs"] if (p["x"], p["y"]) == ("sac", "taac"))
        return pair["difference"], pair["improvement"]["estimate"], pair["p_value"], pair["p_permutation"], pair["effect"]

    before = told()
    for seed in range(3):
        make_run(tmp_path / f"bad{seed}", "bad", "Mine-v0", seed, RISING - 9000 * (seed + 1))
    assert told() == before


@pytest.mark.parametrize("policy, final", [("worst", None), (-7.0, -7.0)])
@pytest.mark.parametrize("ended", [True, False])
def test_a_divergence_that_was_due_at_the_compared_step_counts(tmp_path, policy, final, ended):
    """At 1002 of 1000 steps, in an evaluation or before it: the run was left out as too short, which flatters its method."""
    gin, late = "Intervals.evaluation_interval = 100\n", [step + 2 for step in STEPS]
    for seed in range(2):
        make_run(tmp_path / f"a{seed}", "a", "Mine-v0", seed, extra_gin=gin)
        make_run(tmp_path / f"b{seed}", "b", "Mine-v0", seed, steps=late, extra_gin=gin)
    returns = [*late[:9], NAN] if ended else late[:9]
    folder = make_run(tmp_path / "b2", "b", "Mine-v0", 2, returns, late[: len(returns)], extra_gin=gin)
    if not ended:
        told(folder, 1001, "diverged")
    content = make_report(tmp_path, Options(last=1, diverged=policy))
    (run,) = [r for r in content["runs"] if r["folder"] == "b2"]
    assert (run["left_out"], run["diverged"], run["final"]) == (None, 1000, final)
    assert [(m["runs"], m["diverged"]) for m in content["tasks"][0]["methods"]] == [(2, 0), (3, 0 if final else 1)]
    assert content["tasks"][0]["step"] == 1000


def test_a_later_divergence_moves_no_evaluation(tmp_path):
    """Without a known interval: right after the second evaluation, it halved the distance by which evaluations may be late."""
    for seed in range(2):
        make_run(tmp_path / f"a{seed}", "a", "Mine-v0", seed, [10, 20], [1000, 2000])
        make_run(tmp_path / f"b{seed}", "b", "Mine-v0", seed, [10, 30], [1030, 2030])
    before = make_report(tmp_path, Options(at_step=2000))["pairs"]
    assert before[0]["difference"]["estimate"] == pytest.approx(-5)
    told(tmp_path / "b0", 2040, "diverged")
    assert make_report(tmp_path, Options(at_step=2000))["pairs"] == before


def test_a_task_on_which_all_diverged_stays(tmp_path):
    for method in "ab":
        for seed in range(4):
            make_run(tmp_path / f"{method}{seed}", method, "Mine-v0", seed, [1.0, *[NAN] * 9])
            make_run(tmp_path / f"{method}{seed}fine", method, "Yours-v0", seed, RISING + seed)
    content = make_report(tmp_path, Options())
    task = next(t for t in content["tasks"] if t["task"] == "Mine-v0")
    assert [(m["method"], m["runs"], m["diverged"], m["final"]["mean"]) for m in task["methods"]] == [
        ("a", 4, 4, None),
        ("b", 4, 4, None),
    ]
    pair = next(p for p in content["pairs"] if p["task"] == "Mine-v0")
    assert pair["verdict"] == "inconclusive" and pair["diverged"] == [4, 4]
    write_report(content, tmp_path / "out")


INTERVAL = "Intervals.evaluation_interval = 100\n"


@pytest.mark.parametrize(
    "extra_gin, steps, known, final",
    [
        (INTERVAL, (100,), 3, (7 - 1000 - 1000) / 3),  # evaluations at 200 and 300 that it never reached
        ("", (100,), 3, (7 - 1000 - 1000) / 3),  # the same, by the distance to the first
        (INTERVAL, (), 3, -1000),
        ("", (), 1, -1000),  # nothing says when it would have been evaluated, but at the compared step
        ("Intervals.evaluation_interval = 7\n", (), 3, -1000),
    ],
)
def test_an_assigned_return_reaches_the_compared_step_where_all_runs_of_a_task_diverged(
    tmp_path, extra_gin, steps, known, final
):
    """The steps ended with the runs' own last evaluation, so that all were refused as unfinished."""
    for method in "ab":
        for seed in range(4):
            folder = make_run(
                tmp_path / f"{method}{seed}", method, "Mine-v0", seed, [7.0] * len(steps), steps, budget=300,
                extra_gin=extra_gin,
            )  # fmt: skip
            told(folder, 150, "diverged")
    content = make_report(tmp_path, Options(diverged=-1000.0))
    (task,) = content["tasks"]
    assert (task["step"], task["evaluations"]) == (300, known)
    assert [(m["runs"], m["diverged"], m["final"]["mean"]["estimate"]) for m in task["methods"]] == [
        (4, 0, pytest.approx(final))
    ] * 2
    write_report(content, tmp_path / "out")
    with pytest.raises(TaacError, match="diverged: training met numbers that are not finite, at step 150"):
        make_report(tmp_path, Options(diverged="leave_out"))


def test_an_assigned_return_reaches_a_step_that_is_asked_for_and_no_other_run_has_reached(tmp_path):
    told(campaign(tmp_path, steps=STEPS[:4]), 450)
    for seed in range(3):
        (tmp_path / f"run{seed}" / "run.json").unlink()
    make_run(tmp_path / "whole", "sac", "Mine-v0", 5, steps=STEPS[:6], status="running")
    content = make_report(tmp_path, Options(at_step=900, diverged=-7.0))
    assert scores(content, "odd")[0] == -7 and scores(content, "whole")[0] is None


def test_the_evaluations_of_the_longest_run_that_diverged_are_those_of_the_others(tmp_path):
    told(make_run(tmp_path / "a", "a", "Mine-v0", returns=[7.0], steps=(250,)), 300, "diverged")
    told(make_run(tmp_path / "b", "b", "Mine-v0", returns=[5.0, 6.0], steps=(250, 500)), 600, "diverged")
    content = make_report(tmp_path, Options(last=9, diverged=-1.0))
    assert content["tasks"][0]["evaluations"] == 4  # at 250, 500, 750 and 1000
    assert scores(content, "a")[0] == (7 - 3) / 4 and scores(content, "b")[0] == (5 + 6 - 2) / 4


def test_a_strangers_interval_makes_no_more_evaluations_than_can_be_held(tmp_path):
    gin = "Intervals.evaluation_interval = 1\n"
    told(make_run(tmp_path / "a", "a", "Mine-v0", returns=(), steps=(), budget=10**15, extra_gin=gin), 150, "diverged")
    assert scores(make_report(tmp_path, Options(diverged=-1.0)), "a")[0] == -1


def test_a_run_that_diverged_later_and_was_never_evaluated_is_told_so(tmp_path):
    campaign(tmp_path)
    told(make_run(tmp_path / "early", "taac", "Mine-v0", 5, (), steps=()), 450)
    (run,) = [r for r in make_report(tmp_path, Options(at_step=200))["runs"] if r["folder"] == "early"]
    assert run["left_out"] == "unfinished: not evaluated, compared at 200"


def test_a_method_that_diverged_everywhere_is_worse_than_one_that_did_not(tmp_path):
    for seed in range(5):
        make_run(tmp_path / f"a{seed}", "a", "Mine-v0", seed, RISING + seed)
        told(make_run(tmp_path / f"b{seed}", "b", "Mine-v0", seed, (), steps=()), 50)
    content = make_report(tmp_path, Options())
    (pair,) = content["pairs"]
    assert pair["verdict"] == "better" and pair["improvement"]["estimate"] == 1
    assert pair["difference"]["estimate"] is None
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
    """Divergence read from run.json. Evaluations that the run never reached count as the worst, at the other runs' steps."""
    folder = campaign(tmp_path, steps=STEPS[:4])  # evaluated up to 400
    told(folder, 450)
    record = next(r for r in run_records.find(tmp_path) if r.folder == "odd")
    assert record.diverged == 450 and record.problems == (
        "diverged: training met numbers that are not finite, at step 450",
    )
    final, area = scores(make_report(tmp_path, Options(diverged=-7.0)), "odd")
    assert final == -7 and area == pytest.approx(((100 + 400) / 2 * 300 + (400 - 7) / 2 * 100 - 7 * 500) / 900)
    content = make_report(tmp_path, Options(diverged="leave_out"))
    assert scores(content, "odd") == (None, None)
    told(folder, 450, status="finished")  # it was trained again, and came to its end
    assert next(r for r in run_records.find(tmp_path) if r.folder == "odd").diverged is None


def test_others_that_are_shorter_do_not_end_a_diverged_run(tmp_path):
    told(campaign(tmp_path, steps=STEPS[:4]), 450)
    make_run(tmp_path / "short", "sac", "Mine-v0", 5, steps=STEPS[:5], status="running")
    assert scores(make_report(tmp_path, Options(diverged=-7.0)), "odd")[0] == -7


def test_evaluations_that_are_missing_before_it_diverged_are_not_made_up(tmp_path):
    """Known up to 400, diverged at 650: a line from 400 to the worst at 700."""
    told(campaign(tmp_path, steps=STEPS[:4]), 650)
    final, area = scores(make_report(tmp_path, Options(diverged=-7.0)), "odd")
    assert final == -7 and area == pytest.approx(((100 + 400) / 2 * 300 + (400 - 7) / 2 * 300 - 7 * 300) / 900)


def test_a_run_that_diverged_before_its_first_evaluation(tmp_path):
    folder = campaign(tmp_path, steps=())
    told(folder, 50)
    assert scores(make_report(tmp_path, Options(diverged=-7.0)), "odd") == (-7, -7)


def test_a_diverged_run_with_another_problem_is_left_out(tmp_path):
    (campaign(tmp_path) / "run.json").unlink()
    make_run(tmp_path / "b", "taac", "Mine-v0", 4)
    content = make_report(tmp_path, Options())
    assert scores(content, "odd") == (None, None) and any("no run.json" in w for w in content["warnings"])


@pytest.mark.parametrize("policy", ["best", "", NAN, math.inf, 1e200, -1e61])
def test_policies_that_are_none(tmp_path, policy):
    campaign(tmp_path)
    with pytest.raises(TaacError, match="--diverged must be"):
        make_report(tmp_path, Options(diverged=policy))


def test_a_policy_is_read_from_a_word():
    assert diverged.parse("-12.5") == -12.5 and diverged.parse("leave_out") == "leave_out"


def test_the_curve_of_a_diverged_run_continues_where_it_is_known(tmp_path):
    """Against environment steps it continues at the assigned return. Updates are unknown after the end of a stopped run."""
    folder = campaign(tmp_path, steps=STEPS[:4])
    told(folder, 450)
    content = make_report(tmp_path, Options(diverged=-7.0))
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
