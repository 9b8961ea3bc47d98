"""An algorithm together with the normalisers of what it sees: what is trained, saved and played."""

from __future__ import annotations

import torch
import torch.nn as nn

from taac import nest
from taac.algorithms import Algorithm
from taac.data_structures import AlgStep, Experience, Nest, TimeStep
from taac.networks import ObservationNormalizer, RewardNormalizer


class Agent(nn.Module):
    """Normalises observations and rewards on their way to an algorithm; raw ones are stored in the buffer.

    Args:
        algorithm: acts and learns.
        observation_normalizer: updated by rollouts alone; None: observations as they are.
        reward_normalizer: updated by sampled batches; None: rewards as they are.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        observation_normalizer: ObservationNormalizer | None = None,
        reward_normalizer: RewardNormalizer | None = None,
    ):
        super().__init__()
        self.algorithm = algorithm
        self.observation_normalizer = observation_normalizer
        self.reward_normalizer = reward_normalizer
        self.device = next(algorithm.parameters()).device

    def _seen(self, time_step: TimeStep) -> TimeStep:
        if self.observation_normalizer is None:
            return time_step
        return time_step._replace(observation=self.observation_normalizer(time_step.observation))

    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        return self.algorithm.predict_step(self._seen(time_step), state, epsilon)

    def rollout_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        self._observe(time_step)
        return self.algorithm.rollout_step(self._seen(time_step), state)

    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        self._observe(time_step)
        return self.algorithm.random_step(self._seen(time_step), state)

    def _observe(self, time_step: TimeStep) -> None:
        if self.observation_normalizer is not None:
            self.observation_normalizer.update(time_step.observation)

    def prepare(self, experience: Experience) -> Experience:
        """A sampled batch as the algorithm is to see it, on its device; moves the reward statistics."""
        if experience.time_step.reward.device != self.device:  # frames kept elsewhere than the agent
            experience = nest.map_structure(lambda x: x.to(self.device, non_blocking=True), experience)
        time_step = self._seen(experience.time_step)
        if self.reward_normalizer is not None:
            self.reward_normalizer.update(time_step.reward, time_step.duration)
            time_step = time_step._replace(reward=self.reward_normalizer(time_step.reward, time_step.duration))
        return experience._replace(time_step=time_step)

    def initial_state(self, batch_size: int) -> Nest:
        return self.algorithm.initial_state(batch_size)

    def to_device(self, device: torch.device) -> Agent:
        self.to(device)
        self.device = device
        return self
