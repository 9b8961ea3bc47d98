"""Collectors in a checkpoint: tensors, numbers and lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from taac import nest
from taac.acting import collecting
from taac.data_structures import Nest
from taac.parallel.pool import Remote
from taac.parallel.worker import Frame
from taac.runs.files import Damaged


def remote(state: dict[str, Any], of: Remote) -> dict[str, Any]:
    """Returns a collector for a checkpoint.

    Args:
        state: its own, as `Worker.state` returned it.
        of: the learner's view of it.
    """
    return {
        "worker": state,
        "generation": of.generation,
        "held": _tensors(of.held),
        "pending": [_plain(frame) for frame in of.pending],
    }


def frames(state: dict[str, Any], time_step: Nest, info: Nest, num_envs: int) -> tuple[list[np.ndarray], list[Frame]]:
    """Returns what `remote` saved of the learner's view: the leaves of the next time step, and frames that wait.

    Args:
        time_step, info: specs of both.
        num_envs: environments of the collector.

    Raises:
        Damaged: they do not fit.
    """
    held = _arrays(state["held"], time_step, num_envs)
    pending = []
    for kept in state["pending"]:
        ended = [collecting.episode(one) for one in kept["ended"]]
        leaves = {"info": _arrays(kept["info"], info, num_envs), "reached": _arrays(kept["reached"], time_step, num_envs)}
        pending.append(Frame(**{**kept, **leaves, "ended": ended}))
    return held, pending


def _plain(frame: Frame) -> dict[str, Any]:
    ended = [collecting.plain(episode) for episode in frame.ended]
    return {**frame._asdict(), "info": _tensors(frame.info), "reached": _tensors(frame.reached), "ended": ended}


def _tensors(leaves: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(leaf)) for leaf in leaves]


def _arrays(leaves: list[torch.Tensor], like: Nest, num_envs: int) -> list[np.ndarray]:
    expected = [(spec.dtype, [num_envs, *spec.shape]) for spec in nest.flatten(like)]
    if (given := [(leaf.dtype, list(leaf.shape)) for leaf in leaves]) != expected:
        raise Damaged(f"it holds frames of another kind: {given}, expected {expected}")
    return [leaf.numpy() for leaf in leaves]
