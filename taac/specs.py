"""What a tensor looks like before there is one: shape, dtype and bounds, without batch or time dimensions."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError

ACTION_MASK = "action_mask"  # the key of a Dict observation that says which choices are valid


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
                f"but the action space is {', '.join(map(str, leaves))}; for discrete actions alone there is sac_discrete "
                "(DiscreteSacAlgorithm), for one Box sac and taac; or use a wrapper"
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


class DiscreteActionSpec:
    """A discrete action, of one agent or of each of N that share a policy, and the mask of its valid choices.

    One agent chooses a scalar (a Discrete space). N agents choose a vector (a MultiDiscrete space of equal entries), and
    every leaf of the observation has their dimension first, `[N, ...]`. The mask, if there is one, is the leaf
    `action_mask` of a Dict observation, bools `[(N,) C]`; networks do not see it.

    Args:
        spec: a categorical leaf, `[]` or `[N]`.
        observation_spec: of the environment.
        user: for messages.

    Attributes:
        num_choices: C.
        agents: `()`, or `(N,)`.
        masked: whether the observation has a mask.
        observation: the spec of what one agent observes, without the mask.

    Raises:
        TaacError: continuous or nested actions, agents of unequal choices; observations or a mask that do not fit.
    """

    def __init__(self, spec: Nest, observation_spec: Nest, user: str):
        if not isinstance(spec, TensorSpec) or not spec.is_categorical:
            raise TaacError(
                f"{user} needs discrete actions (a Discrete or MultiDiscrete space), but the action space is "
                f"{', '.join(str(leaf) for leaf in nest.flatten(spec))}; for a Box there are sac, taac and what else is in "
                "gin/methods, for one Discrete and Boxes together MixedSacAlgorithm"
            )
        choices = np.broadcast_to(spec.num_choices, spec.shape)
        if len(spec.shape) > 1 or not spec.numel or np.any(choices != choices.flat[0]):
            raise TaacError(
                f"{user} needs one choice, or for agents that share it one each, of equally many: got {choices.tolist()} "
                f"choices; use a wrapper that makes one Discrete space of it"
            )
        if np.any(spec.minimum != 0) or choices.flat[0] < 2:
            raise TaacError(f"{user} needs 2 or more choices, counted from 0, got the action {spec}")
        self.num_choices, self.agents = int(choices.flat[0]), tuple(spec.shape)
        self.masked = isinstance(observation_spec, dict) and ACTION_MASK in observation_spec
        if self.masked:
            mask, expected = observation_spec[ACTION_MASK], (*self.agents, self.num_choices)
            if not isinstance(mask, TensorSpec) or mask.dtype != torch.bool or mask.shape != expected:
                raise TaacError(
                    f"the observation's '{ACTION_MASK}' must be binary (a MultiBinary space, or a Box of integers in "
                    f"[0, 1]) of shape {list(expected)}, one entry a choice; got {mask}"
                )
        unmasked = self.observed(observation_spec)
        if not nest.flatten(unmasked):
            raise TaacError(f"{user} has nothing to observe but '{ACTION_MASK}', which the networks do not see")
        self.observation = nest.map_structure(self._of_one_agent, unmasked) if self.agents else unmasked

    def observed(self, observation: Nest) -> Nest:
        """An observation, or its spec, without the mask."""
        return {k: v for k, v in observation.items() if k != ACTION_MASK} if self.masked else observation

    def valid(self, observation: Nest, batch: torch.Size, device: torch.device) -> torch.Tensor:
        """Which choices are valid, bools `[*batch, (N,) C]`.

        Where none is, all are: the environment refuses that everywhere but at a termination, where nothing is chosen.
        """
        if not self.masked:
            return torch.ones(*batch, *self.agents, self.num_choices, dtype=torch.bool, device=device)
        mask = observation[ACTION_MASK]
        return mask | ~mask.any(-1, keepdim=True)

    def _of_one_agent(self, spec: TensorSpec) -> TensorSpec:
        if spec.shape[:1] != self.agents:
            raise TaacError(
                f"the actions are of {self.agents[0]} agents that share a policy (a MultiDiscrete space), so every "
                f"observation must be [{self.agents[0]}, ...], got {spec}; for one agent with several choices at once, "
                "make one Discrete space of them with a wrapper"
            )
        low, high = (None if b is None else np.broadcast_to(b, spec.shape) for b in (spec.minimum, spec.maximum))
        return dataclasses.replace(
            spec,
            shape=spec.shape[1:],
            minimum=None if low is None else low.min(0),
            maximum=None if high is None else high.max(0),
        )


def check_unit_box(spec: Nest, user: str) -> TensorSpec:
    """The spec itself, if it is what a continuous policy acts in: one float vector in [-1, 1].

    Raises:
        TaacError: it is discrete, nested, not a vector, or has other bounds.
    """
    if not isinstance(spec, TensorSpec):
        raise TaacError(
            f"{user} needs one continuous action vector, but the action space is nested: {spec}. "
            "Flatten it with a wrapper, or use MixedSacAlgorithm, which takes one Discrete and any Boxes."
        )
    if spec.is_categorical or not spec.dtype.is_floating_point:
        raise TaacError(
            f"{user} needs a continuous action space (a Box), but the environment's actions are discrete: {spec}. "
            "Use the method sac_discrete (DiscreteSacAlgorithm), or a continuous variant of the task "
            "(LunarLanderContinuous-v3 instead of LunarLander-v3)."
        )
    if len(spec.shape) != 1 or not spec.numel:
        raise TaacError(
            f"{user} needs actions of rank 1 and at least one dimension, got shape {list(spec.shape)}; use a wrapper"
        )
    if spec.minimum is None or spec.maximum is None or not (np.all(spec.minimum == -1) and np.all(spec.maximum == 1)):
        raise TaacError(f"{user} acts in [-1, 1], got the action spec {spec}; rescale the actions first")
    return spec
