"""TLA: a slow policy that acts once in K steps, a fast one that acts at every step, and a gate that chooses between them.

Source: Patel, Sejnowski and Siegelmann, Optimizing Attention and Cognitive Control Costs Using Temporally Layered Architectures
(Neural Computation 2025, arXiv:2305.18701), and its code, dee0512/Temporally-Layered-Architecture, which decides what the
paper leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms.actor_critic import TrainInfo, trainable
from taac.algorithms.td3 import Td3Algorithm
from taac.algorithms.td_losses import OneStepTDLoss
from taac.data_structures import LAST, AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError, refuse_below
from taac.networks import CriticEnsemble
from taac.networks.batch_statistics import gathering
from taac.ops import value_ops
from taac.ops.schedules import Schedule
from taac.specs import TensorSpec


class TlaState(NamedTuple):
    """State carried through time."""

    slow_action: torch.Tensor  # [B, A], a_s of the window
    open: torch.Tensor  # [B] bool, whether the fast policy acts in the window
    left: torch.Tensor  # [B] int64, remaining steps of the window; 0: a new one begins


class TlaInfo(NamedTuple):
    """Stored with each frame in the replay buffer."""

    begins: torch.Tensor  # [B] bool, whether a window begins here
    open: torch.Tensor  # [B] bool
    slow_action: torch.Tensor  # [B, A]


class Windows(NamedTuple):
    """What `TlaAlgorithm.train_step` adds to `TrainInfo`, which is the fast policy's."""

    fast: Experience  # [2, B], the first transition of each segment
    slow: Experience  # [2, B], the first whole window of each segment, as one transition
    slow_info: TrainInfo
    gate: torch.Tensor  # [1, 1, B(, D)(, ...)], the prediction for what the gate did
    gate_value: torch.Tensor  # [2, B(, D)], target value at the end of the window


@gin.configurable
class TlaAlgorithm(Td3Algorithm):
    """Two TD3 policies, of which a gate chooses one for each window of K steps.

    At each K-th step of an episode the slow policy chooses `a_s`, and the gate takes the greater of `G(s, a_s, closed)` and
    `G(s, a_s, open)`. While it is closed, `a_s` is held for K steps. While it is open, the fast policy acts at every step. This
    object is the fast policy; `slow` is the other. With `g` 1 where the gate is open, and d_t the distance of a_t from a_s, its
    mean over dimensions, each learns from transitions of its own:

        fast      s_t, a_t,  r_{t+1} - j d_t,                               s_{t+1}
        slow      s_w, a_s,  sum_{w < t <= e} (r_t - j d_{t-1}) - p K g,    s_e
        gate      s_w, a_s, g, the same reward, s_e;   target value: Q'_{s,1}(s_e, mu'_s(s_e))

    A window begins at w and ends at e, K steps later or at the end of the episode. Rewards of a window are summed without
    discount, and its bootstrap is discounted by gamma, not by gamma^K, as in the code. An episode that is truncated inside a
    window bootstraps from the state reached; one that terminates does not. The price is that of K steps, however long the
    window was. Where the gate is closed, `a_t = a_s`, so that the fast policy learns from such steps, too, without j.

    Each replayed segment gives one transition of each kind: its first two frames, and its first whole window.

    Args:
        observation_spec, action_spec: of the environment; actions are a vector in [-1, 1].
        slow_steps: K. Segments of 2 K + 1 frames contain a whole window.
        gate_epsilon: probability of a gate that is drawn by a coin, while exploring.
        jerk_price: j, the price of the fast policy's distance from the slow action, a mean over the action's dimensions.
        decision_price: p, the price of a step at which the fast policy acts; a number or a schedule, in units of the reward that
            is learnt. Reported returns contain neither price.
        target_decision_rate: learns p so that rollouts decide in this fraction of their steps; see `DecisionPrice`. A closed
            window is one decision, an open one K.
        gate_critic_ctor: called with input size, `reward_dim`, `num_choices=2` and `num_critics=1`; see `CriticEnsemble`.
        td3_arguments: the other arguments of `Td3Algorithm`, for both policies; bind them there in gin.

    Raises:
        TaacError: errors of `Td3Algorithm`; settings out of range; a TD loss of several steps.

    Assumed, because the source reads vectors only: each policy has its own encoder, and the gate reads that of the slow policy's
    critics without training it.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        *,
        slow_steps: int = 2,
        gate_epsilon: float = 0.1,
        jerk_price: float = 1.0,
        decision_price: float | Schedule = 1.0,
        target_decision_rate: float | None = None,
        gate_critic_ctor: Callable[..., nn.Module] = CriticEnsemble,
        **td3_arguments: Any,
    ):
        super().__init__(observation_spec, action_spec, **td3_arguments)
        refuse_below(1, "TlaAlgorithm", slow_steps=slow_steps)
        if not 0 <= gate_epsilon <= 1:
            raise TaacError(f"TlaAlgorithm.gate_epsilon must be in [0, 1], got {gate_epsilon}")
        if not 0 <= jerk_price < math.inf:
            raise TaacError(f"TlaAlgorithm.jerk_price must be 0 or more, got {jerk_price}")
        if not isinstance(self.td_loss, OneStepTDLoss):
            raise TaacError(
                f"TlaAlgorithm learns from single transitions: bind OneStepTDLoss instead of {type(self.td_loss).__name__}"
            )
        self.slow_steps, self.gate_epsilon, self.jerk_price = slow_steps, gate_epsilon, jerk_price
        self.greatest_cost = 2 * jerk_price  # actions are in [-1, 1]
        self.min_segment_length = 2 * slow_steps + 1
        self.min_segment_reason = f"so that it holds a whole window of TlaAlgorithm.slow_steps = {slow_steps}"
        self.slow = Td3Algorithm(observation_spec, action_spec, **td3_arguments)
        read = self.slow.feature_size + self.action_size
        self.gate_critic = gate_critic_ctor(read, self.reward_dim, num_choices=2, num_critics=1)
        self.check_critics(self.gate_critic)
        opened = gate_epsilon / 2  # the least share of windows
        least = ((1 + opened * (slow_steps - 1)) / slow_steps, f"slow_steps = {slow_steps} and gate_epsilon = {gate_epsilon:g}")
        self.decision_price = self.build_decision_price(decision_price, target_decision_rate, least)

    # Acting ----------------------------------------------------------------------------------------------------------

    def initial_state(self, batch_size: int) -> TlaState:
        device = self.device
        return TlaState(
            torch.zeros(batch_size, self.action_size, device=device),
            torch.zeros(batch_size, dtype=torch.bool, device=device),
            torch.zeros(batch_size, dtype=torch.int64, device=device),
        )

    @torch.inference_mode()
    def predict_step(self, time_step: TimeStep, state: TlaState, epsilon: float = 0.0) -> AlgStep:
        fast, slow = super().predict_step(time_step, (), epsilon), self.slow.predict_step(time_step, (), epsilon)
        step = self._commit(state, fast, slow, self._gate(time_step, slow.output, epsilon * self.gate_epsilon))
        of_both = zip(fast.policy, slow.policy)
        return step._replace(policy=tuple(torch.where(step.info.open.unsqueeze(-1), f, s) for f, s in of_both))

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: TlaState, noise: torch.Tensor | None = None) -> AlgStep:
        fast, slow = super().rollout_step(time_step, (), noise), self.slow.rollout_step(time_step, (), noise)
        return self._commit(state, fast, slow, self._gate(time_step, slow.output, self.gate_epsilon))

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: TlaState) -> AlgStep:
        fast, slow = super().random_step(time_step, ()), self.slow.random_step(time_step, ())
        return self._commit(state, fast, slow, torch.randint_like(state.left, 2).bool())

    def _gate(self, time_step: TimeStep, slow_action: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Returns whether the gate opens, `[B]` bool; a coin with probability `epsilon`."""
        best = self._gate_values(time_step, slow_action).argmax(-1) == 1
        if not epsilon:
            return best
        coin = torch.randint_like(best, 2, dtype=torch.int64).bool()
        return torch.where(torch.rand(best.shape, device=best.device) < epsilon, coin, best)

    def _gate_values(self, time_step: TimeStep, slow_action: torch.Tensor) -> torch.Tensor:
        """Returns the weighted values of a gate that is closed, or open, `[B, 2]`."""
        return self.min_q(self.gate_critic, self.slow.critic_features(time_step, ()), slow_action)

    def _commit(self, state: TlaState, fast: AlgStep, slow: AlgStep, opens: torch.Tensor) -> AlgStep:
        """Begins a window if the last one is over; then acts as its gate says."""
        begins = state.left == 0
        opened = nest.where(begins, opens, state.open)
        slow_action = torch.where(begins.unsqueeze(-1), slow.output, state.slow_action)
        left = torch.where(begins, self.slow_steps, state.left) - 1
        return AlgStep(
            output=torch.where(opened.unsqueeze(-1), fast.output, slow_action),
            state=TlaState(slow_action, opened, left),
            info=TlaInfo(begins, opened, slow_action),
            decided=begins | opened,
        )

    def action_values(self, time_step: TimeStep, state: TlaState, step: AlgStep) -> tuple[torch.Tensor, Nest]:
        """Returns the fast critics' `min_i Q_i(s, a)` `[B]`, and the gate's values, closed and open, of `a_s` `[B, 2]`."""
        return super().action_values(time_step, state, step)[0], self._gate_values(time_step, step.state.slow_action)

    # Learning --------------------------------------------------------------------------------------------------------

    def train_step(self, experience: Experience) -> TrainInfo:
        fast, slow, opened = self.transitions(experience)
        info, slow_info = super().train_step(fast), self.slow.train_step(slow)
        assert slow_info.features is not None
        # Gate: G(s_w, a_s, g) regresses on the window's reward and gamma Q'_{s,1}(s_e, mu'_s(s_e))
        with gathering(self.gate_critic, ~slow.time_step.is_last()[:-1]):
            values = self.gate_critic(slow_info.features[:-1], slow.time_step.prev_action[1:])
        with torch.no_grad():
            features, action = self.slow.target_action(nest.index(slow.time_step.observation, slice(1, None)))
            gate_value = self.pad_front(self.q_values(self.slow.target_critics, features, action)[0])
        return info._replace(own=Windows(fast, slow, slow_info, self.at_choice(values, opened.long().unsqueeze(0)), gate_value))

    def transitions(self, experience: Experience) -> tuple[Experience, Experience, torch.Tensor]:
        """Returns the transitions `[2, B]` of the fast and of the slow policy, and the gate `[B]` bool of the latter's window.

        A segment without a whole window has LAST in its place, where nothing is learnt.
        """
        time_step, stored = experience.time_step, experience.rollout_info
        # Fast: r - j |a - a_s|_1 / A, which is r where the gate is closed
        distance = (time_step.prev_action[1:] - stored.slow_action[:-1]).abs().mean(-1)
        reward = self.pad_front(time_step.reward[1:] - self.share_out(self.jerk_price * distance))
        fast = nest.index(time_step, slice(2))._replace(reward=reward[:2])

        # Slow: the sum of these over a window, less the price of an open one
        begin, end, found = value_ops.first_window(stored.begins, time_step.step_type)
        row = torch.arange(len(begin), device=begin.device)
        opened = stored.open[begin, row]
        at = torch.arange(len(reward), device=begin.device).unsqueeze(1)
        inside = nest.broadcast((at > begin) & (at <= end), reward)
        total = torch.where(inside, reward, 0.0).sum(0)
        if self.decision_price is not None:
            total = total - self.share_out(self.decision_price() * self.slow_steps * opened)
        slow = nest.index(time_step, (torch.stack([begin, end]), row))
        step_type = torch.stack([torch.where(found, slow.step_type[0], LAST), slow.step_type[1]])
        slow = slow._replace(
            step_type=step_type,
            reward=self.pad_front(total.unsqueeze(0)),
            prev_action=self.pad_front(stored.slow_action[begin, row].unsqueeze(0)),
        )
        return Experience(fast, ()), Experience(slow, ()), opened

    def calc_loss(self, experience: Experience, info: TrainInfo) -> LossInfo:
        """Returns the loss of the transitions, `[2, B]`; its mean has the scale of TD3's."""
        own: Windows = info.own
        loss, extra, error, detail = super().calc_loss(own.fast, info)
        slow = self.slow.calc_loss(own.slow, own.slow_info)
        target = self.slow.td_loss.returns(own.slow.time_step, own.gate_value, torch.ones_like(own.slow.time_step.is_last()))
        gate_error = self.value_error(self.gate_critic, own.gate, target)
        gate_loss = self.masked(own.slow, nn.functional.pad(gate_error, (0, 0, 0, 1)))
        assert error is not None and slow.segment_error is not None
        summaries = {
            **{f"loss/slow_{name}": slow.extra[f"loss/{name}"] for name in ("critic", "actor") if f"loss/{name}" in slow.extra},
            "loss/gate": self.mean_acted(own.slow, gate_error),
            "critic/slow_q": slow.extra["critic/q"],
        }
        return LossInfo(loss + slow.loss + gate_loss, {**extra, **summaries}, error + slow.segment_error, detail)

    # Updates ---------------------------------------------------------------------------------------------------------

    def acting_modules(self) -> list[str]:
        return [*super().acting_modules(), "slow", "gate_critic"]

    def needed_modules(self, step: AlgStep) -> dict[str, torch.Tensor]:
        fast = dict.fromkeys(super().acting_modules(), step.info.open)
        return {**fast, **dict.fromkeys(("slow", "gate_critic"), step.info.begins)}

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        return [*super().target_networks(), *self.slow.target_networks()]

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        slow = self.slow.parameter_groups()
        slow["critic"] += trainable(self.gate_critic)
        return {name: [*own, *slow[name]] for name, own in super().parameter_groups().items()}

    def summary_tags(self) -> dict[str, str]:
        return {
            "loss/slow_critic": "`loss/critic` of the slow policy, over windows",
            "loss/slow_actor": "`loss/actor` of the slow policy, over windows",
            "loss/gate": "error (squared or Huber's) of the gate's values, over windows",
            "critic/slow_q": "`critic/q` of the slow policy, over windows",
        }
