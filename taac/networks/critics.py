"""The critic ensemble: all critics in one batched call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import gin
import torch
import torch.nn as nn

from taac.errors import TaacError
from taac.networks.layers import EnsembleLinear, activation_module, check_ranges, in_full_precision


@gin.configurable
class CriticEnsemble(nn.Module):
    """N critics `Q_i(s, a)` that share nothing but their input.

    Args:
        input_size: width of the features and of every action part together.
        reward_dim: D for a reward of D parts; None for a scalar reward.
        num_choices: C values at once, one for each choice of a discrete action; None: no discrete action.
        num_critics: N, 1 or more.
        hidden_layers: widths.
        last_init_range: the last layer's weights are uniform in +- this.
        last_bias_init_range: the last layer's biases are uniform in +- this.
        activation: called without arguments; see `ActorNetwork`.
    """

    def __init__(
        self,
        input_size: int,
        reward_dim: int | None = None,
        num_critics: int = 2,
        hidden_layers: Sequence[int] = (256, 256),
        last_init_range: float = 0.003,
        num_choices: int | None = None,
        last_bias_init_range: float = 0.0,
        activation: Callable[..., nn.Module] = nn.ReLU,
    ):
        super().__init__()
        if num_critics < 1:
            raise TaacError(f"CriticEnsemble.num_critics must be 1 or more, got {num_critics}")
        check_ranges(last_init_range, last_bias_init_range)
        sizes = [input_size, *hidden_layers]
        self.hidden = nn.ModuleList(
            EnsembleLinear(num_critics, fan_in, fan_out) for fan_in, fan_out in itertools.pairwise(sizes)
        )
        self.output_shape = tuple(size for size in (num_choices, reward_dim) if size is not None)
        self.last = EnsembleLinear(
            num_critics, sizes[-1], math.prod(self.output_shape), last_init_range, last_bias_init_range
        )
        self.num_critics = num_critics
        self.activation = activation_module(activation)

    def forward(self, features: torch.Tensor, *action: torch.Tensor) -> torch.Tensor:
        """Features `[..., F]` and action parts `[..., A]` to `[N, ...(, C)(, D)]`: choices and reward parts if there are any."""
        x = torch.cat([features, *action], dim=-1)
        batch = x.shape[:-1]
        x = x.reshape(1, -1, x.shape[-1]).expand(self.num_critics, -1, -1)
        for layer in self.hidden:
            x = self.activation(layer(x))
        q = in_full_precision(self.last, x)
        return q.reshape(self.num_critics, *batch, *self.output_shape)
