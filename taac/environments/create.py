"""Making the vector environment of a run from a registered Gymnasium environment."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin
import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from taac.environments import offscreen, single, torch_settings
from taac.environments.vector_environment import VectorEnvironment
from taac.environments.workers import Workers
from taac.errors import EnvironmentFailed, TaacError


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
