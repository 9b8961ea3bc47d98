"""An environment that costs next to nothing, of the shapes of HalfCheetah-v5: what is left of a step's time is ours."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

FREE = "Free-v0"


class Free(gymnasium.Env):
    """The same observation and reward at every step, which takes `seconds`; episodes of 1,000 steps by its registered limit."""

    # float64 as HalfCheetah's
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (17,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (6,), np.float32)

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._observation = np.random.default_rng(0).normal(size=17)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return self._observation, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._seconds:
            time.sleep(self._seconds)
        return self._observation, 0.5, False, False, {}


if FREE not in gymnasium.registry:
    gymnasium.register(id=FREE, entry_point=Free, max_episode_steps=1000)
