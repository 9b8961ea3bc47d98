"""Optimizers: ours, and how those of torch are used beside it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from taac.errors import TaacError


class _Moved(NamedTuple):
    """What a step of a group of parameters moves, in lists of one length."""

    parameters: list[torch.Tensor]
    exp_avgs: list[torch.Tensor]
    exp_avg_sqs: list[torch.Tensor]
    counts: list[torch.Tensor]  # one counter, over and over: to count for each takes as long as to move a small one


class TensorFlowAdam(torch.optim.Adam):
    """Adam with epsilon added as TensorFlow does: step `lr sqrt(1-b2^t)/(1-b1^t) m / (sqrt(v) + eps)`.

    PyTorch divides by `sqrt(v)/sqrt(1-b2^t) + eps`, which is the same step with `eps / sqrt(1-b2^t)` for eps.

    Source: Kingma and Ba (arXiv:1412.6980), the end of section 2 ("epsilon hat").
    """

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-7):
        super().__init__(params, lr=lr, betas=betas, eps=eps, fused=True)
        self._moved: dict[int, _Moved] = {}  # by number of the group
        for group in self.param_groups:
            group["epsilon_hat"], group["num_steps"] = eps, 0

    @torch.no_grad()
    def step(self, closure: Any = None, found_inf: torch.Tensor | None = None) -> Any:
        """One step of every group that has gradients, which counts t by itself.

        Args:
            closure: computes the loss and its gradients, and returns it.
            found_inf: a scalar; where it is 1, parameters and moments are left as they are.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.take(found_inf)
        return loss

    def take(self, found_inf: torch.Tensor | None = None) -> None:
        """`step` as learners call it, under `no_grad` already: without what torch puts around a `step`, which takes as long."""
        for number, group in enumerate(self.param_groups):
            gradients = [p.grad for p in group["params"] if p.grad is not None]
            if not gradients:
                continue  # a group that this update does not move
            moved = self._moved.get(number)
            if (
                moved is None
                or len(moved.parameters) != len(gradients)
                or any(p.grad is None for p in moved.parameters)
            ):
                moved = self._moved[number] = self._moments(group)
            group["num_steps"] += 1
            beta1, beta2 = group["betas"]
            group["eps"] = group["epsilon_hat"] / (1.0 - beta2 ** group["num_steps"]) ** 0.5
            moved.counts[0].fill_(group["num_steps"])
            torch._fused_adam_(
                moved.parameters, gradients, moved.exp_avgs, moved.exp_avg_sqs, [], moved.counts, lr=group["lr"], beta1=beta1,
                beta2=beta2, weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False,
                found_inf=found_inf,
            )  # fmt: skip

    def _moments(self, group: dict[str, Any]) -> _Moved:
        parameters = [p for p in group["params"] if p.grad is not None]
        count = torch.zeros((), device=parameters[0].device)
        for parameter in parameters:
            state = self.state[parameter]
            if "exp_avg" not in state:
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["step"] = count
        states = [self.state[p] for p in parameters]
        return _Moved(
            parameters, [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states], [count] * len(parameters)
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._moved = {}


def skips_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it can be told on the device to skip a step, so that the host need not look at every one."""
    return isinstance(optimizer, TensorFlowAdam)


def take_step(optimizer: torch.optim.Optimizer, found_inf: torch.Tensor | None) -> None:
    """A step with the gradients that the parameters have; none where `found_inf` is 1, for optimizers that take it."""
    if isinstance(optimizer, TensorFlowAdam):
        with torch.no_grad():
            optimizer.take(found_inf)
    else:
        assert found_inf is None
        optimizer.step()


def decay_weights(
    optimizer: torch.optim.Optimizer, names: Sequence[str], decays: Mapping[str, float], undecayed: str
) -> None:
    """Sets the `weight_decay` of groups of parameters.

    Args:
        names: of the optimizer's groups, in their order.
        decays: by group; one that is not named keeps the optimizer's own.
        undecayed: a group that has none, whatever the optimizer's own is.

    Raises:
        TaacError: a group that there is not, a negative number, or an optimizer without weight decay.
    """
    for name, decay in decays.items():
        if name not in names or name == undecayed:
            choices = ", ".join(n for n in names if n != undecayed)
            raise TaacError(f"Learner.weight_decay: there is no group '{name}' with weights; there are: {choices}")
        if not 0 <= decay < float("inf"):
            raise TaacError(f"Learner.weight_decay of '{name}' must be 0 or more, got {decay}")
        if "weight_decay" not in optimizer.defaults:
            raise TaacError(f"{type(optimizer).__name__} has no weight decay: remove Learner.weight_decay")
    for name, group in zip(names, optimizer.param_groups, strict=True):
        if name in decays:
            group["weight_decay"] = float(decays[name])
        elif name == undecayed and group.get("weight_decay"):
            group["weight_decay"] = 0.0


def state_after_a_step(optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """What an optimizer of this kind keeps of each parameter once it has moved it, by the parameter's number."""
    trial = copy.deepcopy(optimizer)
    for group in trial.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    trial.step()
    return trial.state_dict()["state"]


def load_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Restores `optimizer.state_dict()`.

    torch does not check the shapes of the state's tensors, and a step would read past the end of one that is too short.

    Raises:
        TaacError: the state is of another optimizer, or of other parameters; nothing is changed.
    """
    expected = state_after_a_step(optimizer)
    for index, values in state["state"].items():
        given, right = ({name: _kind(v) for name, v in of.items()} for of in (values, expected[index]))
        if given != right:
            name = next(name for name in (*given, *right) if given.get(name) != right.get(name))
            raise TaacError(
                f"it is of another optimizer: '{name}' of parameter {index} is {given.get(name, 'missing')}, expected "
                f"{right.get(name, 'nothing of that name')}"
            )
    for ours, theirs in zip(optimizer.state_dict()["param_groups"], state["param_groups"], strict=True):
        given, right = ({k: _kind(v) for k, v in group.items()} for group in (theirs, ours))
        if given != right:
            raise TaacError(f"it is of another optimizer: {given}, expected {right}")
    optimizer.load_state_dict(state)


def _kind(value: Any) -> Any:
    """Type, and of a tensor shape: what must be equal in two states of one optimizer."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return [_kind(v) for v in value] if isinstance(value, (list, tuple)) else type(value).__name__
