"""TD3: a deterministic actor, the smaller of two target critics, smoothed target actions, and delayed updates of the policy.

Source: Fujimoto, van Hoof and Meger, Addressing Function Approximation Error in Actor-Critic Methods (ICML 2018,
arXiv:1802.09477), algorithm 1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms.actor_critic import ActorCriticAlgorithm, TrainInfo
from taac.algorithms.algorithm import learns_policy
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError
from taac.networks import DeterministicActorNetwork
from taac.networks.batch_statistics import gathering
from taac.ops import losses
from taac.ops.schedules import Schedule, bounds, follow
from taac.specs import TensorSpec, check_unit_box


@gin.configurable
class Td3Algorithm(ActorCriticAlgorithm):
    """Twin delayed deterministic policy gradients (Fujimoto, van Hoof and Meger, arXiv:1802.09477, algorithm 1).

    Critics regress on `r + gamma min_i Q'_i(s', clip(mu'(s') + clip(noise, -c, c), -1, 1))`; the actor maximises `Q_1(s, mu(s))`,
    or the mean of the critics with `combine_critics = 'mean'`, which then takes the place of `min_i`, too.
    `ActorCriticAlgorithm.policy_delay` delays the actor, `target_update_period` the target networks; `gin/methods/td3.gin` binds
    2 to both, as published.

    Args:
        observation_spec, action_spec: of the environment; actions are a vector in [-1, 1].
        actor_ctor: called with input and action size; see `DeterministicActorNetwork`.
        exploration_noise: standard deviation of the normal noise on rollout actions, as a fraction of half the action's range; a
            number or a schedule.
        target_noise: standard deviation of the noise on target actions.
        target_noise_clip: c, the largest noise on a target action.
        actor_critic: arguments of `ActorCriticAlgorithm`; bind them there in gin.

    Raises:
        TaacError: a discrete, nested or unscaled action space; settings out of range.
    """

    has_proposal = takes_noise = True
    learns_on_last_frame = False
    exploration_noise: torch.Tensor
    target_actor_encoder: nn.Module | None

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        *,
        actor_ctor: Callable[..., nn.Module] = DeterministicActorNetwork,
        exploration_noise: float | Schedule = 0.1,
        target_noise: float = 0.2,
        target_noise_clip: float = 0.5,
        **actor_critic: Any,
    ):
        check_unit_box(action_spec, "Td3Algorithm")
        for name, value in {
            "exploration_noise": exploration_noise, "target_noise": target_noise, "target_noise_clip": target_noise_clip
        }.items():  # fmt: skip
            if not (bounds(value)[0] >= 0 and bounds(value)[1] < math.inf):
                raise TaacError(f"Td3Algorithm.{name} must be 0 or more, got {value}")
        super().__init__(observation_spec, action_spec, action_sizes=[action_spec.numel], **actor_critic)
        self.actor = actor_ctor(self.actor_feature_size, self.action_size)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        own_encoder = self.actor_encoder and copy.deepcopy(self.actor_encoder).requires_grad_(False)
        self.register_module("target_actor_encoder", own_encoder)
        self.target_noise, self.target_noise_clip = target_noise, target_noise_clip
        self.register_buffer("exploration_noise", torch.zeros(()), persistent=False)
        self.scheduled += follow(self, exploration_noise=exploration_noise)

    # Acting ----------------------------------------------------------------------------------------------------------

    def greedy_step(self, time_step: TimeStep, features: torch.Tensor, epsilon: float) -> AlgStep:
        mean = self.actor(features)
        action = torch.tanh(mean)
        if epsilon > 0:
            action = torch.where(torch.rand_like(action[..., :1]) < epsilon, self._explored(action), action)
        return self.execute(time_step, action)._replace(policy=(mean, torch.full_like(mean, -math.inf)))

    def sampled_step(self, time_step: TimeStep, features: torch.Tensor, noise: torch.Tensor | None = None) -> AlgStep:
        return self.execute(time_step, self._explored(torch.tanh(self.actor(features)), noise))

    def _explored(self, action: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        return (action + self.exploration_noise * (torch.randn_like(action) if noise is None else noise)).clamp(-1.0, 1.0)

    # Learning --------------------------------------------------------------------------------------------------------

    def train_step(self, experience: Experience) -> TrainInfo:
        time_step = experience.time_step
        features, actor_features = self.encode(time_step.observation)

        # Actor: maximise Q_1(s, mu(s)), or mean_i Q_i
        q_pi, actor_loss = None, torch.zeros_like(time_step.discount[1:])
        if learns_policy():
            with gathering(self.actor, ~time_step.is_last()[:-1]):
                action = torch.tanh(self.actor(actor_features[:-1]))
            each = self.q_values(self.critics, features.detach()[:-1], action)
            q_pi = each[0] if self.combine_critics == "min" else self.over_critics(each)
            actor_loss = losses.action_gradient_loss(action, self.action_gradient(self.weighted(q_pi), action))

        # a' = clip(mu'(s') + clip(noise, -c, c), -1, 1), and V(s') = min_i Q'_i(s', a')
        critics = self.critic_step(time_step, features, time_step.prev_action[1:])
        with torch.no_grad():
            next_observation = nest.index(time_step.observation, slice(1, None))
            target_features, greedy = self.target_action(next_observation)
            noise = (self.target_noise * torch.randn_like(greedy)).clamp(-self.target_noise_clip, self.target_noise_clip)
            next_action = (greedy + noise).clamp(-1.0, 1.0)
            value = critics.bootstrap(target_features, next_action)

        return self.train_info(actor_loss, critics.prediction(), value, q_pi=q_pi, features=features)

    def target_action(self, observation: Nest) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the target critics' features `[..., F]` and the target actor's action `mu'(s)` `[..., A]`, without noise."""
        features, own = self.target_encoder(observation), self.target_actor_encoder
        return features, torch.tanh(self.target_actor(features if own is None else own(observation)))

    def calc_loss(self, experience: Experience, info: TrainInfo) -> LossInfo:
        return self.loss_info(experience, info, self.targets(experience, info))

    def proposal(self, observation: Nest, experience: Experience) -> torch.Tensor:
        return torch.tanh(self.actor(self.actor_features(observation)))

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """Returns `|mu(s) - a|^2`, the squared distance from the demonstrated action a."""
        action = self.proposal(nest.index(experience.time_step.observation, slice(None, -1)), experience)
        return self.cloned(experience, (action - experience.time_step.prev_action[1:]).square().sum(-1))
