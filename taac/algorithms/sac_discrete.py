"""Soft actor-critic for discrete actions: every expectation over the policy is exact.

Sources: Christodoulou, Soft Actor-Critic for Discrete Action Settings (arXiv:1910.07207), algorithm 1, whose equation numbers
are used below. Actions with several branches follow ML-Agents' SAC trainer (Juliani et al., arXiv:1809.02627;
`sac/optimizer_torch.py`). Masks of valid choices are an addition of this package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms import target_entropies
from taac.algorithms.action_specs import DiscreteActionSpec
from taac.algorithms.actor_critic import ActorCriticAlgorithm, TrainInfo
from taac.algorithms.target_entropies import TargetEntropy
from taac.algorithms.temperature import BranchTemperatures, Temperature
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError
from taac.networks import CategoricalActorNetwork
from taac.networks.batch_statistics import has_batch_statistics
from taac.ops import distributions
from taac.ops.schedules import Schedule
from taac.ops.value_distributions import mean_of


@gin.configurable
class DiscreteSacAlgorithm(ActorCriticAlgorithm):
    """Discrete SAC (Christodoulou, arXiv:1910.07207, algorithm 1): critics with one value per choice, a categorical actor.

    An action has K branches with one choice each, and the policy factorises, `pi(a|s) = prod_b pi_b(a_b|s)`. Critics have a
    value for each choice of each branch. The value of an action is the mean over branches, `Q(s, a) = 1/K sum_b Q_b(s, a_b)`.
    Expectations over all joint actions are therefore sums over branches:

        V(s') = 1/K sum_b sum_a pi_b(a|s') (min_i Q'_{i,b}(s', a) - alpha_b log pi_b(a|s'))
        L_pi  = 1/K sum_b sum_a pi_b(a|s) (alpha_b log pi_b(a|s) - min_i Q_{i,b}(s, a))

    Each branch has its own temperature and target entropy. One branch is the paper's algorithm.

    If the observation has a mask of valid choices, acting and learning respect it; see `DiscreteActionSpec`. Where only n of
    a branch's C choices are valid, its target entropy is multiplied by `log n / log C`. The target then stays the same
    fraction of the greatest possible entropy, so it can be reached. It is 0 where only one choice is valid.

    Args:
        observation_spec: of the environment.
        action_spec: a scalar with C choices; or a vector of K branches with C_b choices each.
        actor_ctor: called with input size and `sum_b C_b`; see `CategoricalActorNetwork`.
        action_min_prob: sets the target entropy of a branch, `p (log(C-1) - log p) - (1-p) log(1-p)`; one number for all
            branches, or one per branch.
        target_entropy: sets the target entropy directly, in nats; in [0, log C]; one number for all, or one per branch.
        temperature_ctor: called with the target entropy of each branch; see `Temperature`.
        entropy_in_target: whether targets include the entropy bonus of every step that they pass, discounted like the value.
        actor_critic: arguments of `ActorCriticAlgorithm` except `dqda_clipping`; bind them there in gin. `critic_ctor` is also
            called with `num_choices`, `sum_b C_b`.

    Raises:
        TaacError: actions that are not discrete; a mask of the wrong type or shape; a target entropy that cannot be reached;
            `dqda_clipping`; several branches with critics that do not predict plain values.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        *,
        actor_ctor: Callable[..., nn.Module] = CategoricalActorNetwork,
        action_min_prob: float | Sequence[float] = 0.1,
        target_entropy: float | Schedule | Sequence[float | Schedule] | None = None,
        temperature_ctor: Callable[..., Temperature] = Temperature,
        entropy_in_target: bool = True,
        **actor_critic: Any,
    ):
        discrete = DiscreteActionSpec(action_spec, observation_spec, type(self).__name__)
        total = sum(discrete.num_choices)
        super().__init__(discrete.observation, action_spec, action_sizes=[], num_choices=total, **actor_critic)
        if self.dqda_clipping is not None:
            raise TaacError("DiscreteSacAlgorithm computes no dQ/da, so dqda_clipping has no effect: remove it")
        if discrete.branched and hasattr(self.critics, "value"):
            raise TaacError(
                f"{type(self.critics).__name__} does not predict plain values, but the value of an action with several "
                "branches is their mean over the branches: bind critics without value() and loss()"
            )
        self.discrete = discrete
        self.actor = actor_ctor(self.actor_feature_size, total)
        if has_batch_statistics(self):
            raise TaacError(
                f"{type(self).__name__} has no joint forward of executed and next actions, which BatchNorm needs: bind another "
                "body"
            )
        targets = _targets(discrete, action_min_prob, target_entropy)
        tuned = [self.build_temperature(temperature_ctor, target) for target in targets]
        if discrete.masked:
            for temperature in tuned:
                temperature.formula += ", times log n / log C where n choices are valid"
        self.temperature = BranchTemperatures(tuned) if discrete.branched else tuned[0]
        self.entropy_in_target = entropy_in_target

    # Acting ----------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        return self.greedy_step(time_step, self._features_of(time_step), epsilon)

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: Nest) -> AlgStep:  # type: ignore[override]
        return self.sampled_step(time_step, self._features_of(time_step))

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        return self.execute(time_step, distributions.categorical_sample(self.valid(time_step).float()))

    def execute(self, time_step: TimeStep, choice: torch.Tensor) -> AlgStep:
        """Returns the step that executes choices `[B, K]`."""
        decided = torch.ones_like(time_step.step_type, dtype=torch.bool)
        return AlgStep(self.discrete.from_branches(choice), (), (), decided)

    def greedy_step(self, time_step: TimeStep, features: torch.Tensor, epsilon: float) -> AlgStep:
        """Takes each branch's likeliest choice."""
        probs, _ = self.policy(features, self.valid(time_step))
        choice = probs.argmax(-1)
        if epsilon > 0:
            sampled = distributions.categorical_sample(probs)
            choice = torch.where(torch.rand(choice.shape, device=choice.device) < epsilon, sampled, choice)
        return self.execute(time_step, choice)._replace(policy=probs)

    def sampled_step(self, time_step: TimeStep, features: torch.Tensor) -> AlgStep:  # type: ignore[override]
        probs, _ = self.policy(features, self.valid(time_step))
        return self.execute(time_step, distributions.categorical_sample(probs))._replace(policy=probs)

    def valid(self, time_step: TimeStep) -> torch.Tensor:
        return self.discrete.valid(time_step.observation, time_step.step_type.shape, time_step.step_type.device)

    def _features_of(self, time_step: TimeStep) -> torch.Tensor:
        return self.actor_features(self.discrete.observed(time_step.observation))

    def policy(self, features: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the probabilities of each branch's choices and their logarithms, `[..., K, C]` both."""
        return distributions.categorical_policy(self.discrete.padded(self.actor(features)), valid)

    def action_values(self, time_step: TimeStep, state: Nest, step: AlgStep) -> tuple[torch.Tensor, Nest]:
        """Returns `min_i 1/K sum_b Q_{i,b}(s, a_b)` `[B]`, and `min_i Q_{i,b}(s, a)` of every choice, `[B, K, C]`."""
        q = self.discrete.padded(self.q_values(self.critics, self.critic_features(time_step, state)), dim=2)
        chosen = self.at_choice(q, self.discrete.to_branches(step.output)).mean(2)
        return self.least_value(chosen), self.least_value(q)

    # Learning --------------------------------------------------------------------------------------------------------

    def train_step(self, experience: Experience) -> TrainInfo:
        time_step = experience.time_step
        observation = self.discrete.observed(time_step.observation)
        features, actor_features = self.encode(observation)
        with torch.no_grad():
            target_features = self.target_encoder(nest.index(observation, slice(1, None)))
        return self.learn_from_features(time_step, actor_features, features, target_features)

    def learn_from_features(
        self, time_step: TimeStep, actor_features: torch.Tensor, features: torch.Tensor, target_features: torch.Tensor
    ) -> TrainInfo:
        """Runs a training step on features: `[T, B, F]` of actor and critics, `[T-1, B, F]` of the target critics."""
        valid = self.valid(time_step)
        predicted = self.discrete.padded(self.critics(features), dim=features.dim())  # [N, T, B, K, C(, D)(, ...)]

        # Actor: minimise sum_a pi(a|s) (alpha log pi(a|s) - min_i Q_i(s, a))  (equation 12)
        probs, log_probs = self.policy(actor_features, valid)
        alpha = self.temperature.alpha()
        q_pi = self.least_value(self.value_of(self.critics, predicted.detach()))
        actor_loss = (probs * (alpha.unsqueeze(-1) * log_probs - q_pi)).sum(-1)

        # Temperature: the exact entropy H(pi(.|s)) against its target  (equation 11)
        entropy = -(probs * log_probs).sum(-1).detach()
        greatest = torch.stack([entropy.new_full((), math.log(c)) for c in self.discrete.num_choices])
        reachable = valid.sum(-1).to(entropy.dtype).log() / greatest
        temperature_loss = self.temperature.loss(entropy, reachable)

        # V(s') = sum_a pi(a|s') (min_i Q'_i(s', a) - alpha log pi(a|s'))  (equation 10)
        with torch.no_grad():
            target_q = self.discrete.padded(self.target_critics(target_features), dim=features.dim())
            target_q = mean_of(self.bootstrap_value(self.target_critics, target_q))  # [T-1, B, K, C(, D)]
            value = self.expected(probs[1:], target_q).mean(2)
            bonus = self.share_out((alpha * entropy[1:]).mean(-1)) if self.entropy_in_target else None
            if bonus is not None:
                value = value + bonus
        prediction = self.at_choice(predicted[:, :-1], self.discrete.to_branches(time_step.prev_action[1:])).mean(3)
        own = temperature_loss.mean(-1), entropy  # [T, B], and [T, B, K] of each branch, detached
        log_pi = -entropy.sum(-1)  # E log pi(a|s) of the whole action
        return self.train_info(actor_loss.mean(-1), prediction, value, bonus, own, log_pi=log_pi)

    def calc_loss(self, experience: Experience, info: TrainInfo) -> LossInfo:
        target = self.targets(experience, info)
        temperature_loss, entropy = info.own
        own = self._branch_summaries(experience, entropy) if self.discrete.branched else None
        return self.loss_info(experience, info, target, self.temperature, {"action": temperature_loss}, own)

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """Returns `-log pi(a|s)` of the demonstrated choices, summed over branches; 0 for choices that the mask forbids."""
        time_step = nest.index(experience.time_step, slice(None, -1))
        return self.distance(experience, self._features_of(time_step))

    def distance(self, experience: Experience, features: torch.Tensor) -> torch.Tensor:
        """Returns the cloning loss of a policy that sees `features` `[T-1, B, F]`."""
        _, log_probs = self.policy(features, self.valid(nest.index(experience.time_step, slice(None, -1))))
        chosen = self.discrete.to_branches(experience.time_step.prev_action[1:]).unsqueeze(-1)
        return self.cloned(experience, -log_probs.gather(-1, chosen).squeeze(-1).sum(-1))

    def _branch_summaries(self, experience: Experience, entropy: torch.Tensor) -> dict[str, torch.Tensor]:
        alpha, acted = self.temperature.alpha(), (~experience.time_step.is_last()).to(entropy.dtype)
        entropy = (entropy * acted.unsqueeze(-1)).sum((0, 1)) / acted.sum().clamp(min=1.0)
        each = {f"branch_{b}/entropy": entropy[b] for b in range(len(entropy))}
        return {**each, **{f"branch_{b}/alpha": alpha[b] for b in range(len(alpha))}, "policy/alpha": alpha.mean()}

    def summary_tags(self) -> dict[str, str]:
        if not self.discrete.branched:
            return {}
        branches = range(len(self.discrete.num_choices))
        return {f"branch_{b}/entropy": f"exact entropy of branch {b} of the action, nats" for b in branches} | {
            f"branch_{b}/alpha": f"temperature of branch {b}" for b in branches
        }

    def temperatures(self) -> dict[str, Temperature]:
        tuned = self.temperature
        if not isinstance(tuned, BranchTemperatures):
            return super().temperatures()
        return {f"branch {b}": each for b, each in enumerate(tuned.each())}


def _targets(
    discrete: DiscreteActionSpec,
    min_prob: float | Sequence[float],
    target_entropy: float | Schedule | Sequence[float | Schedule] | None,
) -> list[TargetEntropy]:
    """Returns the target entropy of each branch."""
    counts = discrete.num_choices
    min_probs = _of_branches("action_min_prob", min_prob, len(counts))
    given = _of_branches("target_entropy", target_entropy, len(counts))
    name = "DiscreteSacAlgorithm.target_entropy"
    names = [f"{name}[{b}]" for b in range(len(counts))] if discrete.branched else [name]
    return [target_entropies.of_choices(*each) for each in zip(counts, min_probs, given, names, strict=True)]


def _of_branches(name: str, value: Any, branches: int) -> list[Any]:
    """Expands a setting to one value per branch. Accepts one value for all branches, or one per branch."""
    each = [*value] if isinstance(value, Sequence) else [value] * branches
    if len(each) != branches:
        raise TaacError(f"DiscreteSacAlgorithm.{name} must be one number or {branches}, one a branch, got {value}")
    return each
