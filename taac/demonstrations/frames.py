"""Converts demonstrations to an agent's replayed frames, and monitors SQIL."""

from __future__ import annotations

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms.agent import Agent
from taac.data_structures import Experience, Nest, TimeStep
from taac.demonstrations import episode_files
from taac.demonstrations.replay import SqilReplay
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError

_EPISODES_AT_ONCE = 64  # number of episodes for which an algorithm computes `info` in one batch


def demonstrated_frames(source: str, environment: VectorEnvironment, agent: Agent, spec: Nest) -> Experience:
    """Converts demonstrations to frames as this agent's rollouts would be stored. Episodes are joined, leaves `[F, ...]`.

    Args:
        source: a file of recorded episodes, or `"minari:ID"`; see `episode_files.read`.
        spec: the spec of one stored frame.

    Raises:
        TaacError: the algorithm stores something that recorded actions do not contain; also as in `episode_files.read`.
    """
    recorded = episode_files.read(source, environment)
    step = _EPISODES_AT_ONCE
    parts = [_with_info(agent, recorded[i : i + step]) for i in range(0, len(recorded), step)]
    frames: Experience = nest.map_structure(lambda *leaves: torch.cat(leaves), *(e for part in parts for e in part))
    stored = {path: tuple(s.shape) for path, s in nest.flatten_with_path(spec.rollout_info)}
    computed = {path: tuple(x.shape[1:]) for path, x in nest.flatten_with_path(frames.rollout_info)}
    if stored != computed:
        raise TaacError(
            f"{type(agent.algorithm).__name__} cannot learn from demonstrations: it stores {', '.join(stored)} of its "
            "rollouts, which recorded actions do not contain. Use SacAlgorithm, TaacAlgorithm or another method that can"
        )
    return frames


def _with_info(agent: Agent, recorded: list[TimeStep]) -> list[Experience]:
    """Each episode with the `info` that the algorithm computes for it, leaves `[N+1, ...]`."""
    padded = nest.map_structure(lambda *leaves: nn.utils.rnn.pad_sequence(list(leaves)), *recorded)
    info = agent.demonstrated_info(padded)
    return [
        Experience(episode, nest.index(info, (slice(len(episode.step_type)), e))) for e, episode in enumerate(recorded)
    ]


@gin.configurable
class SqilMonitor:
    """Compares the two halves of a batch, the demonstrations and the agent's own segments.

    The cosine similarity is between the two gradients `d loss / d phi` over all the actor's parameters. If it is negative, an
    update on one half increases the other half's loss. TD errors are squared and summed over critics, as in the loss.
    """

    @staticmethod
    def check(replay: object) -> SqilReplay:
        """Returns the replay if its batches have two halves.

        Raises:
            TaacError: they do not.
        """
        if not isinstance(replay, SqilReplay):
            raise TaacError(
                "SqilMonitor needs batches of two halves: bind create_experiment.demonstrations_ctor = @SqilReplay"
            )
        return replay

    def __call__(self, agent: Agent, replay: object, batch_size: int, length: int) -> dict[str, torch.Tensor]:
        """Returns scalars computed on a new batch. Networks, statistics and training's random numbers do not change."""
        halves = self.check(replay).halves
        statistics = [m for m in (agent.reward_normalizer, agent.reward_signals) if m is not None]
        saved = [(buffer, buffer.clone()) for module in statistics for buffer in module.buffers()]
        with torch.random.fork_rng(devices=[agent.device] if agent.device.type == "cuda" else []):
            demonstrated, own = halves(batch_size, length)
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
    """The scalars of an update on one half, and the gradient of its loss with respect to the actor's parameters."""
    algorithm = agent.algorithm
    experience = agent.prepare(experience)
    loss_info = algorithm.calc_loss(experience, algorithm.train_step(experience))
    gradients = torch.autograd.grad(loss_info.loss.mean(), algorithm.parameter_groups()["actor"])
    return loss_info.extra, torch.cat([gradient.flatten() for gradient in gradients])
