"""A Gymnasium vector environment as a source of `TimeStep`s."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin
import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from taac import nest, specs
from taac.data_structures import Nest, StepType, TimeStep
from taac.environments import offscreen, single, spaces, torch_settings
from taac.environments.seeded_episodes import REPLAY, Replay, is_own, shown_error
from taac.environments.step_recorder import RecordedStep
from taac.environments.workers import Workers
from taac.errors import DivergedError, EnvironmentFailed, NotFiniteError, TaacError

_GREATEST = float(np.finfo(np.float32).max)
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
        self._categorical = {
            path: (torch.as_tensor(spec.minimum), torch.as_tensor(spec.maximum))
            for path, spec in nest.flatten_with_path(self.observation_spec)
            if spec.is_categorical
        }
        self._masked = isinstance(self.observation_spec, dict) and specs.ACTION_MASK in self.observation_spec
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
        fits = np.abs(reward) <= _GREATEST  # False of NaN, too
        if not fits.all():
            self._refuse("a reward", reward, ~fits.reshape(self.num_envs, -1).all(1), action)
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
        return TimeStep(
            step_type=torch.from_numpy(step_type),
            reward=torch.from_numpy(reward.astype(np.float32)),
            discount=torch.from_numpy(discount.astype(np.float32)),
            observation=self._checked(self._tensors(observation), action, terminated),
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

    def _checked(self, observation: Nest, action: Nest, terminated: np.ndarray) -> Nest:
        if self._masked:
            self._check_mask(observation, terminated)
        for path, leaf in nest.flatten_with_path(observation):
            spec = self._categorical.get(path)
            if spec is not None and not bool(((leaf >= spec[0]) & (leaf <= spec[1])).all()):
                raise TaacError(
                    f"environment '{self.name}' gave an observation '{path}' outside its space at step {self._steps} after "
                    f"reset: {leaf.tolist()}, expected {spec[0].tolist()} to {spec[1].tolist()}"
                )
            if leaf.is_floating_point():
                finite = np.isfinite(leaf.numpy())
                if not finite.all():
                    where = ~finite.reshape(self.num_envs, -1).all(1)
                    self._refuse(f"an observation '{path}'" if path else "an observation", leaf.numpy(), where, action)
        return observation

    def _check_mask(self, observation: Nest, terminated: np.ndarray) -> None:
        """Where the episode goes on, or was cut off, every branch of every present agent must have a valid choice."""
        mask = observation[specs.ACTION_MASK]
        possible = specs.can_act(mask, self.action_spec)
        if specs.AGENT_MASK in observation:
            absent = ~observation[specs.AGENT_MASK]
            possible = possible | absent.reshape(*absent.shape, *(1,) * (possible.dim() - absent.dim()))
        forbids = ~possible.numpy().reshape(self.num_envs, -1).all(1) & ~terminated
        if forbids.any():
            index = int(np.flatnonzero(forbids)[0])
            raise TaacError(
                f"environment '{self.name}' (number {index} of {self.num_envs}) gave an '{specs.ACTION_MASK}' that forbids "
                f"every choice at step {self._steps} after reset: {mask[index].tolist()}; an episode in which nothing can be "
                "done must terminate, and an agent or a branch that has nothing to do needs a choice that does nothing"
            )

    def _refuse(self, what: str, values: np.ndarray, bad: np.ndarray, action: Nest) -> None:
        index = int(np.flatnonzero(bad)[0])
        last_action = nest.map_structure(lambda a: a[index].tolist(), action)
        large = " (too large for float32)" if np.isfinite(values[index]).all() else ""
        told = (
            f"environment '{self.name}' (number {index} of {self.num_envs}) gave {what} that is not finite at step "
            f"{self._steps} after reset: {values[index]}{large}; the action before it, in [-1, 1], was {last_action}. "
        )
        named = {
            "given": torch.as_tensor(np.array(values)),
            **{f"action/{p}": a for p, a in nest.flatten_with_path(action)},
        }
        if not all(bool(leaf[index].isfinite().all()) for _, leaf in nest.flatten_with_path(action)):
            raise DivergedError(
                f"{told}Training has diverged: try a lower learning rate, or rewards that are clipped or normalised",
                named,
            )
        raise NotFiniteError(
            f"{told}Training on it would spoil every network: mend the environment, or clip the value in a wrapper",
            named,
        )

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


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    try:
        yield
    except EnvironmentFailed as error:
        raise EnvironmentFailed(f"environment '{name}' {error}") from error


def _with_bindings(wrapper: Callable[..., gymnasium.Env]) -> Callable[..., gymnasium.Env]:
    """The wrapper with what gin binds to it: a worker process has no bindings."""
    try:
        return functools.partial(wrapper, **gin.get_bindings(wrapper))
    except ValueError:  # not configurable
        return wrapper


@gin.configurable(denylist=["recorded"])
def create_environment(
    env_name: str = gin.REQUIRED,
    num_envs: int = 1,
    asynchronous: bool = False,
    max_episode_steps: int | None = None,
    wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = (),
    env_kwargs: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
    action_repeat: int = 1,
    action_repeat_gamma: float = 0.99,
    action_repeat_plain_sum: bool = False,
    action_repeat_chosen: bool = False,
    step_timeout: float | None = None,
    max_restarts: int = 3,
    remake: bool | None = None,
    recorded: bool = False,
) -> VectorEnvironment:
    """Makes `num_envs` copies of a registered Gymnasium environment.

    Args:
        env_name: the id, `'Hopper-v5'`, or `'module:id'` to import a module that registers it (those in
            `single.OPTIONAL_PACKAGES` need none). An environment with a vector reward says so with a `reward_space`
            attribute, as MO-Gymnasium's do.
        num_envs: environments stepped together.
        asynchronous: each in a process of its own (for slow environments), instead of one after another in this one.
        max_episode_steps: time limit, instead of the registered one.
        wrappers: called with each environment, the first innermost. A wrapper that keeps something from episode to episode
            begins again in every evaluation, and when a stopped run goes on, which then may not be the same run.
        env_kwargs: passed to `gymnasium.make`.
        render_mode: passed to `gymnasium.make`; without a screen, see `offscreen.prepare`.
        action_repeat: every action is taken so many times (a frame skip).
        action_repeat_gamma: discount of a step inside a repeat; the learner's own gamma.
        action_repeat_plain_sum: rewards of a repeat are summed without discount, and a decision is discounted once.
        action_repeat_chosen: the action is a pair (k, action), taken k times, with k in 1..`action_repeat` its own choice.
        step_timeout: seconds that a step or reset of an asynchronous environment may take, all of them together; one that
            takes longer has failed. None: for ever. The environments of evaluations are never asynchronous.
        max_restarts: how often asynchronous environments are made anew in training when one has failed: raised an exception,
            taken too long, or died as a process. All running episodes then end as truncations. After that the run stops,
            with a checkpoint.
        remake: makes environments anew for every episode: for simulators that keep something of earlier episodes, without
            which a resumed run would be another run. None: those of Box2D, which are known to. `taac check --env_name` tries it.
        recorded: environment steps can be taken from `VectorEnvironment.take_steps`, and filmed.

    Raises:
        TaacError: an unknown environment, a missing package, spaces that have no tensor form, no way to render.
    """
    if num_envs < 1:
        raise TaacError(f"create_environment.num_envs must be 1 or more, got {num_envs}")
    if action_repeat < 1:
        raise TaacError(f"create_environment.action_repeat must be 1 or more, got {action_repeat}")
    repeat = single.ActionRepeatSettings(
        action_repeat, action_repeat_gamma, action_repeat_plain_sum, action_repeat_chosen
    )
    kwargs = dict(env_kwargs or {})
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    repeated = repeat if action_repeat > 1 or action_repeat_chosen else None
    spec, limit = single.find_spec(env_name), max_episode_steps
    remakes = single.remembers(spec) if remake is None else remake
    if render_mode is not None:
        offscreen.prepare(spec)
    if step_timeout is not None and not step_timeout > 0:
        raise TaacError(f"create_environment.step_timeout must be above 0 seconds, or None, got {step_timeout}")
    if max_restarts < 0:
        raise TaacError(f"create_environment.max_restarts must be 0 or more, got {max_restarts}")

    def makes(make: Callable[..., gymnasium.Env], inside: tuple[Any, ...]) -> list[Callable[[], gymnasium.Env]]:
        args = (remakes, spec, kwargs, inside, limit, repeated, recorded)
        return [functools.partial(make, (number, num_envs), *args) for number in range(num_envs)]

    if max_episode_steps is not None and max_episode_steps < 1:
        raise TaacError(f"create_environment.max_episode_steps must be 1 or more, or None, got {max_episode_steps}")
    durations = (1 if action_repeat_chosen else action_repeat, action_repeat)
    inside = 1.0 if repeated is None or action_repeat_plain_sum else action_repeat_gamma
    longest = limit or spec.max_episode_steps
    if not asynchronous:
        several = makes(single.make_seeded, tuple(wrappers))
        with _named(env_name), torch_settings.kept("failed when it was made"):
            env = SyncVectorEnv(several, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        return VectorEnvironment(
            env, env_name, single.reward_dim(env.envs[0]), recorded, durations, None, 0, longest, inside
        )
    with _named(env_name), torch_settings.kept(None):
        probe = single.make_seeded((0, 1), False, spec, kwargs, tuple(wrappers), limit, repeated, recorded)
        reward_dim = single.reward_dim(probe)  # an error here is this process's own, with its own message
        probe.close()
    in_worker = functools.partial(single.make_in_worker, os.getpid())
    several = makes(in_worker, tuple(_with_bindings(wrapper) for wrapper in wrappers))

    def start() -> Workers:
        try:
            with _named(env_name), torch_settings.kept(None):  # one is made in this process, for its spaces
                return Workers(several, step_timeout)
        except (ConnectionError, EOFError) as error:
            raise TaacError(
                f"the worker processes of '{env_name}' died when they were started: {error!r}. They must be able to import "
                "what makes the environment; try create_environment.asynchronous = False to see more"
            ) from error

    return VectorEnvironment(start(), env_name, reward_dim, recorded, durations, start, max_restarts, longest, inside)
