"""TD losses: which return the critics regress on.

Each computes targets from the replayed time steps and the target values, and the error of values against them. They differ
in their return alone; `RetraceTDLoss` needs an algorithm that stores probabilities. A loss of your own extends `BaseTDLoss`
with its `returns`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import gin
import torch

from taac.algorithms.algorithm import BoundAsItsBase
from taac.data_structures import TimeStep
from taac.errors import TaacError
from taac.ops import losses, value_ops


@gin.configurable
class BaseTDLoss(BoundAsItsBase):
    """Squared or Huber's error between Q and a return; subclasses give the return.

    The one owner of the discount: `BaseTDLoss.gamma` in a gin file is that of every TD loss, a user's own among them.

    Args:
        gamma: discount of a step, in [0, 1]; a sequence gives each part of a vector reward its own.
        ignore_done: treat terminations as if the episode went on (the return bootstraps from the last state).
        huber_delta: errors beyond +- this, in units of Q, count linearly (`losses.huber_td_error`); None: all are squared.
            It holds for everything that the algorithm regresses on values: V and Q of SAC with a value network, TempoRL's
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
        self.ignore_done, self.huber_delta = ignore_done, huber_delta
        self.repeat_gamma = 1.0  # of a step inside a repeated action, as the environment has it

    needs_probabilities = False  # of the rollout's actions, which not every algorithm stores

    def check(self, reward_dim: int | None, algorithm: str, stores_probabilities: bool = False) -> None:
        """Refuses a loss that does not fit the reward or the algorithm.

        Raises:
            TaacError: a vector gamma of another length than the reward, or a loss that needs what is not stored.
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
        """A copy for the rewards of an environment and an agent.

        Args:
            reward_dim: D, parts of the whole reward; None for a scalar reward.
            parts: numbers of the parts that are learnt, which keep their own gammas; None: all.
            signal_gammas: discounts of the last parts; None: as this loss has it.
            repeat_gamma: discount of a step inside a repeated action, as the environment has it.
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
        return loss

    def discount(self, time_step: TimeStep) -> torch.Tensor:
        """gamma times the discount received on arriving, `[T, B]`, or `[T, B, D]` if gamma is a vector."""
        discount = time_step.discount
        if self.ignore_done:  # terminations alone, at which gamma^(k-1) of an action repeated k times is lost
            inside = self.repeat_gamma ** (time_step.duration.to(discount.dtype) - 1)
            discount = torch.where(discount == 0, inside, discount)
        if self.gamma.dim() == 0:
            return discount * self.gamma.item()
        return discount.unsqueeze(-1) * self.gamma.to(discount.device)

    def returns(
        self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor, bonus: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The critics' targets `[T-1, B]` or `[T-1, B, D]`, detached.

        Args:
            time_step: the replayed frames, `[T, B]`.
            value: target values, `[T, B]` or `[T, B, D]`; those of frame 0 are never read.
            switch: `[T, B]` bool, whether the trajectory followed is broken at a frame, executed or newly sampled.
            bonus: of value's shape, the entropy bonus that `value` contains, which a return of several steps pays at each
                of them; None: targets pay no entropy.
        """
        raise NotImplementedError

    def error(self, q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Values `[N, T, B(, D)]` against a target `[T, B(, D)]`: squared or Huber's, summed over N, mean over D: `[T, B]`."""
        if self.huber_delta is None:
            return losses.squared_td_error(q, target)
        return losses.huber_td_error(q, target, self.huber_delta)


@gin.configurable
class OneStepTDLoss(BaseTDLoss):
    """One-step TD: the error against `value_ops.one_step_return`.

    Args, errors: `gamma` in [0, 1], `ignore_done` and `huber_delta`, as `BaseTDLoss`.

    Source: Sutton and Barto (2nd edition), equation 6.1; the critic's loss of SAC (arXiv:1812.05905), equation 5.
    """

    def returns(
        self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor, bonus: torch.Tensor | None = None
    ) -> torch.Tensor:
        return value_ops.one_step_return(time_step.reward, value, time_step.step_type, self.discount(time_step))


@gin.configurable
class TDLoss(BaseTDLoss):
    """N-step TD over the whole segment, uncorrected: the error against `value_ops.n_step_return`.

    Args, errors: `gamma` in [0, 1], `ignore_done` and `huber_delta`, as `BaseTDLoss`.

    Source: Sutton and Barto (2nd edition), equation 7.1; TAAC-Ntd of TAAC (arXiv:2104.06521), section 5.
    """

    def returns(
        self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor, bonus: torch.Tensor | None = None
    ) -> torch.Tensor:
        return value_ops.n_step_return(time_step.reward, value, time_step.step_type, self.discount(time_step), bonus)


@gin.configurable
class TAACTDLoss(BaseTDLoss):
    """TAAC's compare-through TD: the error against `value_ops.compare_through_return`.

    Args, errors: `gamma` in [0, 1], `ignore_done` and `huber_delta`, as `BaseTDLoss`.

    Source: Yu, Xu and Zhang, TAAC (arXiv:2104.06521), section 4.3.
    """

    def returns(
        self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor, bonus: torch.Tensor | None = None
    ) -> torch.Tensor:
        return value_ops.compare_through_return(
            time_step.reward, value, time_step.step_type, self.discount(time_step), switch, bonus
        )


@gin.configurable
class RetraceTDLoss(BaseTDLoss):
    """Retrace over the whole segment: `value_ops.retrace_return`. For algorithms that store the rollout's probabilities.

    Args:
        lambda_: in [0, 1], `c = lambda min(1, pi / mu)`.
        base: `gamma`, `ignore_done` and `huber_delta`, as of `BaseTDLoss`.
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
        """The critics' targets `[T-1, B]` or `[T-1, B, D]`, detached.

        Args:
            time_step, value: as `returns`.
            q: `[T-1, B]` or `[T-1, B, D]`, target critics at the executed actions of frames 0..T-2.
            log_ratio: `[T-1, B]`, `log pi - log mu` of those actions.
        """
        trace = self.lambda_ * log_ratio.clamp(max=0.0).exp()
        return value_ops.retrace_return(
            time_step.reward, value, time_step.step_type, self.discount(time_step), q, trace
        )
