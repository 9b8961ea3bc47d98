"""Stops a run at the first loss or gradient that is not finite, and warns of values that grow towards that."""

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
    so the parameters stay unchanged. With `every_step` the host checks each there, too, for optimizers that cannot skip one.
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
        """Checks the steps that have not been checked yet. Raises `DivergedError` as `check`."""
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


class GrowthWatch:
    """Warns, once each, of values or temperatures that rewards can no longer explain, before they overflow.

    A value is a discounted sum of rewards, entropy bonuses, prices p of decisions and other costs c, so
    `|Q| <= (max|r| + share (alpha |H| + p + c)) / (1 - gamma)`. The bound is the largest right side of the run so
    far, computed with the rewards that were learnt from. Values above `FACTOR` times the bound mean that critics learn from their
    own errors. A temperature above `ALPHA_FACTOR` times both the greatest reward and its own initial value means that rewards no
    longer matter.

    Args:
        gamma: discount per step. If it is 1, or None because the algorithm has no such discount, values are not checked.
        reward_scale: the factor by which the algorithm multiplies the rewards that `observe` receives; r is the product.
        greatest_cost: c, `Algorithm.greatest_cost`.
    """

    FACTOR = 3.0
    ALPHA_FACTOR = 100.0
    PATIENCE = 1000  # updates after which even rare rewards should have been observed

    def __init__(self, gamma: float | None, reward_scale: float = 1.0, greatest_cost: float = 0.0):
        self.gamma, self.reward_scale, self.greatest_cost = gamma, reward_scale, greatest_cost
        self.num_seen = 0
        self._greatest: torch.Tensor | None = None
        self._bound = 0.0
        self._start: dict[str, float] = {}
        self._warned: set[str] = set()

    def observe(self, reward: torch.Tensor) -> None:
        """Records the largest absolute reward of a batch `[T, B(, D)]`, as the algorithm receives it."""
        self.num_seen += 1
        greatest = self.reward_scale * reward.abs().amax()
        before = greatest if self._greatest is None else self._greatest.to(greatest.device)
        self._greatest = torch.maximum(before, greatest)

    def warnings(self, summaries: Mapping[str, torch.Tensor | float], share: float = 1.0) -> list[str]:
        """Returns new warnings, given the summaries of a gradient step. Each kind is reported once in a run.

        `share` is the part of an entropy bonus that each value learns, see `Algorithm.bonus_share`.
        """
        if self._greatest is None or not summaries:
            return []
        reward = float(self._greatest)
        alphas = {tag: float(value) for tag, value in summaries.items() if tag.endswith("/alpha")}
        found = {**self._large_temperatures(reward, alphas), **self._large_values(reward, share, alphas, summaries)}
        if self.num_seen < self.PATIENCE:
            return []
        new = [message for tag, message in found.items() if tag not in self._warned]
        self._warned |= set(found)
        return new

    def _large_temperatures(self, reward: float, alphas: Mapping[str, float]) -> dict[str, str]:
        found = {}
        for tag, alpha in alphas.items():
            start = self._start.setdefault(tag, alpha)
            if alpha > self.ALPHA_FACTOR * max(reward, start):
                found[tag] = (
                    f"{tag} has grown to {alpha:.3g}, from {start:.3g}: a nat of entropy counts more than {self.ALPHA_FACTOR:g} "
                    f"times the greatest reward of a step ({reward:.3g}), so rewards no longer matter; the target entropy may "
                    "be out of reach"
                )
        return found

    def _large_values(
        self, reward: float, share: float, alphas: Mapping[str, float], summaries: Mapping[str, torch.Tensor | float]
    ) -> dict[str, str]:
        if self.gamma is None or self.gamma >= 1 or "critic/q" not in summaries:
            return {}
        bonus = self.greatest_cost + float(summaries.get("decision/price", 0.0))
        bonus += sum(abs(a * float(summaries.get(f"{tag.rsplit('/', 1)[0]}/entropy", 0.0))) for tag, a in alphas.items())
        self._bound = max(self._bound, (reward + share * bonus) / (1 - self.gamma))
        q = float(summaries["critic/q"])
        if abs(q) <= self.FACTOR * self._bound:
            return {}
        return {
            "critic/q": f"critic/q is {q:.3g}, but rewards of at most {reward:.3g} a step and entropy cannot sum to more than "
            f"{self._bound:.3g}: critics learn from their own errors, and may diverge. {ADVICE}"
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "num_seen": self.num_seen,
            "greatest": None if self._greatest is None else float(self._greatest),
            "bound": self._bound,
            "start": dict(self._start),
            "warned": sorted(self._warned),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_seen, self._bound = int(state["num_seen"]), float(state["bound"])
        self._greatest = None if state["greatest"] is None else torch.tensor(float(state["greatest"]))
        self._start = {str(tag): float(alpha) for tag, alpha in state["start"].items()}
        self._warned = {str(tag) for tag in state["warned"]}
