"""Soft actor-critic for discrete actions: every expectation over the policy is exact.

Source: Christodoulou, Soft Actor-Critic for Discrete Action Settings (arXiv:1910.07207), algorithm 1; equation numbers
below are that paper's. Masks of valid choices and agents that share a policy are ours.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms import target_entropies
from taac.algorithms.actor_critic import ActorCriticAlgorithm
from taac.algorithms.td_losses import BaseTDLoss, OneStepTDLoss
from taac.algorithms.temperature import Temperature
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError
from taac.networks import CategoricalActorNetwork, CriticEnsemble, ObservationEncoder
from taac.ops import distributions
from taac.ops.schedules import Schedule
from taac.specs import DiscreteActionSpec


class DiscreteSacTrainInfo(NamedTuple):
    """From `train_step` to `calc_loss`; `G` is the dimension of agents, absent if there is one alone."""

    actor_loss: torch.Tensor  # [T, B], mean over agents
    temperature_loss: torch.Tensor  # [T, B], mean over agents
    log_pi: torch.Tensor  # [T, B], sum_a pi(a|s) log pi(a|s), mean over agents, detached
    q: torch.Tensor  # [N, T-1, B(, G or D)], at the executed choices
    value: torch.Tensor  # [T, B(, G or D)], target values; 0 at frame 0, where they are never read
    bonus: torch.Tensor | None  # [T, B(, G or D)], the entropy bonus in `value`; None if targets pay none


@gin.configurable
class DiscreteSacAlgorithm(ActorCriticAlgorithm):
    """Discrete SAC (Christodoulou, arXiv:1910.07207, algorithm 1): critics with one value a choice, a categorical actor.

    A mask of valid choices in the observation is respected everywhere: see `DiscreteActionSpec`. Where n of the C choices
    are valid, the target entropy is the fraction `log n / log C` of that of all C: as far from its greatest value there as
    everywhere, so that it can be reached, and 0 where there is no choice.

    Agents that share the policy learn each from its own observation and choice; the loss of a frame is their mean. A
    scalar reward is every agent's; of a reward of as many parts as there are agents, each has its own.

    Args:
        observation_spec: of the environment.
        action_spec: a scalar of C choices; or a vector, of agents with C choices each.
        reward_dim, reward_weights, encoder_ctor, critic_ctor, target_update_tau, target_update_period,
            target_update_env_steps, actor_encoder_ctor: see `ActorCriticAlgorithm`; `critic_ctor` is called with `num_choices`
            as well.
        actor_ctor: called with input size and C; see `CategoricalActorNetwork`.
        td_loss: how targets are made; see `td_losses`.
        action_min_prob: gives the target entropy, `p (log(C-1) - log p) - (1-p) log(1-p)`.
        target_entropy: the target entropy itself, in nats, instead; in [0, log C].
        temperature_ctor: called with the target entropy; see `Temperature`.
        entropy_in_target: whether targets pay the entropy of every step that they go through, discounted as the value.

    Raises:
        TaacError: actions that are not discrete, a mask that does not fit, a target entropy that cannot be reached.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Nest,
        reward_dim: int | None = None,
        reward_weights: Sequence[float | Schedule] | None = None,
        encoder_ctor: Callable[..., nn.Module] = ObservationEncoder,
        actor_ctor: Callable[..., nn.Module] = CategoricalActorNetwork,
        critic_ctor: Callable[..., nn.Module] = CriticEnsemble,
        td_loss: BaseTDLoss | None = None,
        action_min_prob: float = 0.1,
        target_entropy: float | Schedule | None = None,
        temperature_ctor: Callable[..., Temperature] = Temperature,
        entropy_in_target: bool = True,
        target_update_tau: float = 0.005,
        target_update_period: int = 1,
        target_update_env_steps: int | None = None,
        actor_encoder_ctor: Callable[..., nn.Module] | None = None,
    ):
        discrete = DiscreteActionSpec(action_spec, observation_spec, type(self).__name__)
        choices, agents = discrete.num_choices, discrete.agents
        if agents and (reward_dim not in (None, *agents) or reward_weights is not None):
            raise TaacError(
                f"{agents[0]} agents share the policy, so the reward must be one number, or {agents[0]}, one an agent, and "
                f"without reward_weights, which create_agent.reward_signals bring; it has "
                f"{reward_dim or 1} parts and the weights {reward_weights}"
            )
        super().__init__(
            discrete.observation, action_spec, 0, None if agents else reward_dim, reward_weights, encoder_ctor,
            functools.partial(critic_ctor, num_choices=choices), target_update_tau, target_update_period, None,
            target_update_env_steps,
            actor_encoder_ctor,
        )  # fmt: skip
        self.discrete, self.agent_dims = discrete, len(agents)
        self.actor = actor_ctor(self.actor_feature_size, choices)
        target = target_entropies.of_choices(
            choices, action_min_prob, target_entropy, "DiscreteSacAlgorithm.target_entropy"
        )
        self._target_formula = target.formula + (
            ", times log n / log C where n choices are valid" if discrete.masked else ""
        )
        self.temperature = self.build_temperature(temperature_ctor, target)
        td_loss = td_loss or OneStepTDLoss()
        td_loss.check(reward_dim, type(self).__name__)
        self.td_loss = td_loss.of_parts(self.reward_parts)
        self.entropy_in_target = entropy_in_target

    # Acting ----------------------------------------------------------------------------------------------------------

    def initial_state(self, batch_size: int) -> Nest:
        return ()

    @torch.inference_mode()
    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        probs, _ = self._policy(self._seen(time_step), self._valid(time_step))
        choice = probs.argmax(-1)
        if epsilon > 0:
            sampled = distributions.categorical_sample(probs)
            choice = torch.where(torch.rand(choice.shape, device=choice.device) < epsilon, sampled, choice)
        return self._act(time_step, choice)

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        probs, _ = self._policy(self._seen(time_step), self._valid(time_step))
        return self._act(time_step, distributions.categorical_sample(probs))

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        return self._act(time_step, distributions.categorical_sample(self._valid(time_step).float()))

    @staticmethod
    def _act(time_step: TimeStep, choice: torch.Tensor) -> AlgStep:
        return AlgStep(choice, (), (), torch.ones_like(time_step.step_type, dtype=torch.bool))

    def _valid(self, time_step: TimeStep) -> torch.Tensor:
        return self.discrete.valid(time_step.observation, time_step.step_type.shape, time_step.step_type.device)

    def _seen(self, time_step: TimeStep) -> torch.Tensor:
        return self.actor_features(self.discrete.observed(time_step.observation))

    def _policy(self, features: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return distributions.categorical_policy(self.actor(features), valid)

    # Learning --------------------------------------------------------------------------------------------------------

    def train_step(self, experience: Experience) -> DiscreteSacTrainInfo:
        time_step = experience.time_step
        observation, valid = self.discrete.observed(time_step.observation), self._valid(time_step)
        features, seen = self.encode(observation)
        q = self.critics(features)

        # Actor: minimise sum_a pi(a|s) (alpha log pi(a|s) - min_i Q_i(s, a))  (equation 12)
        probs, log_probs = self._policy(seen, valid)
        alpha = self.temperature.alpha()
        q_pi = self.weighted(self.min_over_critics(q.detach()))
        actor_loss = (probs * (alpha * log_probs - q_pi)).sum(-1)

        # Temperature: the exact entropy H(pi(.|s)) against its target  (equation 11)
        entropy = -(probs * log_probs).sum(-1).detach()
        reachable = valid.sum(-1).to(entropy.dtype).log() / math.log(self.discrete.num_choices)
        temperature_loss = self.temperature.loss(entropy, reachable)

        # V(s') = sum_a pi(a|s') (min_i Q'_i(s', a) - alpha log pi(a|s'))  (equation 10)
        with torch.no_grad():
            target_features = self.target_encoder(nest.index(observation, slice(1, None)))
            target_q = self.min_over_critics(self.target_critics(target_features))
            value = (_like(probs[1:], target_q) * target_q).sum(probs.dim() - 1)
            bonus = self._share_out(alpha * entropy[1:]) if self.entropy_in_target else None
            if bonus is not None:
                value = value + bonus
        return DiscreteSacTrainInfo(
            actor_loss=self._over_agents(actor_loss),
            temperature_loss=self._over_agents(temperature_loss),
            log_pi=self._over_agents(-entropy),
            q=_at(q[:, :-1], time_step.prev_action[1:]),
            value=self.pad_front(value),
            bonus=None if bonus is None else self.pad_front(bonus),
        )

    def calc_loss(self, experience: Experience, info: DiscreteSacTrainInfo) -> LossInfo:
        time_step = experience.time_step
        if time_step.reward.dim() < info.value.dim():  # every agent has the one reward
            time_step = time_step._replace(reward=time_step.reward.unsqueeze(-1).expand_as(info.value))
        switch = torch.ones_like(time_step.step_type, dtype=torch.bool)
        critic_loss, target = self.td_loss(info.q, time_step, info.value, switch, info.bonus)
        loss = self.masked(experience, info.actor_loss + info.temperature_loss + critic_loss)
        summaries = self.common_summaries(experience, info, critic_loss, target, self.temperature)
        return LossInfo(loss, summaries, self.segment_error(experience, info.q, target))

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """`-log pi(a|s)` of the demonstrated choice, mean over agents; 0 of one that the mask forbids."""
        time_step = nest.index(experience.time_step, slice(None, -1))
        _, log_probs = self._policy(self._seen(time_step), self._valid(time_step))
        chosen = experience.time_step.prev_action[1:].unsqueeze(-1)
        return self.cloned(experience, self._over_agents(-log_probs.gather(-1, chosen).squeeze(-1)))

    def _over_agents(self, loss: torch.Tensor) -> torch.Tensor:
        return loss.mean(-1) if self.discrete.agents else loss

    def temperatures(self) -> dict[str, Temperature]:
        return {"action": self.temperature}

    def target_formulas(self) -> dict[str, str]:
        return {"action": self._target_formula}

    def actor_modules(self) -> list[nn.Module]:
        return [self.actor]


def _like(probs: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Probabilities `[..., C]` that broadcast with values `[..., C(, D)]`."""
    return probs.reshape(*probs.shape, *(1,) * (q.dim() - probs.dim()))


def _at(q: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
    """Values `[N, ..., C(, D)]` at choices `[...]`."""
    index = choice.reshape(1, *choice.shape, *(1,) * (q.dim() - choice.dim() - 1))
    return q.take_along_dim(index, dim=choice.dim() + 1).squeeze(choice.dim() + 1)
