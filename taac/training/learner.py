"""The gradient step: optimizer, learning rates, clipping."""

from __future__ import annotations

from typing import Any

import gin
import torch

from taac.data_structures import Experience
from taac.errors import TaacError
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
        return super().step(closure)


@gin.configurable
class Learner:
    """Takes gradient steps on an agent.

    Args:
        agent: what is trained.
        learning_rate: of every parameter, temperatures included.
        actor_learning_rate, critic_learning_rate, temperature_learning_rate: instead, for that group.
        epsilon: Adam's, added as TensorFlow does.
        max_grad_norm: the gradient's norm over all parameters is clipped to it; None does not clip.
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
        loss_info = algorithm.calc_loss(experience, algorithm.train_step(experience))
        loss = loss_info.loss.mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._parameters, self.max_grad_norm)
        self.optimizer.step()
        self.num_updates += 1
        algorithm.after_update(self.num_updates)
        return {"loss/total": loss.detach(), **loss_info.extra}
