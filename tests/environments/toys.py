"""Tiny environments whose every number is known beforehand. Worker processes import this module, so it must not import torch.

Importing registers them (`'tests.environments.toys:taac-test/Counter-v0'` imports it by itself).
"""

from __future__ import annotations

import copy
import ctypes
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

MODULE = "tests.environments.toys"


class Counter(gymnasium.Env):
    """Episodes that follow a script; it observes (episode, step, action[0], action[1]), all 0-based.

    A script is a sequence of episodes, taken in turn: the number of transitions, and how they end: `t` by termination,
    `u` by truncation, `b` by both at once, `n` not at all. An environment seeded with `s` at first follows script
    `s mod number of scripts`; it remembers how many episodes there were, whatever later seeds are. The reward on arriving
    at step k of episode e is `10 e + k`.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 12}

    def __init__(self, scripts: Sequence[Sequence[str]] = (("3t",),), render_mode: str | None = None):
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._scripts, self._script = scripts, scripts[0]
        self._episode, self._step, self._over = -1, 0, True

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        if seed is not None and self._episode < 0:
            self._script = self._scripts[seed % len(self._scripts)]
        self._episode, self._step, self._over = self._episode + 1, 0, False
        return self._observe(np.zeros(2)), {}

    def step(self, action):
        assert not self._over, "stepped after the end of an episode"
        assert self.action_space.contains(action), action
        self._step += 1
        plan = self._script[self._episode % len(self._script)]
        self._over = self._step == int(plan[:-1]) and plan[-1] != "n"
        terminated, truncated = self._over and plan[-1] in "tb", self._over and plan[-1] in "ub"
        return self._observe(action), 10.0 * self._episode + self._step, terminated, truncated, {}

    def _observe(self, action) -> np.ndarray:
        return np.array([self._episode, self._step, *action])

    def render(self):
        return np.full((2, 3, 3), self._step, np.uint8)


class Pair(Counter):
    """A Counter with two rewards: that of `Counter`, and minus the step's number."""

    reward_space = spaces.Box(-np.inf, np.inf, (2,))

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, np.array([reward, -self._step]), *rest


class Goal(Counter):
    """A Counter whose info reports success at the steps in `successes`, and whose reward has parts `near` and `cost`."""

    def __init__(self, scripts: Sequence[Sequence[str]] = (("9n",),), successes: Sequence[int] = ()):
        super().__init__(scripts)
        self._successes = successes

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        info = {"is_success": np.float32(self._step in self._successes), "near": np.float32(reward), "cost": -0.5}
        return observation, reward - 0.5, terminated, truncated, info


class Noise(gymnasium.Env):
    """Random observations, rewards and ends of episodes. The first observation is the first draw of the seed."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        return self.np_random.random(1), {}

    def step(self, action):
        reward = float(self.np_random.normal()) + float(action[0])
        return self.np_random.random(1), reward, bool(self.np_random.random() < 0.2), False, {}


class GlobalNoise(Noise):
    """Draws from the global random numbers of numpy and Python, as no environment should."""

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        return np.random.random(1), {}

    def step(self, action):
        _, reward, terminated, truncated, info = super().step(action)
        return (np.random.random(1) + random.random()) / 2, reward, terminated, truncated, info


class Remembering(Noise):
    """A Noise whose observations shrink with every episode, however it is seeded."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        self.resets += 1
        observation, info = super().reset(seed=seed)
        return observation * 0.9**self.resets, info

    def step(self, action):
        observation, *rest = super().step(action)
        return observation * 0.9**self.resets, *rest


class Sluggish(Noise):
    """A Noise whose steps take a twentieth of a second, and whose episodes do not end."""

    def step(self, action):
        time.sleep(0.05)
        observation, reward, *_, info = super().step(action)
        return observation, reward, False, False, info


class Probe(gymnasium.Env):
    """Observes samples of any space and keeps the actions that reach it in `received`; never ends."""

    def __init__(self, observation_space: spaces.Space | None = None, action_space: spaces.Space | None = None):
        # A copy, because it is seeded: environments may be given one space between them.
        self.observation_space = copy.deepcopy(spaces.Box(-1.0, 1.0, (1,)) if observation_space is None else observation_space)
        self.action_space = spaces.Box(-1.0, 1.0, (1,)) if action_space is None else action_space
        self.received: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.received.append(np.array(action))
        return self.observation_space.sample(), 0.0, False, False, {}


class Masked(gymnasium.Env):
    """Five choices, of which a random one to five are valid at each step: an invalid one ends the episode at once.

    Else it is cut off after 20 steps, or terminates after `length`, where nothing is valid any more. Each agent observes
    five random numbers; its reward is 1 for the valid choice of the greatest, else 0, and their mean is the reward unless
    `own_reward`. At step `forbids_at` nothing is valid, though the episode goes on.
    """

    mistakes = 0  # invalid choices made, by all instances in this process

    def __init__(
        self,
        where: str = "observation",
        agents: int | None = None,
        own_reward: bool = False,
        start: int = 0,
        length: int | None = None,
        forbids_at: int | None = None,
    ):
        self._agents, self._in_info, self._own_reward = agents, where == "info", own_reward
        shape = (5,) if agents is None else (agents, 5)
        numbers = spaces.Box(0.0, 1.0, shape)
        mask = spaces.Box(0, 1, shape, np.int8)
        self.observation_space = numbers if self._in_info else spaces.Dict(numbers=numbers, action_mask=mask)
        if agents is None:
            self.action_space: spaces.Space = spaces.Discrete(5, start=start)
        else:
            self.action_space = spaces.MultiDiscrete([5] * agents, start=[start] * agents)
        if own_reward:
            self.reward_space = spaces.Box(0.0, 1.0, (agents or 1,))
        self._start, self._length, self._forbids_at = start, length, forbids_at

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._t = 0
        return self._observe()

    def _observe(self):
        shape = (self._agents or 1, 5)
        self._numbers = self.np_random.random(shape).astype(np.float32)
        self._mask = self.np_random.random(shape) < self.np_random.random()
        self._mask[np.arange(len(self._mask)), self.np_random.integers(5, size=len(self._mask))] = True
        if self._t in (self._forbids_at, self._length):
            self._mask[:] = False
        numbers, mask = (x if self._agents else x[0] for x in (self._numbers, self._mask.astype(np.int8)))
        return (numbers, {"action_mask": mask}) if self._in_info else ({"numbers": numbers, "action_mask": mask}, {})

    def step(self, action):
        assert self.action_space.contains(action), action
        choice = np.atleast_1d(action) - self._start
        rows = np.arange(len(choice))
        valid = self._mask[rows, choice]
        best = np.where(self._mask, self._numbers, -1).argmax(1)
        reward = (choice == best).astype(np.float64)
        Masked.mistakes += int((~valid).sum())
        self._t += 1
        observation, info = self._observe()
        terminated = not valid.all() or self._t == self._length
        return observation, reward if self._own_reward else reward.mean(), terminated, self._t == 20, info


class TwoOfThree(gymnasium.Env):
    """One state, two valid choices of three, reward 1, cut off after 10 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(one=spaces.Box(0.0, 1.0, (1,)), action_mask=spaces.MultiBinary(3))
        self.action_space = spaces.Discrete(3)

    def _observe(self):
        return {"one": np.ones(1, np.float32), "action_mask": np.array([1, 1, 0], np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action):
        self._step += 1
        return self._observe(), 1.0, False, self._step == 10, {}


class Faulty(gymnasium.Env):
    """The environment seeded with `seed` returns `value` at step `step`, as the reward or an end, or in the observation."""

    def __init__(self, where: str = "reward", value: float = float("nan"), seed: int = 0, step: int = 1):
        self.observation_space = spaces.Dict(
            {"fine": spaces.Box(-1, 1, (2,)), "parts": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2, 2))))}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (1,))
        self._where, self._value, self._seed, self._at = where, value, seed, step
        self._is_faulty, self._step = False, 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._is_faulty, self._step = seed == self._seed, 0
        return self._observe(), {}

    def step(self, action):
        self._step += 1
        reward = self._value if self._now("reward") else 0.0
        ends = [self._value if self._now(name) else False for name in ("terminated", "truncated")]
        return self._observe(), reward, *ends, {}

    def _now(self, where: str) -> bool:
        return self._is_faulty and self._where == where and self._step == self._at

    def _observe(self):
        part = np.zeros((2, 2), np.float32)
        if self._now("observation"):
            part[1, 0] = self._value
        return {"fine": np.zeros(2, np.float32), "parts": (1, part)}


class Fragile(gymnasium.Env):
    """Breaks down at step `at` of an episode, if seeded with a multiple of `modulus`: `times` times, counted in file `log`.

    It raises, hangs, dies or ends as a process, or changes torch's settings.

    It observes (its seed mod 1000, step), gets reward 1 a step, and is never over.
    """

    def __init__(self, how: str = "raise", at: int = 3, log: str = "", times: int = 1, modulus: int = 1):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Box(-1.0, 1.0, (1,))
        self._how, self._at, self._log, self._times, self._modulus = how, at, Path(log), times, modulus
        self._seed = 0

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._seed, self._t = self._seed if seed is None else seed, 0
        return np.array([self._seed % 1000, 0.0]), {}

    def step(self, action):
        self._t += 1
        if self._t == self._at and self._seed % self._modulus == 0:
            before = len(self._log.read_text()) if self._log.exists() else 0
            if before < self._times:
                self._log.write_text("x" * (before + 1))
                if self._how == "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                if self._how == "exit":
                    os._exit(3)
                if self._how == "hang":
                    time.sleep(600)
                if self._how == "hold":  # hangs as C code does that keeps Python's lock
                    ctypes.PyDLL(None).sleep(600)
                if self._how == "sys.exit":
                    sys.exit(0)
                if self._how == "interrupt":
                    raise KeyboardInterrupt
                if self._how == "raise":
                    raise RuntimeError("50% of the simulator is gone, and %d of it")
                import torch  # only here, because a worker process takes seconds of a core for it

                if self._how == "dtype":
                    torch.set_default_dtype(torch.float64)
                else:
                    torch.set_grad_enabled(not torch.is_grad_enabled())
        return np.array([self._seed % 1000, float(self._t)]), 1.0, False, False, {}


class Quits(gymnasium.Env):
    """Calls `sys.exit(0)` when it is `made`, `reset` or `closed`; `dtype`: changes torch's when it is made."""

    def __init__(self, when: str = ""):
        self.observation_space = self.action_space = spaces.Box(-1.0, 1.0, (1,))
        self._when = when
        self._now("made")
        if when == "dtype":
            import torch

            torch.set_default_dtype(torch.float64)

    def _now(self, when: str) -> None:
        if when == self._when:
            sys.exit(0)

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._now("reset")
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def close(self):
        when, self._when = self._when, ""
        if when == "closed":
            sys.exit(0)


class Ledger(gymnasium.Env):
    """Keeps the books itself: primitive steps, and of each episode that ended every action that it was sent.

    Episodes are 5 to 20 steps long, and end by termination or truncation alike. With `choices`, actions are discrete.
    """

    def __init__(self, choices: int | None = None) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (3,))
        self.action_space: spaces.Space = spaces.Discrete(choices) if choices else spaces.Box(-1.0, 1.0, (2,))
        self.steps = 0
        self.episodes: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._actions: list[np.ndarray] = []
        self._length = int(self.np_random.integers(5, 21))
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        action = np.atleast_1d(np.array(action))
        self._actions.append(action)
        over = len(self._actions) == self._length
        if over:
            self.episodes.append(np.stack(self._actions))
        terminated = over and bool(self.np_random.random() < 0.5)
        observation = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return observation, float(action[0]), terminated, over and not terminated, {}


class Offset(gymnasium.Wrapper):
    """Multiplies observations, then adds: wrappers of two kinds do not commute."""

    def __init__(self, env: gymnasium.Env, times: float = 1.0, plus: float = 0.0):
        super().__init__(env)
        self._times, self._plus = times, plus

    def reset(self, **kwargs):
        observation, info = self.env.reset(**kwargs)
        return observation * self._times + self._plus, info

    def step(self, action):
        observation, *rest = self.env.step(action)
        return observation * self._times + self._plus, *rest


def register() -> None:
    """Registers every environment as `taac-test/<class>-v0`, once."""
    for cls in (
        Counter, Pair, Goal, Noise, GlobalNoise, Remembering, Sluggish, Probe, Masked, TwoOfThree, Faulty, Fragile, Quits, Ledger,
    ):  # fmt: skip
        name = f"taac-test/{cls.__name__}-v0"
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=f"{MODULE}:{cls.__name__}")


def env_id(name: str) -> str:
    """The id with the module that registers it: `'tests.environments.toys:taac-test/Counter-v0'`."""
    return f"{MODULE}:taac-test/{name}-v0"


register()
