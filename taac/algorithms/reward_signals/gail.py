"""GAIL: imitation by a discriminator.

Source: Ho and Ermon, Generative Adversarial Imitation Learning (arXiv:1606.03476).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import gin
import torch
import torch.nn.functional as F

from taac import nest
from taac.algorithms.reward_signals.signal import (
    ObservationActionPairs,
    RewardSignal,
    mean_over_transitions,
    network,
    transitions,
)
from taac.data_structures import Nest, TimeStep
from taac.errors import TaacError
from taac.ops.schedules import Schedule


@gin.configurable
class GAIL(RewardSignal):
    """Imitation: `r = -log(1 - D(s, a))`, where D is a discriminator's probability that (s, a) was demonstrated.

    The reward is always positive, which rewards longer episodes. This helps if episodes end by failure. If they end by
    success, it keeps the agent from ending them; in that case set `ignore_done` of the TD loss.

    D learns by cross-entropy, demonstrations against replayed frames. A penalty `c (|grad logit| - 1)^2` at random points
    between the two keeps D from separating them at once, after which it would teach nothing.

    Args:
        observation_spec, action_spec: of the environment.
        strength, gamma, learning_rate, update_period, batch_size, normalize: see `RewardSignal`.
        hidden_layers: of the discriminator.
        gradient_penalty: c; 0: no penalty.

    Raises:
        TaacError: errors of `RewardSignal`; a negative or infinite penalty.

    Sources: Ho and Ermon (arXiv:1606.03476), algorithm 1; off-policy and with the penalty: Kostrikov et al.
    (arXiv:1809.02925), section 4.
    """

    name = "gail"
    needs_demonstrations = True

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        strength: float | Schedule = 1.0,
        gamma: float | None = None,
        learning_rate: float | Schedule = 1e-3,
        update_period: float = 1,
        batch_size: int | None = None,
        normalize: bool = False,
        hidden_layers: Sequence[int] = (128, 128),
        gradient_penalty: float = 10.0,
    ):
        super().__init__(strength, gamma, learning_rate, update_period, normalize, batch_size)
        if not 0 <= gradient_penalty < math.inf:
            raise TaacError(f"GAIL.gradient_penalty must be 0 or more, got {gradient_penalty}")
        self.gradient_penalty = gradient_penalty
        self.pairs = ObservationActionPairs(observation_spec, action_spec)
        self.logit = network(self.pairs.observation.output_size + self.pairs.action.output_size, hidden_layers, 1)

    def reward(self, time_step: TimeStep) -> torch.Tensor:
        return F.softplus(self.logit(self._seen(time_step)).squeeze(-1))  # -log(1 - sigmoid(x))

    def loss(self, time_step: TimeStep, demonstrations: TimeStep | None) -> torch.Tensor:
        assert demonstrations is not None
        own, shown = self._seen(time_step), self._seen(demonstrations)
        loss = mean_over_transitions(time_step, F.softplus(self.logit(own).squeeze(-1)))  # -log(1 - D)
        loss = loss + mean_over_transitions(demonstrations, F.softplus(-self.logit(shown).squeeze(-1)))  # -log D
        if not self.gradient_penalty:
            return loss
        between = torch.lerp(own, shown, torch.rand_like(own[..., :1])).detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.logit(between).sum(), between, create_graph=True)
        arrives = (transitions(time_step) & transitions(demonstrations)).to(slope.dtype)
        penalty = ((slope.norm(dim=-1) - 1.0).square() * arrives).sum() / arrives.sum().clamp(min=1.0)
        return loss + self.gradient_penalty * penalty

    def _seen(self, time_step: TimeStep) -> torch.Tensor:
        """Returns states and the actions taken there, of frames 0..T-2, `[T-1, B, F+A]`."""
        state = self.pairs.observation(nest.index(time_step.observation, slice(None, -1)))
        return torch.cat([state, self.pairs.action(nest.index(time_step.prev_action, slice(1, None)))], -1)
