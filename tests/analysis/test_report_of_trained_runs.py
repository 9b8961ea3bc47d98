"""A report of runs that were really trained, from `taac compare` to the page."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from tests import forked
from tests.campaigns.launched import POINT, compared


@pytest.mark.slow
def test_a_report_of_trained_runs_has_the_numbers_of_their_evaluations(tmp_path):
    short = ("num_env_steps = 200", "initial_collect_steps = 90", "evaluation_interval = 50", "updates_per_iteration = 1",
             "checkpoint_interval = 1000", "Intervals.summary_interval = 50")  # fmt: skip
    params = [word for param in short for word in ("--gin_param", param)]
    code, out, err = compared(tmp_path, *params, methods="sac,taac", tasks=POINT, seeds=2)
    assert code == 0 and "4 of 4 runs finished" in out, err
    result = forked.run(["report", "--root_dir", tmp_path], cwd=tmp_path)
    assert result.returncode == 0 and f"{tmp_path}/report.html" in result.stdout.splitlines(), result.stderr
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["methods"] == ["sac", "taac"] and len(content["runs"]) == 4
    for run in content["runs"]:
        with open(tmp_path / run["folder"] / "evaluations.csv") as file:
            rows = list(csv.DictReader(file))
        assert [int(row["env_steps"]) for row in rows] == [0, 50, 100, 150, 200]
        assert run["final"] == pytest.approx(np.mean([float(row["return_mean"]) for row in rows[-3:]]))
    (task,) = content["tasks"]
    assert task["step"] == 200
    told = [warning.split(";")[0] for warning in content["warnings"]]
    assert told == [f"{m} on {POINT}: 2 seed(s), fewer than 5" for m in ("sac", "taac")]
    exploring = [of["repetition_exploring"]["fraction_repeated"] for of in task["methods"]]
    assert all(found["runs"] == 2 and found["mean"] is not None for found in exploring)
