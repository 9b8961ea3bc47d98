"""Critics of your own: they predict quantiles of the return, and their value is the quantiles' mean.

taac train --task Pendulum-v1 --method experiments/examples/own_critics.gin

Source: Dabney et al., Distributional Reinforcement Learning with Quantile Regression (arXiv:1710.10044), equation 10.
"""

from __future__ import annotations

from collections.abc import Sequence

import gin
import torch
import torch.nn as nn

from taac.networks.layers import Mlp


@gin.configurable
class QuantileCritics(nn.Module):
    """Critics that each predict `num_quantiles` quantiles of the return, for scalar rewards and continuous actions.

    Args:
        input_size: of features and action parts together; `reward_dim` must be None.
        hidden_layers: widths of each critic.
        num_critics, num_quantiles: numbers N and K.
        kappa: where the loss of an error becomes linear, in units of Q.
    """

    def __init__(
        self,
        input_size: int,
        reward_dim: int | None = None,
        hidden_layers: Sequence[int] = (256, 256),
        num_critics: int = 2,
        num_quantiles: int = 25,
        kappa: float = 1.0,
    ):
        super().__init__()
        if reward_dim is not None:
            raise ValueError(f"QuantileCritics needs a scalar reward, got one of {reward_dim} parts")
        self.critics = nn.ModuleList(
            nn.Sequential(Mlp(input_size, hidden_layers), nn.Linear(hidden_layers[-1], num_quantiles))
            for _ in range(num_critics)
        )
        self.kappa = kappa
        self.register_buffer("levels", (torch.arange(num_quantiles) + 0.5) / num_quantiles)

    def forward(self, features: torch.Tensor, *action: torch.Tensor) -> torch.Tensor:
        """Returns quantiles `[N, ..., K]` at features `[..., F]` and action parts `[..., A]`."""
        seen = torch.cat([features, *action], dim=-1)
        return torch.stack([critic(seen) for critic in self.critics])

    def value(self, quantiles: torch.Tensor) -> torch.Tensor:
        """Returns values `[N, ...]`."""
        return quantiles.mean(-1)

    def loss(self, quantiles: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns the error `[T, B]` of quantiles `[N, T, B, K]` against targets `[T, B]`, summed over critics."""
        error = target.unsqueeze(-1) - quantiles
        huber = torch.where(error.abs() <= self.kappa, 0.5 * error**2, self.kappa * (error.abs() - 0.5 * self.kappa))
        weight = (self.levels - (error.detach() < 0).to(error.dtype)).abs()
        return (weight * huber / self.kappa).sum(-1).sum(0)
