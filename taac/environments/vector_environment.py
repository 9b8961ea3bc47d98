"""A Gymnasium vector environment that returns time steps (`TimeStep`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import iterate

from taac import nest, specs
from taac.data_structures import Nest, StepType, TimeStep
from taac.environments import spaces
from taac.environments.process_settings import Preserved
from taac.environments.seeded_episodes import REPLAY, Replay, describe_error, is_environment_error
from taac.environments.single import CANNOT_RENDER, RecordedStep
from taac.environments.workers import Workers
from taac.errors import DivergedError, EnvironmentFailed, NotFiniteError, TaacError

_FIRST, _MID, _LAST = (np.uint8(int(kind)) for kind in (StepType.FIRST, StepType.MID, StepType.LAST))
_GREATEST = float(np.finfo(np.float32).max)
_LONGEST = 500  # characters of a part of a space that a checkpoint holds as they are


class VectorEnvironment:
    """Steps a `gymnasium.vector.VectorEnv` with NEXT_STEP autoreset and returns time steps on the CPU.

    A step that terminates and reaches the time limit counts as a termination (not with envpool, see `EnvpoolVector`). Every
    float is checked to be finite.

    Attributes:
        observation_spec, action_spec: nests of specs for one environment. Float actions are in [-1, 1].
        reward_dim: D if the reward is a vector, else None.
        num_envs: B.
        episodes: `[B]`, the number of each running episode, counted from 0 since the environments were seeded.
        recorded: whether `film` and `pop_steps` can be used.
        observation_space, action_space: Gymnasium's spaces of one environment.
        durations: the least and the greatest number of environment steps of an action, unless the episode ends first.
        duration_coordinate: whether the last number of an action says only how long it lasts; see `DurationCoordinate`.
        frame_stack: number of pictures that are stacked along the channels of each.
        info: names of the numbers that episodes report; see `create_environment`.
        episode_info: `[B, K]`, these numbers where the last `step` ended an episode; elsewhere without meaning.
        goal_functions: `compute_reward` and perhaps `compute_terminated` by name, of an environment with goals; else empty.
        repeat_gamma: the discount of a step inside a repeated action; `discount` is `repeat_gamma^(k-1)` after k steps.
        raw_reward: `[B]` or `[B, D]`, the undiscounted sum of the rewards of the environment steps in the last `step`.
        arrays: the last time step as numpy arrays, which share the memory of its tensors.

    Args:
        env: the vector environment. A vector reward arrives in its `info["taac_vector_reward"]`, see `single.VectorReward`.
        name: for messages.
        recorded: whether each environment is wrapped in a `StepRecorder`.
        remake: makes a vector environment like `env`, for at most `max_restarts` calls of `restart`. None: there are none.
        max_episode_steps: the time limit in environment steps. None if there is none or it is unknown.

    Raises:
        TaacError: the autoreset mode is not NEXT_STEP, or a space has no tensor form.
    """

    arrays: Any

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
        duration_coordinate: bool = False,
        goal_functions: Mapping[str, Callable[..., Any]] | None = None,
        info: Sequence[str] = (),
        frame_stack: int = 1,
    ):
        mode = env.metadata.get("autoreset_mode")
        if mode != AutoresetMode.NEXT_STEP:
            raise TaacError(
                f"vector environment '{name}' has autoreset mode {mode}; taac needs AutoresetMode.NEXT_STEP, which returns "
                "the last observation of an episode as a step of its own: pass autoreset_mode=AutoresetMode.NEXT_STEP"
            )
        self._env, self.name, self.num_envs = env, name, env.num_envs
        self.observation_space, self.action_space = env.single_observation_space, env.single_action_space
        self.observation_spec = spaces.observation_spec(self.observation_space)
        self.action_spec, self._to_env_action = spaces.action_adapter(self.action_space)
        self.reward_dim, self.recorded = reward_dim, recorded
        self.durations, self.repeat_gamma, self.duration_coordinate = durations, repeat_gamma, duration_coordinate
        self.goal_functions, self.frame_stack = dict(goal_functions or {}), frame_stack
        self.info, self.episode_info = tuple(info), np.zeros((self.num_envs, len(info)))
        self._reward_shape = (self.num_envs,) if reward_dim is None else (self.num_envs, reward_dim)
        self._checks = StepChecks(self)
        self._done = np.zeros(self.num_envs, dtype=bool)
        self.episodes = np.zeros(self.num_envs, dtype=np.int64)
        self._zero_action = specs.zeros(self.action_spec, self.num_envs)
        self._steps = 0
        self._seed: int | None = None
        self._remake, self.max_restarts, self.restarts = remake, max_restarts, 0
        self.max_episode_steps = max_episode_steps
        self._broken = False  # whether a call has failed, after which the environments may no longer answer
        self.raw_reward = np.zeros(self._reward_shape)
        # Step types, discounts and durations of a step at which no episode begins or ends.
        self._ordinary = (
            np.full(self.num_envs, _MID), np.ones(self.num_envs, np.float32), np.ones(self.num_envs, np.int16)
        )  # fmt: skip

    @property
    def render_fps(self) -> float:
        return float(self._env.metadata.get("render_fps") or 30)

    @property
    def process_ids(self) -> list[int]:
        """Ids of the environments' worker processes. Empty when they run in this process."""
        return [process.pid for process in self._env.processes] if isinstance(self._env, Workers) else []

    def described_spaces(self) -> dict[str, Any]:
        """Returns both spaces as plain values, see `spaces.describe`."""
        return {
            "observation_space": spaces.describe(self.observation_space),
            "action_space": spaces.describe(self.action_space),
        }

    def state_dict(self) -> dict[str, str]:
        """Returns both spaces by path (`"observation_space/arm"`), for checkpoints: as texts, or checksums of long ones."""
        texts = [text for name, space in self.described_spaces().items() for text in spaces.by_path(space, name)]
        return {path: t if len(t) <= _LONGEST else hashlib.blake2b(t.encode()).hexdigest() for path, t in texts}

    def load_state_dict(self, state: dict[str, Any], precision: bool = True) -> None:
        """Compares the spaces with those of a `state_dict()`. Raises TaacError if they differ; names where.

        Without `precision`, float32 and float64 are the same.
        """
        now = self.state_dict()
        for path in {**state, **now}:
            texts = [str(of.get(path)) for of in (state, now)]
            if not precision:
                texts = [text.replace('"float64"', '"float32"') for text in texts]
            if texts[0] != texts[1]:
                raise TaacError(
                    f"environment '{self.name}' has {path} = {now.get(path)}, and it was {state.get(path)!r:.{_LONGEST}} in "
                    "training: its spaces have changed under the same name, so the agent's actions and observations would mean "
                    "something else. Make it as it was, also in evaluations, or train a new run in another folder"
                )

    def reset(self, seed: int) -> TimeStep:
        """Begins an episode in every environment, seeded with `seed + i`; see `SeededEpisodes` and `EnvpoolVector`."""
        blank = [nest.map_structure(lambda a: a[:0], self._zero_action)] * self.num_envs
        return self.replay(seed, np.zeros(self.num_envs, dtype=np.int64), blank)

    def replay(self, seed: int, episodes: np.ndarray, actions: Sequence[Nest]) -> TimeStep:
        """Restores the state in the middle of the `episodes` of these numbers `[B]`: begins them again and repeats their actions.

        `actions` are, for each environment, those since its episode began, leaves `[n_i, ...]`. Returns the time steps that they
        lead to, or an episode's FIRST where there are none.
        """
        self._seed, self._steps = seed, 0
        counts = np.array([len(nest.flatten(sequence)[0]) for sequence in actions])
        options = None
        if counts.any() or episodes.any():
            env_actions = [list(iterate(self._env.action_space, self._to_env_action(sequence))) for sequence in actions]
            options = {REPLAY: [Replay(int(n), sequence) for n, sequence in zip(episodes, env_actions)]}
        observation, info = self._call("reset", lambda: self._read(self._env.reset(seed=seed, options=options)))
        first = counts == 0
        last = [nest.index(self._zero_action, i) if first[i] else nest.index(of, -1) for i, of in enumerate(actions)]
        none = np.zeros(self.num_envs)
        self.episodes, self._done = np.array(episodes, dtype=np.int64), none.astype(bool)
        terminated, truncated = (info.get(name, none).astype(bool) for name in ("taac_terminated", "taac_truncated"))
        action = nest.map_structure(lambda *leaves: torch.stack(leaves).numpy(), *last)
        return self._time_step(observation, info.get("taac_reward", none), terminated, truncated, info, action, first)

    def step(self, action: Nest) -> TimeStep:
        """Executes `action` `[B, ...]`. Where an episode has just ended, the action is ignored and the next episode begins.

        Raises:
            NotFiniteError: a reward or observation is NaN or infinite. DivergedError if the action was, too.
            EnvironmentFailed: an environment raised an exception (even one that would end the process), did not answer in
                time, changed what `Preserved` refuses, or its process died.
        """
        executed = nest.map_structure(torch.Tensor.numpy, action)
        where = f"step {self._steps + 1} after reset"
        observation, reward, terminated, truncated, info = self._call(
            where, lambda: self._read(self._env.step(self._to_env_action(executed))), executed
        )
        first = self._done
        self._steps += 1
        self.episodes += first
        return self._time_step(observation, reward, terminated, truncated, info, executed, first)

    def _time_step(
        self,
        observation: Nest,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        info: dict[str, Any],
        action: Nest,
        first: np.ndarray,
    ) -> TimeStep:
        """Builds the time step from what the environments returned and the actions before; `first` `[B]`: an episode begins."""
        self._done = terminated | truncated
        if self.reward_dim is not None:  # the key is absent when every environment has just begun an episode
            reward = info.get("taac_vector_reward", np.zeros(self._reward_shape))
        if reward.shape != self._reward_shape:  # a vector of another length, or a vector environment of your own
            raise EnvironmentFailed(
                f"environment '{self.name}' returned rewards of shape {list(reward.shape)} at step {self._steps} after reset, "
                f"expected {list(self._reward_shape)}: one number for each environment"
                + (f", or {self.reward_dim}, as its reward_space says" if self.reward_dim is not None else "")
            )
        self._checks.reward(reward, action, self._steps)
        step_type, discount, duration = (values.copy() for values in self._ordinary)
        if np.count_nonzero(self._done):
            step_type[self._done], discount[terminated] = _LAST, 0.0
        self.raw_reward = info.get("taac_raw_reward", reward)
        self.episode_info = info.get("taac_episode_info", self.episode_info)
        if "taac_duration" in info:
            discount = (discount * info["taac_discount"]).astype(np.float32)
            duration = info["taac_duration"].astype(np.int16)
        if np.count_nonzero(first):
            step_type[first], discount[first], duration[first] = _FIRST, 1.0, 0
            reward, self.raw_reward = reward.copy(), self.raw_reward.copy()
            reward[first], self.raw_reward[first] = 0.0, 0.0
            action = nest.map_structure(np.copy, action)
            for leaf in nest.flatten(action):
                leaf[first] = 0
        self._checks.observation(observation, action, terminated, self._steps)
        leaves: tuple[Any, ...] = (step_type, reward.astype(np.float32), discount, observation, action, duration)
        self.arrays = TimeStep(*leaves)
        return nest.map_structure(torch.from_numpy, self.arrays)

    def seeded(self, index: int) -> tuple[int | None, int]:
        """Returns an environment's seed, and which episode since then is the current one, from 1."""
        return None if self._seed is None else self._seed + index, int(self.episodes[index]) + 1

    def restart(self, failure: EnvironmentFailed) -> None:
        """Recreates all environments after one has failed. Call `reset` next.

        Raises EnvironmentFailed if the environments cannot be restarted, or have been restarted `max_restarts` times.
        """
        if self._remake is None:
            raise failure
        while True:
            if self.restarts >= self.max_restarts:
                raise EnvironmentFailed(
                    f"{failure}. Environments have been restarted {self.restarts} times, and "
                    f"create_environment.max_restarts = {self.max_restarts} allows no more"
                ) from failure
            self.restarts += 1
            self.close()
            try:
                self._env = self._call("its restart", self._remake)
                return
            except EnvironmentFailed as error:
                failure = error
            except TaacError as error:  # counts as a failure, because they could be created before
                failure = EnvironmentFailed(f"environment '{self.name}' could not be recreated: {error}")

    def _call(self, where: str, fn: Callable[[], Any], action: Nest = None) -> Any:
        """Calls `fn`. Turns what an environment raises into an `EnvironmentFailed` that names the environment and the step."""
        try:
            with Preserved(f"failed at {where}"):
                return fn()
        except EnvironmentFailed as error:
            self._broken = True
            raise EnvironmentFailed(f"environment '{self.name}' {error}{self._hint(str(error))}") from error
        except TaacError:
            self._broken = True
            raise
        except BaseException as error:
            self._broken = True
            if not is_environment_error(error):
                raise
            where = f"failed at {where}: "
            message = f"environment '{self.name}' {where}{describe_error(error)}"
            in_workers = isinstance(self._env, Workers) and isinstance(error, Exception)
            failure = self._env.find_failure(error) if in_workers else None
            if failure is not None:
                index, cause = failure
                seed, _ = self.seeded(index)
                message = f"environment '{self.name}' (number {index} of {self.num_envs}, seed {seed}) {where}{cause}"
                if action is not None:
                    last = nest.map_structure(lambda a: a[index].tolist(), action)
                    message += f"; its last action, in [-1, 1], was {last}"
            raise EnvironmentFailed(message + self._hint(message)) from error

    def _read(self, result: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns what the vector environment returned, with the observation in the spec's dtypes."""
        return spaces.to_arrays(self.observation_spec, result[0]), *result[1:]

    def _hint(self, message: str) -> str:
        """Returns what to do about an environment that fails at once, but not for rendering, which the check does not try."""
        return "" if self._steps or CANNOT_RENDER in message else "; `taac check` of the environment alone says how to mend it"

    def film(self, every: int) -> None:
        """Records a frame at every `every`-th step of the first environment from now on; 0 stops. Needs `recorded`."""
        self._env.set_attr("film_every", [every] + [0] * (self.num_envs - 1))

    def pop_steps(self) -> list[RecordedStep]:
        """Returns and clears the steps that the first environment has recorded since the last call. Needs `recorded`."""
        return self._env.call("pop_steps")[0]

    def close(self) -> None:
        if isinstance(self._env, Workers) and (self._broken or self._env.any_dead()):
            self._env.kill()  # a process that has died or hangs would not answer, and has nothing left to end
        else:
            self._call("its end", self._env.close)
        self._broken = False


class StepChecks:
    """Raises errors for rewards and observations of an environment, numpy arrays, that training cannot use."""

    def __init__(self, environment: VectorEnvironment):
        self._env, self._num_envs = environment, environment.num_envs
        self._leaves = [
            (path, (np.asarray(spec.minimum), np.asarray(spec.maximum)) if spec.is_categorical else None)
            for path, spec in nest.flatten_with_path(environment.observation_spec)
        ]
        self._masked = specs.is_masked(environment.observation_spec, environment.action_spec)

    def reward(self, reward: np.ndarray, action: Nest, step: int) -> None:
        """Checks that rewards `[B]` or `[B, D]`, `step` steps after reset, are finite as float32.

        Raises NotFiniteError if one is not; DivergedError if the `action` `[B, ...]` before it is not finite either.
        """
        fits = np.abs(reward) <= _GREATEST  # False for NaN, too
        if np.count_nonzero(fits) < fits.size:  # in a third of the time of `all`
            self._refuse("a reward", reward, ~fits.reshape(self._num_envs, -1).all(1), action, step)

    def observation(self, observation: Nest, action: Nest, terminated: np.ndarray, step: int) -> None:
        """Checks that observations `[B, ...]` are finite, that categorical ones are in range, and that masks allow a choice.

        Where the episode `terminated` `[B]`, a mask may forbid every choice. Raises TaacError, or as `reward`.
        """
        if self._masked:
            self._check_mask(observation, terminated, step)
        for (path, bounds), leaf in zip(self._leaves, nest.flatten(observation)):
            if bounds is not None and not bool(((leaf >= bounds[0]) & (leaf <= bounds[1])).all()):
                raise TaacError(
                    f"environment '{self._env.name}' returned an observation '{path}' outside its space at step {step} "
                    f"after reset: {leaf.tolist()}, expected {bounds[0].tolist()} to {bounds[1].tolist()}"
                )
            if leaf.dtype == np.float32:
                finite = np.isfinite(leaf)
                if np.count_nonzero(finite) < finite.size:
                    where = ~finite.reshape(self._num_envs, -1).all(1)
                    self._refuse(f"an observation '{path}'" if path else "an observation", leaf, where, action, step)

    def _check_mask(self, observation: Nest, terminated: np.ndarray, step: int) -> None:
        """Requires a valid choice in every branch of every present agent, unless the episode terminated."""
        seen = nest.map_structure(torch.from_numpy, observation)
        forbids = specs.forbids_acting(seen, self._env.action_spec).numpy() & ~terminated
        if forbids.any():
            index, mask = int(np.flatnonzero(forbids)[0]), observation[specs.ACTION_MASK]
            raise TaacError(
                f"environment '{self._env.name}' (number {index} of {self._num_envs}) returned an '{specs.ACTION_MASK}' that "
                f"forbids every choice at step {step} after reset: {mask[index].tolist()}; an episode in which no choice is "
                "possible must terminate, and an agent or a branch that has nothing to do needs a choice that does nothing"
            )

    def _refuse(self, what: str, values: np.ndarray, bad: np.ndarray, action: Nest, step: int) -> None:
        index = int(np.flatnonzero(bad)[0])
        last_action = nest.map_structure(lambda a: a[index].tolist(), action)
        note = " (too large for float32)" if np.isfinite(values[index]).all() else ""
        if what == "a reward" and np.isnan(values[index]).any():
            note = " (or None)"  # of which numpy makes NaN
        seed, episode = self._env.seeded(index)
        message = (
            f"environment '{self._env.name}' (number {index} of {self._num_envs}, seed {seed}, episode {episode} since it was "
            f"seeded) returned {what} that is not finite at step {step} after the {'first ' if episode > 1 else ''}reset: "
            f"{values[index]}{note}; the action before it, in [-1, 1], was {last_action}. "
        )
        evidence = {
            "given": torch.as_tensor(np.array(values)),
            **{f"action/{p}": torch.as_tensor(a) for p, a in nest.flatten_with_path(action)},
        }
        if not all(np.isfinite(leaf[index]).all() for leaf in nest.flatten(action)):
            raise DivergedError(
                f"{message}Training has diverged: try a lower learning rate, or rewards that are clipped or normalised",
                evidence,
            )
        raise NotFiniteError(
            f"{message}Training on it would corrupt every network: fix the environment, or clip the value in a wrapper",
            evidence,
        )
