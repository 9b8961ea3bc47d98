"""Where the episodes in a ring buffer begin and end."""

from __future__ import annotations

import torch

from taac.data_structures import FIRST, LAST


class EpisodeIndex:
    """Knows the first and the last frame of the episode of each frame in a ring. Frames count from 0, the first ever added.

    Every episode has a number, and the last frame of episode e is kept at `e % (length + 1)`, so adding a frame and finding an
    episode's end take the same time however long episodes are, and neither waits for a GPU.

    Args:
        num_envs, length, device: those of the ring buffer.
    """

    def __init__(self, num_envs: int, length: int, device: torch.device):
        self._length, self._added = length, 0
        self._count = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self._episode = torch.zeros(length, num_envs, dtype=torch.int64, device=device)  # of the frame at each place
        self._last = torch.full((length + 1, num_envs), -1, dtype=torch.int64, device=device)

    def update(self, step_type: torch.Tensor, added: int) -> None:
        """Takes in the frames added since the last call.

        Args:
            step_type: of the frames in the ring, `[reserved, B]`.
            added: number of frames ever added for each environment.
        """
        if added == self._added:
            return
        frame = torch.arange(max(self._added, added - self._length), added, device=step_type.device)
        place = frame % self._length
        before = step_type[(frame - 1).clamp_(min=0) % self._length]
        begins = (step_type[place] == FIRST) | (before == LAST)  # after a failure, an episode may be a single LAST
        episode = self._count + begins.cumsum(0)
        self._count, self._episode[place] = episode[-1], episode
        self._last.scatter_reduce_(0, episode % len(self._last), frame.unsqueeze(1).expand_as(episode), "amax")
        self._added = added

    def bounds(self, environment: torch.Tensor, frame: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the first and the last frame `[N]` of the episodes of these frames of these environments `[N]`.

        The first may have left the ring.
        """
        episode = self._episode[frame % self._length, environment]
        before, last = ((episode - e) % len(self._last) for e in (1, 0))
        return self._last[before, environment] + 1, self._last[last, environment]
