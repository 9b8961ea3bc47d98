"""TensorFlow's Adam, with steps that can be skipped on the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class _Fused(NamedTuple):
    """The arguments of a fused step for one group of parameters: lists of one length."""

    parameters: list[torch.Tensor]
    exp_avgs: list[torch.Tensor]
    exp_avg_sqs: list[torch.Tensor]
    counts: list[torch.Tensor]  # one counter, repeated, because separate counters would take as long as the step


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

        Args:
            closure: computes the loss and its gradients, and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.step_fused(None)
        return loss

    def step_fused(self, found_inf: torch.Tensor | None) -> None:
        """`step` without torch's hooks, which double its time. Call it under `no_grad`.

        Args:
            found_inf: a scalar; where it is 1, parameters and moments stay as they are.
        """
        for number, group in enumerate(self.param_groups):
            gradients = [p.grad for p in group["params"] if p.grad is not None]
            if not gradients:
                continue
            fused = self._fused.get(number)
            if (
                fused is None
                or len(fused.parameters) != len(gradients)
                or any(p.grad is None for p in fused.parameters)
            ):
                fused = self._fused[number] = self._with_moments(group)
            group["num_steps"] += 1
            beta1, beta2 = group["betas"]
            group["eps"] = group["epsilon_hat"] / (1.0 - beta2 ** group["num_steps"]) ** 0.5
            fused.counts[0].fill_(group["num_steps"])
            torch._fused_adam_(
                fused.parameters, gradients, fused.exp_avgs, fused.exp_avg_sqs, [], fused.counts, lr=group["lr"], beta1=beta1,
                beta2=beta2, weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False,
                found_inf=found_inf,
            )  # fmt: skip

    def _with_moments(self, group: dict[str, Any]) -> _Fused:
        """Returns the group's parameters that have gradients, with their moments, which are 0 initially."""
        parameters = [p for p in group["params"] if p.grad is not None]
        count = torch.zeros((), device=parameters[0].device)
        for parameter in parameters:
            state = self.state[parameter]
            if "exp_avg" not in state:
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["step"] = count
        states = [self.state[p] for p in parameters]
        return _Fused(
            parameters, [s["exp_avg"] for s in states], [s["exp_avg_sq"] for s in states], [count] * len(parameters)
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._fused = {}
