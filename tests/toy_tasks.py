"""Tiny tasks with known optima. Importing this module registers them with Gymnasium."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import gymnasium
import numpy as np


class Countdown(gymnasium.Env):
    """Reward 1 at every step, for `length` steps; the observation says how many are left.

    With `one_state` it never changes. The end is a termination, or a truncation with `truncate`.
    """

    def __init__(self, length: int = 4, one_state: bool = False, truncate: bool = False):
        self.observation_space = gymnasium.spaces.Discrete(length + 1)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        self.length, self.one_state, self.truncate = length, one_state, truncate

    def _observation(self):
        return 0 if self.one_state else self.length - self._t

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._t = 0
        return self._observation(), {}

    def step(self, action):
        self._t += 1
        over = self._t >= self.length
        return self._observation(), 1.0, over and not self.truncate, over and self.truncate, {}


class PointMass(gymnasium.Env):
    """A point on a line, moved by at most 0.1 a step; the reward is minus its distance from 0, over 30 steps.

    From a start at distance d the best return is -(d-0.1) - (d-0.2) - ... - 0.
    """

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-4.0, 4.0, (1,))
        self.action_space = gymnasium.spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._x = self.np_random.choice([-1.0, 1.0]) * self.np_random.uniform(0.7, 1.0)
        self._t = 0
        return np.array([self._x], dtype=np.float32), {}

    def step(self, action):
        self._t += 1
        self._x += 0.05 * float(action[0])
        return np.array([self._x], dtype=np.float32), -abs(self._x), False, self._t >= 30, {}


gymnasium.register("taac-test/Countdown-v0", Countdown)
gymnasium.register("taac-test/PointMass-v0", PointMass)


class Unbounded(PointMass):
    """A point whose actions have no bounds."""

    def __init__(self):
        super().__init__()
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))


class BreaksDown(PointMass):
    """A point whose rewards become NaN after some hundred steps."""

    steps = 0

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        BreaksDown.steps += 1
        return observation, float("nan") if BreaksDown.steps > 100 else reward, terminated, truncated, info


gymnasium.register("taac-test/Unbounded-v0", Unbounded)
gymnasium.register("taac-test/BreaksDown-v0", BreaksDown)


class TwoRewards(PointMass):
    """A point with the reward split in two: minus the distance, and a bonus of 1 that is worth nothing."""

    reward_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, np.array([reward, 1.0]), terminated, truncated, info


gymnasium.register("taac-test/TwoRewards-v0", TwoRewards)


class Camera(PointMass):
    """A point seen by a camera, with its speed and a clock beside the picture; actions in [-2, 5].

    As `floats`, the numbers of the picture lie in [0, `floats`].
    """

    def __init__(self, floats=0):
        super().__init__()
        spaces = gymnasium.spaces
        self.action_space, self._floats = spaces.Box(-2.0, 5.0, (1,)), floats
        self.observation_space = spaces.Dict(
            camera=spaces.Box(0, floats, (12, 10, 3)) if floats else spaces.Box(0, 255, (12, 10, 3), np.uint8),
            rest=spaces.Tuple((spaces.Box(-np.inf, np.inf, (2,), np.float64), spaces.Discrete(31, start=5))),
        )

    def _seen(self):
        picture = np.zeros((12, 10, 3), dtype=np.uint8)
        picture[:, int(np.clip(5 + 4 * self._x, 0, 9))] = 255
        if self._floats:
            picture = (picture / 255 * self._floats).astype(np.float32)
        return {"camera": picture, "rest": (np.array([self._x, 1.0]), 5 + self._t)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._seen(), {}

    def step(self, action):
        _, reward, terminated, truncated, info = super().step(action)
        return self._seen(), reward, terminated, truncated, info


gymnasium.register("taac-test/Camera-v0", Camera)


class Asymmetric(Camera):
    """A point whose actor sees where it is; critics also see the time."""

    def __init__(self):
        PointMass.__init__(self)
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(global_state=box(0.0, 30.0, (1,)), x=self.observation_space)

    def _seen(self):
        return {"global_state": np.array([self._t], np.float32), "x": np.array([self._x], np.float32)}


gymnasium.register("taac-test/Asymmetric-v0", Asymmetric)


class Slow(PointMass):
    """A point whose steps take some time."""

    def step(self, action):
        time.sleep(0.005)
        return super().step(action)


gymnasium.register("taac-test/Slow-v0", Slow)


class Held(PointMass):
    """A point whose steps last for as long as the working directory has a file `hold`; they say so in a file `held`."""

    def step(self, action):
        while Path("hold").exists():
            Path("held").touch()
            time.sleep(0.01)
        return super().step(action)


gymnasium.register("taac-test/Held-v0", Held)


class Far(PointMass):
    """A point that starts at 0, with a reward of 1 at each of 60 steps that it ends farther than 2 from there.

    Driving straight takes 21 steps to the first reward, so the best return is 40. A random walk hardly ever gets there.
    """

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._x = 0.0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        observation, *_ = super().step(action)
        return observation, float(abs(self._x) > 2), False, self._t >= 60, {}


gymnasium.register("taac-test/Far-v0", Far)


class Killed(PointMass):
    """A point whose rank, if it is the one that $KILL_RANK names, is killed once at the 45th step of training."""

    def step(self, action):
        marker = Path(os.environ["KILLED"])
        self._steps = getattr(self, "_steps", 0) + 1
        if self._steps == 45 and os.environ["RANK"] == os.environ["KILL_RANK"] and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


gymnasium.register("taac-test/Killed-v0", Killed)


class Reach(gymnasium.Env):
    """A point in the plane, moved by at most 0.2 along each axis, for 15 steps: each costs 1 that does not end at the goal.

    Random actions end there at 1 of 80 steps. As `episodic`, reaching the goal terminates the episode.
    """

    def __init__(self, episodic: bool = False, dense: bool = False):
        box = gymnasium.spaces.Box(-2.0, 2.0, (2,), np.float64)
        self.observation_space = gymnasium.spaces.Dict(observation=box, achieved_goal=box, desired_goal=box)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
        self.episodic, self.dense = episodic, dense

    def compute_reward(self, achieved_goal, desired_goal, info):
        distance = np.linalg.norm(achieved_goal - desired_goal, axis=-1)
        return -distance if self.dense else -(distance > 0.15).astype(np.float32)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return self.episodic and bool(self.compute_reward(achieved_goal, desired_goal, info) == 0)

    def _observation(self):
        return {"observation": self._at.copy(), "achieved_goal": self._at.copy(), "desired_goal": self._goal.copy()}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._at, self._goal, self._t = np.zeros(2), self.np_random.uniform(-1.0, 1.0, 2), 0
        return self._observation(), {}

    def step(self, action):
        self._t += 1
        self._at = np.clip(self._at + 0.2 * action, -1.5, 1.5)
        reward = float(self.compute_reward(self._at, self._goal, {}))
        info = {"is_success": reward == 0}
        over = self.compute_terminated(self._at, self._goal, info)
        return self._observation(), reward, over, self._t >= 15, info


gymnasium.register("taac-test/Reach-v0", Reach)
