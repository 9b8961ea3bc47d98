"""Makes the vector environment of a run from a registered Gymnasium environment."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import gin
import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from taac.configuration import Binding, Config, gin_state, reading
from taac.environments import envpool_vector, images, offscreen, single, spaces
from taac.environments.process_settings import Preserved
from taac.environments.vector_environment import VectorEnvironment
from taac.environments.workers import Workers
from taac.errors import EnvironmentFailed, NotTrusted, TaacError
from taac.machine.ranks import ALONE, Ranks

_MOST_REPEATS = 2**15 - 1  # of `TimeStep.duration`


@gin.configurable(denylist=["recorded", "ranks", "elsewhere", "evaluating", "outer_wrappers"])
def create_environment(
    env_name: str = gin.REQUIRED,
    num_envs: int = 1,
    asynchronous: bool = False,
    max_episode_steps: int | None = None,
    wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = (),
    evaluation_wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
    action_repeat: int = 1,
    action_repeat_gamma: float = 0.99,
    action_repeat_plain_sum: bool = False,
    action_repeat_chosen: bool | Callable[..., single.ActionRepeat] = False,
    step_timeout: float | None = None,
    max_restarts: int = 3,
    info: Sequence[str] = (),
    frame_stack: int = 1,
    remake: bool | None = None,
    engine: Literal["gymnasium", "envpool"] = "gymnasium",
    recorded: bool = False,
    ranks: Ranks = ALONE,
    elsewhere: bool = False,
    evaluating: bool = False,
    outer_wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]] = (),
) -> VectorEnvironment:
    """Creates `num_envs` copies of a registered Gymnasium environment.

    Args:
        env_name: the id, `'Hopper-v5'`, or `'module:id'` to import a module that registers it (not needed for those in
            `single.OPTIONAL_PACKAGES`). An environment with a vector reward needs a `reward_space` attribute, as in
            MO-Gymnasium.
        num_envs: number of environments stepped together, over all ranks.
        asynchronous: whether each runs in a process of its own (for slow environments). If not, they run one after another
            in this process.
        max_episode_steps: replaces the registered time limit. A `TimeLimit` that a class, a function or an object brings along
            stays, and must not be shorter.
        wrappers: called with each environment, the first innermost. A wrapper that keeps state across episodes loses it at
            every evaluation and when a run is resumed, so the resumed run may differ.
        evaluation_wrappers: replace `wrappers` wherever an agent is evaluated or played: `(@ActionDelay,)` for a delay that
            training lacks, `()` for one that only training has. The spaces must stay the same. None: `wrappers`.
        env_kwargs: passed to `gymnasium.make`.
        render_mode: passed to `gymnasium.make`. Without a screen, see `offscreen.prepare`.
        action_repeat: number of environment steps for which each action is repeated (a frame skip), up to 32,767.
        action_repeat_gamma: discount of a step inside a repeat, normally the learner's gamma: bind both to one macro. It is a
            parameter of its own because environments are also created without a learner. `taac check` warns if the two
            differ.
        action_repeat_plain_sum: sums the rewards of a repeat without discount and discounts each decision once.
        action_repeat_chosen: the agent chooses how often each action is repeated, k in 1..`action_repeat`. True makes the action
            a pair (k, action). `@DurationCoordinate` gives a Box of actions one number more; see there.
        step_timeout: seconds allowed for a step or reset of all asynchronous environments together. After that the
            environment has failed. None waits for ever. The environments of evaluations are never asynchronous.
        max_restarts: number of times that training recreates asynchronous environments after one has failed: it raised an
            exception, took too long, or its process died. All running episodes then end as truncations. After the last
            restart, the next failure stops the run with a checkpoint.
        info: numbers in the environment's `info` that episodes report, such as `('is_success', 'reward_ctrl:sum')`: the last
            value in an episode, or the `:sum`, `:mean`, `:max` or `:min`. They appear as summaries, `rollout/info/is_success` and
            `evaluation/info/is_success`, in evaluations.csv and in reports.
        frame_stack: how many of the last pictures are stacked along their channels. It stacks what the agent sees, after
            `action_repeat` steps of the environment. The replay buffer stores each picture once.
        remake: whether to recreate environments for every episode. Simulators that keep state across episodes need it,
            or a resumed run would differ. None does so for those known to need it, Box2D's. `taac check --env_name` tests it.
        engine: what steps the environments. "envpool" steps them in a pool of C++ threads; see `EnvpoolVector`. `env_name`
            is then envpool's name of the task, and `env_kwargs` are arguments of `envpool.make`, such as `num_threads`. It has
            no wrappers, repeated actions, asynchronous environments, rendering, `frame_stack`, `info`, `remake` or
            `step_timeout`.
        ranks: the processes among which the environments are divided.
        recorded: whether steps can be read with `VectorEnvironment.pop_steps`, and filmed.
        elsewhere: describes environments that other processes create: all attributes are those of `num_envs` environments, but
            there are none to step. One is created to read its spaces, and closed.
        evaluating: whether they are for evaluations, and so have `evaluation_wrappers`.
        outer_wrappers: called after `wrappers`.

    Raises:
        TaacError: an argument out of range, an unknown environment, a missing package, a space that has no tensor form, or
            no way to render.
    """
    for name, given, fits, expected in (
        ("num_envs", num_envs, num_envs >= 1, "1 or more"),
        ("action_repeat", action_repeat, 1 <= action_repeat <= _MOST_REPEATS, f"1 to {_MOST_REPEATS}"),
        ("action_repeat_gamma", action_repeat_gamma, 0 < action_repeat_gamma <= 1, "in (0, 1]"),
        ("step_timeout", step_timeout, step_timeout is None or step_timeout > 0, "above 0 seconds, or None"),
        ("frame_stack", frame_stack, frame_stack >= 1, "1 or more"),
        ("max_restarts", max_restarts, max_restarts >= 0, "0 or more"),
        ("max_episode_steps", max_episode_steps, max_episode_steps is None or max_episode_steps >= 1, "1 or more, or None"),
    ):
        if not fits:
            raise TaacError(f"create_environment.{name} must be {expected}, got {given}")
    info = _checked_names((info,) if isinstance(info, str) else tuple(info))
    num_envs = ranks.share("create_environment.num_envs", num_envs)
    if evaluating and evaluation_wrappers is not None:
        wrappers = evaluation_wrappers
    kwargs, wrappers = dict(env_kwargs or {}), (*wrappers, *outer_wrappers)
    repeats = action_repeat > 1 or bool(action_repeat_chosen)
    if engine == "envpool":
        refused = {
            "asynchronous": asynchronous, "wrappers": tuple(wrappers), "action_repeat": repeats and action_repeat,
            "remake": remake, "info": info, "frame_stack": frame_stack > 1, "step_timeout": step_timeout,
            "recorded steps (such as evaluation_video)": recorded,
            "render_mode": render_mode,
        }  # fmt: skip
        envs = envpool_vector.EnvpoolVector(env_name, num_envs, max_episode_steps, kwargs, refused)
        return VectorEnvironment(envs, env_name, max_episode_steps=envs.max_episode_steps)
    with Preserved(None):  # it may import the environment's module
        spec = single.find_spec(env_name)
        gin_state.keep_import(env_name.rpartition(":")[0])
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
        offscreen.prepare(spec)
    # Box2D is known to keep state across episodes in spite of seeding.
    remakes = str(spec.entry_point).startswith("gymnasium.envs.box2d") if remake is None else remake
    outside: list[Callable[..., gymnasium.Env]] = [functools.partial(single.EpisodeInfo, names=info)] if info else []
    outside += [single.StepRecorder] if recorded else []
    repeat_gamma = action_repeat_gamma if repeats and not action_repeat_plain_sum else 1.0
    if repeats:
        repeat = single.ChosenRepeat if action_repeat_chosen is True else action_repeat_chosen or single.ActionRepeat
        outside.append(functools.partial(repeat, num_steps=action_repeat, gamma=repeat_gamma))

    if frame_stack > 1:
        outside.append(functools.partial(images.FrameStack, num_frames=frame_stack))

    def copies(make: Callable[..., gymnasium.Env], inside: Iterable[Any], count: int) -> list[Callable[[], gymnasium.Env]]:
        args = (remakes, spec, kwargs, (*inside, *outside), max_episode_steps)
        return [functools.partial(make, (number, num_envs), *args) for number in range(count)]

    def about(env: gymnasium.Env) -> dict[str, Any]:
        return {
            "name": env_name, "reward_dim": single.reward_dim(env), "recorded": recorded, "repeat_gamma": repeat_gamma,
            "durations": (1 if action_repeat_chosen else action_repeat, action_repeat),
            "max_episode_steps": single.time_limit(env),
            "duration_coordinate": env.has_wrapper_attr("duration_coordinate") and env.get_wrapper_attr("duration_coordinate"),
            "goal_functions": single.goal_functions(env), "info": info,
            "frame_stack": frame_stack,
        }  # fmt: skip

    if elsewhere or not asynchronous:
        makers = copies(single.make_seeded, wrappers, 1 if elsewhere else num_envs)
        with _errors_name(env_name), Preserved("failed when it was created"):
            env = SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        found = VectorEnvironment(env, **about(env.envs[0]))
        if elsewhere:
            found.close()
            found.num_envs = num_envs
        return found

    in_worker = functools.partial(single.make_in_worker, os.getpid(), gin_state.bindings_text())
    workers = copies(in_worker, map(_with_bindings, wrappers), num_envs)

    def start() -> Workers:
        try:
            with _errors_name(env_name), Preserved(None):  # Gymnasium creates one here, for its spaces
                return Workers(workers, step_timeout)
        except (ConnectionError, EOFError) as error:
            raise TaacError(
                f"the worker processes of '{env_name}' died when they were started: {error!r}. They must be able to import "
                "the code that creates the environment; try create_environment.asynchronous = False to see more. A script that "
                "uses taac must do so below `if __name__ == \"__main__\":`, because each of these processes imports it"
            ) from error

    (make_probe,) = copies(single.make_seeded, wrappers, 1)  # in this process, so that its errors keep their own messages
    with _errors_name(env_name), Preserved(None), contextlib.closing(make_probe()) as probe:
        known = about(probe)
        spaces.observation_spec(probe.observation_space)  # refuses what it cannot use before workers start
        spaces.action_adapter(probe.action_space)
    return VectorEnvironment(start(), **known, remake=start, max_restarts=max_restarts)


def _checked_names(info: tuple[str, ...]) -> tuple[str, ...]:
    """Refuses names that no column of a table can have."""
    for name in info:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.][\w ./:-]{0,99}", name):
            raise TaacError(f"create_environment.info must be names of letters, digits and any of ' ._/:-', got {name!r}")
    if len(set(info)) < len(info):
        raise TaacError(f"create_environment.info names one number twice: {', '.join(info)}")
    return info


@contextlib.contextmanager
def _errors_name(name: str) -> Iterator[None]:
    """Adds the environment's name to every `EnvironmentFailed` raised within."""
    try:
        yield
    except EnvironmentFailed as error:
        raise EnvironmentFailed(f"environment '{name}' {error}") from error


def _with_bindings(wrapper: Callable[..., gymnasium.Env]) -> Callable[..., gymnasium.Env]:
    """Returns the wrapper with its gin bindings as arguments, because those that are not text do not reach a worker process."""
    try:
        return functools.partial(wrapper, **gin.get_bindings(wrapper))
    except ValueError:  # not configurable
        return wrapper


# Configurations that are not trusted --------------------------------------------------------------------------------------


def refuse_foreign_environment(binding: Binding, config: Config, trusted: bool) -> None:
    """Raises NotTrusted for an environment of an unlisted package, and for arguments that may make one import or open others."""
    if trusted or not binding.selector.endswith(".create_environment"):
        return
    words = config.bound("create_environment.engine") != "envpool"  # its VizDoom takes options that name a program to start
    known, value = config.resolve(binding.value)
    if binding.name == "env_name":
        if not known or not isinstance(value, str) or ":" in value:
            raise NotTrusted(f"{binding} imports the module before the colon, or is only known once it is built")
        # envpool looks up what Gymnasium does not know in a list of its own.
        if (words or value in gymnasium.registry) and not single.is_allowed(single.module_of(single.find_spec(value))):
            raise NotTrusted(f"{binding} is an environment of another package than {', '.join(single.ALLOWED_PACKAGES)}")
    elif binding.name == "env_kwargs":
        plain = isinstance(value, dict) and all(isinstance(key, str) and _is_plain(part, words) for key, part in value.items())
        if not known or not (plain or value is None):
            named = "words that name nothing in the working directory, " if words else ""
            raise NotTrusted(
                f"{binding}: expected numbers, {named}True, False, None, or lists of them; simulators import, open or start what "
                "other arguments name"
            )


reading.add_check(refuse_foreign_environment)


def _is_plain(value: Any, words: bool) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(part, words) for part in value)
    if isinstance(value, str):
        return words and re.fullmatch(r"[\w -]*", value) is not None and not os.path.lexists(value)  # no path
    return value is None or isinstance(value, (bool, int, float))
