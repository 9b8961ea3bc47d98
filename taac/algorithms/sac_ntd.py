"""SAC-Ntd: SAC that learns from N-step Retrace returns.

Source: Munos et al. (arXiv:1606.02647) on SAC (arXiv:1812.05905), a baseline in TAAC (arXiv:2104.06521).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gin
import torch

from taac import nest
from taac.algorithms.actor_critic import TrainInfo
from taac.algorithms.sac import SacAlgorithm
from taac.algorithms.td_losses import BaseTDLoss, RetraceTDLoss
from taac.data_structures import AlgStep, Experience, Nest, TimeStep
from taac.errors import TaacError
from taac.networks.batch_statistics import has_batch_statistics
from taac.ops import distributions
from taac.ops.value_distributions import mean_of


class SacNtdInfo(NamedTuple):
    """Stored with each frame in the replay buffer."""

    pre_tanh: torch.Tensor  # [B, A], the action before tanh
    log_mu: torch.Tensor  # [B], log-density of the action (after tanh) under the rollout's policy


@gin.configurable
class SacNtdAlgorithm(SacAlgorithm):
    """Continuous SAC with Retrace. The rollout stores the log-probability of each action.

    It also stores the action before tanh, so that its probability under the current policy is exact at saturation.

    Args:
        observation_spec, action_spec: of the environment; actions are a vector in [-1, 1].
        sac_arguments: arguments of `SacAlgorithm`; bind them there in gin. `td_loss` must be a `RetraceTDLoss`.

    Raises:
        TaacError: errors of `SacAlgorithm`; a TD loss that is not `RetraceTDLoss`; batch normalisation.
    """

    td_loss: RetraceTDLoss
    default_td_loss: type[BaseTDLoss] = RetraceTDLoss
    stores_probabilities = True
    takes_noise = False  # Retrace needs the probability of an action given those before

    def __init__(self, observation_spec: Nest, action_spec: Any, **sac_arguments: Any):
        super().__init__(observation_spec, action_spec, **sac_arguments)
        if not isinstance(self.td_loss, RetraceTDLoss):
            raise TaacError(f"SacNtdAlgorithm.td_loss must be @RetraceTDLoss(), got {type(self.td_loss).__name__}")
        if has_batch_statistics(self):
            raise TaacError(
                "SacNtdAlgorithm cannot use BatchNorm: Retrace compares values and probabilities, which statistics of a batch "
                "would normalise differently: bind another body"
            )

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: Nest) -> AlgStep:  # type: ignore[override]
        mean, log_std = self.actor(self.actor_features(time_step.observation))
        pre_tanh = mean + log_std.exp() * torch.randn_like(mean)
        log_mu = distributions.squashed_normal_log_prob(pre_tanh, mean, log_std)
        info = SacNtdInfo(pre_tanh, log_mu)
        return self.execute(time_step, torch.tanh(pre_tanh))._replace(info=info, policy=(mean, log_std))

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        step = super().random_step(time_step, state)
        # The uniform density over [-1, 1]^A is 2^-A.
        log_mu = torch.full_like(step.output[..., 0], -self.action_size * math.log(2.0))
        edge = 1.0 - torch.finfo(step.output.dtype).eps
        return step._replace(info=SacNtdInfo(torch.atanh(step.output.clamp(-edge, edge)), log_mu))

    def train_step(self, experience: Experience) -> TrainInfo:
        with torch.no_grad():
            features = self.target_encoder(nest.index(experience.time_step.observation, slice(None, -1)))
            prediction = self.target_critics(features, experience.time_step.prev_action[1:])
            target_q = mean_of(self.bootstrap_value(self.target_critics, prediction))  # [T-1, B(, D)], at the executed actions
        return super().train_step(experience)._replace(own=target_q)

    def targets(self, experience: Experience, info: TrainInfo) -> torch.Tensor:
        pre_tanh, log_mu = experience.rollout_info
        assert info.mean is not None and info.log_std is not None
        log_pi = distributions.squashed_normal_log_prob(
            pre_tanh[:-1], info.mean[: len(pre_tanh) - 1], info.log_std[: len(pre_tanh) - 1]
        )
        return self.td_loss.retrace(experience.time_step, mean_of(info.value), info.own, log_pi - log_mu[:-1])
