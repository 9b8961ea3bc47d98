"""The critic ensemble: all critics in one batched call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import gin
import torch
import torch.nn as nn

from taac.errors import TaacError, refuse_below
from taac.networks.layers import (
    EnsembleLinear,
    InitialWeights,
    activation_module,
    check_ranges,
    check_widths,
    in_full_precision,
    initial_bounds,
    refuse_unused,
)


@gin.configurable
class CriticEnsemble(nn.Module):
    """N critics `Q_i(s, a)` that share only their input.

    For a reward of D parts, each critic is D networks that share only their input, so that no part influences what is learnt
    for another.

    Args:
        input_size: width of the features and all action parts together.
        reward_dim: D for a reward of D parts; None for a scalar reward.
        num_choices: number C of values returned at once, one per choice of a discrete action; None: no discrete action.
        num_critics: N, 1 or more.
        hidden_layers: widths.
        initial_weights: "published": as in TAAC's original code, weights are uniform in [-w, w] with w = 1 / sqrt(inputs of
            the layer), those of the last layer in +-0.003, and biases are 0. "torch": weights and biases of each layer are
            uniform in [-w, w], as `torch.nn.Linear` makes them. "xavier": weights are Xavier-uniform, the last layer's too, and
            biases are 0 (REDQ, DroQ).
        last_init_range, last_bias_init_range: if set, the last layer's weights, or biases, are uniform in +- this instead.
        activation: called without arguments; see `HeadNetwork`.
        body: makes the hidden layers, such as `@SimbaBody`, and the last one, as its paper does; see `taac/networks/bodies.py`.
            It has settings of its own, in place of `hidden_layers`, `initial_weights`, ranges and `activation`.
        returns: what a critic predicts in place of a number, such as `@CategoricalReturns()`, a distribution of the return.
        share_hidden_layers: whether the parts of a reward share a critic's hidden layers. This costs 1/D of the work, but the
            part with the largest errors then dominates what these layers learn.

    Raises:
        TaacError: settings out of range, or without effect beside a body; an activation that is already constructed; `returns`
            with a vector reward, whose parts would need a distribution together.
    """

    body: Any
    last: Any
    returns: Any

    def __init__(
        self,
        input_size: int,
        reward_dim: int | None = None,
        num_critics: int = 2,
        hidden_layers: Sequence[int] = (256, 256),
        last_init_range: float | None = None,
        num_choices: int | None = None,
        last_bias_init_range: float | None = None,
        activation: Callable[..., nn.Module] = nn.ReLU,
        share_hidden_layers: bool = False,
        initial_weights: InitialWeights = "published",
        returns: nn.Module | None = None,
        body: Callable[..., nn.Module] | None = None,
    ):
        super().__init__()
        if returns is not None and reward_dim is not None:
            raise TaacError(
                f"{type(returns).__name__} predicts the distribution of one return, and this reward is a vector of {reward_dim}: "
                "a weighted sum of distributions is not defined by its parts. Remove CriticEnsemble.returns"
            )
        refuse_below(1, "CriticEnsemble", num_critics=num_critics)
        check_ranges(last_init_range or 0.0, last_bias_init_range or 0.0)
        check_widths(hidden_layers)
        unused = {"last_init_range": last_init_range, "last_bias_init_range": last_bias_init_range}
        sizes = [input_size, *hidden_layers]
        self.networks_each = 1 if share_hidden_layers else reward_dim or 1  # networks per critic
        networks = num_critics * self.networks_each
        refuse_unused(body, "CriticEnsemble", activation, unused)
        self.body = body and body(input_size, networks)
        self.hidden = nn.ModuleList(
            EnsembleLinear(networks, fan_in, fan_out, *initial_bounds(initial_weights, fan_in, fan_out))
            for fan_in, fan_out in (() if body else itertools.pairwise(sizes))
        )
        predicted = reward_dim if returns is None else int(returns.size)  # type: ignore[arg-type]
        self.output_shape = tuple(size for size in (num_choices, predicted) if size is not None)
        outputs_each = math.prod(self.output_shape) // self.networks_each
        bound, bias_bound = initial_bounds(initial_weights, sizes[-1], outputs_each)
        last_init_range = (0.003 if bound is None else bound) if last_init_range is None else last_init_range
        last_bias_init_range = bias_bound if last_bias_init_range is None else last_bias_init_range
        self.last = (
            EnsembleLinear(networks, sizes[-1], outputs_each, last_init_range, last_bias_init_range)
            if body is None else self.body.head(outputs_each)
        )  # fmt: skip
        self.num_critics, self.reward_dim = num_critics, reward_dim
        if returns is not None:
            self.returns = returns
            self.value, self.loss = self.returns.value, self.returns.loss
            self.distribution, self.beyond = (getattr(self.returns, name, None) for name in ("distribution", "beyond"))
        self.activation = activation_module(activation)

    def forward(self, features: torch.Tensor, *action: torch.Tensor) -> torch.Tensor:
        """Maps features `[..., F]` and action parts `[..., A]` to `[N, ...(, C)(, D)]`; C choices and D reward parts, if any.

        With `returns` there are the K numbers of its prediction in place of D.
        """
        x = torch.cat([features, *action], dim=-1)
        batch = x.shape[:-1]
        x = x.reshape(1, -1, x.shape[-1]).expand(self.num_critics * self.networks_each, -1, -1)
        x = x if self.body is None else self.body(x)
        for layer in self.hidden:
            x = self.activation(layer(x))
        q = in_full_precision(self.last, x)
        if self.networks_each == 1:
            return q.reshape(self.num_critics, *batch, *self.output_shape)
        return q.reshape(self.num_critics, self.networks_each, *batch, *self.output_shape[:-1]).movedim(1, -1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Explains a mismatch in parts of the reward or in shared hidden layers, before torch reports mere shapes."""
        stored, errors = state_dict.get(f"{prefix}last.weight"), args[-1]
        if self.reward_dim is not None and stored is not None and stored.shape[0] == self.num_critics:
            choices = math.prod(self.output_shape) // self.reward_dim
            parts, rest = divmod(stored.shape[-1], choices)
            if parts != self.reward_dim and rest == 0:
                errors.append(
                    f"{prefix}last has values of {parts} parts of a reward, and this agent learns {self.reward_dim} (parts of "
                    "weight 0 are not learnt): train again"
                )
            elif parts == self.reward_dim and self.networks_each > 1:
                errors.append(
                    f"{prefix}last was trained with hidden layers that the parts of the reward share: bind "
                    "CriticEnsemble.share_hidden_layers = True to resume it, or train again"
                )
        super()._load_from_state_dict(state_dict, prefix, *args)
