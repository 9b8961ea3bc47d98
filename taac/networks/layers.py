"""Layers and initialisers that the networks share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn as nn

from taac import nest
from taac.data_structures import Nest

_TRUNCATED_STD = 0.87962566103423978  # of a standard normal that is cut at two standard deviations


class EnsembleLinear(nn.Module):
    """N linear maps side by side, in one batched product: `y[n] = x[n] W[n] + b[n]`.

    Args of `forward`: x `[N, M, I]`. Returns `[N, M, O]`.
    """

    def __init__(self, ensemble_size: int, input_size: int, output_size: int, weight_range: float | None = None):
        """Weights are uniform in +-weight_range (default: +-1/sqrt(input_size)), biases 0."""
        super().__init__()
        bound = 1.0 / math.sqrt(input_size) if weight_range is None else weight_range
        self.weight = nn.Parameter(torch.empty(ensemble_size, input_size, output_size).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(ensemble_size, 1, output_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


def in_full_precision(layer: Callable[..., Any], x: torch.Tensor, *inputs: Nest) -> Any:
    """`layer(x, *inputs)`, in float32 under automatic mixed precision too.

    For layers whose result is not the input of another one: values, means, logits, memories. bfloat16 has 8 bits, so that a
    value of 100 would be rounded to a multiple of 0.5, and the switching probability, which follows from a difference of two
    values, would change by more than 0.1.
    """
    if not torch.is_autocast_enabled(x.device.type):
        return layer(x, *inputs)
    with torch.autocast(x.device.type, enabled=False):
        return layer(*nest.map_structure(_full_precision, (x, *inputs)))


def _full_precision(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x


def xavier_linear(input_size: int, output_size: int) -> nn.Linear:
    """A linear layer with Xavier-uniform weights and zero bias."""
    layer = nn.Linear(input_size, output_size)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def scaled_linear(input_size: int, output_size: int, gain: float, distribution: str) -> nn.Linear:
    """A linear layer whose weights have standard deviation `gain / sqrt(input_size)`, and zero bias.

    Args:
        distribution: "truncated_normal" (cut at two standard deviations of the normal that is cut) or "uniform".
    """
    layer = nn.Linear(input_size, output_size)
    std = gain / math.sqrt(input_size)
    if distribution == "truncated_normal":
        wide = std / _TRUNCATED_STD
        nn.init.trunc_normal_(layer.weight, std=wide, a=-2 * wide, b=2 * wide)
    elif distribution == "uniform":
        nn.init.uniform_(layer.weight, -math.sqrt(3.0) * std, math.sqrt(3.0) * std)
    else:
        raise ValueError(f"distribution must be 'truncated_normal' or 'uniform', got '{distribution}'")
    nn.init.zeros_(layer.bias)
    return layer


class Mlp(nn.Sequential):
    """Xavier-uniform linear layers, each followed by a ReLU: `[..., I]` to `[..., O]`."""

    def __init__(self, input_size: int, hidden_layers: Sequence[int]):
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise([input_size, *hidden_layers]):
            layers += [xavier_linear(fan_in, fan_out), nn.ReLU(inplace=True)]
        super().__init__(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # As a matrix: of more dimensions, `linear` gives a view, and the gradient of what is done to a view in place is
        # copied three times.
        y = super().forward(x.reshape(-1, x.shape[-1]))
        return y.reshape(*x.shape[:-1], y.shape[-1])
