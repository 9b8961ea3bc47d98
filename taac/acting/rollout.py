"""Stepping an agent through an environment: the same loop for collecting, evaluating and playing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from taac import nest
from taac.acting.action_log import ActionLog
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import reset_where_first
from taac.data_structures import AlgStep, Nest, StepType, TimeStep
from taac.environments.vector_environment import VectorEnvironment

Policy = Callable[[TimeStep, Nest], AlgStep]


class Rollout:
    """Holds where an environment and its agent's state are.

    Attributes:
        time_step: the frame to act at next, on the agent's device.
        state: the agent's, as it will be at that frame.
        raw_reward: `[B]` or `[B, D]`, undiscounted, received on arriving at the frame that `step` gave last.
    """

    time_step: TimeStep

    def __init__(self, environment: VectorEnvironment, agent: Agent):
        self.environment, self.agent = environment, agent
        self._initial_state = agent.initial_state(environment.num_envs)
        self.state = self._initial_state
        self.raw_reward = environment.raw_reward

    def reset(self, seed: int) -> None:
        """Begins anew in every environment."""
        self.time_step = self._to_device(self.environment.reset(seed))
        self.state = self._initial_state

    def step(self, policy: Policy) -> tuple[TimeStep, AlgStep]:
        """Acts at `self.time_step` and moves on; gives the frame that was acted at and what was done there.

        How long that took is then in `self.time_step.duration`: 0 where the frame acted at was LAST.
        """
        time_step = self.time_step
        alg_step = self.act(policy)
        raw_reward = self.environment.raw_reward
        action = nest.map_structure(lambda a: a.cpu(), alg_step.output)
        self.time_step = self._to_device(self.environment.step(action))  # may fail: then all stays as it was
        self.state, self.raw_reward = alg_step.state, raw_reward
        return time_step, alg_step

    def act(self, policy: Policy) -> AlgStep:
        """What the policy does at `self.time_step`, without doing it."""
        return policy(self.time_step, reset_where_first(self.state, self._initial_state, self.time_step))

    def replay(self, log: ActionLog, seed: int, episodes: np.ndarray, reached: list[torch.Tensor]) -> None:
        """Goes to where logged actions led; see `ActionLog.replay`. The agent's state is left alone."""
        self.time_step = self._to_device(log.replay(self.environment, seed, episodes, reached))

    def stand_at(self, leaves: list[torch.Tensor]) -> None:
        """Takes saved leaves for the frame at hand, wherever the environment is."""
        self.time_step = self._to_device(nest.pack_like(self.time_step, leaves))

    def truncate(self) -> TimeStep:
        """The frame at hand as the LAST of its episode, cut off: it still bootstraps."""
        last = torch.full_like(self.time_step.step_type, int(StepType.LAST))
        return self.time_step._replace(step_type=last)

    def _to_device(self, time_step: TimeStep) -> TimeStep:
        if self.agent.device.type == "cpu":
            return time_step
        return nest.map_structure(lambda x: x.to(self.agent.device), time_step)
