"""What a tensor looks like before there is one: shape, dtype and bounds, without batch or time dimensions."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError


@dataclasses.dataclass(frozen=True, eq=False)
class TensorSpec:
    """Shape, dtype and, where known, bounds of a tensor.

    A spec of dtype int64 is categorical: integers from `minimum` to `maximum`, each a choice of its own. Everything
    else is a quantity (uint8: an image or bytes).
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    minimum: np.ndarray | None = None  # broadcast to `shape`; None: unbounded or unknown
    maximum: np.ndarray | None = None

    @property
    def is_categorical(self) -> bool:
        return self.dtype == torch.int64

    @property
    def num_choices(self) -> np.ndarray:
        """Number of choices of each element of a categorical spec."""
        assert self.is_categorical and self.minimum is not None and self.maximum is not None
        return (self.maximum - self.minimum + 1).astype(np.int64)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def zeros(self, *batch: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Zeros of shape `[*batch, *self.shape]`."""
        return torch.zeros(*batch, *self.shape, dtype=self.dtype, device=device)

    def __str__(self) -> str:
        bounds = ""
        if self.minimum is not None and self.maximum is not None:
            bounds = f", in [{np.min(self.minimum):g}, {np.max(self.maximum):g}]"
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}{bounds}"


def bounded(shape: tuple[int, ...], minimum: float, maximum: float, dtype: torch.dtype = torch.float32) -> TensorSpec:
    """A spec with the same bounds for every element."""
    return TensorSpec(shape, dtype, np.full(shape, minimum), np.full(shape, maximum))


def spec_of(tensor: torch.Tensor, batch_dims: int = 1) -> TensorSpec:
    """The spec of a tensor that has `batch_dims` leading batch dimensions."""
    return TensorSpec(tuple(tensor.shape[batch_dims:]), tensor.dtype)


def zeros(spec: Nest, *batch: int, device: torch.device | str = "cpu") -> Nest:
    """A nest of zeros like a nest of specs, each `[*batch, *shape]`."""
    return nest.map_structure(lambda s: s.zeros(*batch, device=device), spec)


class MixedActionSpec:
    """Takes an action with one discrete and any continuous parts apart, and puts it together again.

    Args:
        spec: nest with one scalar categorical leaf, and float leaves of any shape in [-1, 1].
        user: for messages.

    Attributes:
        num_choices: C of the discrete part.
        continuous: spec of the continuous parts as one vector `[A]`.

    Raises:
        TaacError: another number of discrete parts, or continuous ones that are missing or have other bounds.
    """

    def __init__(self, spec: Nest, user: str):
        leaves: list[TensorSpec] = nest.flatten(spec)
        discrete = [i for i, leaf in enumerate(leaves) if leaf.is_categorical and leaf.numel == 1]
        boxes = [leaf for i, leaf in enumerate(leaves) if i not in discrete]
        if len(discrete) != 1 or not boxes or any(b.is_categorical for b in boxes):
            raise TaacError(
                f"{user} needs one discrete action and at least one continuous one (a Tuple or Dict of a Discrete and Boxes), "
                f"but the action space is {', '.join(map(str, leaves))}; use a method for that kind of space, or a wrapper"
            )
        for box in boxes:
            check_unit_box(dataclasses.replace(box, shape=(box.numel,)), user)
        if np.any(leaves[discrete[0]].minimum != 0):
            raise TaacError(f"{user} counts choices from 0, got the discrete action {leaves[discrete[0]]}")
        self._spec, self._position, self._boxes = spec, discrete[0], boxes
        self.num_choices = int(leaves[discrete[0]].num_choices.item())
        self.continuous = bounded((sum(box.numel for box in boxes),), -1.0, 1.0)

    def split(self, action: Nest) -> tuple[torch.Tensor, torch.Tensor]:
        """The choice `[...]` int64 and the continuous vector `[..., A]` of an action with leaves `[..., *shape]`."""
        leaves = nest.flatten(action)
        choice = leaves.pop(self._position)
        batch = choice.shape[: choice.dim() - len(nest.flatten(self._spec)[self._position].shape)]
        return choice.reshape(batch), torch.cat([leaf.reshape(*batch, -1) for leaf in leaves], dim=-1)

    def join(self, choice: torch.Tensor, continuous: torch.Tensor) -> Nest:
        """The inverse of `split`."""
        parts = continuous.split([box.numel for box in self._boxes], dim=-1)
        leaves = [part.reshape((*choice.shape, *box.shape)) for part, box in zip(parts, self._boxes)]
        leaves.insert(self._position, choice.reshape((*choice.shape, *nest.flatten(self._spec)[self._position].shape)))
        return nest.pack_like(self._spec, leaves)


def check_unit_box(spec: Nest, user: str) -> TensorSpec:
    """The spec itself, if it is what a continuous policy acts in: one float vector in [-1, 1].

    Raises:
        TaacError: it is discrete, nested, not a vector, or has other bounds.
    """
    if not isinstance(spec, TensorSpec):
        raise TaacError(
            f"{user} needs one continuous action vector, but the action space is nested: {spec}. "
            "Flatten it with a wrapper, or use a method for mixed action spaces."
        )
    if spec.is_categorical or not spec.dtype.is_floating_point:
        raise TaacError(
            f"{user} needs a continuous action space (a Box), but the environment's actions are discrete: {spec}. "
            "Use a continuous variant of the task (LunarLanderContinuous-v3 instead of LunarLander-v3), "
            "or a method for discrete actions."
        )
    if len(spec.shape) != 1 or not spec.numel:
        raise TaacError(
            f"{user} needs actions of rank 1 and at least one dimension, got shape {list(spec.shape)}; use a wrapper"
        )
    if spec.minimum is None or spec.maximum is None or not (np.all(spec.minimum == -1) and np.all(spec.maximum == 1)):
        raise TaacError(f"{user} acts in [-1, 1], got the action spec {spec}; rescale the actions first")
    return spec
