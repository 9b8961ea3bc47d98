"""Mixed SAC: soft actor-critic for one discrete and any continuous actions together.

The actor proposes the continuous action. Critics with one head per discrete choice value every choice together with that
action, and the choice is sampled from those values: `p(d | s, a) = softmax_d(min_i Q_i(s, a, d) / alpha_d)`. With durations
as choices and a semi-Markov environment it is SAC-Krep of TAAC (arXiv:2104.06521).

Sources: the mixed action type of the SAC used in TAAC's comparison; for discrete actions Christodoulou (arXiv:1910.07207);
for continuous actions Haarnoja et al. (arXiv:1812.05905), whose equation numbers are used below.
"""

from __future__ import annotations

from typing import Any

import gin
import torch

from taac import nest
from taac.algorithms import target_entropies
from taac.algorithms.action_specs import MixedActionSpec
from taac.algorithms.actor_critic import TrainInfo
from taac.algorithms.algorithm import learns_policy
from taac.algorithms.sac import SacAlgorithm
from taac.algorithms.target_entropies import TargetEntropy
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError
from taac.networks.batch_statistics import gathering
from taac.networks.layers import evaluating
from taac.ops import distributions, losses
from taac.ops.schedules import Schedule
from taac.ops.value_distributions import mean_of
from taac.specs import ACTION_MASK


@gin.configurable
class MixedSacAlgorithm(SacAlgorithm):
    """SAC over `(discrete, continuous)` actions, with a temperature for each.

    If choices are durations (SAC-Krep), each decision earns its entropy bonus once, however long it lasts, as in the source.
    The bonus therefore biases durations: a negative bonus favours long durations, a positive one short durations. It is
    usually negative, because continuous target entropies are usually below 0. `SacAlgorithm.entropy_in_target = False`
    values durations by their rewards alone; the actor and the choice still pursue their target entropies.

    Args:
        observation_spec: of the environment.
        action_spec: a nest with one discrete leaf of C choices, and continuous leaves.
        choice_min_prob: sets the target entropy of the choice, `p (log(C-1) - log p) - (1-p) log(1-p)`; 0 if C is 1.
        choice_target_entropy: sets that target entropy directly, in nats; in [0, log C].
        decision_price: c, a number or a schedule: what a decision costs, in units of the reward that is learnt, where choices are
            durations (SAC-Krep). Every frame is a decision then, so each value contains `- c`. Reported returns do not.
        target_decision_rate: learns c so that rollouts decide in this fraction of their environment steps; see `DecisionPrice`.
        sac_arguments: the other arguments of `SacAlgorithm`; bind them there in gin.

    Raises:
        TaacError: errors of `SacAlgorithm`; an action space with other parts; a target entropy that cannot be reached; an
            observation with a mask of valid choices.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        *,
        choice_min_prob: float = 0.2,
        choice_target_entropy: float | Schedule | None = None,
        decision_price: float | Schedule = 0.0,
        target_decision_rate: float | None = None,
        **sac_arguments: Any,
    ):
        mixed = MixedActionSpec(action_spec, type(self).__name__)
        if isinstance(observation_spec, dict) and ACTION_MASK in observation_spec:
            raise TaacError(
                f"{type(self).__name__} does not support masks, but the observation has an '{ACTION_MASK}': remove it with a "
                "wrapper, or use discrete actions alone with DiscreteSacAlgorithm"
            )
        super().__init__(observation_spec, mixed.continuous, num_choices=mixed.num_choices, **sac_arguments)
        self.mixed = mixed
        target = TargetEntropy(0.0, "one choice")
        if mixed.num_choices > 1 or choice_target_entropy is not None:
            name = "MixedSacAlgorithm.choice_target_entropy"
            target = target_entropies.of_choices(mixed.num_choices, choice_min_prob, choice_target_entropy, name)
        self.choice_temperature = self.build_temperature(self.temperature_ctor, target)
        self.decision_price = self.build_decision_price(decision_price, target_decision_rate)

    # Acting ----------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        features, actor_features = self.encode(time_step.observation)
        mean, log_std = self.actor(actor_features)
        action = distributions.squashed_normal_mode(mean, log_std, epsilon)
        q = self.min_q(self.critics, features, action)
        choice, probs = q.argmax(-1), self._choice_probs(q)
        if epsilon > 0:
            explores = torch.rand_like(q[..., 0]) < epsilon
            choice = torch.where(explores, distributions.categorical_sample(probs), choice)
        return self.execute(time_step, self.mixed.join(choice, action))._replace(policy=(probs, (mean, log_std)))

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: Nest, noise: torch.Tensor | None = None) -> AlgStep:
        features, actor_features = self.encode(time_step.observation)
        mean, log_std = self.actor(actor_features)
        action = distributions.squashed_normal_action(mean, log_std, noise)
        probs = self._choice_probs(self.min_q(self.critics, features, action))
        step = self.execute(time_step, self.mixed.join(distributions.categorical_sample(probs), action))
        return step._replace(policy=(probs, (mean, log_std)))

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        action = super().random_step(time_step, state).output
        choice = torch.randint(self.mixed.num_choices, action.shape[:1], device=action.device)
        return self.execute(time_step, self.mixed.join(choice, action))

    def action_values(self, time_step: TimeStep, state: Nest, step: AlgStep) -> tuple[torch.Tensor, Nest]:
        """Returns `min_i Q_i(s, a, d)` `[B]`, and that of every d beside the greedy a, `[B, C]`."""
        features, (choice, action) = self.critic_features(time_step, state), self.mixed.split(step.output)
        q = self.at_choice(self.q_values(self.critics, features, action), choice)
        return self.least_value(q), self.min_q(self.critics, features, torch.tanh(step.policy[1][0]))

    # Learning --------------------------------------------------------------------------------------------------------

    def train_step(self, experience: Experience) -> TrainInfo:
        time_step = experience.time_step
        features, actor_features = self.encode(time_step.observation)
        frozen = features.detach()
        choice, executed = self.mixed.split(nest.index(time_step.prev_action, slice(1, None)))

        # a~ ~ pi(.|s), then p(d | s, a~)
        learns = learns_policy()
        with gathering(self.actor, ~time_step.is_last()), torch.set_grad_enabled(learns):
            mean, log_std = self.actor(actor_features)
            action, log_pi = distributions.squashed_normal_sample(mean, log_std)
        with evaluating(self.critics), torch.set_grad_enabled(learns):  # choices are compared without dropout
            q = self.min_q(self.critics, frozen, action)
        probs = self._choice_probs(q)

        # Actor: minimise alpha log pi(a~|s) - sum_d p(d|s,a~) min_i Q_i(s, a~, d)  (equations 7 and 9)
        actor_loss = torch.zeros_like(log_pi)
        if learns:
            dq_da = self.action_gradient((probs * q).sum(-1), action)
            actor_loss = losses.action_gradient_loss(action, dq_da) + self.temperature.alpha() * log_pi

        # V(s') = sum_d p(d|s',a~') min_i Q'_i(s', a~', d) - alpha log pi(a~'|s') + alpha_d H(p)  (equation 3)
        critics = self.critic_step(time_step, features, executed)
        with torch.no_grad():
            target_features = self.target_encoder(nest.index(time_step.observation, slice(1, None)))
            target_q = mean_of(critics.bootstrap(target_features, action[1:]))
            value = self.expected(probs[1:], target_q)
            bonus = None
            if self.entropy_in_target:
                choice_bonus = self.choice_temperature.alpha() * distributions.categorical_entropy(probs[1:])
                bonus = self.share_out(choice_bonus - self.temperature.alpha() * log_pi[1:])
                value = value + bonus
            bonus, value = self.priced_bonus(bonus, value, 1.0), self.priced(value, 1.0)  # every frame is a decision
        prediction, learnt = self.at_choice(critics.prediction(), choice), self.learnt_frames
        found = {"log_pi": log_pi[learnt], "mean": mean[learnt], "log_std": log_std[learnt]}
        return self.train_info(actor_loss[learnt], prediction, value, bonus, own=probs, **found)  # own: p(d | s, a~), detached

    def calc_loss(self, experience: Experience, info: TrainInfo) -> LossInfo:
        loss, extra, error, detail = super().calc_loss(experience, info)
        entropy = self.mean_acted(experience, distributions.categorical_entropy(info.own))
        own = {"choice/entropy": entropy, "choice/alpha": self.choice_temperature.alpha()}
        return LossInfo(loss, {**extra, **own}, error, detail)

    def temperature_losses(self, info: TrainInfo) -> dict[str, torch.Tensor]:
        entropy = distributions.categorical_entropy(info.own[self.learnt_frames])
        return {**super().temperature_losses(info), "choice": self.choice_temperature.loss(entropy)}

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """Returns SAC's cloning loss for the continuous action. The choice is not cloned, because it follows from the critics.

        After pre-training alone the choice is therefore that of untrained critics.
        """
        _, continuous = self.mixed.split(experience.time_step.prev_action)
        return super().cloning_loss(experience._replace(time_step=experience.time_step._replace(prev_action=continuous)))

    def _choice_probs(self, q: torch.Tensor) -> torch.Tensor:
        return distributions.boltzmann_distribution(q, self.choice_temperature.alpha())

    def acting_modules(self) -> list[str]:
        return [*super().acting_modules(), "encoder", "critics", "choice_temperature"]  # the choice is sampled from Q

    def summary_tags(self) -> dict[str, str]:
        return {
            "choice/entropy": "entropy of the discrete choice given the sampled action, nats, mean over frames except LAST",
            "choice/alpha": "temperature of the discrete choice",
        }
