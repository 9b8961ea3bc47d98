"""Agents in one environment, and branches of one action. Importing registers them, see `TEAM` and `ALONE`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from taac.environments.recall import Recall

TEAM, ALONE, CALLED = (f"tests.environments.team:taac-test/{name}-v0" for name in ("Team", "Alone", "Called"))


class Team(gymnasium.Env):
    """Each agent observes a number, and is to answer it: 20 steps.

    An agent's reward is `1 - (a/2 - x)^2` of its action a in [-2, 2] (`kind="box"`); with `kind="discrete"` and
    `kind="branches"`, the fraction of choices that are right: of 2 and 3 choices, that which the number's sign, and its third
    of the range, tell. The reward is the mean over present agents, or one a agent with `own_reward`.

    With `comes_and_goes` agents are absent at random, never all of them. `mistakes` counts actions of absent agents that are
    not neutral. With `global_state` a coin is thrown at each step, which that key alone shows, and the next reward is 3 higher
    or lower by it.
    """

    mistakes = 0  # of all instances in this process

    def __init__(
        self,
        agents: int = 3,
        kind: str = "box",
        own_reward: bool = False,
        comes_and_goes: bool = False,
        global_state: bool = False,
    ):
        self._agents, self._kind, self._own, self._moves = agents, kind, own_reward, comes_and_goes
        parts: dict[str, spaces.Space] = {"x": spaces.Box(-10.0, 10.0, (agents, 1))}
        if comes_and_goes:
            parts["agent_mask"] = spaces.MultiBinary(agents)
        if global_state:
            parts["global_state"] = spaces.Box(-1.0, 1.0, (1,))
        self.observation_space = spaces.Dict(parts)
        if kind == "box":
            self.action_space: spaces.Space = spaces.Box(-2.0, 2.0, (agents, 1))
        elif kind == "discrete":
            self.action_space = spaces.MultiDiscrete([2] * agents)
        else:
            self.action_space = spaces.MultiDiscrete(np.array([[2, 3]] * agents))
        if own_reward:
            self.reward_space = spaces.Box(-np.inf, np.inf, (agents,))

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._t = 0
        self._present = np.ones(self._agents, dtype=bool)
        return self._observe(), {}

    def _observe(self):
        self._x = self.np_random.uniform(-1, 1, (self._agents, 1)).astype(np.float32)
        self._coin = self.np_random.choice([-1.0, 1.0], 1).astype(np.float32)
        if self._moves and self._t:
            self._present ^= self.np_random.random(self._agents) < 0.3
            self._present[self.np_random.integers(self._agents)] = True
        whole = {"x": self._x, "agent_mask": self._present.astype(np.int8), "global_state": self._coin}
        return {key: whole[key].copy() for key in self.observation_space.spaces}

    def step(self, action):
        assert self.action_space.contains(action), action
        Team.mistakes += int((action[~self._present] != 0).sum())
        if self._kind == "box":
            each = 1 - np.square(action[:, 0] / 2 - self._x[:, 0])
        elif self._kind == "discrete":
            each = (action == (self._x[:, 0] > 0)).astype(float)
        else:
            third = np.digitize(self._x[:, 0], [-1 / 3, 1 / 3])
            each = ((action[:, 0] == (self._x[:, 0] > 0)) + (action[:, 1] == third).astype(float)) / 2
        if "global_state" in self.observation_space.spaces:
            each = each + 3 * self._coin[0]
        each = np.where(self._present, each, 0.0)
        mean = each.sum() / self._present.sum()
        self._t += 1
        return self._observe(), each if self._own else float(mean), False, self._t == 20, {}


class Alone(gymnasium.Env):
    """The one agent of a team of one, that chooses in branches of 2 and 3; `mask` forbids the last choice of each."""

    def __init__(self, mask: bool = False):
        self._team = Team(1, "branches")
        parts: dict[str, spaces.Space] = {"x": spaces.Box(-10.0, 10.0, (1,))}
        if mask:
            parts["action_mask"] = spaces.MultiBinary(5)
        self.observation_space, self.action_space = spaces.Dict(parts), spaces.MultiDiscrete([2, 3])

    def _alone(self, observation):
        whole = {"x": observation["x"][0], "action_mask": np.array([1, 0, 1, 1, 0], dtype=np.int8)}
        return {key: whole[key] for key in self.observation_space.spaces}

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        observation, info = self._team.reset(seed=seed)
        return self._alone(observation), info

    def step(self, action):
        assert "action_mask" not in self.observation_space.spaces or (action[0] == 0 and action[1] < 2), action
        observation, *rest = self._team.step(action[None])
        return self._alone(observation), *rest


class Called(gymnasium.ActionWrapper):
    """The task of remembering a cue, which two choices name: each right one is worth 1, each wrong one -3."""

    def __init__(self, length: int = 5, recalled: int = 2):
        super().__init__(Recall(length, recalled))
        self.action_space = spaces.Discrete(2)

    def action(self, action):
        return np.array([2.0 * action - 1.0], dtype=np.float32)


for cls in (Team, Alone, Called):
    if f"taac-test/{cls.__name__}-v0" not in gymnasium.registry:
        gymnasium.register(f"taac-test/{cls.__name__}-v0", f"tests.environments.team:{cls.__name__}")
