"""RND: novelty.

Source: Burda et al., Exploration by Random Network Distillation (arXiv:1810.12894).
"""

from __future__ import annotations

from collections.abc import Sequence

import gin
import torch

from taac import nest
from taac.algorithms.reward_signals.signal import RewardSignal, mean_over_transitions, network
from taac.data_structures import Nest, TimeStep
from taac.networks import ObservationEncoder
from taac.ops.schedules import Schedule


@gin.configurable
class RND(RewardSignal):
    """Novelty: the error of predicting a fixed random network's output at the next state, `r = |p(s') - f(s')|^2`.

    The paper normalises observations: `create_agent.normalize_observations = True`. That does not change images of uint8, which
    are scaled to [0, 1]; make them floats to normalise pixels.

    Args:
        observation_spec, action_spec: of the environment.
        strength, gamma, learning_rate, update_period, batch_size, normalize: see `RewardSignal`.
        feature_size: of both networks' outputs.
        hidden_layers: of the fixed network f; the predictor p repeats the last layer once more.

    Source: Burda et al. (arXiv:1810.12894), section 2.2. In the paper the return of novelty continues beyond the end of an
    episode; here it ends with the episode.
    """

    name = "rnd"

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        strength: float | Schedule = 0.1,
        gamma: float | None = None,
        learning_rate: float | Schedule = 3e-4,
        update_period: float = 1,
        batch_size: int | None = None,
        normalize: bool = True,
        feature_size: int = 64,
        hidden_layers: Sequence[int] = (128,),
    ):
        super().__init__(strength, gamma, learning_rate, update_period, normalize, batch_size)
        self.encoder = ObservationEncoder(observation_spec)
        width = self.encoder.output_size
        self.fixed_encoder = ObservationEncoder(observation_spec).requires_grad_(False)
        self.fixed = network(width, hidden_layers, feature_size).requires_grad_(False)
        self.predictor = network(width, [*hidden_layers, *hidden_layers[-1:]], feature_size)

    def reward(self, time_step: TimeStep) -> torch.Tensor:
        arrived = nest.index(time_step.observation, slice(1, None))
        with torch.no_grad():
            target = self.fixed(self.fixed_encoder(arrived))
        return (self.predictor(self.encoder(arrived)) - target).square().sum(-1)

    def loss(self, time_step: TimeStep, demonstrations: TimeStep | None) -> torch.Tensor:
        return mean_over_transitions(time_step, self.reward(time_step))
