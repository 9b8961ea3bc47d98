"""Several seeds of one task and method in one process; see `training.seeds`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taac.campaigns.launchers import Launcher, Outcome
from taac.campaigns.run import Run
from taac.errors import TaacError
from taac.runs import files, layout

Pack = tuple[Run, ...]  # of consecutive seeds


def pack(runs: Sequence[Run], most: int) -> list[Pack]:
    """Groups runs of one task and method with consecutive seeds, and gives each group one command and one log.

    Args:
        runs: of a comparison.
        most: seeds in a group.

    Raises:
        TaacError: `most` is below 1, or a run is to be extended.
    """
    if most < 1:
        raise TaacError(f"--pack_seeds must be 1 or more, got {most}")
    if any(run.steps is not None for run in runs):
        raise TaacError("--extend trains each run on in a process of its own: leave out --pack_seeds")
    found: list[list[Run]] = []
    for run in sorted(runs, key=lambda run: (str(run.folder.parent), run.seed)):
        last = found[-1][-1] if found else None
        if last and len(found[-1]) < most and (run.folder.parent, run.seed) == (last.folder.parent, last.seed + 1):
            found[-1].append(run)
        else:
            found.append([run])
    place = {run.folder: number for number, run in enumerate(runs)}
    return sorted(map(_joined, found), key=lambda one: place[one[0].folder])


def _joined(group: Sequence[Run]) -> Pack:
    first = group[0]
    if len(group) == 1:
        return (first,)
    given = list(first.command)
    given[given.index("--root_dir") + 1] = str(first.folder.parent)
    command = (*given, "--num_seeds", str(len(group)))
    return tuple(run._replace(command=command, log_beside=first.folder) for run in group)


class PackedRuns:
    """Launches packs of runs, each in one process, and reports how each run of it ended.

    Args:
        launcher: of the processes; it starts each at once.
        packs: from `pack`.
        jobs: processes at a time.
    """

    def __init__(self, launcher: Launcher, packs: Sequence[Pack], jobs: int):
        self.interval, self.attempts = launcher.interval, launcher.attempts
        self._launcher, self._jobs = launcher, jobs
        self._of = {run: number for number, one in enumerate(packs) for run in one}
        self._begun: dict[int, list[Run]] = {}  # runs of the packs that wait or run
        self._running: dict[int, Run] = {}  # the run that stands for the process
        self._before: dict[Run, Any] = {}  # what run.json said when the run was begun

    def begin(self, run: Run) -> None:
        self._before[run] = _status(run)
        self._begun.setdefault(self._of[run], []).append(run)
        self._start()

    def _start(self) -> None:
        for number, runs in self._begun.items():
            if len(self._running) >= self._jobs:
                return
            if number not in self._running:
                self._running[number] = runs[0]
                self._launcher.begin(runs[0])

    def begun(self, run: Run) -> bool:
        return self._of[run] in self._running and self._launcher.begun(self._running[self._of[run]])

    def ended(self) -> list[tuple[Run, Outcome]]:
        found = []
        for process, outcome in self._launcher.ended():
            number = self._of[process]
            del self._running[number]
            found += [(run, self._outcome(run, outcome)) for run in self._begun.pop(number)]
        self._start()
        return found

    def _outcome(self, run: Run, of_process: Outcome) -> Outcome:
        """Returns how one run of a pack ended. That it failed earlier does not count, if its process died before its turn."""
        if run.finished():
            return Outcome(0)
        now = _status(run)
        return Outcome(1) if now[0] in ("diverged", "failed") and now != self._before[run] else of_process

    def stop(self) -> None:
        self._launcher.stop()
        self._begun, self._running = {}, {}


def _status(run: Run) -> tuple[Any, Any]:
    """Returns the status of a run, and what changes whenever it goes on."""
    try:
        about = layout.read_run(run.folder)
    except (OSError, files.Damaged):
        return None, None
    return about.get("status"), (about.get("start"), about.get("resumed"))
