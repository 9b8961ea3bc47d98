"""Durations as actions of any continuous method. Worker processes import this module, so it must not import torch."""

from __future__ import annotations

import math
from typing import Any

import gin
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from taac.environments import single
from taac.errors import TaacError


@gin.configurable(denylist=["env", "num_steps", "gamma"])
class DurationCoordinate(single.ActionRepeat, RecordConstructorArgs):
    """An `ActionRepeat` whose action `(a, x)` has one number more, x in [-1, 1], which says for how many steps a is held.

    D = `num_steps` equal parts of [-1, 1] stand for 1 to D steps: `k = min(D, 1 + floor(D (x + 1) / 2))`, or fewer if the episode
    ends. The reward to learn from is

        sum_{i<k} gamma^i r_i - c - c' [a is not the action before it in the episode],

    and the next value is discounted as `ActionRepeat` says. Returns that are reported contain no price. With D = 1 there is no x.

    Args:
        env: an environment with a Box of floats, of rank 1, as actions; with a number as reward, unless both prices are 0.
        num_steps, gamma: `action_repeat` of `create_environment`, and the discount inside.
        decision_price: c >= 0, in units of the environment's reward.
        change_price: c' >= 0. No observation contains the action before, on which this price depends.
        observe_time_left: adds the fraction of the time limit that is left, as the part `time_left` `[1]` of a Dict observation,
            if the environment has a time limit. How long an action can last then follows from the observation.

    Raises:
        TaacError: another action space, a price out of range, or a price of a vector reward.

    Source: Treven et al., TaCoS (arXiv:2406.01163); Sukhija et al., TARC (arXiv:2510.23176).
    """

    def __init__(
        self,
        env: gymnasium.Env,
        num_steps: int,
        gamma: float,
        decision_price: float = 0.0,
        change_price: float = 0.0,
        observe_time_left: bool = False,
    ):
        RecordConstructorArgs.__init__(
            self, num_steps=num_steps, gamma=gamma, decision_price=decision_price, change_price=change_price,
            observe_time_left=observe_time_left,
        )  # fmt: skip
        super().__init__(env, num_steps, gamma)
        for name, price in (("decision_price", decision_price), ("change_price", change_price)):
            if not 0 <= price < math.inf:
                raise TaacError(f"DurationCoordinate.{name} must be 0 or more, and finite, got {price}")
            if price and single.reward_dim(env) is not None:
                raise TaacError(f"DurationCoordinate.{name} = {price} needs a number as reward, and this one is a vector: bind 0")
        self._decision_price, self._change_price = decision_price, change_price
        box = env.action_space
        if not (isinstance(box, spaces.Box) and len(box.shape) == 1 and np.issubdtype(box.dtype, np.floating)):
            raise TaacError(f"DurationCoordinate needs a Box of floats, of rank 1, as action space, got {box}")
        self.duration_coordinate = num_steps > 1
        if self.duration_coordinate:
            low, high = (np.append(bound, x).astype(box.dtype) for bound, x in ((box.low, -1), (box.high, 1)))
            self.action_space = spaces.Box(low, high, dtype=box.dtype.type)
        self._limit = single.time_limit(env) if observe_time_left else None
        if self._limit is not None:
            self.observation_space = single.space_with(env.observation_space, "time_left", spaces.Box(0.0, 1.0, (1,)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._before: np.ndarray | None = None
        self._taken = 0
        return self._observed(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        num_steps = 1
        if self.duration_coordinate:
            action, x = action[:-1], float(action[-1])
            if x > -1:  # false for NaN, which the action itself shows
                num_steps = min(self.num_steps, 1 + math.floor(self.num_steps * (x + 1) / 2))
        changed = self._before is not None and not np.array_equal(action, self._before)
        self._before = np.array(action)
        observation, reward, terminated, truncated, info = self._repeat(action, num_steps)
        self._taken += info["taac_duration"]
        price = self._decision_price + self._change_price * changed
        return self._observed(observation), reward - price, terminated, truncated, info

    def _observed(self, observation: Any) -> Any:
        if self._limit is None:
            return observation
        left = np.array([max(0.0, 1 - self._taken / self._limit)], np.float32)
        return single.observation_with(self.env.observation_space, observation, "time_left", left)
