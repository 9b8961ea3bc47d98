"""The gradient step: optimizer, learning rates, clipping."""

from __future__ import annotations

from typing import Any

import gin
import torch

from taac.data_structures import Experience
from taac.errors import TaacError
from taac.ops.products import Products, resolve, using
from taac.training.agent import Agent


class TensorFlowAdam(torch.optim.Adam):
    """Adam with epsilon added as TensorFlow does: step `lr sqrt(1-b2^t)/(1-b1^t) m / (sqrt(v) + eps)`.

    PyTorch divides by `sqrt(v)/sqrt(1-b2^t) + eps`, which is the same step with `eps / sqrt(1-b2^t)` for eps.

    Source: Kingma and Ba (arXiv:1412.6980), the end of section 2 ("epsilon hat").
    """

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-7):
        super().__init__(params, lr=lr, betas=betas, eps=eps, fused=True)
        for group in self.param_groups:
            group["epsilon_hat"], group["num_steps"] = eps, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["num_steps"] += 1
            group["eps"] = group["epsilon_hat"] / (1.0 - group["betas"][1] ** group["num_steps"]) ** 0.5
        if closure is not None or any(
            p.grad is None or p not in self.state for g in self.param_groups for p in g["params"]
        ):
            return super().step(closure)
        # torch's own step, without the checks that it makes of every parameter every time
        for group in self.param_groups:
            parameters, (beta1, beta2) = group["params"], group["betas"]
            states = [self.state[p] for p in parameters]
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                parameters, [p.grad for p in parameters], [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states], [], steps, lr=group["lr"], beta1=beta1, beta2=beta2,
                weight_decay=0.0, eps=group["eps"], amsgrad=False, maximize=False,
            )  # fmt: skip
        return None


@gin.configurable
class Learner:
    """Takes gradient steps on an agent.

    Args:
        agent: what is trained.
        learning_rate: of every parameter, temperatures included.
        actor_learning_rate, critic_learning_rate, temperature_learning_rate: instead, for that group.
        epsilon: Adam's, added as TensorFlow does.
        max_grad_norm: the gradient's norm over all parameters is clipped to it; None does not clip.
        products: which matrix products: "plain" are torch's own, "onednn" are oneDNN's in full float32, "auto" is the
            faster of the two on this processor, "bfloat16" rounds the factors to bfloat16, about twice as fast where the
            processor has units for it.
    """

    def __init__(
        self,
        agent: Agent,
        learning_rate: float = 1e-4,
        actor_learning_rate: float | None = None,
        critic_learning_rate: float | None = None,
        temperature_learning_rate: float | None = None,
        epsilon: float = 1e-7,
        max_grad_norm: float | None = None,
        products: Products = "auto",
    ):
        own = {
            "actor": actor_learning_rate,
            "critic": critic_learning_rate,
            "temperature": temperature_learning_rate,
        }
        for name, rate in {"learning_rate": learning_rate, **own}.items():
            if rate is not None and not rate > 0:
                raise TaacError(f"Learner: the learning rate '{name}' must be above 0, got {rate}")
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise TaacError(f"Learner.max_grad_norm must be above 0, or None, got {max_grad_norm}")
        if not epsilon > 0:
            raise TaacError(f"Learner.epsilon must be above 0, got {epsilon}")
        self.agent, self.max_grad_norm = agent, max_grad_norm
        self.products = resolve(products, agent.device)
        groups = [
            {"params": parameters, "lr": own.get(name) or learning_rate}
            for name, parameters in agent.algorithm.parameter_groups().items()
            if parameters
        ]
        self.optimizer = TensorFlowAdam(groups, lr=learning_rate, eps=epsilon)
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.num_updates = 0

    def update(self, experience: Experience) -> dict[str, torch.Tensor]:
        """One gradient step on a sampled batch `[T, B]`; gives scalars to summarise, still on the device."""
        algorithm = self.agent.algorithm
        experience = self.agent.prepare(experience)
        with using(self.products):
            with torch.autocast(self.agent.device.type, torch.bfloat16, enabled=self.products == "bfloat16"):
                info = algorithm.train_step(experience)
            loss_info = algorithm.calc_loss(experience, info)
            loss = loss_info.loss.mean()
            for parameter in self._parameters:
                parameter.grad = None
            loss.backward()
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self.max_grad_norm)
        self.optimizer.step()
        self.num_updates += 1
        algorithm.after_update(self.num_updates)
        return {"loss/total": loss.detach(), **loss_info.extra}
