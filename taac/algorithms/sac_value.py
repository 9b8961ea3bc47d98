"""SAC with a state-value network: targets bootstrap from V(s'), and only V and its encoder have target networks.

Source: Haarnoja et al., Soft Actor-Critic: Off-Policy Maximum Entropy Deep Reinforcement Learning with a Stochastic
Actor (ICML 2018, arXiv:1801.01290), algorithm 1, whose equation numbers are used below.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import gin
import torch
import torch.nn as nn
import torch.nn.functional as F

from taac.algorithms.actor_critic import TrainInfo, trainable
from taac.algorithms.critic_step import CriticStep
from taac.algorithms.sac import SacAlgorithm
from taac.algorithms.temperature import Temperature
from taac.data_structures import Experience, LossInfo, Nest
from taac.errors import TaacError
from taac.networks import CriticEnsemble
from taac.networks.batch_statistics import gathering
from taac.specs import TensorSpec

ALPHA_1 = functools.partial(Temperature, tuning="fixed")


@gin.configurable
class SacValueAlgorithm(SacAlgorithm):
    """SAC with networks V, target V, Q_1, Q_2 and a policy (Haarnoja et al., arXiv:1801.01290, algorithm 1).

    V learns `min_i Q_i(s, a~) - alpha log pi(a~|s)`, the critics learn `scale * r + gamma V'(s')`, and the actor learns as in
    SAC. V, like the actor, sends no gradient to a shared encoder. Errors are squared without the paper's factor 1/2, as in
    the whole package.

    Args:
        observation_spec, action_spec, sac_arguments: see `SacAlgorithm`. `entropy_in_target` sets whether V contains the
            entropy bonus; if it does, multi-step targets add the bonus at each of their steps.
        value_ctor: called with the feature size, `reward_dim` and `num_critics=1`; see `CriticEnsemble`.
        reward_scale: factor of raw rewards, the inverse of a temperature. The paper uses 5, and 20 for Humanoid. Normalised
            rewards (`create_agent.normalize_rewards`) already have a scale, so `create_agent` sets this to 1 for them.
        value_encoder_ctor: like `encoder_ctor`, for a separate encoder of V, trained by V's loss, with a target network.
            None: V uses the critics' features, without a gradient.
        temperature_ctor: see `SacAlgorithm`; by default alpha is fixed at 1.

    Raises:
        TaacError: errors of `SacAlgorithm`; a scale that is not above 0.
    """

    value_encoder: nn.Module | None

    learns_value = True

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        *,
        value_ctor: Callable[..., nn.Module] = CriticEnsemble,
        reward_scale: float = 5.0,
        temperature_ctor: Callable[..., Temperature] = ALPHA_1,
        value_encoder_ctor: Callable[..., nn.Module] | None = None,
        **sac_arguments: Any,
    ):
        if not reward_scale > 0:
            raise TaacError(f"SacValueAlgorithm.reward_scale must be above 0, got {reward_scale}")
        super().__init__(observation_spec, action_spec, temperature_ctor=temperature_ctor, **sac_arguments)
        self.reward_scale = reward_scale
        self.register_module("value_encoder", value_encoder_ctor and value_encoder_ctor(observation_spec))
        own: Any = self.encoder if self.value_encoder is None else self.value_encoder
        self.value = value_ctor(int(own.output_size), self.reward_dim, num_critics=1)
        self.target_value = copy.deepcopy(self.value).requires_grad_(False)
        self.check_critics(self.value)
        del self.target_critics
        if self.value_encoder is not None:
            self.target_value_encoder = copy.deepcopy(self.value_encoder).requires_grad_(False)
            del self.target_encoder

    def train_step(self, experience: Experience) -> TrainInfo:
        info = super().train_step(experience)
        assert info.features is not None
        features = info.features if self.value_encoder is None else self.value_encoder(experience.time_step.observation)
        # The predictions of V(s): [1, T, B(, D)(, ...)], or [1, T-1, ...] if the actor does not learn on the last frame
        learnt = slice(len(info.log_pi))
        with gathering(self.value, ~experience.time_step.is_last()[learnt]):
            return info._replace(own=self.value(features[learnt]))

    def target_features(self, observation: Nest) -> torch.Tensor:
        return (self.target_encoder if self.value_encoder is None else self.target_value_encoder)(observation)

    def next_value(
        self,
        critics: CriticStep,
        target_features: torch.Tensor,
        actor_features: torch.Tensor,
        action: torch.Tensor,
        log_pi: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Returns `V'(s')` (equation 8), and the entropy bonus of each step, which V' contains: `[T-1, B(, D)]` both."""
        value = self.q_values(self.target_value, target_features)[0]
        if not self.entropy_in_target:
            return value, None
        bonus = self.share_out(-self.temperature.alpha() * log_pi[1:])
        # The bonus of the segment's last frame is never read, and the actor may not have been evaluated there.
        return value, torch.cat([bonus, torch.zeros_like(value[len(bonus) :])])

    def calc_loss(self, experience: Experience, info: TrainInfo) -> LossInfo:
        scaled = experience.time_step._replace(reward=self.reward_scale * experience.time_step.reward)
        loss_info = super().calc_loss(experience._replace(time_step=scaled), info)
        target = info.q_pi
        assert target is not None
        if self.entropy_in_target:
            target = target + self.share_out(-self.temperature.alpha() * info.log_pi)
        value_loss = self.value_error(self.value, info.own, target)  # equation 5
        value_loss = self.masked(experience, F.pad(value_loss, (0, 0, 0, len(loss_info.loss) - len(value_loss))))
        extra = {**loss_info.extra, "loss/value": self.mean_acted(experience, value_loss[: len(info.own[0])])}
        v = self.mean_over_parts(self.value_of(self.value, info.own)[0])
        detail = {**(loss_info.detail or {}), "v": v, "v_target": self.mean_over_parts(target)}
        return loss_info._replace(loss=loss_info.loss + value_loss, extra=extra, detail=detail)

    def describe(self) -> list[str]:
        return [*super().describe(), f"rewards are multiplied by {self.reward_scale:g} where they are learnt from"]

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups = super().parameter_groups()
        own = {name: groups.pop(name) for name in ("actor", "critic")}
        groups = {**own, "value": trainable(self.value), **groups}
        return groups if self.value_encoder is None else {**groups, "value_encoder": trainable(self.value_encoder)}

    def summary_tags(self) -> dict[str, str]:
        return {
            "loss/value": "error (squared, or Huber's) of V(s), mean over the frames that it is learnt on (not LAST)"
        }
