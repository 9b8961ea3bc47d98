"""Curves of a report by hand: every axis, shared x, nothing beyond what all runs of a method cover."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from taac.analysis.readers.run_records import find
from taac.analysis.report.figures import MOST_POINTS, draw, points, shared_points
from taac.analysis.report.page import make_report
from taac.analysis.report.scores import Options
from taac.analysis.statistics.intervals import estimate_interval
from tests.analysis.campaigns import make_run

STEPS = (100, 200, 300, 400)


def write(folder, **columns):
    """Puts numbers into columns of a run's evaluations."""
    with open(folder / "evaluations.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            row[name] = value
    with open(folder / "evaluations.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def two(tmp_path):
    """Two methods, two seeds each. Of taac, no update before step 300; and seeds that are 5 times as slow, and repeat."""
    for seed in range(2):
        make_run(tmp_path / f"sac{seed}", "sac", "Mine-v0", seed, [0, 10, 20, 30 + seed], steps=STEPS, budget=400)
        folder = make_run(
            tmp_path / f"taac{seed}", "taac", "Mine-v0", seed, [1, 3, 5 + seed, 9], steps=STEPS, budget=400
        )
        write(
            folder,
            updates=[0, 0, 100, 200],
            seconds=[10 + seed, 20 + seed, 30 + seed, 40 + 2 * seed],
            training_decisions=[50, 100, 150, 200],
            fraction_repeated=[0, 0.25, 0.5, 0.75],
        )
    return tmp_path


def curve_of(content, axis, method, measure="return_mean"):
    (row,) = [c for c in content["curves"] if c["axis"] == axis and c["measure"] == measure]
    (of,) = [m for m in row["methods"] if m["method"] == method]
    return {x: (e, lo, hi) for x, e, lo, hi in zip(row["x"], of["estimate"], of["low"], of["high"], strict=True)}


def test_every_task_measure_and_axis_has_a_row(two):
    content = make_report(two, Options())
    assert [(c["task"], c["measure"], c["axis"]) for c in content["curves"]] == [
        ("Mine-v0", m, a)
        for m in ("return_mean", "fraction_repeated")
        for a in ("env_steps", "training_decisions", "updates", "seconds")
    ]
    assert all([m["runs"] for m in c["methods"]] == [2, 2] for c in content["curves"])


def test_against_steps_a_curve_is_the_mean_of_evaluations_with_its_interval(two):
    found = curve_of(make_report(two, Options()), "env_steps", "sac")
    assert list(found) == [100, 200, 300, 400]
    assert found[100] == (0, None, None)  # the seeds are equal
    half = 12.7062047 * 0.5  # t of 1 degree of freedom; sd / sqrt(2) of 30 and 31
    assert found[400] == pytest.approx((30.5, 30.5 - half, 30.5 + half))


def test_against_updates_evaluations_before_the_first_are_one(two):
    found = curve_of(make_report(two, Options()), "updates", "taac")
    assert {x: e for x, (e, _, _) in found.items() if e is not None} == {0: 2, 100: 5.5, 200: 9}
    sac = curve_of(make_report(two, Options()), "updates", "sac")  # updates are the steps
    assert {x: e for x, (e, _, _) in sac.items()} == {0: None, 100: 0, 200: 10, 300: 20, 400: 30.5}


def test_against_decisions(two):
    found = curve_of(make_report(two, Options()), "training_decisions", "taac")
    assert {x: e for x, (e, _, _) in found.items() if e is not None} == {50: 1, 100: 3, 150: 5.5, 200: 9}
    found = curve_of(make_report(two, Options()), "training_decisions", "taac", "fraction_repeated")
    assert {x: e for x, (e, _, _) in found.items() if e is not None} == {50: 0, 100: 0.25, 150: 0.5, 200: 0.75}


def test_against_wall_time_seeds_are_interpolated_where_both_have_been(two):
    """Seed 0 is evaluated at 10, 20, 30, 40 and seed 1 at 11, 21, 31, 42 seconds: known from 11 to 40."""
    found = curve_of(make_report(two, Options()), "seconds", "taac")
    known = {x: e for x, (e, _, _) in found.items() if e is not None}
    assert min(known) == 11 and max(known) == 40
    # Seed 0 at 11: 1 + 2/10. Seed 1 at 40: 6 + 3 * 9/11.
    assert known[11] == pytest.approx((1.2 + 1) / 2) and known[40] == pytest.approx((9 + 6 + 27 / 11) / 2)


def test_a_missing_column_removes_a_method_from_that_axis_only(two):
    for seed in range(2):
        write(two / f"taac{seed}", training_decisions=[""] * 4)
    rows = {(c["measure"], c["axis"]): c for c in make_report(two, Options())["curves"]}
    assert [m["method"] for m in rows["return_mean", "training_decisions"]["methods"]] == ["sac"]
    assert [m["method"] for m in rows["return_mean", "updates"]["methods"]] == ["sac", "taac"]


def test_points_are_what_is_known(tmp_path):
    write(make_run(tmp_path / "a", steps=STEPS), updates=["", 5, 5, 7], fraction_repeated=[0.1, 0.2, 0.4, ""])
    (record,) = find(tmp_path)
    x, values = points(record, "updates", "fraction_repeated")
    assert x.tolist() == [5] and values.tolist() == pytest.approx([0.3])
    write(tmp_path / "a", updates=[""] * 4)
    assert points(find(tmp_path)[0], "updates", "return_mean") is None


def test_shared_points_are_those_of_any_run_within_the_range_of_its_method():
    def run(*x):
        return np.array(x, dtype=float), np.zeros(len(x))

    assert shared_points([[run(0, 10, 20), run(5, 15)], [run(12, 30)]]).tolist() == [5, 10, 12, 15, 20, 30]
    assert shared_points([[run(0, 1), run(2, 3)]]).size == 0  # never at the same time
    assert shared_points([[], [run(4)]]).tolist() == [4]
    assert shared_points([]).size == 0


def test_many_unequal_points_become_even_ones_that_keep_the_ends():
    rng = np.random.default_rng(0)
    runs = [(np.sort(rng.uniform(0, 100, 30)), np.zeros(30)) for _ in range(4)]
    x = shared_points([runs[:2], runs[2:]])
    ends = [f(r[0][i] for r in of) for of in (runs[:2], runs[2:]) for f, i in ((max, 0), (min, -1))]
    assert len(x) <= 34 and set(ends) <= set(x.tolist()) and (np.diff(x) > 0).all()
    assert x[0] == min(ends) and x[-1] == max(ends)
    counts = [(np.sort(rng.choice(10_000, 300, replace=False)).astype(float), np.zeros(300)) for _ in range(3)]
    x = shared_points([counts])
    assert len(x) <= MOST_POINTS + 2 and (x == np.rint(x)).all()


def test_single_runs_are_there_beside_their_mean_within_their_own_range(tmp_path):
    make_run(tmp_path / "a", "sac", "Mine-v0", 0, [0, 10.12345, 20, 30], steps=STEPS, budget=400)
    make_run(tmp_path / "b", "sac", "Mine-v0", 1, [4, 8, 50, 70], steps=(100, 200, 300, 500), budget=400)
    (row,) = [c for c in make_report(tmp_path, Options())["curves"] if (c["axis"], c["measure"]) == ("env_steps", "return_mean")]
    (of,) = row["methods"]
    assert row["x"] == [100, 200, 300, 400]
    assert of["each"] == [[0, 10.12, 20, 30], [4, 8, 50, 60]]  # the second is interpolated at 400
    assert of["estimate"] == [2, pytest.approx(9.061725), 35, 45]


# --- The IQM over tasks against steps -------------------------------------------------------------


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


@pytest.mark.slow
def test_one_task_or_no_anchors_is_no_curve_and_a_picture_is_drawn_of_two(tmp_path):
    make_run(tmp_path / "alone", task="Ant-v5")
    assert make_report(tmp_path, Options())["over_tasks"]["curves"] is None
    campaign(tmp_path / "two")
    content = make_report(tmp_path / "two", Options(anchors=tmp_path / "two" / "anchors.json"))
    assert draw(content)["report_iqm.png"].startswith(b"\x89PNG")
    content["over_tasks"]["curves"] = None
    assert "report_iqm.png" not in draw(content)
