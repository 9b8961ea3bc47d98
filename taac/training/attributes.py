"""Numbers of a running training that can be read and set by name, by hooks or by the program that holds the trainer."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch

from taac.acting.explorers import Explorer
from taac.acting.noise import Noise
from taac.algorithms.actor_critic import ActorCriticAlgorithm, task_gamma
from taac.algorithms.agent import Agent
from taac.algorithms.temperature import Temperature
from taac.errors import TaacError, nearest
from taac.learning.diagnostics import reward_parts
from taac.learning.learner import Learner
from taac.learning.optimizers import each, with_fallbacks
from taac.networks import RewardScaler
from taac.networks.batch_statistics import has_batch_statistics
from taac.ops.schedules import Schedules

_COUNTED = ("params", "num_steps")  # of an optimizer's group, what no setting gives
_OF_GROUPS = ("Learner.weight_decay", "Learner.epsilon")  # settings that groups hold, beside rates and the optimizer's own
ABOVE_ZERO = (math.ulp(0.0), math.inf)


class Attribute(NamedTuple):
    """A number that can be read and set."""

    get: Callable[[], float]
    set: Callable[[float], None]
    parameter: str  # name of the setting that it starts from, or the name's end; "" if no setting restores it
    within: tuple[float, float] = ABOVE_ZERO  # smallest and largest value
    saved: bool = False  # whether another part of the run already saves it
    fixed: str = ""  # why it cannot be set


class Attributes:
    """Reads and sets numbers of a running training by name. Checkpoints save the values that were set.

    - `learning_rate/G`: of a group of parameters: `actor`, `critic`, `temperature`; `value`, `actor_encoder` or `value_encoder`
      if there is one; or a reward signal's name
    - `alpha/T`: a temperature that the algorithm has: `action`, `beta`, `choice`, or with branches `branch 0`, `branch 1`...
    - `target_entropy/T`: its target, in nats
    - `gamma`: discount per step; `gamma/P` of a part of the reward where parts have their own
    - `target_tau`: fraction by which target networks move
    - `strength/S`: a reward signal's weight, of its sign
    - `epsilon`: the explorer's, if it has one
    - `max_grad_norm`: norm at which the gradient is clipped, if it is clipped
    - `cloning_weight`: of the loss of behaviour cloning, if there is one
    - `batch_size`: segments per gradient step

    A number that follows a schedule cannot be set. A target entropy or a gamma is part of a compiled program, which is compiled
    again (`CompiledFunction`).
    """

    def __init__(self, learner: Learner, explorer: Explorer | Noise | None, schedules: Schedules, batch_size: Attribute):
        self._learner, self._explorer, self._schedules, self._batch_size = learner, explorer, schedules, batch_size
        self._set: dict[str, float] = {}  # values that were set and that no other part saves
        self._before: dict[str, float] = {}  # and those before

    def names(self) -> list[str]:
        return list(self._known())

    def get(self, name: str) -> float:
        """Returns the value of an attribute. Raises `TaacError` if there is none of that name."""
        return float(self._find(name).get())

    def set(self, name: str, value: float) -> None:
        """Sets an attribute. The next step or update uses the new value.

        Raises:
            TaacError: there is no such attribute, it is fixed or follows a schedule, or the value is out of range.
        """
        attribute = self._find(name)
        if attribute.parameter in self._schedules.values:
            raise TaacError(f"'{name}' cannot be set: {attribute.parameter} follows a schedule, which would overwrite it")
        if attribute.fixed:
            raise TaacError(f"'{name}' cannot be set: {attribute.fixed}")
        least, most = attribute.within
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value) and least <= value <= most):
            limits = "above 0" if (least, most) == ABOVE_ZERO else f"from {least:g} to {most:g}"
            raise TaacError(f"'{name}' must be a number {limits}, got {value!r}")
        value = float(value)  # checkpoints cannot hold other kinds, such as numpy's
        before = float(attribute.get())
        attribute.set(value)  # which ranks may refuse
        if not attribute.saved:
            self._before.setdefault(name, before)
            self._set[name] = value

    def state_dict(self) -> dict[str, float]:
        """Returns the values that were set and that no other part saves."""
        return dict(self._set)

    def load_state_dict(self, state: dict[str, float]) -> None:
        known = self._known()
        for name in self._set.keys() - state.keys():  # of a newer checkpoint, which could not be restored
            del self._set[name]
            if name in known:
                known[name].set(self._before[name])
        for name in state.keys() & known.keys():  # None may have been put in the place of one
            entropy = name.startswith("target_entropy/") and isinstance(known[name].get(), torch.Tensor)
            if not (entropy or known[name].parameter in self._schedules.values):  # a schedule was
                self._before.setdefault(name, float(known[name].get()))
                known[name].set(state[name])
                self._set[name] = state[name]

    def as_built(self) -> tuple[dict[str, float], list[dict[str, Any]]]:
        """Returns the values that settings gave: of the attributes that start from one, and of the optimizer's groups."""
        groups = [{k: v for k, v in g.items() if k not in _COUNTED} for g in self._learner.optimizer.param_groups]
        return {name: float(one.get()) for name, one in self._known().items() if one.parameter}, groups

    def renew(self, built: tuple[dict[str, float], list[dict[str, Any]]], changed: Collection[str]) -> None:
        """Gives the values of changed settings, by name, to what a checkpoint holds of them, and forgets what was set there.

        `built` is from `as_built`, before the checkpoint was restored.
        """
        optimizer = self._learner.optimizer
        kinds = {kind.__name__ for one in each(optimizer) for kind in type(one).__mro__}
        others = any(name.endswith(_OF_GROUPS) or re.split(r"[./]", name)[-2] in kinds for name in changed)
        names = zip(self._learner.group_names, self._learner.rate_names, strict=True)
        unscoped = {name.rpartition("/")[2] for name in changed}
        for (name, rate), group, values in zip(names, optimizer.param_groups, built[1], strict=True):
            own = (f"Learner.{group_name}_learning_rate" for group_name in with_fallbacks(name))
            rates = not {rate, *own}.isdisjoint(unscoped)
            group.update({name: value for name, value in values.items() if (rates if name == "lr" else others)})
        for name in list(self._set):
            if any(self._is_of(name, setting) for setting in unscoped):
                self._set.pop(name)
                self._find(name).set(built[0][name])

    def _is_of(self, name: str, setting: str) -> bool:
        """Returns whether an attribute starts from a setting, such as `TaacAlgorithm.beta_min_prob`."""
        parameter, which = self._find(name).parameter, name.partition("/")[2]
        constructor, _, word = setting.rpartition(".")
        if parameter == "target_entropy":
            which = "action" if which.startswith("branch ") else which
            own, word = f"{which}_{parameter}", word.replace("min_prob", parameter)
            has_own = own in inspect.signature(type(self._learner.agent.algorithm)).parameters
            return word == own or (word == parameter and not has_own)
        if parameter == "gamma":  # of the TD loss, and of signals that have one of their own
            signals = {type(signal).__name__: signal for signal in self._learner.agent.signals}
            mine = next((kind for kind, signal in signals.items() if signal.name == which), None)
            follows = mine is None or signals[mine].gamma is None
            return word == "gamma" and (constructor == mine or (follows and constructor not in signals))
        return parameter != "" and (setting == parameter or word == parameter)

    def _find(self, name: str) -> Attribute:
        known = self._known()
        if name not in known:
            raise TaacError(f"there is no attribute '{name}'{nearest(name, known)}; there are: {', '.join(known)}")
        return known[name]

    def _known(self) -> dict[str, Attribute]:
        learner, algorithm = self._learner, self._learner.agent.algorithm
        found: dict[str, Attribute] = {}
        for name, rate, group in zip(learner.group_names, learner.rate_names, learner.optimizer.param_groups, strict=True):
            get, put = functools.partial(group.__getitem__, "lr"), functools.partial(group.__setitem__, "lr")
            found[f"learning_rate/{name}"] = Attribute(get, put, rate, saved=True)
        for name, temperature in getattr(algorithm, "temperatures", dict)().items():
            found[f"alpha/{name}"] = Attribute(temperature.alpha, temperature.set_alpha, "", saved=True)
            get, put = functools.partial(getattr, temperature, "target_entropy"), functools.partial(self._set_target, temperature)
            fixed = "its temperature is fixed" if temperature.tuning == "fixed" else ""
            found[f"target_entropy/{name}"] = Attribute(get, put, "target_entropy", (-math.inf, math.inf), fixed=fixed)
        if hasattr(self._explorer, "epsilon"):
            found["epsilon"] = self._plain(self._explorer, "epsilon", (0.0, 1.0))
        if isinstance(algorithm, ActorCriticAlgorithm):
            found |= self._of_actor_critic(algorithm)
        if learner.max_grad_norm is not None:
            found["max_grad_norm"] = self._plain(learner, "max_grad_norm")
        if learner.cloning is not None:
            found["cloning_weight"] = self._plain(learner.cloning, "weight", (0.0, math.inf))
        return {**found, "batch_size": self._batch_size}

    def _of_actor_critic(self, algorithm: ActorCriticAlgorithm) -> dict[str, Attribute]:
        parts = reward_parts(self._learner.agent, algorithm.reward_dim or 1)
        names: dict[str, Attribute] = {}
        for part, name in enumerate(parts) if algorithm.td_loss.gamma.dim() else [(0, "")]:
            get = functools.partial(algorithm.td_loss.gamma_of, part)
            put = functools.partial(self._set_gamma, part)
            repeats = 0 < algorithm.td_loss.repeat_gamma < 1
            fixed = "rewards of repeated actions are stored as sums, discounted by the one before" if repeats else ""
            names[f"gamma/{name}" if name else "gamma"] = Attribute(get, put, "gamma", (0.0, 1.0), fixed=fixed)
        follows = algorithm.target_update
        tau = self._plain(follows, "tau", (math.ulp(0.0), 1.0))
        if has_batch_statistics(algorithm.critics) and follows.period == 1:  # see `copies` of CriticStep, which is compiled
            if follows.copies:
                tau = tau._replace(fixed="the targets are the critics themselves, as CrossQ has it")
            else:
                tau = tau._replace(within=(math.ulp(0.0), 0.999))
        names["target_tau"] = tau._replace(parameter="target_update_tau")
        for signal in self._learner.agent.signals:
            part = parts.index(signal.name)
            weight, put = algorithm.weights[part], functools.partial(_set_weight, algorithm, part)  # a view of what is set
            within = (0.0, math.inf) if algorithm.signs[part] > 0 else (-math.inf, 0.0)
            names[f"strength/{signal.name}"] = Attribute(weight.item, put, f"{type(signal).__name__}.strength", within)
        return names

    def _set_gamma(self, part: int, gamma: float) -> None:
        algorithm: Any = self._learner.agent.algorithm
        for learner in _actor_critics(algorithm):
            learner.td_loss.set_gamma(part, gamma)
        self._learner.growth.gamma = algorithm.gamma
        scaler = self._learner.agent.reward_normalizer
        if isinstance(scaler, RewardScaler) and algorithm.gamma is not None:
            scaler.gamma = task_gamma(algorithm, len(self._learner.agent.signals))

    @staticmethod
    def _plain(part: Any, name: str, within: tuple[float, float] = ABOVE_ZERO) -> Attribute:
        get, put = functools.partial(getattr, part, name), functools.partial(setattr, part, name)
        return Attribute(get, put, f"{type(part).__name__}.{name}", within)

    def _set_target(self, temperature: Temperature, nats: float) -> None:
        if isinstance(temperature.target_entropy, torch.Tensor):
            raise TaacError("the target entropy cannot be set: it follows a schedule, which would overwrite it")
        temperature.target_entropy = nats


def set_strengths(agent: Agent, values: Mapping[str, float]) -> None:
    """Gives an agent of any role the strengths of reward signals that were set while it was trained, if it has their weights.

    Args:
        values: of `Attributes.state_dict`; others than strengths are ignored, because acting does not depend on them.
    """
    for name, value in values.items():
        kind, _, signal = name.partition("/")
        if kind == "strength" and signal in agent.signal_names and isinstance(agent.algorithm, ActorCriticAlgorithm):
            _set_weight(agent.algorithm, agent.signal_names.index(signal) - len(agent.signal_names), value)


def _actor_critics(algorithm: ActorCriticAlgorithm) -> list[ActorCriticAlgorithm]:
    """Returns the algorithm and what it consists of, such as TLA's slow policy."""
    return [part for part in algorithm.modules() if isinstance(part, ActorCriticAlgorithm)]


def _set_weight(algorithm: ActorCriticAlgorithm, part: int, weight: float) -> None:
    for learner in _actor_critics(algorithm):
        learner.set_weight(part, weight)
