"""The optimizer's groups of parameters, and the learning rate of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch.nn as nn

from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import check_groups
from taac.errors import TaacError
from taac.ops.schedules import Schedule, at_start, bounds

Rate = float | Schedule

# A group without a rate or an optimizer of its own uses that of another group.
_FALLS_BACK_ON = {"actor_encoder": "actor", "value_encoder": "value", "value": "critic"}


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
        own: rates of groups by name. None: an encoder uses the rate of the actor or of V, and V that of the critics; the others
            use `learning_rate`.

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


def _rate_of(group: str, learning_rate: Rate, own: Mapping[str, Rate | None]) -> tuple[str, Rate]:
    """Returns the name of the binding that sets a group's learning rate, and the rate."""
    given = {name: rate for name, rate in own.items() if rate is not None}
    name = own_or_fallback(group, given)
    return ("Learner.learning_rate", learning_rate) if name is None else (f"Learner.{name}_learning_rate", given[name])


def own_or_fallback(group: str, given: Collection[str]) -> str | None:
    """Returns the group among `given` whose setting applies to a group: itself, or one that it falls back on; None if none."""
    while group not in given and group in _FALLS_BACK_ON:
        group = _FALLS_BACK_ON[group]
    return group if group in given else None
