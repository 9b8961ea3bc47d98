"""Actors and switches: hidden layers and a head that maps features to what a policy is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError
from taac.networks.layers import InitialWeights, Mlp, head_linear, in_full_precision, refuse_unused


class HeadNetwork(nn.Module):
    """Hidden layers, then a linear head.

    Args:
        input_size: width of the features.
        outputs: width of the result.
        hidden_layers: widths.
        initial_weights: "published": as in TAAC's original code, the weights of hidden layers are Xavier-uniform, the head's are
            truncated normal with gain 0.3, and biases are 0. "torch": weights and biases of each layer are uniform in
            [-w, w] with w = 1 / sqrt(its inputs), as `torch.nn.Linear` makes them and most PyTorch implementations of SAC
            leave them. "xavier": as "published", but the head's weights are Xavier-uniform, too (REDQ, DroQ).
        head_init_range, head_bias_init_range: if set, the head's weights, or biases, are uniform in [-w, w] instead.
        activation: called without arguments, once for each layer: `@ReLU`, `@ELU`, `@LeakyReLU`, `@Tanh`, `@GELU` or `@SiLU` of
            torch.nn, or one of your own.
        body: makes hidden layers and head, such as `@SimbaBody`; see `taac/networks/bodies.py`. It has settings of its own, in
            place of all these.

    Raises:
        TaacError: settings out of range, or without effect beside a body; an activation that is already constructed.
    """

    def __init__(
        self,
        input_size: int,
        outputs: int,
        hidden_layers: Sequence[int] = (256, 256),
        head_init_range: float | None = None,
        head_bias_init_range: float | None = None,
        activation: Callable[..., nn.Module] = nn.ReLU,
        initial_weights: InitialWeights = "published",
        body: Callable[..., nn.Module] | None = None,
    ):
        super().__init__()
        self.has_body = body is not None
        unused = {"head_init_range": head_init_range, "head_bias_init_range": head_bias_init_range}
        refuse_unused(body, type(self).__name__, activation, unused)
        if body is not None:
            made: Any = body(input_size, 1)
            self.hidden, self.head, self.hidden_size = made, made.head(outputs), made.output_size
            return
        self.hidden = Mlp(input_size, hidden_layers, activation, initial_weights)
        self.hidden_size = hidden_layers[-1] if hidden_layers else input_size
        self.head = head_linear(self.hidden_size, outputs, head_init_range, head_bias_init_range, initial_weights)

    def forward(self, features: torch.Tensor) -> Any:
        """Maps features `[..., input_size]` to `[..., outputs]`."""
        return self.read(self.last_hidden(features))

    def last_hidden(self, features: torch.Tensor) -> torch.Tensor:
        """Returns what the head reads, `[..., H]`."""
        if self.has_body:
            return self.hidden(features.reshape(1, -1, features.shape[-1])).reshape(*features.shape[:-1], -1)
        return self.hidden(features)

    def read(self, hidden: torch.Tensor) -> Any:
        """Maps the last hidden layer `[..., H]` to `[..., outputs]`."""
        if self.has_body:
            return in_full_precision(self.head, hidden.reshape(1, -1, self.hidden_size)).reshape(*hidden.shape[:-1], -1)
        return in_full_precision(self.head, hidden)


@gin.configurable
class ActorNetwork(HeadNetwork):
    """Mean and state-dependent log standard deviation of the normal before tanh.

    Args:
        action_size: dimensions A of the action.
        log_std_min, log_std_max: the log standard deviation is clipped to this range.
        smooth_log_std: instead of being clipped, it is `min + (max - min) (1 + tanh u) / 2` of the network's output u.
        gsde_log_std: if set, the standard deviation is that of noise `sum_j h_j W_ji` that is linear in the last hidden layer h,
            `sqrt(sum_j h_j^2 sigma_ji^2 + 1e-6)`, and sigma is learnt from `exp(gsde_log_std)` on; -3 in Stable-Baselines3. With
            `StateDependentNoise` rollouts then explore as in gSDE.
        input_size, hidden_layers, initial_weights, head_init_range, head_bias_init_range, activation, body: see `HeadNetwork`.

    Raises:
        TaacError: `log_std_min` not below `log_std_max`; `gsde_log_std` outside of these, or with `smooth_log_std`; errors of
            `HeadNetwork`.

    Source of gSDE: Raffin, Kober and Stulp, Smooth Exploration for Robotic Reinforcement Learning (arXiv:2005.05719), equation 7.
    """

    def __init__(
        self,
        input_size: int,
        action_size: int,
        hidden_layers: Sequence[int] = (256, 256),
        log_std_min: float = -20.0,
        log_std_max: float = 2.0,
        head_init_range: float | None = None,
        head_bias_init_range: float | None = None,
        activation: Callable[..., nn.Module] = nn.ReLU,
        initial_weights: InitialWeights = "published",
        body: Callable[..., nn.Module] | None = None,
        smooth_log_std: bool = False,
        gsde_log_std: float | None = None,
    ):
        if smooth_log_std and gsde_log_std is not None:
            raise TaacError("ActorNetwork: smooth_log_std has no effect with gsde_log_std; remove one of them")
        if gsde_log_std is not None and not log_std_min <= gsde_log_std <= log_std_max:
            raise TaacError(f"ActorNetwork.gsde_log_std must be in [{log_std_min}, {log_std_max}], or None, got {gsde_log_std}")
        if log_std_min >= log_std_max:
            raise TaacError(f"ActorNetwork: log_std_min {log_std_min} must be below log_std_max {log_std_max}")
        outputs = action_size if gsde_log_std is not None else 2 * action_size
        super().__init__(
            input_size, outputs, hidden_layers, head_init_range, head_bias_init_range, activation, initial_weights, body
        )
        self.log_std_min, self.log_std_max, self.smooth_log_std = log_std_min, log_std_max, smooth_log_std
        first = None if gsde_log_std is None else nn.Parameter(torch.full((self.hidden_size, action_size), gsde_log_std))
        self.noise_log_std: nn.Parameter | None
        self.register_parameter("noise_log_std", first)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Maps features `[..., input_size]` to mean and log standard deviation, `[..., A]` each."""
        if self.noise_log_std is not None:
            hidden = self.last_hidden(features)
            variance = in_full_precision(torch.matmul, hidden.square(), torch.exp(2.0 * self.noise_log_std))
            return self.read(hidden), (0.5 * torch.log(variance + 1e-6)).clamp(self.log_std_min, self.log_std_max)
        mean, log_std = super().forward(features).chunk(2, dim=-1)
        if self.smooth_log_std:
            return mean, self.log_std_min + (self.log_std_max - self.log_std_min) * 0.5 * (1.0 + torch.tanh(log_std))
        return mean, log_std.clamp(self.log_std_min, self.log_std_max)

    def noise_basis(self, features: torch.Tensor) -> torch.Tensor | None:
        """Returns `h_j sigma_ji` `[..., H, A]`, of which gSDE's noise is a random sum over j; None without gSDE."""
        if self.noise_log_std is None:
            return None
        return self.last_hidden(features).float().unsqueeze(-1) * self.noise_log_std.exp()


@gin.configurable
class DeterministicActorNetwork(HeadNetwork):
    """One action for each state, before tanh. `HeadNetwork` has the arguments."""


@gin.configurable
class CategoricalActorNetwork(HeadNetwork):
    """A logit for each choice of a discrete action. `HeadNetwork` has the arguments."""


@gin.configurable(denylist=["input_size", "outputs", "hidden_layers"])
class SwitchNetwork(HeadNetwork):
    """The logits of switches, each independent of the others given the features. `HeadNetwork` has the arguments."""


class TrajectoryEmbedding(nn.Module):
    """Concatenates the observation's features with the previous trajectory, each part embedded by its own linear layer.

    Weights are uniform with standard deviation 1/sqrt(A), so that each embedded part has the scale of the features; biases
    are 0.

    Args:
        feature_size: width of the features, and of each embedded part.
        part_sizes: width A of each part of the trajectory.

    Source: TAAC (arXiv:2104.06521), appendix on network structure.
    """

    def __init__(self, feature_size: int, part_sizes: Sequence[int]):
        super().__init__()
        self.parts = nn.ModuleList(_embedding(size, feature_size) for size in part_sizes)
        self.output_size = feature_size * (1 + len(part_sizes))

    def forward(self, features: torch.Tensor, tau: Nest) -> torch.Tensor:
        """Maps features `[..., F]` and a trajectory (or any nest) of parts `[..., A]` to `[..., output_size]`."""
        embedded = [layer(part) for layer, part in zip(self.parts, nest.flatten(tau))]
        return torch.cat([features, *embedded], dim=-1)


def _embedding(size: int, feature_size: int) -> nn.Linear:
    layer = nn.Linear(size, feature_size)
    nn.init.kaiming_uniform_(layer.weight, nonlinearity="linear")  # of standard deviation 1 / sqrt(size)
    nn.init.zeros_(layer.bias)
    return layer
