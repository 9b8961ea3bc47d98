"""Soft actor-critic for continuous actions.

Source: Haarnoja et al., Soft Actor-Critic Algorithms and Applications (arXiv:1812.05905), algorithm 1; equation numbers
below are that paper's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms import target_entropies
from taac.algorithms.actor_critic import ActorCriticAlgorithm, TrainInfo
from taac.algorithms.algorithm import learns_policy
from taac.algorithms.critic_step import CriticStep
from taac.algorithms.temperature import Temperature
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError
from taac.networks import ActorNetwork
from taac.networks.batch_statistics import gathering, has_batch_statistics
from taac.ops import distributions, losses
from taac.ops.schedules import Schedule
from taac.ops.value_distributions import ValueDistribution, mean_of, shifted
from taac.specs import TensorSpec, check_unit_box


@gin.configurable
class SacAlgorithm(ActorCriticAlgorithm):
    """Continuous SAC (Haarnoja et al., arXiv:1812.05905, algorithm 1).

    Args:
        observation_spec, action_spec: of the environment; actions are a vector in [-1, 1].
        actor_ctor: called with input and action size; see `ActorNetwork`.
        action_min_prob: sets the target entropy, `sum_i log((max_i - min_i) * action_min_prob)`.
        target_entropy: sets the target entropy directly, in nats.
        temperature_ctor: called with the target entropy; see `Temperature`.
        entropy_in_target: whether targets include the entropy bonus `- alpha log pi(a'|s')` of every step that they pass,
            discounted like the value: of the next step with a one-step `td_loss`, and of all later ones too with `TDLoss`.
        actor_on_last_frame: True: actor and temperature learn on all T frames, as published with TAAC. False: they learn on
            frames 0..T-2, whose actions were taken, as in algorithm 1 and in other implementations, which is less work.
            "statistics": as False, but the last frame counts for the actor's batch normalisation (FlashSAC).
        actor_critic: arguments of `ActorCriticAlgorithm`; bind them there in gin. With a vector reward, the entropy bonus is
            split over its parts so that their weighted sum is the bonus.

    Raises:
        TaacError: a discrete, nested or unscaled action space; a target entropy that cannot be reached; settings out of
            range.
    """

    has_proposal = takes_noise = True
    learns_value = False  # whether a value network learns the value of the policy's action, `TrainInfo.q_pi`

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        *,
        actor_ctor: Callable[..., nn.Module] = ActorNetwork,
        action_min_prob: float = 0.1,
        target_entropy: float | Schedule | None = None,
        temperature_ctor: Callable[..., Temperature] = Temperature,
        entropy_in_target: bool = True,
        actor_on_last_frame: bool | Literal["statistics"] = True,
        **actor_critic: Any,
    ):
        check_unit_box(action_spec, "SacAlgorithm")
        parts = self.action_parts(action_spec.zeros())
        super().__init__(observation_spec, action_spec, action_sizes=[len(part) for part in parts], **actor_critic)
        self.actor = self.build_actor(actor_ctor)
        target = target_entropies.of_actions(
            action_spec, action_min_prob, target_entropy, "SacAlgorithm.target_entropy"
        )
        self.temperature_ctor = temperature_ctor
        self.temperature = self.build_temperature(temperature_ctor, target)
        self.entropy_in_target = entropy_in_target
        if actor_on_last_frame not in (True, False, "statistics"):
            raise TaacError(f"SacAlgorithm.actor_on_last_frame must be True, False or 'statistics', got {actor_on_last_frame!r}")
        self.actor_on_last_frame, self.learns_on_last_frame = actor_on_last_frame, actor_on_last_frame is True

    @property
    def learnt_frames(self) -> slice:
        """Returns the frames of a segment on which actor and temperatures learn."""
        return slice(None) if self.learns_on_last_frame else slice(-1)

    def action_parts(self, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the critics' inputs `[..., K]` of actions `[..., A]`."""
        return (action,)

    def build_actor(self, actor_ctor: Callable[..., nn.Module]) -> nn.Module:
        return actor_ctor(self.actor_feature_size, self.action_size)

    # Acting ----------------------------------------------------------------------------------------------------------

    def noise_basis(self, features: torch.Tensor) -> torch.Tensor:
        basis = self.actor.noise_basis(features) if isinstance(self.actor, ActorNetwork) else None
        return super().noise_basis(features) if basis is None else basis

    def greedy_step(self, time_step: TimeStep, features: torch.Tensor, epsilon: float) -> AlgStep:
        mean, log_std = self.actor(features)
        action = distributions.squashed_normal_mode(mean, log_std, epsilon)
        return self.execute(time_step, action)._replace(policy=(mean, log_std))

    def sampled_step(self, time_step: TimeStep, features: torch.Tensor, noise: torch.Tensor | None = None) -> AlgStep:
        mean, log_std = self.actor(features)
        action = distributions.squashed_normal_action(mean, log_std, noise)
        return self.execute(time_step, action)._replace(policy=(mean, log_std))

    # Learning --------------------------------------------------------------------------------------------------------

    def train_step(self, experience: Experience) -> TrainInfo:
        observation = experience.time_step.observation
        features, actor_features = self.encode(observation)
        with torch.no_grad():
            target_features = self.target_features(nest.index(observation, slice(1, None)))
        return self.learn_from_features(experience.time_step, actor_features, features, target_features)

    def target_features(self, observation: Nest) -> torch.Tensor:
        """Encodes the next observations s' for `next_value`."""
        return self.target_encoder(observation)

    def learn_from_features(
        self, time_step: TimeStep, actor_features: torch.Tensor, features: torch.Tensor, target_features: torch.Tensor
    ) -> TrainInfo:
        """Runs a training step on features: `[T, B, F]` of actor and critics, `[T-1, B, F]` of the target critics."""
        frozen, executed = features.detach(), time_step.prev_action[1:]

        # Actor: minimise alpha log pi(a~|s) - min_i Q_i(s, a~)  (equations 7 and 9)
        learnt = frozen[self.learnt_frames]
        seen = slice(None) if self.actor_on_last_frame else slice(-1)
        learns = learns_policy() or self.learns_value
        with gathering(self.actor, ~time_step.is_last()[seen], learns), torch.set_grad_enabled(learns):
            mean, log_std = (out[: len(learnt)] for out in self.actor(actor_features[seen]))
            action, log_pi = distributions.squashed_normal_sample(mean, log_std)
        q_pi, actor_loss = None, torch.zeros_like(log_pi)
        if learns:
            prediction = self.critics(learnt, *self.action_parts(action))
            q_pi = self.over_critics(self.value_of(self.critics, prediction))
            dq_da = self.action_gradient(self.weighted(q_pi), action)
            actor_loss = losses.action_gradient_loss(action, dq_da) + self.temperature.alpha() * log_pi
            if self.learns_value:  # V regresses on what targets would bootstrap from: of `target_subset` critics, if it is set
                q_pi = mean_of(self.bootstrap_value(self.critics, prediction))

        critics = self.critic_step(time_step, features, *self.action_parts(executed))
        with torch.no_grad():
            value, bonus = self.next_value(critics, target_features, actor_features[1:], action, log_pi)
        found = {"log_pi": log_pi, "mean": mean, "log_std": log_std, "q_pi": q_pi, "features": frozen}
        return self.train_info(actor_loss, critics.prediction(), value, bonus, **found)

    def next_value(
        self,
        critics: CriticStep,
        target_features: torch.Tensor,
        actor_features: torch.Tensor,
        action: torch.Tensor,
        log_pi: torch.Tensor,
    ) -> tuple[torch.Tensor | ValueDistribution, torch.Tensor | None]:
        """Returns `V(s') = min_i Q'_i(s', a~') - alpha log pi(a~'|s')` (equation 3), and its last term, the entropy bonus.

        `[T-1, B(, D)]` both; the value may be a distribution. Without `entropy_in_target` the value lacks that term, and the
        bonus is None.

        Args:
            critics: of this update.
            target_features, actor_features: features of frames 1..T-1 for the target critics and for the actor.
            action, log_pi: the actor's samples, at the frames that it learns on.
        """
        next_action, next_log_pi = action[1:], log_pi[1:]
        # a' is the action of an actor that acts, not of one that learns from the statistics of this batch
        if not self.learns_on_last_frame or (learns_policy() and has_batch_statistics(self.actor)):
            next_action, next_log_pi = distributions.squashed_normal_sample(*self.actor(actor_features))
        min_q = critics.bootstrap(target_features, *self.action_parts(next_action))
        if not self.entropy_in_target:
            return min_q, None
        alpha_log_pi = self.share_out(self.temperature.alpha() * next_log_pi)
        return shifted(min_q, -alpha_log_pi), -alpha_log_pi

    def calc_loss(self, experience: Experience, info: TrainInfo) -> LossInfo:
        target = self.targets(experience, info)  # of the critics, equation 5
        return self.loss_info(experience, info, target, self.temperature, self.temperature_losses(info))

    def temperature_losses(self, info: TrainInfo) -> dict[str, torch.Tensor]:
        """Returns the temperatures' losses by name, of the shape of `info.actor_loss`; equation 18."""
        return {"action": self.temperature.loss(-info.log_pi)}

    def proposal(self, observation: Nest, experience: Experience) -> torch.Tensor:
        return torch.tanh(self.actor(self.actor_features(observation))[0])

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """Returns `|tanh(mean(s)) - a|^2`, the squared distance of the greedy action from the demonstrated action a."""
        return self.distance(experience, self.actor_features(nest.index(experience.time_step.observation, slice(None, -1))))

    def distance(self, experience: Experience, features: torch.Tensor) -> torch.Tensor:
        """Returns the cloning loss of a policy that sees `features` `[T-1, B, F]`."""
        mean, _ = self.actor(features)
        return self.cloned(experience, (torch.tanh(mean) - experience.time_step.prev_action[1:]).square().sum(-1))
