"""Many runs: methods x tasks x seeds, each a `taac train` of its own, some at a time; what was interrupted goes on."""

from __future__ import annotations

import csv
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from taac.errors import TaacError

# Whose published settings an environment has: patterns of ids. Anything else gets those of simple control.
CATEGORIES: dict[str, str] = {
    "locomotion": r"(Hopper|Ant|Walker2d|HalfCheetah)-v\d+",
    "terrain": r"BipedalWalker(Hardcore)?-v\d+",
    "manipulation": r"Fetch(Reach|Push|Slide|PickAndPlace)-v\d+",
    "driving": r"CarRacing-v\d+|racetrack-v\d+",
}


class Run(NamedTuple):
    """One run of a campaign."""

    task: str  # environment id
    method: str  # a file in gin/methods
    seed: int
    folder: Path
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.task}/{self.method}/seed {self.seed}"

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def finished(self) -> bool:
        try:
            return json.loads((self.folder / "run.json").read_text(encoding="utf-8")).get("status") == "finished"
        except (OSError, json.JSONDecodeError, AttributeError):
            return False

    def progress(self) -> float:
        """The fraction of its environment steps that had been taken at its last evaluation."""
        if self.finished():
            return 1.0
        try:
            total = re.search(r"^num_env_steps = (\d+)", (self.folder / "config.gin").read_text(encoding="utf-8"), re.M)
            with open(self.folder / "evaluations.csv", newline="", encoding="utf-8") as file:
                steps = [row["env_steps"] for row in csv.DictReader(file)]
        except OSError:
            return 0.0
        return min(1.0, int(steps[-1]) / int(total[1])) if steps and total else 0.0

    def error(self) -> str:
        """What it printed when it was refused, in its first line; else the last line of what it printed."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").strip().splitlines()
        except OSError:
            return "it printed nothing"
        refused = [line for line in lines if line.startswith("taac train: ")]
        return (refused or lines or ["it printed nothing"])[-1].strip()


def category(env_name: str) -> str:
    """The task file whose settings an environment has."""
    name = env_name.rpartition(":")[2]
    return next((c for c, pattern in CATEGORIES.items() if re.fullmatch(pattern, name)), "simple_control")


def plan(
    root_dir: str | Path,
    methods: Sequence[str],
    tasks: Sequence[str],
    seeds: Sequence[int],
    gin_params: Sequence[str] = (),
) -> list[Run]:
    """The runs of a campaign, seed by seed, so that what is there at any moment can be compared.

    Each goes to `root_dir/<task>/<method>/seed_<n>`; what it prints, to `seed_<n>.log` beside that.
    """
    runs = []
    for seed in seeds:
        for task in tasks:
            for method in methods:
                folder = Path(root_dir) / re.sub(r"[^\w.-]+", "_", task) / method / f"seed_{seed}"
                params = (*gin_params, f"create_environment.env_name = '{task}'", f"create_experiment.seed = {seed}")
                command = [sys.executable, "-m", "taac", "train", "--root_dir", str(folder)]
                command += ["--gin_file", f"gin/tasks/{category(task)}.gin", "--gin_file", f"gin/methods/{method}.gin"]
                for param in params:
                    command += ["--gin_param", param]
                runs.append(Run(task, method, seed, folder, tuple(command)))
    return runs


class State(NamedTuple):
    """Where a campaign stands."""

    finished: list[Run]
    running: list[Run]
    waiting: list[Run]
    failed: dict[Run, str]  # with what went wrong
    seconds_left: float | None  # None while nothing can be said of it

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", about {readable_seconds(self.seconds_left)} left"
        return (
            f"{len(self.finished)} finished, {len(self.running)} running, {len(self.waiting)} waiting, "
            f"{len(self.failed)} failed{left}"
        )


class Campaign:
    """Runs `taac train` for each run that is not finished, `jobs` at a time.

    A run that fails does not stop the others. When this is stopped it stops its runs; they go on from their last checkpoints
    when the campaign is called again.
    """

    def __init__(self, runs: Sequence[Run], jobs: int):
        if jobs < 1:
            raise TaacError(f"--jobs must be 1 or more, got {jobs}")
        self.jobs = jobs
        self._all = list(runs)
        self._finished = [run for run in runs if run.finished()]
        self._waiting = [run for run in runs if not run.finished()]
        self._running: dict[Run, subprocess.Popen[bytes]] = {}
        self._failed: dict[Run, str] = {}
        self._start, self._done_then = time.monotonic(), self._done()

    def run(self, tell: Callable[[State], None], interval: float = 0.5) -> State:
        """Works until nothing is left to do; calls `tell` every `interval` seconds."""
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self.jobs:
                    self._begin(self._waiting.pop(0))
                self._collect()
                tell(self.state())
                if self._running:
                    time.sleep(interval)
        finally:
            self._stop()
        return self.state()

    def state(self) -> State:
        done, elapsed = self._done(), time.monotonic() - self._start
        rate = (done - self._done_then) / elapsed if elapsed > 0 else 0.0
        left = (len(self._all) - len(self._failed) - done) / rate if rate > 0 else None
        return State(list(self._finished), list(self._running), list(self._waiting), dict(self._failed), left)

    def _done(self) -> float:
        return len(self._finished) + sum(run.progress() for run in (*self._waiting, *self._running))

    def _begin(self, run: Run) -> None:
        run.log.parent.mkdir(parents=True, exist_ok=True)
        # One thread a run: more would stand in each other's way.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with open(run.log, "ab") as log:
            # A session of its own: Ctrl-C reaches the campaign alone, which then stops its runs in order.
            self._running[run] = subprocess.Popen(
                run.command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
                preexec_fn=_die_with_parent,
            )  # fmt: skip

    def _collect(self) -> None:
        for run, process in list(self._running.items()):
            if process.poll() is None:
                continue
            del self._running[run]
            if process.returncode == 0 and run.finished():
                self._finished.append(run)
            else:
                self._failed[run] = f"exit code {process.returncode}: {run.error()} (see {run.log})"

    def _stop(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()


def _die_with_parent() -> None:
    """Asks Linux to end this process when its parent dies, so that a campaign that was killed leaves nothing running."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def readable_seconds(seconds: float) -> str:
    """`3700` as `1 h 2 min`."""
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def split(text: str) -> Iterator[str]:
    """`"sac, taac"` as its words."""
    return (word.strip() for word in text.split(",") if word.strip())
