"""The interquartile mean over tasks against steps, by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from taac.analysis.report.content import make_report
from taac.analysis.report.figures import draw
from taac.analysis.report.scores import Options
from taac.analysis.statistics.intervals import estimate_interval
from tests.analysis.campaigns import make_run


def campaign(root, ends=(100, 100), evaluated=(0.25, 0.5, 1.0)):
    """Two tasks with anchors 0 and 100, four runs of a method on each; the score at share s is s times its level."""
    root.mkdir(exist_ok=True)
    (root / "anchors.json").write_text(json.dumps({"tasks": {t: {"y0": 0, "y1": 100} for t in ("a", "b")}}))
    for task, levels, end in (("a", (10, 20, 30, 40), ends[0]), ("b", (50, 60, 70, 80), ends[1])):
        for seed, level in enumerate(levels):
            steps = tuple(round(s * end) for s in evaluated)
            make_run(root / task / str(seed), "sac", task, seed, [s / end * level for s in steps], steps, budget=end)
    return make_report(root, Options(anchors=root / "anchors.json"))["over_tasks"]["curves"]


def test_the_iqm_at_each_step_is_that_of_all_runs_of_all_tasks(tmp_path):
    found = campaign(tmp_path)
    (of,) = found["methods"]
    assert found["x"] == [25, 50, 100] and found["x_label"] == "environment steps" and of["method"] == "sac"
    # Of the levels 10 ... 80 the middle four are 30 40 50 60: 45 of 100, at full steps.
    assert of["estimate"] == pytest.approx([0.1125, 0.225, 0.45])
    at_half = [np.array(levels) / 200 for levels in ((10, 20, 30, 40), (50, 60, 70, 80))]
    expected = estimate_interval(at_half, "iqm", resamples=500)
    assert [of[k][1] for k in ("estimate", "low", "high")] == pytest.approx(expected[:3])
    assert of["low"][1] < of["estimate"][1] < of["high"][1]


def test_tasks_of_unequal_length_are_drawn_at_equal_shares(tmp_path):
    found = campaign(tmp_path, ends=(100, 400))
    assert found["x"] == [0.25, 0.5, 1.0] and found["x_label"] == "share of the compared step"
    assert found["methods"][0]["estimate"] == pytest.approx([0.1125, 0.225, 0.45])


def test_nothing_is_drawn_before_all_runs_are_known_and_many_points_become_even_ones(tmp_path):
    campaign(tmp_path, evaluated=tuple((i + 1) / 100 for i in range(100)))
    make_run(tmp_path / "late", "sac", "a", 9, [50.0, 50.0], (70, 100), budget=100)
    options = Options(anchors=tmp_path / "anchors.json", allow_mixed=True)
    found = make_report(tmp_path, options)["over_tasks"]["curves"]
    assert len(found["x"]) == 41 and found["x"][-1] == 100
    estimate = found["methods"][0]["estimate"]
    known = [x for x, y in zip(found["x"], estimate) if y is not None]
    assert known == [x for x in found["x"] if x >= 70]


def test_one_task_or_no_anchors_is_no_curve_and_a_picture_is_drawn_of_two(tmp_path):
    make_run(tmp_path / "alone", task="Ant-v5")
    assert make_report(tmp_path, Options())["over_tasks"]["curves"] is None
    campaign(tmp_path / "two")
    content = make_report(tmp_path / "two", Options(anchors=tmp_path / "two" / "anchors.json"))
    assert draw(content)["report_iqm.png"].startswith(b"\x89PNG")
    content["over_tasks"]["curves"] = None
    assert "report_iqm.png" not in draw(content)
