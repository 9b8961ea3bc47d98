"""The squashed normal, the switching distribution beta, categorical policies and target entropies, in nats."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from taac.errors import TaacError

_LOG_2 = math.log(2.0)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_MIN_ALPHA = 1e-10


def squash_log_det(pre_tanh: torch.Tensor) -> torch.Tensor:
    """Computes `log |d tanh(x) / dx| = log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x))`, elementwise; exact at saturation."""
    return 2.0 * (_LOG_2 - pre_tanh - F.softplus(-2.0 * pre_tanh))


def squashed_normal_log_prob(pre_tanh: torch.Tensor, mean: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    """Computes the log-density of `a = tanh(x)`, `x ~ N(mean, exp(log_std)^2)` independently in each dimension.

    `log p(a) = sum_i log N(x_i; mean_i, std_i) - log(1 - tanh(x_i)^2)`. It is computed from the pre-tanh `x` because
    inverting tanh would lose all precision near the bounds.

    Args:
        pre_tanh, mean, log_std: `[..., A]`.

    Returns:
        `[...]`, in nats.

    Raises:
        TaacError: shapes that differ.

    Source: Haarnoja et al., SAC (arXiv:1812.05905), appendix C, equation 26.
    """
    if not pre_tanh.shape == mean.shape == log_std.shape:
        raise TaacError(
            f"pre_tanh, mean and log_std must have one shape, "
            f"got {list(pre_tanh.shape)}, {list(mean.shape)}, {list(log_std.shape)}"
        )
    noise = (pre_tanh - mean) * torch.exp(-log_std)
    return _log_prob_of_noise(noise, pre_tanh, log_std)


def _log_prob_of_noise(noise: torch.Tensor, pre_tanh: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    return (-0.5 * noise.square() - log_std - _HALF_LOG_2PI - squash_log_det(pre_tanh)).sum(-1)


def squashed_normal_sample(mean: torch.Tensor, log_std: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a reparameterised sample of the squashed normal and its log-probability.

    `a = tanh(mean + exp(log_std) * noise)`, `noise ~ N(0, 1)`. Gradients flow to mean and log_std through both results.

    Args:
        mean, log_std: `[..., A]`.

    Returns:
        The action `[..., A]` in [-1, 1], and `log p(a)` `[...]` in nats.

    Raises:
        TaacError: shapes that differ.

    Source: Haarnoja et al., SAC (arXiv:1812.05905), equation 8 and appendix C.
    """
    if mean.shape != log_std.shape:
        raise TaacError(f"mean and log_std must have one shape, got {list(mean.shape)} and {list(log_std.shape)}")
    noise = torch.randn_like(mean)
    pre_tanh = mean + log_std.exp() * noise
    return torch.tanh(pre_tanh), _log_prob_of_noise(noise, pre_tanh, log_std)


def squashed_normal_action(mean: torch.Tensor, log_std: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the sample of `squashed_normal_sample` for the same noise, or for a given one, without its log-probability."""
    return torch.tanh(torch.addcmul(mean, log_std.exp(), torch.randn_like(mean) if noise is None else noise))


def squashed_normal_mode(mean: torch.Tensor, log_std: torch.Tensor, epsilon: float = 0.0) -> torch.Tensor:
    """Returns the squashed mode `tanh(mean)`, `[..., A]`. With probability `epsilon`, an action is a sample instead."""
    mode = torch.tanh(mean)
    if epsilon == 0:
        return mode
    sample = squashed_normal_action(mean, log_std)
    return torch.where(torch.rand_like(mean[..., :1]) < epsilon, sample, mode)


def beta_distribution(
    q_values: torch.Tensor,
    alpha: torch.Tensor | float,
    advantage_clipping: tuple[float | None, float | None] | None = None,
    price: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """Returns the switching policy `beta = softmax(q / alpha)` over (continue the old trajectory, start the new one).

    It is computed from the advantage `q_1 - q_0`, so that it is exact at any magnitude of q. Alpha is clamped to at least
    1e-10, so that the result is never NaN. No gradient flows through it.

    Args:
        q_values: `[..., 2]`, q_0 of continuing and q_1 of switching.
        alpha: temperature, a scalar, > 0.
        advantage_clipping: `(low, high)`, to which the advantage is clipped first; either may be None.
        price: already subtracted from q_1, a scalar; it is added back while the advantage is clipped.

    Returns:
        Probabilities `[..., 2]`, detached, which sum to 1.

    Raises:
        TaacError: the last dimension is not 2, the values are not floats, or low > high.

    Source: Yu, Xu and Zhang, TAAC (NeurIPS 2021, arXiv:2104.06521), section 4.1; advantage clipping from its locomotion
    settings.
    """
    if q_values.dim() == 0 or q_values.shape[-1] != 2:
        raise TaacError(f"q_values must be [..., 2], got shape {list(q_values.shape)}")
    if not q_values.is_floating_point():
        raise TaacError(f"q_values must be floats, got {q_values.dtype}")
    with torch.no_grad():
        advantage = q_values[..., 1] - q_values[..., 0]
        if advantage_clipping is not None:
            low, high = advantage_clipping
            if low is not None and high is not None and low > high:
                raise TaacError(f"advantage_clipping must be (low, high) with low <= high, got {advantage_clipping}")
            if low is not None or high is not None:
                advantage = (advantage + price).clamp(low, high) - price
        alpha = torch.as_tensor(alpha, dtype=advantage.dtype, device=advantage.device).clamp(min=_MIN_ALPHA)
        scaled = advantage / alpha
        return torch.stack([torch.sigmoid(-scaled), torch.sigmoid(scaled)], dim=-1)


def boltzmann_distribution(q_values: torch.Tensor, alpha: torch.Tensor | float) -> torch.Tensor:
    """Returns the soft policy over choices, `p = softmax(q / alpha)`, with alpha clamped to at least 1e-10. No gradient flows.

    Args:
        q_values: `[..., C]`.
        alpha: temperature, a scalar, > 0.

    Returns:
        Probabilities `[..., C]`, detached.

    Source: Haarnoja et al., Soft Q-learning (arXiv:1702.08165), theorem 1.
    """
    with torch.no_grad():
        scale = torch.as_tensor(alpha, dtype=q_values.dtype, device=q_values.device).clamp(min=_MIN_ALPHA)
        return torch.softmax((q_values - q_values.amax(-1, keepdim=True)) / scale, dim=-1)


def categorical_entropy(probs: torch.Tensor) -> torch.Tensor:
    """Computes `-sum p log p` over the last dimension, in nats. A probability of 0 contributes 0, with gradient NaN."""
    return -torch.xlogy(probs, probs).sum(-1)


def categorical_policy(logits: torch.Tensor, valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns probabilities and log-probabilities of the valid choices, `log p = logits - log sum_valid exp(logits)`.

    Both are 0 at invalid choices, so that sums such as `sum p (alpha log p - q)` run over the valid choices only. No
    gradient flows to the logits of invalid choices.

    Args:
        logits: `[..., C]`.
        valid: `[..., C]` bool, at least one true in each row.

    Returns:
        Probabilities `[..., C]` and log-probabilities `[..., C]`, with gradients.

    Source: Huang and Ontanon, A Closer Look at Invalid Action Masking in Policy Gradient Algorithms (arXiv:2006.14171).
    """
    log_probs = torch.log_softmax(logits.masked_fill(~valid, -torch.inf), dim=-1)
    return log_probs.exp(), log_probs.masked_fill(~valid, 0.0)


def categorical_sample(probs: torch.Tensor) -> torch.Tensor:
    """Draws choices `[...]` int64 with probabilities (or weights) `[..., C]`. Never draws one of probability 0."""
    return torch.multinomial(probs.reshape(-1, probs.shape[-1]), 1).reshape(probs.shape[:-1])


def continuous_target_entropy(
    minimum: float | Sequence[float] | np.ndarray, maximum: float | Sequence[float] | np.ndarray, min_prob: float
) -> float:
    """Computes the target entropy of a continuous policy, `sum_i log((maximum_i - minimum_i) * min_prob)` over dimensions.

    It is the entropy of a policy that is uniform over a fraction `min_prob` of each dimension's range.

    Args:
        minimum, maximum: bounds of the action, `[A]`, or a number for one dimension.
        min_prob: in (0, 1]; 1 is the entropy of the uniform policy.

    Returns:
        Nats.

    Raises:
        TaacError: min_prob outside (0, 1] (the greatest entropy is at 1), or bounds that are not finite or not in order.

    Source: the settings published with TAAC (arXiv:2104.06521), which state `min_prob` for each task.
    """
    span = np.asarray(maximum, dtype=np.float64) - np.asarray(minimum, dtype=np.float64)
    if not (span.size and np.all(np.isfinite(span)) and np.all(span > 0)):
        raise TaacError(f"a target entropy needs finite bounds with minimum < maximum, got {minimum} and {maximum}")
    if not 0 < min_prob <= 1:
        raise TaacError(
            f"min_prob must be in (0, 1], got {min_prob}: the entropy of a continuous policy is at most log(max - min)"
        )
    return float(np.sum(np.log(span * min_prob)))


def discrete_target_entropy(num_choices: int, min_prob: float) -> float:
    """Computes the target entropy of a categorical policy, `p (log(N-1) - log p) - (1-p) log(1-p)`, p = min_prob.

    It is the entropy of a policy whose most likely choice has probability `1 - p` and whose others share `p` evenly.

    Args:
        num_choices: N, at least 2.
        min_prob: in (0, (N-1)/N]; the greatest is the uniform policy, with entropy `log N`.

    Returns:
        Nats; 0.1985 for N = 2 and p = 0.05.

    Raises:
        TaacError: fewer than 2 choices, or min_prob outside its range.

    Source: the settings published with TAAC (arXiv:2104.06521).
    """
    if num_choices < 2:
        raise TaacError(f"a categorical policy needs at least 2 choices, got {num_choices}")
    greatest = (num_choices - 1) / num_choices
    if not 0 < min_prob <= greatest:
        raise TaacError(
            f"min_prob must be in (0, {greatest:g}] for {num_choices} choices, got {min_prob}: "
            f"the entropy is at most log({num_choices}) = {math.log(num_choices):.4f} nats"
        )
    p = min_prob
    return p * (math.log(num_choices - 1) - math.log(p)) - (1 - p) * math.log(1 - p)
