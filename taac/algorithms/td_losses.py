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


class _TDLoss:
    """Squared error between Q and a return; subclasses give the return."""

    def __init__(self, gamma: float | Sequence[float] = 0.99, ignore_done: bool = False):
        """
        Args:
            gamma: discount of a step, in [0, 1]; a sequence gives each part of a vector reward its own.
            ignore_done: treat terminations as if the episode went on (the return bootstraps from the last state).
        """
        self.gamma = torch.as_tensor(gamma, dtype=torch.float32)
        if self.gamma.dim() > 1 or not bool(((self.gamma >= 0) & (self.gamma <= 1)).all()):
            raise TaacError(f"gamma must be a number in [0, 1], or a sequence of them, got {gamma}")
        self.ignore_done = ignore_done

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
        target = self.returns(time_step, value, switch)
        return F.pad(losses.squared_td_error(q, target), (0, 0, 0, 1)), target


@gin.configurable
class OneStepTDLoss(_TDLoss):
    """One-step TD: `value_ops.one_step_return`."""

    def returns(self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor) -> torch.Tensor:
        return value_ops.one_step_return(time_step.reward, value, time_step.step_type, self.discount(time_step))


@gin.configurable
class TDLoss(_TDLoss):
    """N-step TD over the whole segment, uncorrected: `value_ops.n_step_return`."""

    def returns(self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor) -> torch.Tensor:
        return value_ops.n_step_return(time_step.reward, value, time_step.step_type, self.discount(time_step))


@gin.configurable
class TAACTDLoss(_TDLoss):
    """TAAC's compare-through TD: `value_ops.compare_through_return`."""

    def returns(self, time_step: TimeStep, value: torch.Tensor, switch: torch.Tensor) -> torch.Tensor:
        return value_ops.compare_through_return(
            time_step.reward, value, time_step.step_type, self.discount(time_step), switch
        )
