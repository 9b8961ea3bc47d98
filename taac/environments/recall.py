"""A minimal task that needs memory. Importing this module registers it as `taac.environments.recall:taac/Recall-v0`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class Recall(gymnasium.Env):
    """Shows a cue of -1 or 1 at the first of `length` steps only. At the last `recalled` steps the action must equal the cue.

    The observation is (cue or 0, fraction of the episode that has passed). The reward is `1 - (action - cue)^2` at the
    last `recalled` steps and 0 before. The best policy without memory plays 0, with an expected return of 0. A policy
    that remembers the cue earns a return of `recalled`.
    """

    def __init__(self, length: int = 10, recalled: int = 5):
        if not 1 <= recalled < length:
            raise ValueError(f"recalled must be 1 or more and below length {length}, got {recalled}")
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.length, self.recalled = length, recalled

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._cue, self._step = float(self.np_random.choice([-1.0, 1.0])), 0
        return np.array([self._cue, 0.0], dtype=np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Pays `1 - (action - cue)^2` on the last `recalled` steps of the episode, and 0 before."""
        counts = self._step >= self.length - self.recalled
        reward = 1.0 - (float(action[0]) - self._cue) ** 2 if counts else 0.0
        self._step += 1
        return np.array([0.0, self._step / self.length], dtype=np.float32), reward, self._step == self.length, False, {}


gymnasium.register("taac/Recall-v0", Recall)
