"""Making the vector environment of a run from a registered Gymnasium environment."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import gin
import gymnasium
from gymnasium.vector import AutoresetMode

from taac.configuration import carried, reading
from taac.environments import offscreen, pool, process_settings, single
from taac.environments.foreign import refuse_foreign_environment
from taac.environments.in_process import InProcess
from taac.environments.vector_environment import VectorEnvironment
from taac.environments.workers import Workers
from taac.errors import EnvironmentFailed, TaacError
from taac.machine.ranks import ALONE, Ranks

_MOST_REPEATS = 2**15 - 1  # of `TimeStep.duration`


@contextlib.contextmanager
def _errors_name(name: str) -> Iterator[None]:
    """Adds the environment's name to every `EnvironmentFailed` raised within."""
    try:
        yield
    except EnvironmentFailed as error:
        raise EnvironmentFailed(f"environment '{name}' {error}") from error


def _with_bindings(wrapper: Callable[..., gymnasium.Env]) -> Callable[..., gymnasium.Env]:
    """Returns the wrapper with its gin bindings as arguments, because those that are no text do not reach a worker process."""
    try:
        return functools.partial(wrapper, **gin.get_bindings(wrapper))
    except ValueError:  # not configurable
        return wrapper


reading.add_check(refuse_foreign_environment)


@gin.configurable(denylist=["recorded", "ranks", "elsewhere"])
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
    engine: Literal["gymnasium", "envpool"] = "gymnasium",
    recorded: bool = False,
    ranks: Ranks = ALONE,
    elsewhere: bool = False,
) -> VectorEnvironment:
    """Creates `num_envs` copies of a registered Gymnasium environment.

    Args:
        env_name: the id, `'Hopper-v5'`, or `'module:id'` to import a module that registers it (not needed for those in
            `single.OPTIONAL_PACKAGES`). An environment with a vector reward needs a `reward_space` attribute, as in
            MO-Gymnasium.
        num_envs: number of environments stepped together, over all ranks.
        asynchronous: whether each runs in a process of its own (for slow environments). If not, they run one after another
            in this process.
        max_episode_steps: time limit that replaces the registered one. One that a class, a function or an object brings along
            stays, so that it may not be below this.
        wrappers: called with each environment, the first innermost. A wrapper that keeps state across episodes loses it at
            every evaluation and when a run is resumed, so the resumed run may differ.
        env_kwargs: passed to `gymnasium.make`.
        render_mode: passed to `gymnasium.make`. Without a screen, see `offscreen.prepare`.
        action_repeat: number of environment steps for which each action is repeated (a frame skip), up to 32,767.
        action_repeat_gamma: discount of a step inside a repeat, normally the learner's gamma: bind both to one macro. It is a
            parameter of its own because environments are also created without a learner. `taac check` warns if the two
            differ.
        action_repeat_plain_sum: sums the rewards of a repeat without discount and discounts each decision once.
        action_repeat_chosen: makes the action a pair (k, action), repeated k times, where the agent chooses k in
            1..`action_repeat`.
        step_timeout: seconds allowed for a step or reset of all asynchronous environments together. After that the
            environment has failed. None waits for ever. The environments of evaluations are never asynchronous.
        max_restarts: number of times that training recreates asynchronous environments after one has failed, which means
            that it raised an exception, took too long, or its process died. All running episodes then end as truncations.
            After the last restart, the next failure stops the run with a checkpoint.
        remake: whether to recreate environments for every episode. Simulators that keep state across episodes need it,
            or a resumed run would differ. None does so for those known to need it, Box2D's. `taac check --env_name` tests it.
        engine: what steps the environments. "envpool" steps them in a pool of C++ threads; see `pool.Pool`. `env_name` is then
            envpool's name of the task, and `env_kwargs` are arguments of `envpool.make`, such as `num_threads`. It has neither
            wrappers, repeated actions, asynchronous environments nor rendering.
        ranks: the processes among which the environments are divided.
        recorded: whether steps can be read with `VectorEnvironment.pop_steps`, and filmed.
        elsewhere: describes environments that other processes create: all attributes are those of `num_envs` environments, but
            there are none to step. One is created to read its spaces, and closed.

    Raises:
        TaacError: an argument out of range, an unknown environment, a missing package, a space that has no tensor form, or
            no way to render.
    """
    if num_envs < 1:
        raise TaacError(f"create_environment.num_envs must be 1 or more, got {num_envs}")
    num_envs = ranks.share("create_environment.num_envs", num_envs)
    if not 1 <= action_repeat <= _MOST_REPEATS:
        raise TaacError(f"create_environment.action_repeat must be 1 to {_MOST_REPEATS}, got {action_repeat}")
    if not 0 < action_repeat_gamma <= 1:
        raise TaacError(f"create_environment.action_repeat_gamma must be in (0, 1], got {action_repeat_gamma}")
    kwargs = dict(env_kwargs or {})
    repeats = action_repeat > 1 or action_repeat_chosen
    repeat_gamma = action_repeat_gamma if repeats and not action_repeat_plain_sum else 1.0
    repeated = single.ActionRepeatSettings(action_repeat, repeat_gamma, action_repeat_chosen) if repeats else None
    if step_timeout is not None and not step_timeout > 0:
        raise TaacError(f"create_environment.step_timeout must be above 0 seconds, or None, got {step_timeout}")
    if max_restarts < 0:
        raise TaacError(f"create_environment.max_restarts must be 0 or more, got {max_restarts}")
    if max_episode_steps is not None and max_episode_steps < 1:
        raise TaacError(f"create_environment.max_episode_steps must be 1 or more, or None, got {max_episode_steps}")
    if engine == "envpool":
        refused = {
            "asynchronous": asynchronous, "wrappers": tuple(wrappers), "action_repeat": repeated, "remake": remake,
            "step_timeout": step_timeout, "recorded steps (such as evaluation_video)": recorded, "render_mode": render_mode,
        }  # fmt: skip
        envs = pool.create(env_name, num_envs, max_episode_steps, kwargs, refused)
        return VectorEnvironment(envs, env_name, max_episode_steps=envs.max_episode_steps)
    with process_settings.kept():  # it may import the environment's module
        spec = single.find_spec(env_name)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
        offscreen.prepare(spec)
    remakes = single.keeps_state(spec) if remake is None else remake

    def copies(make: Callable[..., gymnasium.Env], wrapped_in: tuple[Any, ...]) -> list[Callable[[], gymnasium.Env]]:
        args = (remakes, spec, kwargs, wrapped_in, max_episode_steps, repeated, recorded)
        return [functools.partial(make, (number, num_envs), *args) for number in range(num_envs)]

    of_all = functools.partial(
        VectorEnvironment,
        name=env_name,
        recorded=recorded,
        durations=(1 if action_repeat_chosen else action_repeat, action_repeat),
        repeat_gamma=repeat_gamma,
    )
    if elsewhere or not asynchronous:
        makers = copies(single.make_seeded, tuple(wrappers))[: 1 if elsewhere else None]
        with _errors_name(env_name), process_settings.preserved("failed when it was created"):
            env = InProcess(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        found = of_all(env, reward_dim=single.reward_dim(env.envs[0]), max_episode_steps=single.time_limit(env.envs[0]))
        if elsewhere:
            found.close()
            found.num_envs = num_envs
        return found
    with _errors_name(env_name), process_settings.preserved(None):
        # The probe is created in this process, so that its errors keep their own messages.
        probe = single.make_seeded((0, 1), False, spec, kwargs, tuple(wrappers), max_episode_steps, repeated, recorded)
        found_in_it: dict[str, Any] = {"reward_dim": single.reward_dim(probe), "max_episode_steps": single.time_limit(probe)}
        probe.close()
    in_worker = functools.partial(single.make_in_worker, os.getpid(), carried.bindings())
    makers = copies(in_worker, tuple(_with_bindings(wrapper) for wrapper in wrappers))

    def start() -> Workers:
        try:
            with _errors_name(env_name), process_settings.preserved(None):  # Gymnasium creates one here, for its spaces
                return Workers(makers, step_timeout)
        except (ConnectionError, EOFError) as error:
            raise TaacError(
                f"the worker processes of '{env_name}' died when they were started: {error!r}. They must be able to import "
                "the code that creates the environment; try create_environment.asynchronous = False to see more. A script that "
                "uses taac must do so below `if __name__ == \"__main__\":`, because each of these processes imports it"
            ) from error

    return of_all(start(), remake=start, max_restarts=max_restarts, **found_in_it)
