"""Losses as pure functions."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from taac.errors import TaacError


def action_gradient_loss(action: torch.Tensor, action_gradient: torch.Tensor) -> torch.Tensor:
    """Computes the deterministic-policy-gradient surrogate, `1/2 |a - sg(a + dQ/da)|^2` with sg the stopped gradient.

    Its gradient with respect to the actor's parameters is `-dQ/da * da/dphi`.

    Args:
        action: `[..., A]`, with a graph to the actor.
        action_gradient: `[..., A]`, dQ/da, treated as a constant.

    Returns:
        `[...]`.

    Source: Silver et al., Deterministic Policy Gradient Algorithms (ICML 2014), theorem 1.
    """
    target = (action + action_gradient).detach()
    return 0.5 * (action - target).square().sum(-1)


def temperature_loss(scale: torch.Tensor, entropy: torch.Tensor, target_entropy: torch.Tensor | float) -> torch.Tensor:
    """Computes `scale * (H - H_target)` with H constant. Raises the temperature while the entropy is below its target.

    Args:
        scale: scalar; log alpha (tuned in log space) or alpha itself (tuned directly).
        entropy: `[...]`, nats.
        target_entropy: nats; `[...]` if states differ.

    Returns:
        `[...]`.

    Source: Haarnoja et al., SAC (arXiv:1812.05905), equation 18; in log space as in their implementation.
    """
    return scale * (entropy.detach() - target_entropy)


def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns the mean of `x` where `mask` is True, both `[...]`; a scalar, 0 if that is nowhere."""
    weight = mask.to(x.dtype)
    return (x * weight).sum() / weight.sum().clamp(min=1.0)


def squared_td_error(q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Computes the squared TD error (without 1/2), summed over critics and averaged over reward dimensions.

    Args:
        q: `[N, T, B]` or `[N, T, B, D]`, the predictions of N critics.
        target: `[T, B]` or `[T, B, D]`, detached.

    Returns:
        `[T, B]`.

    Raises:
        TaacError: shapes that do not fit.
    """
    _check_shapes(q, target)
    loss = (q - target.detach()).square().sum(0)
    return loss.mean(-1) if loss.dim() == 3 else loss


def huber_td_error(q: torch.Tensor, target: torch.Tensor, delta: float) -> torch.Tensor:
    """Computes Huber's loss, `e^2` where the TD error `|e| <= delta`, and the tangent line `delta (2 |e| - delta)` beyond.

    The gradient is therefore never larger than at an error of delta. It is twice Huber's function because
    `squared_td_error` has no 1/2; with delta above all errors the two losses are equal.

    Args, returns, errors: as in `squared_td_error`.
        delta: above 0, in units of Q.

    Source: Huber (1964), Robust Estimation of a Location Parameter; on TD errors Mnih et al. (Nature 2015), methods.
    """
    _check_shapes(q, target)
    loss = 2.0 * F.huber_loss(q, target.detach().expand_as(q), reduction="none", delta=delta).sum(0)
    return loss.mean(-1) if loss.dim() == 3 else loss


def _check_shapes(q: torch.Tensor, target: torch.Tensor) -> None:
    if q.shape[1:] != target.shape:
        raise TaacError(f"q must be [N, *target.shape], got {list(q.shape)} and a target of {list(target.shape)}")
