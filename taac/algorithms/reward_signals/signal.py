"""Rewards beside the task's: each is the prediction of a model that learns on the batches that the algorithm learns from.

A signal's reward for the transition from frame t to t+1 arrives with frame t+1, as the task's does. The learner makes it one
more part of a vector reward, so that it has a value, a discount and a weight of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import gin
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from taac import nest
from taac.data_structures import Nest, TimeStep
from taac.errors import TaacError
from taac.networks import ObservationEncoder
from taac.networks.layers import Mlp
from taac.ops.schedules import Schedule, bounds


class RewardSignal(nn.Module):
    """A reward of its own.

    Args:
        strength: its weight in the sum that the policy maximises; a number, or a schedule of it.
        gamma: its discount; None: what the TD loss's gamma gives it, which is the task's where that is one number.
        learning_rate: of its model; a number, or a schedule of it.
        update_period: updates of the algorithm for each of its model.
        batch_size: segments that its model learns from at a time, drawn uniformly from the same replay, and as many of
            demonstrations where it needs any; None: those that the algorithm learns from.
        normalize: whether rewards are divided by their running standard deviation (about 0), so that strengths mean the
            same in every task.
    """

    name: str
    needs_demonstrations = False
    num_batches: torch.Tensor
    mean_square: torch.Tensor
    last_loss: torch.Tensor  # of the last update of its model, for summaries

    def __init__(
        self,
        strength: float | Schedule,
        gamma: float | None,
        learning_rate: float | Schedule,
        update_period: int,
        normalize: bool,
        batch_size: int | None = None,
    ):
        super().__init__()
        kind = type(self).__name__
        if not all(map(math.isfinite, bounds(strength))) or not any(bounds(strength)):
            raise TaacError(f"{kind}.strength must be a number other than 0, got {strength}")
        if gamma is not None and not 0 <= gamma <= 1:
            raise TaacError(f"{kind}.gamma must be in [0, 1], or None, got {gamma}")
        if not (bounds(learning_rate)[0] >= 0 and 0 < bounds(learning_rate)[1] < math.inf):
            raise TaacError(f"{kind}.learning_rate must be above 0, got {learning_rate}")
        if update_period < 1:
            raise TaacError(f"{kind}.update_period must be 1 or more updates, got {update_period}")
        self.strength, self.gamma, self.learning_rate = strength, gamma, learning_rate
        if batch_size is not None and batch_size < 1:
            raise TaacError(f"{kind}.batch_size must be 1 or more segments, or None, got {batch_size}")
        self.update_period, self.normalize, self.batch_size = update_period, normalize, batch_size
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean_square", torch.zeros((), dtype=torch.float64))
        self.register_buffer("last_loss", torch.zeros(()))

    @torch.no_grad()
    def forward(self, time_step: TimeStep) -> torch.Tensor:
        """The rewards `[T, B]` of replayed frames `[T, B]`, on arriving there: 0 at frame 0, which is never read, and at FIRST.

        Moves the statistics that they are divided by: at call k by `8 / (8 + k)`, as those of the task's rewards.
        """
        arrives = ~time_step.is_first()[1:]
        reward = torch.where(arrives, self.reward(time_step), 0.0)
        if self.normalize and bool(arrives.any()):
            fresh = (reward.double().square().sum() / arrives.sum()).to(self.mean_square)
            self.mean_square.lerp_(fresh, 8.0 / (8.0 + float(self.num_batches)))
            self.num_batches.add_(1)
        return F.pad(self._normalized(reward), (0, 0, 1, 0))

    @torch.no_grad()
    def total(self, time_step: TimeStep) -> torch.Tensor:
        """The sum `[B]` of the rewards of an episode's frames `[T, B]`, as they are learnt from; moves no statistics."""
        return self._normalized(torch.where(time_step.is_first()[1:], 0.0, self.reward(time_step))).sum(0)

    def _normalized(self, reward: torch.Tensor) -> torch.Tensor:
        return reward / (self.mean_square + 1e-10).sqrt().to(reward.dtype) if self.normalize else reward

    def reward(self, time_step: TimeStep) -> torch.Tensor:
        """Of the transitions between frames, `[T-1, B]`, before normalisation; any value where frame t+1 is FIRST."""
        raise NotImplementedError

    def loss(self, time_step: TimeStep, demonstrations: TimeStep | None) -> torch.Tensor:
        """What its model minimises on replayed frames `[T, B]`, and as many of demonstrations where it needs any; a scalar."""
        raise NotImplementedError


class _Pairs(nn.Module):
    """Features of observations, and actions as vectors: numbers as they are, choices one-hot."""

    def __init__(self, observation_spec: Nest, action_spec: Nest):
        super().__init__()
        self.observation, self.action = ObservationEncoder(observation_spec), ObservationEncoder(action_spec)
        self.parts: list[tuple[int, bool]] = []  # of the action's vector: width, and whether it is a choice's one-hot
        for spec in nest.flatten(action_spec):
            if spec.is_categorical:
                self.parts += [(int(n), True) for n in np.broadcast_to(spec.num_choices, spec.shape).reshape(-1)]
            else:
                self.parts.append((spec.numel, False))


def _transitions(time_step: TimeStep, values: torch.Tensor) -> torch.Tensor:
    """The mean of `[T-1, B]` over transitions: not from LAST to FIRST."""
    arrives = (~time_step.is_first()[1:]).to(values.dtype)
    return (values * arrives).sum() / arrives.sum().clamp(min=1.0)


@gin.configurable
class ICM(RewardSignal):
    """Curiosity: how badly the next state's features are foretold, `r = 1/2 |f(phi(s), a) - phi(s')|^2`.

    The features phi are those that tell which action was taken: an inverse model `g(phi(s), phi(s'))` learns that, and phi
    with it. The loss is `(1 - beta) L_inverse + beta L_forward`; the forward loss does not move phi, which could otherwise
    become a constant. Of continuous parts of an action L_inverse is the squared error, of each choice the cross-entropy.

    Args:
        observation_spec, action_spec: of the environment.
        strength, gamma, learning_rate, update_period, batch_size, normalize: see `RewardSignal`.
        feature_size: of phi.
        hidden_layers: of each model.
        beta: of the loss, in (0, 1).

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
        update_period: int = 1,
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
        self.pairs = _Pairs(observation_spec, action_spec)
        actions = self.pairs.action.output_size
        self.phi = _network(self.pairs.observation.output_size, hidden_layers, feature_size)
        self.inverse = _network(2 * feature_size, hidden_layers, actions)
        self.foretell = _network(feature_size + actions, hidden_layers, feature_size)

    def reward(self, time_step: TimeStep) -> torch.Tensor:
        features, action = self._seen(time_step)
        return self._forward_error(features, action)

    def loss(self, time_step: TimeStep, demonstrations: TimeStep | None) -> torch.Tensor:
        features, action = self._seen(time_step)
        told, error = self.inverse(torch.cat([features[:-1], features[1:]], -1)), torch.zeros_like(features[1:, :, 0])
        position = 0
        for width, chosen in self.pairs.parts:
            part = slice(position, position + width)
            position += width
            if chosen:
                error = error - (action[..., part] * torch.log_softmax(told[..., part], -1)).sum(-1)
            else:
                error = error + (told[..., part] - action[..., part]).square().sum(-1)
        forward = self._forward_error(features.detach(), action)
        return _transitions(time_step, (1 - self.beta) * error + self.beta * forward)

    def _seen(self, time_step: TimeStep) -> tuple[torch.Tensor, torch.Tensor]:
        """phi(s) `[T, B, F]`, and the actions `[T-1, B, A]` taken at frames 0..T-2."""
        features = self.phi(self.pairs.observation(time_step.observation))
        return features, self.pairs.action(nest.index(time_step.prev_action, slice(1, None)))

    def _forward_error(self, features: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        told = self.foretell(torch.cat([features[:-1], action], -1))
        return 0.5 * (told - features[1:]).square().sum(-1)


@gin.configurable
class RND(RewardSignal):
    """Novelty: how badly a network foretells what a fixed random one makes of the state arrived at, `r = |p(s') - f(s')|^2`.

    The paper normalises observations: `create_agent.normalize_observations = True`.

    Args:
        observation_spec, action_spec: of the environment.
        strength, gamma, learning_rate, update_period, batch_size, normalize: see `RewardSignal`.
        feature_size: of both networks' outputs.
        hidden_layers: of both; the one that learns has one more.

    Source: Burda et al. (arXiv:1810.12894), section 2.2. Its values of novelty go on beyond the end of an episode; here
    they end with it.
    """

    name = "rnd"

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        strength: float | Schedule = 0.1,
        gamma: float | None = None,
        learning_rate: float | Schedule = 3e-4,
        update_period: int = 1,
        batch_size: int | None = None,
        normalize: bool = True,
        feature_size: int = 64,
        hidden_layers: Sequence[int] = (128,),
    ):
        super().__init__(strength, gamma, learning_rate, update_period, normalize, batch_size)
        self.encoder = ObservationEncoder(observation_spec)
        width = self.encoder.output_size
        self.fixed_encoder = ObservationEncoder(observation_spec).requires_grad_(False)
        self.fixed = _network(width, hidden_layers, feature_size).requires_grad_(False)
        self.predictor = _network(width, [*hidden_layers, *hidden_layers[-1:]], feature_size)

    def reward(self, time_step: TimeStep) -> torch.Tensor:
        arrived = nest.index(time_step.observation, slice(1, None))
        with torch.no_grad():
            target = self.fixed(self.fixed_encoder(arrived))
        return (self.predictor(self.encoder(arrived)) - target).square().sum(-1)

    def loss(self, time_step: TimeStep, demonstrations: TimeStep | None) -> torch.Tensor:
        return _transitions(time_step, self.reward(time_step))


@gin.configurable
class GAIL(RewardSignal):
    """Imitation: `r = -log(1 - D(s, a))`, with D the probability that a discriminator gives to (s, a) being demonstrated.

    The reward is above 0 everywhere: where the task ends by failure that helps, where it ends by success it keeps the agent
    from ending it; there, let the TD loss `ignore_done`.

    D learns by cross-entropy, demonstrations against replayed frames, with a penalty `c (|grad D| - 1)^2` of the logit's
    gradient between the two, without which it would tell them apart at once and teach nothing.

    Args:
        observation_spec, action_spec: of the environment.
        strength, gamma, learning_rate, update_period, batch_size, normalize: see `RewardSignal`.
        hidden_layers: of the discriminator.
        gradient_penalty: c; 0: none.

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
        update_period: int = 1,
        batch_size: int | None = None,
        normalize: bool = False,
        hidden_layers: Sequence[int] = (128, 128),
        gradient_penalty: float = 10.0,
    ):
        super().__init__(strength, gamma, learning_rate, update_period, normalize, batch_size)
        if not 0 <= gradient_penalty < math.inf:
            raise TaacError(f"GAIL.gradient_penalty must be 0 or more, got {gradient_penalty}")
        self.gradient_penalty = gradient_penalty
        self.pairs = _Pairs(observation_spec, action_spec)
        self.logit = _network(self.pairs.observation.output_size + self.pairs.action.output_size, hidden_layers, 1)

    def reward(self, time_step: TimeStep) -> torch.Tensor:
        return F.softplus(self.logit(self._seen(time_step)).squeeze(-1))  # -log(1 - sigmoid(x))

    def loss(self, time_step: TimeStep, demonstrations: TimeStep | None) -> torch.Tensor:
        assert demonstrations is not None
        own, shown = self._seen(time_step), self._seen(demonstrations)
        told = _transitions(time_step, F.softplus(self.logit(own).squeeze(-1)))  # -log(1 - D)
        told = told + _transitions(demonstrations, F.softplus(-self.logit(shown).squeeze(-1)))  # -log D
        if not self.gradient_penalty:
            return told
        between = torch.lerp(own, shown, torch.rand_like(own[..., :1])).detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.logit(between).sum(), between, create_graph=True)
        arrives = (~(time_step.is_first() | demonstrations.is_first())[1:]).to(slope.dtype)
        penalty = ((slope.norm(dim=-1) - 1.0).square() * arrives).sum() / arrives.sum().clamp(min=1.0)
        return told + self.gradient_penalty * penalty

    def _seen(self, time_step: TimeStep) -> torch.Tensor:
        """States and the actions taken there, of frames 0..T-2, `[T-1, B, F+A]`."""
        state = self.pairs.observation(nest.index(time_step.observation, slice(None, -1)))
        return torch.cat([state, self.pairs.action(nest.index(time_step.prev_action, slice(1, None)))], -1)


def _network(input_size: int, hidden_layers: Sequence[int], output_size: int) -> nn.Sequential:
    if min([output_size, *hidden_layers]) < 1:
        raise TaacError(
            f"a reward signal's feature_size and hidden_layers must be 1 or more, got {output_size} and {tuple(hidden_layers)}"
        )
    last = nn.Linear(hidden_layers[-1] if hidden_layers else input_size, output_size)
    return Mlp(input_size, hidden_layers).append(last)
