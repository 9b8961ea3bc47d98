"""Comparisons of tiny runs, called as a user calls them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

SMALL = [
    "num_env_steps = 400", "initial_collect_steps = 100", "hidden_layers = (16,)", "batch_size = 16",
    "replay_length = 500", "evaluation_interval = 100", "evaluation_episodes = 1", "checkpoint_interval = 100",
]  # fmt: skip
POINT, BREAKS = "tests.toy_tasks:taac-test/PointMass-v0", "tests.toy_tasks:taac-test/BreaksDown-v0"
SLOW = "tests.toy_tasks:taac-test/Slow-v0"


def compare(root, *more, methods="sac,taac", tasks=POINT, seeds=1, **popen):
    """Starts `taac compare` of tiny runs; what `more` binds wins over what makes them tiny."""
    command = [sys.executable, "-m", "taac", "compare", "--root_dir", str(root)]
    for name, value in (("methods", methods), ("tasks", tasks), ("seeds", seeds)):
        command += [] if value is None else [f"--{name}", str(value)]
    for param in SMALL:
        command += ["--gin_param", param]
    command += more
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **{**pipes, **popen})


def finish(process, seconds=300):
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def wait_for(condition, process=None, seconds=120):
    """Waits until a condition holds; fails when it does not in time, or when the process is over before."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)
    return found


def evaluations(root):
    """Every run's evaluations by folder, without the seconds that they took."""
    found = {}
    for path in sorted(Path(root).rglob("evaluations.csv")):
        with open(path) as file:
            found[str(path.parent.relative_to(root))] = [
                {k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)
            ]
    return found


def record(root):
    """What compare.json tells of each run."""
    runs = json.loads((Path(root) / "compare.json").read_text())["runs"]
    return {(run["task"], run["method"], run["seed"]): run for run in runs}


def processes(word):
    """Processes at work whose command has the word in it."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and word in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.pid != os.getpid()]
