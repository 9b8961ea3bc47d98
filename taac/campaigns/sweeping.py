"""Runs the trials of a sweep, several at a time, and goes on where it was stopped.

A trial trains its seeds one after the other. At each evaluation it is compared with other trials at the same step, counted over
all of its seeds: the mean of the scores of the seeds that are done and of the return of the one that trains.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path

from taac.campaigns.comparison import check_folders
from taac.campaigns.launchers import Outcome
from taac.campaigns.launchers.local import LocalProcesses
from taac.campaigns.run import Run
from taac.campaigns.suggestions import Suggestions
from taac.campaigns.sweep import Record, Sweep, Trial
from taac.errors import OCCUPIED, TaacError
from taac.runs import files, layout
from taac.runs.run_folder import RunFolder

PAUSE = 30.0  # seconds until a run is asked for again that another process trains
HOPELESS = 3  # failed trials from the first on after which a sweep gives up
_LONGEST = 1000  # the most characters of a reason that are kept
_STEPS, _RETURN = layout.COLUMNS.index("env_steps"), layout.COLUMNS.index("return_mean")


@dataclasses.dataclass
class _Active:
    """A trial that is being trained."""

    trial: Trial
    run: Run
    scores: list[float] = dataclasses.field(default_factory=list)  # of the seeds that are done
    launched: bool = False
    stopping: bool = False  # it has been asked to stop; a second time would end it without a checkpoint
    attempts: int = 0
    not_before: float = 0.0  # by `time.monotonic`, when its run is started again


class Sweeping:
    """Trains the trials of a sweep until there are as many as asked for.

    Args:
        plan: returns the run of a trial with a seed.
        jobs: trials at a time.
        steps: environment steps of a run.
        score: returns the score of a finished run by its folder.
        tell: called with each trial that has ended.
    """

    def __init__(
        self, sweep: Sweep, record: Record, suggestions: Suggestions, plan: Callable[[Trial, int], Run],
        launcher: LocalProcesses, jobs: int, steps: int,
        score: Callable[[Path], float], tell: Callable[[Trial], None],
    ):  # fmt: skip
        self._sweep, self._record, self._suggestions, self._plan = sweep, record, suggestions, plan
        self._launcher, self._jobs, self._steps = launcher, jobs, steps
        self._score, self._tell = score, tell
        self._active = {t.number: _Active(t, plan(t, sweep.seeds[0])) for t in record.trials if t.state == "running"}

    def run(self) -> None:
        """Trains until every trial has ended. Gives up if the first trials all failed."""
        try:
            while True:
                for run, outcome in self._launcher.ended():
                    self._ended(next(a for a in self._active.values() if a.run == run), outcome)
                while len(self._active) < self._jobs and len(self._record.trials) < self._sweep.trials:
                    trial = self._record.put(self._suggestions.propose())
                    self._active[trial.number] = _Active(trial, self._plan(trial, self._sweep.seeds[0]))
                for active in list(self._active.values())[: self._jobs]:  # a call before may have had more at a time
                    self._advance(active)
                if not self._active and len(self._record.trials) >= self._sweep.trials:
                    return
                if any(active.launched or active.not_before for active in self._active.values()):
                    time.sleep(self._launcher.interval)
        finally:
            self._launcher.stop()

    def _advance(self, active: _Active) -> None:
        """Does what can be done now: looks at evaluations, goes on to the next seed, starts a run, or ends the trial."""
        while True:
            if active.trial.why is None:
                self._watch(active)
            if active.trial.why is not None:
                if not active.launched:
                    folder = RunFolder(active.run.folder)
                    if folder.run.exists() and not active.run.finished():
                        at = max(0, active.trial.reports[-1][0] - len(active.scores) * self._steps) if active.trial.reports else 0
                        folder.update_run(status="pruned", stopped={"env_steps": at, "why": active.trial.why})
                    self._end(active, "pruned", why=active.trial.why)
                elif not active.stopping:
                    active.stopping = True
                    self._launcher.ask_to_stop(active.run)
                return
            if active.launched or not active.run.finished():
                break
            try:
                active.scores.append(self._score(active.run.folder))
            except TaacError as error:
                self._end(active, "failed", why=str(error)[:_LONGEST])
                return
            if len(active.scores) == len(self._sweep.seeds):
                self._end(active, "complete", value=sum(active.scores) / len(active.scores))
                return
            active.run, active.attempts = self._plan(active.trial, self._sweep.seeds[len(active.scores)]), 0
        if not active.launched and time.monotonic() >= active.not_before:
            check_folders([active.run])
            active.launched, active.attempts = True, active.attempts + 1
            self._launcher.begin(active.run)

    def _watch(self, active: _Active) -> None:
        """Reports new evaluations. Sets why to stop the trial, if it is to be stopped."""
        try:
            rows = layout.read_evaluations(active.run.folder).rows
        except (OSError, files.Damaged):
            return  # the run has not begun, or says itself what is wrong
        reported = active.trial.reports[-1][0] if active.trial.reports else 0
        before, whole = len(active.scores) * self._steps, len(self._sweep.seeds) * self._steps
        for row in rows:
            due = layout.due_step(int(row[_STEPS]), self._suggestions.interval, self._steps)  # pruners compare equal steps only
            step = before + min(due, self._steps)
            mean = (sum(active.scores) + row[_RETURN]) / (len(active.scores) + 1)
            if row[_STEPS] == 0 or step <= reported or not math.isfinite(mean):
                continue
            active.trial = active.trial._replace(reports=(*active.trial.reports, (step, mean)))
            if step < whole and self._suggestions.should_prune(active.trial):
                why = f"pruned by {self._sweep.pruner} at step {step} of {whole} over all seeds"
                active.trial = active.trial._replace(why=why)
                return
            self._record.put(active.trial)

    def _ended(self, active: _Active, outcome: Outcome) -> None:
        active.launched = False
        if active.trial.why is not None or active.run.finished():
            return
        if outcome.returncode == OCCUPIED:  # another process still trains it
            active.attempts, active.not_before = active.attempts - 1, time.monotonic() + PAUSE
            return
        if outcome.interrupted() and active.attempts < self._launcher.attempts:
            return
        self._watch(active)  # of its last evaluations, which decide as they would have while it ran
        if active.trial.why is not None:
            return
        try:
            status = layout.read_run(active.run.folder).get("status")
        except (OSError, files.Damaged):
            status = None
        why = f"{outcome}: {active.run.error()} (see {active.run.log})"
        self._end(active, "diverged" if status == "diverged" else "failed", why=why[:_LONGEST])

    def _end(self, active: _Active, state: str, value: float | None = None, why: str | None = None) -> None:
        trial = self._record.put(active.trial._replace(state=state, value=value, why=why))
        del self._active[trial.number]
        self._tell(trial)
        first = self._record.trials[:HOPELESS]
        if state == "failed" and len(first) == HOPELESS and all(trial.state == "failed" for trial in first):
            raise TaacError(f"the first {HOPELESS} trials failed, so the sweep stops. Trial {trial.number}: {why}")
