"""What a critic predicts instead of a number: the distribution of the return."""

from __future__ import annotations

import math
from typing import Any, Literal

import gin
import torch
import torch.nn as nn

from taac.errors import TaacError
from taac.ops import value_distributions
from taac.ops.value_distributions import ValueDistribution, certain, mean_of

Combination = Literal["min", "mean"]
LOW, HIGH = -5.0, 5.0  # of atoms, by default


@gin.configurable
class CategoricalReturns(nn.Module):
    """Probabilities of K atoms in equal distances, learnt by cross-entropy. The value is their mean.

    Where an algorithm carries distributions to its targets, those are projected onto the atoms once (C51). A target that is a
    number is spread over the two atoms beside it (two-hot), or by `sigma`.

    Args:
        num_atoms: K.
        low, high: the first and the last atom, in units of the reward that is learnt. Returns beyond count as these:
            `create_agent.normalize_rewards = 'bounded'` scales rewards so that no discounted sum of past rewards was beyond.
            Targets can still lie beyond: where early rewards are larger than late ones, after truncations, in hindsight, or with
            a price of decisions. `critic/beyond` reports their share.
        sigma: replaces each target by its mean, spread by a normal whose standard deviation is this many distances between
            atoms (HL-Gauss; 0.75 is usual). 0: two-hot. None: targets stay distributions.

    Raises:
        TaacError: settings out of range.

    Source: Bellemare, Dabney and Munos (arXiv:1707.06887); Farebrother et al. (arXiv:2403.03950). Targets from
    the critic with the lower mean, and 101 atoms on [-5, 5], follow SimbaV2 (arXiv:2502.15280).
    """

    support: torch.Tensor

    def __init__(self, num_atoms: int = 101, low: float = LOW, high: float = HIGH, sigma: float | None = None):
        super().__init__()
        if num_atoms < 2 or not -math.inf < low < high < math.inf or not (sigma is None or 0 <= sigma < math.inf):
            raise TaacError(
                "CategoricalReturns needs 2 atoms or more, finite low < high, and sigma >= 0 or None, got "
                f"num_atoms = {num_atoms}, low = {low}, high = {high}, sigma = {sigma}"
            )
        self.size, self.sigma, self.distance = num_atoms, sigma, (high - low) / (num_atoms - 1)
        self.register_buffer("support", torch.linspace(low, high, num_atoms))

    def value(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns values `[N, ...]` of logits `[N, ..., K]`."""
        return (logits.softmax(-1) * self.support).sum(-1)

    def distribution(self, logits: torch.Tensor, combination: Combination) -> ValueDistribution:
        """Returns a distribution `[..., K]` over critics, of logits `[N, ..., K]`.

        "min": of the critic with the lowest mean. "mean": the mixture of all.
        """
        probs = logits.softmax(-1)
        if combination == "mean":
            return ValueDistribution(self.support, probs.mean(0))
        lowest = (probs * self.support).sum(-1, keepdim=True).argmin(0, keepdim=True)
        return ValueDistribution(self.support, probs.take_along_dim(lowest, 0).squeeze(0))

    def beyond(self, target: torch.Tensor | ValueDistribution) -> torch.Tensor:
        """Returns the probability of targets, `[T, B]` or `[T, B, M]`, that lies beyond the atoms: `[T, B]`."""
        points, probs = target if isinstance(target, ValueDistribution) else certain(target)
        return (((points < self.support[0]) | (points > self.support[-1])) * probs).sum(-1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        stored = state_dict.setdefault(f"{prefix}support", self.support)  # without it: of earlier code
        if not torch.equal(stored.to(self.support), self.support):
            theirs, ours = (f"{len(of)} returns from {of[0]:g} to {of[-1]:g}" for of in (stored, self.support))
            args[-1].append(
                f"{prefix}support: these critics predict {theirs}, and this agent's {ours}: bind CategoricalReturns.low, high "
                "and num_atoms to resume it, or train again"
            )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def loss(self, logits: torch.Tensor, target: torch.Tensor | ValueDistribution) -> torch.Tensor:
        """Returns the cross-entropy `[T, B]` of logits `[N, T, B, K]` with targets `[T, B]`, or `[T, B, M]`; summed over N."""
        with torch.no_grad():
            if self.sigma is None and isinstance(target, ValueDistribution):
                probs = value_distributions.project(target, self.support)
            elif not self.sigma:
                probs = value_distributions.project(certain(mean_of(target)), self.support)
            else:
                probs = value_distributions.hl_gauss(mean_of(target), self.support, self.sigma * self.distance)
        return value_distributions.cross_entropy(logits, probs).sum(0)


def atoms_of(critics: Any) -> torch.Tensor | None:
    """Returns the atoms `[K]` of categorical critics; None of others."""
    returns = getattr(critics, "returns", None)
    return returns.support if isinstance(returns, CategoricalReturns) else None


@gin.configurable
class QuantileReturns(nn.Module):
    """Quantiles of the return, learnt by the quantile Huber loss. The value is their mean.

    The target pools the quantiles of all critics and leaves out the largest (TQC). The actor of TQC maximises the mean over
    critics: bind `ActorCriticAlgorithm.combine_critics = 'mean'`.

    Args:
        num_quantiles: K.
        dropped: how many of each critic's quantiles, on average, the target leaves out. One number for all tasks is a
            compromise: published are 0 (HalfCheetah), 2 (Walker2d, Ant, Humanoid) and 5 (Hopper).

    Raises:
        TaacError: settings out of range.

    Source: Kuznetsov et al., Truncated Quantile Critics (arXiv:2005.04269), section 3.
    """

    def __init__(self, num_quantiles: int = 25, dropped: int = 2):
        super().__init__()
        if not 0 <= dropped < num_quantiles:
            raise TaacError(f"QuantileReturns.dropped must be in [0, num_quantiles = {num_quantiles}), got {dropped}")
        self.size, self.dropped = num_quantiles, dropped

    def value(self, quantiles: torch.Tensor) -> torch.Tensor:
        """Returns values `[N, ...]` of quantiles `[N, ..., K]`."""
        return quantiles.mean(-1)

    def distribution(self, quantiles: torch.Tensor, combination: Combination) -> ValueDistribution:
        """Returns a distribution `[..., N (K - dropped)]` of quantiles `[N, ..., K]`, whatever the combination."""
        count = len(quantiles) * (self.size - self.dropped)
        points = quantiles.movedim(0, -2).flatten(-2).sort(-1).values[..., :count]
        return ValueDistribution(points, torch.full_like(points, 1.0 / count))

    def loss(self, quantiles: torch.Tensor, target: torch.Tensor | ValueDistribution) -> torch.Tensor:
        """Returns the loss `[T, B]` of quantiles `[N, T, B, K]` against targets `[T, B]`, or `[T, B, M]`; summed over N."""
        given = target if isinstance(target, ValueDistribution) else certain(target)
        return value_distributions.quantile_huber(quantiles, given).sum(0)
