"""Running normalisation of rewards and observations. The replay buffer stores raw values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.data_structures import Nest, TimeStep
from taac.errors import TaacError
from taac.machine.ranks import ALONE, Ranks


@gin.configurable
class RewardNormalizer(nn.Module):
    """Normalises sampled rewards by an adaptive running mean and variance, then clips.

    At call k the running mean and second moment move towards the batch's by the rate `8 / (8 + k)`. k counts from 0, so the
    first batch sets them. The result is `(r - mean) / sqrt(var + 1e-10)`, clipped to +-clip. Each part of a vector reward has
    its own statistics.

    A reward r of an action repeated for k environment steps is normalised as the sum of k steps. The statistics are those of
    `x = r / k`, where each sampled frame counts once, whatever its k. With their mean m and second moment s,

        r' = k * clip((r / k - m) / sqrt(s - m^2 + 1e-10))

    These are not the moments of single-step rewards, which only a wrapper inside the repeat can see. If r is the plain sum of
    k steps, m is the same, but `Var(x) = Var(r_i) - E[variance of r_i within a repeat]`. That equals the single-step variance
    if rewards are constant within a repeat, and is k times smaller if they are independent. Then r' is up to sqrt(k) times
    larger than with single-step moments, and a clip of c applies at c standard deviations of x.

    If r is a discounted sum, `r = sum_i gamma^i r_i`, a constant reward makes x smaller by the factor
    `(1 - gamma^k) / (k (1 - gamma))`. A repeat cut short by the end of an episode counts as much as a whole one. FIRST, which
    follows no action, counts as one step with reward 0.

    Args:
        reward_dim: D, or None for a scalar reward.
        clip: in standard deviations; None: no clipping.

    Attributes:
        ranks: the processes whose batches, of one size, are counted as one.

    Raises:
        TaacError: a clip that is not above 0.

    Source: the settings published with TAAC (arXiv:2104.06521).
    """

    SPEED = 8.0
    ranks: Ranks = ALONE
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
        """Moves the statistics towards those of rewards `[T, B]` or `[T, B, D]` with durations `[T, B]` (None: 1)."""
        rate = self.SPEED / (self.SPEED + self.calls)
        reward = reward.to(torch.float64) / _steps(reward, duration)
        mean, second_moment = self.ranks.average([reward.mean((0, 1)), reward.square().mean((0, 1))])
        self.mean.lerp_(mean, rate)
        self.second_moment.lerp_(second_moment, rate)
        self.calls += 1

    def forward(self, reward: torch.Tensor, duration: torch.Tensor | None = None) -> torch.Tensor:
        """Normalises rewards `[T, B]` or `[T, B, D]` with durations `[T, B]` (None: 1) by the current statistics."""
        variance = (self.second_moment - self.mean.square()).clamp(min=0.0)
        steps = _steps(reward, duration)
        # The mean is rounded like r / k, or a constant reward would not become 0 where that division is not exact.
        normalized = (reward / steps - self.mean.to(reward.dtype)) / (variance + 1e-10).sqrt()
        if self.clip is not None:
            normalized = normalized.clamp(-self.clip, self.clip)
        return (normalized * steps).to(reward.dtype)

    def observe(self, time_step: TimeStep) -> None:
        """Does nothing: its statistics are those of sampled batches."""


class RewardScaler(nn.Module):
    """Divides sampled rewards by the standard deviation of discounted returns in rollouts, then clips. Their mean stays.

    Subtracting a mean changes what is best where episodes can end early; a scale does not. The return of an environment is
    the sum so far of its episode, `R <- gamma_k R + r` with `gamma_k = gamma repeat_gamma^(k-1)` after an action repeated for
    k steps, and 0 at FIRST. Its variance is over all frames of rollouts but FIRST. While returns have not varied, the scale is
    1. Each part of a vector reward has its own. A reward of k steps is clipped to +- k times the clip. Demonstrations whose
    rewards are learnt from count as rollouts.

    Args:
        num_envs: environments (times agents that share the policy) of the rollouts.
        gamma: discount per step.
        repeat_gamma: discount per step inside a repeated action, as in the environment.
        reward_dim: D, or None for a scalar reward.
        clip: of the scaled reward of a step; None: no clipping.
        bound: the scale is raised until no such sum so far is beyond +- this. None: it is the standard deviation alone.

    Raises:
        TaacError: a clip or a bound that is not above 0.

    Source: `VecNormalize` of Stable-Baselines3, after Engstrom et al. (arXiv:2005.12729), section 3; it clips at 10. The bound:
    SimbaV2 (arXiv:2502.15280), section 4.3.
    """

    returns: torch.Tensor
    count: torch.Tensor
    mean: torch.Tensor
    squares: torch.Tensor
    largest: torch.Tensor

    def __init__(
        self,
        num_envs: int,
        gamma: float,
        repeat_gamma: float = 1.0,
        reward_dim: int | None = None,
        clip: float | None = None,
        bound: float | None = None,
    ):
        super().__init__()
        for name, value in {"clip": clip, "bound": bound}.items():
            if value is not None and value <= 0:
                raise TaacError(f"RewardScaler.{name} must be above 0, got {value}")
        self.gamma, self.repeat_gamma, self.clip, self.bound = gamma, repeat_gamma, clip, bound
        parts = (reward_dim,) if reward_dim else ()
        self.register_buffer("returns", torch.zeros(num_envs, *parts, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(parts, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(parts, dtype=torch.float64))  # of deviations from the mean, summed
        if bound is not None:
            self.register_buffer("largest", torch.zeros(parts, dtype=torch.float64))  # of the returns, in absolute value

    @torch.no_grad()
    def observe(self, time_step: TimeStep) -> None:
        """Adds the frames `[B]` of a rollout, whose rewards are raw, to the returns and their statistics."""
        inside = ~time_step.is_first()
        counts, number = nest.broadcast(inside, self.returns).to(self.returns), inside.sum()
        repeats = nest.broadcast(time_step.duration.clamp(min=1) - 1, self.returns).to(self.returns)
        self.returns.mul_(self.gamma * self.repeat_gamma**repeats).add_(time_step.reward).mul_(counts)
        mean = self.returns.sum(0) / number.clamp(min=1)
        delta, total = mean - self.mean, (self.count + number).clamp(min=1)
        self.squares += ((self.returns - mean).square() * counts).sum(0) + delta.square() * (self.count * number / total)
        self.mean += delta * (number / total)
        self.count += number
        if self.bound is not None:
            torch.maximum(self.largest, self.returns.abs().amax(0), out=self.largest)

    def observe_recorded(self, frames: Iterable[TimeStep], rows: int) -> None:
        """Adds successive frames `[rows]` of other environments, such as those of a recording."""
        running, self.returns = self.returns, self.returns.new_zeros(rows, *self.returns.shape[1:])
        for frame in frames:
            self.observe(frame)
        self.returns = running

    def update(self, reward: torch.Tensor, duration: torch.Tensor | None = None) -> None:
        """Does nothing: sampled batches do not tell the returns."""

    def forward(self, reward: torch.Tensor, duration: torch.Tensor | None = None) -> torch.Tensor:
        """Scales rewards `[T, B]` or `[T, B, D]` with durations `[T, B]` (None: 1)."""
        variance = self.squares / self.count.clamp(min=1)
        varies = variance > 1e-12 * self.mean.square()
        scale = torch.where(varies, variance, 1.0).sqrt()
        scaled = reward / (scale if self.bound is None else torch.maximum(scale, self.largest / self.bound))
        if self.clip is not None:
            limit = torch.as_tensor(self.clip * _steps(reward, duration)).to(scaled)
            scaled = scaled.clamp(-limit, limit)
        return scaled.to(reward.dtype)


def _steps(reward: torch.Tensor, duration: torch.Tensor | None) -> torch.Tensor | float:
    """Reshapes durations to broadcast with rewards; 1 at FIRST, which follows no action."""
    return 1.0 if duration is None else nest.broadcast(duration.clamp(min=1), reward)


@gin.configurable
class ObservationNormalizer(nn.Module):
    """Normalises float observations by the mean and variance of all observations in rollouts, then clips.

    Images (uint8) and categorical leaves are unchanged. Rollouts update the statistics, before a cloned policy acts its
    demonstrations, in offline runs the stored frames, by the exact parallel algorithm of Chan et al. (1979). Replayed batches are
    normalised with the current statistics. Where several ranks train one run, observations count from the next `merge` on, in all
    of them.

    Args:
        observation_spec: nest of `TensorSpec`.
        clip: in standard deviations; None: no clipping.
        epsilon: added to the variance. Numbers that hardly vary in rollouts, but do elsewhere, need more: among goals in
            hindsight the height of an object that never leaves its table, 1e-4 (as in OpenAI's baselines).

    Raises:
        TaacError: a clip or epsilon that is not above 0.
    """

    def __init__(self, observation_spec: Nest, clip: float | None = 10.0, epsilon: float = 1e-8):
        super().__init__()
        if clip is not None and clip <= 0:
            raise TaacError(f"ObservationNormalizer.clip must be above 0, or None, got {clip}")
        if not epsilon > 0:
            raise TaacError(f"ObservationNormalizer.epsilon must be above 0, got {epsilon}")
        self.clip, self.epsilon = clip, epsilon
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        for number, (_, spec) in enumerate(nest.flatten_with_path(observation_spec)):
            if spec.dtype.is_floating_point:
                self.register_buffer(f"mean_{number}", torch.zeros(spec.shape, dtype=torch.float64))
                self.register_buffer(f"squares_{number}", torch.zeros(spec.shape, dtype=torch.float64))
        self._spec = observation_spec
        self._waiting: list[ObservationNormalizer] = []  # holds the observations since the last `merge`, if there are ranks

    @torch.no_grad()
    def update(self, observation: Nest) -> None:
        """Adds a batch of observations on any device, leaves `[B, ...]`, to the statistics."""
        if self._waiting:
            self._waiting[0].update(observation)
            return
        leaves = nest.flatten(observation)
        moments = {}
        for number, leaf in enumerate(leaves):
            if hasattr(self, f"mean_{number}"):
                leaf = leaf.to(self.count.device, torch.float64)
                moments[number] = leaf.mean(0), (leaf - leaf.mean(0)).square().sum(0)
        self._add(leaves[0].shape[0], moments)

    def _add(self, count: int | torch.Tensor, moments: Mapping[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Adds `count` observations, given the mean and the sum of squared deviations from it of each normalised leaf."""
        total = (self.count + count).clamp(min=1)
        for number, (of_batch, squares_of_batch) in moments.items():
            mean, squares = getattr(self, f"mean_{number}"), getattr(self, f"squares_{number}")
            delta = of_batch - mean
            squares += squares_of_batch + delta.square() * (self.count * count / total)
            mean += delta * (count / total)
        self.count += count

    def wait_for_merge(self) -> None:
        """Keeps observations apart from now on, until `merge` adds those of all ranks."""
        self._waiting = [ObservationNormalizer(self._spec, None).to(self.count.device)]

    @torch.no_grad()
    def merge(self, ranks: Ranks) -> None:
        """Adds what all ranks have observed since the last call, in their order, so that all hold the same statistics."""
        numbers = [number for number, _ in enumerate(nest.flatten(self._spec)) if hasattr(self, f"mean_{number}")]
        waiting = self._waiting[0]
        held = [getattr(waiting, f"{kind}_{number}") for number in numbers for kind in ("mean", "squares")]
        for flat in ranks.stack(torch.cat([waiting.count.reshape(1), *(tensor.reshape(-1) for tensor in held)])):
            count, *parts = flat.split([1, *(tensor.numel() for tensor in held)])
            shaped = [part.view(tensor.shape) for part, tensor in zip(parts, held)]
            self._add(count[0], {number: (shaped[2 * i], shaped[2 * i + 1]) for i, number in enumerate(numbers)})
        for tensor in waiting.buffers():
            tensor.zero_()

    def forward(self, observation: Nest) -> Nest:
        """Normalises leaves `[..., *shape]` by the current statistics; returns them unchanged while there are none."""
        leaves = [self._normalize(number, leaf) for number, leaf in enumerate(nest.flatten(observation))]
        return nest.pack_like(observation, leaves)

    def _normalize(self, number: int, leaf: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, f"mean_{number}"):
            return leaf
        mean, squares = getattr(self, f"mean_{number}"), getattr(self, f"squares_{number}")
        # A single observation has no variance, so the scale is 1 until there are two.
        variance = torch.where(self.count > 1, squares / self.count.clamp(min=1), torch.ones_like(squares))
        normalized = (leaf - mean.to(leaf.dtype)) * (variance + self.epsilon).rsqrt().to(leaf.dtype)
        if self.clip is not None:
            normalized = normalized.clamp(-self.clip, self.clip)
        return torch.where(self.count > 0, normalized, leaf)
