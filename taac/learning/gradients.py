"""The gradients of an algorithm's loss, with the importance weights of prioritised replay, and their mean over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn as nn

from taac.algorithms import Algorithm
from taac.algorithms.agent import Agent
from taac.data_structures import Experience, Nest
from taac.errors import TaacError
from taac.learning.diagnostics import Diagnostics
from taac.learning.guard import sum_of_all
from taac.machine.products import mixed_precision
from taac.machine.ranks import Ranks


class LossAndGradients(NamedTuple):
    """An algorithm's loss on a batch, detached, and its gradients."""

    loss: torch.Tensor  # scalar
    total: torch.Tensor  # scalar, not finite if the loss or a gradient is not; see `sum_of_all`
    frames: torch.Tensor  # [T, B], the loss of each frame, before importance weights
    extra: dict[str, torch.Tensor]  # scalars to summarise, by tag
    segment_error: torch.Tensor | None  # [B]
    gradients: list[torch.Tensor | None]  # of the algorithm's parameters; None if the loss does not depend on one
    statistics: dict[str, torch.Tensor]  # scalars by tag from `Diagnostics`; empty if it is off
    observed: dict[str, torch.Tensor]  # tensors by name, for histograms; empty if they are off


def loss_and_gradients(
    agent: Agent,
    experience: Experience,
    weights: Nest,
    parameters: Sequence[nn.Parameter],
    importance_weights: str,
    products: str,
    diagnostics: Diagnostics,
) -> LossAndGradients:
    """Returns the algorithm's loss on a prepared batch, and its gradients.

    Args:
        agent: holds the algorithm.
        experience: the prepared batch, `[T, B]`.
        weights: `[B]`; `()` if all segments count equally.
        parameters: what to differentiate by.
        importance_weights, products: see `Learner`.
        diagnostics: computes further statistics.

    Raises:
        TaacError: weights were given, but the algorithm reports no errors from which to update priorities.
    """
    algorithm = agent.algorithm
    with agent.learning():
        with mixed_precision(products, agent.device):
            info = algorithm.train_step(experience)
        frames, extra, segment_error, detail = algorithm.calc_loss(experience, info)
    if isinstance(weights, tuple):
        loss, gradients = _of_mean(frames, parameters)
    elif segment_error is None:
        raise TaacError(
            f"prioritised replay needs errors of the critics, which {type(algorithm).__name__} does not report "
            "(LossInfo.segment_error); bind create_experiment.replay_buffer_ctor = @ReplayBuffer"
        )
    else:
        if importance_weights == "critics":
            loss, gradients = _weighted_critics(frames, weights, parameters, algorithm)
        else:
            loss, gradients = _of_mean(frames * weights, parameters)
        extra = {**extra, "replay/weight": weights.mean(), "replay/segment_error": segment_error.mean()}
    loss = loss.detach()
    statistics, observed = diagnostics.compute(detail)
    return LossAndGradients(
        loss, sum_of_all(loss, gradients), frames.detach(), extra, segment_error, list(gradients), statistics, observed
    )


def _of_mean(
    frames: torch.Tensor, parameters: Sequence[nn.Parameter]
) -> tuple[torch.Tensor, Sequence[torch.Tensor | None]]:
    """Returns the mean loss of frames `[T, B]`, and its gradients."""
    loss = frames.mean()
    return loss, torch.autograd.grad(loss, parameters, allow_unused=True)


def _weighted_critics(
    frames: torch.Tensor, weights: torch.Tensor, parameters: Sequence[nn.Parameter], algorithm: Algorithm
) -> tuple[torch.Tensor, Sequence[torch.Tensor | None]]:
    """Returns the plain mean loss and its gradients, but for the critics the gradients of the weighted mean."""
    weighted, plain, groups = (frames * weights).mean(), frames.mean(), algorithm.parameter_groups()
    critics = [p for name in ("critic", "value", "value_encoder") for p in groups.get(name, ())]
    others = [p for p in parameters if all(p is not critic for critic in critics)]
    of_others = torch.autograd.grad(plain, others, retain_graph=True, allow_unused=True)
    of_critics = torch.autograd.grad(weighted, critics, allow_unused=True)
    found = {id(p): gradient for p, gradient in zip([*others, *critics], [*of_others, *of_critics])}
    return plain, tuple(found[id(p)] for p in parameters)


def average(
    ranks: Ranks,
    parameters: Sequence[nn.Parameter],
    early: Mapping[nn.Parameter, torch.Tensor],
    loss: torch.Tensor,
    total: torch.Tensor,
    extra: Mapping[str, torch.Tensor],
    statistics: Mapping[str, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Averages the parameters' gradients, and scalars, over the ranks in one message; returns the scalars.

    The mean of the gradients of equal parts of a batch is the gradient of the whole batch's mean loss. A number that is not
    finite in one rank is not finite in any.

    Args:
        early: the means of gradients that were sent before.
        loss, total, extra, statistics: as in `LossAndGradients`.
    """
    for parameter, mean in early.items():
        parameter.grad = mean
    own = [parameter for parameter in parameters if parameter.grad is not None and parameter not in early]
    gradients = [parameter.grad for parameter in own if parameter.grad is not None]
    averaged = ranks.average([*gradients, loss, total, *extra.values(), *statistics.values()])
    for parameter in own:
        parameter.grad = averaged.pop(0)
    loss, total, *values = averaged
    return loss, total, dict(zip(extra, values)), dict(zip(statistics, values[len(extra) :]))
