"""The price of a decision: what a method pays for beginning a new action instead of continuing the old one."""

from __future__ import annotations

import math

import torch
import torch.nn as nn

from taac.errors import TaacError
from taac.ops.schedules import Schedule, at_start, bounds

INITIAL_PRICE = 0.01  # of a learnt price, unless one is given
TIME_CONSTANT = 1000  # environment steps, of the average rate of decisions
MIN_PRICE, MAX_PRICE = 1e-4, 1e2  # of a learnt price, so that it is back within tens of thousands of updates


class DecisionPrice(nn.Module):
    """A price c >= 0, in units of the reward that is learnt: a number, a schedule, or learnt from a target rate of decisions.

    With a target rate rho, c is the multiplier of the constraint that rollouts decide in at most rho of their environment steps.
    log c descends the loss `log c (rho - rate)`, so the price rises while they decide more often. The rate is an exponential
    moving average with a time constant of `TIME_CONSTANT` environment steps, without random ones; a step counts if any dimension,
    or any agent, decides in it. Replayed states would bias the rate: they include states in which older policies decided, and
    which the present one seldom visits. c stays between `MIN_PRICE` and `MAX_PRICE`: while rollouts decide less often than rho
    without a price, it would fall without end.

    Args:
        price: 0 or more at every step. With a target rate, a number in its range from which learning starts; 0 starts at
            `INITIAL_PRICE`.
        target_rate: rho, decisions per environment step, in (0, 1); None: the price is not learnt.
        owner: the configurable that has both as `decision_price` and `target_decision_rate`, for messages.
        least: the least rate of decisions per step of the agent while exploring, and the settings that force it; None: 0. An
            experiment refuses a target rate that is not above it.

    Raises:
        TaacError: a number is out of range, or a schedule was given for a price that is learnt.
    """

    fixed: torch.Tensor
    rate: torch.Tensor

    def __init__(
        self, price: float | Schedule, target_rate: float | None, owner: str, least: tuple[float, str] | None = None
    ):
        super().__init__()
        self.owner, self.least = owner, least
        if not (bounds(price)[0] >= 0 and bounds(price)[1] < math.inf):
            raise TaacError(f"{owner}.decision_price must be 0 or more at every step, got {price}")
        if target_rate is not None and not 0 < target_rate < 1:
            raise TaacError(f"{owner}.target_decision_rate must be between 0 and 1, or None, got {target_rate}")
        if target_rate is not None and isinstance(price, Schedule):
            raise TaacError(
                f"{owner}.decision_price follows a schedule ({price}), but target_decision_rate = {target_rate} learns it: bind "
                "a number to start from, or no rate"
            )
        if target_rate is not None and not (price == 0 or MIN_PRICE <= at_start(price) <= MAX_PRICE):
            limits = f"[{MIN_PRICE:g}, {MAX_PRICE:g}]"
            raise TaacError(f"{owner}.decision_price must be 0 or in {limits} where it is learnt, got {price}")
        self.target_rate = target_rate
        if target_rate is None:  # a buffer that is written in place, so that compiled programs see the change
            self.register_buffer("fixed", torch.tensor(float(at_start(price))), persistent=False)
        else:
            self.log_price = nn.Parameter(torch.tensor(math.log(at_start(price) or INITIAL_PRICE)))
            self.register_buffer("rate", torch.tensor(target_rate))

    def check_reachable(self, least: float, why: str) -> None:
        """Refuses a target rate that is not above the `least` per environment step: the price would grow without end."""
        if self.target_rate is not None and self.target_rate <= least:
            raise TaacError(
                f"{self.owner}.target_decision_rate must be above {least:.3g}, the least rate of rollouts with {why}, "
                f"got {self.target_rate}"
            )

    def set(self, price: float) -> None:
        """Sets a price that is not learnt."""
        self.fixed.fill_(price)

    @torch.no_grad()
    def project(self) -> None:
        """Keeps a learnt price in its range."""
        if self.target_rate is not None:
            self.log_price.clamp_(math.log(MIN_PRICE), math.log(MAX_PRICE))

    def forward(self) -> torch.Tensor:
        """Returns the price as it is now, a detached scalar."""
        return self.fixed.clone() if self.target_rate is None else self.log_price.detach().exp()

    def observe(self, decisions: int, env_steps: int) -> None:
        """Adds what rollouts have decided in so many environment steps."""
        if self.target_rate is not None and env_steps:
            kept = math.exp(-env_steps / TIME_CONSTANT)
            self.rate.mul_(kept).add_((1 - kept) * decisions / env_steps)

    def loss(self) -> torch.Tensor:
        """Returns the loss of log c, a scalar. With a target rate only."""
        assert self.target_rate is not None
        return self.log_price * (self.target_rate - self.rate)
