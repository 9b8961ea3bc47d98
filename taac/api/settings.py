"""Python values of settings, as the text that gin files and `--set` hold."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from taac.api.environments import Named
from taac.configuration import RunRequest, gin_state
from taac.errors import TaacError

_OWN = ("taac", "torch", "gin")


def written(*given: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns settings as NAME=VALUE, and the lines of gin that import what they refer to. All must be registered.

    Numbers, text, bytes, True, False, None, and lists, tuples and dicts of them are kept as they are. Text that begins with `@`
    or `%` refers to a constructor or a macro, as in a gin file. A class or function that gin configures becomes such a reference.
    Raises TaacError if a value is something else, which no file could repeat.
    """
    modules: dict[str, None] = {}
    texts = [f"{name}={_text(name, value, modules)}" for mapping in given for name, value in mapping.items()]
    return tuple(texts), tuple(f"import {module}" for module in modules)


def make_request(
    place: Named,
    method: str | None,
    num_env_steps: float | None,
    seed: int | None,
    gin_files: Sequence[str | Path] | str | Path,
    settings: Mapping[str, Any] | None,
    named_settings: Mapping[str, Any],
) -> RunRequest:
    """Returns the request that arguments of `train` describe. What `settings` says wins over those of the environment.

    Raises TaacError for a setting that no file could repeat, settings that are no dict, or a method that is no text.
    """
    if settings is not None and not isinstance(settings, Mapping):
        raise TaacError(f"settings must be a dict of values by name, such as {{'Learner.epsilon': 1e-8}}, got {settings!r:.200}")
    if method is not None and not isinstance(method, str):
        raise TaacError(
            f"method must be a name, such as 'taac', or a .gin file, got {method!r:.200}; a class of your own is a setting, "
            "create_agent.algorithm_ctor, beside a method"
        )
    texts, imports = written(named_settings, {**place.settings, **(settings or {})})
    files = (gin_files,) if isinstance(gin_files, (str, Path)) else tuple(gin_files)
    steps = None if num_env_steps is None else _text("num_env_steps", num_env_steps, {})
    environment, method = (None if name is None else str(name) for name in (place.name, method))  # numpy has text of its own
    seed = getattr(seed, "item", lambda: seed)()
    return RunRequest(environment, method, tuple(map(str, files)), imports, texts, steps, seed)


def _text(name: str, value: Any, modules: dict[str, None]) -> str:
    if isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
        value = value.tolist()
    if isinstance(value, str):
        if value.startswith("@"):
            _note_module(name, value, _module_named_in(value), modules)
        return value if value[:1] in ("@", "%") else repr(value)
    if value is None or isinstance(value, (bool, int, bytes)) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(name, k, modules)}: {_text(name, v, modules)}" for k, v in value.items()) + "}"
    if isinstance(value, Iterable) and not isinstance(value, (set, frozenset, bytearray)):  # the order of a set is no one's
        parts = [_text(name, part, modules) for part in value]
        if isinstance(value, list):
            return f"[{', '.join(parts)}]"
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    if callable(value):
        found = gin_state.name_of(value)
        if found is None:
            raise TaacError(
                f"{name} = {value!r:.200} cannot be kept in config.gin: decorate it with @gin.configurable in a module of your "
                "own; callbacks are on_iteration=, on_evaluation= and on_checkpoint= of taac.train"
            )
        _note_module(name, value, found[1], modules)
        return f"@{found[0]}"
    raise TaacError(
        f"{name} = {value!r:.200} cannot be kept in config.gin, so the run could not be repeated; give numbers, text, lists, or "
        "an object as text: '@ItsClass()', with its arguments as settings of their own, {'ItsClass.argument': value}"
    )


def _module_named_in(text: str) -> str | None:
    """Returns the module of the class or function of `@scope/its_name`; None if gin knows no such name, or several."""
    found = re.match(r"@(?:[\w.]+/)*([\w.]+)", text)
    try:
        configurable = found and gin_state.match(found[1])
    except KeyError:
        return None
    return configurable and getattr(configurable.wrapped, "__module__", "")


def _note_module(name: str, value: Any, module: str | None, modules: dict[str, None]) -> None:
    """Notes the module to import, unless it is this package's. Raises TaacError if no other process could import it."""
    if module is None or module.split(".")[0] in _OWN:
        return
    if module == "__main__" or module not in sys.modules:
        raise TaacError(
            f"{name} = {value!r:.200} is defined in a notebook or in the program itself, from where no other process could "
            "import it to repeat the run: put it in a module of its own"
        )
    modules[module] = None
