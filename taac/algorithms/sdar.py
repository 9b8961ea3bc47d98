"""SDAR: act or repeat, decided separately for each action dimension.

First a selection policy decides for each dimension whether to act or to repeat, `b_i ~ beta_i(s, a-)`, where a- is the
previous action. Then an action policy proposes new values for the dimensions that act, `a_i = b_i a_hat_i + (1 - b_i) a-_i`.

Source: Nie, Fu and Gao, Select before Act: Spatially Decoupled Action Repetition for Continuous Control (ICLR 2025,
arXiv:2502.06919).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms import target_entropies
from taac.algorithms.actor_critic import TrainInfo, trainable
from taac.algorithms.algorithm import Algorithm, learns_policy
from taac.algorithms.sac import SacAlgorithm
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, StepType, TimeStep
from taac.networks import SwitchNetwork, TrajectoryEmbedding
from taac.networks.batch_statistics import gathering, refuse_batch_statistics
from taac.ops import distributions, losses
from taac.ops.schedules import Schedule
from taac.ops.value_distributions import mean_of


@gin.configurable
class SdarAlgorithm(SacAlgorithm):
    """SAC with a selection stage: each dimension acts or repeats (Nie, Fu and Gao, arXiv:2502.06919).

    The executed action is `prev_action` of the next frame, and the previous action is `prev_action` of this frame, so the
    method keeps no state and stores nothing. At FIRST every dimension acts. The policy maximises
    `Q(s, a) - alpha sum_i b_i log pi_i + alpha_b sum_i H(beta_i)`, with exact entropies H and sampled log pi.

    Args:
        observation_spec, action_spec: of the environment; actions are a vector in [-1, 1].
        beta_min_prob: sets the target entropy of the selection, `-p log p - (1-p) log(1-p)` for each dimension.
        beta_target_entropy: sets that target entropy directly, in nats, for all dimensions together; in [0, A log 2].
        selection_hidden_layers: widths of the selection policy's network.
        decision_price: c, a number or a schedule: what acting in all A dimensions costs, in units of the reward that is learnt;
            in one, c / A. The selection pays it, and values contain it. Reported returns do not.
        switch_threshold: greedily, a dimension acts where beta_i is above this, in [0, 1).
        target_decision_rate: learns c so that some dimension acts in this fraction of the steps of rollouts; see `DecisionPrice`.
        sac_arguments: the other arguments of `SacAlgorithm`; bind them there in gin. `actor_ctor` builds the action policy,
            whose target entropy applies to the dimensions that act.

    Raises:
        TaacError: errors of `SacAlgorithm`; a target entropy that cannot be reached.

    This was written from the abstract and public descriptions of the two stages, and does not claim the paper's numbers.
    Assumed: the selection is learnt with a straight-through gradient, `db/dprobability = 1`, so that the advantage of acting
    in a dimension is approximated by `dQ/da_i (a_hat_i - a-_i)`; the action policy sees s, the repeated values and b; the
    target contains both entropies; the target entropies; every dimension acts at FIRST.
    """

    switch_threshold: float = 0.5
    has_proposal = False  # what the actor sees depends on which dimensions act

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Any,
        *,
        beta_min_prob: float = 0.05,
        beta_target_entropy: float | Schedule | None = None,
        selection_hidden_layers: Sequence[int] = (256, 256),
        decision_price: float | Schedule = 0.0,
        target_decision_rate: float | None = None,
        switch_threshold: float = 0.5,
        **sac_arguments: Any,
    ):
        super().__init__(observation_spec, action_spec, **sac_arguments)
        self.selection_embedding = TrajectoryEmbedding(self.actor_feature_size, [self.action_size])
        self.selection = SwitchNetwork(self.selection_embedding.output_size, self.action_size, selection_hidden_layers)
        refuse_batch_statistics(self.selection)
        target = target_entropies.of_choices(
            2, beta_min_prob, beta_target_entropy, "SdarAlgorithm.beta_target_entropy", times=self.action_size
        )
        self.beta_temperature = self.build_temperature(self.temperature_ctor, target)
        self.decision_price = self.build_decision_price(decision_price, target_decision_rate)
        self.set_switch_threshold(switch_threshold)

    def build_actor(self, actor_ctor: Callable[..., nn.Module]) -> nn.Module:
        self.actor_embedding = TrajectoryEmbedding(self.actor_feature_size, [self.action_size] * 2)
        return actor_ctor(self.actor_embedding.output_size, self.action_size)

    # Acting ----------------------------------------------------------------------------------------------------------

    noise_basis = Algorithm.noise_basis  # the actor sees the actions before, too

    @torch.inference_mode()
    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        features, before = self.actor_features(time_step.observation), time_step.prev_action
        probability = self._acting_probability(features, time_step)
        act = probability > self.switch_threshold  # the mode at 0.5; a tie repeats
        if epsilon > 0:
            drawn = torch.rand_like(probability) < probability
            act = torch.where(torch.rand_like(probability) < epsilon, drawn, act)
        mean, log_std = self._propose(features, before, act.to(before.dtype))
        a_hat = distributions.squashed_normal_mode(mean, log_std, epsilon)
        return self._mix(before, a_hat, act, probability)._replace(policy=(mean, log_std))

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: Nest, noise: torch.Tensor | None = None) -> AlgStep:
        features, before = self.actor_features(time_step.observation), time_step.prev_action
        probability = self._acting_probability(features, time_step)
        act = torch.rand_like(probability) < probability
        mean, log_std = self._propose(features, before, act.to(before.dtype))
        a_hat = distributions.squashed_normal_action(mean, log_std, noise)
        return self._mix(before, a_hat, act, probability)._replace(policy=(mean, log_std))

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        before = time_step.prev_action
        act = (torch.rand_like(before) < 0.5) | time_step.is_first().unsqueeze(-1)
        return self._mix(before, torch.empty_like(before).uniform_(-1.0, 1.0), act)

    @staticmethod
    def _executed(time_step: TimeStep, probability: torch.Tensor) -> torch.Tensor:
        """Returns the fraction of dimensions that acted at each frame, `[T, B]`; at T-1, whose action is not stored, their
        mean probability, which no return reads. A dimension that drew its old value again counts as repeated."""
        acted = (time_step.prev_action[1:] != time_step.prev_action[:-1]) | time_step.is_first()[:-1].unsqueeze(-1)
        return torch.cat([acted.to(probability.dtype), probability[-1:]]).mean(-1)

    @staticmethod
    def _mix(before: torch.Tensor, a_hat: torch.Tensor, act: torch.Tensor, probability: Nest = ()) -> AlgStep:
        return AlgStep(torch.where(act, a_hat, before), (), (), act, probability)

    def _acting_probability(self, features: torch.Tensor, time_step: TimeStep) -> torch.Tensor:
        """Returns beta_i(act | s, a-), `[..., A]`; 1 at FIRST, where there is nothing to repeat."""
        probability = torch.sigmoid(self.selection(self.selection_embedding(features, time_step.prev_action)))
        return torch.where(time_step.is_first().unsqueeze(-1), 1.0, probability)

    def _propose(
        self, features: torch.Tensor, before: torch.Tensor, act: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns mean and log standard deviation of pi(a_hat | s, repeated values, b), `[..., A]` each."""
        return self.actor(self.actor_embedding(features, ((1.0 - act) * before, act)))

    # Learning --------------------------------------------------------------------------------------------------------

    def train_step(self, experience: Experience) -> TrainInfo:
        time_step = experience.time_step
        features, actor_features = self.encode(time_step.observation)
        frozen, before = features.detach(), time_step.prev_action

        # b ~ beta(. | s, a-), straight-through; a_hat ~ pi(. | s, a-, b) in the dimensions that act
        learns = learns_policy()
        with torch.set_grad_enabled(learns):
            probability = self._acting_probability(actor_features, time_step)
            drawn = (torch.rand_like(probability) < probability).to(probability.dtype)
            act = drawn + probability - probability.detach()
            with gathering(self.actor, ~time_step.is_last()):
                mean, log_std = self._propose(actor_features, before, drawn)
            a_hat, log_pi_each = _each_dimension(mean, log_std)
            action = act * a_hat + (1.0 - act) * before
            log_pi = (act * log_pi_each).sum(-1)
            entropy = _bernoulli_entropy(probability).sum(-1)

        # Actor: minimise alpha log pi - alpha_b H(beta) - min_i Q_i(s, a), plus the price of acting
        q_pi, actor_loss = None, torch.zeros_like(log_pi)
        if learns:
            q_pi = self.min_q(self.critics, frozen, action)
            actor_loss = losses.action_gradient_loss(action, self.action_gradient(q_pi, action))
            actor_loss = actor_loss + self.temperature.alpha() * log_pi - self.beta_temperature.alpha() * entropy
            if self.decision_price is not None:
                actor_loss = actor_loss + self.decision_price() * probability.mean(-1)

        # V(s', a) = min_i Q'_i(s', a') - alpha log pi' + alpha_b H(beta')
        critics = self.critic_step(time_step, features, before[1:])
        with torch.no_grad():
            target_features = self.target_encoder(nest.index(time_step.observation, slice(1, None)))
            value = mean_of(critics.bootstrap(target_features, action[1:]))
            bonus = None
            if self.entropy_in_target:
                both = self.beta_temperature.alpha() * entropy - self.temperature.alpha() * log_pi
                bonus = self.share_out(both[1:])
                value = value + bonus
            bonus = self.priced_bonus(bonus, value, self._executed(time_step, probability)[1:])
            value = self.priced(value, probability[1:].mean(-1))
        learnt, own = self.learnt_frames, (drawn.mean(-1), entropy.detach())  # the fraction that acts, and H(beta), [T, B]
        found = {"log_pi": log_pi[learnt], "mean": mean[learnt], "log_std": log_std[learnt]}
        q_pi = None if q_pi is None else q_pi[learnt]
        return self.train_info(actor_loss[learnt], critics.prediction(), value, bonus, own, q_pi=q_pi, **found)

    def calc_loss(self, experience: Experience, info: TrainInfo) -> LossInfo:
        target, (acting, entropy) = self.targets(experience, info), info.own
        learnt = self.learnt_frames
        # Target entropies apply only to what was chosen: the actions of dimensions that act, and selections after FIRST.
        missing = self.temperature.target_entropy * (1.0 - acting[learnt])
        given = self.beta_temperature.target_entropy * experience.time_step.is_first().to(entropy.dtype)
        temperature_losses = {
            "action": self.temperature.loss(missing - info.log_pi),
            "beta": self.beta_temperature.loss((entropy + given)[learnt]),
        }
        own = {
            "beta/switch_probability": _mean_selected(experience, acting),
            "beta/entropy": _mean_selected(experience, entropy),
            "beta/alpha": self.beta_temperature.alpha(),
        }
        return self.loss_info(experience, info, target, self.temperature, temperature_losses, own)

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """Returns the cloning loss: the cross-entropy of beta, plus the squared distance of the mode where a dimension acts.

        A dimension counts as acting where the demonstrated action changed, and everywhere at FIRST.
        """
        time_step, executed = nest.index(experience.time_step, slice(None, -1)), experience.time_step.prev_action[1:]
        features, before = self.actor_features(time_step.observation), time_step.prev_action
        act = ((executed != before) | time_step.is_first().unsqueeze(-1)).to(before.dtype)
        probability = self._acting_probability(features, time_step)
        with torch.autocast(act.device.type, enabled=False):  # a GPU refuses the cross-entropy of probabilities there
            selected = nn.functional.binary_cross_entropy(probability.to(act.dtype), act, reduction="none")
        mean, _ = self._propose(features, before, act)
        return self.cloned(experience, (selected + act * (torch.tanh(mean) - executed).square()).sum(-1))

    def acting_modules(self) -> list[str]:
        return [*super().acting_modules(), "selection_embedding", "selection", "actor_embedding"]

    def needed_modules(self, step: AlgStep) -> dict[str, torch.Tensor]:
        return dict.fromkeys(("actor_embedding", "actor"), step.decided.any(-1))

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups = super().parameter_groups()
        stages = trainable(self.selection_embedding, self.selection, self.actor_embedding)
        return {**groups, "actor": [*stages, *groups["actor"]]}


def _mean_selected(experience: Experience, x: torch.Tensor) -> torch.Tensor:
    """Averages `x` `[T, B]` to a scalar over the frames with a selection: not FIRST, where all dimensions act, and not LAST."""
    return losses.masked_mean(x, experience.time_step.step_type == StepType.MID)


def _each_dimension(mean: torch.Tensor, log_std: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples the squashed normal. Returns actions and the log-probability of each dimension, `[..., A]` both."""
    action, log_prob = distributions.squashed_normal_sample(mean.unsqueeze(-1), log_std.unsqueeze(-1))
    return action.squeeze(-1), log_prob


def _bernoulli_entropy(probability: torch.Tensor) -> torch.Tensor:
    """Returns the entropy in nats, elementwise. Its gradient is finite at 0 and 1, where it is 0."""
    p = probability.clamp(1e-6, 1.0 - 1e-6)
    return -(p * p.log() + (1.0 - p) * (1.0 - p).log())
