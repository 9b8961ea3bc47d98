"""A trajectory of your own: the action fades towards 0 for as long as it is continued.

taac train --task Pendulum-v1 --method experiments/examples/own_trajectory.gin
"""

from __future__ import annotations

from typing import NamedTuple

import gin
import torch


class Fading(NamedTuple):
    """The record that passes through time, is stored in the replay buffer, and is seen by actor and critics."""

    a: torch.Tensor  # [..., A], the action that is executed


@gin.configurable
class FadingTrajectory:
    """`advance: a <- rate * a`; `start: a = a_hat`.

    Args:
        rate: what is left of the action after a step, in (0, 1].
    """

    def __init__(self, rate: float = 0.9):
        self.rate = rate

    def zeros(self, action: torch.Tensor) -> Fading:
        return Fading(torch.zeros_like(action))

    def advance(self, tau: Fading) -> Fading:
        return Fading(self.rate * tau.a)

    def start(self, a_hat: torch.Tensor, tau: Fading) -> Fading:
        return Fading(a_hat)

    def output_for(self, action: torch.Tensor, tau: Fading) -> torch.Tensor:
        return action
