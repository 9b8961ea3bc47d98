"""A method of your own: a deterministic policy that explores with normal noise, two critics, and target networks of all.

taac train --task Pendulum-v1 --method experiments/examples/own_method.gin

Source: Lillicrap et al., Continuous control with deep reinforcement learning (DDPG, arXiv:1509.02971), algorithm 1; the minimum
over two critics as in TD3 (Fujimoto et al., arXiv:1802.09477).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms.actor_critic import ActorCriticAlgorithm
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError
from taac.networks.layers import Mlp
from taac.ops import losses
from taac.specs import TensorSpec, check_unit_box


class DdpgTrainInfo(NamedTuple):
    """Passed from `train_step` to `calc_loss`."""

    actor_loss: torch.Tensor  # [T, B]
    prediction: torch.Tensor  # [N, T-1, B(, D)], Q of the executed actions
    value: torch.Tensor  # [T, B(, D)], target values; 0 at frame 0, where they are never read


@gin.configurable
class DdpgAlgorithm(ActorCriticAlgorithm):
    """DDPG with two critics.

    Encoder, critics, their target copies, TD losses and vector rewards come from `ActorCriticAlgorithm`. What is added here: an
    actor, its target copy (found by its name, `target_actor`), and the five steps.

    Args:
        observation_spec, action_spec: of the environment; actions are a vector in [-1, 1].
        hidden_layers: widths of the actor.
        noise: standard deviation of what is added to the action while exploring.
        actor_critic: arguments of `ActorCriticAlgorithm`; bind them there in gin.

    Raises:
        TaacError: an encoder of the actor's own, of which there is no target copy here.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        *,
        hidden_layers: Sequence[int] = (256, 256),
        noise: float = 0.1,
        **actor_critic: Any,
    ):
        check_unit_box(action_spec, "DdpgAlgorithm")
        super().__init__(observation_spec, action_spec, action_sizes=[action_spec.numel], **actor_critic)
        if self.actor_encoder is not None:
            raise TaacError("DdpgAlgorithm's target actor has the critics' features: remove actor_encoder_ctor")
        layers = [Mlp(self.actor_feature_size, hidden_layers), nn.Linear(hidden_layers[-1], action_spec.numel), nn.Tanh()]
        self.actor = nn.Sequential(*layers)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.noise = noise

    # Acting. State that runs through time would be passed in and out of `predict_step` and `rollout_step`; this method has none.

    def greedy_step(self, time_step: TimeStep, features: torch.Tensor, epsilon: float) -> AlgStep:
        return self.execute(time_step, self.actor(features))

    def sampled_step(self, time_step: TimeStep, features: torch.Tensor, noise: torch.Tensor | None = None) -> AlgStep:
        action = self.actor(features)
        return self.execute(time_step, (action + self.noise * torch.randn_like(action)).clamp(-1.0, 1.0))

    # Learning

    def train_step(self, experience: Experience) -> DdpgTrainInfo:
        time_step = experience.time_step
        features, seen = self.encode(time_step.observation)  # of the critics, and of the actor

        # Actor: climb dQ/da
        action = self.actor(seen)
        q = self.min_q(self.critics, features.detach(), action)
        actor_loss = losses.action_gradient_loss(action, self.action_gradient(q, action))

        # V(s') = min_i Q'_i(s', pi'(s'))
        with torch.no_grad():
            after = self.target_encoder(nest.index(time_step.observation, slice(1, None)))
            value = self.over_critics(self.q_values(self.target_critics, after, self.target_actor(after)))
        prediction = self.critics(features[:-1], time_step.prev_action[1:])
        return DdpgTrainInfo(actor_loss, prediction, self.pad_front(value))

    def calc_loss(self, experience: Experience, info: DdpgTrainInfo) -> LossInfo:
        every_step = torch.ones_like(experience.time_step.step_type, dtype=torch.bool)
        target = self.td_loss.returns(experience.time_step, info.value, every_step)
        critic_loss = self.critic_loss(info.prediction, target)
        q = self.value_of(self.critics, info.prediction)
        summaries = {
            "loss/critic": self.mean_acted(experience, critic_loss[:-1]),
            "loss/actor": self.mean_acted(experience, info.actor_loss),
            "ddpg/q": self.mean_acted(experience, self.mean_over_parts(q.mean(0))),
        }
        loss = self.masked(experience, info.actor_loss + critic_loss)
        return LossInfo(loss, summaries, self.segment_error(experience, q, target))

    def summary_tags(self) -> dict[str, str]:
        return {"ddpg/q": "Q of the executed actions, mean over critics and over frames except LAST"}
