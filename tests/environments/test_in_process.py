"""Environments in this process are stepped as Gymnasium's own vector environment steps them."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from taac.environments.create import InProcess

SPACES = {
    "array": spaces.Box(-9, 9, (2,), np.float32),
    "image": spaces.Box(0, 255, (2, 3, 1), np.uint8),
    "choice": spaces.Discrete(9),
    "nested": spaces.Dict({"a": spaces.Box(-9, 9, (3,), np.float64), "b": spaces.Tuple([spaces.Discrete(9)])}),
}


class Scripted(gymnasium.Env):
    """Episodes of 2, 3 or 4 steps, terminated and truncated in turn; the third observation is of another type."""

    def __init__(self, number: int, observation: str, action: str):
        self.observation_space, self.action_space = SPACES[observation], SPACES[action]
        self.observation_space.seed(number)
        self._number = self._step = self._total = 0
        self._length = 2 + number

    def _observe(self):
        self._total += 1
        seen = self.observation_space.sample()
        return np.abs(seen).astype(np.uint8) if self._total == 3 and isinstance(seen, np.ndarray) else seen

    def reset(self, *, seed=None, options=None):
        self._number, self._step = self._number + 1, 0
        return self._observe(), {"begun": self._number}

    def step(self, action):
        self._step += 1
        ends = self._step == self._length
        info = {"acted": str(action)} if self._step % 2 else {}
        return self._observe(), np.float64(self._step), ends and self._number % 2 == 0, ends and self._number % 2, info


def copied(values):
    """Values that a later step does not write over, and that `==` compares."""
    if isinstance(values, dict):
        return {key: copied(value) for key, value in values.items()}
    if isinstance(values, tuple):
        return [copied(value) for value in values]
    return (str(values.dtype), values.tolist())


@pytest.mark.parametrize("observation, action", [(o, a) for o in SPACES for a in ("array", "choice", "nested")])
def test_steps_are_those_of_gymnasium(observation, action):
    makers = [functools.partial(Scripted, number, observation, action) for number in range(3)]
    found = []
    for kind in (InProcess, SyncVectorEnv):
        vector = kind(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        vector.action_space.seed(5)
        steps, kept = [copied(vector.reset(seed=1))], []
        for _ in range(15):
            kept.append(vector.step(vector.action_space.sample()))
            steps.append(copied(kept[-1]))
        assert all(copied(later[1:4]) == step[1:4] for later, step in zip(kept, steps[1:]))  # all but observations are copies
        found.append(steps)
    assert found[0] == found[1]
    assert any(any(step[2][1]) for step in found[0][1:]) and any(any(step[3][1]) for step in found[0][1:])


def test_an_observation_of_another_shape_is_refused():
    class Wrong(Scripted):
        def step(self, action):
            return np.float32([1.0]), 0.0, False, False, {}

    vector = InProcess([functools.partial(Wrong, 0, "array", "array")], copy=False)
    vector.reset(seed=0)
    with pytest.raises(ValueError, match="shape"):  # numpy would write one number into all places
        vector.step(np.zeros((1, 2), np.float32))
