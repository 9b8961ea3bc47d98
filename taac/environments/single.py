"""Creates one Gymnasium environment. Worker processes import this module, so it must not import torch."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from taac.environments.seeded_episodes import SeededEpisodes
from taac.errors import TaacError, nearest
from taac.machine.processes import INTERRUPTIONS, die_with_parent, import_elsewhere


class OptionalPackage(NamedTuple):
    """A package that registers environments on import. It is imported only when one of them is requested."""

    prefixes: tuple[str, ...]  # of its ids
    module: str
    install: str  # the command, and the extra that it belongs to


OPTIONAL_PACKAGES = (
    OptionalPackage(
        ("Fetch", "HandReach", "HandManipulate", "AdroitHand", "AntMaze", "PointMaze", "FrankaKitchen"),
        "gymnasium_robotics",
        "pip install gymnasium-robotics (taac's extra 'manipulation')",
    ),
    OptionalPackage(("racetrack-", "parking-"), "highway_env", "pip install highway-env (taac's extra 'driving')"),
    # Installed without its dependencies, because its pygame would overwrite Gymnasium's pygame-ce, with which it works.
    OptionalPackage(("mo-",), "mo_gymnasium", "pip install --no-deps mo-gymnasium (its pygame would overwrite pygame-ce)"),
)


def package_of(name: str) -> OptionalPackage | None:
    """Returns the optional package that registers an id; None if there is none."""
    return next((package for package in OPTIONAL_PACKAGES if name.startswith(package.prefixes)), None)


# Packages whose environments an untrusted run may use. Their code never imports what plain arguments name.
ALLOWED_PACKAGES = ("gymnasium", "taac", *(package.module for package in OPTIONAL_PACKAGES))


def make_single(
    spec: EnvSpec,
    env_kwargs: Mapping[str, Any],
    wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]],
    max_episode_steps: int | None,
) -> gymnasium.Env:
    """Creates a registered environment inside the given wrappers, the first innermost.

    Raises TaacError if it is unknown or cannot be created, or has a time limit inside that is below `max_episode_steps`.
    """
    name = spec.id
    try:
        with warnings.catch_warnings(), _gin_unlocked():
            warnings.filterwarnings("error", message=f".*{_NO_RENDER_MODE}")
            _import_allowed(module_of(spec))
            env = gymnasium.make(spec, max_episode_steps=max_episode_steps, disable_env_checker=True, **env_kwargs)
    except UserWarning as error:
        if _NO_RENDER_MODE not in str(error):  # a warning of the environment's own, where warnings are errors
            raise
        mode = env_kwargs.get("render_mode")
        raise TaacError(f"environment '{name}' cannot be rendered: it has no render mode '{mode}'") from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise TaacError(f"environment '{name}' needs a package that is not installed: {error}") from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise TaacError(f"cannot create environment '{name}': {error} {_HINT}") from error
    except (TypeError, ValueError, AssertionError, OSError) as error:
        more = " It may not be able to render." if "render_mode" in env_kwargs else ""
        if "'render_mode'" in str(error):
            more = " To be filmed, a function that makes it must take render_mode, and pass it to gymnasium.make."
        elif isinstance(error, TypeError):
            more += " create_environment.env_kwargs gives it arguments."
        raise TaacError(f"cannot create environment '{name}' with arguments {dict(env_kwargs)}: {error}.{more}") from error
    # `gymnasium.make` replaces the limit of a registration. One that a class, a function or an object brings along stays.
    if max_episode_steps is not None and (inner := time_limit(env)) is not None and inner < max_episode_steps:
        env.close()
        raise TaacError(
            f"create_environment.max_episode_steps = {max_episode_steps} has no effect on environment '{name}', which is "
            f"made with a TimeLimit of {inner} steps inside: make it with the limit {max_episode_steps} there, or leave "
            "max_episode_steps out"
        )
    for wrapper in wrappers:
        env = wrapper(env)
    return env if reward_dim(env) is None else VectorReward(env)


def time_limit(env: Any) -> int | None:
    """Returns the least limit of the wrappers `TimeLimit` around an environment; None if it has none."""
    limits = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min(limits, default=None)


def _gin_unlocked() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which a module that is imported may register configurables.

    A worker process may not have loaded gin.
    """
    gin = sys.modules.get("gin")
    return contextlib.nullcontext() if gin is None else gin.unlock_config()


CANNOT_RENDER = "it cannot be rendered"  # begins the message of every failure to render
_NO_RENDER_MODE = "not in the possible render_modes"  # in what gymnasium warns of
_HINT = "(an environment is a registered id, 'module:id' to import the module first, or 'module:Class')"
GIVEN = "python/"  # begins the names of environments that a program gives as objects
_given: dict[str, Callable[..., gymnasium.Env]] = {}


@contextlib.contextmanager
def given(name: str, make: Callable[..., gymnasium.Env]) -> Iterator[None]:
    """A context in which `find_spec` knows an environment that a function makes, with the arguments of `gymnasium.make`."""
    before = _given.get(name)
    _given[name] = make
    try:
        yield
    finally:
        del _given[name]
        if before is not None:
            _given[name] = before


def find_spec(env_name: str) -> EnvSpec:
    """Finds the registered spec of an environment. A worker process that receives the spec needs no import to register it.

    `env_name` is a registered id; `module:id`, whose module is imported first; `module:Class` or a function that returns an
    environment, `module:function`, which need no registration, bring their own limit of steps or none, and take only
    `env_kwargs`; or a name of `given`. Raises TaacError for any other, and if the package is not installed.
    """
    if env_name in _given:
        return EnvSpec(env_name, entry_point=_given[env_name])
    if env_name.startswith(GIVEN):
        raise TaacError(
            f"environment '{env_name}' was given by a Python program as an object, so only a program that gives it again can "
            "make it: taac.train(environment, ...) with the same root_dir, or taac.load(root_dir, environment=environment). For "
            "runs that every command can use, put the environment in a module and give 'module:Class'"
        )
    module, _, name = env_name.rpartition(":")
    if "/" in module or module.startswith(".") or module.endswith(".py"):
        stem = Path(module).name.removesuffix(".py")
        raise TaacError(
            f"environment '{env_name}': '{module}' is no module; name it as an import does: '{stem}:{name}', in the folder that "
            "holds the file"
        )
    package = package_of(name)
    if package is not None and not module and name not in gymnasium.registry:
        module = package.module
    try:
        if module:
            with _gin_unlocked():
                _import_allowed(module)
                imported = importlib.import_module(module)
            found = getattr(imported, name, None)
            if name not in gymnasium.registry and callable(found):
                if isinstance(found, type) and not issubclass(found, gymnasium.Env):
                    raise TaacError(f"environment '{env_name}' is the class {found.__qualname__}, which is not a gymnasium.Env")
                return EnvSpec(env_name, entry_point=env_name)
        return gymnasium.spec(name)
    except ModuleNotFoundError as error:
        if package is not None and error.name == package.module:
            raise TaacError(
                f"environment '{env_name}' needs {package.module}, which is not installed: {package.install}"
            ) from error
        raise TaacError(f"cannot create environment '{env_name}': {error} {_HINT}") from error
    except TaacError:
        raise
    except (gymnasium.error.Error, ValueError) as error:  # ValueError: a version of thousands of digits
        meant = "" if "Did you mean" in str(error) else nearest(name, gymnasium.registry)
        raise TaacError(f"cannot create environment '{env_name}': {error}{meant} {_HINT}") from error


def is_allowed(module: str) -> bool:
    """Returns whether a module belongs to one of `ALLOWED_PACKAGES`."""
    return module.partition(".")[0] in ALLOWED_PACKAGES


def _import_allowed(module: str) -> None:
    """Imports a module of `ALLOWED_PACKAGES`, which need nothing of the working directory, and obeys nothing that lies there."""
    if is_allowed(module):
        import_elsewhere(module)


def module_of(spec: EnvSpec) -> str:
    """Returns the module of a spec's entry point, or ""."""
    where = spec.entry_point
    return where.partition(":")[0] if isinstance(where, str) else str(getattr(where, "__module__", ""))


def reward_dim(env: gymnasium.Env) -> int | None:
    """Returns D if the environment has vector rewards, declared by a `reward_space` of rank 1; else None.

    A wrapper that turns vector rewards into numbers sets `reward_space = None`.
    """
    space = env.get_wrapper_attr("reward_space") if env.has_wrapper_attr("reward_space") else None
    shape = () if space is None else space.shape
    if len(shape) > 1:
        raise TaacError(f"a reward_space must have rank 1 (a vector of rewards), got shape {list(shape)}")
    return int(shape[0]) if shape else None


def goal_functions(env: gymnasium.Env) -> dict[str, Callable[..., Any]]:
    """Returns an environment's functions of achieved and desired goals: `compute_reward`, and perhaps `compute_terminated`.

    Empty if its observations are not a Dict with both goals, its reward is a vector, or it has no `compute_reward`.
    """
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or not {"achieved_goal", "desired_goal"} <= set(space) or reward_dim(env):
        return {}
    names = ("compute_reward", "compute_terminated") if env.has_wrapper_attr("compute_reward") else ()
    return {name: env.get_wrapper_attr(name) for name in names if env.has_wrapper_attr(name)}


def make_seeded(number: tuple[int, int], remake: bool, *args: Any, own_process: bool = False) -> gymnasium.Env:
    """Creates `make_single(*args)` inside `SeededEpisodes`. Refuses an environment without a space."""
    env = SeededEpisodes(functools.partial(make_single, *args), number, remake, own_process)
    if missing := missing_spaces(env):
        raise TaacError(f"environment '{args[0].id}' has {missing[0]}: {missing[1]}")
    return env


def missing_spaces(env: gymnasium.Env) -> tuple[str, str] | None:
    """Says which spaces an environment has not set, and what to do. None if it has both."""
    missing = [name for name in ("observation_space", "action_space") if getattr(env, name, None) is None]
    both = "both" if len(missing) == 2 else "it"
    return (f"no {' and no '.join(missing)}", f"set {both} in the class or in __init__") if missing else None


def make_in_worker(
    owner: int, bindings: str, number: tuple[int, int], remake: bool, spec: EnvSpec, *args: Any
) -> gymnasium.Env:
    """Calls `make_seeded` in a worker process, which from then on ignores signals to stop and dies with its `owner` process.

    A scheduler often signals all processes of a run at once, and the owner still needs its environments to shut down in
    order. `AsyncVectorEnv` also creates one environment in the owner, to read its spaces; there signals are left alone.
    The environment may be configured by gin's `bindings` in the owner.
    """
    own_process = os.getpid() != owner
    if own_process:
        for signal_number in INTERRUPTIONS:
            signal.signal(signal_number, signal.SIG_IGN)
        die_with_parent(signal.SIGKILL)
        if isinstance(spec.entry_point, str):  # the wrappers' modules have been imported already
            with contextlib.suppress(Exception):  # creating the environment tells what is wrong
                importlib.import_module(spec.entry_point.partition(":")[0])
        if (gin := sys.modules.get("gin")) is not None:  # else nothing here is configurable
            with gin.unlock_config():
                gin.parse_config(bindings, skip_unknown=True)
    return make_seeded(number, remake, spec, *args, own_process=own_process)


# Wrappers ------------------------------------------------------------------------------------------------------------------


def space_with(space: spaces.Space, name: str, part: spaces.Space) -> spaces.Dict:
    """Returns the Dict space of observations with one more part; those of another space become the part `observation`.

    Raises:
        TaacError: there is a part of that name.
    """
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
    if name in parts:
        raise TaacError(f"observations already have a part '{name}', which a wrapper would replace: remove either wrapper")
    return spaces.Dict({**parts, name: part})


def observation_with(space: spaces.Space, observation: Any, name: str, part: Any) -> dict[str, Any]:
    """Returns an observation of `space` with one more part, of the space that `space_with` returns."""
    return {**(observation if isinstance(space, spaces.Dict) else {"observation": observation}), name: part}


class ActionRepeat(gymnasium.Wrapper):
    """Repeats every action for `num_steps` steps, which makes decisions a semi-Markov process.

    After k steps (fewer than `num_steps` if the episode ends) the reward is `sum_{i<k} gamma^i r_i`, and
    `info["taac_discount"]` is `gamma^(k-1)`. Together with the learner's own gamma, the next value is discounted by
    `gamma^k`. With a gamma of 1 the reward is the plain sum, and each decision is discounted once by the learner's gamma, as
    published with TAAC. `info["taac_duration"]` is k and `info["taac_raw_reward"]` the undiscounted sum.
    """

    def __init__(self, env: gymnasium.Env, num_steps: int, gamma: float):
        super().__init__(env)
        self.num_steps, self.gamma = num_steps, gamma

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self._repeat(action, self.num_steps)

    def _repeat(self, action: Any, num_steps: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        total: Any = 0.0
        raw: Any = 0.0
        for i in range(num_steps):
            # A copy, because an environment may write into its action.
            observation, reward, terminated, truncated, info = self.env.step(copy.deepcopy(action))
            total = total + self.gamma**i * np.asarray(reward, dtype=np.float64)
            raw = raw + np.asarray(reward, dtype=np.float64)
            if terminated or truncated:
                break
        more = {"taac_duration": i + 1, "taac_discount": self.gamma**i, "taac_raw_reward": np.asarray(raw)}
        return observation, total, terminated, truncated, {**info, **more}


class ChosenRepeat(ActionRepeat):
    """An `ActionRepeat` whose action is a pair `(k, action)`: the action is repeated for k steps, 1 to `num_steps`."""

    def __init__(self, env: gymnasium.Env, num_steps: int, gamma: float):
        super().__init__(env, num_steps, gamma)
        self.action_space = gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(num_steps, start=1), env.action_space))

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        num_steps, repeated = action
        return self._repeat(repeated, int(num_steps))


class VectorReward(gymnasium.Wrapper):
    """Moves a vector reward to `info["taac_vector_reward"]` and returns its sum, as vector environments accept only scalars."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        parts = np.asarray(reward, dtype=np.float64)
        return observation, float(parts.sum()), terminated, truncated, {**info, "taac_vector_reward": parts}


_RESULTS: dict[str, Callable[[Any], Any]] = {
    "last": lambda values: values[-1], "sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min,
}  # fmt: skip


class EpisodeInfo(gymnasium.Wrapper):
    """Collects numbers that the environment puts into `info`, and adds them as `info["taac_episode_info"]` at an episode's end.

    It must be inside `ActionRepeat`, whose callers see only its last step.

    Args:
        names: keys of `info`, each with ":" and one of `_RESULTS` after it, or alone for the last value.
    """

    def __init__(self, env: gymnasium.Env, names: Sequence[str]):
        super().__init__(env)
        split = [name.rpartition(":") for name in names]
        self._names = [(key, how) if key and how in _RESULTS else (name, "last") for name, (key, _, how) in zip(names, split)]
        self._found: list[list[float]] = []

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self._found = [[] for _ in self._names]
        return self.env.reset(**arguments)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        for (key, _), found in zip(self._names, self._found):
            if key in info:
                try:
                    found.append(float(info[key]))
                except (TypeError, ValueError) as error:
                    raise TaacError(f"create_environment.info: '{key}' is not a number in the info: {info[key]!r:.99}") from error
        if terminated or truncated:
            if unknown := [key for (key, _), found in zip(self._names, self._found) if not found]:
                has = ", ".join(sorted(map(str, info))) or "nothing"
                raise TaacError(
                    f"create_environment.info: no step of an episode had '{unknown[0]}' in its info; the last info has {has}. A "
                    "number that only some episodes have needs a wrapper that puts one into all"
                )
            numbers = [_RESULTS[how](found) for (_, how), found in zip(self._names, self._found)]
            info = {**info, "taac_episode_info": np.array(numbers, dtype=np.float64)}
        return observation, reward, terminated, truncated, info


class RecordedStep(NamedTuple):
    """One environment step. An action that is repeated inside the environment has several."""

    reward: float  # undiscounted; the sum of a vector reward's parts
    frame: np.ndarray | None  # [H, W, 3] uint8, rendered after the step; None if not filmed


class StepRecorder(gymnasium.Wrapper):
    """Records the steps of an episode until `pop_steps` clears them, with a frame at every `film_every`-th step; 0: with none.

    It must be inside `ActionRepeat`, whose callers see only sums and the last frame.
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.film_every = 0
        self._steps: list[RecordedStep] = []
        self._number = 0

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self._steps, self._number = [], 0
        return self.env.reset(**arguments)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        filmed = self.film_every > 0 and self._number % self.film_every == 0
        self._steps.append(RecordedStep(float(np.sum(result[1])), self._frame() if filmed else None))
        self._number += 1
        return result

    def _frame(self) -> np.ndarray:
        try:
            frame: Any = self.env.render()
        except Exception as error:
            raise RuntimeError(f"{CANNOT_RENDER}: {type(error).__name__}: {error}") from error
        is_array = isinstance(frame, np.ndarray)
        if not is_array or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] not in (3, 4) or not frame.size:
            got = f"an array of {frame.dtype} with shape {list(frame.shape)}" if is_array else f"a {type(frame).__name__}"
            raise RuntimeError(
                f"{CANNOT_RENDER}: render() returned {got}, expected an 'rgb_array' frame: an array of uint8 with shape "
                "[H, W, 3], 0 to 255"
            )
        # Some simulators return alpha as well. Some environments render into the same array again.
        return frame[..., :3].copy()

    def pop_steps(self) -> list[RecordedStep]:
        """Returns and clears the steps since the last call or the episode's beginning."""
        steps, self._steps = self._steps, []
        return steps
