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
