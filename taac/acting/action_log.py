"""The actions of the running episodes, from which a resumed run restores its environments.

The state of a simulator cannot be saved. But a simulator with the same seed and the same actions reaches the same state, bit
for bit. Replaying needs no policy and no gradient steps, so it takes seconds for what took an hour of training.
"""

from __future__ import annotations

import numpy as np
import torch

from taac import nest, specs
from taac.data_structures import Nest, TimeStep
from taac.environments.vector_environment import VectorEnvironment
from taac.runs.files import Damaged


class ReplayMismatch(Exception):
    """The same seeds and actions led the environments to a different state than before."""


class ActionLog:
    """Stores, for each environment, the actions of its running episode."""

    def __init__(self, environment: VectorEnvironment):
        self._blank = specs.zeros(environment.action_spec, environment.num_envs)
        self._like: list[torch.Tensor] = nest.flatten(self._blank)
        self._dtypes = [like.numpy().dtype for like in self._like]
        self._held = [bytearray() for _ in self._like]  # a tensor per step would take ten times the memory
        self._begun = np.zeros(environment.num_envs, dtype=np.int64)  # index of each episode's first step
        self._steps = 0  # steps stored

    def append(self, action: Nest, last: np.ndarray) -> None:
        """Stores the actions of one step, leaves `[B, ...]`, tensors on the CPU or arrays.

        Where `last` `[B]` is true, the environment ignored the action and a new episode began.
        """
        for held, dtype, leaf in zip(self._held, self._dtypes, nest.flatten(action)):
            held += np.asarray(leaf, dtype).tobytes()
        self._steps += 1
        if np.count_nonzero(last):
            self._begun[last] = self._steps
            before = int(self._begun.min())
            if 2 * before >= self._steps:  # the steps before the oldest running episode make up half of the log or more
                for held, like in zip(self._held, self._like):
                    del held[: before * like.numpy().nbytes]
                self._begun -= before
                self._steps -= before

    def state_dict(self) -> list[list[torch.Tensor]]:
        """Returns, for each environment, the actions of its running episode, leaves `[n_i, ...]`."""
        whole = [
            torch.from_numpy(np.frombuffer(bytes(held), like.numpy().dtype).copy()).reshape(-1, *like.shape)
            for held, like in zip(self._held, self._like)
        ]
        return [[leaf[begun:, i].clone() for leaf in whole] for i, begun in enumerate(self._begun)]

    def load_state_dict(self, state: list[list[torch.Tensor]]) -> None:
        """Restores `state_dict()`. Raises `Damaged` if the actions do not fit this environment."""
        kinds = [(like.dtype, list(like.shape[1:])) for like in self._like]
        given = [[(leaf.dtype, list(leaf.shape[1:])) for leaf in of_one] for of_one in state]
        if given != [kinds] * len(self._begun):
            raise Damaged(f"it holds actions of another kind: {given[:1]} of {len(given)}, expected {kinds}")
        counts = [{len(leaf) for leaf in of_one} for of_one in state]
        if any(len(lengths) != 1 for lengths in counts):
            raise Damaged(f"it holds different numbers of actions for parts of one: {counts}")
        lengths = np.array([lengths.pop() for lengths in counts])
        self._steps = int(lengths.max())
        self._begun = self._steps - lengths
        for number, (held, like) in enumerate(zip(self._held, self._like)):
            whole = torch.zeros(self._steps, *like.shape, dtype=like.dtype)
            for i, of_one in enumerate(state):
                whole[self._begun[i] :, i] = of_one[number]
            held[:] = whole.numpy().tobytes()

    def replay_actions(
        self, environment: VectorEnvironment, seed: int, episodes: np.ndarray, reached: list[torch.Tensor]
    ) -> TimeStep:
        """Repeats the stored actions in environments with the same seeds; returns the time step reached.

        Args:
            episodes: `[B]`, numbers of the running episodes.
            reached: leaves of the time step that the actions led to before.

        Raises:
            ReplayMismatch: they now lead to a different time step.
            EnvironmentFailed: an environment fails on the way.
        """
        actions = [nest.pack_like(self._blank, of_one) for of_one in self.state_dict()]
        leaves = nest.flatten(time_step := environment.replay(seed, episodes, actions))
        if not all(torch.equal(a.cpu(), b) for a, b in zip(leaves, reached)):
            raise ReplayMismatch(
                f"'{environment.name}' reached another state with the same seeds and actions: it is not deterministic, "
                "it is not the environment that the run had, or it remembers earlier episodes (then bind "
                "create_environment.remake = True, with engine = 'gymnasium')"
            )
        return time_step
