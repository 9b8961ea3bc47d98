"""Operations on any optimizer, ours or torch's: a step, weight decay by group, and a checked state."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from taac.errors import TaacError
from taac.learning.adam import TensorFlowAdam
from taac.learning.groups import ParameterGroup, Rate, own_or_fallback
from taac.ops.schedules import Schedule, Scheduled

OptimizerCtor = Callable[..., torch.optim.Optimizer]
MOST_STEPS = 2**53  # beyond, floats do not count


class ByGroup:
    """An optimizer for each group of parameters, which step together.

    Args:
        optimizers: each of one group.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]):
        self.optimizers = list(optimizers)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"by_group": [optimizer.state_dict() for optimizer in self.optimizers]}


Optimizer = torch.optim.Optimizer | ByGroup


def build_optimizer(
    ctor: OptimizerCtor | Mapping[str, OptimizerCtor] | None,
    groups: Sequence[ParameterGroup],
    learning_rate: float,
    default: OptimizerCtor,
) -> Optimizer:
    """Returns an optimizer of all groups, or one for each if there are constructors by group.

    Args:
        ctor: called with groups of parameters and `lr`; or such constructors by the group's name; None: the default.
        groups: all groups.
        learning_rate: of those without their own.
        default: of the groups that `ctor` leaves out.

    Raises:
        TaacError: there is no group of a name.
    """
    if not isinstance(ctor, Mapping):
        return (ctor or default)([group.for_optimizer() for group in groups], lr=learning_rate)
    names = [group.name for group in groups]
    if unknown := [name for name in ctor if name not in names]:
        raise TaacError(f"Learner.optimizer_ctor: there is no group '{unknown[0]}' of parameters; there are: {', '.join(names)}")
    ctors = [ctor.get(own_or_fallback(name, ctor) or "", default) for name in names]
    return ByGroup([make([group.for_optimizer()], lr=learning_rate) for make, group in zip(ctors, groups)])


def each(optimizer: Optimizer) -> list[torch.optim.Optimizer]:
    """Returns the optimizers of torch that an optimizer consists of."""
    return optimizer.optimizers if isinstance(optimizer, ByGroup) else [optimizer]


def skips_on_device(optimizer: Optimizer) -> bool:
    """Returns whether a flag on the device can make the optimizer skip a step, so that the host need not check every step."""
    return all(isinstance(one, TensorFlowAdam) for one in each(optimizer))


def take_step(optimizer: Optimizer, found_inf: torch.Tensor | None) -> None:
    """Takes a step with the parameters' gradients.

    A fused optimizer pairs the numbers of parameter, gradient and moments by their place in memory. `torch.autograd.grad` may
    return a gradient in another layout than its parameter, as for convolutions of images whose channels come last. So all are
    made contiguous.

    Args:
        optimizer: any optimizer, of contiguous parameters.
        found_inf: a scalar on the device; if it is 1, the step is skipped. None unless `skips_on_device(optimizer)`.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and not parameter.grad.is_contiguous():
                parameter.grad = parameter.grad.contiguous()
    for one in each(optimizer):
        if isinstance(one, TensorFlowAdam):
            with torch.no_grad():
                one.step_fused(found_inf)
        else:
            assert found_inf is None
            one.step()


def decay_weights(optimizer: Optimizer, names: Sequence[str], decays: Mapping[str, float], undecayed: str) -> None:
    """Sets the `weight_decay` of groups of parameters.

    Args:
        optimizer: its groups are changed.
        names: names of the optimizer's groups, in order.
        decays: weight decay by group. Other groups keep the optimizer's own.
        undecayed: a group without weight decay, whatever the optimizer's own is.

    Raises:
        TaacError: there is no such group, a number is negative, or the optimizer has no weight decay.
    """
    for name, decay in decays.items():
        if name not in names or name == undecayed:
            choices = ", ".join(n for n in names if n != undecayed)
            raise TaacError(f"Learner.weight_decay: there is no group '{name}' with weights; there are: {choices}")
        if not 0 <= decay < float("inf"):
            raise TaacError(f"Learner.weight_decay of '{name}' must be 0 or more, got {decay}")
        if "weight_decay" not in optimizer.param_groups[names.index(name)]:
            kind = type(each(optimizer)[names.index(name) if isinstance(optimizer, ByGroup) else 0]).__name__
            raise TaacError(f"{kind} has no weight decay: remove Learner.weight_decay")
    for name, group in zip(names, optimizer.param_groups, strict=True):
        if name in decays:
            group["weight_decay"] = float(decays[name])
        elif name == undecayed and group.get("weight_decay"):
            group["weight_decay"] = 0.0


def scheduled_rates(
    optimizer: Optimizer, groups: Sequence[ParameterGroup], rates: Mapping[str, Rate | None]
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


def _set_rate(optimizer: Optimizer, numbers: Sequence[int], rate: float) -> None:
    for number in numbers:
        optimizer.param_groups[number]["lr"] = rate


def state_after_a_step(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """Returns the state that such an optimizer has for each parameter after a step, by the parameter's number."""
    trial = copy.deepcopy(optimizer)
    for group in trial.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    trial.step()
    return trial.state_dict()["state"]


def load_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restores `optimizer.state_dict()`.

    torch does not check the shapes of the state's tensors, and a step would read past the end of one that is too short.

    Raises:
        TaacError: the state belongs to another optimizer or other parameters; nothing is changed.
    """
    states = state.get("by_group", [state])
    if len(states) != len(each(optimizer)) or any("param_groups" not in one for one in states):
        raise TaacError("it holds the state of another optimizer: check Learner.optimizer_ctor")
    for one, its in zip(each(optimizer), states):
        _check_state(one, its)
    for one, its in zip(each(optimizer), states):
        one.load_state_dict(its)
        for values in one.state.values():  # older checkpoints may hold another layout; see `take_step`
            values.update({name: v.contiguous() for name, v in values.items() if isinstance(v, torch.Tensor)})


def _check_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    expected = state_after_a_step(optimizer)
    for index, values in state["state"].items():
        given, right = ({name: _kind(v) for name, v in of.items()} for of in (values, expected[index]))
        if given != right:
            name = next(name for name in (*given, *right) if given.get(name) != right.get(name))
            raise TaacError(
                f"it holds the state of another optimizer: '{name}' of parameter {index} is {given.get(name, 'missing')}, "
                f"expected {right.get(name, 'nothing of that name')}"
            )
    for ours, theirs in zip(optimizer.state_dict()["param_groups"], state["param_groups"], strict=True):
        given, right = ({k: _kind(v) for k, v in group.items()} for group in (theirs, ours))
        if given != right:
            raise TaacError(f"it holds the state of another optimizer: {given}, expected {right}")
        betas, steps = theirs.get("betas", ()), theirs.get("num_steps", 0)
        if not (all(0 <= beta < 1 for beta in betas) and 0 <= steps <= MOST_STEPS):
            raise TaacError(f"it holds numbers that no optimizer has: {steps} steps, with betas of {betas}")


def _kind(value: Any) -> Any:
    """Returns the type, and the shape of a tensor: what must agree between two states of one optimizer."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return [_kind(v) for v in value] if isinstance(value, (list, tuple)) else type(value).__name__
