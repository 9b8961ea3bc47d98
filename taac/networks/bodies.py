"""Hidden layers of N networks at once, `[N, M, I]` to `[N, M, O]`: of critics, and of actors with N = 1.

A body is called with `input_size` and `networks`. `head(outputs)` makes the last layer that goes with it, `output_size` is O.
A part that keeps its weights at a norm has an attribute `unit` and a method `project`, called after each update.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import gin
import torch
import torch.nn as nn
from torch.nn import functional

from taac.errors import TaacError, refuse_below
from taac.networks.batch_statistics import BatchNorm
from taac.networks.layers import EnsembleLinear, activation_module, check_widths, initial_bounds, truncated_normal_

Norm = Callable[[int, int], nn.Module]  # called with networks and size


def _as_flax(layer: EnsembleLinear, gain: float = 1.0) -> EnsembleLinear:
    """Draws weights of variance `gain / inputs` from a normal truncated at two of its deviations; biases are 0."""
    truncated_normal_(layer.weight, math.sqrt(gain / layer.weight.shape[1]))
    nn.init.zeros_(layer.bias)
    return layer


class OrthogonalLinear(nn.Module):
    """N linear maps, `[N, M, I]` to `[N, M, O]`, whose weights begin orthogonal, each output's with norm `gain` where O <= I.

    Args:
        networks, input_size, output_size: N, I and O.
        gain: of the first weights.
        bias: whether there is one, which begins at 0.
        unit: keeps the weights of each output at norm 1, from the first on.
    """

    def __init__(
        self, networks: int, input_size: int, output_size: int, gain: float = 1.0, bias: bool = False, unit: bool = False
    ):
        super().__init__()
        weight = torch.empty(networks, input_size, output_size)
        for each in weight:
            nn.init.orthogonal_(each, gain)
        self.weight, self.unit = nn.Parameter(weight), unit
        self.bias: torch.Tensor | None
        self.register_parameter("bias", nn.Parameter(torch.zeros(networks, 1, output_size)) if bias else None)
        self.project()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x, self.weight) if self.bias is None else torch.baddbmm(self.bias, x, self.weight)

    @torch.no_grad()
    def project(self) -> None:
        if self.unit:
            self.weight.div_(torch.linalg.vector_norm(self.weight, dim=1, keepdim=True).clamp(min=1e-8))


def _above_zero(epsilon: float, owner: str) -> float:
    if not epsilon > 0:
        raise TaacError(f"{owner}.epsilon must be above 0, got {epsilon}")
    return epsilon


@gin.configurable(denylist=["networks", "size"])
class LayerNorm(nn.Module):
    """Layer normalisation of N networks, `[N, M, F]`, each with a scale and a bias of its own (arXiv:1607.06450)."""

    def __init__(self, networks: int, size: int, epsilon: float = 1e-5):
        super().__init__()
        self.epsilon = _above_zero(epsilon, "LayerNorm")
        self.scale, self.bias = nn.Parameter(torch.ones(networks, 1, size)), nn.Parameter(torch.zeros(networks, 1, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x.float(), x.shape[-1:], eps=self.epsilon) * self.scale + self.bias


@gin.configurable(denylist=["networks", "size", "unit"])
class RMSNorm(nn.Module):
    """`scale * x / sqrt(mean x^2 + epsilon)` of N networks, `[N, M, F]` (arXiv:1910.07467).

    `unit` keeps the scale at norm sqrt(F).
    """

    def __init__(self, networks: int, size: int, epsilon: float = 1e-6, unit: bool = False):
        super().__init__()
        self.unit = unit
        self.epsilon, self.scale = _above_zero(epsilon, "RMSNorm"), nn.Parameter(torch.ones(networks, 1, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        return x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * self.scale

    @torch.no_grad()
    def project(self) -> None:
        norm = torch.linalg.vector_norm(self.scale, dim=-1, keepdim=True).clamp(min=1e-8)
        self.scale.mul_(self.scale.shape[-1] ** 0.5 / norm)


@gin.configurable(denylist=["input_size", "networks"])
class MlpBody(nn.Module):
    """Linear layers, each with a normalisation and an activation.

    Args:
        input_size, networks: I and N.
        hidden_layers: widths.
        norm: makes the normalisation of a layer, such as `@LayerNorm`, `@RMSNorm` or `@BatchNorm`; None: none.
        norm_input: whether the input is normalised too.
        norm_last: False: linear, norm, activation. True: linear, activation, norm (CrossQ).
        unit_weights: keeps each unit's weights at norm 1, the head's too. Only the head has a bias (XQC).
        dropout: probability of dropping a unit before its normalisation (DroQ). Target networks drop none.
        initial_weights: without `unit_weights`: "torch", uniform weights and biases as `torch.nn.Linear` makes them; "lecun",
            truncated normals of variance 1 / inputs and biases of 0, as flax makes them (CrossQ); "xavier", Xavier-uniform
            weights and biases of 0 (DroQ).
        activation: called without arguments, once for each layer.

    Raises:
        TaacError: settings out of range.

    Source: CrossQ (arXiv:1902.05605), XQC (arXiv:2509.25174), DroQ (arXiv:2110.02034).
    """

    def __init__(
        self,
        input_size: int,
        networks: int,
        hidden_layers: Sequence[int] = (256, 256),
        norm: Norm | None = LayerNorm,
        norm_input: bool = False,
        norm_last: bool = False,
        unit_weights: bool = False,
        dropout: float = 0.0,
        activation: Callable[..., nn.Module] = nn.ReLU,
        initial_weights: Literal["torch", "lecun", "xavier"] = "torch",
    ):
        super().__init__()
        check_widths(hidden_layers)
        if not 0 <= dropout < 1:
            raise TaacError(f"MlpBody.dropout must be in [0, 1), got {dropout}")
        if initial_weights not in ("torch", "lecun", "xavier") or (unit_weights and initial_weights != "torch"):
            unused = ", which unit_weights leaves unused" if unit_weights else ""
            raise TaacError(f"MlpBody.initial_weights must be 'torch', 'lecun' or 'xavier', got '{initial_weights}'{unused}")
        self.networks, self.unit_weights, self._initial_weights = networks, unit_weights, initial_weights
        layers: list[nn.Module] = [norm(networks, input_size)] if norm is not None and norm_input else []
        for fan_in, fan_out in itertools.pairwise([input_size, *hidden_layers]):
            if unit_weights:
                layers.append(OrthogonalLinear(networks, fan_in, fan_out, math.sqrt(2), unit=True))
            else:
                layers.append(self._linear(fan_in, fan_out))
            layers += [nn.Dropout(dropout)] if dropout else []
            after = [] if norm is None else [norm(networks, fan_out)]
            act = [activation_module(activation)]
            layers += act + after if norm_last else after + act
        self.layers = nn.Sequential(*layers)
        self.output_size = hidden_layers[-1] if hidden_layers else input_size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def head(self, outputs: int) -> nn.Module:
        if self.unit_weights:
            return OrthogonalLinear(self.networks, self.output_size, outputs, bias=True, unit=True)
        return self._linear(self.output_size, outputs)

    def _linear(self, fan_in: int, fan_out: int) -> EnsembleLinear:
        bounds = initial_bounds("xavier" if self._initial_weights == "xavier" else "torch", fan_in, fan_out)
        layer = EnsembleLinear(self.networks, fan_in, fan_out, *bounds)
        return _as_flax(layer) if self._initial_weights == "lecun" else layer


class _SimbaBlock(nn.Module):
    def __init__(self, networks: int, width: int):
        super().__init__()
        self.norm = LayerNorm(networks, width, 1e-6)
        self.widen, self.narrow = EnsembleLinear(networks, width, 4 * width), EnsembleLinear(networks, 4 * width, width)
        for layer in (self.widen, self.narrow):
            _as_flax(layer, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(functional.relu(self.widen(self.norm(x))))


@gin.configurable(denylist=["input_size", "networks"])
class SimbaBody(nn.Module):
    """`Linear, n x [x + Linear(ReLU(Linear(LayerNorm(x))))], LayerNorm`; the inner layer is four times as wide.

    It expects normalised observations.

    Args:
        input_size, networks: I and N.
        width, blocks: d and n.

    Raises:
        TaacError: settings out of range.

    Source: Lee et al., SimBa (arXiv:2410.09754), section 4.
    """

    def __init__(self, input_size: int, networks: int, width: int = 512, blocks: int = 2):
        refuse_below(1, "SimbaBody", width=width, blocks=blocks)
        super().__init__()
        self.embed = OrthogonalLinear(networks, input_size, width, bias=True)
        self.blocks = nn.Sequential(*(_SimbaBlock(networks, width) for _ in range(blocks)))
        self.norm = LayerNorm(networks, width, 1e-6)
        self.networks, self.output_size = networks, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.embed(x)))

    def head(self, outputs: int) -> nn.Module:
        return OrthogonalLinear(self.networks, self.output_size, outputs, bias=True)


class _FlashBlock(nn.Module):
    def __init__(self, networks: int, width: int):
        super().__init__()
        self.layers = nn.Sequential(
            OrthogonalLinear(networks, width, 4 * width, unit=True), BatchNorm(networks, 4 * width, unit=True), nn.ReLU(),
            OrthogonalLinear(networks, 4 * width, width, unit=True), BatchNorm(networks, width, unit=True), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


@gin.configurable(denylist=["input_size", "networks"])
class FlashBody(nn.Module):
    """`BN, Linear, n x [x + ReLU(BN(Linear(ReLU(BN(Linear(x))))))], RMSNorm`; the inner layer is four times as wide.

    Linear layers have no bias and weights of norm 1 for each output. Scale and bias of a normalisation together keep the norm
    sqrt(size). `BatchNorm.unbiased` is True in the published code.

    Args:
        input_size, networks: I and N.
        width, blocks: d and n.

    Raises:
        TaacError: settings out of range.

    Source: FlashSAC, whose published code this follows (Holiday-Robot/FlashSAC).
    """

    def __init__(self, input_size: int, networks: int, width: int = 256, blocks: int = 2):
        refuse_below(1, "FlashBody", width=width, blocks=blocks)
        super().__init__()
        self.norm_input = BatchNorm(networks, input_size, unit=True)
        self.embed = OrthogonalLinear(networks, input_size, width, unit=True)
        self.blocks = nn.Sequential(*(_FlashBlock(networks, width) for _ in range(blocks)))
        self.norm = RMSNorm(networks, width, unit=True)
        self.networks, self.output_size = networks, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.embed(self.norm_input(x))))

    def head(self, outputs: int) -> nn.Module:
        return OrthogonalLinear(self.networks, self.output_size, outputs, bias=True, unit=True)


class Scaler(nn.Module):
    """Multiplies each of N x F numbers by a learnt factor that begins at `initial` and moves at `initial / scale` of the rate."""

    def __init__(self, networks: int, size: int, initial: float, scale: float):
        super().__init__()
        self.factor, self.unit_of_factor = nn.Parameter(torch.full((networks, 1, size), scale)), initial / scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.factor * self.unit_of_factor)


def _on_sphere(x: torch.Tensor) -> torch.Tensor:
    return functional.normalize(x, dim=-1, eps=1e-8)


class _SphereBlock(nn.Module):
    def __init__(self, networks: int, width: int, blocks: int):
        super().__init__()
        inner = math.sqrt(2 / width) / 2
        self.widen = OrthogonalLinear(networks, width, 4 * width, unit=True)
        self.scaler = Scaler(networks, 4 * width, inner, inner)
        self.narrow = OrthogonalLinear(networks, 4 * width, width, unit=True)
        self.step = Scaler(networks, width, 1 / (blocks + 1), 1 / math.sqrt(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        to = _on_sphere(self.narrow(functional.relu(self.scaler(self.widen(x))) + 1e-8))
        return _on_sphere(x + self.step(to - x))


@gin.configurable(denylist=["input_size", "networks"])
class SimbaV2Body(nn.Module):
    """Features of norm 1: `l2(s * Linear(l2([x, 3])))`, then n times `l2(x + a (l2(Linear(ReLU(s * Linear(x)))) - x))`.

    Linear layers have no bias and weights of norm 1 for each output; s and a are learnt. The inner layer is four times as wide.
    The head is `Linear(s * Linear(x)) + bias`; an actor's has mean and standard deviation in common, where the
    source has a head for each. It expects normalised observations.

    Args:
        input_size, networks: I and N.
        width, blocks: d and n.

    Raises:
        TaacError: settings out of range.

    Source: Lee et al., SimbaV2 (arXiv:2502.15280), section 4.
    """

    def __init__(self, input_size: int, networks: int, width: int = 512, blocks: int = 2):
        refuse_below(1, "SimbaV2Body", width=width, blocks=blocks)
        super().__init__()
        scale = math.sqrt(2 / width)
        self.embed = OrthogonalLinear(networks, input_size + 1, width, unit=True)
        self.scaler = Scaler(networks, width, scale, scale)
        self.blocks = nn.Sequential(*(_SphereBlock(networks, width, blocks) for _ in range(blocks)))
        self.networks, self.output_size = networks, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = _on_sphere(functional.pad(x, (0, 1), value=3.0))
        return self.blocks(_on_sphere(self.scaler(self.embed(x))))

    def head(self, outputs: int) -> nn.Module:
        return nn.Sequential(
            OrthogonalLinear(self.networks, self.output_size, self.output_size, unit=True),
            Scaler(self.networks, self.output_size, 1.0, 1.0),
            OrthogonalLinear(self.networks, self.output_size, outputs, bias=True, unit=True),
        )


def projections(module: nn.Module) -> list[Any]:
    """Returns the parts of a module to `project` after an update, without those of target networks, which follow."""
    return [part for name, part in module.named_modules() if getattr(part, "unit", False) and "target_" not in name]
