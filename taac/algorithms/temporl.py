"""TempoRL on SAC, TD3 or DDPG: first choose the action, then how long to hold it.

A second network values each duration j = 1..J of the action that the actor has just chosen. It learns from observed skips:
an action held over states s_t..s_{t+j} is an example of every duration between any two of these states.

Source: Biedenkapp, Rajan, Hutter and Lindauer, TempoRL: Learning When to Act (ICML 2021, arXiv:2106.05262), section 4. The
paper's continuous version uses DDPG; its code is automl/TempoRL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gin
import torch
import torch.nn as nn

from taac.algorithms.actor_critic import ActorCriticAlgorithm, TrainInfo, trainable
from taac.algorithms.sac import SacAlgorithm
from taac.algorithms.td3 import Td3Algorithm
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError, refuse_below
from taac.networks import CriticEnsemble
from taac.networks.batch_statistics import gathering
from taac.ops import value_ops
from taac.ops.schedules import Schedule
from taac.ops.value_distributions import mean_of


class TempoRLState(NamedTuple):
    """State carried through time."""

    action: torch.Tensor  # [B, A], the action being held
    left: torch.Tensor  # [B] int64, remaining steps of the hold; 0: choose a new action


class TempoRLInfo(NamedTuple):
    """Stored with each frame in the replay buffer."""

    decided: torch.Tensor  # [B] bool, whether a new action was chosen here


class SkipValues(NamedTuple):
    """What `Skips.train_step` adds to `TrainInfo`."""

    predicted: torch.Tensor  # [1, T-1, B, J(, D)(, ...)], for every duration of the executed action
    entropy: torch.Tensor | None  # [T, B(, D)], the entropy bonus in target values before the price; None if there is none


class Skips(ActorCriticAlgorithm):
    """Mixin whose actions are held for `argmax_j Q_skip(s, a, j)` steps, epsilon-greedily while exploring.

    List it before the backbone among the bases of a class, whose constructor is `Skips.__init__`. The backbone itself learns from
    every environment step. `Q_skip(s_t, a_t, j)` regresses on the j rewards that followed, plus the backbone's target value of
    the state reached:

        sum_{i<j} gamma^i r_{t+1+i} + sum_{0<i<j} gamma^i h(s_{t+i}) + gamma^j V(s_{t+j})

    The loss of a frame is the sum over its durations j that happened in the replayed segment, of T frames, each with the weight
    `(T - 1) / (T - j)`: a long duration fits into a segment at fewer places than a short one, and all observed skips shall count
    alike. It is divided by (J + 1) / 2, the mean number of skips per step if every action is held for J steps. Here
    `h(s) = -alpha log pi(a~|s)` is the entropy bonus that V contains; it is 0 without one. With h, every duration contains the
    entropy of the same steps, so durations differ by their rewards only (see `value_ops.skip_returns`).

    With a price c of a decision, V is the value of deciding at every step, each at that price. Inside a skip nobody decides, so
    a skip of j steps saves j - 1 prices.

    Args:
        observation_spec, action_spec: of the environment; actions are a vector in [-1, 1].
        max_skip: J, the longest duration; at most the segment length minus one, because shorter segments cannot contain it.
        skip_epsilon: probability of a uniformly random duration while exploring.
        decision_price: c, a number or a schedule, in units of the reward that is learnt. Reported returns do not contain it.
        target_decision_rate: learns c so that rollouts decide in this fraction of their steps; see `DecisionPrice`.
        skip_critic_ctor: called with input size, `reward_dim`, `num_choices` and `num_critics=1`; see `CriticEnsemble`.
        backbone: the other arguments of the backbone; bind them there in gin.

    Raises:
        TaacError: errors of the backbone; settings out of range.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: Any,
        *,
        max_skip: int = 3,
        skip_epsilon: float = 0.1,
        decision_price: float | Schedule = 0.0,
        target_decision_rate: float | None = None,
        skip_critic_ctor: Callable[..., nn.Module] = CriticEnsemble,
        **backbone: Any,
    ):
        super().__init__(observation_spec, action_spec, **backbone)
        name = type(self).__name__
        refuse_below(1, name, max_skip=max_skip)
        if not 0 <= skip_epsilon <= 1:
            raise TaacError(f"{name}.skip_epsilon must be in [0, 1], got {skip_epsilon}")
        self.max_skip, self.skip_epsilon = max_skip, skip_epsilon
        self.min_segment_length = max_skip + 1
        self.min_segment_reason = f"so that it holds an action held for {name}.max_skip = {max_skip} steps"
        self.skip_critic = skip_critic_ctor(
            self.feature_size + self.action_size, self.reward_dim, num_choices=max_skip, num_critics=1
        )
        self.check_critics(self.skip_critic)
        longest = (1 - skip_epsilon) * max_skip + skip_epsilon * (max_skip + 1) / 2  # the greatest mean duration
        least = (1 / longest, f"max_skip = {max_skip} and skip_epsilon = {skip_epsilon:g}")
        self.decision_price = self.build_decision_price(decision_price, target_decision_rate, least)

    # Acting ----------------------------------------------------------------------------------------------------------

    def initial_state(self, batch_size: int) -> TempoRLState:
        device = self.device
        return TempoRLState(
            torch.zeros(batch_size, self.action_size, device=device),
            torch.zeros(batch_size, dtype=torch.int64, device=device),
        )

    @torch.inference_mode()
    def predict_step(self, time_step: TimeStep, state: TempoRLState, epsilon: float = 0.0) -> AlgStep:
        features, actor_features = self.encode(time_step.observation)
        new = self.greedy_step(time_step, actor_features, epsilon)
        step = self._commit(state, new.output, self._duration(features, new.output, epsilon * self.skip_epsilon))
        return step._replace(policy=new.policy)

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: TempoRLState, noise: torch.Tensor | None = None) -> AlgStep:
        features, actor_features = self.encode(time_step.observation)
        new = self.sampled_step(time_step, actor_features, noise)
        step = self._commit(state, new.output, self._duration(features, new.output, self.skip_epsilon))
        return step._replace(policy=new.policy)

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: TempoRLState) -> AlgStep:
        action = super().random_step(time_step, ()).output
        return self._commit(state, action, torch.randint_like(state.left, 1, self.max_skip + 1))

    def _duration(self, features: torch.Tensor, action: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Returns `argmax_j Q_skip(s, a, j)`, or a uniformly random j with probability `epsilon`; `[B]` int64, from 1."""
        best = self.weighted(self.q_values(self.skip_critic, features, action)[0]).argmax(-1) + 1
        uniform = torch.randint_like(best, 1, self.max_skip + 1)
        return torch.where(torch.rand(best.shape, device=best.device) < epsilon, uniform, best)

    @staticmethod
    def _commit(state: TempoRLState, action: torch.Tensor, duration: torch.Tensor) -> AlgStep:
        """Continues the held action if any steps are left; otherwise starts the new action for its duration."""
        decided = state.left == 0
        executed = torch.where(decided.unsqueeze(-1), action, state.action)
        left = torch.where(decided, duration, state.left) - 1
        return AlgStep(executed, TempoRLState(executed, left), TempoRLInfo(decided), decided)

    def action_values(self, time_step: TimeStep, state: TempoRLState, step: AlgStep) -> tuple[torch.Tensor, Nest]:
        """Returns `min_i Q_i(s, a)` `[B]`, and `Q_skip(s, a, j)` of every duration j of the greedy new action, `[B, J]`."""
        durations = self.q_values(self.skip_critic, self.critic_features(time_step, state), torch.tanh(step.policy[0]))
        return super().action_values(time_step, state, step)[0], self.least_value(durations)

    # Learning --------------------------------------------------------------------------------------------------------

    def train_step(self, experience: Experience) -> TrainInfo:
        info: TrainInfo = super().train_step(experience)
        assert info.features is not None
        with gathering(self.skip_critic, ~experience.time_step.is_last()[:-1]):
            predicted = self.skip_critic(info.features[:-1], experience.time_step.prev_action[1:])
        bonus, value = self.priced_bonus(info.bonus, info.value, 1.0), self.priced(info.value, 1.0)
        own = SkipValues(predicted, info.bonus)
        return info._replace(value=value, bonus=bonus, own=own)

    def calc_loss(self, experience: Experience, info: TrainInfo) -> LossInfo:
        loss, extra, error, detail = super().calc_loss(experience, info)
        time_step = experience.time_step
        target, happened = value_ops.skip_returns(
            time_step.reward,
            mean_of(info.value),
            time_step.step_type,
            self.td_loss.discount(time_step),
            experience.rollout_info.decided,
            self.max_skip,
            info.own.entropy,
        )
        # [J, T-1, B]: the error of each duration that happened, as often as skips of that duration are drawn uniformly
        errors = [self.value_error(self.skip_critic, p, g) for p, g in zip(info.own.predicted.unbind(3), target)]
        places = len(target[0]) - torch.arange(self.max_skip, device=self.device)  # of each duration in a segment
        weight = 2 / (self.max_skip + 1) * len(target[0]) / places.clamp(min=1)
        skip_loss = (torch.stack(errors) * happened * weight.view(-1, 1, 1)).sum(0)
        own = {
            "loss/skip": self.mean_acted(experience, skip_loss),
            "skip/observed": self.mean_acted(experience, happened.sum(0).to(skip_loss.dtype)),
        }
        return LossInfo(loss + nn.functional.pad(skip_loss, (0, 0, 0, 1)), {**extra, **own}, error, detail)

    def acting_modules(self) -> list[str]:
        return [*super().acting_modules(), "encoder", "skip_critic"]

    def needed_modules(self, step: AlgStep) -> dict[str, torch.Tensor]:
        return dict.fromkeys(self.acting_modules(), step.decided)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups = super().parameter_groups()
        return {**groups, "critic": [*groups["critic"], *trainable(self.skip_critic)]}

    def summary_tags(self) -> dict[str, str]:
        return {
            "loss/skip": "weighted error (squared or Huber's) of the durations' values, summed over durations, mean except LAST",
            "skip/observed": "durations that a replayed frame is an example of, mean over frames except LAST",
        }


@gin.configurable
class TempoRLAlgorithm(Skips, SacAlgorithm):
    """TempoRL on SAC. `Skips` has the arguments.

    Assumed, because the paper's backbone is DDPG: V is SAC's soft value; `Q_skip` sends no gradient to a shared encoder. The
    paper has a separate replay buffer of skips; here they come from replayed segments, with the same weight each.
    """

    __init__ = Skips.__init__  # of its own, because gin wraps it


@gin.configurable
class TempoRLTd3Algorithm(Skips, Td3Algorithm):
    """TempoRL on TD3, or on DDPG as published: that is TD3 with one critic, no noise on target actions and no delay.

    `Skips` has the arguments.

    Assumed: V is TD3's target value, which with DDPG's settings is the published `Q'(s, mu'(s))`. Skips and
    transitions that a time limit ends bootstrap. The published code takes that end for a termination: of skips always, of
    transitions once a decision has lasted longer than a step.
    """

    __init__ = Skips.__init__
