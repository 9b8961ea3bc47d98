"""Following an episode step by step: what was decided, for how long it has run, and a frame of each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from taac import nest
from taac.data_structures import AlgStep, StepType, TimeStep
from taac.environments.vector_environment import VectorEnvironment


class Shown(NamedTuple):
    """One environment step of an episode. P is 1, or A where dimensions decide alone."""

    number: int  # environment steps so far in the episode, this one included
    action: np.ndarray  # [A], every part of it one after another; boxes in [-1, 1], choices from 0
    decided: np.ndarray  # [P] bool, whether a new action was chosen here
    run: np.ndarray  # [P] int, steps that the present action has run, this one included
    switch_probability: np.ndarray | None  # [P]; None: the method has none, or did not look here (repeats inside)
    reward: float  # of this step, undiscounted, the sum over a vector's parts
    ret: float  # sum of the rewards so far
    frame: np.ndarray | None  # [H, W, 3] uint8, where the step led; None: not filmed


class Recorder:
    """Follows the first environment of an evaluation (`evaluate`'s `on_step`) through its first episodes.

    Args:
        environment: made with `recorded=True`, and with `render_mode='rgb_array'` to be filmed.
        watchers: called with every step in order; an episode begins where `number` is 1.
        num_episodes: so many are followed.
        film_every: see `VectorEnvironment.film`; filming stops after the last of these episodes.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        watchers: Sequence[Callable[[Shown], None]],
        num_episodes: int = 1,
        film_every: int = 0,
    ):
        self._environment, self._watchers, self._left = environment, watchers, num_episodes
        environment.film(film_every)

    def __call__(self, time_step: TimeStep, alg_step: AlgStep) -> None:
        """Takes the frame that was acted at, after the environment has moved on."""
        if not self._left:
            return
        steps = self._environment.pop_steps()
        if time_step.step_type[0] == StepType.LAST:  # the action was ignored: a new episode began
            self._left -= 1
            if not self._left:
                self._environment.film(0)
            return
        if time_step.step_type[0] == StepType.FIRST:
            self._number, self._return, self._run = 0, 0.0, np.zeros(1, dtype=np.int64)
        decided = alg_step.decided[0].cpu().numpy().reshape(-1)
        action = np.concatenate([leaf[0].cpu().numpy().reshape(-1) for leaf in nest.flatten(alg_step.output)])
        beta = alg_step.switch_probability
        looked = None if isinstance(beta, tuple) else beta[0].cpu().numpy().reshape(-1)
        for step in steps:  # several where the environment repeats the action
            self._number, self._return = self._number + 1, self._return + step.reward
            self._run = np.where(decided, 1, self._run + 1)
            shown = Shown(self._number, action, decided, self._run, looked, step.reward, self._return, step.frame)
            for watcher in self._watchers:
                watcher(shown)
            decided, looked = np.zeros_like(decided), None
