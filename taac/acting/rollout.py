"""Steps an agent through an environment. Collecting, evaluating and playing use the same loop."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from taac import nest
from taac.acting.action_log import ActionLog
from taac.algorithms.agent import Agent, Policy
from taac.algorithms.algorithm import reset_where_first
from taac.data_structures import AlgStep, StepType, TimeStep
from taac.environments.vector_environment import VectorEnvironment


class RolloutStep(NamedTuple):
    """One step of every environment: the frame that was acted at, and what was done there."""

    time_step: TimeStep  # [B, ...], the frame that was acted at
    alg_step: AlgStep  # [B, ...], what the policy did
    arrays: Any  # that frame, a `TimeStep` of numpy arrays
    raw_reward: np.ndarray  # [B] or [B, D], undiscounted, received on arriving at that frame
    duration: np.ndarray  # [B], environment steps that the action took; 0 where the frame was LAST
    episode_info: np.ndarray  # [B, K], what episodes that ended at that frame report; see `VectorEnvironment`


class Rollout:
    """Steps an agent through an environment and stores the current state of both.

    Attributes:
        time_step: the frame to act at next, on the agent's device.
        state: the agent's state at that frame.
    """

    time_step: TimeStep

    def __init__(self, environment: VectorEnvironment, agent: Agent):
        self.environment, self.agent = environment, agent
        self._on_cpu = agent.device.type == "cpu"
        self._initial_state = agent.initial_state(environment.num_envs)
        self.state = self._initial_state

    def reset(self, seed: int) -> None:
        """Begins new episodes in every environment."""
        self.time_step = self._to_device(self.environment.reset(seed))
        self.state = self._initial_state

    def step(self, policy: Policy) -> RolloutStep:
        """Acts at `self.time_step` and advances to the next frame.

        Raises:
            EnvironmentFailed: an environment fails. `time_step` and `state` stay unchanged.
        """
        time_step, arrays, raw_reward = self.time_step, self.environment.arrays, self.environment.raw_reward
        episode_info = self.environment.episode_info
        alg_step = self.act(policy)
        action = alg_step.output if self._on_cpu else nest.map_structure(lambda a: a.cpu(), alg_step.output)
        self.time_step = self._to_device(self.environment.step(action))
        self.state = alg_step.state
        return RolloutStep(time_step, alg_step, arrays, raw_reward, self.environment.arrays.duration, episode_info)

    def act(self, policy: Policy) -> AlgStep:
        """Returns what the policy does at `self.time_step`, without stepping the environment."""
        return policy(self.time_step, reset_where_first(self.state, self._initial_state, self.time_step))

    def replay_actions(self, log: ActionLog, seed: int, episodes: np.ndarray, reached: list[torch.Tensor]) -> None:
        """Repeats logged actions; see `ActionLog.replay_actions`. The agent's state stays unchanged."""
        self.time_step = self._to_device(log.replay_actions(self.environment, seed, episodes, reached))

    def set_time_step(self, leaves: list[torch.Tensor]) -> None:
        """Sets the frame to act at next from saved leaves, whatever the state of the environment."""
        self.time_step = self._to_device(nest.pack_like(self.time_step, leaves))

    def truncate(self) -> TimeStep:
        """Returns the frame to act at next as the LAST frame of a truncated episode. It still bootstraps."""
        return self.time_step._replace(step_type=torch.full_like(self.time_step.step_type, int(StepType.LAST)))

    def _to_device(self, time_step: TimeStep) -> TimeStep:
        return time_step if self._on_cpu else nest.map_structure(lambda x: x.to(self.agent.device), time_step)
