"""Checks of what a vector environment returns at each step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from taac import nest, specs
from taac.data_structures import Nest
from taac.errors import DivergedError, NotFiniteError, TaacError

_GREATEST = float(np.finfo(np.float32).max)


class StepChecks:
    """Raises errors for rewards and observations, numpy arrays, that training cannot use.

    Args:
        name: returns the environment's name.
    """

    def __init__(self, name: Callable[[], str], num_envs: int, observation_spec: Nest, action_spec: Nest):
        self._name, self._num_envs, self._action_spec = name, num_envs, action_spec
        self._categorical = {
            path: (np.asarray(spec.minimum), np.asarray(spec.maximum))
            for path, spec in nest.flatten_with_path(observation_spec)
            if spec.is_categorical
        }
        self._paths = [path for path, _ in nest.flatten_with_path(observation_spec)]
        self._masked = isinstance(observation_spec, dict) and specs.ACTION_MASK in observation_spec

    def reward(self, reward: np.ndarray, action: Nest, step: int) -> None:
        """Checks that rewards `[B]` or `[B, D]` are finite as float32.

        Args:
            action: `[B, ...]`, the actions before them.
            step: the number of steps since reset.

        Raises:
            NotFiniteError: one is not; DivergedError if the action before it is not finite either.
        """
        fits = np.abs(reward) <= _GREATEST  # False for NaN, too
        if np.count_nonzero(fits) < fits.size:  # in a third of the time of `all`
            self._refuse("a reward", reward, ~fits.reshape(self._num_envs, -1).all(1), action, step)

    def observation(self, observation: Nest, action: Nest, terminated: np.ndarray, step: int) -> None:
        """Checks that observations `[B, ...]` are finite, that categorical ones are in range, and that masks allow a choice.

        Args:
            terminated: `[B]` bool, where the episode terminated: there a mask may forbid every choice.

        Raises:
            TaacError: one is out of range, or allows no choice. Otherwise as `reward`.
        """
        if self._masked:
            self._check_mask(observation, terminated, step)
        for path, leaf in zip(self._paths, nest.flatten(observation)):
            spec = self._categorical.get(path)
            if spec is not None and not bool(((leaf >= spec[0]) & (leaf <= spec[1])).all()):
                raise TaacError(
                    f"environment '{self._name()}' returned an observation '{path}' outside its space at step {step} after "
                    f"reset: {leaf.tolist()}, expected {spec[0].tolist()} to {spec[1].tolist()}"
                )
            if leaf.dtype == np.float32:
                finite = np.isfinite(leaf)
                if np.count_nonzero(finite) < finite.size:
                    where = ~finite.reshape(self._num_envs, -1).all(1)
                    self._refuse(f"an observation '{path}'" if path else "an observation", leaf, where, action, step)

    def _check_mask(self, observation: Nest, terminated: np.ndarray, step: int) -> None:
        """Requires a valid choice in every branch of every present agent, unless the episode terminated."""
        seen = nest.map_structure(torch.from_numpy, observation)
        forbids = specs.forbids_acting(seen, self._action_spec).numpy() & ~terminated
        if forbids.any():
            index, mask = int(np.flatnonzero(forbids)[0]), observation[specs.ACTION_MASK]
            raise TaacError(
                f"environment '{self._name()}' (number {index} of {self._num_envs}) returned an '{specs.ACTION_MASK}' that "
                f"forbids every choice at step {step} after reset: {mask[index].tolist()}; an episode in which no choice is "
                "possible must terminate, and an agent or a branch that has nothing to do needs a choice that does nothing"
            )

    def _refuse(self, what: str, values: np.ndarray, bad: np.ndarray, action: Nest, step: int) -> None:
        index = int(np.flatnonzero(bad)[0])
        last_action = nest.map_structure(lambda a: a[index].tolist(), action)
        note = " (too large for float32)" if np.isfinite(values[index]).all() else ""
        if what == "a reward" and np.isnan(values[index]).any():
            note = " (or None)"  # of which numpy makes NaN
        message = (
            f"environment '{self._name()}' (number {index} of {self._num_envs}) returned {what} that is not finite at step "
            f"{step} after reset: {values[index]}{note}; the action before it, in [-1, 1], was {last_action}. "
        )
        evidence = {
            "given": torch.as_tensor(np.array(values)),
            **{f"action/{p}": torch.as_tensor(a) for p, a in nest.flatten_with_path(action)},
        }
        if not all(np.isfinite(leaf[index]).all() for leaf in nest.flatten(action)):
            raise DivergedError(
                f"{message}Training has diverged: try a lower learning rate, or rewards that are clipped or normalised",
                evidence,
            )
        raise NotFiniteError(
            f"{message}Training on it would corrupt every network: fix the environment, or clip the value in a wrapper",
            evidence,
        )
