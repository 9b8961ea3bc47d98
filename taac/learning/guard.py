"""Stops a run at the first loss or gradient that is not finite, before it changes a parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn as nn

from taac import nest
from taac.algorithms.agent import Agent
from taac.data_structures import Experience
from taac.errors import DivergedError

CUDA_INTERVAL = 20  # updates between checks by the host, each of which waits for the GPU
ADVICE = "Try a lower learning rate (Learner.learning_rate), or rewards that are clipped or normalised"


class GradientStep(NamedTuple):
    """A gradient step that is about to be taken."""

    update: int  # number of the update, from 1
    sampled: Experience  # [T, B, ...], as it came from the replay buffer
    prepared: Experience  # the same after normalisation, as the algorithm received it
    loss: torch.Tensor  # scalar, detached
    total: torch.Tensor  # scalar, `sum_of_all`
    frames: torch.Tensor  # [T, B], the loss of each frame, detached
    summaries: Mapping[str, torch.Tensor]  # scalars by tag

    def evidence(self) -> dict[str, Any]:
        """Returns all tensors of the step by path, on the CPU."""
        parts = {"sampled": self.sampled, "prepared": self.prepared}
        found = {f"{name}/{path}": leaf for name, part in parts.items() for path, leaf in nest.flatten_with_path(part)}
        found |= {"loss": self.frames, **{f"summaries/{tag}": value for tag, value in self.summaries.items()}}
        return {path: leaf.detach().cpu() for path, leaf in found.items() if isinstance(leaf, torch.Tensor)}


def sum_of_all(loss: torch.Tensor, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Returns a scalar that is not finite if the loss or an element of a gradient is not.

    In rare cases the scalar alone is not finite, because sums can overflow.
    """
    return torch.stack([loss, *(g.sum() for g in gradients if g is not None)]).sum()


class Guard:
    """Refuses a gradient step whose loss or gradients are not finite, before the optimizer takes it.

    A sum is not finite if one of its terms is not, so normally only sums are computed. The terms are checked only if a sum is
    not finite. On the CPU the guard checks every step. On a GPU, reading a number waits for all earlier work, so the host checks
    only every `CUDA_INTERVAL` steps. Until then, a flag on the device makes the optimizer skip the bad step and all later ones,
    so the parameters stay unchanged.

    Args:
        agent: the agent, whose parameter names are used in messages.
        parameters: the parameters that have gradients.
        every_step: the host checks every step on a GPU too, for optimizers that cannot skip a step on the device.
    """

    def __init__(self, agent: Agent, parameters: Sequence[nn.Parameter], every_step: bool = False):
        names = {id(p): name for name, p in agent.named_parameters()}
        self._agent, self._parameters = agent, parameters
        self._names = [names[id(p)] for p in parameters]
        self.interval = CUDA_INTERVAL if agent.device.type == "cuda" and not every_step else 1
        self._waiting: list[tuple[GradientStep, torch.Tensor]] = []  # not checked yet, with sums [1 + parameters]
        self._found: torch.Tensor | None = None

    def check(self, step: GradientStep) -> torch.Tensor | None:
        """Checks the loss and the gradients of a step; returns the `found_inf` of `take_step`.

        Raises:
            DivergedError: one is not finite, in this step or, on a GPU, in one not checked before.
        """
        if self.interval == 1:
            if not math.isfinite(step.total.item()):
                self._refuse(step, [bool(v.isfinite().all()) for v in self._values(step)])
            return None
        sums = torch.stack(torch._foreach_norm(self._values(step), 1))  # few kernels, however many gradients
        bad = (~sums.isfinite().all()).float()
        self._found = bad if self._found is None else torch.maximum(self._found, bad)
        self._waiting.append((step, sums))
        if len(self._waiting) >= self.interval or step.update == 1:  # torch cannot skip the first step
            self.flush()
        return self._found

    def _values(self, step: GradientStep) -> list[torch.Tensor]:
        return [step.loss, *(step.loss.new_zeros(()) if p.grad is None else p.grad for p in self._parameters)]

    def flush(self) -> None:
        """Checks the steps that have not been checked yet.

        Raises:
            DivergedError: one of their losses or gradients is not finite.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        finite = torch.stack([sums for _, sums in waiting]).isfinite().tolist()
        for (step, _), row in zip(waiting, finite):
            self._refuse(step, row)

    def _refuse(self, step: GradientStep, finite: list[bool]) -> None:
        """Raises DivergedError for a step, unless its loss and all its gradients are finite."""
        if all(finite):
            return  # only their sum is not finite
        where = []
        if not finite[0]:
            tags = [tag for tag, value in step.summaries.items() if not bool(torch.as_tensor(value).isfinite().all())]
            parts = f" (of its parts: {', '.join(tags)})" if tags else ""
            bad = (~step.frames.isfinite()).nonzero().tolist()
            first = f", {len(bad)} of {step.frames.numel()} frames, the first [t, b] = {bad[0]}" if bad else ""
            where.append(f"the loss{parts}{first}")
        if gradients := [name for name, fine in zip(self._names, finite[1:]) if not fine]:
            where.append(f"the gradients of {_some(gradients)}")
        raise DivergedError(
            f"update {step.update} was not taken, because it has numbers that are not finite: {' and '.join(where)}. "
            f"Training has diverged; the parameters are unchanged. {ADVICE}",
            step.evidence(),
        )

    def check_parameters(self) -> None:
        """Checks all parameters, and the steps that have not been checked yet. Call it before a checkpoint is written.

        Raises:
            DivergedError: a parameter, or the loss or a gradient of a step, is not finite.
        """
        self.flush()
        bad = [
            name
            for name, p in self._agent.named_parameters()
            if not math.isfinite(p.sum().item()) and not bool(p.isfinite().all())
        ]
        if bad:
            evidence = {f"parameters/{name}": p.detach().cpu() for name, p in self._agent.named_parameters()}
            raise DivergedError(
                f"parameters are not finite: {_some(bad)}. Training has diverged, so no checkpoint is written. {ADVICE}",
                evidence,
            )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more
