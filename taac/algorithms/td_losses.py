"""TD losses: which return the critics regress on.

Each is called with the critics' values at the executed actions, the replayed time steps and the target values, and gives
the loss of each frame. They differ in their return alone, so any of them can be injected into any algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence

import gin
import torch
import torch.nn.functional as F

from taac.data_structures import TimeStep
from taac.errors import TaacError
from taac.ops import losses, value_ops


class BaseTDLoss:
    """Squared error between Q and a return; subclasses give the return.

    Args:
        gamma: discount of a step, in [0, 1]; a sequence gives each part of a vector reward its own.
        ignore_done: treat terminations as if the episode went on (the return bootstraps from the last state).
    """

    def __init__(self, gamma: float | Sequence[float] = 0.99, ignore_done: bool = False):
        self.gamma = torch.as_tensor(gamma, dtype=torch.float32)
        if self.gamma.dim() > 1 or not bool(((self.gamma >= 0) & (self.gamma <= 1)).all()):
            raise TaacError(f"gamma must be a number in [0, 1], or a sequence of them, got {gamma}")
        self.ignore_done = ignore_done

    def check_reward(self, reward_dim: int | None) -> None:
        """Refuses a vector gamma that does not fit the reward.

        Raises:
            TaacError: it has another length than the reward, or the reward is a scalar.
        """
        if self.gamma.dim() and self.gamma.numel() != reward_dim:
            expected = (
                "one number, since the reward is a scalar" if reward_dim is None else f"1 or {reward_dim} numbers"
            )
            raise TaacError(f"gamma has {self.gamma.numel()} numbers; expected {expected}")

    def discount(self, time_step: TimeStep) -> torch.Tensor:
        """gamma times the discount received on arriving, `[T, B]`, or `[T, B, D]` if gamma is a vector."""
        discount = torch.ones_like(time_step.discount) if self.ignore_done else time_step.discount
        if self.gamma.dim() == 0:
            return discount * self.gamma.item()
        return discount.unsqueeze(-1) * self.gamma.to(discount.device)

    def returns(self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor) -> torch.Tensor:
        """The critics' targets `[T-1, B]` or `[T-1, B, D]`, detached.

        Args:
            time_step: the replayed frames, `[T, B]`.
            value: target values, `[T, B]` or `[T, B, D]`; those of frame 0 are never read.
            switch: `[T, B]` bool, whether the trajectory followed is broken at a frame, executed or newly sampled.
        """
        raise NotImplementedError

    def __call__(
        self, q: torch.Tensor, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Args:
            q: `[N, T-1, B]` or `[N, T-1, B, D]`, each critic at the executed actions of frames 0..T-2.

        Returns:
            Squared errors summed over critics `[T, B]`, 0 at the segment's last frame, and the targets.
        """
        return self.loss(q, self.returns(time_step, value, switch))

    @staticmethod
    def loss(q: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of frames 0..T-2 against their targets as `[T, B]`, and the targets."""
        return F.pad(losses.squared_td_error(q, target), (0, 0, 0, 1)), target


@gin.configurable
class OneStepTDLoss(BaseTDLoss):
    """One-step TD: `value_ops.one_step_return`."""

    def returns(self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor) -> torch.Tensor:
        return value_ops.one_step_return(time_step.reward, value, time_step.step_type, self.discount(time_step))


@gin.configurable
class TDLoss(BaseTDLoss):
    """N-step TD over the whole segment, uncorrected: `value_ops.n_step_return`."""

    def returns(self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor) -> torch.Tensor:
        return value_ops.n_step_return(time_step.reward, value, time_step.step_type, self.discount(time_step))


@gin.configurable
class TAACTDLoss(BaseTDLoss):
    """TAAC's compare-through TD: `value_ops.compare_through_return`."""

    def returns(self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor) -> torch.Tensor:
        return value_ops.compare_through_return(
            time_step.reward, value, time_step.step_type, self.discount(time_step), switch
        )


@gin.configurable
class RetraceTDLoss(BaseTDLoss):
    """Retrace over the whole segment: `value_ops.retrace_return`. For algorithms that store the rollout's probabilities.

    Args:
        gamma, ignore_done: as every TD loss.
        lambda_: in [0, 1], `c = lambda min(1, pi / mu)`.
    """

    def __init__(self, gamma: float | Sequence[float] = 0.99, ignore_done: bool = False, lambda_: float = 1.0):
        super().__init__(gamma, ignore_done)
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
