"""The price of a decision: what a method pays for beginning a new action instead of continuing the old one."""

from __future__ import annotations

import math

import torch
import torch.nn as nn

from taac.errors import TaacError
from taac.ops.schedules import Schedule, at_start, bounds

START = 0.01  # of a learnt price, unless one is given


class DecisionPrice(nn.Module):
    """A price c >= 0, in units of the reward that is learnt: a number, a schedule, or learnt from a target rate of decisions.

    With a target rate rho, c is the multiplier of the constraint `E[decisions] <= rho E[steps]`. log c descends the loss
    `log c (rho steps - decisions)`, so the price rises while the policy decides more often than rho.

    Args:
        price: 0 or more at every step. With a target rate, a number from which learning starts; 0 starts at `START`.
        target_rate: rho, decisions per environment step, in (0, 1); None: the price is not learnt.
        owner: the configurable that has both as `decision_price` and `target_decision_rate`, for messages.

    Raises:
        TaacError: a number is out of range, or a schedule was given for a price that is learnt.
    """

    fixed: torch.Tensor

    def __init__(self, price: float | Schedule, target_rate: float | None, owner: str):
        super().__init__()
        if not (bounds(price)[0] >= 0 and bounds(price)[1] < math.inf):
            raise TaacError(f"{owner}.decision_price must be 0 or more at every step, got {price}")
        if target_rate is not None and not 0 < target_rate < 1:
            raise TaacError(f"{owner}.target_decision_rate must be between 0 and 1, or None, got {target_rate}")
        if target_rate is not None and isinstance(price, Schedule):
            raise TaacError(
                f"{owner}.decision_price follows a schedule ({price}), but target_decision_rate = {target_rate} learns it: bind "
                "a number to start from, or no rate"
            )
        self.target_rate = target_rate
        if target_rate is None:  # a buffer that is written in place, so that compiled programs see the change
            self.register_buffer("fixed", torch.tensor(float(at_start(price))), persistent=False)
        else:
            self.log_price = nn.Parameter(torch.tensor(math.log(at_start(price) or START)))

    def set(self, price: float) -> None:
        """Sets a price that is not learnt."""
        self.fixed.fill_(price)

    def forward(self) -> torch.Tensor:
        """Returns the price as it is now, a detached scalar."""
        return self.fixed.clone() if self.target_rate is None else self.log_price.detach().exp()

    def loss(self, decisions: torch.Tensor, steps: torch.Tensor | float) -> torch.Tensor:
        """Returns the loss of log c `[...]`; zeros if it is not learnt.

        Args:
            decisions: expected decisions `[...]` of the current policy, constants.
            steps: the environment steps that they last.
        """
        if self.target_rate is None:
            return torch.zeros_like(decisions)
        return self.log_price * (self.target_rate * steps - decisions)
