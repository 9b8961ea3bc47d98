"""Wrappers that gin files name in `create_environment.wrappers`. Worker processes import this module: keep torch out of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gin
import gymnasium
import numpy as np

from taac.errors import TaacError


@gin.configurable
class SuccessEndsEpisode(gymnasium.Wrapper):
    """Sparse reward: the episode terminates on success (`info["is_success"]`) with reward 1; any other reward is 0.

    A time limit inside still truncates. Source: manipulation as published with TAAC (arXiv:2104.06521).

    Raises:
        TaacError: the environment does not tell success.
    """

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        if "is_success" not in info:
            raise TaacError(
                f"SuccessEndsEpisode needs info['is_success'], but the info has {_listed(info)}; for an environment "
                "that does not tell success, bind create_environment.wrappers = ()"
            )
        success = bool(info["is_success"])
        return observation, float(success), terminated or success, truncated, info


@gin.configurable
class SplitReward(gymnasium.Wrapper):
    """The reward as a vector of its parts, each from `info`: `r_d = info[keys[d]]`, where `sum_d r_d = r`.

    Args:
        env: its reward is a scalar.
        keys: of the parts, `("reward_forward", "reward_ctrl")`; MuJoCo's environments call theirs `reward_...`.

    Raises:
        TaacError: no keys; a part that is not in the info; parts that do not add up to the reward.
    """

    def __init__(self, env: gymnasium.Env, keys: Sequence[str] = gin.REQUIRED):
        super().__init__(env)
        if isinstance(keys, str) or not keys:
            raise TaacError(f"SplitReward.keys must be a sequence of one or more keys of the info, got {keys!r}")
        self.keys = tuple(keys)
        self.reward_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(self.keys),), np.float64)

    def step(self, action: Any) -> tuple[Any, np.ndarray, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        missing = [key for key in self.keys if key not in info]
        if missing:
            raise TaacError(f"SplitReward.keys: the info has no {', '.join(missing)}; it has {_listed(info)}")
        parts = np.array([info[key] for key in self.keys], dtype=np.float64)
        # Some parts are float32. Not finite is not ours to refuse: that is done where environment and step are known.
        scale = np.abs(parts).sum()
        if np.isfinite(scale) and np.isfinite(reward) and abs(parts.sum() - reward) > 1e-5 * max(1.0, scale):
            raise TaacError(
                f"the parts {dict(zip(self.keys, parts.tolist()))} add up to {parts.sum():g}, but the reward is "
                f"{float(reward):g}; SplitReward.keys must name all parts of it; the info has {_listed(info)}"
            )
        return observation, parts, terminated, truncated, info


def _listed(info: dict[str, Any]) -> str:
    return ", ".join(sorted(info)) or "nothing"
