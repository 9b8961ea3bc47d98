"""Making one Gymnasium environment. Worker processes import this module, so it must stay free of torch."""

from __future__ import annotations

import functools
import importlib
import os
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from taac.environments.seeded_episodes import SeededEpisodes
from taac.environments.step_recorder import StepRecorder
from taac.errors import TaacError
from taac.machine.processes import INTERRUPTIONS, die_with_parent


class OptionalPackage(NamedTuple):
    """A package whose environments are registered when it is imported, which is done only when one is asked for."""

    prefixes: tuple[str, ...]  # of its ids
    module: str
    install: str  # the command, and what it stands for


OPTIONAL_PACKAGES = (
    OptionalPackage(
        ("Fetch", "HandReach", "HandManipulate", "AdroitHand", "AntMaze", "PointMaze", "FrankaKitchen"),
        "gymnasium_robotics",
        "pip install gymnasium-robotics (taac's extra 'manipulation')",
    ),
    OptionalPackage(("racetrack-", "parking-"), "highway_env", "pip install highway-env (taac's extra 'driving')"),
    # Without its dependencies: its pygame would overwrite pygame-ce, which Gymnasium brings and which it runs with.
    OptionalPackage(("mo-",), "mo_gymnasium", "pip install --no-deps mo-gymnasium (no extra of taac's: see README.md)"),
)


class ActionRepeatSettings(NamedTuple):
    """Arguments of `ActionRepeat`, or of `ChosenRepeat`."""

    num_steps: int
    gamma: float
    plain_sum: bool
    chosen: bool = False


def make_single(
    env_name: str | EnvSpec,
    env_kwargs: Mapping[str, Any],
    wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]],
    max_episode_steps: int | None,
    action_repeat: ActionRepeatSettings | None = None,
    recorded: bool = False,
) -> gymnasium.Env:
    """A registered environment inside the given wrappers (the first is the innermost), a recorder if asked for, and the
    action repeat.

    Raises:
        TaacError: the environment is unknown or cannot be made.
    """
    shown = env_name if isinstance(env_name, str) else env_name.id
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*not in the possible render_modes")
            env = gymnasium.make(env_name, max_episode_steps=max_episode_steps, disable_env_checker=True, **env_kwargs)
    except UserWarning as error:
        raise TaacError(
            f"environment '{shown}' cannot be drawn: it has no render mode '{env_kwargs.get('render_mode')}'"
        ) from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise TaacError(f"environment '{shown}' needs a package that is not installed: {error}") from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise TaacError(f"cannot make environment '{shown}': {error} {_HINT}") from error
    except (TypeError, ValueError, AssertionError, OSError) as error:
        render = " It may not be able to render." if "render_mode" in env_kwargs else ""
        raise TaacError(
            f"cannot make environment '{shown}' with arguments {dict(env_kwargs)}: {error}.{render}"
        ) from error
    for wrapper in wrappers:
        env = wrapper(env)
    if recorded:
        env = StepRecorder(env)
    if action_repeat is not None:
        env = (ChosenRepeat if action_repeat.chosen else ActionRepeat)(env, *action_repeat[:3])
    return env if reward_dim(env) is None else VectorReward(env)


_HINT = "(create_environment.env_name is a registered id, or 'module:id' to import the module first)"


def find_spec(env_name: str) -> EnvSpec:
    """What is registered under a name. A worker process that gets the spec need not have imported who registered it.

    Raises:
        TaacError: nothing is, or the package that registers it is not installed.
    """
    module, _, name = env_name.rpartition(":")
    package = next((p for p in OPTIONAL_PACKAGES if name.startswith(p.prefixes)), None)
    if package is not None and not module and name not in gymnasium.registry:
        module = package.module
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(name)
    except ModuleNotFoundError as error:
        if package is not None and error.name == package.module:
            raise TaacError(
                f"environment '{env_name}' needs {package.module}, which is not installed: {package.install}"
            ) from error
        raise TaacError(f"cannot make environment '{env_name}': {error} {_HINT}") from error
    except gymnasium.error.Error as error:
        raise TaacError(f"cannot make environment '{env_name}': {error} {_HINT}") from error


def allowed_packages() -> tuple[str, ...]:
    """Packages whose environments a stranger's run may name: their code imports nothing that plain arguments name."""
    return ("gymnasium", "taac", *(package.module for package in OPTIONAL_PACKAGES))


def is_of_allowed_package(env_name: str) -> bool:
    """Whether an id, without `module:`, is registered and its entry point lies in one of `allowed_packages`.

    Raises:
        TaacError: nothing is registered under the name, or the package that registers it is not installed.
    """
    entry_point = find_spec(env_name).entry_point
    module = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return str(module).replace(":", ".").split(".")[0] in allowed_packages()


def reward_dim(env: gymnasium.Env) -> int | None:
    """D if the environment's rewards are vectors, which it says with a `reward_space` of rank 1; else None."""
    if not env.has_wrapper_attr("reward_space"):
        return None
    shape = env.get_wrapper_attr("reward_space").shape
    if len(shape) != 1:
        raise TaacError(f"a reward_space must have rank 1 (a vector of rewards), got shape {list(shape)}")
    return int(shape[0])


def remembers(spec: EnvSpec) -> bool:
    """Whether an environment's simulator is known to keep something of earlier episodes, however it is seeded."""
    return str(spec.entry_point).startswith("gymnasium.envs.box2d")


def make_seeded(number: tuple[int, int], remake: bool, *args: Any, own_process: bool = False) -> gymnasium.Env:
    """`make_single` of the arguments after the first two, in `SeededEpisodes`."""
    return SeededEpisodes(functools.partial(make_single, *args), number, remake, own_process)


def make_in_worker(owner: int, *args: Any) -> gymnasium.Env:
    """`make_seeded` in a worker process, which leaves signals to the process that it works for, the `owner`, and ends with it.

    A stop is often sent to all processes of a run at once, and the owner needs its environments to stop in order.
    `AsyncVectorEnv` makes one in the owner as well, to look at its spaces: there signals stay as they are.
    """
    own_process = os.getpid() != owner
    if own_process:
        for signal_number in INTERRUPTIONS:
            signal.signal(signal_number, signal.SIG_IGN)
        die_with_parent(signal.SIGKILL)
    return make_seeded(*args, own_process=own_process)


class ActionRepeat(gymnasium.Wrapper):
    """Takes every action `num_steps` times: a semi-Markov process of decisions.

    After k steps (fewer than `num_steps` where the episode ends) the reward is `sum_{i<k} gamma^i r_i`, and
    `info["taac_discount"]` is `gamma^(k-1)`, so that with the learner's own gamma the next value is discounted by `gamma^k`.
    With `plain_sum` the reward is the plain sum, and the discount is 1: one gamma a decision, as published with TAAC.
    `info["taac_duration"]` is k, `info["taac_raw_reward"]` the plain sum.
    """

    def __init__(self, env: gymnasium.Env, num_steps: int, gamma: float, plain_sum: bool = False):
        super().__init__(env)
        self.num_steps, self.gamma = num_steps, 1.0 if plain_sum else gamma

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._repeat(action, self.num_steps)

    def _repeat(self, action: Any, num_steps: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total: Any = 0.0
        raw: Any = 0.0
        for i in range(num_steps):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total = total + self.gamma**i * np.asarray(reward, dtype=np.float64)
            raw = raw + np.asarray(reward, dtype=np.float64)
            if terminated or truncated:
                break
        more = {"taac_duration": i + 1, "taac_discount": self.gamma**i, "taac_raw_reward": np.asarray(raw)}
        return observation, total, terminated, truncated, {**info, **more}


class ChosenRepeat(ActionRepeat):
    """An `ActionRepeat` whose action is a pair `(k, action)`: what to do, and for how many steps, 1 to `num_steps`."""

    def __init__(self, env: gymnasium.Env, num_steps: int, gamma: float, plain_sum: bool = False):
        super().__init__(env, num_steps, gamma, plain_sum)
        self.action_space = gymnasium.spaces.Tuple(
            (gymnasium.spaces.Discrete(num_steps, start=1), self.env.action_space)
        )

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        num_steps, repeated = action
        return self._repeat(repeated, int(num_steps))


class VectorReward(gymnasium.Wrapper):
    """Hands a vector reward on in `info["taac_vector_reward"]`, with its sum for reward: vector environments take scalars."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        parts = np.asarray(reward, dtype=np.float64)
        return observation, float(parts.sum()), terminated, truncated, {**info, "taac_vector_reward": parts}
