"""Converts demonstrations to an agent's replayed frames."""

from __future__ import annotations

import torch
import torch.nn as nn

from taac import nest
from taac.algorithms.agent import Agent
from taac.data_structures import Experience, Nest, TimeStep
from taac.demonstrations import episode_files
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
