"""Episodes that depend only on their seed and actions. Worker processes import this module, so it must not import torch."""

from __future__ import annotations

import os
import random
import signal
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from taac.errors import EnvironmentFailed, TaacError

REPLAY = "taac_replay"  # the key in reset's options
_TAAC = f"{Path(__file__).parents[1]}{os.sep}"
OWN = "taac_"  # begins the names of infos by which taac's wrappers and `VectorEnvironment` speak to each other


class Replay(NamedTuple):
    """A running episode whose state is to be restored."""

    episode: int  # its number since the environment was seeded
    actions: Sequence[Any]  # since the episode began, in the environment's own scale


def episode_seed(seed: int, episode: int) -> int:
    """Returns the seed of an episode: the environment's own for episode 0, and one derived from both numbers later."""
    return seed if episode == 0 else int(np.random.SeedSequence([seed, episode]).generate_state(1)[0] % 2**31)


def is_environment_error(error: BaseException) -> bool:
    """Returns whether the environment's own code raised the error: not Ctrl-C, nor an error that already says what to do."""
    if isinstance(error, KeyboardInterrupt):  # from the environment while training has replaced Python's handler of Ctrl-C
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    return not isinstance(error, TaacError)


def describe_error(error: BaseException) -> str:
    """Returns the error as text for messages, with the line of the environment's code that raised it."""
    if isinstance(error, Exception):
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_TAAC)]
        place = f" (in {frames[-1].name}, {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        return f"{type(error).__name__}: {error}{place}"
    return f"it would have ended the process with {error!r}"


class SeededEpisodes(gymnasium.Wrapper):
    """Begins every episode with a seed of its own, derived from the environment's seed and the episode's number.

    A simulator's state cannot be saved. It is restored from the episode's seed and the actions since. A reset with a seed
    begins episode 0 in a new environment, or in an unused one. A reset without a seed begins the next episode.

    `reset(seed=s, options={REPLAY: replays})`, with a `Replay` for each environment of the vector, begins the given episode
    and repeats its actions. The info then holds the results of the last action as `taac_reward`, `taac_terminated` and
    `taac_truncated`. If that action ended the episode, the next step begins another, as in `AutoresetMode.NEXT_STEP`.

    An error of the environment is raised as an `EnvironmentFailed` that says where it happened. Of its infos, only what taac's
    own wrappers report is passed on (names that begin with `OWN`): a vector environment would gather the rest at every step.

    Args:
        make: creates the environment.
        number: the number of this environment, and how many there are.
        remake: whether to recreate the environment for every episode. Some simulators keep state across episodes, such as the
            Box2D world of `BipedalWalker-v3`.
        own_process: whether no other environment runs in this process. In that case, or if there is only one environment,
            each episode also seeds Python's and numpy's global generators.
    """

    env: gymnasium.Env

    def __init__(
        self, make: Callable[[], gymnasium.Env], number: tuple[int, int] = (0, 1), remake: bool = False, own_process: bool = False
    ):
        try:
            env = make()
        except BaseException as error:
            if isinstance(error, Exception) or not is_environment_error(error):
                raise
            raise EnvironmentFailed(f"failed when it was created: {describe_error(error)}") from error
        super().__init__(env)
        self._make, self._number, self._remake = make, number, remake
        self._seeds_global = own_process or number[1] == 1
        self._used = self._done = False
        self._seed: int | None = None
        self._episode, self._step = 0, 0
        self._attributes: dict[str, Any] = {}  # set from outside, such as a recorder's `film_every`

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is None:
            self._episode += 1
            return self._begin(options, self._remake)
        self._seed, self._episode = seed, 0
        if options is None or REPLAY not in options:
            return self._begin(options, True)
        replay: Replay = options[REPLAY][self._number[0]]
        self._episode = replay.episode
        observation, info = self._begin({k: v for k, v in options.items() if k != REPLAY} or None, True)
        for action in replay.actions:
            if self._done:
                break  # the simulator is not deterministic; the caller finds a mismatch
            observation, reward, terminated, truncated, info = self.step(action)
            self._done = bool(terminated or truncated)
            ends = {"taac_terminated": bool(terminated), "taac_truncated": bool(truncated)}
            info = {**info, "taac_reward": float(reward), **ends}
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._done:
            observation, info = self.reset()
            return observation, 0.0, False, False, info
        self._step += 1
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
            if not isinstance(reward, (float, int)) and np.ndim(reward):
                raise self._failure(
                    f"it returned a reward of shape {list(np.shape(reward))}, {reward!r}, expected a number: return float(...), "
                    "or give the environment a reward_space, a Box of rank 1, if the reward is a vector"
                )
            for name, end in (("terminated", terminated), ("truncated", truncated)):
                if not isinstance(end, (bool, np.bool_)):  # 'False' and an array of one would count as true, or as too many
                    raise self._failure(f"it returned {name} = {end!r:.100}, expected True or False: return bool(...)")
            return observation, reward, terminated, truncated, _own(info)
        except BaseException as error:
            if not is_environment_error(error):
                raise
            given = action.tolist() if isinstance(action, np.ndarray) else action
            raise self._failure(f"{describe_error(error)}; its last action, in its own scale, was {given}") from error

    def _begin(self, options: dict[str, Any] | None, recreate: bool) -> tuple[Any, dict[str, Any]]:
        self._step, self._done = 0, False
        seed = None if self._seed is None else episode_seed(self._seed, self._episode)
        if self._seeds_global and seed is not None:
            random.seed(seed)
            np.random.seed(seed)
        try:
            if recreate and self._used:
                self.env.close()
                before, self.env = self.env, self._make()
                for name in ("observation_space", "action_space"):
                    if (now := getattr(self.env, name)) != (first := getattr(before, name)):
                        raise self._failure(f"made anew, its {name} is {now}, and it was {first}")
                for name, value in self._attributes.items():
                    self.env.set_wrapper_attr(name, value)
            self._used = True
            observation, info = self.env.reset(seed=seed, options=options)
            return observation, _own(info)
        except BaseException as error:
            if not is_environment_error(error):
                raise
            raise self._failure(describe_error(error)) from error

    def _failure(self, what: str) -> EnvironmentFailed:
        (number, count), episode = self._number, self._episode + 1
        place = f"(number {number} of {count}, seed {self._seed}, episode {episode} since it was seeded)"
        where = f"step {self._step}" if self._step else "reset"
        return EnvironmentFailed(f"{place} failed at {where}: {what}")

    def set_wrapper_attr(self, name: str, value: Any, **more: Any) -> bool:
        self._attributes[name] = value
        return self.env.set_wrapper_attr(name, value, **more)


def _own(info: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if str(name).startswith(OWN)}

