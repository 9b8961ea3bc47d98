"""Groups of parameters, TensorFlow's Adam, and what any optimizer needs: a step, weight decay, a checked state."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn as nn

from taac import nest
from taac.algorithms.actor_critic import trainable
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import check_groups
from taac.errors import TaacError
from taac.ops.schedules import Schedule, Scheduled, at_start, bounds

# Groups ---------------------------------------------------------------------------------------------------------------

Rate = float | Schedule

# A group without a rate or an optimizer of its own uses that of another group.
_FALLS_BACK_ON = {"actor_encoder": "actor", "value_encoder": "value", "value": "critic"}


class ParameterGroup(NamedTuple):
    """Parameters that share a learning rate."""

    name: str  # "actor", "critic", ..., or a reward signal's
    parameters: list[nn.Parameter]
    rate_name: str  # the binding that sets the rate, such as "Learner.actor_learning_rate"
    rate: Rate


def groups_of_algorithm(agent: Agent, learning_rate: Rate, own: Mapping[str, Rate | None]) -> list[ParameterGroup]:
    """Returns the parameter groups of the agent's algorithm, without empty ones.

    `own` are rates of groups by name. Where they are None, an encoder uses the rate of the actor or of V, V that of the critics,
    and the others `learning_rate`.

    Raises:
        TaacError: a rate is not above 0, or belongs to a group that the algorithm lacks; a trainable parameter is in no
            group, or in two.
    """
    for name, rate in {"learning_rate": learning_rate, **own}.items():
        if rate is not None and not (bounds(rate)[0] >= 0 and bounds(rate)[1] > 0):
            raise TaacError(f"Learner: the learning rate '{name}' must be above 0, got {rate}")
    check_groups(agent.algorithm)
    parameters = {name: group for name, group in agent.algorithm.parameter_groups().items() if group}
    given = {name: rate for name, rate in own.items() if rate is not None}
    if idle := given.keys() - {own_or_fallback(name, given) for name in parameters}:
        names = sorted(idle)
        raise TaacError(f"Learner.{names[0]}_learning_rate has no effect: the algorithm has no {names[0]} to train")
    found = []
    for name, group in parameters.items():
        source = own_or_fallback(name, given)
        rate = learning_rate if source is None else given[source]
        found.append(ParameterGroup(name, group, f"Learner.{source}_learning_rate" if source else "Learner.learning_rate", rate))
    return found


def groups_of_signals(agent: Agent) -> list[ParameterGroup]:
    """Returns a group for each of the agent's reward signals that has a model, with the signal's own learning rate."""
    return [
        ParameterGroup(signal.name, trainable(signal), f"{type(signal).__name__}.learning_rate", signal.learning_rate)
        for signal in agent.signals
        if trainable(signal)
    ]


def with_fallbacks(group: str) -> list[str]:
    """Returns a group and those whose settings it falls back on, in order."""
    found = [group]
    while found[-1] in _FALLS_BACK_ON:
        found.append(_FALLS_BACK_ON[found[-1]])
    return found


def own_or_fallback(group: str, given: Collection[str]) -> str | None:
    """Returns the group among `given` whose setting applies to a group: itself, or one that it falls back on; None if none."""
    return next((name for name in with_fallbacks(group) if name in given), None)


# Adam -----------------------------------------------------------------------------------------------------------------


class _Fused(NamedTuple):
    """The arguments of a fused step for one group of parameters: lists of one length."""

    parameters: list[torch.Tensor]
    exp_avgs: list[torch.Tensor]
    exp_avg_sqs: list[torch.Tensor]
    counts: list[torch.Tensor]  # few counters, repeated, because separate ones would take as long as the step
    counters: dict[int, torch.Tensor]  # by the number of the group's steps before the first that it counts


class TensorFlowAdam(torch.optim.Adam):
    """Adam with epsilon added as TensorFlow does: a step of `lr sqrt(1-b2^t)/(1-b1^t) m / (sqrt(v) + eps)`.

    PyTorch divides by `sqrt(v)/sqrt(1-b2^t) + eps`. That is the same step with `eps / sqrt(1-b2^t)` in place of eps.

    Source: Kingma and Ba (arXiv:1412.6980), the end of section 2 ("epsilon hat").
    """

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-7):
        super().__init__(params, lr=lr, betas=betas, eps=eps, fused=True)
        self._fused: dict[int, _Fused] = {}  # by number of the group
        for group in self.param_groups:
            group["epsilon_hat"], group["num_steps"] = eps, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Takes a step in every group that has gradients. Each group counts its own steps t.

        A parameter whose first gradient comes later, or after `forget`, counts from there. Only epsilon stays the group's.

        Args:
            closure: computes the loss and its gradients, and returns the loss.
        """
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self.step_fused(None)
        return loss

    def step_fused(self, found_inf: torch.Tensor | None) -> None:
        """Does `step` without torch's hooks, which double its time. Call it under `no_grad`.

        Args:
            found_inf: a scalar; where it is 1, parameters and moments stay as they are.
        """
        for number, group in enumerate(self.param_groups):
            gradients = [p.grad for p in group["params"] if p.grad is not None]
            if not gradients:
                continue
            fused = self._fused.get(number)
            if fused is None or len(fused.parameters) != len(gradients) or any(p.grad is None for p in fused.parameters):
                fused = self._fused[number] = self._with_moments(group)
            group["num_steps"] += 1
            beta1, beta2 = group["betas"]
            group["eps"] = group["epsilon_hat"] / (1.0 - beta2 ** group["num_steps"]) ** 0.5
            for before, counter in fused.counters.items():
                counter.fill_(group["num_steps"] - before)
            torch._fused_adam_(
                fused.parameters, gradients, fused.exp_avgs, fused.exp_avg_sqs, [], fused.counts, lr=group["lr"], beta1=beta1,
                beta2=beta2, weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False,
                found_inf=found_inf,
            )  # fmt: skip

    def _with_moments(self, group: dict[str, Any]) -> _Fused:
        """Returns the group's parameters that have gradients, with their moments, which are 0 initially."""
        parameters = [p for p in group["params"] if p.grad is not None]
        counters: dict[int, torch.Tensor] = {}
        for parameter in parameters:
            state = self.state[parameter]
            if "exp_avg" not in state:
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            before = group["num_steps"] - int(state.get("step", 0))
            state["step"] = counters.setdefault(before, torch.zeros((), device=parameter.device))
        averages, squares, counts = ([self.state[p][name] for p in parameters] for name in ("exp_avg", "exp_avg_sq", "step"))
        return _Fused(parameters, averages, squares, counts, counters)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._fused = {}


# Any optimizer --------------------------------------------------------------------------------------------------------

OptimizerCtor = Callable[..., torch.optim.Optimizer]
MOST_STEPS = 2**53  # beyond, floats do not count


class ByGroup:
    """An optimizer for each group of parameters, which step together."""

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
        learning_rate: of groups without their own.
        default: of the groups that `ctor` leaves out.
    """
    of_torch = [{"params": group.parameters, "lr": at_start(group.rate)} for group in groups]
    if not isinstance(ctor, Mapping):
        return (ctor or default)(of_torch, lr=learning_rate)
    names = [group.name for group in groups]
    if unknown := [name for name in ctor if name not in names]:
        raise TaacError(f"Learner.optimizer_ctor: there is no group '{unknown[0]}' of parameters; there are: {', '.join(names)}")
    ctors = [ctor.get(own_or_fallback(name, ctor) or "", default) for name in names]
    return ByGroup([make([group], lr=learning_rate) for make, group in zip(ctors, of_torch)])


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
    made contiguous; parameters are.

    Args:
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


def set_weight_decay(optimizer: Optimizer, names: Sequence[str], decays: Mapping[str, float]) -> None:
    """Sets the `weight_decay` of an optimizer's groups, which have these `names`, in order. That of "temperature" is 0.

    Args:
        decays: weight decay by group. Other groups keep the optimizer's own.

    Raises:
        TaacError: there is no such group, a number is negative, or the optimizer has no weight decay.
    """
    for name, decay in decays.items():
        if name not in names or name == "temperature":
            choices = ", ".join(n for n in names if n != "temperature")
            raise TaacError(f"Learner.weight_decay: there is no group '{name}' with weights; there are: {choices}")
        if not 0 <= decay < float("inf"):
            raise TaacError(f"Learner.weight_decay of '{name}' must be 0 or more, got {decay}")
        if "weight_decay" not in optimizer.param_groups[names.index(name)]:
            kind = type(each(optimizer)[names.index(name) if isinstance(optimizer, ByGroup) else 0]).__name__
            raise TaacError(f"{kind} has no weight decay: remove Learner.weight_decay")
    for name, group in zip(names, optimizer.param_groups, strict=True):
        if name in decays:
            group["weight_decay"] = float(decays[name])
        elif name == "temperature" and group.get("weight_decay"):
            group["weight_decay"] = 0.0


def scheduled_rates(
    optimizer: Optimizer, groups: Sequence[ParameterGroup], learning_rate: Rate, own: Mapping[str, Rate | None]
) -> list[Scheduled]:
    """Returns the learning rates that follow a schedule. The optimizer holds their current values.

    `groups` are the optimizer's, in order; `learning_rate` and `own` are as in `groups_of_algorithm`.

    Raises:
        TaacError: a rate that no group uses follows a schedule.
    """
    rates = {"Learner.learning_rate": learning_rate, **{f"Learner.{name}_learning_rate": rate for name, rate in own.items()}}
    found = []
    for name, rate in {**rates, **{group.rate_name: group.rate for group in groups}}.items():
        if not isinstance(rate, Schedule):
            continue
        if not (numbers := [number for number, group in enumerate(groups) if group.rate_name == name]):
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
        for values in one.state.values():  # a step reads moments of another layout wrongly; see `take_step`
            values.update({name: v.contiguous() for name, v in values.items() if isinstance(v, torch.Tensor)})


def forget(optimizer: Optimizer, parameters: Collection[torch.Tensor]) -> None:
    """Removes what an optimizer holds of some parameters: moments, and how many steps they have taken."""
    forgotten = {id(p) for p in parameters}
    for one in each(optimizer):
        state = one.state_dict()
        for group, held in zip(one.param_groups, state["param_groups"]):
            gone = [number for p, number in zip(group["params"], held["params"]) if id(p) in forgotten]
            for number in gone:
                state["state"].pop(number, None)
            if "num_steps" in held and len(gone) == len(held["params"]):
                held["num_steps"] = 0
        one.load_state_dict(state)


def _kind(leaf: Any) -> str:
    return "number" if type(leaf) in (int, float) else nest.kind(leaf)  # torch's defaults are integers, such as a decay of 0


def _check_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    expected = state_after_a_step(optimizer)
    for index, values in state["state"].items():
        given, right = (nest.map_structure(nest.kind, of) for of in (values, expected[index]))
        if given != right:
            name = next(name for name in (*given, *right) if given.get(name) != right.get(name))
            raise TaacError(
                f"it holds the state of another optimizer: '{name}' of parameter {index} is {given.get(name, 'missing')}, "
                f"expected {right.get(name, 'nothing of that name')}"
            )
    for ours, theirs in zip(optimizer.state_dict()["param_groups"], state["param_groups"], strict=True):
        given, right = (nest.map_structure(_kind, group) for group in (theirs, ours))
        if given != right:
            raise TaacError(f"it holds the state of another optimizer: {given}, expected {right}")
        betas, steps = theirs.get("betas", ()), theirs.get("num_steps", 0)
        if not (all(0 <= beta < 1 for beta in betas) and 0 <= steps <= MOST_STEPS):
            raise TaacError(f"it holds numbers that no optimizer has: {steps} steps, with betas of {betas}")
