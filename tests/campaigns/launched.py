"""Comparisons of tiny runs, called as a user calls them."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import gin
from absl import flags

from taac.campaigns.launchers import local
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
    """Starts `taac compare` of tiny runs in a fork, whose runs have Pythons of their own; `given`: of `words`, and `env`."""
    asked = {name: given.pop(name) for name in ("methods", "tasks", "seeds") if name in given}
    return forked.Process(words(root, *more, **asked), cwd=Path(), **given)


def compared(root, *more, **asked):
    """Exit code and output of `taac compare` of tiny runs, in a fork, of which its local runs are forks."""
    code = "from tests.campaigns import launched; launched.with_runs_in_forks()"
    done = forked.run(words(root, *more, **asked), cwd=Path(), code=code, timeout=900)
    return done.returncode, done.stdout, done.stderr


def with_runs_in_forks():
    """Calls `taac` with this process's words; the runs that it starts on this machine need not import everything again."""
    local.subprocess = SimpleNamespace(Popen=_Fork, STDOUT=None)
    runpy.run_module("taac", run_name="__main__", alter_sys=True)


class _Fork(multiprocessing.get_context("fork").Process):
    """Of `subprocess.Popen`, what is needed for a run that is not stopped."""

    def __init__(self, command, *, stdout, env, preexec_fn, **_):
        assert command[1:4] == ("-m", "taac", "train"), command
        super().__init__(target=_train, args=(command[3:], stdout.fileno(), env, preexec_fn))
        self.start()

    def poll(self):
        return self.exitcode


def _train(words, out, env, preexec_fn):
    os.setsid()
    preexec_fn()
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[1:] = words
    for name in [*flags.FLAGS]:
        if flags.FLAGS.find_module_defining_flag(name, "").startswith("taac."):
            delattr(flags.FLAGS, name)  # the comparison's
    with gin.unlock_config():
        gin.clear_config()
    runpy.run_module("taac", run_name="__main__", alter_sys=True)


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
