"""Comparisons of tiny runs, called as a user calls them."""

from __future__ import annotations

import csv
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

from tests import forked

SMALL = [
    "num_env_steps = 400", "initial_collect_steps = 100", "hidden_layers = (16,)", "batch_size = 16",
    "replay_length = 500", "evaluation_interval = 100", "evaluation_episodes = 1", "checkpoint_interval = 100",
]  # fmt: skip
POINT, BREAKS = "tests.toy_tasks:taac-test/PointMass-v0", "tests.toy_tasks:taac-test/BreaksDown-v0"
# Flags of runs that are stopped before their end, and that would be compiled for their length.
LONG = ("--gin_param", "num_env_steps = 1000000", "--gin_param", "create_agent.compile = False")
SLOW = "tests.toy_tasks:taac-test/Slow-v0"


def compare(root, *more, **given):
    """Starts `taac compare` of tiny runs in a Python of its own; `given`: of `words`, and of Popen."""
    asked = {name: given.pop(name) for name in ("methods", "tasks", "seeds") if name in given}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "taac", *words(root, *more, **asked)], **{**pipes, **given})


def compared(root, *more, **asked):
    """Exit code and output of `taac compare` of tiny runs, in a fork; its runs have Pythons of their own."""
    done = forked.run(words(root, *more, **asked), cwd=Path())
    return done.returncode, done.stdout, done.stderr


def trained(root, *more, **asked):
    """As `compared`, but the runs are trained in forks too, in the folders that the comparison gives them."""
    code, planned, err = compared(root, *more, "--dry_run", **asked)
    assert code == 0, err
    for command in planned.splitlines():
        _, m, taac, *run = shlex.split(command)
        assert (m, taac, run[0]) == ("-m", "taac", "train"), command
        forked.run(run, cwd=Path())
    return compared(root, *more, **asked)


def words(root, *more, methods="sac,taac", tasks=POINT, seeds=1):
    """Those of a comparison of tiny runs; what `more` binds wins over what makes them tiny."""
    found = ["compare", "--root_dir", str(root)]
    for name, value in (("methods", methods), ("tasks", tasks), ("seeds", seeds)):
        found += [] if value is None else [f"--{name}", str(value)]
    for param in SMALL:
        found += ["--gin_param", param]
    return [*found, *more]


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
