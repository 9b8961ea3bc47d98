"""Environments of the campaigns. Worker processes import this module: keep torch out of it.

Gymnasium imports it by itself: `experiments.reliability.tasks:taac-reliability/Switches-v0`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SWITCHES, UNRULY, BOARD = (f"experiments.reliability.tasks:taac-reliability/{n}-v0" for n in ("Switches", "Unruly", "Board"))


class Switches(gymnasium.Env):
    """Two switches of 2 and 3 positions, to be set by the sign and the size of two numbers; the reward counts the right ones."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._t = 0
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        self._seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self._seen

    def step(self, action):
        right = [self._seen[0] > 0, int(1.5 * (self._seen[1] + 1))]
        self._t += 1
        return self._observe(), float(np.equal(action, right).sum()), self._t >= 20, False, {}


class Board(gymnasium.Env):
    """A picture of 12 x 12 bytes whose brightest quarter is to be named; one of the others may not be. Two rewards."""

    def __init__(self) -> None:
        picture, mask = spaces.Box(0, 255, (12, 12, 1), np.uint8), spaces.MultiBinary(4)
        self.observation_space, self.action_space = spaces.Dict(picture=picture, action_mask=mask), spaces.Discrete(4)
        self.reward_space = spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._t = 0
        return self._observe(), {}

    def _observe(self) -> dict[str, np.ndarray]:
        picture = self.np_random.integers(0, 128, (12, 12, 1), dtype=np.uint8)
        self._bright = int(self.np_random.integers(4))
        row, column = divmod(self._bright, 2)
        picture[6 * row : 6 * row + 6, 6 * column : 6 * column + 6] += 127
        mask = np.ones(4, np.int8)
        mask[(self._bright + 1 + self.np_random.integers(3)) % 4] = 0
        return {"picture": picture, "action_mask": mask}

    def step(self, action):
        self._t += 1
        right = float(action == self._bright)
        return self._observe(), np.array([right, -0.1]), self._t >= 20, False, {}


class Unpicklable(Exception):
    """No other process can be sent it: it holds a function, and cannot be made from its message."""

    def __init__(self, one: str, two: str):
        super().__init__(one)
        self.two = lambda: two


class Speechless(Exception):
    """One whose text cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no words")


class Unruly(gymnasium.Env):
    """A point on a line that misbehaves late: in step `at` of all that this process has taken in environments like it.

    Args:
        how: see `MISBEHAVIOURS`.
        at: the step, from 1; those of restarted processes are counted anew.
        log: a file with a line for each misbehaviour; with `times` lines there is no further one.
        times: how often.
        workers: in worker processes alone: environments of evaluations, which are in the training process, behave.
    """

    taken = 0

    def __init__(self, how: str, at: int, log: str, times: int = 1, workers: bool = False):
        self.observation_space, self.action_space = spaces.Box(-9.0, 9.0, (2,)), spaces.Box(-1.0, 1.0, (1,))
        self._how, self._at, self._log, self._times = how, at, Path(log), times
        self._behaves = workers and multiprocessing.parent_process() is None

    def reset(self, *, seed: int | None = None, options: Any = None):
        super().reset(seed=seed)
        self._x, self._t = float(self.np_random.uniform(-1, 1)), 0
        if self._how == "raises in reset" and self._due():
            raise RuntimeError("no new episode")
        return self._observe(), {}

    def _observe(self) -> np.ndarray:
        return np.array([self._x, self._t / 30], np.float32)

    def _due(self) -> bool:
        if (
            self._behaves
            or Unruly.taken < self._at
            or (self._log.exists() and len(self._log.read_text().split()) >= self._times)
        ):
            return False
        with open(self._log, "a") as file:
            file.write(f"{os.getpid()}\n")
        return True

    def step(self, action):
        Unruly.taken += 1
        self._t += 1
        self._x = float(np.clip(self._x + 0.1 * float(action[0]), -9, 9))
        returned = self._observe(), -abs(self._x), False, self._t >= 30, {}
        if self._how == "raises in reset" or not self._due():
            return returned
        return MISBEHAVIOURS[self._how](*returned)


def _raise(error: BaseException) -> Any:
    raise error


def _endless() -> None:
    while True:
        time.sleep(1)


def _change_torch(*returned: Any) -> Any:
    import torch

    torch.set_default_dtype(torch.float64)
    return returned


def _stop_gradients(*returned: Any) -> Any:
    import torch

    torch.set_grad_enabled(False)
    return returned


def _reinterpreted(value: Any) -> Any:
    return lambda _, *rest: (value, *rest)


def _rewarded(value: Any) -> Any:
    return lambda observation, _, *rest: (observation, value, *rest)


# What is returned instead of a step's (observation, reward, terminated, truncated, info).
MISBEHAVIOURS: dict[str, Any] = {
    "raises": lambda *_: _raise(RuntimeError("100% of the %s is gone")),
    "raises in reset": None,
    "raises what cannot be sent to another process": lambda *_: _raise(Unpicklable("a", "b")),
    "raises what has no text": lambda *_: _raise(Speechless()),
    "raises a text of 4 MB": lambda *_: _raise(RuntimeError("x" * (4 << 20))),
    "raises MemoryError": lambda *_: _raise(MemoryError()),
    "raises OSError: no space left": lambda *_: _raise(OSError(28, "No space left on device")),
    "raises BrokenPipeError": lambda *_: _raise(BrokenPipeError()),
    "raises StopIteration": lambda *_: _raise(StopIteration()),
    "raises KeyboardInterrupt": lambda *_: _raise(KeyboardInterrupt()),
    "raises GeneratorExit": lambda *_: _raise(GeneratorExit()),
    "sys.exit(0)": lambda *_: sys.exit(0),
    "sys.exit with a text": lambda *_: sys.exit("that was all"),
    "recurses without end": lambda *_: (lambda f: f(f))(lambda f: f(f)),
    "hangs": lambda *_: _endless(),
    "dies by SIGKILL": lambda *_: os.kill(os.getpid(), signal.SIGKILL),
    "dies by SIGSEGV": lambda *_: os.kill(os.getpid(), signal.SIGSEGV),
    "leaves by os._exit(0)": lambda *_: os._exit(0),
    "leaves by os._exit(3)": lambda *_: os._exit(3),
    "observation of another shape": _reinterpreted(np.zeros(3, np.float32)),
    "observation of a rank more": _reinterpreted(np.zeros((1, 2), np.float32)),
    "observation of NaN": _reinterpreted(np.array([np.nan, 0], np.float32)),
    "observation of infinity": _reinterpreted(np.array([0, np.inf], np.float32)),
    "observation beyond float32": _reinterpreted(np.array([1e300, 0.0])),
    "observation of text": _reinterpreted(np.array(["a", "b"])),
    "observation of objects": _reinterpreted(np.array([None, {}], dtype=object)),
    "observation None": _reinterpreted(None),
    "reward of NaN": _rewarded(float("nan")),
    "reward of infinity": _rewarded(float("-inf")),
    "reward beyond float32": _rewarded(1e300),
    "reward of text": _rewarded("much"),
    "reward of several numbers": _rewarded(np.ones(3)),
    "reward None": _rewarded(None),
    "four values": lambda *returned: returned[:4],
    "nothing": lambda *_: None,
    "info that is none": lambda *returned: (*returned[:4], 7),
    "terminated is NaN": lambda observation, reward, *rest: (observation, reward, float("nan"), *rest[1:]),
    "changes torch's default dtype": _change_torch,
    "turns gradients off": _stop_gradients,
    "goes to another folder": lambda *returned: (os.chdir("/"), returned)[1],
    "closes standard error": lambda *returned: (os.close(2), returned)[1],
}

gymnasium.register("taac-reliability/Switches-v0", Switches)
gymnasium.register("taac-reliability/Unruly-v0", Unruly)
gymnasium.register("taac-reliability/Board-v0", Board)
