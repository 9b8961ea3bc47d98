"""Critics that value a chunk of actions after each of its prefixes, in one pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import gin
import torch
import torch.nn as nn

from taac.errors import TaacError, refuse_below
from taac.networks.layers import EnsembleLinear, activation_module, check_widths, in_full_precision


@gin.configurable(denylist=["action_sizes"])
class PrefixCritics(nn.Module):
    """N critics `Q_i(s, a_1..a_k)` of all prefixes k = 1..h: a recurrent network (GRU) that reads one action after another.

    `SacChunkAlgorithm` learns the values of all prefixes; `TaacAlgorithm` that of the chunk as it is, which may be any length.

    `x_0 = f(s)`, `x_k = GRU(x_{k-1}, a_k)`, `Q_k = g(x_k)`. An action that does not exist changes nothing, so from the last
    action on all are equal: the last entry is the value of the chunk as it is.

    Args:
        input_size: width of the features and all action parts together.
        reward_dim: None: a vector reward is refused.
        action_sizes: widths of a chunk's parts, see `Chunk`: A, (h-1) A and 1, or A alone if h = 1.
        num_critics: N, 1 or more.
        hidden_layers: widths of the layers of f; the last one is that of x, whose square every action costs.
        activation: called without arguments; see `HeadNetwork`.

    Raises:
        TaacError: settings out of range; a method without chunks; a vector reward.

    Source: values of all prefixes are T-SAC's and SEAR's (arXiv:2503.03660, arXiv:2603.01891), whose network is a causal
    transformer. A GRU is ours: it is smaller, and reads as many actions as there are.
    """

    def __init__(
        self,
        input_size: int,
        reward_dim: int | None = None,
        *,
        action_sizes: Sequence[int],
        num_choices: int | None = None,
        num_critics: int = 2,
        hidden_layers: Sequence[int] = (256, 64),
        activation: Callable[..., nn.Module] = nn.ReLU,
    ):
        super().__init__()
        if reward_dim is not None:
            raise TaacError(f"PrefixCritics value one reward, and this one has {reward_dim} parts: use CriticEnsemble")
        chunks = len(action_sizes) == 3 and action_sizes[1] % action_sizes[0] == 0 and action_sizes[2] == 1
        if num_choices is not None or not (chunks or len(action_sizes) == 1):
            discrete = "" if num_choices is None else f", for {num_choices} choices"
            raise TaacError(
                f"PrefixCritics value chunks, whose parts are A, (h-1) A and 1 wide, and this method's are "
                f"{', '.join(map(str, action_sizes)) or 'none'}{discrete}: use it with sac_chunk or taac_chunk"
            )
        refuse_below(1, "PrefixCritics", num_critics=num_critics)
        check_widths(hidden_layers)
        self.num_critics, self.action_size = num_critics, action_sizes[0]
        self.length = 1 if len(action_sizes) == 1 else 1 + action_sizes[1] // action_sizes[0]
        sizes = [input_size - sum(action_sizes), *hidden_layers]
        self.hidden = nn.ModuleList(EnsembleLinear(num_critics, a, b, bias_range=0.0) for a, b in itertools.pairwise(sizes))
        width = sizes[-1]
        self.of_action = EnsembleLinear(num_critics, self.action_size, 3 * width)
        self.of_state = EnsembleLinear(num_critics, width, 3 * width)
        self.last = EnsembleLinear(num_critics, width, 1, 0.003, 0.0)
        self.activation = activation_module(activation)

    def forward(self, features: torch.Tensor, *chunk: torch.Tensor) -> torch.Tensor:
        """Maps features `[..., F]` and the parts of a chunk `[..., A]`, `[..., (h-1) A]`, `[..., 1]` to `[N, ..., h]`."""
        batch = features.shape[:-1]
        action = torch.cat(chunk[:2], dim=-1).reshape(-1, self.length, self.action_size)
        x = features.reshape(1, -1, features.shape[-1]).expand(self.num_critics, -1, -1)
        for layer in self.hidden:
            x = self.activation(layer(x))
        x = x.float()  # the state that is carried from action to action, also where products are bfloat16
        read = self.of_action(action.transpose(0, 1).reshape(1, -1, self.action_size).expand(self.num_critics, -1, -1))
        read = read.unflatten(1, (self.length, -1))  # [N, h, M, 3 width]
        exists = None
        if len(chunk) > 1:
            last = (chunk[2].reshape(-1) * (self.length - 1)).round()
            exists = torch.arange(self.length, device=x.device).unsqueeze(1) <= last  # [h, M]
        states = []
        for k in range(self.length):
            of_action, of_state = read[:, k].chunk(3, dim=-1), self.of_state(x).chunk(3, dim=-1)
            reset, keep = (torch.sigmoid(a + s) for a, s in zip(of_action[:2], of_state[:2]))
            new = torch.tanh(of_action[2] + reset * of_state[2])
            if exists is not None:
                keep = torch.where(exists[k].unsqueeze(-1), keep, 1.0)
            x = keep * x + (1 - keep) * new
            states.append(x)
        q = in_full_precision(self.last, torch.cat(states, dim=1)).squeeze(-1)
        return q.unflatten(1, (self.length, -1)).transpose(1, 2).reshape(self.num_critics, *batch, self.length)

    def value(self, prediction: torch.Tensor) -> torch.Tensor:
        """Returns the values of whole chunks, `[N, ..., h]` to `[N, ...]`."""
        return prediction[..., -1]

    def loss(self, prediction: torch.Tensor, target: Any) -> torch.Tensor:
        """Returns squared errors `[...]`, summed over critics: of whole chunks, or of the targets of every prefix.

        Args:
            prediction: `[N, ..., h]`.
            target: `[...]`, or `PrefixTargets`, whose errors are averaged over prefixes.
        """
        if isinstance(target, torch.Tensor):
            return (self.value(prediction) - target).square().sum(0)
        return (prediction - target.each).square().mean(-1).sum(0)
