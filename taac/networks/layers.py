"""Layers and initialisers that the networks share."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
import torch.nn as nn

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError

InitialWeights = Literal["published", "torch", "xavier"]  # "published": those of TAAC's original code; see `HeadNetwork`
_TRUNCATED_STD = 0.87962566103423978  # standard deviation of a standard normal truncated at +-2


class EnsembleLinear(nn.Module):
    """N linear maps in one batched product: `y[n] = x[n] W[n] + b[n]`, x `[N, M, I]` to y `[N, M, O]`."""

    def __init__(
        self,
        ensemble_size: int,
        input_size: int,
        output_size: int,
        weight_range: float | None = None,
        bias_range: float | None = None,
    ):
        """Initialises weights uniformly in +-weight_range, biases in +-bias_range; None: +-1/sqrt(input_size), as torch does."""
        super().__init__()
        bound = torch_bound(input_size)
        weight_range = bound if weight_range is None else weight_range
        bias_range = bound if bias_range is None else bias_range
        weight = torch.empty(ensemble_size, input_size, output_size).uniform_(-weight_range, weight_range)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(ensemble_size, 1, output_size))
        if bias_range:
            nn.init.uniform_(self.bias, -bias_range, bias_range)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A context in which a module is in evaluation mode. In acting it is already, so its parts are not looked at."""
    parts = [part for part in module.modules() if part.training] if module.training else []
    for part in parts:
        vars(part)["training"] = False
    try:
        yield
    finally:
        for part in parts:
            vars(part)["training"] = True


def in_full_precision(layer: Callable[..., Any], x: torch.Tensor, *inputs: Nest) -> Any:
    """Returns `layer(x, *inputs)`, computed in float32 even under automatic mixed precision.

    It is for outputs that feed no further layer: values, means, logits, memories. bfloat16 has 8 bits of precision, so a value
    of 100 would be rounded to a multiple of 0.5. The switching probability depends on a difference of two values, and would
    change by more than 0.1.
    """
    if not torch.is_autocast_enabled(x.device.type):
        return layer(x, *inputs)
    with torch.autocast(x.device.type, enabled=False):
        return layer(*nest.map_structure(_full_precision, (x, *inputs)))


def _full_precision(x: torch.Tensor) -> torch.Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x


def truncated_normal_(weight: torch.Tensor, std: float) -> None:
    """Draws weights of this standard deviation from a normal that is truncated at two of its own."""
    wide = std / _TRUNCATED_STD
    nn.init.trunc_normal_(weight, std=wide, a=-2 * wide, b=2 * wide)


def head_linear(
    input_size: int,
    output_size: int,
    init_range: float | None = None,
    bias_init_range: float | None = None,
    initial_weights: InitialWeights = "published",
) -> nn.Linear:
    """Returns a policy's last layer: weights truncated normal with gain 0.3 and biases 0 ("published"), or see `HeadNetwork`.

    Args:
        init_range, bias_init_range: if set, weights and biases are initialised uniformly in +- these.

    Raises:
        TaacError: a negative or infinite range.
    """
    bound, bias_bound = initial_bounds(initial_weights, input_size, output_size)
    init_range = bound if init_range is None else init_range
    bias_init_range = bias_bound if bias_init_range is None else bias_init_range
    check_ranges(init_range or 0.0, bias_init_range or 0.0)
    layer = nn.Linear(input_size, output_size)
    truncated_normal_(layer.weight, 0.3 / math.sqrt(input_size))
    nn.init.zeros_(layer.bias)
    if init_range is not None:
        nn.init.uniform_(layer.weight, -init_range, init_range)
    if bias_init_range:
        nn.init.uniform_(layer.bias, -bias_init_range, bias_init_range)
    return layer


def initial_bounds(initial_weights: InitialWeights, input_size: int, output_size: int) -> tuple[float | None, float]:
    """Returns the bounds of a layer's uniform weights and biases; None: those of the network's own. Refuses unknown names."""
    bounds: dict[str, tuple[float | None, float]] = {
        "published": (None, 0.0),
        "torch": (torch_bound(input_size), torch_bound(input_size)),
        "xavier": (math.sqrt(6.0 / (input_size + output_size)), 0.0),
    }
    if initial_weights not in bounds:
        raise TaacError(f"initial_weights must be 'published', 'torch' or 'xavier', got '{initial_weights}'")
    return bounds[initial_weights]


def torch_bound(input_size: int) -> float:
    """Returns the bound within which torch draws the weights and biases of a linear layer uniformly, `1 / sqrt(input_size)`."""
    return 1.0 / math.sqrt(input_size)


def check_ranges(*ranges: float) -> None:
    """Raises TaacError unless each range is finite and 0 or more."""
    for value in ranges:
        if not 0 <= value < math.inf:
            raise TaacError(f"the range of a last layer's first weights or biases must be 0 or more, got {value}")


def activation_module(activation: Callable[..., nn.Module]) -> nn.Module:
    """Constructs an activation module. ReLU works in place, which does not change its results.

    Raises:
        TaacError: `activation` is already constructed.
    """
    if isinstance(activation, nn.Module):
        name = type(activation).__name__
        raise TaacError(f"an activation is given as what makes it: bind @{name}, not @{name}()")
    made = activation()
    if isinstance(made, nn.ReLU):
        made.inplace = True
    return made


def refuse_unused(body: Any, owner: str, activation: Any, ranges: dict[str, float | None]) -> None:
    """Refuses settings that a body leaves unused.

    Widths and `initial_weights` are allowed, because task files set them for all methods.

    Raises:
        TaacError: names the first one.
    """
    found = [name for name, given in ranges.items() if given is not None] + ["activation"] * (activation is not nn.ReLU)
    if body is not None and found:
        raise TaacError(f"{owner}.{found[0]} has no effect, because {owner}.body makes all layers: remove it, or set the body's")


def check_widths(hidden_layers: Sequence[int]) -> None:
    """Raises TaacError unless each width is 1 or more."""
    if any(width < 1 for width in hidden_layers):
        raise TaacError(f"the widths of hidden layers must be 1 or more, got {tuple(hidden_layers)}; () is none at all")


class Mlp(nn.Sequential):
    """Hidden layers, each followed by an activation: `[..., I]` to `[..., O]`."""

    def __init__(
        self,
        input_size: int,
        hidden_layers: Sequence[int],
        activation: Callable[..., nn.Module] = nn.ReLU,
        initial_weights: InitialWeights = "published",
    ):
        check_widths(hidden_layers)
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise([input_size, *hidden_layers]):
            layer = nn.Linear(fan_in, fan_out)
            if initial_weights != "torch":
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
            layers += [layer, activation_module(activation)]
        super().__init__(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Flatten to a matrix: with more dimensions `linear` returns a view, and in-place operations on a view copy the gradient
        # three times.
        y = super().forward(x.reshape(-1, x.shape[-1]))
        return y.reshape(*x.shape[:-1], y.shape[-1])
