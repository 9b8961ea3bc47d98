"""Optuna: proposes the settings of the next trial, and says which trials to stop.

Each question is asked of a new study, which is filled from the record of the sweep, so no file of Optuna's is read. The sampler
of each trial has a seed of its own, so a sweep that was stopped proposes what it would have proposed.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from taac.campaigns import search_space
from taac.campaigns.sweep import Record, Sweep, Trial
from taac.errors import TaacError

STARTUP = 5  # trials before the median prunes any


class Suggestions:
    """Proposes trials of a sweep. The caller puts each trial, and what it reaches, into the record.

    `steps` are environment steps of one run, `interval` those between its evaluations.
    """

    def __init__(self, sweep: Sweep, record: Record, steps: int, interval: int):
        try:
            import optuna
        except ImportError as error:
            raise TaacError(f"taac sweep needs the package optuna: pip install 'taac[sweep]' ({error})") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._sweep, self._record = optuna, sweep, record
        self._spaces = {dimension.name: dimension.distribution() for dimension in sweep.dimensions}
        self._steps, self.interval = steps, interval

    def _new_study(self) -> Any:
        pruners = self._optuna.pruners
        median = pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=self._steps // 4)
        pruner = median if self._sweep.pruner == "median" else pruners.NopPruner()
        return self._optuna.create_study(direction="maximize", pruner=pruner)

    def _add(self, study: Any, trial: Trial) -> Any:
        """Adds a trial to a study. Returns Optuna's object of one that runs."""
        values = {d.name: d.value(trial.texts[d.name]) for d in self._sweep.dimensions}
        reports = {} if trial.state == "diverged" else dict(trial.reports)
        if trial.state == "running":
            study.enqueue_trial(values)
            live = study.ask(self._spaces)
            for step, mean in reports.items():
                live.report(mean, step)
            return live
        study.add_trial(self._optuna.trial.create_trial(
            state=self._state(trial), value=trial.value, params=values, distributions=self._spaces, intermediate_values=reports,
        ))  # fmt: skip
        return None

    def _state(self, trial: Trial) -> Any:
        """Optuna's state. TPE ranks a pruned trial without reports, such as one that diverged, below all others."""
        states = self._optuna.trial.TrialState
        return {"complete": states.COMPLETE, "failed": states.FAIL}.get(trial.state, states.PRUNED)

    def propose(self) -> Trial:
        """Returns the next trial. Its values are rounded."""
        number = len(self._record.trials)
        seed = int(np.random.SeedSequence([self._sweep.sampler_seed, number]).generate_state(1)[0])
        study = self._new_study()
        for trial in self._record.trials:
            self._add(study, trial)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samplers, tpe = self._optuna.samplers, self._sweep.sampler == "tpe"
            study.sampler = samplers.TPESampler(seed=seed) if tpe else samplers.RandomSampler(seed=seed)
            found = study.ask(self._spaces).params
        return Trial(number, {d.name: search_space.text(d.rounded(found[d.name])) for d in self._sweep.dimensions})

    def should_prune(self, trial: Trial) -> bool:
        study = self._new_study()
        found = [self._add(study, trial if t.number == trial.number else t) for t in self._record.trials]
        return bool(found[trial.number].should_prune())
