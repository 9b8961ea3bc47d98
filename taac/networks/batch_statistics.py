"""Batch normalisation that uses the statistics of a batch only in the context `batch_statistics`.

Everywhere else, in acting, comparing, `play` and export, they are the running ones, whatever `Module.training` says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple

import gin
import torch
import torch.nn as nn

from taac.errors import TaacError


class _Batch(NamedTuple):
    weights: torch.Tensor | None  # [M], of the rows
    update: bool  # whether the running statistics move


_batch: ContextVar[_Batch | None] = ContextVar("batch", default=None)


@contextlib.contextmanager
def batch_statistics(weights: torch.Tensor | None = None, update: bool = True) -> Iterator[None]:
    """A context in which `BatchNorm` uses the statistics of its batch.

    Args:
        weights: `[M]`, how much each row counts for the statistics; None: all alike.
        update: whether the running statistics move towards those of the batch.
    """
    token = _batch.set(_Batch(weights, update))
    try:
        yield
    finally:
        _batch.reset(token)


def gathering(module: nn.Module, acted: torch.Tensor, learns: bool = True) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which the `BatchNorm` of a module, if any, uses the statistics of frames where `acted` (bool)."""
    if not learns or not has_batch_statistics(module):
        return contextlib.nullcontext()
    return batch_statistics(acted.flatten().float())


def has_batch_statistics(module: nn.Module) -> bool:
    return any(isinstance(part, BatchNorm) for part in module.modules())


def refuse_batch_statistics(switch: nn.Module) -> None:
    """Refuses `BatchNorm` in a switch, whose forwards gather no statistics."""
    if has_batch_statistics(switch):
        raise TaacError("SwitchNetwork.body cannot use BatchNorm: no forward of a switch gathers statistics; bind another body")


@gin.configurable(denylist=["networks", "size"])
class BatchNorm(nn.Module):
    """Batch normalisation of N networks, `[N, M, F]`: each feature of each network has its own statistics over the M rows.

    `y = scale (x - mean) / sqrt(var + epsilon) + bias`. With `renorm_after` it is batch renormalisation: after so many moves of
    the running statistics (mu, sigma) those of the batch are corrected towards them, `(x - mean) / std * r + d` with
    `r = clip(std / sigma, 1 / r_max, r_max)` and `d = clip((mean - mu) / sigma, -d_max, d_max)`, both detached.

    Args:
        networks, size: N and F.
        epsilon: added to the variance.
        momentum: fraction by which the running statistics move.
        unbiased: whether the running variance is multiplied by m / (m - 1), as torch does, m the sum of weights.
        renorm_after: None: never.
        r_max, d_max: limits of renormalisation. (1, 0) is batch normalisation.
        unit: keeps each network's scale and bias together at the norm sqrt(F) (FlashSAC).

    Raises:
        TaacError: settings out of range.

    Source: Ioffe and Szegedy (arXiv:1502.03167); Ioffe, Batch Renormalization (arXiv:1702.03275), equations 3 to 5. The weights
    are ours.
    """

    mean: torch.Tensor
    variance: torch.Tensor
    moves: torch.Tensor

    def __init__(
        self,
        networks: int,
        size: int,
        epsilon: float = 1e-5,
        momentum: float = 0.01,
        unbiased: bool = False,
        renorm_after: int | None = None,
        r_max: float = 3.0,
        d_max: float = 5.0,
        unit: bool = False,
    ):
        super().__init__()
        if not (0 < momentum <= 1 and r_max >= 1 and d_max >= 0 and epsilon > 0 and (renorm_after or 0) >= 0):
            raise TaacError(
                "BatchNorm needs 0 < momentum <= 1, r_max >= 1, d_max >= 0, epsilon > 0, and renorm_after >= 0 or None, got "
                f"{momentum}, {r_max}, {d_max}, {epsilon} and {renorm_after}"
            )
        self.epsilon, self.momentum, self.unbiased = epsilon, momentum, unbiased
        self.renorm_after, self.r_max, self.d_max = renorm_after, r_max, d_max
        self.scale, self.bias = nn.Parameter(torch.ones(networks, 1, size)), nn.Parameter(torch.zeros(networks, 1, size))
        self.register_buffer("mean", torch.zeros(networks, 1, size))
        self.register_buffer("variance", torch.ones(networks, 1, size))
        self.register_buffer("moves", torch.zeros(()))
        self.unit = unit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises `[N, M, F]`."""
        x, batch = x.float(), _batch.get()
        if batch is None:
            return (x - self.mean) * ((self.variance + self.epsilon).rsqrt() * self.scale) + self.bias
        weights = x.new_ones(x.shape[1]) if batch.weights is None else batch.weights
        total = weights.sum()
        share = (weights / total.clamp(min=1e-6)).unsqueeze(-1)  # [M, 1]
        mean = (x * share).sum(1, keepdim=True)
        variance = ((x - mean).square() * share).sum(1, keepdim=True)
        normal = (x - mean) * (variance + self.epsilon).rsqrt()
        if self.renorm_after is not None:
            r, d = self._correction(mean.detach(), variance.detach())
            begun = self.moves >= self.renorm_after
            normal = normal * torch.where(begun, r, 1.0) + torch.where(begun, d, 0.0)
        if batch.update:
            with torch.no_grad():
                found = variance * (total / (total - 1).clamp(min=1.0)) if self.unbiased else variance
                counts = (total > 0).float()  # a batch without weight has no statistics
                self.mean.lerp_(mean, self.momentum * counts)
                self.variance.lerp_(found, self.momentum * counts)
                self.moves += counts
        return normal * self.scale + self.bias

    def _correction(self, mean: torch.Tensor, variance: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns r and d, towards the running statistics."""
        running = (self.variance + self.epsilon).sqrt()
        r = ((variance + self.epsilon).sqrt() / running).clamp(1 / self.r_max, self.r_max)
        return r, ((mean - self.mean) / running).clamp(-self.d_max, self.d_max)

    @torch.no_grad()
    def project(self) -> None:
        """Gives each network's scale and bias together the norm sqrt(F). Called only if `unit`, see `projections`."""
        size = self.scale.shape[-1]
        norm = (self.scale.square().sum(-1, keepdim=True) + self.bias.square().sum(-1, keepdim=True)).sqrt()
        factor = size**0.5 / norm.clamp(min=1e-8)
        self.scale.mul_(factor)
        self.bias.mul_(factor)
