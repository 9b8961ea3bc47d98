"""A report of runs that were really trained, from `taac compare` to the page."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest

from tests import forked
from tests.campaigns.launched import POINT, compared

TASKS = (POINT, "tests.toy_tasks:taac-test/Near-v0")
METHODS, SEEDS = ("sac", "sac_ez", "taac"), 3
ANCHORS = {TASKS[0]: (-90.0, 0.0), TASKS[1]: (-50.0, -5.0)}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """The runs, and what `taac report` printed of them."""
    root = tmp_path_factory.mktemp("campaign")
    short = ("num_env_steps = 200", "initial_collect_steps = 160", "evaluation_interval = 50", "updates_per_iteration = 1",
             "checkpoint_interval = 1000", "Intervals.summary_interval = 50")  # fmt: skip
    params = [word for param in short for word in ("--gin_param", param)]
    code, out, err = compared(root, *params, methods=",".join(METHODS), tasks=",".join(TASKS), seeds=SEEDS)
    assert code == 0 and "18 of 18 runs finished" in out, err
    scales = {task: {"y0": y0, "y1": y1} for task, (y0, y1) in ANCHORS.items()}
    (root / "anchors.json").write_text(json.dumps({"tasks": scales}))
    result = forked.run(["report", "--root_dir", root, "--anchors", root / "anchors.json"], cwd=root)
    assert result.returncode == 0, result.stderr
    return root, result.stdout


def finals(root, task, method):
    """Of each seed, recomputed from its evaluations.csv."""
    found = []
    for seed in range(SEEDS):
        folder = root / re.sub(r"[^\w.-]+", "_", task) / method / f"seed_{seed}"
        with open(folder / "evaluations.csv") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["env_steps"]) for row in rows] == [0, 50, 100, 150, 200]
        found.append(np.mean([float(row["return_mean"]) for row in rows[-3:]]))
    return np.array(found)


def test_final_returns_are_those_of_the_evaluations(campaign):
    root, _ = campaign
    content = json.loads((root / "report.json").read_text())
    assert content["methods"] == list(METHODS) and len(content["runs"]) == 18
    assert [task["task"] for task in content["tasks"]] == sorted(TASKS)
    for task in content["tasks"]:
        assert task["step"] == 200 and [of["method"] for of in task["methods"]] == list(METHODS)
        for of in task["methods"]:
            expected = finals(root, task["task"], of["method"])
            assert of["final"]["mean"]["estimate"] == pytest.approx(expected.mean()) and of["seeds"] == [0, 1, 2]
    for run in content["runs"]:
        assert run["final"] == pytest.approx(finals(root, run["task"], run["method"])[run["seed"]])
        assert run["left_out"] is None


def test_scores_over_tasks_are_those_of_the_evaluations(campaign):
    root, _ = campaign
    block = json.loads((root / "report.json").read_text())["over_tasks"]
    assert block["why_none"] is None and block["tasks"] == sorted(TASKS)
    for of in block["methods"]:
        scores = [(finals(root, task, of["method"]) - y0) / (y1 - y0) for task, (y0, y1) in ANCHORS.items()]
        assert of["final"]["mean"]["estimate"] == pytest.approx(np.mean(scores))
    assert [of["method"] for of in block["methods"]] == list(METHODS)


def test_the_page_is_there_and_nothing_but_few_seeds_is_warned_of(campaign):
    root, out = campaign
    assert f"{root}/report.html" in out.splitlines()
    page = (root / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in (*METHODS, *TASKS))
    content = json.loads((root / "report.json").read_text())
    expected = [f"{m} on {t}: 3 seed(s), fewer than 5" for t in sorted(TASKS) for m in METHODS]
    assert [warning.split(";")[0] for warning in content["warnings"]] == expected
    exploring = [of["repetition_exploring"]["fraction_repeated"] for t in content["tasks"] for of in t["methods"]]
    assert all(found["runs"] == 3 and found["mean"] is not None for found in exploring)
