"""Labels of runs of one method with different settings."""

from __future__ import annotations

import json

import pytest

from taac.analysis.curves import tag_curves
from taac.analysis.readers import groups, run_records
from taac.analysis.report.page import make_report
from taac.analysis.report.scores import Options
from taac.errors import TaacError
from tests.analysis.campaigns import make_run

LR = "learning_rate = {0}\nLearner.learning_rate = %learning_rate\n"


def labels(root, settings, group_by=(), method="taac"):
    """The labels of runs with this text in their config.gin, each a seed."""
    for seed, text in enumerate(settings):
        make_run(root / f"{method}_{seed}", method, seed=seed, extra_gin=text)
    found, notes = groups.labelled(run_records.find(root), group_by)
    return [r.method for r in found], notes


def values_of(names, *rows):
    """The text of config.gin for each row of values of `A.<name>`."""
    return ["".join(f"A.{name} = {value}\n" for name, value in zip(names, row)) for row in rows]


@pytest.mark.parametrize(
    "settings, expected",
    [
        ([LR.format(0.003), LR.format(0.003)], ["taac", "taac"]),
        (["A.later = None\nA.also = False\nA.x = 1\n", "A.x = 1\n"], ["taac", "taac"]),  # the second of an earlier version
        (["A.x = 0.1\n", "A.x = None\nB.y = 1\n", "B.y = 1\n", "A.x = False\nB.y = 1\n"], ["taac x=0.1", *["taac"] * 3]),
        # A macro and its binding are one setting; 0.003 and 3e-3 as config.gin writes them.
        ([LR.format(0.003), LR.format(0.0001)], ["taac lr=3e-3", "taac lr=1e-4"]),
        (["A.gamma = 0.99\n", "A.gamma = 0.5\n"], ["taac gamma=0.99", "taac gamma=0.5"]),
        # Both differ, and nothing hides it.
        (values_of(["x", "y"], (0.003, 0.9), (0.0001, 0.5)), ["taac x=3e-3 y=0.9", "taac x=1e-4 y=0.5"]),
        (["A.x = 1\nB.x = 2\n", "A.x = 3\nB.x = 2\n", "A.x = 3\nB.x = 4\n"],
         ["taac A.x=1 B.x=2", "taac A.x=3 B.x=2", "taac A.x=3 B.x=4"]),
        # What only some have is named if nothing else tells them apart.
        (["", "A.x = 1\n"], ["taac", "taac x=1"]),
        (["T.td_loss = @One()\nOne.huber = 1.0\n", "T.td_loss = @Two()\nTwo.huber = 1.0\n"],
         ["taac td_loss=One", "taac td_loss=Two"]),
        (["A.layers = (64, 64)\n", "A.layers = (8,)\n"], ["taac layers=(64,64)", "taac layers=(8,)"]),
        (["A.name = 'x y'\n", "A.name = None\n"], ["taac name=x y", "taac name=None"]),
        # Four differ: three are shown, and that there are more. Unless three do not suffice.
        (values_of("abcd", (1, 3, 5, 7), (2, 4, 6, 8)), ["taac a=1 b=3 c=5 ...", "taac a=2 b=4 c=6 ..."]),
        (values_of("abcd", (1, 3, 5, 7), (2, 4, 6, 7), (2, 4, 6, 8)),
         ["taac a=1 b=3 c=5 d=7", "taac a=2 b=4 c=6 d=7", "taac a=2 b=4 c=6 d=8"]),
    ],
)  # fmt: skip
def test_a_label_says_what_differs(tmp_path, settings, expected):
    found, notes = labels(tmp_path, settings)
    assert found == expected
    told = f"runs of taac have different settings, told apart as {', '.join(dict.fromkeys(expected))}"
    assert notes == ([told] if len(set(expected)) > 1 else [])


@pytest.mark.parametrize(
    "text",
    [
        "create_experiment.method = 'x'\n",
        "create_experiment.evaluation_video = True\nReporter.loggers = @Wandb()\nWandb.project = 'x'\n",
        "Reporter.loggers = (@Wandb(), @my/Mlflow())\nmy/Mlflow.uri = 'x'\nWandb.project = 'x'\n",
        "checkpoint_interval = 7\nIntervals.checkpoint_interval = %checkpoint_interval\n",
        "Saving.save_best = False\nSaving.keep_checkpoints = 1\n",
        "Saving.save_replay = True\n",  # beside a run that says nothing of it, as one with False
        "RemoteCollector.launcher = 'ray'\nRemoteCollector.ray_address = '10.0.0.5:6379'\n",
    ],
)
def test_what_changes_nothing_in_a_run_tells_no_runs_apart(tmp_path, text):
    assert labels(tmp_path, ["", text]) == (["taac", "taac"], [])


def test_a_run_that_failed_at_once_gives_no_method_another_name(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", seed=1, status="failed", steps=(), extra_gin="A.gamma = 0.5\n")
    make_run(tmp_path / "c", seed=2, status="failed", steps=(0,), extra_gin="A.gamma = 0.5\n")
    records, notes = groups.labelled(run_records.find(tmp_path))
    assert {r.method for r in records} == {"sac"} and notes == []


def test_settings_may_differ_from_task_to_task(tmp_path):
    for task, gamma in (("Ant-v5", 0.98), ("Hopper-v5", 0.99)):
        for seed in range(2):
            make_run(tmp_path / task / str(seed), "sac", task, seed, extra_gin=f"A.gamma = {gamma}\n")
    found, notes = groups.labelled(run_records.find(tmp_path))
    assert {r.method for r in found} == {"sac"} and notes == []


def test_a_method_has_the_same_labels_on_every_task(tmp_path):
    """A sweep on one task alone, and another method that is left as it is."""
    for task, rates in (("Ant-v5", (0.01,)), ("Hopper-v5", (0.01, 0.1))):
        for rate in rates:
            make_run(tmp_path / task / f"taac_{rate}", "taac", task, extra_gin=LR.format(rate))
        make_run(tmp_path / task / "sac", "sac", task, extra_gin=LR.format(0.5))
    found, _ = groups.labelled(run_records.find(tmp_path))
    assert [(r.task, r.method) for r in found] == [
        ("Ant-v5", "sac"), ("Ant-v5", "taac lr=0.01"),
        ("Hopper-v5", "sac"), ("Hopper-v5", "taac lr=0.01"), ("Hopper-v5", "taac lr=0.1"),
    ]  # fmt: skip


@pytest.mark.parametrize("asked", ["learning_rate", "Learner.learning_rate", "lr"])
def test_settings_that_were_asked_for_are_shown_first(tmp_path, asked):
    settings = [LR.format(0.003) + f"A.gamma = {gamma}\n" for gamma in (0.9, 0.5)]
    found, _ = labels(tmp_path, settings, [asked])
    assert found == ["taac lr=3e-3 gamma=0.9", "taac lr=3e-3 gamma=0.5"]


@pytest.mark.parametrize(
    "asked, message",
    [
        ("learning_rat", r"--group_by learning_rat: no run has such a setting; did you mean 'learning_rate'\?"),
        ("x", r"--group_by x: give a whole name, one of A\.x, B\.x"),
    ],
)
def test_a_setting_that_no_run_has_is_refused(tmp_path, asked, message):
    with pytest.raises(TaacError, match=message):
        labels(tmp_path, [LR.format(0.003) + "A.x = 1\nB.x = 1\n"], [asked])


def test_runs_whose_configuration_is_lost_are_not_added_to_any(tmp_path):
    for seed in range(3):
        make_run(tmp_path / str(seed), "taac", seed=seed, extra_gin=LR.format((0.1, 0.2, 0.1)[seed]))
    (tmp_path / "2" / "config.gin").unlink()
    found, _ = groups.labelled(run_records.find(tmp_path))
    assert [r.method for r in found] == ["taac lr=0.1", "taac lr=0.2", "taac of unknown settings"]
    (tmp_path / "1" / "config.gin").unlink()
    assert {r.method for r in groups.labelled(run_records.find(tmp_path))[0]} == {"taac"}


@pytest.mark.parametrize(
    "values",
    [
        ("'" + "x" * 1000 + "a'", "'" + "x" * 1000 + "b'"),
        ("'\x1b[2J'", "'\x1b[3J'"),
    ],
)
def test_values_that_cannot_be_shown_are_numbered(tmp_path, values):
    """Of a stranger's configuration."""
    found, notes = labels(tmp_path, [f"A.x = {value}\n" for value in (*values, values[0])])
    assert found == ["taac settings 1", "taac settings 2", "taac settings 1"] and len(notes) == 1


def test_a_label_is_no_name_of_another_method(tmp_path):
    make_run(tmp_path / "x", "taac lr=0.1", extra_gin=LR.format(7))
    found, _ = labels(tmp_path, [LR.format(0.1), LR.format(0.2)])
    assert sorted(found) == ["taac lr=0.1", "taac settings 1", "taac settings 2"]


# --- Where they are shown -------------------------------------------------------------------------


@pytest.fixture
def sweep(tmp_path):
    """Two learning rates with two seeds each, which end at 1000 and at 2000."""
    for i, rate in enumerate((0.1, 0.2)):
        for seed in range(2):
            returns = [(i + 1) * step + seed for step in range(100, 1001, 100)]
            make_run(tmp_path / f"{rate}" / f"{seed}", "taac", seed=seed, returns=returns, extra_gin=LR.format(rate))
    return tmp_path


@pytest.mark.parametrize("allow_mixed", [False, True])
def test_a_report_never_averages_settings(sweep, allow_mixed):
    content = make_report(sweep, Options(last=1, allow_mixed=allow_mixed))
    (task,) = content["tasks"]
    assert content["methods"] == ["taac lr=0.1", "taac lr=0.2"]
    assert [(m["method"], m["runs"], m["final"]["mean"]["estimate"]) for m in task["methods"]] == [
        ("taac lr=0.1", 2, 1000.5), ("taac lr=0.2", 2, 2000.5),
    ]  # fmt: skip
    assert content["warnings"][0].startswith("runs of taac have different settings, told apart as taac lr=0.1, taac lr=0.2")
    assert {c["method"] for curve in content["curves"] for c in curve["methods"]} == set(content["methods"])


def test_a_plot_never_averages_settings(sweep):
    found = tag_curves.make_curves([sweep], tag_curves.Options(("evaluation/return",)))
    assert [(c.method, c.runs, c.curve.estimate[-1]) for c in found.curves] == [
        ("taac lr=0.1", 2, 1000.5), ("taac lr=0.2", 2, 2000.5),
    ]  # fmt: skip
    assert found.notes[0].startswith("runs of taac have different settings")


def test_reports_and_plots_show_what_was_asked_for(tmp_path):
    for seed in range(2):
        make_run(tmp_path / str(seed), "taac", seed=seed, extra_gin=LR.format(0.1))
    content = make_report(tmp_path, Options(group_by=("lr",)))
    assert content["methods"] == ["taac lr=0.1"] and content["options"]["group_by"] == ["lr"]
    found = tag_curves.make_curves([tmp_path], tag_curves.Options(group_by=("lr",)))
    assert {c.method for c in found.curves} == {"taac lr=0.1"}


def test_planned_runs_are_found_under_their_labels(sweep):
    runs = [
        {"task": "Hopper-v5", "method": "taac", "seed": seed, "folder": f"moved/away/{seed}", "status": "finished"}
        for seed in range(3)
    ]
    (sweep / "compare.json").write_text(json.dumps({"runs": runs}))
    warnings = make_report(sweep, Options())["warnings"]
    assert [w for w in warnings if "planned but missing" in w] == ["run moved/away/2 (taac) is planned but missing: finished"]
