"""Wrappers for `create_environment.wrappers`. Worker processes import this module, so it must not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gin
import gymnasium
import numpy as np

from taac.environments import single
from taac.errors import TaacError


@gin.configurable
class SuccessEndsEpisode(gymnasium.Wrapper):
    """Sparse reward: the episode terminates on success (`info["is_success"]`) with reward 1; every other reward is 0.

    The environment's own time limit still truncates. Source: manipulation as published with TAAC (arXiv:2104.06521).
    """

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        if "is_success" not in info:
            raise TaacError(
                f"SuccessEndsEpisode needs info['is_success'], but the info has {_keys(info)}; for an environment "
                "that does not report success, bind create_environment.wrappers = ()"
            )
        success = bool(info["is_success"])
        return observation, float(success), terminated or success, truncated, info

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """Returns 1 where the goal is reached, else 0, `[N]`: an inner reward of 0 instead of -1, as in Gymnasium-Robotics."""
        inner = np.asarray(self.env.get_wrapper_attr("compute_reward")(achieved_goal, desired_goal, info))
        if not np.isin(inner, (-1.0, 0.0)).all():
            raise TaacError(
                "SuccessEndsEpisode: hindsight needs an inner compute_reward of -1, or 0 on success, got "
                f"{inner[~np.isin(inner, (-1.0, 0.0))].flat[0]:g}; make the environment with a sparse reward"
            )
        return (inner == 0).astype(np.float32)

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """Returns whether the goal is reached, `[N]`."""
        return self.compute_reward(achieved_goal, desired_goal, info) == 1


@gin.configurable
class SplitReward(gymnasium.Wrapper):
    """Turns a scalar reward into a vector of parts from `info`: `r_d = info[keys[d]]`, where `sum_d r_d = r`.

    Args:
        keys: keys of the parts, such as `("reward_forward", "reward_ctrl")`; MuJoCo's keys begin with `reward_`.

    Raises:
        TaacError: there are no keys, a part is missing in the info or is no number, or the parts do not add up to the reward.
    """

    def __init__(self, env: gymnasium.Env, keys: Sequence[str] = gin.REQUIRED):
        super().__init__(env)
        if isinstance(keys, str) or not keys:
            raise TaacError(f"SplitReward.keys must be a sequence of one or more keys of the info, got {keys!r}")
        self.keys = tuple(keys)
        self.reward_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(self.keys),), np.float64)

    def step(self, action: Any) -> tuple[Any, np.ndarray, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if missing := [key for key in self.keys if key not in info]:
            raise TaacError(f"SplitReward.keys: the info has no {', '.join(missing)}; it has {_keys(info)}")
        for key in self.keys:
            if np.ndim(info[key]):
                raise TaacError(
                    f"SplitReward.keys: info[{key!r}] has shape {list(np.shape(info[key]))}, expected a number; a wrapper "
                    "of your own makes a vector the reward, with a reward_space, a Box of rank 1"
                )
        parts = np.array([info[key] for key in self.keys], dtype=np.float64)
        # The tolerance is for float32 parts. `StepChecks` reports values that are not finite, with environment and step.
        scale = np.abs(parts).sum()
        if np.isfinite(scale) and np.isfinite(reward) and abs(parts.sum() - reward) > 1e-5 * max(1.0, scale):
            raise TaacError(
                f"the parts {dict(zip(self.keys, parts.tolist()))} add up to {parts.sum():g}, but the reward is "
                f"{float(reward):g}; SplitReward.keys must name all parts of it; the info has {_keys(info)}"
            )
        return observation, parts, terminated, truncated, info


@gin.configurable
class ActionMaskFromInfo(gymnasium.Wrapper):
    """Copies the mask of valid choices from `info[key]` into the observation, as the leaf `action_mask`.

    A Dict observation gets one more leaf; any other becomes `{"observation": ..., "action_mask": ...}`. The replay buffer
    therefore stores the mask together with its observation.

    Args:
        env: an environment with Discrete actions, or MultiDiscrete with the same number of choices for each of N agents or
            branches.
        key: key of the mask in the info of `reset` and `step`: numbers or bools `[(N,) C]`, 0 where a choice is invalid.
    """

    def __init__(self, env: gymnasium.Env, key: str = "action_mask"):
        super().__init__(env)
        space = env.action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            self._shape: tuple[int, ...] = (int(space.n),)
        elif isinstance(space, gymnasium.spaces.MultiDiscrete) and len(np.unique(space.nvec)) == space.nvec.ndim == 1:
            self._shape = (*space.nvec.shape, int(space.nvec[0]))
        else:
            raise TaacError(
                "ActionMaskFromInfo needs Discrete actions, or MultiDiscrete ones with equally many choices for each entry; "
                f"the action space is {space}"
            )
        mask = gymnasium.spaces.MultiBinary(self._shape)
        self.observation_space = single.space_with(env.observation_space, "action_mask", mask)  # `specs.ACTION_MASK`
        self._key = key

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._masked(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._masked(observation, info), reward, terminated, truncated, info

    def _masked(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        if self._key not in info:
            raise TaacError(f"ActionMaskFromInfo.key: the info has no '{self._key}'; it has {_keys(info)}")
        mask = np.asarray(info[self._key]) != 0
        if mask.shape != self._shape:
            raise TaacError(
                f"ActionMaskFromInfo: info['{self._key}'] must have shape {list(self._shape)}, one entry a choice, got "
                f"{list(mask.shape)}"
            )
        return single.observation_with(self.env.observation_space, observation, "action_mask", mask.astype(np.int8))


def _keys(info: dict[str, Any]) -> str:
    return ", ".join(sorted(info)) or "nothing"
