"""A Gymnasium vector environment as a source of `TimeStep`s."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate

from taac import nest, specs
from taac.data_structures import Nest, StepType, TimeStep
from taac.environments import spaces, torch_settings
from taac.environments.checks import StepChecks
from taac.environments.seeded_episodes import REPLAY, Replay, is_own, shown_error
from taac.environments.step_recorder import RecordedStep
from taac.environments.workers import Workers
from taac.errors import EnvironmentFailed, TaacError

_FIRST, _MID, _LAST = (np.uint8(int(kind)) for kind in (StepType.FIRST, StepType.MID, StepType.LAST))


class VectorEnvironment:
    """Steps a `gymnasium.vector.VectorEnv` in NEXT_STEP autoreset, and gives time steps on the CPU.

    Termination and time limit at once count as termination. Every float is checked to be finite.

    Attributes:
        observation_spec, action_spec: nests of specs, one environment's; float actions are in [-1, 1].
        reward_dim: D if the reward is a vector, else None.
        num_envs: B.
        episodes: `[B]`, numbers of the running episodes since the environments were seeded, from 0.
        recorded: whether `film` and `take_steps` can be used.
        observation_space, action_space: Gymnasium's, of one environment.
        durations: the least and the greatest number of environment steps that an action takes, if the episode goes on.
        repeat_gamma: the discount of a step inside a repeated action, `discount` being `repeat_gamma^(k-1)`.
        raw_reward: `[B]` or `[B, D]`, the undiscounted rewards of the environment steps that the last `step` took.

    Args:
        env: the vector environment; a vector reward comes in its `info["taac_vector_reward"]`, see `single.VectorReward`.
        name: for messages.
        reward_dim: D if the reward is a vector.
        recorded: the environments are inside a `StepRecorder`.
        durations, repeat_gamma: see above.
        remake: makes a vector environment like `env`, for `restart`; None: it cannot be restarted.
        max_restarts: how often.
        max_episode_steps: the time limit that the environments have, in environment steps; None: none, or unknown.

    Raises:
        TaacError: another autoreset mode, or spaces that have no tensor form.
    """

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv,
        name: str,
        reward_dim: int | None = None,
        recorded: bool = False,
        durations: tuple[int, int] = (1, 1),
        remake: Callable[[], gymnasium.vector.VectorEnv] | None = None,
        max_restarts: int = 0,
        max_episode_steps: int | None = None,
        repeat_gamma: float = 1.0,
    ):
        mode = env.metadata.get("autoreset_mode")
        if mode != AutoresetMode.NEXT_STEP:
            raise TaacError(
                f"vector environment '{name}' has autoreset mode {mode}; taac needs AutoresetMode.NEXT_STEP, in which the "
                "last observation of an episode is a step of its own: pass autoreset_mode=AutoresetMode.NEXT_STEP"
            )
        self._env, self.name, self.num_envs = env, name, env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self.observation_spec = spaces.observation_spec(self.observation_space)
        self.action_spec, self._to_env_action = spaces.action_adapter(self.action_space)
        self.reward_dim, self.recorded = reward_dim, recorded
        self.durations, self.repeat_gamma = durations, repeat_gamma
        self._reward_shape = (self.num_envs,) if reward_dim is None else (self.num_envs, reward_dim)
        self._checks = StepChecks(name, env.num_envs, self.observation_spec, self.action_spec)
        self._done = np.zeros(self.num_envs, dtype=bool)
        self.episodes = np.zeros(self.num_envs, dtype=np.int64)
        self._zero_action = specs.zeros(self.action_spec, self.num_envs)
        self._steps = 0
        self._seed: int | None = None
        self._remake, self.max_restarts, self.restarts = remake, max_restarts, 0
        self.max_episode_steps = max_episode_steps
        self._broken = False  # a call has failed: the environments may not answer any more
        self.raw_reward = np.zeros(self._reward_shape)

    @property
    def render_fps(self) -> float:
        return float(self._env.metadata.get("render_fps") or 30)

    @property
    def process_ids(self) -> list[int]:
        """Of the processes that the environments have to themselves; empty when they run in this one."""
        return [process.pid for process in self._env.processes] if isinstance(self._env, Workers) else []

    def described_spaces(self) -> dict[str, Any]:
        """Both spaces as plain values, see `spaces.describe`."""
        return {
            "observation_space": spaces.describe(self.observation_space),
            "action_space": spaces.describe(self.action_space),
        }

    def reset(self, seed: int) -> TimeStep:
        """Begins an episode in every environment; environment i is seeded with `seed + i`.

        Every later episode begins with a seed of its own, which follows from that and its number; see `SeededEpisodes`.
        """
        blank = [nest.map_structure(lambda a: a[:0], self._zero_action)] * self.num_envs
        return self.replay(seed, np.zeros(self.num_envs, dtype=np.int64), blank)

    def replay(self, seed: int, episodes: np.ndarray, actions: Sequence[Nest]) -> TimeStep:
        """Begins given episodes and takes given actions in them.

        Args:
            seed: as that of `reset`.
            episodes: `[B]`, their numbers.
            actions: those of each environment since its episode began, leaves `[n_i, ...]`.

        Returns:
            the time steps that they lead to; at an episode of which there are no actions yet, its FIRST.
        """
        self._seed, self._steps = seed, 0
        counts = np.array([len(nest.flatten(of_one)[0]) for of_one in actions])
        options = None
        if counts.any() or episodes.any():
            in_own_scale = [list(iterate(self._env.action_space, self._to_env_action(of_one))) for of_one in actions]
            options = {REPLAY: [Replay(int(n), taken) for n, taken in zip(episodes, in_own_scale)]}
        observation, info = self._guarded("reset", lambda: self._env.reset(seed=seed, options=options))
        first = counts == 0
        last = [
            nest.index(self._zero_action, i) if first[i] else nest.index(of_one, -1) for i, of_one in enumerate(actions)
        ]
        none = np.zeros(self.num_envs)
        self.episodes, self._done = np.array(episodes, dtype=np.int64), none.astype(bool)
        return self._arrived(
            observation,
            info.get("taac_reward", none),
            info.get("taac_terminated", none).astype(bool),
            info.get("taac_truncated", none).astype(bool),
            info,
            nest.map_structure(lambda *leaves: torch.stack(leaves), *last),
            first,
        )

    def step(self, action: Nest) -> TimeStep:
        """Takes `action` `[B, ...]`; where an episode has just ended, ignores it and begins the next one.

        Raises:
            NotFiniteError: a reward or observation that is NaN or infinite; DivergedError after an action that is.
            EnvironmentFailed: one of them raised an exception (one that would end the process too), did not answer in time,
                changed torch's default dtype or gradient mode, or its process died.
        """
        observation, reward, terminated, truncated, info = self._guarded(
            f"step {self._steps + 1} after reset", lambda: self._env.step(self._to_env_action(action)), action
        )
        first = self._done
        self._steps += 1
        self.episodes += first
        return self._arrived(observation, reward, terminated, truncated, info, action, first)

    def _arrived(
        self,
        observation: Any,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        info: dict[str, Any],
        action: Nest,
        first: np.ndarray,
    ) -> TimeStep:
        """The time step of what the vector environment returned; `first` `[B]`: where an episode begins."""
        self._done = terminated | truncated
        if self.reward_dim is not None:  # absent when every environment has just begun an episode
            reward = info.get("taac_vector_reward", np.zeros(self._reward_shape))
        self._checks.reward(reward, action, self._steps)
        step_type = np.where(self._done, _LAST, _MID)
        discount = (~terminated).astype(np.float32)
        duration = np.ones(self.num_envs, dtype=np.int16)
        self.raw_reward = info.get("taac_raw_reward", reward)
        if "taac_duration" in info:
            discount, duration = discount * info["taac_discount"], info["taac_duration"].astype(np.int16)
        if first.any():
            step_type[first], discount[first], duration[first] = _FIRST, 1.0, 0
            reward, self.raw_reward = reward.copy(), self.raw_reward.copy()
            reward[first], self.raw_reward[first] = 0.0, 0.0
            not_first = torch.from_numpy(~first)
            action = nest.map_structure(
                lambda a, z: torch.where(not_first.reshape(-1, *(1,) * (a.dim() - 1)), a, z), action, self._zero_action
            )
        tensors = self._tensors(observation)
        self._checks.observation(tensors, action, terminated, self._steps)
        return TimeStep(
            step_type=torch.from_numpy(step_type),
            reward=torch.from_numpy(reward.astype(np.float32)),
            discount=torch.from_numpy(discount.astype(np.float32)),
            observation=tensors,
            prev_action=action,
            duration=torch.from_numpy(duration),
        )

    def restart(self, failure: EnvironmentFailed) -> None:
        """Makes all environments anew after one has failed; `reset` comes next.

        Raises:
            EnvironmentFailed: they are not asynchronous, or have been restarted `max_restarts` times.
        """
        if self._remake is None:
            raise failure
        while True:
            if self.restarts >= self.max_restarts:
                raise EnvironmentFailed(
                    f"{failure}. Environments have been restarted {self.restarts} times, which is all that "
                    f"create_environment.max_restarts = {self.max_restarts} allows"
                ) from failure
            self.restarts += 1
            self.close()
            try:
                self._env = self._guarded("its restart", self._remake)
                return
            except EnvironmentFailed as again:
                failure = again
            except TaacError as again:  # they could be made before
                failure = EnvironmentFailed(f"environment '{self.name}' could not be made anew: {again}")

    def _guarded(self, where: str, fn: Callable[[], Any], action: Nest = None) -> Any:
        try:
            with torch_settings.kept(f"failed at {where}"):
                return fn()
        except EnvironmentFailed as error:
            self._broken = True
            raise EnvironmentFailed(f"environment '{self.name}' {error}") from error
        except TaacError:
            self._broken = True
            raise
        except BaseException as error:
            self._broken = True
            if not is_own(error):
                raise
            where = f"failed at {where}: "
            told = f"environment '{self.name}' {where}{shown_error(error)}"
            found = self._env.failed(error) if isinstance(self._env, Workers) and isinstance(error, Exception) else None
            if found is not None:
                index, how = found
                seed = None if self._seed is None else self._seed + index
                told = f"environment '{self.name}' (number {index} of {self.num_envs}, seed {seed}) {where}{how}"
                if action is not None:
                    last = nest.map_structure(lambda a: a[index].tolist(), action)
                    told += f"; its last action, in [-1, 1], was {last}"
            raise EnvironmentFailed(told) from error

    def _tensors(self, observation: Any) -> Nest:
        return self._guarded("reading an observation", lambda: spaces.to_tensors(self.observation_spec, observation))

    def film(self, every: int) -> None:
        """From now on keeps a frame of every so many steps of the first environment; 0: of none. Needs `recorded`."""
        self._env.set_attr("film_every", [every] + [0] * (self.num_envs - 1))

    def take_steps(self) -> list[RecordedStep]:
        """The environment steps that the first environment took since the last call. Needs `recorded`."""
        return self._env.call("take_steps")[0]

    def close(self) -> None:
        if self._broken and isinstance(self._env, Workers):
            self._env.kill()  # who is gone, or hangs, would not answer
        else:
            self._guarded("its end", self._env.close)
        self._broken = False
