"""The optimizer's groups of parameters, and the learning rate of each."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn as nn

from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import check_groups
from taac.errors import TaacError
from taac.ops.schedules import Schedule, Scheduled, at_start, bounds

Rate = float | Schedule

# A group without its own rate uses that of another group.
_FALLS_BACK_ON = {"actor_encoder": "actor", "value_encoder": "critic"}


class ParameterGroup(NamedTuple):
    """Parameters that share a learning rate."""

    name: str  # "actor", "critic", ..., or a reward signal's
    parameters: list[nn.Parameter]
    rate_name: str  # the binding that sets the rate, such as "Learner.actor_learning_rate"
    rate: Rate

    def for_optimizer(self) -> dict[str, Any]:
        """Returns the group in the form that torch's optimizers accept."""
        return {"params": self.parameters, "lr": at_start(self.rate)}


def groups_of_algorithm(agent: Agent, learning_rate: Rate, own: Mapping[str, Rate | None]) -> list[ParameterGroup]:
    """Returns the parameter groups of the agent's algorithm, without empty ones.

    Args:
        agent: holds the algorithm.
        learning_rate: rate of groups without their own.
        own: rates of groups by name. None: an encoder uses the rate of the actor or of the critics; the others use
            `learning_rate`.

    Raises:
        TaacError: a rate is not above 0, or belongs to an encoder that the algorithm lacks; a trainable parameter is in no
            group, or in two.
    """
    for name, rate in {"learning_rate": learning_rate, **own}.items():
        if rate is not None and not (bounds(rate)[0] >= 0 and bounds(rate)[1] > 0):
            raise TaacError(f"Learner: the learning rate '{name}' must be above 0, got {rate}")
    check_groups(agent.algorithm)
    parameters = {name: group for name, group in agent.algorithm.parameter_groups().items() if group}
    for name in _FALLS_BACK_ON:
        if name not in parameters and own[name] is not None:
            raise TaacError(f"Learner.{name}_learning_rate has no effect: the algorithm has no {name} to train")
    return [ParameterGroup(name, group, *_rate_of(name, learning_rate, own)) for name, group in parameters.items()]


def groups_of_signals(agent: Agent) -> list[ParameterGroup]:
    """Returns a group for each of the agent's reward signals, with the signal's own learning rate."""
    return [
        ParameterGroup(
            signal.name, [p for p in signal.parameters() if p.requires_grad], f"{type(signal).__name__}.learning_rate",
            signal.learning_rate,
        )
        for signal in agent.signals
    ]  # fmt: skip


def scheduled_rates(
    optimizer: torch.optim.Optimizer, groups: Sequence[ParameterGroup], rates: Mapping[str, Rate | None]
) -> list[Scheduled]:
    """Returns the learning rates that follow a schedule.

    Args:
        optimizer: holds the current rates.
        groups: the optimizer's groups, in order.
        rates: all bound rates by name, used or not.

    Raises:
        TaacError: a rate that no group uses follows a schedule.
    """
    found = []
    for name, rate in rates.items():
        if not isinstance(rate, Schedule):
            continue
        numbers = [number for number, group in enumerate(groups) if group.rate_name == name]
        if not numbers:
            in_use = ", ".join(dict.fromkeys(group.rate_name for group in groups))
            raise TaacError(
                f"{name} follows a schedule, but no trainable parameter has this learning rate; the rates in use are {in_use}"
            )
        found.append(Scheduled(name, rate, functools.partial(_set_rate, optimizer, numbers)))
    return found


def _set_rate(optimizer: torch.optim.Optimizer, numbers: Sequence[int], rate: float) -> None:
    for number in numbers:
        optimizer.param_groups[number]["lr"] = rate


def _rate_of(group: str, learning_rate: Rate, own: Mapping[str, Rate | None]) -> tuple[str, Rate]:
    """Returns the name of the binding that sets a group's learning rate, and the rate."""
    for name in (group, _FALLS_BACK_ON.get(group)):
        if name is not None and (rate := own.get(name)) is not None:
            return f"Learner.{name}_learning_rate", rate
    return "Learner.learning_rate", learning_rate
