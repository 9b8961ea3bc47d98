"""Time left, by hand."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from taac.campaigns import time_left
from taac.campaigns.run import Run

NOW = 1_000_000_000.0  # seconds since the epoch


def run(tmp_path, name, rows, total=1000, task="T", age=0.0):
    folder = tmp_path / name
    if rows is not None:
        folder.mkdir()
        (folder / "config.gin").write_text(f"num_env_steps = {total}\nIntervals.num_env_steps = %num_env_steps\n")
        text = "env_steps,updates,seconds\n" + "".join(f"{s},0,{t}\n" for s, t in rows)
        (folder / "evaluations.csv").write_text(text)
        os.utime(folder / "evaluations.csv", (NOW - age, NOW - age))
    return Run(task, "m", 0, folder, ())


def test_the_rest_of_a_run_takes_what_its_last_interval_did(tmp_path):
    slow = run(tmp_path, "a", [(100, 1.0), (300, 21.0)])  # 0.1 s a step, 700 to go; the first 100 were quick
    pace = time_left.read_pace(slow.folder, 5.0)
    assert pace == pytest.approx((21.0, 70.0, 5.0))
    assert time_left.read_pace(run(tmp_path, "b", [(250, 5.0)]).folder, 0.0).left == pytest.approx(15.0)
    assert time_left.read_pace(run(tmp_path, "c", []).folder, 0.0) is None
    longer = slow._replace(steps=2000)  # to be extended
    assert time_left.TimeLeft().estimate([], [], [longer], 1) == pytest.approx(170.0)
    bound = run(tmp_path, "bound", [(100, 1.0), (300, 21.0)])
    (bound.folder / "config.gin").write_text("num_env_steps = 5\nIntervals.num_env_steps = 1000\n")
    assert time_left.read_pace(bound.folder, 5.0) == pace, "the length without the macro"
    broken = run(tmp_path, "d", [(100, 1.0)])
    (broken.folder / "evaluations.csv").write_text("env_steps,updates,seconds\n100,0\n")
    assert time_left.read_pace(broken.folder, 0.0) is None


def test_random_steps_do_not_set_the_pace(tmp_path):
    """Of 1,000 steps, 200 are random and take no time; the others take 0.1 s each."""
    for rows, left in (
        ([(100, 0.1)], None),  # nothing is known yet
        ([(100, 0.1), (200, 0.2)], None),
        ([(100, 0.1), (300, 10.1)], 70.0),
        ([(300, 10.0)], 70.0),
        ([(300, 10.0), (400, 20.0)], 60.0),
    ):
        folder = run(tmp_path, f"{rows}", rows).folder
        with open(folder / "config.gin", "a") as file:
            file.write("UpdateRatio.initial_collect_steps = 200\n")
        pace = time_left.read_pace(folder, 0.0)
        assert (pace and pace.left) == (left and pytest.approx(left))
        with open(folder / "config.gin", "a") as file:
            file.write("create_experiment.offline = True\n")
        assert time_left.read_pace(folder, 0.0) is not None


def test_time_left(tmp_path, monkeypatch):
    monkeypatch.setattr(time_left, "time", SimpleNamespace(time=lambda: NOW))
    estimate = time_left.TimeLeft().estimate
    nothing = run(tmp_path, "none", None)
    assert estimate([], [nothing], [], 1) is None
    done = run(tmp_path, "done", [(500, 10.0), (1000, 30.0)])  # took 30 s
    other = run(tmp_path, "other", [(1000, 90.0)], task="U")  # took 90 s
    assert estimate([done], [], [], 2) is None, "nothing is left"
    assert estimate([done, other], [nothing], [], 1) == pytest.approx(30.0), "as others of its kind"
    stranger = run(tmp_path, "stranger", None, task="V")
    assert estimate([done, other], [], [stranger], 1) == pytest.approx(60.0), "as the mean of all"
    # 500 steps to go at 0.04 s, told 8 s ago
    half = run(tmp_path, "half", [(250, 5.0), (500, 15.0)], age=8.0)
    assert estimate([done], [half], [], 1) == pytest.approx(12.0)
    # It waits: what it did is not lost, and no time passes for it.
    assert estimate([done], [], [half], 1) == pytest.approx(20.0)
    # 12 s of one, and of one that waits 32.5, the mean of 30 and 35 that runs of its kind take: one after the other, or at once
    assert estimate([done, other], [half], [nothing], 1) == pytest.approx(44.5)
    assert estimate([done, other], [half], [nothing], 2) == pytest.approx(32.5)
    late = run(tmp_path, "late", [(250, 5.0), (500, 15.0)], age=1000.0)
    assert estimate([done], [late], [], 1) == 0.0
