"""Actions as algorithms see them: a nested action as a choice and a vector, a discrete one as branches with masks."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import torch

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError
from taac.specs import ACTION_MASK, TensorSpec, bounded, check_unit_box, observed


class MixedActionSpec:
    """Splits an action into one discrete part and one vector of all continuous parts, and joins them again.

    Args:
        spec: nest with one scalar categorical leaf and one or more float leaves of any shape in [-1, 1].
        user: the name of the algorithm, for messages.

    Attributes:
        num_choices: C, the number of choices of the discrete part.
        continuous: spec of the continuous parts as one vector `[A]`.

    Raises:
        TaacError: there is not exactly one discrete part, its choices do not count from 0, or the continuous parts are
            missing or have other bounds.
    """

    def __init__(self, spec: Nest, user: str):
        leaves: list[TensorSpec] = nest.flatten(spec)
        discrete = [i for i, leaf in enumerate(leaves) if leaf.is_categorical and leaf.numel == 1]
        boxes = [leaf for i, leaf in enumerate(leaves) if i not in discrete]
        if len(discrete) != 1 or not boxes or any(b.is_categorical for b in boxes):
            raise TaacError(
                f"{user} needs one discrete action and at least one continuous one (a Tuple or Dict of a Discrete and Boxes), "
                f"but the action space is {', '.join(map(str, leaves))}; use sac_discrete (DiscreteSacAlgorithm) for discrete "
                "actions alone, sac or taac for one Box, or a wrapper"
            )
        for box in boxes:
            check_unit_box(dataclasses.replace(box, shape=(box.numel,)), user)
        if np.any(leaves[discrete[0]].minimum != 0):
            raise TaacError(f"{user} counts choices from 0, got the discrete action {leaves[discrete[0]]}")
        self._spec, self._position, self._boxes = spec, discrete[0], boxes
        self.num_choices = int(leaves[discrete[0]].num_choices.item())
        self.continuous = bounded((sum(box.numel for box in boxes),), -1.0, 1.0)

    def split(self, action: Nest) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the choice `[...]` int64 and the continuous vector `[..., A]` of an action with leaves `[..., *shape]`."""
        leaves = nest.flatten(action)
        choice = leaves.pop(self._position)
        batch = choice.shape[: choice.dim() - len(nest.flatten(self._spec)[self._position].shape)]
        return choice.reshape(batch), torch.cat([leaf.reshape(*batch, -1) for leaf in leaves], dim=-1)

    def join(self, choice: torch.Tensor, continuous: torch.Tensor) -> Nest:
        """Inverts `split`."""
        parts = continuous.split([box.numel for box in self._boxes], dim=-1)
        leaves = [part.reshape((*choice.shape, *box.shape)) for part, box in zip(parts, self._boxes)]
        leaves.insert(self._position, choice.reshape((*choice.shape, *nest.flatten(self._spec)[self._position].shape)))
        return nest.pack_like(self._spec, leaves)


class DiscreteActionSpec:
    """One agent's discrete action, one choice in each of K branches, with the mask of valid choices.

    A Discrete space has one branch, a MultiDiscrete space one branch for each entry. Branches may have different numbers of
    choices. Network outputs have one number for each choice, branch after branch, `[..., sum_b C_b]`. `padded` turns them
    into `[..., K, C]`, where C is the largest number of choices. Entries beyond a branch's own choices are never valid.

    The mask, if there is one, is the leaf `action_mask` of a Dict observation: one bool for each choice, branch after branch.
    Its shape is `[sum_b C_b]`, or `[K, C]` if all branches have the same number of choices. Networks do not observe it.

    Args:
        spec: a categorical leaf, `[]` or `[K]`.
        observation_spec: the environment's.
        user: the name of the algorithm, for messages.

    Attributes:
        num_choices: C_b of each branch.
        branched: whether the action is `[K]` instead of a scalar.
        masked: whether the observation has a mask.
        observation: the spec of what networks observe, which is everything but the mask.

    Raises:
        TaacError: actions are continuous or nested, a branch has fewer than 2 choices, the mask does not fit, or the
            observation holds nothing but the mask.
    """

    def __init__(self, spec: Nest, observation_spec: Nest, user: str):
        if not isinstance(spec, TensorSpec) or not spec.is_categorical:
            raise TaacError(
                f"{user} needs discrete actions (a Discrete or MultiDiscrete space), but the action space is "
                f"{', '.join(str(leaf) for leaf in nest.flatten(spec))}; use sac, taac or another method in gin/methods for a "
                "Box, or MixedSacAlgorithm for one Discrete together with Boxes"
            )
        if len(spec.shape) > 1 or not spec.numel:
            raise TaacError(
                f"{user} needs one choice or a vector of choices, got the action {spec}; if its first dimension counts agents "
                "that share a policy, bind create_agent.shared_policy = True; else use a wrapper"
            )
        choices = np.broadcast_to(spec.num_choices, spec.shape).reshape(-1)
        if np.any(spec.minimum != 0) or np.any(choices < 2):
            raise TaacError(
                f"{user} needs 2 or more choices, counted from 0, got the action {spec}, with {choices.tolist()} choices"
            )
        self._spec, self.num_choices, self.branched = spec, tuple(choices.tolist()), bool(spec.shape)
        self.masked = isinstance(observation_spec, dict) and ACTION_MASK in observation_spec
        if self.masked:
            self._check_mask(observation_spec[ACTION_MASK])
        self.observation = self.observed(observation_spec)
        if not nest.flatten(self.observation):
            raise TaacError(
                f"{user} has nothing to observe but '{ACTION_MASK}', which the networks do not see; add an observation"
            )

    @property
    def most_choices(self) -> int:
        """C, the largest number of choices of any branch."""
        return max(self.num_choices)

    def _check_mask(self, mask: Nest) -> None:
        shapes: list[tuple[int, ...]] = [(sum(self.num_choices),)]
        if self.branched and min(self.num_choices) == self.most_choices:
            shapes.append((len(self.num_choices), self.most_choices))
        if not isinstance(mask, TensorSpec) or mask.dtype != torch.bool or mask.shape not in shapes:
            raise TaacError(
                f"the observation's '{ACTION_MASK}' must be binary (a MultiBinary space, or a Box of integers in "
                f"[0, 1]) of shape {' or '.join(str(list(shape)) for shape in shapes)}, one entry a choice"
                f"{', branch after branch' if self.branched else ''}; got {mask}"
            )

    def observed(self, observation: Nest) -> Nest:
        """Returns an observation, or its spec, without the mask."""
        return observed(observation, self._spec)

    def padded(self, values: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """Splits a dimension of size `sum_b C_b` into two, `K, C`. Pads each branch with copies of its last entry."""
        most = self.most_choices
        if min(self.num_choices) < most:
            starts, entry = itertools.accumulate((0, *self.num_choices[:-1])), torch.arange(most, device=values.device)
            indices = [start + entry.clamp(max=n - 1) for start, n in zip(starts, self.num_choices)]
            values = values.index_select(dim, torch.cat(indices))
        return values.unflatten(dim, (len(self.num_choices), most))

    def valid(self, observation: Nest, batch: torch.Size, device: torch.device) -> torch.Tensor:
        """Returns which choices are valid, bools `[*batch, K, C]`.

        A branch without any valid choice counts as having all of its choices valid. The environment allows this only where
        no action matters: at a termination, or for an absent agent.
        """
        entry = torch.arange(self.most_choices, device=device)
        own = torch.stack([entry < n for n in self.num_choices])
        if not self.masked:
            return own.expand(*batch, *own.shape)
        mask = self.padded(observation[ACTION_MASK].reshape(*batch, -1)) & own
        return mask | (~mask.any(-1, keepdim=True) & own)

    def to_branches(self, choice: torch.Tensor) -> torch.Tensor:
        """Returns an action `[...]` or `[..., K]` as `[..., K]`."""
        return choice if self.branched else choice.unsqueeze(-1)

    def from_branches(self, choice: torch.Tensor) -> torch.Tensor:
        """Inverts `to_branches`."""
        return choice if self.branched else choice.squeeze(-1)
