"""Encoders with a memory."""

from __future__ import annotations

from collections.abc import Callable

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.data_structures import Nest, TimeStep
from taac.errors import refuse_below
from taac.networks.encoders import ObservationEncoder
from taac.networks.layers import in_full_precision


@gin.configurable
class GRUMemory(nn.GRUCell):
    """Gated recurrent unit (Cho et al., arXiv:1406.1078): `h' = GRU(x, h)`; the output is `h'`.

    Args:
        input_size: width of x.
        output_size: width of h.
    """

    def __init__(self, input_size: int, output_size: int = 128):
        refuse_below(1, type(self).__name__, output_size=output_size)
        super().__init__(input_size, output_size)
        self.output_size = output_size

    def initial_state(self, batch_size: int) -> torch.Tensor:
        """Returns zeros `[B, output_size]`."""
        return self.weight_hh.new_zeros(batch_size, self.output_size)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """Maps x `[B, input_size]` and the state to the output `[B, output_size]` and the next state."""
        hidden = in_full_precision(super().forward, x, state)
        return hidden, hidden


@gin.configurable
class LSTMMemory(nn.LSTMCell):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997): `(h', c') = LSTM(x, (h, c))`; the output is `h'`.

    Args:
        input_size: width of x.
        output_size: width of h and c.
    """

    def __init__(self, input_size: int, output_size: int = 128):
        refuse_below(1, type(self).__name__, output_size=output_size)
        super().__init__(input_size, output_size)
        self.output_size = output_size

    def initial_state(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns two zero tensors `[B, output_size]`, for h and c."""
        zeros = self.weight_hh.new_zeros(batch_size, self.output_size)
        return zeros, zeros

    def forward(self, x: torch.Tensor, state: Nest) -> tuple[torch.Tensor, Nest]:  # type: ignore[override]
        """Maps x `[B, input_size]` and the state to the output `[B, output_size]` and the next state."""
        hidden, cell = in_full_precision(super().forward, x, state)
        return hidden, (hidden, cell)


@gin.configurable
class RecurrentEncoder(nn.Module):
    """Encodes the history of observations and actions as features: an encoder of the observation, then a memory.

    Args:
        observation_spec: nest of specs.
        action_size: dimensions A of the action.
        encoder_ctor: called with the observation spec; returns a module with `output_size`.
        memory_ctor: called with the input's width; returns a module with `output_size`, `initial_state(batch_size)`, and
            `forward(x, state)`, which returns output and next state; see `GRUMemory` and `LSTMMemory`.
        sees_action: whether the memory receives the previous action together with the observation.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_size: int,
        encoder_ctor: Callable[..., nn.Module] = ObservationEncoder,
        memory_ctor: Callable[..., nn.Module] = GRUMemory,
        sees_action: bool = True,
    ):
        super().__init__()
        self.encoder, self.sees_action = encoder_ctor(observation_spec), sees_action
        width = int(self.encoder.output_size) + (action_size if sees_action else 0)  # type: ignore[arg-type]
        self.memory = memory_ctor(width)
        self.output_size = int(self.memory.output_size)  # type: ignore[arg-type]

    def initial_state(self, batch_size: int) -> Nest:
        """Returns the memory's state at FIRST."""
        return self.memory.initial_state(batch_size)  # type: ignore[operator]

    def forward(self, time_step: TimeStep, state: Nest) -> tuple[torch.Tensor, Nest]:
        """Advances one step `[B]`. Returns the features `[B, output_size]` and the memory's next state."""
        return self.memory(self._input(time_step), state)

    def _input(self, time_step: TimeStep) -> torch.Tensor:
        x = self.encoder(time_step.observation)
        return torch.cat([x, time_step.prev_action], dim=-1) if self.sees_action else x

    def unroll(self, time_step: TimeStep, state: Nest, burn_in: int = 0) -> torch.Tensor:
        """Returns features `[T - burn_in, B, output_size]` of a replayed segment `[T, B]`.

        The memory starts from the state stored with frame 0, and is reset at each later FIRST. The first `burn_in` frames
        only update the memory; no gradient flows through them.

        Source: stored state and burn-in, Kapturowski et al., R2D2 (ICLR 2019), section 3.
        """
        initial = self.initial_state(time_step.step_type.shape[1])
        features = []
        for t, (x, first) in enumerate(zip(self._input(time_step), time_step.is_first())):
            if t > 0:
                state = nest.where(first, initial, state)
            with torch.set_grad_enabled(torch.is_grad_enabled() and t >= burn_in):
                output, state = self.memory(x, state)
            features.append(output)
        return torch.stack(features[burn_in:])
