"""An environment tried through what training needs of it: what it is, what is wrong with it, and how to mend that."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from taac import nest, specs
from taac.environments import single, spaces
from taac.environments.create import create_environment
from taac.errors import TaacError

_ARRAYS = (gymnasium.spaces.Box, gymnasium.spaces.MultiBinary, gymnasium.spaces.MultiDiscrete)
EPISODES, STEPS = 20, 3000  # whichever comes first


class Finding(NamedTuple):
    """Something about an environment."""

    fine: bool
    about: str
    mend: str = ""  # what to do about it


class _Seen(NamedTuple):
    """What playing at random showed."""

    findings: list[Finding]
    lengths: list[int]  # of episodes that ended
    terminated: list[bool]  # of the same: terminated, rather than truncated
    steps: int
    seconds: float


def examine(env_name: str) -> list[Finding]:
    """Makes an environment, plays in it at random, and tells what was found.

    Raises:
        TaacError: there is no such environment, or it cannot be made.
    """
    spec = single.find_spec(env_name)

    def make() -> gymnasium.Env:
        return single.make_single(spec, {}, (), None)

    try:
        env = make()
    except TaacError:
        raise
    except (Exception, SystemExit) as error:
        raise TaacError(f"'{env_name}' cannot be made: {type(error).__name__}: {error}") from error
    try:
        found, usable = _spaces(env)
        if not usable:
            return found
        seen = _play(env)
        found += seen.findings
        if any(not finding.fine for finding in seen.findings):
            return found
        found += _episodes(env, seen)
        found.append(
            _tried(lambda: _seeding(make), "seeding: the same seed and actions in two environments, and again")
        )
    finally:
        env.close()
    found.append(_tried(lambda: _as_training_sees_it(env_name), "two in parallel, as in training"))
    found.append(
        Finding(True, f"a step takes {1e6 * seen.seconds / max(1, seen.steps):.0f} us, over {seen.steps} random steps")
    )
    return found


def _spaces(env: gymnasium.Env) -> tuple[list[Finding], bool]:
    found, usable = [], True
    kinds: list[tuple[str, Any, Any]] = [
        ("observation", spaces.observation_spec, env.observation_space),
        ("action", lambda space: spaces.action_adapter(space)[0], env.action_space),
    ]
    for name, read, space in kinds:
        try:
            leaves = list(nest.flatten_with_path(read(space)))
            found.append(Finding(True, f"{name} space {space}: {len(leaves)} tensor(s), {_sizes(leaves)}"))
        except TaacError as error:
            usable = False
            found.append(Finding(False, f"{name} space {space}", str(error)))
    inside: Any = env
    while isinstance(inside, gymnasium.Wrapper):
        if isinstance(inside, gymnasium.wrappers.Autoreset):
            usable = False
            found.append(
                Finding(
                    False, "it resets itself at the end of an episode", "leave out the wrapper Autoreset: taac resets"
                )
            )
        inside = inside.env
    return found, usable


def _sizes(leaves: list[tuple[str, specs.TensorSpec]]) -> str:
    return ", ".join(f"{path + ' ' if path else ''}{list(leaf.shape)}" for path, leaf in leaves)


def _play(env: gymnasium.Env) -> _Seen:
    """Random episodes; stops at the first thing that is wrong."""
    env.action_space.seed(0)
    lengths: list[int] = []
    ends: list[bool] = []
    steps, seconds = 0, 0.0
    vector = single.reward_dim(env) is not None
    seed: int | None = 0
    while len(lengths) < EPISODES and steps < STEPS:
        given = _reset(env, seed)
        if isinstance(given, Finding):
            return _Seen([given], [], [], 0, 0.0)
        observation = given[0]
        seed, length, over = None, 0, False
        wrong = _observation(env, observation, "at reset")
        while not over and wrong is None and steps < STEPS:
            action = env.action_space.sample()
            start = time.perf_counter()
            try:
                observation, reward, terminated, truncated, _ = env.step(action)
            except (Exception, SystemExit) as error:
                mend = "it must take any action of its space, and return (observation, reward, terminated, truncated, info)"
                about = f"step {length + 1} of episode {len(lengths) + 1} failed: {type(error).__name__}: {error}, with {action}"
                return _Seen([Finding(False, about, mend)], [], [], 0, 0.0)
            seconds += time.perf_counter() - start
            steps, length = steps + 1, length + 1
            where = f"at step {length} of episode {len(lengths) + 1}"
            wrong = _observation(env, observation, where) or _reward(reward, vector, where)
            wrong = wrong or _ended(terminated, truncated, where)
            over = bool(terminated) or bool(truncated)
        if wrong is not None:
            return _Seen([wrong], lengths, ends, steps, seconds)
        if over:
            lengths.append(length)
            ends.append(bool(terminated))
    about = f"{steps} random steps: observations are in their space, numbers are finite, ends are bools"
    return _Seen([Finding(True, about)], lengths, ends, steps, seconds)


def _reset(env: gymnasium.Env, seed: int | None) -> Any:
    mend = "reset(*, seed=None, options=None) must return a pair (observation, info) at the start and after any episode"
    try:
        given = env.reset(seed=seed)
    except (Exception, SystemExit) as error:
        return Finding(False, f"reset failed: {type(error).__name__}: {error}", mend)
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[1], dict):
        return Finding(False, f"reset returned {given!r}", mend)
    return given


def _observation(env: gymnasium.Env, observation: Any, where: str) -> Finding | None:
    space = env.observation_space
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium's, of what is no array
        inside = space.contains(observation) and (isinstance(observation, np.ndarray) or not isinstance(space, _ARRAYS))
    if inside:
        for path, leaf in _numbers(observation):
            if not np.isfinite(leaf).all():
                name = f" '{path}'" if path else ""
                return Finding(
                    False, f"the observation{name} {where} is not finite", "mend it, or clip it in a wrapper"
                )
        return None
    told = f"the observation {where} is not in its space {space}"
    if isinstance(space, gymnasium.spaces.Box) and isinstance(observation, np.ndarray):
        array = observation
        if array.shape != space.shape:
            return Finding(
                False, f"{told}: its shape is {array.shape}", "return what the space says, or correct the space"
            )
        if not np.can_cast(array.dtype, space.dtype):
            mend = f"return observation.astype(np.{space.dtype}), or give the space dtype=np.{array.dtype}"
            return Finding(False, f"{told}: its dtype is {array.dtype}", mend)
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            return Finding(False, f"the observation {where} is not finite: {array}", "mend it, or clip it in a wrapper")
        outside = f"{array.min()} to {array.max()}" if array.size else "empty"
        return Finding(
            False,
            f"{told}: its values are {outside}",
            "widen the space's bounds (np.inf has none), or clip the observation",
        )
    return Finding(False, f"{told}: {observation!r}", "return what the space says, or correct the space")


def _numbers(observation: Any, path: str = "") -> list[tuple[str, np.ndarray]]:
    if isinstance(observation, dict):
        return [x for key, part in observation.items() for x in _numbers(part, f"{path}/{key}" if path else str(key))]
    if isinstance(observation, tuple):
        return [x for i, part in enumerate(observation) for x in _numbers(part, f"{path}/{i}" if path else str(i))]
    array = np.asarray(observation)
    return [(path, array)] if np.issubdtype(array.dtype, np.floating) else []


def _reward(reward: Any, vector: bool, where: str) -> Finding | None:
    array = np.asarray(reward)
    if not np.issubdtype(array.dtype, np.number) and array.dtype != bool:
        return Finding(False, f"the reward {where} is no number: {reward!r}", "return a float")
    if array.ndim and not vector:
        mend = "return a float; or give the environment a reward_space, a Box of rank 1, if its reward is a vector"
        return Finding(False, f"the reward {where} has shape {array.shape}", mend)
    if not np.isfinite(array).all():
        return Finding(False, f"the reward {where} is {reward}", "mend it, or clip it in a wrapper")
    return None


def _ended(terminated: Any, truncated: Any, where: str) -> Finding | None:
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, (bool, np.bool_)):
            return Finding(False, f"'{name}' {where} is {value!r}", "return a bool")
    return None


def _episodes(env: gymnasium.Env, seen: _Seen) -> list[Finding]:
    limit = getattr(env.spec, "max_episode_steps", None)
    told = f"time limit {limit} steps" if limit else "no time limit"
    if not seen.lengths:
        if limit:
            return [Finding(True, f"{told}; no episode ended within {seen.steps} random steps")]
        mend = "set create_environment.max_episode_steps, or let episodes end: an evaluation waits for their ends"
        return [Finding(False, f"{told}, and no episode ended within {seen.steps} random steps", mend)]
    about = (
        f"{told}; {sum(seen.terminated)} of {len(seen.lengths)} episodes terminated, the others were truncated, after "
        f"{min(seen.lengths)} to {max(seen.lengths)} steps"
    )
    same = len(seen.lengths) >= 3 and len(set(seen.lengths)) == 1 and all(seen.terminated)
    if same:
        mend = (
            "if that is a time limit, return truncated=True instead (or register the environment with max_episode_steps): after "
            "a termination no further reward is expected, which is wrong where an episode is only cut off"
        )
        return [Finding(True, f"{about}. All of one length", mend)]
    return [Finding(True, about)]


def _seeding(make: Any) -> Finding:
    """The same seed and actions in two environments, and again in the first, must be the same episode."""

    def play(env: gymnasium.Env, seed: int) -> list[Any]:
        env.action_space.seed(1)
        observation, _ = env.reset(seed=seed)
        seen, over = [_bytes(observation)], False
        while not over and len(seen) < 200:
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            seen.append((_bytes(observation), np.asarray(reward).tolist(), bool(terminated), bool(truncated)))
            over = bool(terminated or truncated)
        return seen

    first, second = make(), make()
    try:
        one, two = play(first, 5), play(second, 5)
        if one != two:
            at = next((i for i, (a, b) in enumerate(zip(one, two)) if a != b), min(len(one), len(two)))
            mend = (
                "call super().reset(seed=seed) in reset and draw all random numbers from self.np_random: otherwise a run can "
                "neither be repeated nor go on bit for bit after it was stopped"
            )
            return Finding(False, f"the same seed and actions lead elsewhere, at step {at}", mend)
        if play(first, 5) != one:
            about = "the same seed gives the same episode in a new environment, but not in one that was used before"
            mend = (
                "bind create_environment.remake = True, so that it is made anew for every episode: a run that was stopped could "
                "otherwise not go on bit for bit. Those of Box2D are made anew without that"
            )
            return Finding(True, about, mend)
        return Finding(True, "the same seed and actions give the same episode")
    finally:
        first.close()
        second.close()


def _tried(look: Callable[[], Finding], about: str) -> Finding:
    try:
        return look()
    except TaacError as error:
        return Finding(False, about, str(error))
    except (Exception, SystemExit) as error:  # whatever the environment raises
        mend = "it must work when several are made, and in a second episode as in the first"
        return Finding(False, f"{about}: failed with {type(error).__name__}: {error}", mend)


def _bytes(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {key: _bytes(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_bytes(part) for part in observation)
    return np.asarray(observation).tobytes()


def _as_training_sees_it(env_name: str) -> Finding:
    """Two of them side by side for some steps, as training has them: each LAST must be followed by a FIRST."""
    environment = create_environment(env_name, 2)
    try:
        generator = torch.Generator().manual_seed(0)
        before, lasts = environment.reset(0), 0
        for _ in range(300):
            now = environment.step(_random(environment.action_spec, generator))
            if not torch.equal(before.is_last(), now.is_first()):
                return Finding(False, "after an episode's end another does not begin", "reset must work after any end")
            lasts, before = lasts + int(now.is_last().sum()), now
        return Finding(True, f"two in parallel, 300 steps, each new episode begun after the end of one ({lasts} ends)")
    finally:
        environment.close()


def _random(action_spec: Any, generator: torch.Generator) -> Any:
    def leaf(spec: specs.TensorSpec) -> torch.Tensor:
        uniform = torch.rand(2, *spec.shape, generator=generator)
        if spec.is_categorical:
            low, high = torch.as_tensor(spec.minimum), torch.as_tensor(spec.maximum)
            return (low + (uniform * (high - low + 1)).floor()).clamp(max=high).to(spec.dtype)
        return 2 * uniform - 1

    return nest.map_structure(leaf, action_spec)
