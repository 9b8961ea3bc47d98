"""Environments of envpool: copies of a simulator that a pool of C++ threads steps, as a Gymnasium vector environment."""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from taac.environments.seeded_episodes import REPLAY, Replay
from taac.errors import TaacError

ENGINE = "create_environment.engine = 'envpool'"
_GYMNASIUM = "bind create_environment.engine = 'gymnasium'"
# Arguments of `envpool.make` that others decide: `create_environment`, the run's seed, and the pool itself.
_RESERVED = (
    "num_envs", "batch_size", "seed", "env_seed", "max_episode_steps", "max_num_players", "render_mode", "base_path",
    "gym_reset_return_info",
)  # fmt: skip
_NO_LIMIT = 2**31 - 1  # envpool's `max_episode_steps` of tasks that have none


class EnvpoolVector(gymnasium.vector.VectorEnv):
    """A pool of envpool's environments, whose running episodes can be restored.

    envpool seeds an environment once, when it is made, and all its episodes draw from that one stream. `reset` therefore makes
    a new pool. To restore the middle of episode k, it begins k + 1 episodes, which takes no steps, and repeats the actions of
    the last. A simulator that draws random numbers while it steps (LunarLander) then reaches another state;
    `ActionLog.replay_actions` notices.

    envpool resets by itself at the step after the last of an episode, as in `AutoresetMode.NEXT_STEP`, and counts a
    termination at the very step of the time limit as a truncation.

    Attributes:
        max_episode_steps: the time limit; None if there is none.

    Args:
        task: envpool's name of the task, such as `'HalfCheetah-v5'`.
        max_episode_steps: time limit that replaces the task's own.
        arguments: further arguments of `envpool.make`, such as `num_threads`, 1 by default.
        refused: settings of `create_environment` that a pool does not have. All must be empty: None, False, or ().

    Raises:
        TaacError: one of these is set; envpool is not installed, or does not have the task or an argument.
    """

    def __init__(
        self, task: str, num_envs: int, max_episode_steps: int | None, arguments: Mapping[str, Any], refused: Mapping[str, Any]
    ):
        for name, value in refused.items():
            if value:
                raise TaacError(f"{ENGINE} does not have {name}, got {value!r}: remove the setting, or {_GYMNASIUM}")
        if taken := sorted(set(arguments) & set(_RESERVED)):
            raise TaacError(
                f"{ENGINE}: create_environment.env_kwargs may not hold {', '.join(taken)}: of these, only the following can be "
                "chosen: create_environment.num_envs, create_environment.max_episode_steps and the run's seed"
            )
        threads = arguments.get("num_threads", 1)
        if isinstance(threads, int) and threads < 1:  # envpool would end the process
            raise TaacError(f"{ENGINE}: num_threads in create_environment.env_kwargs must be 1 or more, got {threads}")
        limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
        try:
            import envpool
        except ImportError as error:
            raise TaacError(f"{ENGINE} needs envpool: pip install envpool (taac's extra 'envpool'): {error}") from error
        self._envpool = envpool
        self._task, self._arguments = task, {"num_threads": 1, **arguments, **limit}
        spec = _spec(self._envpool, task, arguments, self._arguments)
        steps = int(spec.config.max_episode_steps)
        self.max_episode_steps = None if steps >= _NO_LIMIT else steps
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        with _spaces_read():
            self.single_observation_space = _unbounded(spec.gymnasium_observation_space)
            self.single_action_space = spec.gymnasium_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._pool: Any = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins episode 0 of every environment, or restores the episodes of `options[REPLAY]`; see `SeededEpisodes`.

        Environment i is seeded with `seed + i`, modulo 2^31.
        """
        self.close_extras()
        seeds = [(int(seed) + i) % 2**31 for i in range(self.num_envs)]
        with _spaces_read():
            self._pool = self._envpool.make(
                self._task, env_type="gymnasium", num_envs=self.num_envs, batch_size=self.num_envs, seed=seeds,
                **self._arguments,
            )  # fmt: skip
            observation, _ = self._pool.reset()
        replays = (options or {}).get(REPLAY)
        return (observation, {}) if replays is None else self._restore(observation, replays)

    def _restore(self, observation: Any, replays: Sequence[Replay]) -> tuple[Any, dict[str, Any]]:
        for begun in range(max(replay.episode for replay in replays)):
            index = np.array([i for i, replay in enumerate(replays) if replay.episode > begun], dtype=np.int32)
            _put(observation, index, self._pool.reset(index)[0])
        reward, terminated, truncated = np.zeros(self.num_envs), *np.zeros((2, self.num_envs), dtype=bool)
        for step in range(max(len(replay.actions) for replay in replays)):
            ended = terminated | truncated  # before its last action: another state than before, which the caller notices
            running = [i for i, replay in enumerate(replays) if len(replay.actions) > step and not ended[i]]
            if not running:
                break
            index = np.array(running, dtype=np.int32)
            part, *result, _ = self._pool.step(np.stack([replays[i].actions[step] for i in running]), index)
            _put(observation, index, part)
            reward[index], terminated[index], truncated[index] = result
        return observation, {"taac_reward": reward, "taac_terminated": terminated, "taac_truncated": truncated}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = self._pool.step(actions)
        return observation, reward.astype(np.float64), terminated, truncated, {}

    def close_extras(self, **kwargs: Any) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None  # ends its threads


def _spec(envpool: ModuleType, task: str, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Returns envpool's description of a task with arguments, of which the user has `given` some."""
    known = envpool.list_all_envs()
    if task not in known:
        near = difflib.get_close_matches(task, known, n=3, cutoff=0.5)
        raise TaacError(
            f"envpool has no environment '{task}'"
            + (f"; its most similar names are {', '.join(near)}" if near else f" among its {len(known)}")
            + f". {_GYMNASIUM[0].upper()}{_GYMNASIUM[1:]}, or see envpool.list_all_envs()"
        )
    try:
        defaults = envpool.make_spec(task).config._asdict()
        if not (unknown := sorted(set(given) - set(defaults))):
            spec = envpool.make_spec(task, **arguments)
    except TypeError as error:
        expected = ", ".join(f"{name}={defaults[name]!r}" for name in given)
        raise TaacError(
            f"envpool's '{task}' cannot be created with {dict(given)}; its defaults, of the types that it takes: {expected}"
        ) from error
    except (RuntimeError, ImportError, ValueError, AssertionError, OSError) as error:
        raise TaacError(f"envpool cannot create '{task}': {error}") from error
    if unknown:
        own = ", ".join(sorted(set(defaults) - set(_RESERVED)))
        raise TaacError(f"envpool's '{task}' has no argument {', '.join(unknown)}, only {own}")
    if spec.config.max_num_players != 1:
        raise TaacError(f"envpool's '{task}' is a game of {spec.config.max_num_players} players; expected one")
    return spec


@contextlib.contextmanager
def _spaces_read() -> Iterator[None]:
    """A context in which envpool reads its spaces, whose bounds it writes as numbers of another type."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*precision lowered by casting")
        yield


def _unbounded(space: gymnasium.Space) -> gymnasium.Space:
    """Returns an observation space with infinite bounds where envpool says the least and greatest number of the type."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _unbounded(part) for key, part in space.spaces.items()})
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    kind = np.finfo(space.dtype)
    low = np.where((space.low == kind.tiny) | (space.low == kind.min), -np.inf, space.low)  # C++'s min() is the least above 0
    high = np.where(space.high == kind.max, np.inf, space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), space.shape, space.dtype.type)


def _put(held: Any, index: np.ndarray, part: Any) -> None:
    """Writes the observations of some environments into those of all."""
    if isinstance(held, dict):
        for key, leaf in held.items():
            _put(leaf, index, part[key])
    else:
        held[index] = part
