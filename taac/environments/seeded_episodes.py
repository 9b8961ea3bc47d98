"""Episodes that depend on their seed and their actions alone. Worker processes import this module: keep torch out of it."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from taac.errors import EnvironmentFailed, TaacError

REPLAY = "taac_replay"  # the key of reset's options


class Replay(NamedTuple):
    """A running episode to be reached again."""

    episode: int  # its number since the environment was seeded
    actions: Sequence[Any]  # taken since it began, as the environment takes them


def episode_seed(seed: int, episode: int) -> int:
    """The seed of an episode: that of the environment for the first, number 0; for each later one its own."""
    return seed if episode == 0 else int(np.random.SeedSequence([seed, episode]).generate_state(1)[0] % 2**31)


def is_own(error: BaseException) -> bool:
    """Whether an environment raised it by itself: no Ctrl-C, and no error that says what to do already.

    Where Python's own handler of Ctrl-C is not in force, as in training, a KeyboardInterrupt is the environment's.
    """
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    return not isinstance(error, TaacError)


def shown_error(error: BaseException) -> str:
    """For messages. What ends a process has no text of its own that says so."""
    if isinstance(error, Exception):
        return f"{type(error).__name__}: {error}"
    return f"it would have ended the process with {error!r}"


class SeededEpisodes(gymnasium.Wrapper):
    """Begins every episode with a seed of its own: that of the environment and the episode's number decide it.

    So the state of a simulator, which cannot be saved, is that seed and the actions since. A reset with a seed begins
    episode 0 in an environment made anew, unless none was used yet; a reset without one begins the next episode.

    `reset(seed=s, options={REPLAY: replays})`, with a `Replay` for each of several environments, begins the given episode and
    takes its actions. The info then has, as `taac_reward`, `taac_terminated` and `taac_truncated`, what the last action
    returned. If it ended the episode, the next step begins another, as `AutoresetMode.NEXT_STEP` does.

    What the environment raises becomes an `EnvironmentFailed` that says where.

    Args:
        make: makes the environment.
        number: this environment's, and how many there are.
        remake: makes the environment anew for every episode. Some simulators keep something of earlier episodes: the Box2D
            world of `BipedalWalker-v3`, seeded alike, goes other ways after an episode than before any.
        own_process: no other environment runs in this process. Then, and where there is only one, each episode seeds Python's
            and numpy's global generators as well.
    """

    env: gymnasium.Env

    def __init__(
        self,
        make: Callable[[], gymnasium.Env],
        number: tuple[int, int] = (0, 1),
        remake: bool = False,
        own_process: bool = False,
    ):
        try:
            env = make()
        except BaseException as error:
            if isinstance(error, Exception) or not is_own(error):
                raise
            raise EnvironmentFailed(f"failed when it was made: {shown_error(error)}") from error
        super().__init__(env)
        self._make, self._number, self._remake = make, number, remake
        self._seeds_global = own_process or number[1] == 1
        self._used = self._over = False
        self._seed: int | None = None
        self._episode, self._step = 0, 0
        self._attributes: dict[str, Any] = {}  # set from outside, such as what a recorder is to film

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
            if self._over:
                break  # a simulator that is not deterministic: what is returned is not what was expected
            observation, reward, terminated, truncated, info = self.step(action)
            self._over = bool(terminated or truncated)
            last = {
                "taac_reward": float(reward),
                "taac_terminated": bool(terminated),
                "taac_truncated": bool(truncated),
            }
            info = {**info, **last}
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._over:
            observation, info = self.reset()
            return observation, 0.0, False, False, info
        self._step += 1
        try:
            return self.env.step(action)
        except BaseException as error:
            if not is_own(error):
                raise
            raise EnvironmentFailed(
                f"{self._place()} failed at step {self._step}: {shown_error(error)}; its last action, in its own scale, was "
                f"{_shown(action)}"
            ) from error

    def _begin(self, options: dict[str, Any] | None, anew: bool) -> tuple[Any, dict[str, Any]]:
        self._step, self._over = 0, False
        seed = None if self._seed is None else episode_seed(self._seed, self._episode)
        if self._seeds_global and seed is not None:
            random.seed(seed)
            np.random.seed(seed)
        try:
            if anew and self._used:
                self.env.close()
                self.env = self._make()
                for name, value in self._attributes.items():
                    self.env.set_wrapper_attr(name, value)
            self._used = True
            return self.env.reset(seed=seed, options=options)
        except BaseException as error:
            if not is_own(error):
                raise
            raise EnvironmentFailed(f"{self._place()} failed at reset: {shown_error(error)}") from error

    def _place(self) -> str:
        number, count = self._number
        return f"(number {number} of {count}, seed {self._seed}, episode {self._episode + 1} since it was seeded)"

    def set_wrapper_attr(self, name: str, value: Any, **more: Any) -> bool:
        self._attributes[name] = value
        return self.env.set_wrapper_attr(name, value, **more)


def _shown(action: Any) -> str:
    return str(action.tolist()) if isinstance(action, np.ndarray) else str(action)
