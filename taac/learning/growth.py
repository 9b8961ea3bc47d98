"""Warns of values and temperatures that grow beyond what rewards can explain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from taac.learning.guard import ADVICE


class GrowthWatch:
    """Warns, once each, of values or temperatures that rewards can no longer explain, before they overflow.

    A value is a discounted sum of rewards and entropy bonuses, so `|Q| <= (max|r| + share alpha |H|) / (1 - gamma)`. The bound
    is the largest right side of the run so far, computed with the rewards that were learnt from. Values above `FACTOR` times the
    bound mean that critics learn from their own errors. A temperature above `ALPHA_FACTOR` times both the greatest reward and
    its own initial value means that rewards no longer matter.

    Args:
        gamma: discount per step. If it is 1, or None because the algorithm has no such discount, values are not checked.
        reward_scale: the factor by which the algorithm multiplies the rewards that `observe` receives; r is the product.
    """

    FACTOR = 3.0
    ALPHA_FACTOR = 100.0
    PATIENCE = 1000  # updates after which even rare rewards should have been observed

    def __init__(self, gamma: float | None, reward_scale: float = 1.0):
        self.gamma, self.reward_scale = gamma, reward_scale
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

        Args:
            summaries: of the gradient step.
            share: the part of an entropy bonus that each value learns, see `Algorithm.bonus_share`.
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
        bonus = sum(
            abs(alpha * float(summaries.get(f"{tag.rsplit('/', 1)[0]}/entropy", 0.0))) for tag, alpha in alphas.items()
        )
        self._bound = max(self._bound, (reward + share * bonus) / (1 - self.gamma))
        q = float(summaries["critic/q"])
        if abs(q) <= self.FACTOR * self._bound:
            return {}
        return {
            "critic/q": f"critic/q is {q:.3g}, but rewards of at most {reward:.3g} a step and entropy cannot sum to more than "
            f"{self._bound:.3g}: critics learn from their own errors, and may diverge. {ADVICE}"
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs to warn like an uninterrupted one."""
        return {
            "num_seen": self.num_seen,
            "greatest": None if self._greatest is None else float(self._greatest),
            "bound": self._bound,
            "start": dict(self._start),
            "warned": sorted(self._warned),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict()`."""
        self.num_seen, self._bound = int(state["num_seen"]), float(state["bound"])
        self._greatest = None if state["greatest"] is None else torch.tensor(float(state["greatest"]))
        self._start = {str(tag): float(alpha) for tag, alpha in state["start"].items()}
        self._warned = {str(tag) for tag in state["warned"]}
