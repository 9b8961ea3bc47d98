"""A campaign: trains many runs, several at a time, and resumes interrupted ones."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from tqdm import tqdm

from taac.campaigns.launchers import Launcher, Outcome
from taac.campaigns.run import Run
from taac.campaigns.time_left import TimeLeft
from taac.errors import OCCUPIED, TaacError
from taac.runs import durable, files, provenance, terminal

STATUSES = ("finished", "running", "waiting", "failed")


class State(NamedTuple):
    """Progress of a campaign."""

    finished: list[Run]
    running: list[Run]
    waiting: list[Run]
    failed: dict[Run, str]  # with the reason
    seconds_left: float | None  # None if there is no estimate yet

    @property
    def counts(self) -> str:
        return ", ".join(f"{len(getattr(self, status))} {status}" for status in STATUSES)

    def __str__(self) -> str:
        return self.counts + ("" if self.seconds_left is None else f", about {tqdm.format_interval(self.seconds_left)} left")


class Campaign:
    """Trains all unfinished runs through a launcher, `jobs` at a time.

    A failed run does not stop the others. A run that is interrupted from outside (asked to stop, killed, or its machine lost)
    is tried again, up to the launcher's number of attempts. Stopping the campaign stops its runs. Starting it again resumes
    them from their last checkpoints.

    Args:
        runs: all runs, including finished ones.
        launcher: starts the runs.
        jobs: how many runs may be started at a time; None leaves it to the launcher.
        record: a JSON file with the current status of each run; None writes none. Its entries of other runs, such as those of
            another campaign in the folder, are kept.
    """

    def __init__(self, runs: Sequence[Run], launcher: Launcher, jobs: int | None = None, record: Path | None = None):
        if jobs is not None and jobs < 1:
            raise TaacError(f"--jobs must be 1 or more, got {jobs}")
        self.jobs, self._launcher, self._record = jobs, launcher, record
        self._all = list(runs)
        self._finished = [run for run in runs if run.finished()]
        self._waiting = [run for run in runs if run not in self._finished]
        self._running: list[Run] = []
        self._failed: dict[Run, str] = {}
        self._attempts = dict.fromkeys(self._all, 0)
        self._time_left, self._recorded, self._warned = TimeLeft(), "", False
        self._others: list[dict[str, Any]] = []  # entries of the record that are of other runs

    def run(self, tell: Callable[[State], None]) -> State:
        """Runs until no run is left. Calls `tell` with the state at the launcher's intervals."""
        self.note()
        try:
            while self._waiting or self._running:
                for run, outcome in self._launcher.ended():
                    self._running.remove(run)
                    self._conclude(run, outcome)
                while self._waiting and (self.jobs is None or len(self._running) < self.jobs):
                    run = self._waiting.pop(0)
                    self._attempts[run] += 1
                    self._running.append(run)
                    try:
                        self._launcher.begin(run)
                    except OSError as error:
                        self._running.remove(run)
                        self._failed[run] = f"could not be started: {error}"
                state = self.state()
                self._write(state)
                tell(state)
                if self._running:
                    time.sleep(self._launcher.interval)
        finally:
            self._launcher.stop()
            self._waiting, self._running = self._running + self._waiting, []
            self.note()
        return self.state()

    def note(self) -> None:
        """Writes the record."""
        self._write(self.state())

    def state(self) -> State:
        running = [run for run in self._running if self._launcher.begun(run)]
        waiting = [run for run in self._running if run not in running] + self._waiting
        left = self._time_left.estimate(self._finished, running, waiting, self.jobs or max(1, len(running)))
        return State(list(self._finished), running, waiting, dict(self._failed), left)

    def _conclude(self, run: Run, outcome: Outcome) -> None:
        if run.finished():  # whatever happened at the end of its process
            self._finished.append(run)
        elif outcome.interrupted() and self._attempts[run] < self._launcher.attempts:
            self._waiting.insert(0, run)
        elif outcome.returncode == OCCUPIED:  # another campaign trains it, and we ask again after the others
            self._attempts[run] -= 1
            self._waiting.append(run)
        else:
            times = f", {self._attempts[run]} times" if outcome.interrupted() and self._attempts[run] > 1 else ""
            self._failed[run] = f"{outcome}{times}: {run.error()} (see {run.log})"

    def _write(self, state: State) -> None:
        if self._record is None:
            return
        status_of = {run: status for status in STATUSES for run in getattr(state, status)}
        runs = [
            {
                "task": run.task, "method": run.method, "seed": run.seed, "folder": str(run.folder), "log": str(run.log),
                "status": status_of.get(run, "waiting"), "attempts": self._attempts[run], "error": state.failed.get(run),
            }
            for run in self._all
        ]  # fmt: skip
        told = json.dumps(runs)
        if told == self._recorded:
            return
        try:
            self._replace_record(self._record, runs)
        except OSError as error:
            if not self._recorded:  # before any run
                raise
            if not self._warned:  # the runs go on, and the next round tries again
                print(f"warning: {self._record} cannot be written: {error}", file=sys.stderr)
            self._warned = True
        else:
            self._recorded = told

    def _replace_record(self, file: Path, runs: list[dict[str, Any]]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with durable.locked(file.with_name(f".{file.name}.lock")):  # another campaign may write here, too
            with contextlib.suppress(OSError, files.Damaged):  # what is there now is replaced
                self._others = _others(files.read_json(file, files.MAX_JSON_BYTES), self._all)
            every = [*self._others, *runs]
            counts = {name: [entry["status"] for entry in every].count(name) for name in STATUSES}
            durable.write(file, (json.dumps({"updated": provenance.now(), **counts, "runs": every}, indent=1) + "\n").encode())


def _others(content: Any, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns the entries of a record that are of other runs. What is no entry is left out."""
    entries = content.get("runs") if isinstance(content, dict) else None
    own = {_place(run.folder) for run in runs}
    return [
        entry
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and entry.get("status") in STATUSES and isinstance(entry.get("folder"), str)
        and _place(entry["folder"]) not in own
    ]  # fmt: skip


def _place(folder: str | Path) -> tuple[str, ...]:
    """Tells where a run is below the folder of its campaign, <task>/<method>/seed_<n>, however that folder is written."""
    return PurePath(folder).parts[-3:]


class View:
    """Shows progress on standard error: one line that is updated in place on a terminal, or elsewhere a line at each change.

    Prints each failed run once, on standard output. Where nobody can read it any more, as when `tee` or the terminal has gone,
    the runs go on.
    """

    def __init__(self) -> None:
        self._file, self._live = sys.stderr, sys.stderr.isatty()
        self._counts = ""
        self._failed: set[Run] = set()

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if self._live and self._counts:
                self._file.write("\n")

    def show(self, state: State) -> None:
        with contextlib.suppress(OSError):
            for run in (run for run in state.failed if run not in self._failed):
                self._failed.add(run)
                self._clear()
                print(f"failed: {terminal.printable(f'{run.name}: {state.failed[run]}')}", flush=True)
            if self._live:
                self._clear()
                self._file.write(str(state)[: shutil.get_terminal_size().columns - 1])  # a line that wraps cannot be cleared
            elif state.counts != self._counts:
                self._file.write(f"{state}\n")
            self._counts = state.counts
            self._file.flush()

    def _clear(self) -> None:
        if self._live:
            self._file.write("\r\x1b[K")
            self._file.flush()
