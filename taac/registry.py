"""Registers everything that gin can configure. Call `register` before gin files are read.

A class or function registers itself where it is defined, with `@gin.configurable`. `register` imports every module of the
sub-packages in `ROOMS`, so a new file there needs no entry here. A gin file that uses a module outside the package imports
it: `import my_module`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from typing import Any

import gin
import torch

from taac.configuration import Binding, Config, gin_state, values
from taac.configuration.gin_state import short
from taac.configuration.reading import add_check
from taac.errors import TaacError
from taac.learning.optimizers import TensorFlowAdam
from taac.ops import schedules
from taac.ops.schedules import Schedule

ROOMS = (
    "networks", "replay", "environments", "algorithms", "demonstrations", "acting", "learning", "training", "campaigns",
)  # fmt: skip


@functools.cache
def register() -> None:
    """Registers the package's configurables, and the parts of torch that gin files use."""
    for room in ROOMS:
        package = importlib.import_module(f"taac.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    for name in ("Linear", "Cosine", "Exponential", "Piecewise"):
        schedule = getattr(schedules, f"{name}Schedule")
        gin.external_configurable(schedule, module=schedule.__module__)  # `ops` does not import gin
    _register_torch()
    add_check(refuse_unfollowed_schedule)
    gin_state.registered_by(register)


def _register_torch() -> None:
    """Registers activations and optimizers. gin's own `gin.torch` cannot be imported on Python 3.12."""
    for name in ("ReLU", "ELU", "LeakyReLU", "Tanh", "GELU", "SiLU"):
        activation = getattr(torch.nn, name)
        kept_back = [p for p in inspect.signature(activation).parameters if p == "inplace"]
        gin.external_configurable(activation, module="torch.nn", denylist=kept_back or None)
    for name in ("Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "NAdam"):
        kept_back = ["params", "lr", "maximize", "differentiable"]  # the learner sets them
        gin.external_configurable(getattr(torch.optim, name), module="torch.optim", denylist=kept_back)
    gin.external_configurable(TensorFlowAdam, module=TensorFlowAdam.__module__, denylist=["params", "lr"])


def refuse_unfollowed_schedule(binding: Binding, config: Config, trusted: bool) -> None:
    """Refuses a schedule for a parameter whose annotation does not mention `Schedule`, because nothing would apply it.

    Raises:
        TaacError: names the binding's place and the parameters that can follow a schedule.
    """
    if binding.selector == gin_state.MACRO:
        return
    expected = values.type_hints(gin_state.wrapped(binding.selector)).get(binding.name)
    found = None if expected is None else _schedule(binding.value, config)
    if found is not None and not values.mentions(expected, Schedule):
        origin = values.source(binding, config.bindings)
        raise TaacError(f"{origin}: {binding.parameter} cannot follow a {found}; what can: {', '.join(_schedulable(config))}")


def _schedule(value: Any, config: Config) -> str | None:
    """Returns the name of the schedule that a value refers to, directly or through macros; None if there is none."""
    for reference in gin_state.references(value):
        macro, wrapped = gin_state.macro_of(reference), reference.configurable.wrapped
        if macro is not None:
            if (found := _schedule(config.macros[macro], config)) is not None:
                return found
        elif isinstance(wrapped, type) and issubclass(wrapped, Schedule):
            return wrapped.__name__
    return None


def _schedulable(config: Config) -> list[str]:
    """Returns the names of all parameters that can follow a schedule, of the configurables that a configuration names."""
    references = [r for b in config.bindings.values() for r in gin_state.references(b.value)]
    named = {b.selector for b in config.bindings.values()} | {r.configurable.selector for r in references}
    found = set()
    for selector, wrapped in gin_state.configurables().items():
        if selector not in named:
            continue
        for name, annotation in values.type_hints(wrapped).items():
            required = values.default(wrapped, name) is inspect.Parameter.empty  # supplied by the caller
            if values.mentions(annotation, Schedule) and not required:
                found.add(f"{short(selector)}.{name}")
    return sorted(found)
