"""Target networks: slow copies of networks, from which the critics' targets are computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from fractions import Fraction

import torch
import torch.nn as nn

from taac.errors import TaacError
from taac.machine.traced_attributes import Unwatched
from taac.ops.schedules import Schedule, Scheduled, at_start, bounds


class TargetUpdate(Unwatched):
    """Moves target networks towards the networks that they follow, once per period: `target <- target + tau (network - target)`.

    Args:
        tau, period, env_steps: `target_update_tau`, `target_update_period` and `target_update_env_steps` of
            `ActorCriticAlgorithm`.

    Attributes:
        tau: the current fraction.
        period: in updates, possibly fractional; None: not known before `set_update_ratio`.
        scheduled: the schedule of `tau`, if it has one.

    Raises:
        TaacError: a setting is out of range.
    """

    def __init__(self, tau: float | Schedule, period: int, env_steps: int | None):
        if not (bounds(tau)[0] > 0 and bounds(tau)[1] <= 1):
            raise TaacError(f"target_update_tau must be in (0, 1], got {tau}")
        if period < 1:
            raise TaacError(f"target_update_period must be 1 or more updates, got {period}")
        if env_steps is not None and env_steps < 1:
            raise TaacError(f"target_update_env_steps must be 1 or more, or None, got {env_steps}")
        self.tau = at_start(tau)
        set_tau = functools.partial(setattr, self, "tau")
        self.scheduled = [Scheduled("target_update_tau", tau, set_tau)] if isinstance(tau, Schedule) else []
        self._env_steps = env_steps
        self.period: int | Fraction | None = period if env_steps is None else None
        self._pairs: list[tuple[nn.Module, nn.Module]] = []
        self._parameters: tuple[list[torch.Tensor], list[torch.Tensor]] | None = None  # of both, in one order

    @property
    def copies(self) -> bool:
        """Returns whether every update makes target networks equal to the networks that they follow."""
        return self.tau == 1 and self.period == 1 and not self.scheduled

    def set_update_ratio(self, updates_per_env_step: Fraction | None) -> None:
        """Sets the period, if it is given in environment steps; see `Algorithm.set_update_ratio`."""
        if self._env_steps is None:
            return
        if updates_per_env_step is None:
            raise TaacError(
                "target_update_env_steps needs a constant ratio of updates to environment steps: bind target_update_period "
                "instead, or UpdateRatio.updates_per_env_step to a number and UpdateRatio.update_clock to 'env_steps'"
            )
        self.period = self._env_steps * updates_per_env_step

    def is_due(self, num_updates: int) -> bool:
        """Returns whether update number `num_updates` completed another period."""
        if self.period is None:
            raise TaacError(
                "target_update_env_steps needs the ratio of updates to environment steps: call set_update_ratio before the "
                "first update"
            )
        return num_updates // self.period > (num_updates - 1) // self.period

    @torch.no_grad()
    def move(self, find_pairs: Callable[[], Sequence[tuple[nn.Module, nn.Module]]]) -> None:
        """Moves the parameters of target networks, and copies the buffers of the networks that they follow.

        Args:
            find_pairs: returns pairs of a target network and the network that it follows. It is called once, at the first
                move, because walking through modules takes longer than moving their parameters.
        """
        if self._parameters is None:
            pairs = find_pairs()
            self._parameters = (
                [p for target, _ in pairs for p in target.parameters()],
                [p for _, network in pairs for p in network.parameters()],
            )
            self._pairs = [pair for pair in pairs if next(pair[1].buffers(), None) is not None]
        torch._foreach_lerp_(*self._parameters, self.tau)
        for target, network in self._pairs:  # running statistics, which have no gradient
            for slow, buffer in zip(target.buffers(), network.buffers()):
                slow.copy_(buffer)

    def describe(self) -> list[str]:
        """Returns a line about a period in environment steps; none if it is in updates, or not yet known."""
        if self._env_steps is None or self.period is None:
            return []
        return [f"targets: move every {self._env_steps} environment steps = {float(self.period):g} updates"]
