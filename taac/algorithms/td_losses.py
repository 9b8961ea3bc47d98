"""TD losses, which determine the return that the critics regress on.

Each computes targets from replayed time steps and target values, and the error of values against these targets. They differ
only in their return, `returns`. `RetraceTDLoss` has `retrace` instead, for an algorithm that stores probabilities. To write your
own loss, extend `BaseTDLoss` and override `returns`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import gin
import torch

from taac.algorithms.algorithm import ForwardingConstructor
from taac.data_structures import TimeStep
from taac.errors import TaacError
from taac.ops import losses, value_distributions, value_ops
from taac.ops.value_distributions import ValueDistribution, mean_of


@gin.configurable
class BaseTDLoss(ForwardingConstructor):
    """Squared or Huber error between Q and a return, which subclasses define.

    The discount is set here only: `BaseTDLoss.gamma` in a gin file applies to every TD loss, including a user's own.

    Args:
        gamma: discount per step, in [0, 1]; a sequence sets one for each part of a vector reward.
        ignore_done: bootstrap from the last state at terminations, as if the episode had continued.
        huber_delta: errors beyond +- this, in units of Q, count linearly (`losses.huber_td_error`); None: all are squared.
            It applies to all value regression of the algorithm: also V and Q of SAC with a value network, and TempoRL's
            durations.

    Raises:
        TaacError: gamma outside [0, 1], a delta that is not above 0.
    """

    def __init__(
        self, gamma: float | Sequence[float] = 0.99, ignore_done: bool = False, huber_delta: float | None = None
    ):
        self.gamma = torch.as_tensor(gamma, dtype=torch.float32)
        if self.gamma.dim() > 1 or not bool(((self.gamma >= 0) & (self.gamma <= 1)).all()):
            raise TaacError(f"gamma must be a number in [0, 1], or a sequence of them, got {gamma}")
        if huber_delta is not None and not 0 < huber_delta < math.inf:
            raise TaacError(f"{type(self).__name__}.huber_delta must be above 0, or None, got {huber_delta}")
        self.gammas = str(self.gamma.tolist())  # as text, which compiled programs watch: they are traced with these numbers
        self.ignore_done, self.huber_delta = ignore_done, huber_delta
        self.repeat_gamma = 1.0

    needs_probabilities = False  # whether it reads probabilities of the rollout's actions; few algorithms store them

    def gamma_of(self, part: int) -> float:
        """Returns the discount of a learnt part of the reward; part 0 of a scalar reward is the whole."""
        return float(self.gamma.reshape(-1)[part])

    def set_gamma(self, part: int, gamma: float) -> None:
        """Sets what `gamma_of` returns."""
        self.gamma = self.gamma.clone()  # the losses of which this one is a copy keep theirs
        self.gamma.view(-1)[part] = gamma
        self.gammas = str(self.gamma.tolist())

    def check(self, reward_dim: int | None, algorithm: str, stores_probabilities: bool = False) -> None:
        """Refuses a loss that does not fit the reward or the algorithm.

        Raises:
            TaacError: a vector gamma whose length differs from the reward's; a loss that needs probabilities that are not
                stored.
        """
        if self.needs_probabilities and not stores_probabilities:
            raise TaacError(
                f"{type(self).__name__} needs the rollout's probabilities, which {algorithm} does not store"
            )
        if self.gamma.dim() and self.gamma.numel() != reward_dim:
            expected = (
                "one number, since the reward is a scalar" if reward_dim is None else f"1 or {reward_dim} numbers"
            )
            raise TaacError(f"gamma has {self.gamma.numel()} numbers; expected {expected}")

    def fitted(
        self,
        reward_dim: int | None,
        parts: torch.Tensor | None = None,
        signal_gammas: Sequence[float | None] = (),
        repeat_gamma: float = 1.0,
    ) -> BaseTDLoss:
        """Returns a copy for the rewards of an environment and an agent.

        Args:
            reward_dim: D, parts of the whole reward; None for a scalar reward.
            parts: indices of the parts that are learnt, which keep their own gammas; None: all.
            signal_gammas: discounts of the last parts, those of reward signals; None: the gamma of this loss.
            repeat_gamma: discount per step inside a repeated action, as in the environment.
        """
        loss = copy.copy(self)
        loss.repeat_gamma = repeat_gamma
        if reward_dim is not None and any(gamma is not None for gamma in signal_gammas):
            loss.gamma = self.gamma.expand(reward_dim).clone()
            for part, gamma in enumerate(signal_gammas, start=reward_dim - len(signal_gammas)):
                if gamma is not None:
                    loss.gamma[part] = gamma
        if parts is not None and loss.gamma.dim():
            loss.gamma = loss.gamma[parts]
        loss.gammas = str(loss.gamma.tolist())
        return loss

    def discount(self, time_step: TimeStep) -> torch.Tensor:
        """Returns gamma times the discount received on arrival, `[T, B]`, or `[T, B, D]` if gamma is a vector.

        After an action repeated k times the environment's discount is `repeat_gamma^(k-1)`. A vector gamma gives each part its
        own `gamma^k` instead; or `gamma` at a `repeat_gamma` of 1, where the environment sums the rewards of a repeat.
        """
        discount = time_step.discount
        if self.ignore_done:  # changes terminations only; restores the gamma^(k-1) of an action repeated k times
            inside = self.repeat_gamma ** (time_step.duration.to(discount.dtype) - 1)
            discount = torch.where(discount == 0, inside, discount)
        if self.gamma.dim() == 0:
            return discount * self.gamma.item()
        parts = [discount * gamma for gamma in self.gamma.tolist()]  # as numbers: without a copy between devices
        if 0.0 < self.repeat_gamma < 1.0:
            repeats = (time_step.duration.to(discount.dtype) - 1.0).clamp(min=0.0)  # k-1; 0 at FIRST
            ratios = [gamma / self.repeat_gamma for gamma in self.gamma.tolist()]
            parts = [
                part if math.isclose(ratio, 1.0, rel_tol=1e-6) else part * ratio**repeats
                for part, ratio in zip(parts, ratios)
            ]
        return torch.stack(parts, -1)

    def returns(
        self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor, bonus: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns the critics' targets `[T-1, B]` or `[T-1, B, D]`, detached.

        Args:
            time_step: the replayed frames, `[T, B]`.
            value: target values, `[T, B]` or `[T, B, D]`; those of frame 0 are never read.
            switch: `[T, B]` bool, whether the trajectory is broken at a frame, by the executed switch or a newly sampled one.
            bonus: what acting at a frame adds besides rewards, see `value_ops.n_step_return`, with the shape of `value`.
        """
        raise NotImplementedError

    def stops(self, time_step: TimeStep, switch: torch.Tensor) -> torch.Tensor | None:
        """Returns where a return that arrives bootstraps, `[T, B]` bool; None if it does so at more than one frame."""
        return None

    def targets(
        self,
        time_step: TimeStep,
        value: torch.Tensor | ValueDistribution,
        switch: torch.Tensor,
        bonus: torch.Tensor | None = None,
    ) -> torch.Tensor | ValueDistribution:
        """Returns `returns`, or their distributions `[T-1, B, M]`, of values `[T, B, M]`, if each bootstraps at one frame.

        Rewards and discounts are carried to that frame, so that each distribution is projected once.
        """
        if isinstance(value, ValueDistribution) and (stop := self.stops(time_step, switch)) is not None:
            found = value_ops.bootstraps(time_step.reward, time_step.step_type, self.discount(time_step), stop, bonus)
            return value_distributions.return_distribution(found, value)
        return self.returns(time_step, mean_of(value), switch, bonus)

    def error(self, q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns the squared or Huber error `[T, B]` of values `[N, T, B(, D)]`: summed over N, averaged over D.

        The target is `[T, B(, D)]`.
        """
        if self.huber_delta is None:
            return losses.squared_td_error(q, target)
        return losses.huber_td_error(q, target, self.huber_delta)


@gin.configurable
class OneStepTDLoss(BaseTDLoss):
    """One-step TD: the error against `value_ops.one_step_return`.

    Args and errors are those of `BaseTDLoss`: `gamma` in [0, 1], `ignore_done` and `huber_delta`.

    Source: Sutton and Barto (2nd edition), equation 6.2; the critic's loss of SAC (arXiv:1812.05905), equation 5.
    """

    def returns(
        self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor, bonus: torch.Tensor | None = None
    ) -> torch.Tensor:
        return value_ops.one_step_return(time_step.reward, value, time_step.step_type, self.discount(time_step))

    def stops(self, time_step: TimeStep, switch: torch.Tensor) -> torch.Tensor:
        return torch.ones_like(switch)


@gin.configurable
class TDLoss(BaseTDLoss):
    """N-step TD over the whole segment, uncorrected: the error against `value_ops.n_step_return`.

    Args and errors are those of `BaseTDLoss`: `gamma` in [0, 1], `ignore_done` and `huber_delta`.

    Source: Sutton and Barto (2nd edition), equation 7.1; TAAC-Ntd of TAAC (arXiv:2104.06521), section 5.
    """

    def returns(
        self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor, bonus: torch.Tensor | None = None
    ) -> torch.Tensor:
        return value_ops.n_step_return(time_step.reward, value, time_step.step_type, self.discount(time_step), bonus)

    def stops(self, time_step: TimeStep, switch: torch.Tensor) -> torch.Tensor:
        return time_step.is_last()


@gin.configurable
class TAACTDLoss(BaseTDLoss):
    """TAAC's compare-through TD: the error against `value_ops.compare_through_return`.

    Args and errors are those of `BaseTDLoss`: `gamma` in [0, 1], `ignore_done` and `huber_delta`.

    Source: Yu, Xu and Zhang, TAAC (arXiv:2104.06521), section 4.3.
    """

    def returns(
        self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor, bonus: torch.Tensor | None = None
    ) -> torch.Tensor:
        return value_ops.compare_through_return(
            time_step.reward, value, time_step.step_type, self.discount(time_step), switch, bonus
        )

    def stops(self, time_step: TimeStep, switch: torch.Tensor) -> torch.Tensor:
        return time_step.is_last() | switch


@gin.configurable
class RetraceTDLoss(BaseTDLoss):
    """Retrace over the whole segment: the error against `value_ops.retrace_return`.

    It needs an algorithm that stores the probabilities of the rollout's actions.

    Args:
        lambda_: in [0, 1], `c = lambda min(1, pi / mu)`.
        base: `gamma`, `ignore_done` and `huber_delta` of `BaseTDLoss`.

    Raises:
        TaacError: errors of `BaseTDLoss`; `lambda_` outside [0, 1].

    Source: Munos et al. (arXiv:1606.02647).
    """

    needs_probabilities = True

    def __init__(self, lambda_: float = 1.0, **base: Any):
        super().__init__(**base)
        if not 0 <= lambda_ <= 1:
            raise TaacError(f"RetraceTDLoss.lambda_ must be in [0, 1], got {lambda_}")
        self.lambda_ = lambda_

    def retrace(
        self, time_step: TimeStep, value: torch.Tensor, q: torch.Tensor, log_ratio: torch.Tensor
    ) -> torch.Tensor:
        """Returns the critics' targets `[T-1, B]` or `[T-1, B, D]`, detached.

        Args:
            time_step, value: see `returns`.
            q: `[T-1, B]` or `[T-1, B, D]`, target critics at the executed actions of frames 0..T-2.
            log_ratio: `[T-1, B]`, `log pi - log mu` of these actions.
        """
        trace = self.lambda_ * log_ratio.clamp(max=0.0).exp()
        return value_ops.retrace_return(
            time_step.reward, value, time_step.step_type, self.discount(time_step), q, trace
        )
