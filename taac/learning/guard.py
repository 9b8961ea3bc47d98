"""Watches gradient steps: the first number that is not finite stops the run before it reaches a parameter."""

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

CUDA_INTERVAL = 20  # updates between looks from the host, each of which waits for the GPU
ADVICE = "Try a lower learning rate (Learner.learning_rate), or rewards that are clipped or normalised"


class GradientStep(NamedTuple):
    """A gradient step that is about to be taken."""

    update: int  # its number, from 1
    sampled: Experience  # [T, B, ...], as it came from the replay buffer
    prepared: Experience  # the same as the algorithm saw it, normalised
    loss: torch.Tensor  # scalar, detached
    total: torch.Tensor  # scalar, `sum_of_all`
    frames: torch.Tensor  # [T, B], the loss of each frame, detached
    summaries: Mapping[str, torch.Tensor]  # scalars by tag

    def evidence(self) -> dict[str, Any]:
        """All of it as tensors by path, on the CPU."""
        parts = {"sampled": self.sampled, "prepared": self.prepared}
        found = {f"{name}/{path}": leaf for name, part in parts.items() for path, leaf in nest.flatten_with_path(part)}
        found |= {"loss": self.frames, **{f"summaries/{tag}": value for tag, value in self.summaries.items()}}
        return {path: leaf.detach().cpu() for path, leaf in found.items() if isinstance(leaf, torch.Tensor)}


def sum_of_all(loss: torch.Tensor, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """A scalar that is not finite if the loss or an element of a gradient is not (and seldom else: sums can overflow)."""
    return torch.stack([loss, *(g.sum() for g in gradients if g is not None)]).sum()


class Guard:
    """Refuses a gradient step whose loss or gradients are not finite, before the optimizer takes it.

    A sum is not finite if one of its terms is not, so sums are all that a step costs; only where they are not finite are
    terms looked at. On the CPU that is done at every step. On a GPU asking for a number waits for all work
    before it, so the host asks every `CUDA_INTERVAL` steps; till then the optimizer is told on the device to skip the bad
    step and those after it, so that parameters stay as they were.

    Args:
        agent: whose parameters they are, for their names.
        parameters: that have gradients.
        every_step: the host looks at every step on a GPU too, for optimizers that cannot be told to skip one.
    """

    def __init__(self, agent: Agent, parameters: Sequence[nn.Parameter], every_step: bool = False):
        names = {id(p): name for name, p in agent.named_parameters()}
        self._agent, self._parameters = agent, parameters
        self._names = [names[id(p)] for p in parameters]
        self.interval = CUDA_INTERVAL if agent.device.type == "cuda" and not every_step else 1
        self._waiting: list[tuple[GradientStep, torch.Tensor]] = []  # not looked at yet, with sums [1 + parameters]
        self._found: torch.Tensor | None = None

    def look(self, step: GradientStep) -> torch.Tensor | None:
        """Looks at `step.loss` and the gradients; returns what `take_step` takes as `found_inf`.

        Raises:
            DivergedError: one is not finite, in this step or, on a GPU, one of the last.
        """
        if self.interval == 1:
            if not math.isfinite(step.total.item()):
                self._refuse(step, [bool(v.isfinite().all()) for v in self._values(step)])
            return None
        sums = torch.stack([v.abs().sum() for v in self._values(step)])
        bad = (~sums.isfinite().all()).float()
        self._found = bad if self._found is None else torch.maximum(self._found, bad)
        self._waiting.append((step, sums))
        if len(self._waiting) >= self.interval or step.update == 1:  # torch's own first step skips nothing
            self.settle()
        return self._found

    def _values(self, step: GradientStep) -> list[torch.Tensor]:
        return [step.loss, *(step.loss.new_zeros(()) if p.grad is None else p.grad for p in self._parameters)]

    def settle(self) -> None:
        """Looks at what has not been looked at yet.

        Raises:
            DivergedError: something there is not finite.
        """
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        finite = torch.stack([sums for _, sums in waiting]).isfinite().tolist()
        for (step, _), row in zip(waiting, finite):
            self._refuse(step, row)

    def _refuse(self, step: GradientStep, finite: list[bool]) -> None:
        """Raises DivergedError for a step, unless its loss and all gradients are finite."""
        if all(finite):
            return  # terms were finite, their sum was not
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
            f"update {step.update} was not taken: not finite are {' and '.join(where)}. Training has diverged; the parameters "
            f"are as they were before it. {ADVICE}",
            step.evidence(),
        )

    def check_parameters(self) -> None:
        """Call before saving, so that no checkpoint is spoilt.

        Raises:
            DivergedError: a parameter is not finite, or a step was not.
        """
        self.settle()
        bad = [
            name
            for name, p in self._agent.named_parameters()
            if not math.isfinite(p.sum().item()) and not bool(p.isfinite().all())
        ]
        if bad:
            evidence = {f"parameters/{name}": p.detach().cpu() for name, p in self._agent.named_parameters()}
            raise DivergedError(
                f"not finite are the parameters {_some(bad)}. Training has diverged; no checkpoint is written of them. "
                f"{ADVICE}",
                evidence,
            )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more


class GrowthWatch:
    """Warns, once each, of values or temperatures that have outgrown what rewards can explain, before they overflow.

    A value is a discounted sum of rewards and entropy bonuses, so `|Q| <= (max|r| + alpha |H|) / (1 - gamma)`; the greatest
    right side of the run so far, over the rewards that were learnt from, is the bound. Beyond `FACTOR` of it critics have
    learnt from their own errors. A temperature at which a nat of entropy is worth `ALPHA_FACTOR` of the greatest reward, and
    of the temperature at the start, leaves rewards no say.

    Args:
        gamma: discount of a step; with 1, or None where an algorithm has none of the kind, values are not judged.
        reward_scale: by which the algorithm multiplies the rewards that `see` takes; r above is the product.
    """

    FACTOR = 3.0
    ALPHA_FACTOR = 100.0
    PATIENCE = 1000  # updates until rare rewards should have been seen

    def __init__(self, gamma: float | None, reward_scale: float = 1.0):
        self.gamma, self.reward_scale = gamma, reward_scale
        self.num_seen = 0
        self._greatest: torch.Tensor | None = None
        self._bound = 0.0
        self._start: dict[str, float] = {}
        self._warned: set[str] = set()

    def see(self, reward: torch.Tensor) -> None:
        """Takes the rewards `[T, B(, D)]` of a batch, as the algorithm receives them."""
        self.num_seen += 1
        greatest = self.reward_scale * reward.abs().amax()
        before = greatest if self._greatest is None else self._greatest.to(greatest.device)
        self._greatest = torch.maximum(before, greatest)

    def judge(self, summaries: Mapping[str, torch.Tensor | float]) -> list[str]:
        """What is to be warned of, from the summaries of a gradient step; each kind once."""
        if self._greatest is None or not summaries:
            return []
        reward = float(self._greatest)
        alphas = {tag: float(value) for tag, value in summaries.items() if tag.endswith("/alpha")}
        found = {}
        for tag, alpha in alphas.items():
            start = self._start.setdefault(tag, alpha)
            if alpha > self.ALPHA_FACTOR * max(reward, start):
                found[tag] = (
                    f"{tag} has grown to {alpha:.3g}, from {start:.3g}: a nat of entropy counts more than {self.ALPHA_FACTOR:g} "
                    f"times the greatest reward of a step ({reward:.3g}), so rewards have no say; the target entropy may be "
                    "out of reach"
                )
        bonus = sum(
            abs(alpha * float(summaries.get(f"{tag.rsplit('/', 1)[0]}/entropy", 0.0))) for tag, alpha in alphas.items()
        )
        if self.gamma is not None and self.gamma < 1 and "critic/q" in summaries:
            self._bound = max(self._bound, (reward + bonus) / (1 - self.gamma))
            q = float(summaries["critic/q"])
            if abs(q) > self.FACTOR * self._bound:
                found["critic/q"] = (
                    f"critic/q is {q:.3g}, but rewards of at most {reward:.3g} a step and entropy cannot sum to more than "
                    f"{self._bound:.3g}: critics learn from their own errors, and may diverge. {ADVICE}"
                )
        if self.num_seen < self.PATIENCE:
            return []
        new = [message for tag, message in found.items() if tag not in self._warned]
        self._warned |= set(found)
        return new

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run goes on from, so that it judges as one that was never stopped."""
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
