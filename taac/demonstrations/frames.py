"""Demonstrations as an agent's replayed frames, and what SQIL monitors."""

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

_AT_A_TIME = 64  # episodes that an algorithm explains side by side


def demonstrated_frames(source: str, environment: VectorEnvironment, agent: Agent, spec: Nest) -> Experience:
    """Demonstrations as rollouts of this agent would be stored, one episode after another; leaves `[F, ...]`.

    Args:
        source: a file of recorded episodes, or `"minari:ID"`; see `episode_files.read`.
        spec: of one stored frame.

    Raises:
        TaacError: as `episode_files.read`; the algorithm stores what recorded actions do not tell.
    """
    recorded = episode_files.read(source, environment)
    parts = [_explained(agent, recorded[i : i + _AT_A_TIME]) for i in range(0, len(recorded), _AT_A_TIME)]
    frames: Experience = nest.map_structure(lambda *leaves: torch.cat(leaves), *(e for part in parts for e in part))
    stored = {path: tuple(s.shape) for path, s in nest.flatten_with_path(spec.rollout_info)}
    told = {path: tuple(x.shape[1:]) for path, x in nest.flatten_with_path(frames.rollout_info)}
    if stored != told:
        raise TaacError(
            f"{type(agent.algorithm).__name__} cannot learn from demonstrations: it stores {', '.join(stored)} of its "
            "rollouts, which recorded actions do not tell. Use SacAlgorithm, TaacAlgorithm or another method that can"
        )
    return frames


def _explained(agent: Agent, recorded: list[TimeStep]) -> list[Experience]:
    """Each episode with the `info` that the algorithm gives it, leaves `[N+1, ...]`."""
    padded = nest.map_structure(lambda *leaves: nn.utils.rnn.pad_sequence(list(leaves)), *recorded)
    info = agent.demonstrated_info(padded)
    return [
        Experience(episode, nest.index(info, (slice(len(episode.step_type)), e))) for e, episode in enumerate(recorded)
    ]


@gin.configurable
class SqilMonitor:
    """Looks at both halves of a batch, the demonstrations and the agent's own, each by itself.

    The cosine similarity of the policy's gradients is that of the vectors `d loss / d phi` over all the actor's parameters;
    where it is negative, what the policy learns from one half it unlearns from the other. TD errors are squared and summed
    over critics, as in the loss.
    """

    @staticmethod
    def check(replay: object) -> SqilReplay:
        """The replay itself.

        Raises:
            TaacError: its batches have no two halves.
        """
        if not isinstance(replay, SqilReplay):
            raise TaacError(
                "SqilMonitor needs batches of two halves: bind create_experiment.demonstrations_ctor = @SqilReplay"
            )
        return replay

    def __call__(self, agent: Agent, replay: object, batch_size: int, length: int) -> dict[str, torch.Tensor]:
        """Scalars of a batch drawn for the purpose. Networks, statistics and training's random numbers stay as they are."""
        halves = self.check(replay).halves
        statistics = [m for m in (agent.reward_normalizer, agent.reward_signals) if m is not None]
        moved = [(buffer, buffer.clone()) for module in statistics for buffer in module.buffers()]
        with torch.random.fork_rng(devices=[agent.device] if agent.device.type == "cuda" else []):
            demonstrated, own = halves(batch_size, length)
            first, gradient = _half(agent, demonstrated)
            second, other = _half(agent, own)
        for buffer, before in moved:
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
    """What an update on this half alone reports, and the gradient of its loss by the actor's parameters, as a vector."""
    algorithm = agent.algorithm
    experience = agent.prepare(experience)
    loss_info = algorithm.calc_loss(experience, algorithm.train_step(experience))
    gradients = torch.autograd.grad(loss_info.loss.mean(), algorithm.parameter_groups()["actor"])
    return loss_info.extra, torch.cat([gradient.flatten() for gradient in gradients])
