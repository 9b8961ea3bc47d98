"""Optuna: proposes the settings of the next trial, and says which trials to stop.

Its study lives in memory and is filled from `sweep.json`, so no file of Optuna's is read. The sampler of each trial has a seed of
its own, so a sweep that was stopped proposes what it would have proposed.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from taac.campaigns import search_space
from taac.campaigns.sweep import Sweep, Trial
from taac.errors import TaacError

STARTUP = 5  # trials before the median prunes any


class Suggestions:
    """Proposes trials of a sweep.

    Args:
        sweep: what is searched, and how.
        trials: those so far, by number.
        steps: environment steps of one run.
        interval: environment steps between evaluations.

    Raises:
        TaacError: Optuna is not installed.
    """

    def __init__(self, sweep: Sweep, trials: list[Trial], steps: int, interval: int):
        try:
            import optuna
        except ImportError as error:
            raise TaacError(f"taac sweep needs the package optuna: pip install 'taac[sweep]' ({error})") from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna, self._sweep = optuna, sweep
        self._spaces = {dimension.name: dimension.distribution() for dimension in sweep.dimensions}
        whole = steps * len(sweep.seeds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some are experimental in some versions
            pruner: Any = optuna.pruners.NopPruner()
            if sweep.pruner == "median":
                pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=steps // 4)
            elif sweep.pruner == "hyperband":
                least = min(max(interval, steps // 4), whole)
                pruner = optuna.pruners.HyperbandPruner(min_resource=least, max_resource=whole, reduction_factor=3)
            self._study = optuna.create_study(study_name="taac", direction="maximize", pruner=pruner)
        self._live: dict[int, Any] = {}
        for trial in trials:
            self._add(trial)

    def _add(self, trial: Trial) -> None:
        values = {d.name: d.value(trial.texts[d.name]) for d in self._sweep.dimensions}
        if trial.state == "running":
            self._study.enqueue_trial(values)
            self._live[trial.number] = live = self._study.ask(self._spaces)
            for step, mean in trial.reports:
                live.report(mean, step)
            return
        self._study.add_trial(
            self._optuna.trial.create_trial(
                state=self._state(trial),
                value=trial.value,
                params=values,
                distributions=self._spaces,
                intermediate_values={} if trial.state == "diverged" else dict(trial.reports),
            )
        )

    def _state(self, trial: Trial) -> Any:
        """Optuna's state. A pruned trial without reports, as one that diverged, is to TPE worse than all others."""
        states = self._optuna.trial.TrialState
        return {"complete": states.COMPLETE, "failed": states.FAIL}.get(trial.state, states.PRUNED)

    def propose(self, number: int) -> Trial:
        """Returns the next trial; `number` is that of the trials so far."""
        seed = int(np.random.SeedSequence([self._sweep.sampler_seed, number]).generate_state(1)[0])
        samplers = self._optuna.samplers
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tpe = self._sweep.sampler == "tpe"
            self._study.sampler = samplers.TPESampler(seed=seed) if tpe else samplers.RandomSampler(seed=seed)
            self._live[number] = live = self._study.ask(self._spaces)
        return Trial(number, {d.name: search_space.text(live.params[d.name]) for d in self._sweep.dimensions})

    def report(self, number: int, step: int, mean: float) -> bool:
        """Reports what a trial has reached; returns whether to stop it."""
        live = self._live[number]
        live.report(mean, step)
        return bool(live.should_prune())

    def tell(self, trial: Trial) -> None:
        """Tells how a trial ended."""
        live = self._live.pop(trial.number)
        self._study.tell(live, trial.value, state=self._state(trial))
