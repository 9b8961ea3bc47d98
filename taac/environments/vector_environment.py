"""A Gymnasium vector environment as a source of `TimeStep`s."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gin
import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from taac import nest, specs
from taac.data_structures import Nest, StepType, TimeStep
from taac.environments import single, spaces
from taac.errors import TaacError


class VectorEnvironment:
    """Steps a `gymnasium.vector.VectorEnv` in NEXT_STEP autoreset, and gives time steps on the CPU.

    Termination and time limit at once count as termination. Every float is checked to be finite.

    Attributes:
        observation_spec, action_spec: nests of specs, one environment's; float actions are in [-1, 1].
        reward_dim: D if the reward is a vector, else None.
        num_envs: B.
        raw_reward: `[B]` or `[B, D]`, the undiscounted rewards of the environment steps that the last `step` took.

    Args:
        env: the vector environment; a vector reward comes in its `info["taac_vector_reward"]`, see `single.VectorReward`.
        name: for messages.
        reward_dim: D if the reward is a vector.

    Raises:
        TaacError: another autoreset mode, or spaces that have no tensor form.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv, name: str, reward_dim: int | None = None):
        mode = env.metadata.get("autoreset_mode")
        if mode != AutoresetMode.NEXT_STEP:
            raise TaacError(
                f"vector environment '{name}' has autoreset mode {mode}; taac needs AutoresetMode.NEXT_STEP, in which the "
                "last observation of an episode is a step of its own: pass autoreset_mode=AutoresetMode.NEXT_STEP"
            )
        self._env, self.name, self.num_envs = env, name, env.num_envs
        self.observation_spec = spaces.observation_spec(env.single_observation_space)
        self.action_spec, self._to_env_action = spaces.action_adapter(env.single_action_space)
        self.reward_dim = reward_dim
        self._reward_shape = (self.num_envs,) if reward_dim is None else (self.num_envs, reward_dim)
        self._categorical = {
            path: (torch.as_tensor(spec.minimum), torch.as_tensor(spec.maximum))
            for path, spec in nest.flatten_with_path(self.observation_spec)
            if spec.is_categorical
        }
        self._done = np.zeros(self.num_envs, dtype=bool)
        self._zero_action = specs.zeros(self.action_spec, self.num_envs)
        self._steps = 0
        self.raw_reward = np.zeros(self._reward_shape)

    @property
    def render_fps(self) -> float:
        return float(self._env.metadata.get("render_fps") or 30)

    def reset(self, seed: int) -> TimeStep:
        """Begins an episode in every environment; environment i is seeded with `seed + i`."""
        observation, _ = self._guarded("reset", lambda: self._env.reset(seed=seed))
        self._done[:] = False
        self._steps = 0
        self.raw_reward = np.zeros(self._reward_shape)
        return TimeStep(
            step_type=torch.full((self.num_envs,), int(StepType.FIRST), dtype=torch.uint8),
            reward=torch.zeros(self._reward_shape),
            discount=torch.ones(self.num_envs),
            observation=self._checked(self._tensors(observation), self._zero_action),
            prev_action=self._zero_action,
            duration=torch.zeros(self.num_envs, dtype=torch.int16),
        )

    def step(self, action: Nest) -> TimeStep:
        """Takes `action` `[B, ...]`; where an episode has just ended, ignores it and begins the next one.

        Raises:
            TaacError: a reward or observation that is NaN or infinite.
        """
        observation, reward, terminated, truncated, info = self._guarded(
            f"step {self._steps + 1} after reset", lambda: self._env.step(self._to_env_action(action))
        )
        first = self._done
        self._done = terminated | truncated
        self._steps += 1
        if self.reward_dim is not None:  # absent when every environment has just begun an episode
            reward = info.get("taac_vector_reward", np.zeros(self._reward_shape))
        if not np.isfinite(reward).all():
            self._refuse("a reward", reward, ~np.isfinite(reward.reshape(self.num_envs, -1)).all(1), action)
        step_type = np.where(self._done, np.uint8(StepType.LAST), np.uint8(StepType.MID))
        discount = np.float32(1.0) - terminated.astype(np.float32)
        duration = np.ones(self.num_envs, dtype=np.int16)
        self.raw_reward = info.get("taac_raw_reward", reward)
        if "taac_duration" in info:
            discount, duration = discount * info["taac_discount"], info["taac_duration"].astype(np.int16)
        if first.any():
            step_type[first], discount[first], duration[first] = StepType.FIRST, 1.0, 0
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
            observation=self._checked(self._tensors(observation), action),
            prev_action=action,
            duration=torch.from_numpy(duration),
        )

    def _guarded(self, where: str, fn: Callable[[], Any]) -> Any:
        try:
            return fn()
        except TaacError:
            raise
        except Exception as error:
            raise TaacError(f"environment '{self.name}' failed at {where}: {type(error).__name__}: {error}") from error

    def _tensors(self, observation: Any) -> Nest:
        return self._guarded("an observation", lambda: spaces.to_tensors(self.observation_spec, observation))

    def _checked(self, observation: Nest, action: Nest) -> Nest:
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

    def _refuse(self, what: str, values: np.ndarray, bad: np.ndarray, action: Nest) -> None:
        index = int(np.flatnonzero(bad)[0])
        last_action = nest.map_structure(lambda a: a[index].tolist(), action)
        raise TaacError(
            f"environment '{self.name}' (number {index} of {self.num_envs}) gave {what} that is not finite at step "
            f"{self._steps} after reset: {values[index]}; the action before it, in [-1, 1], was {last_action}. "
            "Training on it would spoil every network: mend the environment, or clip the value in a wrapper"
        )

    def render(self) -> Sequence[np.ndarray] | None:
        """A frame `[H, W, 3]` uint8 of each environment, if made with `render_mode='rgb_array'`."""
        return self._env.render()

    def close(self) -> None:
        self._env.close()


def _with_bindings(wrapper: Callable[..., gymnasium.Env]) -> Callable[..., gymnasium.Env]:
    """The wrapper with what gin binds to it: a worker process has no bindings."""
    try:
        return functools.partial(wrapper, **gin.get_bindings(wrapper))
    except ValueError:  # not configurable
        return wrapper


@gin.configurable
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
) -> VectorEnvironment:
    """Makes `num_envs` copies of a registered Gymnasium environment.

    Args:
        env_name: the id, `'Hopper-v5'`, or `'module:id'` to import a module that registers it (those in
            `single.OPTIONAL_PACKAGES` need none). An environment with a vector reward says so with a `reward_space`
            attribute, as MO-Gymnasium's do.
        num_envs: environments stepped together.
        asynchronous: each in a process of its own (for slow environments), instead of one after another in this one.
        max_episode_steps: time limit, instead of the registered one.
        wrappers: called with each environment, the first innermost.
        env_kwargs: passed to `gymnasium.make`.
        render_mode: passed to `gymnasium.make`.
        action_repeat: every action is taken so many times (a frame skip).
        action_repeat_gamma: discount of a step inside a repeat; the learner's own gamma.
        action_repeat_plain_sum: rewards of a repeat are summed without discount, and a decision is discounted once.
        action_repeat_chosen: the action is a pair (k, action), taken k times, with k in 1..`action_repeat` its own choice.

    Raises:
        TaacError: an unknown environment, a missing package, spaces that have no tensor form.
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
    make = functools.partial(single.make_single, spec, kwargs, tuple(wrappers), limit, repeated)
    if max_episode_steps is not None and max_episode_steps < 1:
        raise TaacError(f"create_environment.max_episode_steps must be 1 or more, or None, got {max_episode_steps}")
    if asynchronous:
        probe = make()  # an error here is this process's own, with its own message
        reward_dim = single.reward_dim(probe)
        probe.close()
        bound = tuple(_with_bindings(wrapper) for wrapper in wrappers)
        make = functools.partial(single.make_single, spec, kwargs, bound, limit, repeated)
        try:  # Not "fork": torch's threads do not survive it.
            env: gymnasium.vector.VectorEnv = AsyncVectorEnv(
                [make] * num_envs, copy=False, context="spawn", autoreset_mode=AutoresetMode.NEXT_STEP
            )
        except (ConnectionError, EOFError) as error:
            raise TaacError(
                f"the worker processes of '{env_name}' died when they were started: {error!r}. They must be able to import "
                "what makes the environment; try create_environment.asynchronous = False to see more"
            ) from error
    else:
        env = SyncVectorEnv([make] * num_envs, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        reward_dim = single.reward_dim(env.envs[0])
    return VectorEnvironment(env, env_name, reward_dim)
