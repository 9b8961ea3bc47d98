"""Specs of tensors: shape, dtype and bounds, without batch or time dimensions."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from taac import nest
from taac.data_structures import Nest, TimeStep
from taac.errors import TaacError

# Keys of a Dict observation with a special meaning.
ACTION_MASK = "action_mask"  # which choices are valid
AGENT_MASK = "agent_mask"  # which of the agents that share a policy are present
AGENT_TRUNCATED = "agent_truncated"  # which of the agents that leave were cut off, as by a time limit, instead of terminating
GLOBAL_STATE = "global_state"  # observed by critics but not by the actor, see `networks.LocalEncoder`


@dataclasses.dataclass(frozen=True, eq=False)
class TensorSpec:
    """Shape, dtype and, where known, bounds of a tensor.

    A spec with dtype int64 is categorical: each integer from `minimum` to `maximum` is a choice. All other specs are
    quantities; uint8 is an image or bytes.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    minimum: np.ndarray | None = None  # broadcast to `shape`; None if unbounded or unknown
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

    def blank(self, *batch: int, device: torch.device | str = "cpu") -> torch.Tensor:
        """Values `[*batch, *self.shape]` that networks accept: the least of choices, which need not be 0, and otherwise 0."""
        zeros = self.zeros(*batch, device=device)
        if not self.is_categorical or self.minimum is None:
            return zeros
        return zeros + torch.as_tensor(self.minimum, dtype=self.dtype, device=device)

    def __str__(self) -> str:
        bounds = ""
        if self.minimum is not None and self.maximum is not None:
            bounds = f", in [{np.min(self.minimum):g}, {np.max(self.maximum):g}]"
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}{bounds}"


def bounded(shape: tuple[int, ...], minimum: float, maximum: float, dtype: torch.dtype = torch.float32) -> TensorSpec:
    """Returns a spec with the same bounds for every element."""
    return TensorSpec(shape, dtype, np.full(shape, minimum), np.full(shape, maximum))


def is_picture(x: TensorSpec | torch.Tensor) -> bool:
    """Returns whether a spec, or a tensor without batch, is a picture of bytes `[H, W, C]`."""
    return x.dtype == torch.uint8 and len(x.shape) == 3


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Returns the spec of a tensor whose first dimension is a batch."""
    return TensorSpec(tuple(tensor.shape[1:]), tensor.dtype)


def zeros(spec: Nest, *batch: int, device: torch.device | str = "cpu") -> Nest:
    """Returns a nest of zeros for a nest of specs, each leaf `[*batch, *shape]`."""
    return nest.map_structure(lambda s: s.zeros(*batch, device=device), spec)


def blank(spec: Nest, *batch: int, device: torch.device | str = "cpu") -> Nest:
    """Returns a nest of `TensorSpec.blank` for a nest of specs, each leaf `[*batch, *shape]`."""
    return nest.map_structure(lambda s: s.blank(*batch, device=device), spec)


def time_step_spec(observation_spec: Nest, action_spec: Nest, reward_dim: int | None) -> TimeStep:
    """Specs of the leaves of one frame."""
    scalar = TensorSpec(())
    parts: dict[str, Nest] = {
        "step_type": TensorSpec((), torch.uint8),
        "reward": TensorSpec((reward_dim,)) if reward_dim else scalar,
        "discount": scalar,
        "observation": observation_spec,
        "prev_action": action_spec,
        "duration": TensorSpec((), torch.int16),
    }
    return TimeStep(**parts)


def observed(observation: Nest, action: Nest) -> Nest:
    """Returns what networks observe: all but the mask of a discrete action's choices. Both are specs, or both are tensors."""
    return {k: part for k, part in observation.items() if k != ACTION_MASK} if is_masked(observation, action) else observation


def is_masked(observation: Nest, action: Nest) -> bool:
    """Returns whether an observation has the mask of a discrete action's choices. Both are specs, or both are tensors."""
    return isinstance(observation, dict) and ACTION_MASK in observation and getattr(action, "dtype", None) == torch.int64


def can_act(mask: torch.Tensor, action_spec: Nest) -> torch.Tensor:
    """Returns whether a mask allows at least one choice, for each entry of the action.

    Args:
        mask: bools `[B, ..., C]`, one row for each entry of the action; or `[B, ..., sum_b C_b]` if the action's last
            dimension is K branches that share a row.
        action_spec: the spec of the actions.

    Returns:
        Bools `[B, ...]`, or `[B, ..., K]`.
    """
    if isinstance(action_spec, TensorSpec) and action_spec.is_categorical and action_spec.shape:
        counts = (
            np.broadcast_to(action_spec.num_choices, action_spec.shape).reshape(-1, action_spec.shape[-1])[0].tolist()
        )
        if mask.dim() == 1 + len(action_spec.shape) and mask.shape[-1] == sum(counts):
            return torch.stack([part.any(-1) for part in mask.split(counts, -1)], -1)
    return mask.any(-1)


def forbids_acting(observation: dict[str, Nest], action_spec: Nest) -> torch.Tensor:
    """Returns, of observations `[B, ...]`, whether a present agent or a branch of its action has no valid choice, `[B]`."""
    possible = can_act(observation[ACTION_MASK], action_spec)
    if AGENT_MASK in observation:
        possible = possible | nest.broadcast(~observation[AGENT_MASK], possible)
    return ~possible.reshape(len(possible), -1).all(1)


def check_unit_box(spec: Nest, user: str) -> None:
    """Checks that a spec is one float vector in [-1, 1], as a continuous policy needs.

    Raises:
        TaacError: it is discrete, nested, not a vector, or has other bounds.
    """
    if not isinstance(spec, TensorSpec):
        raise TaacError(
            f"{user} needs one continuous action vector, but the action space is nested: {spec}. "
            "Flatten it with a wrapper, or use MixedSacAlgorithm, which accepts one Discrete and any Boxes."
        )
    if spec.is_categorical or not spec.dtype.is_floating_point:
        raise TaacError(
            f"{user} needs a continuous action space (a Box), but the environment's actions are discrete: {spec}. "
            "Use the method sac_discrete (DiscreteSacAlgorithm), or a continuous variant of the task "
            "(LunarLanderContinuous-v3 instead of LunarLander-v3)."
        )
    if len(spec.shape) != 1 or not spec.numel:
        raise TaacError(
            f"{user} needs actions of rank 1 and at least one dimension, got shape {list(spec.shape)}; if the first dimension "
            "counts agents that share a policy, bind create_agent.shared_policy = True; else use a wrapper"
        )
    if spec.minimum is None or spec.maximum is None or not (np.all(spec.minimum == -1) and np.all(spec.maximum == 1)):
        raise TaacError(f"{user} acts in [-1, 1], got the action spec {spec}; rescale the actions first")
