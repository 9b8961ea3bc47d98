"""Where the environments are: how they were seeded and what was done since, so that they can be brought there again.

A simulator cannot be saved, but it can be led: seeded alike and given the same actions, it is in the same state, bit for
bit. No policy and no gradient step is needed for it, so it takes seconds where training took an hour.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from taac import nest, specs
from taac.data_structures import Nest, TimeStep
from taac.environments.vector_environment import VectorEnvironment
from taac.files import Damaged


class Elsewhere(Exception):
    """The environments are not where the same seed and actions had led them."""


class ActionLog:
    """The actions taken since the environments were seeded.

    Args:
        environment: that they were taken in.
    """

    def __init__(self, environment: VectorEnvironment):
        self._blank = specs.zeros(environment.action_spec, environment.num_envs)
        self._like: list[torch.Tensor] = nest.flatten(self._blank)
        self._held = [bytearray() for _ in self._like]  # a tensor for each would take ten times the memory

    def append(self, action: Nest) -> None:
        """Adds the actions of one step, leaves `[B, ...]`."""
        for held, like, leaf in zip(self._held, self._like, nest.flatten(action)):
            held += leaf.detach().to("cpu", like.dtype).numpy().tobytes()

    def state_dict(self) -> list[torch.Tensor]:
        """All actions, leaves `[n, B, ...]`."""
        return [
            torch.from_numpy(np.frombuffer(bytes(held), like.numpy().dtype).copy()).reshape(-1, *like.shape)
            for held, like in zip(self._held, self._like)
        ]

    def retrace(
        self, environment: VectorEnvironment, start: TimeStep, actions: list[torch.Tensor], reached: list[torch.Tensor]
    ) -> TimeStep:
        """Takes saved actions in an environment that has just been seeded as it was then; gives where they led.

        Args:
            start: what its reset gave; where there are no actions, that is where they led.
            reached: leaves of the time step that they led to.

        Raises:
            Elsewhere: they lead to another time step now.
            Damaged: they are no actions of this environment.
        """
        if not actions:
            raise Damaged("it holds no actions")
        given = [(a.dtype, list(a.shape[1:]), len(a)) for a in actions]
        expected = [(like.dtype, list(like.shape), len(actions[0])) for like in self._like]
        if given != expected:
            raise Damaged(f"it holds actions of another kind: {given}, expected {expected}")
        time_step = start
        for step in range(len(actions[0])):
            action = nest.pack_like(self._blank, [a[step] for a in actions])
            time_step = environment.step(action)
            self.append(action)
        leaves = nest.flatten(time_step)
        kinds = [(leaf.dtype, leaf.shape) for leaf in leaves]
        if kinds != [(leaf.dtype, leaf.shape) for leaf in reached]:
            raise Damaged("it holds a time step of another kind")
        if not all(torch.equal(a.cpu(), b) for a, b in zip(leaves, reached)):
            raise Elsewhere(
                f"'{environment.name}' did not come to the same place with the same seed and actions: it is not deterministic"
            )
        return time_step


def numpy_state() -> dict[str, Any]:
    """numpy's global random state, which some environments draw from, as plain values and a tensor."""
    state: Any = np.random.get_state(legacy=False)
    inner = state["state"]
    return {
        "key": torch.from_numpy(inner["key"].astype(np.int64)),
        "pos": int(inner["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def set_numpy_state(state: dict[str, Any]) -> None:
    inner = {"key": state["key"].numpy().astype(np.uint32), "pos": state["pos"]}
    np.random.set_state(
        {"bit_generator": "MT19937", "state": inner, "has_gauss": state["has_gauss"], "gauss": state["gauss"]}
    )
