"""Distributions of returns, as points and their probabilities, and the losses of critics that predict them."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch.nn import functional

from taac.ops.value_ops import Bootstrap


class ValueDistribution(NamedTuple):
    """Distributions of values. Points that all of them share are stored once, `[M]`."""

    points: torch.Tensor  # [..., M] or [M]
    probs: torch.Tensor  # [..., M], which sum to 1

    def mean(self) -> torch.Tensor:
        """Returns the means `[...]`."""
        return (self.points * self.probs).sum(-1)

    def pad_front(self) -> ValueDistribution:
        """Prepends a frame, whose distribution is never read, to frames `[T-1, ...]`."""
        points = self.points if self.points.dim() == 1 else torch.cat([self.points[:1], self.points])
        return ValueDistribution(points, torch.cat([self.probs[:1], self.probs]))


class PrefixTargets(NamedTuple):
    """Targets of a chunk of actions after each of its prefixes."""

    each: torch.Tensor  # [..., h]; from the last action on all are equal

    def mean(self) -> torch.Tensor:
        """Returns the number that stands for them where one is asked for, the target `[...]` of the whole chunk."""
        return self.each[..., -1]


Value = TypeVar("Value", torch.Tensor, ValueDistribution, torch.Tensor | ValueDistribution)


def certain(value: torch.Tensor) -> ValueDistribution:
    """Returns values `[...]` as distributions of one point."""
    return ValueDistribution(value.unsqueeze(-1), torch.ones_like(value).unsqueeze(-1))


def shifted(value: Value, by: torch.Tensor) -> Value:
    """Returns values `[...]`, or their distributions, to which `by` `[...]` is added."""
    if isinstance(value, ValueDistribution):
        return value._replace(points=value.points + by.unsqueeze(-1))
    return value + by


def mean_of(value: torch.Tensor | ValueDistribution | PrefixTargets) -> torch.Tensor:
    """Returns values, the means of their distributions, or the targets of whole chunks, `[...]`."""
    return value if isinstance(value, torch.Tensor) else value.mean()


def mixture(distributions: ValueDistribution, weights: torch.Tensor) -> ValueDistribution:
    """Mixes distributions `[C, ...]` with weights `[C, ...]`, which sum to 1 over C: `sum_c w_c Z_c`, not the mean of points."""
    probs = weights.unsqueeze(-1) * distributions.probs
    if distributions.points.dim() == 1:
        return ValueDistribution(distributions.points, probs.sum(0))
    points = distributions.points.expand_as(probs)
    return ValueDistribution(points.movedim(0, -2).flatten(-2), probs.movedim(0, -2).flatten(-2))


def return_distribution(bootstrap: Bootstrap, value: ValueDistribution) -> ValueDistribution:
    """Returns the distribution of `R[t] + D[t] Z[k[t]]`, where a return sums rewards R up to frame k and bootstraps there.

    Args:
        bootstrap: of each return, `[T-1, B]`.
        value: distributions of the values Z of frames, `[T, B, M]`.

    Returns:
        `[T-1, B, M]`.
    """
    index = bootstrap.frame.unsqueeze(-1)
    points, probs = value.points, value.probs.take_along_dim(index, 0)
    if points.dim() > 1:
        points = points.take_along_dim(index, 0)
    return ValueDistribution(bootstrap.reward.unsqueeze(-1) + bootstrap.discount.unsqueeze(-1) * points, probs)


def project(value: ValueDistribution, support: torch.Tensor) -> torch.Tensor:
    """Computes the categorical projection: each point gives its probability to the two atoms beside it, the nearer one more.

    A point beyond the support counts as its end; one that is not finite makes NaN. Of one point, this is the two-hot encoding.

    Args:
        value: `[..., M]`.
        support: `[K]`, atoms in equal distances, K >= 2.

    Returns:
        Probabilities of the atoms, `[..., K]`.

    Source: Bellemare, Dabney and Munos (arXiv:1707.06887), equation 7.
    """
    count, low = len(support), support[0]
    points = value.points.expand_as(value.probs)
    distance = (support[-1] - low) / (count - 1)  # of two atoms it is rounded, which shifts every projection alike
    place = ((points - low) / distance).clamp(0.0, count - 1.0) + 0.0 * points
    below = place.floor().clamp(max=count - 2.0)
    to_upper = value.probs * (place - below)
    index = below.nan_to_num(0.0).to(torch.int64)
    atoms = value.probs.new_zeros(*value.probs.shape[:-1], count)
    atoms.scatter_add_(-1, index, value.probs - to_upper)
    return atoms.scatter_add_(-1, index + 1, to_upper)


def hl_gauss(target: torch.Tensor, support: torch.Tensor, sigma: float) -> torch.Tensor:
    """Computes HL-Gauss's probabilities: a normal's mass in the bin around each atom, over its mass in all bins.

    Args:
        target: `[...]`, the normal's mean. One beyond the support counts as its end; one that is not finite makes NaN.
        support: `[K]`, atoms in equal distances.
        sigma: standard deviation of the normal, in units of the target.

    Returns:
        `[..., K]`.

    Source: Farebrother et al. (arXiv:2403.03950), section 3.1.
    """
    half = (support[1] - support[0]) / 2
    edges = torch.cat([support - half, support[-1:] + half])
    target = target.clamp(support[0], support[-1]) + 0.0 * target
    cumulative = torch.erf((edges - target.unsqueeze(-1)) / (sigma * 2**0.5))
    mass = cumulative[..., 1:] - cumulative[..., :-1]
    return mass / (cumulative[..., -1:] - cumulative[..., :1])


def cross_entropy(logits: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    """Computes `- sum_k p_k log softmax(logits)_k` of `[..., K]`: `[...]`."""
    return -(probs * functional.log_softmax(logits, dim=-1)).sum(-1)


def quantile_huber(quantiles: torch.Tensor, target: ValueDistribution) -> torch.Tensor:
    """Computes the quantile Huber loss: quantile k of K, at `tau_k = (k + 1/2) / K`, against each point of the target.

    `mean_k E_y [ |tau_k - 1{y < q_k}| huber(y - q_k) ]`, with `huber(u) = u^2 / 2` within +-1, linear beyond.

    Args:
        quantiles: `[N, ..., K]`.
        target: `[..., M]`.

    Returns:
        `[N, ...]`.

    Source: Dabney et al. (arXiv:1710.10044), equation 10; TQC (arXiv:2005.04269), equation 6.
    """
    count = quantiles.shape[-1]
    tau = (torch.arange(count, device=quantiles.device, dtype=quantiles.dtype) + 0.5) / count
    points = target.points.expand_as(target.probs)
    error = points.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [N, ..., K, M]
    size = error.abs()
    huber = torch.where(size <= 1.0, 0.5 * error.square(), size - 0.5)
    asymmetric = (tau.unsqueeze(-1) - (error < 0).to(huber.dtype)).abs() * huber
    return (asymmetric * target.probs.unsqueeze(-2)).sum(-1).mean(-1)
