"""Records an episode step by step: whether a new action was chosen, how long it has run, and a frame of each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from taac import nest
from taac.data_structures import AlgStep, StepType, TimeStep
from taac.environments.vector_environment import VectorEnvironment


class EpisodeStep(NamedTuple):
    """One environment step of an episode. P is 1, or A if each dimension decides separately."""

    number: int  # environment steps so far in the episode, including this one
    action: np.ndarray  # [A], all parts of the action in one vector; boxes in [-1, 1], choices from 0
    decided: np.ndarray  # [P] bool, whether a new action was chosen here
    run: np.ndarray  # [P] int, number of steps that the current action has run, including this one
    switch_probability: np.ndarray | None  # [P]; None if the method has none, or for repeats inside the environment
    reward: float  # of this step, undiscounted; the sum of a vector reward's parts
    ret: float  # sum of the rewards so far
    frame: np.ndarray | None  # [H, W, 3] uint8, rendered after the step; None if not filmed


class Recorder:
    """Follows the first environment of an evaluation (`evaluate`'s `on_step`) through its first episodes.

    Args:
        environment: created with `recorded=True`, and with `render_mode='rgb_array'` for filming.
        watchers: called with every step in order. An episode begins where `number` is 1.
        film_every: see `VectorEnvironment.film`. Filming stops after the last of these episodes.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        watchers: Sequence[Callable[[EpisodeStep], None]],
        num_episodes: int = 1,
        film_every: int = 0,
    ):
        self._environment, self._watchers, self._left = environment, watchers, num_episodes
        environment.film(film_every)

    def __call__(self, time_step: TimeStep, alg_step: AlgStep) -> None:
        """Records the steps that `alg_step` led to. `time_step` is the frame before the action. Call it after each step."""
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
        probability = None if isinstance(beta, tuple) else beta[0].cpu().numpy().reshape(-1)
        for step in steps:  # several if the environment repeats the action
            self._number, self._return = self._number + 1, self._return + step.reward
            self._run = np.where(decided, 1, self._run + 1)
            shown = EpisodeStep(self._number, action, decided, self._run, probability, step.reward, self._return, step.frame)
            for watcher in self._watchers:
                watcher(shown)
            decided, probability = np.zeros_like(decided), None
