"""Running normalisation of rewards and observations. Raw values are stored in the replay buffer."""

from __future__ import annotations

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError
from taac.specs import TensorSpec


@gin.configurable
class RewardNormalizer(nn.Module):
    """Normalises sampled rewards by an adaptive running mean and variance, then clips.

    At call k (from 0, so that the first batch sets them) the running mean and second moment move towards the batch's by
    `8 / (8 + k)`; then `(r - mean) / sqrt(var + 1e-10)`, clipped to +-clip. Each part of a vector reward has its own statistics.

    A reward r of k environment steps, an action having been repeated, is normalised as their sum. The statistics are those of
    `x = r / k`, each sampled frame counting once, whatever its k: with their mean m and second moment s,

        r' = k * clip((r / k - m) / sqrt(s - m^2 + 1e-10))

    They are not the moments of single-step rewards, which only a wrapper inside the repeat sees. With plain sums of k steps
    each, m is the same, but `Var(x) = Var(r_i) - E[variance of r_i within a repeat]`: as large where rewards are constant
    within a repeat, k times smaller where they are independent. Then r' is up to sqrt(k) times larger than with single-step
    moments, and a clip of c cuts at c deviations of x. With discounted sums, `r = sum_i gamma^i r_i`, x of a constant reward is
    smaller by the factor `(1 - gamma^k) / (k (1 - gamma))`. A repeat that an episode's end cuts short counts as much as a whole
    one, and FIRST, to which no action led, as one step with reward 0.

    Args:
        reward_dim: D, or None for a scalar reward.
        clip: in standard deviations; None does not clip.

    Source: the settings published with TAAC (arXiv:2104.06521).
    """

    SPEED = 8.0
    mean: torch.Tensor
    second_moment: torch.Tensor
    calls: torch.Tensor

    def __init__(self, reward_dim: int | None = None, clip: float | None = None):
        super().__init__()
        if clip is not None and clip <= 0:
            raise TaacError(f"RewardNormalizer.clip must be above 0, got {clip}")
        shape = (reward_dim,) if reward_dim else ()
        self.clip = clip
        # float64: the variance is a difference of two numbers that may both be large.
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("second_moment", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, reward: torch.Tensor, duration: torch.Tensor | None = None) -> None:
        """Moves the statistics towards those of a batch `[T, B]` or `[T, B, D]` of durations `[T, B]` (None: 1)."""
        rate = self.SPEED / (self.SPEED + self.calls)
        reward = reward.to(torch.float64) / self._steps(reward, duration)
        self.mean.lerp_(reward.mean((0, 1)), rate)
        self.second_moment.lerp_(reward.square().mean((0, 1)), rate)
        self.calls += 1

    def forward(self, reward: torch.Tensor, duration: torch.Tensor | None = None) -> torch.Tensor:
        """`[T, B]` or `[T, B, D]` of durations `[T, B]` (None: 1), normalised with the present statistics."""
        variance = (self.second_moment - self.mean.square()).clamp(min=0.0)
        steps = self._steps(reward, duration)
        normalized = (reward / steps - self.mean) / (variance + 1e-10).sqrt()
        if self.clip is not None:
            normalized = normalized.clamp(-self.clip, self.clip)
        return (normalized * steps).to(reward.dtype)

    @staticmethod
    def _steps(reward: torch.Tensor, duration: torch.Tensor | None) -> torch.Tensor | float:
        """Durations that broadcast with rewards; 1 at FIRST, which no action led to."""
        if duration is None:
            return 1.0
        return duration.clamp(min=1).reshape(*duration.shape, *(1,) * (reward.dim() - duration.dim()))


@gin.configurable
class ObservationNormalizer(nn.Module):
    """Normalises float observations by the mean and variance of all that rollouts have seen, then clips.

    Images (uint8) and categorical leaves pass unchanged. Only rollouts update the statistics, by the exact parallel
    algorithm of Chan et al. (1979); replayed batches are normalised with the statistics of the moment.

    Args:
        observation_spec: nest of `TensorSpec`.
        clip: in standard deviations; None does not clip.
    """

    def __init__(self, observation_spec: Nest, clip: float | None = 10.0):
        super().__init__()
        if clip is not None and clip <= 0:
            raise TaacError(f"ObservationNormalizer.clip must be above 0, or None, got {clip}")
        self.clip = clip
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        for number, (_, spec) in enumerate(nest.flatten_with_path(observation_spec)):
            if self._normalises(spec):
                self.register_buffer(f"mean_{number}", torch.zeros(spec.shape, dtype=torch.float64))
                self.register_buffer(f"squares_{number}", torch.zeros(spec.shape, dtype=torch.float64))
        self._spec = observation_spec

    @staticmethod
    def _normalises(spec: TensorSpec) -> bool:
        return spec.dtype.is_floating_point

    @torch.no_grad()
    def update(self, observation: Nest) -> None:
        """Takes in a batch of observations, leaves `[B, ...]`."""
        leaves = nest.flatten(observation)
        batch = leaves[0].shape[0]
        total = self.count + batch
        for number, leaf in enumerate(leaves):
            if hasattr(self, f"mean_{number}"):
                mean, squares = getattr(self, f"mean_{number}"), getattr(self, f"squares_{number}")
                leaf = leaf.to(torch.float64)
                delta = leaf.mean(0) - mean
                squares += (leaf - leaf.mean(0)).square().sum(0) + delta.square() * (self.count * batch / total)
                mean += delta * (batch / total)
        self.count.copy_(total)

    def forward(self, observation: Nest) -> Nest:
        """Leaves `[..., *shape]`, normalised with the present statistics; unchanged while there are none."""
        leaves = [self._normalize(number, leaf) for number, leaf in enumerate(nest.flatten(observation))]
        return nest.pack_like(observation, leaves)

    def _normalize(self, number: int, leaf: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, f"mean_{number}"):
            return leaf
        mean, squares = getattr(self, f"mean_{number}"), getattr(self, f"squares_{number}")
        # One observation has no variance yet: the scale is 1 until there are two.
        variance = torch.where(self.count > 1, squares / self.count.clamp(min=1), torch.ones_like(squares))
        normalized = (leaf - mean.to(leaf.dtype)) * (variance + 1e-8).rsqrt().to(leaf.dtype)
        if self.clip is not None:
            normalized = normalized.clamp(-self.clip, self.clip)
        return torch.where(self.count > 0, normalized, leaf)
