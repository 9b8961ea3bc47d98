"""Environments as a program may give them: an id, a class, a function that returns one, or an object."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import pickle
import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeAlias

import gymnasium
from gymnasium.utils import EzPickle

from taac.analysis.readers.run_records import value_of
from taac.environments.single import ALLOWED_PACKAGES, GIVEN, module_of
from taac.errors import TaacError
from taac.runs import files, layout

Environment: TypeAlias = "str | gymnasium.Env[Any, Any] | Callable[..., gymnasium.Env[Any, Any]]"
NAME, KWARGS, LIMIT = (f"create_environment.{name}" for name in ("env_name", "env_kwargs", "max_episode_steps"))
_PLAIN = (bool, int, float, str, type(None))


class Named(NamedTuple):
    """An environment by a name that configurations can hold."""

    name: str | None  # None if none was given
    settings: dict[str, Any]  # that the name does not tell
    make: Callable[..., Any] | None = None  # None: the name says how to make it, in any process


def named(environment: Environment | None, as_object: bool = False) -> Named:
    """Returns an environment by name.

    A class or function of a module is `module:name`. An object that is still as `gymnasium.make` made it, without wrappers of
    one's own, is its id and arguments. Every process can make these, but for ids of `unknown_elsewhere`. Other objects, such as
    one that was changed or reset, and what a notebook or the program itself defines, get a name that only this process knows.
    Such an object is copied as it is, for each environment that is needed, and never stepped itself. With `as_object`, all are.

    Raises TaacError if it is something else, or an object that cannot be copied.
    """
    if environment is None or isinstance(environment, str):
        return Named(environment, {})
    if isinstance(environment, gymnasium.Env):
        by_spec = None if as_object else _by_spec(environment)
        return by_spec or Named(GIVEN + _plain_name(type(environment.unwrapped).__name__), {}, _copier(environment))
    if isinstance(environment, gymnasium.vector.VectorEnv) or not callable(environment):
        raise TaacError(
            f"an environment must be an id, a gymnasium.Env, or a class or function that returns one, got {environment!r:.200}; "
            "for several copies, set num_envs"
        )
    name = getattr(environment, "__qualname__", type(environment).__name__)
    module = getattr(environment, "__module__", None)
    if module not in (None, "__main__") and getattr(sys.modules.get(module), name, None) is environment:
        return Named(f"{module}:{name}", {})
    return Named(GIVEN + _plain_name(name), {}, _maker(environment))


def unknown_elsewhere(name: str | None, imports: Collection[str] = ()) -> str | None:
    """Returns why other processes cannot make an environment by its name: this program, or a module it imported, registered it.

    None if they can, or if it is of a package that they import, or of a module in `imports`, which the configuration imports.
    """
    spec = gymnasium.registry.get(name or "")
    if spec is None:
        return None
    module = module_of(spec)
    if module.partition(".")[0] in {m.partition(".")[0] for m in (*ALLOWED_PACKAGES, *imports)}:
        return None
    known = f"the environment '{name}' is known to this program only, which has registered it"
    if isinstance(spec.entry_point, str) and module != "__main__":
        return f"{known} by importing a module: give the module, too, such as '{module}:{name}'"
    return f"{known}: put that into a module and give 'module:{name}'"


def _plain_name(name: str) -> str:
    return re.sub(r"\W+", "_", name.rpartition(".")[2]).strip("_") or "environment"


def _by_spec(environment: gymnasium.Env[Any, Any]) -> Named | None:
    """Returns the id and arguments of an environment that `gymnasium.make` made; None if they do not tell all of it."""
    spec = environment.spec
    registered = gymnasium.registry.get(spec.id) if spec is not None else None
    if spec is None or registered is None or spec.additional_wrappers or spec.entry_point != registered.entry_point:
        return None
    if not isinstance(spec.entry_point, str):  # other processes would have to register it
        return None
    usual = registered.kwargs
    arguments = {k: v for k, v in spec.kwargs.items() if k != "render_mode" and not (k in usual and _same(usual[k], v))}
    if not all(isinstance(value, _PLAIN) for value in arguments.values()):
        return None
    settings: dict[str, Any] = {KWARGS: arguments} if arguments else {}
    if spec.max_episode_steps != registered.max_episode_steps:
        if spec.max_episode_steps is None:  # made without a limit, for which there is no such setting
            return None
        settings[LIMIT] = spec.max_episode_steps
    try:  # in every byte as it is made: then it was neither changed nor reset
        with contextlib.closing(gymnasium.make(spec)) as made:
            return Named(spec.id, settings) if made.spec == spec and _same(environment, made) else None
    except Exception:  # whoever trains on it says so
        return None


class _Pickled(pickle.Pickler):
    """Everything in a thing as bytes, from which copies can be made: also attributes that classes leave out, as `EzPickle`."""

    def __init__(self, thing: Any):
        super().__init__(file := io.BytesIO())
        self.shared: dict[int, Any] = {}  # classes, functions and modules, by the number that stands for each: not copied
        self.dump(thing)
        self.clear_memo()
        self.content = file.getvalue()

    def persistent_id(self, thing: Any) -> int | None:
        if not isinstance(thing, (type, FunctionType, BuiltinFunctionType, ModuleType)):
            return None
        self.shared[id(thing)] = thing
        return id(thing)

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, (gymnasium.Env, EzPickle)):
            return object.__new__, (type(thing),), vars(thing), None, None, _set
        return NotImplemented


def _set(thing: Any, attributes: dict[str, Any]) -> None:
    vars(thing).update(attributes)


class _Unpickler(pickle.Unpickler):
    shared: dict[int, Any]

    def persistent_load(self, number: int) -> Any:
        return self.shared[number]


def _unpickled(content: bytes, shared: dict[int, Any]) -> Any:
    unpickler = _Unpickler(io.BytesIO(content))
    unpickler.shared = shared
    return unpickler.load()


def _same(one: Any, other: Any) -> bool:
    """Returns whether two things are known to be equal in everything."""
    try:
        first, second = _Pickled(one), _Pickled(other)  # held together, so that no number stands for two things
        return first.content == second.content
    except Exception:  # a part cannot be pickled
        return False


def refuse_other(environment: Environment | None, place: Named, folder: Path) -> None:
    """Refuses an environment whose name, arguments or time limit are not those of a run, which always plays on its own."""
    try:
        held = layout.read_bindings(folder)
    except (OSError, files.Damaged):  # whoever loads the run says so
        return
    asked: dict[str, Any] = {NAME: place.name}
    if isinstance(environment, gymnasium.Env) and place.make is None:  # made by its id and arguments
        asked |= {KWARGS: place.settings.get(KWARGS), LIMIT: place.settings.get(LIMIT)}
    for setting, value in asked.items():
        if place.name is not None and setting in held and (of_run := value_of(held[setting]) or None) != value:
            raise TaacError(
                f"the run in {folder} was trained with {setting} = {of_run!r}, and plays on that, but environment has {value!r}: "
                "leave environment out; taac.load(root_dir) returns the agent, with which you can step any other yourself"
            )


def _copier(environment: gymnasium.Env[Any, Any]) -> Callable[..., Any]:
    """Returns a function that returns copies of an environment as it is now."""
    try:
        pickled = _Pickled(environment)
        copied = functools.partial(_unpickled, pickled.content, pickled.shared)  # which reaches other processes, too
        copied()
    except Exception as error:
        by_id = f"its id, '{environment.spec.id}', if it is as gymnasium makes it, or " if environment.spec else ""
        raise TaacError(
            f"the environment {environment} cannot be copied, and training needs several: {type(error).__name__}: {error}. "
            f"Give {by_id}a function that returns a new one"
        ) from error
    return _maker(copied, "the environment that was given")


def _maker(function: Callable[..., Any], what: str = "") -> Callable[..., Any]:
    """Returns the function with the arguments that it takes. Of others, the environment must have the `render_mode` already."""

    def make(**arguments: Any) -> Any:
        parameters = inspect.signature(function).parameters.values()
        every = any(p.kind == p.VAR_KEYWORD for p in parameters)
        taken = {k: v for k, v in arguments.items() if every or any(p.name == k for p in parameters)}
        environment = function(**taken)
        for name in (name for name in arguments if name not in taken):
            if name != "render_mode" or getattr(environment, "render_mode", None) != arguments[name]:
                raise TaacError(
                    f"{what or f'the function {function!r}'} takes no argument {name}={arguments[name]!r}: give one that is made "
                    "with it, or that takes it"
                )
        return environment

    return make
