"""Examines an environment for everything that training needs: what it is, what is wrong and how to mend it."""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import batch_space

from taac import configuration, nest, specs
from taac.data_structures import Nest
from taac.environments import single, spaces
from taac.environments.create import create_environment
from taac.errors import TaacError

EPISODES, STEPS = 20, 3000  # whichever comes first
_CRASH = (Exception, SystemExit)  # what an environment may raise
_CLIP = "fix it, or clip it in a wrapper"


class Finding(NamedTuple):
    """One result of examining an environment."""

    ok: bool
    about: str
    advice: str = ""  # what to do about it


class _Fault(Exception):
    """What is wrong with an environment in random play, and what to do about it."""


def examine(env_name: str, encoder_ctor: Callable[[Nest], object]) -> list[Finding]:
    """Creates an environment, plays random actions in it and reports the findings. Raises TaacError if it cannot be created.

    `encoder_ctor` is called with the observation spec, and raises TaacError for observations that training would refuse.
    """
    make = functools.partial(single.make_single, single.find_spec(env_name), {}, (), None)
    try:
        env = make()
    except TaacError:
        raise
    except _CRASH as error:
        raise TaacError(f"'{env_name}' cannot be created: {type(error).__name__}: {error}") from error
    with contextlib.closing(env):
        findings, usable = _spaces(env, encoder_ctor)
        if not usable:
            return findings
        try:
            ends, steps, seconds = _play(env)
        except _Fault as fault:
            return [*findings, Finding(False, *fault.args)]
        about = f"{steps} random steps: observations are in their space, numbers are finite, ends are bools"
        seeding = _attempt(lambda: _seeding(make), "seeding: the same seed and actions in two environments, and again")
        findings += [Finding(True, about), _episodes(env, ends, steps), seeding]
    findings.append(_attempt(lambda: _as_in_training(env_name), "two in parallel, as in training"))
    return [*findings, Finding(True, f"a step takes {1e6 * seconds / max(1, steps):.0f} us, over {steps} random steps")]


def _spaces(env: gymnasium.Env, encoder_ctor: Callable[[Nest], object]) -> tuple[list[Finding], bool]:
    """Returns findings about the spaces and wrappers, and whether training can use them."""
    if missing := single.missing_spaces(env):
        return [Finding(False, f"it has {missing[0]}", missing[1])], False
    findings: list[Finding] = []
    read: dict[str, Nest] = {}
    for name, read_spec in (("observation", spaces.observation_spec), ("action", lambda space: spaces.action_adapter(space)[0])):
        space = getattr(env, f"{name}_space")
        try:
            read[name] = read_spec(space)
        except TaacError as error:
            findings.append(Finding(False, f"{name} space {space}", str(error)))
            continue
        sizes = [f"{path} {list(leaf.shape)}".strip() for path, leaf in nest.flatten_with_path(read[name])]
        findings.append(Finding(True, f"{name} space {space}: {len(sizes)} tensor(s), {', '.join(sizes)}"))
    if "observation" in read:
        try:
            configuration.build(lambda: encoder_ctor(read["observation"]))
        except TaacError as error:
            findings.append(Finding(False, "the networks, with their default settings, cannot read its observations", str(error)))
    if "action" in read and (advice := _unlearnable(nest.flatten(read["action"]))) is not None:
        findings.append(Finding(False, "actions that hardly any method learns", advice))
    if any(len(leaf.shape) > 1 for leaf in nest.flatten(read.get("action", ()))):
        advice = "methods take them as agents, one a row: bind create_agent.shared_policy = True, or flatten them in a wrapper"
        findings.append(Finding(True, "actions of rank 2 or more", advice))
    usable = len(read) == 2
    layer: Any = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, gymnasium.wrappers.Autoreset):
            usable = False
            advice = "leave out the wrapper Autoreset, because taac resets environments itself"
            findings.append(Finding(False, "it resets itself at the end of an episode", advice))
        layer = layer.env
    return findings, usable


def _unlearnable(actions: list[specs.TensorSpec]) -> str | None:
    """Returns what to do about actions that no method learns, or only SAC-Krep, which learns a duration and any Boxes."""
    choices = sum(leaf.is_categorical for leaf in actions)
    if len(actions) == 1:
        return None if choices or actions[0].shape else "give the Box the shape (1,); only sac_krep learns it as it is"
    if choices == 0:
        return "put the Boxes together into one, in a wrapper; only sac_krep learns them as they are"
    if choices == len(actions):
        return "put the choices together into a MultiDiscrete, in a wrapper"
    return None if choices == 1 else "put the choices together into one Discrete, in a wrapper"


def _play(env: gymnasium.Env) -> tuple[list[tuple[int, bool]], int, float]:
    """Plays random episodes. Raises _Fault at the first thing that is wrong.

    Returns the length of each episode that ended and whether it terminated, and the number of steps and their seconds.
    """
    ends: list[tuple[int, bool]] = []
    steps, seconds = 0, 0.0
    while len(ends) < EPISODES and steps < STEPS:
        observation = _reset(env, None if ends else 0)
        env.action_space.seed(len(ends))  # not before, because some environments create their spaces at reset
        _check_observation(env, observation, "at reset")
        length, done = 0, False
        while not done and steps < STEPS:
            action = _sampled(env.action_space, observation)
            start = time.perf_counter()
            try:
                observation, reward, terminated, truncated, _ = env.step(action)
            except _CRASH as error:
                advice = "it must accept every action of its space and return (observation, reward, terminated, truncated, info)"
                about = f"step {length + 1} of episode {len(ends) + 1} failed: {type(error).__name__}: {error}, with {action}"
                raise _Fault(about, advice) from error
            seconds += time.perf_counter() - start
            steps, length = steps + 1, length + 1
            where = f"at step {length} of episode {len(ends) + 1}"
            _check_observation(env, observation, where)
            _check_reward(reward, single.reward_dim(env) is not None, where)
            for name, value in (("terminated", terminated), ("truncated", truncated)):
                if not isinstance(value, (bool, np.bool_)):
                    raise _Fault(f"'{name}' {where} is {value!r}", "return a bool")
            done = bool(terminated or truncated)
        if done:
            ends.append((length, bool(terminated)))
    return ends, steps, seconds


def _sampled(space: gymnasium.Space, observation: Any) -> Any:
    """Samples an action: choices among those that the observation's mask allows, if it has one."""
    mask: Any = observation.get(specs.ACTION_MASK) if isinstance(observation, dict) else None
    counts = [space.n] if isinstance(space, Discrete) else space.nvec.ravel() if isinstance(space, MultiDiscrete) else []
    if mask is None or np.size(mask) != sum(counts) or not np.isin(mask, (0, 1)).all():
        return space.sample()
    parts = np.split(np.asarray(mask, np.int8).ravel(), np.cumsum(counts)[:-1])  # of each choice
    if isinstance(space, Discrete):
        return space.sample(parts[0])
    left = iter(parts)

    def nested(sizes: Any) -> tuple[Any, ...]:
        return tuple(nested(row) if np.ndim(row) else next(left) for row in sizes)

    return space.sample(nested(space.nvec))


def _reset(env: gymnasium.Env, seed: int | None) -> Any:
    """Returns the first observation of an episode."""
    advice = "reset(*, seed=None, options=None) must return a pair (observation, info) at the start and after any episode"
    try:
        result = env.reset(seed=seed)
    except _CRASH as error:
        raise _Fault(f"reset failed: {type(error).__name__}: {error}", advice) from error
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        raise _Fault(f"reset returned {result!r}", advice)
    return result[0]


def _check_observation(env: gymnasium.Env, observation: Any, where: str) -> None:
    """Requires an observation in its space, an array where that holds arrays, and finite."""
    space: Any = env.observation_space
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium warns if it is not an array
        arrays = isinstance(space, (Box, MultiBinary, MultiDiscrete))
        inside = space.contains(observation) and (isinstance(observation, np.ndarray) or not arrays)
        part, space, found = ("", space, observation) if inside else _outside(space, observation)
    for path, leaf in nest.flatten_with_path(observation) if inside else [(part, found)]:
        number = isinstance(leaf, (float, np.floating, np.ndarray)) and np.asarray(leaf).dtype.kind == "f"
        if number and not np.isfinite(leaf).all():
            raise _Fault(f"the observation{f' {path!r}' if path else ''} {where} is not finite", _CLIP)
    if inside:
        return
    about = f"the observation{f' {part!r}' if part else ''} {where} is not in its space {space}"
    if isinstance(space, Box) and isinstance(found, (list, tuple)):
        advice = f"return np.array(observation, dtype=np.{space.dtype})"
        raise _Fault(f"{about}: it is a {type(found).__name__}, not an array: {found!r}", advice)
    if not isinstance(space, Box) or not isinstance(found, np.ndarray):
        raise _Fault(f"{about}: {found!r}", "return an element of the space, or correct the space")
    if found.shape != space.shape:
        raise _Fault(f"{about}: its shape is {found.shape}", "return the shape of the space, or correct the space")
    if not np.can_cast(found.dtype, space.dtype):
        advice = f"return observation.astype(np.{space.dtype}), or create the space with dtype=np.{found.dtype}"
        raise _Fault(f"{about}: its dtype is {found.dtype}", advice)
    advice = "widen the space's bounds (np.inf for no bound), or clip the observation"
    raise _Fault(f"{about}: its values are {found.min()} to {found.max()}", advice)


def _outside(space: gymnasium.Space, observation: Any, path: str = "") -> tuple[str, gymnasium.Space, Any]:
    """Returns the innermost part of an observation that is not in its space: its path, that space, and the part."""
    parts: list[tuple[Any, gymnasium.Space, Any]] = []
    if isinstance(space, Dict) and isinstance(observation, dict) and observation.keys() == space.keys():
        parts = [(key, inner, observation[key]) for key, inner in space.items()]
    elif isinstance(space, Tuple) and isinstance(observation, tuple) and len(observation) == len(space):
        parts = [(i, inner, part) for i, (inner, part) in enumerate(zip(space, observation))]
    for key, inner, part in parts:
        if not inner.contains(part):
            return _outside(inner, part, f"{path}/{key}" if path else str(key))
    return path, space, observation


def _check_reward(reward: Any, vector: bool, where: str) -> None:
    try:
        array = np.asarray(reward)
    except ValueError:  # parts of several shapes
        array = np.asarray(None)
    if not np.issubdtype(array.dtype, np.number) and array.dtype != bool:
        raise _Fault(f"the reward {where} is not a number: {reward!r}", "return a float")
    if array.ndim and not vector:
        advice = "return a float; if the reward is a vector, add a reward_space, a Box of rank 1, to the environment"
        raise _Fault(f"the reward {where} has shape {array.shape}", advice)
    if not np.isfinite(array).all():
        raise _Fault(f"the reward {where} is {reward}", _CLIP)


def _episodes(env: gymnasium.Env, ends: list[tuple[int, bool]], steps: int) -> Finding:
    limit = getattr(env.spec, "max_episode_steps", None)
    about = f"time limit {limit} steps" if limit else "declares no time limit"
    if not ends:
        advice = "set create_environment.max_episode_steps, or make episodes end; an evaluation waits until they end"
        return Finding(bool(limit), f"{about}; no episode ended within {steps} random steps", "" if limit else advice)
    lengths, terminated = zip(*ends)
    about += (
        f"; {sum(terminated)} of {len(ends)} episodes terminated, the others were truncated, after {min(lengths)} to "
        f"{max(lengths)} steps"
    )
    if len(ends) < 3 or len(set(lengths)) > 1 or not all(terminated):
        return Finding(True, about)
    advice = (
        "if that is a time limit, return truncated=True instead, or register the environment with max_episode_steps. After "
        "a termination no further reward is expected, which is wrong where an episode is only cut off"
    )
    return Finding(True, f"{about}. All episodes have the same length", advice)


def _seeding(make: Callable[[], gymnasium.Env]) -> Finding:
    """Checks that the same seed and actions repeat an episode, in a second environment and again in the first."""

    def play(env: gymnasium.Env) -> list[Any]:
        observation, _ = env.reset(seed=5)
        env.action_space.seed(1)
        steps: list[Any] = [_bytes(observation)]
        done = False
        while not done and len(steps) < 200:
            observation, reward, terminated, truncated, _ = env.step(_sampled(env.action_space, observation))
            steps.append((_bytes(observation), np.asarray(reward).tolist(), bool(terminated), bool(truncated)))
            done = bool(terminated or truncated)
        return steps

    with contextlib.closing(make()) as first, contextlib.closing(make()) as second:
        one, two = play(first), play(second)
        if one != two:
            at = next((i for i, (a, b) in enumerate(zip(one, two)) if a != b), min(len(one), len(two)))
            advice = (
                "call super().reset(seed=seed) in reset and draw all random numbers from self.np_random. Otherwise a run can "
                "neither be repeated nor resumed bit for bit"
            )
            return Finding(False, f"the same seed and actions lead to different results at step {at}", advice)
        if play(first) != one:
            about = "the same seed repeats the episode in a new environment, but not in one that was used before"
            advice = (
                "bind create_environment.remake = True, which recreates it for every episode. Otherwise a run cannot be "
                "resumed bit for bit. Box2D environments are recreated by default"
            )
            return Finding(True, about, advice)
        return Finding(True, "the same seed and actions repeat the episode")


def _bytes(observation: Any) -> Nest:
    return nest.map_structure(lambda part: np.asarray(part).tobytes(), observation)


def _attempt(check: Callable[[], Finding], about: str) -> Finding:
    """Returns the finding of a check, or one that the check failed with an exception."""
    try:
        return check()
    except TaacError as error:
        return Finding(False, about, str(error))
    except _CRASH as error:
        advice = "it must work when several are created, and in a second episode as in the first"
        return Finding(False, f"{about}: failed with {type(error).__name__}: {error}", advice)


def _as_in_training(env_name: str) -> Finding:
    """Steps two environments in parallel, as training does."""
    with contextlib.closing(create_environment(env_name, 2)) as environment:
        actions = batch_space(environment.action_space, 2)
        actions.seed(0)
        environment.action_space.seed(0)
        time_step, lasts = environment.reset(0), 0
        for _ in range(300):
            drawn, observation = actions.sample(), time_step.observation
            if isinstance(observation, dict) and specs.ACTION_MASK in observation:
                mask = observation[specs.ACTION_MASK]
                masks = (mask | nest.broadcast(time_step.is_last(), mask)).numpy()  # where none may be left
                drawn = np.array([_sampled(environment.action_space, {specs.ACTION_MASK: mask}) for mask in masks])
            time_step = environment.step(spaces.to_unit("random play", environment.action_space, drawn))
            lasts += int(time_step.is_last().sum())
        return Finding(True, f"two in parallel, 300 steps; after each of {lasts} ends a new episode began")
