"""ICM: curiosity.

Source: Pathak et al., Curiosity-driven Exploration by Self-supervised Prediction (arXiv:1705.05363).
"""

from __future__ import annotations

from collections.abc import Sequence

import gin
import torch

from taac import nest
from taac.algorithms.reward_signals.signal import ObservationActionPairs, RewardSignal, mean_over_transitions, network
from taac.data_structures import Nest, TimeStep
from taac.errors import TaacError
from taac.ops.schedules import Schedule


@gin.configurable
class ICM(RewardSignal):
    """Curiosity: the error of predicting the next state's features, `r = 1/2 |f(phi(s), a) - phi(s')|^2`.

    The features phi are learnt with an inverse model `g(phi(s), phi(s'))`, which predicts the action that was taken. The loss is
    `(1 - beta) L_inverse + beta L_forward`. The forward loss does not train phi, because phi could then become a constant.
    L_inverse is the squared error of an action's continuous parts, and the cross-entropy of each choice.

    Args:
        observation_spec, action_spec: of the environment.
        strength, gamma, learning_rate, update_period, batch_size, normalize: see `RewardSignal`.
        feature_size: of phi.
        hidden_layers: of each model.
        beta: weight of the forward model's loss, in (0, 1).

    Raises:
        TaacError: errors of `RewardSignal`; beta outside (0, 1).

    Source: Pathak et al. (arXiv:1705.05363), equations 2 to 7.
    """

    name = "icm"

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
        beta: float = 0.2,
    ):
        super().__init__(strength, gamma, learning_rate, update_period, normalize, batch_size)
        if not 0 < beta < 1:
            raise TaacError(f"ICM.beta must be in (0, 1), got {beta}")
        self.beta = beta
        self.pairs = ObservationActionPairs(observation_spec, action_spec)
        actions = self.pairs.action.output_size
        self.phi = network(self.pairs.observation.output_size, hidden_layers, feature_size)
        self.inverse = network(2 * feature_size, hidden_layers, actions)
        self.forward_model = network(feature_size + actions, hidden_layers, feature_size)

    def reward(self, time_step: TimeStep) -> torch.Tensor:
        features, action = self._seen(time_step)
        return self._forward_error(features, action)

    def loss(self, time_step: TimeStep, demonstrations: TimeStep | None) -> torch.Tensor:
        features, action = self._seen(time_step)
        prediction = self.inverse(torch.cat([features[:-1], features[1:]], -1))
        error = torch.zeros_like(features[1:, :, 0])
        position = 0
        for width, chosen in self.pairs.parts:
            part = slice(position, position + width)
            position += width
            if chosen:
                error = error - (action[..., part] * torch.log_softmax(prediction[..., part], -1)).sum(-1)
            else:
                error = error + (prediction[..., part] - action[..., part]).square().sum(-1)
        forward = self._forward_error(features.detach(), action)
        return mean_over_transitions(time_step, (1 - self.beta) * error + self.beta * forward)

    def _seen(self, time_step: TimeStep) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns phi(s) `[T, B, F]`, and the actions `[T-1, B, A]` taken at frames 0..T-2."""
        features = self.phi(self.pairs.observation(time_step.observation))
        return features, self.pairs.action(nest.index(time_step.prev_action, slice(1, None)))

    def _forward_error(self, features: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        prediction = self.forward_model(torch.cat([features[:-1], action], -1))
        return 0.5 * (prediction - features[1:]).square().sum(-1)
