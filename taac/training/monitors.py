"""Monitors: scalars that are computed only when a summary is due."""

from __future__ import annotations

from typing import Any, Protocol

import gin
import torch
import torch.nn as nn

from taac.algorithms.agent import Agent
from taac.data_structures import Experience
from taac.errors import TaacError


class Monitor(Protocol):
    """Computes further scalars by tag when a summary is due. It must not change anything in the run.

    It may also have `check(replay)`, which raises `TaacError` if it does not support batches of this replay. Tags of its own,
    which are not in docs/summaries.md, need a meaning: `summary_tags()` returns it by tag.
    """

    def __call__(self, agent: Agent, replay: Any, batch_size: int, length: int) -> dict[str, torch.Tensor]: ...


@gin.configurable
class SqilMonitor:
    """Compares the two halves of a batch, the demonstrations and the agent's own segments.

    The cosine similarity is between the two gradients `d loss / d phi` over all the actor's parameters. If it is negative, an
    update on one half increases the other half's loss. TD errors are squared and summed over critics, as in the loss.
    """

    @staticmethod
    def check(replay: Any) -> None:
        """Refuses a replay whose batches have no two halves; see `SqilReplay.halves`.

        Raises:
            TaacError: it is such a replay.
        """
        if not hasattr(replay, "halves"):
            raise TaacError(
                "SqilMonitor needs batches of two halves: bind create_experiment.demonstrations_ctor = @SqilReplay"
            )

    def __call__(self, agent: Agent, replay: Any, batch_size: int, length: int) -> dict[str, torch.Tensor]:
        """Returns scalars computed on a new batch. Networks, statistics and training's random numbers do not change."""
        statistics = [m for m in (agent.reward_normalizer, agent.reward_signals) if m is not None]
        saved = [(buffer, buffer.clone()) for module in statistics for buffer in module.buffers()]
        with torch.random.fork_rng(devices=[agent.device] if agent.device.type == "cuda" else []):
            demonstrated, own = replay.halves(batch_size, length)
            first, gradient = _half(agent, demonstrated)
            second, other = _half(agent, own.experience)
        for buffer, before in saved:
            buffer.copy_(before)
        return {
            "sqil/gradient_cosine": nn.functional.cosine_similarity(gradient, other, dim=0),
            "sqil/td_error_demonstrations": first["loss/critic"],
            "sqil/td_error_agent": second["loss/critic"],
            "sqil/actor_loss_demonstrations": first["loss/actor"],
            "sqil/actor_loss_agent": second["loss/actor"],
            "sqil/entropy_demonstrations": first["policy/entropy"],
            "sqil/entropy_agent": second["policy/entropy"],
        }


def _half(agent: Agent, experience: Experience) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Returns the scalars of an update on one half, and the gradient of its loss with respect to the actor's parameters."""
    algorithm = agent.algorithm
    experience = agent.prepare(experience)
    loss_info = algorithm.calc_loss(experience, algorithm.train_step(experience))
    gradients = torch.autograd.grad(loss_info.loss.mean(), algorithm.parameter_groups()["actor"])
    return loss_info.extra, torch.cat([gradient.flatten() for gradient in gradients])
