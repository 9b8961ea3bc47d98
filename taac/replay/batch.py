"""A batch to learn from, and what a learner expects of a replay."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from taac.data_structures import Experience


class Batch(NamedTuple):
    """Segments to learn from, how much each counts, and where the replay keeps their priorities."""

    experience: Experience  # leaves [T, B', ...]
    weights: torch.Tensor | None  # [B'], importance weights; None: all segments count alike
    indices: torch.Tensor | None  # [n], of the last n segments, those with priorities; None: none has one


class Replay(Protocol):
    """What a learner draws from."""

    @property
    def ring(self) -> Replay:
        """The part that holds the agent's own frames."""
        ...

    def sample(self, batch_size: int, length: int) -> Experience:
        """Returns `batch_size` segments of `length` frames, leaves `[length, batch_size, ...]`, drawn uniformly."""

    def sample_batch(self, batch_size: int, length: int, progress: float = 0.0) -> Batch:
        """Returns a batch drawn as this replay prefers.

        Args:
            batch_size, length: number of segments, and of frames in each.
            progress: the fraction of the run that is done, in [0, 1].
        """

    def update_priorities(self, batch: Batch, error: torch.Tensor | None) -> None:
        """Sets the priorities of a batch after an update on it.

        Args:
            batch: as `sample_batch` returned it; frames may have been added since.
            error: how wrong the critics were about each segment, `[B']`, 0 or more; None if the algorithm reports none.
        """
