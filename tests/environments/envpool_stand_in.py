"""A module that behaves as envpool 1.2.5 does, where that is not installed. `test_envpool.test_conventions` holds both to it.

Its tasks are `Script-v0` and `DictScript-v0`. Observations are (a number drawn when the episode began, step, the two actions).
Step t of episode e, both from 0, pays `10 e + t + 1`. Environment i terminates after `lengths[i % len(lengths)]` steps.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
from gymnasium import spaces

_DEFAULTS = {
    "num_envs": 1, "batch_size": 1, "num_threads": 0, "max_num_players": 1, "base_path": "", "seed": 42,
    "env_seed": (), "gym_reset_return_info": True, "max_episode_steps": 1000, "lengths": (3,), "draws": 0, "players": 1,
}  # fmt: skip
_DEFAULTS_OF = {
    "Script-v0": {}, "DictScript-v0": {}, "Endless-v0": {"max_episode_steps": 2**31 - 1}, "Chess-v0": {"max_num_players": 2},
}  # fmt: skip


def list_all_envs() -> list[str]:
    return list(_DEFAULTS_OF)


class Spec:
    def __init__(self, task: str, arguments: dict[str, Any]):
        config = {**_DEFAULTS, **_DEFAULTS_OF[task]}
        if unknown := set(arguments) - set(config):
            raise TypeError(f"Config.__new__() got an unexpected keyword argument '{unknown.pop()}'")
        if wrong := [name for name, value in arguments.items() if type(value) is not type(config[name])]:
            raise TypeError(f"__init__(): incompatible constructor arguments: {wrong}")
        self.config = collections.namedtuple("Config", config)(**{**config, **arguments})
        self._dict = task.startswith("Dict")

    @property
    def gymnasium_observation_space(self) -> spaces.Space:
        """Made anew, and with the warning of the original, whenever it is asked for."""
        tiny, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
        bounds = (np.array([0, 0, -1.1, tiny]), np.array([1, 1000, 1.1, most], np.float64))
        whole = spaces.Box(*bounds, dtype=np.float32)
        return spaces.Dict({"all": whole, "step": spaces.Box(tiny, most, (1,), np.float32)}) if self._dict else whole

    @property
    def gymnasium_action_space(self) -> spaces.Space:
        return spaces.Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32))

    def observe(self, rows: np.ndarray) -> Any:
        rows = rows.astype(np.float32)
        return {"all": rows, "step": rows[:, 1:2].copy()} if self._dict else rows


class _Pool:
    def __init__(self, spec: Spec, seeds: list[int]):
        self.spec, self._count = spec, len(seeds)
        self._space: Any = None
        assert all(-(2**31) <= seed < 2**31 for seed in seeds)
        self._streams = [np.random.default_rng(abs(seed)) for seed in seeds]
        self._episode, self._elapsed = np.full(self._count, -1), np.zeros(self._count, dtype=np.int32)
        self._done, self._begun = np.zeros(self._count, dtype=bool), np.zeros(self._count)

    def _begin(self, i: int) -> None:
        self._begun[i], self._done[i] = self._streams[i].random(), False
        self._elapsed[i], self._episode[i] = 0, self._episode[i] + 1

    def reset(self, env_id: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        index = np.arange(self._count) if env_id is None else env_id
        for i in index:
            self._begin(i)
        return self._result(index, np.zeros((len(index), 2)))

    def step(self, action: np.ndarray, env_id: np.ndarray | None = None) -> tuple[Any, ...]:
        index = np.arange(self._count) if env_id is None else env_id
        assert action.shape == (len(index), 2)
        action, reward, config = np.array(action), np.zeros(len(index), dtype=np.float32), self.spec.config
        truncated = np.zeros(len(index), dtype=bool)
        for row, i in enumerate(index):
            if self._done[i]:
                self._begin(i)
                action[row] = 0
                continue
            self._elapsed[i] += 1
            self._streams[i].random(config.draws)
            reward[row] = 10 * self._episode[i] + self._elapsed[i]
            truncated[row] = self._elapsed[i] >= config.max_episode_steps
            self._done[i] = truncated[row] or self._elapsed[i] >= config.lengths[i % len(config.lengths)]
        observation, info = self._result(index, action)
        return observation, reward, self._done[index] & ~truncated, truncated, info

    def _result(self, index: np.ndarray, action: np.ndarray) -> tuple[Any, dict[str, Any]]:
        rows = np.concatenate([self._begun[index, None], self._elapsed[index, None], action], 1)
        self._space = self._space or self.spec.gymnasium_observation_space  # when first needed, with its warning
        return self.spec.observe(rows), {"env_id": index.astype(np.int32), "elapsed_step": self._elapsed[index]}

    def close(self) -> None: ...


def make_spec(task: str, **arguments: Any) -> Spec:
    return Spec(task, arguments)


def make(task: str, env_type: str, seed: list[int], **arguments: Any) -> _Pool:
    assert env_type == "gymnasium" and arguments["num_envs"] == arguments["batch_size"] == len(seed)
    return _Pool(Spec(task, arguments), list(seed))
