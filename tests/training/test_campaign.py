"""Many runs: what is planned, what is done, and that being stopped changes nothing."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from taac.errors import TaacError
from taac.training import campaign, config

SMALL = [
    "num_env_steps = 400", "initial_collect_steps = 100", "hidden_layers = (16,)", "batch_size = 16",
    "replay_length = 500", "evaluation_interval = 100", "evaluation_episodes = 1", "checkpoint_interval = 100",
]  # fmt: skip
POINT, BREAKS = "tests.toy_tasks:taac-test/PointMass-v0", "tests.toy_tasks:taac-test/BreaksDown-v0"


def compare(root, *more, methods="sac,taac", tasks=POINT, seeds=1):
    command = [sys.executable, "-m", "taac", "compare", "--root_dir", str(root), "--methods", methods, "--tasks", tasks]
    command += ["--seeds", str(seeds), "--jobs", "2", *more]
    for param in SMALL:
        command += ["--gin_param", param]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def alive(word):
    """Whether a process is at work whose command has the word in it."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and word in " ".join(process.cmdline()):
                return True
    return False


def evaluations(root):
    """Every run's evaluations by folder, without the seconds that they took."""
    found = {}
    for path in sorted(Path(root).rglob("evaluations.csv")):
        with open(path) as file:
            found[str(path.parent.relative_to(root))] = [
                {k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)
            ]
    return found


@pytest.mark.parametrize(
    "env_name, expected",
    [
        ("HalfCheetah-v5", "locomotion"), ("Hopper-v4", "locomotion"), ("BipedalWalkerHardcore-v3", "terrain"),
        ("FetchPush-v4", "manipulation"), ("CarRacing-v3", "driving"), ("racetrack-v0", "driving"),
        ("MountainCarContinuous-v0", "simple_control"), ("Pendulum-v1", "simple_control"),
        ("Humanoid-v5", "simple_control"), ("my_module:Ant-v5", "locomotion"), ("AntMaze_UMaze-v5", "simple_control"),
    ],
)  # fmt: skip
def test_the_settings_of_an_environment(env_name, expected):
    assert campaign.category(env_name) == expected


def test_every_category_is_a_task_file():
    files = {path.stem for path in Path("gin/tasks").glob("*.gin")}
    assert {*campaign.CATEGORIES, "simple_control"} == files
    for name in files:
        text = Path(f"gin/tasks/{name}.gin").read_text()
        default = text.split("create_environment.env_name = '")[1].split("'")[0]
        assert campaign.category(default) == name


def test_a_plan_goes_seed_by_seed_and_every_command_is_a_configuration():
    runs = campaign.plan("R", ["sac", "taac"], ["Pendulum-v1", "Hopper-v5"], range(3, 5), ["gamma = 0.9"])
    assert [(r.seed, r.task, r.method) for r in runs[:5]] == [
        (3, "Pendulum-v1", "sac"), (3, "Pendulum-v1", "taac"), (3, "Hopper-v5", "sac"), (3, "Hopper-v5", "taac"),
        (4, "Pendulum-v1", "sac"),
    ]  # fmt: skip
    assert len({run.folder for run in runs}) == len(runs) == 8
    words = list(runs[3].command)
    files = [words[i + 1] for i, word in enumerate(words) if word == "--gin_file"]
    params = [words[i + 1] for i, word in enumerate(words) if word == "--gin_param"]
    loaded = config.load(files, params)
    bound = {(b.selector.rsplit(".", 1)[-1], b.name): b.value for b in loaded.bindings.values()}
    assert bound["create_environment", "env_name"] == "Hopper-v5"
    assert bound["create_experiment", "seed"] == 3
    assert files == ["gin/tasks/locomotion.gin", "gin/methods/taac.gin"] and "gamma = 0.9" in params


def test_no_jobs_are_refused():
    with pytest.raises(TaacError, match="--jobs"):
        campaign.Campaign([], 0)


def test_a_campaign_that_is_killed_and_called_again_ends_as_one_that_was_not(tmp_path):
    code, out, err = finish(compare(tmp_path / "whole"))
    assert code == 0, err
    assert "2 of 2 runs finished" in out
    process = compare(tmp_path / "killed")
    deadline = time.monotonic() + 120
    while not any(tmp_path.glob("killed/**/checkpoint.pt")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    while alive(str(tmp_path / "killed")):
        assert time.monotonic() < deadline, "its runs outlive a killed campaign"
        time.sleep(0.05)
    if sys.platform == "linux":  # elsewhere they go on to their end
        states = [json.loads(path.read_text())["status"] for path in tmp_path.glob("killed/**/run.json")]
        assert states and set(states) == {"running"}, "its runs outlive a killed campaign"
    assert finish(compare(tmp_path / "killed"))[0] == 0
    assert evaluations(tmp_path / "killed") == evaluations(tmp_path / "whole")
    assert len(evaluations(tmp_path / "whole")) == 2
    for path in tmp_path.glob("whole/**/run.json"):  # what a report groups by
        assert json.loads(path.read_text())["method"] == path.parent.parent.name
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("whole/**/*")}
    assert finish(compare(tmp_path / "whole"))[0] == 0
    assert {p: p.stat().st_mtime_ns for p in tmp_path.glob("whole/**/*")} == before, "what is finished is left alone"


def test_a_run_that_fails_is_named_and_stops_no_other(tmp_path):
    code, out, err = finish(compare(tmp_path, methods="sac", tasks=f"{BREAKS},{POINT}"))
    assert code == 1
    assert "failed: tests.toy_tasks:taac-test/BreaksDown-v0/sac/seed 0" in out and "not finite" in out
    assert "1 of 2 runs finished" in out and "1 of 2 runs failed" in err
    assert len(next(iter(evaluations(tmp_path / "tests.toy_tasks_taac-test_PointMass-v0").values()))) == 4


@pytest.mark.parametrize(
    "more, words",
    [
        ({"methods": "sac,tac"}, ["gin/methods/tac.gin", "did you mean 'gin/methods/taac.gin'"]),
        ({"tasks": "Pendulm-v1"}, ["Pendulm", "Pendulum"]),
        ({"methods": ""}, ["--methods is missing"]),
    ],
)
def test_mistakes_are_found_before_anything_is_run(tmp_path, more, words):
    code, _, err = finish(compare(tmp_path / "R", **more))
    assert code == 1 and all(word in err for word in words), err
    assert not (tmp_path / "R").exists()


def test_a_dry_run_prints_the_commands_and_runs_nothing(tmp_path):
    code, out, _ = finish(compare(tmp_path / "R", "--dry_run", seeds=2))
    lines = out.strip().splitlines()
    assert code == 0 and len(lines) == 4 and all(" -m taac train --root_dir " in line for line in lines)
    assert not (tmp_path / "R").exists()
