"""A launcher that trains in this process, because what compare does with processes is tested with campaigns."""

from __future__ import annotations

from taac import configuration
from taac.campaigns.launchers import Outcome
from taac.configuration import gin_state
from taac.runs.run_folder import RunFolder
from taac.training.conduct import conduct
from taac.training.experiment import create_experiment
from taac.training.progress_bar import ProgressBar


class InThisProcess:
    interval, attempts = 0.0, 1

    def __init__(self, environment=None):
        self._over = []

    def begin(self, run):
        with gin_state.isolated():
            loaded = run.request.load()
            trainer = configuration.build(create_experiment)
            try:
                conduct(trainer, loaded, RunFolder(run.folder), ProgressBar, tell=lambda _: None)
            finally:
                trainer.close()
        self._over.append((run, Outcome(0)))

    def begun(self, run):
        return True

    def ended(self):
        over, self._over = self._over, []
        return over

    def stop(self):
        self._over.clear()
