"""Chunks: sequences of actions that are proposed at once, and what is left of them while they are executed.

Sources: chunks executed blindly are Q-chunking (Li, Zhou and Levine, arXiv:2507.07969). A chunk that is looked at again at every
step, and followed or replaced, is a trajectory of TAAC (arXiv:2104.06521). BCP (arXiv:2608.03483) and DEHP (arXiv:2606.11408)
decide how long to follow a chunk once, when they propose it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gin
import torch

from taac.data_structures import Nest
from taac.errors import TaacError, refuse_below


class Chunk(NamedTuple):
    """A chunk at one step of its execution. Actions that do not exist are 0."""

    a: torch.Tensor  # [..., A] the executed action
    rest: Nest  # [..., (h-1) A] the actions after it; () if h = 1
    left: Nest  # [..., 1] how many of these exist, divided by h - 1; () if h = 1


def make_chunk(actions: torch.Tensor, count: torch.Tensor | int, length: int) -> Chunk:
    """Returns the chunk that begins with the first of `actions` `[..., h A]`, of which `count` `[...]` exist, 1 to h."""
    size = actions.shape[-1] // length
    if length == 1:
        return Chunk(actions, (), ())
    if not isinstance(count, torch.Tensor):
        count = torch.full_like(actions[..., 0], count, dtype=torch.int64)
    exists = (torch.arange(length, device=actions.device) < count.unsqueeze(-1)).repeat_interleave(size, dim=-1)
    actions = actions * exists
    return Chunk(actions[..., :size], actions[..., size:], (count.to(actions.dtype).unsqueeze(-1) - 1) / (length - 1))


@gin.configurable
class ChunkTrajectory:
    """Follows the actions of a chunk: `advance: a, rest <- first of rest, others`; `start: a, rest = a_hat`, `[..., h A]`.

    The actor proposes all h actions. After the last one there is nothing to go on with: the switch then starts a new chunk.

    The result of an executed action does not depend on the actions planned after it. A replayed transition is therefore an
    example of every chunk that begins with its action, and some segments learn it with the later actions of a new proposal.
    Otherwise the critics would know stored chunks alone, and the actor would exploit their errors on others.

    Args:
        length: h, actions in a chunk; 1 or more.
        other_rests: fraction of replayed segments that learn with other actions after each executed one, in [0, 1]: with 0 to
            h - 1 of a new proposal. Their returns take one step. No effect with other losses than
            `TAACTDLoss` and `OneStepTDLoss`: their returns may pass frames at which the rests of two chunks meet.

    Raises:
        TaacError: settings out of range.
    """

    def __init__(self, length: int = 5, other_rests: float = 0.5):
        refuse_below(1, "ChunkTrajectory", length=length)
        if not 0 <= other_rests <= 1:
            raise TaacError(f"ChunkTrajectory.other_rests must be in [0, 1], got {other_rests}")
        self.length, self.other_rests = length, other_rests if length > 1 else 0.0

    def proposal_size(self, action_size: int) -> int:
        """Returns `h A`."""
        return self.length * action_size

    def zeros(self, action: torch.Tensor) -> Chunk:
        """Returns a chunk whose last action, zeros like `action` `[..., A]`, was executed."""
        none = action.new_zeros(*action.shape[:-1], self.length * action.shape[-1])
        return make_chunk(none, 1, self.length)

    def ended(self, tau: Chunk) -> torch.Tensor:
        """Returns where no action is left to go on with, `[...]` bool."""
        if self.length == 1:
            return torch.ones_like(tau.a[..., 0], dtype=torch.bool)
        return self._left(tau) < 1

    def advance(self, tau: Chunk) -> Chunk:
        """Returns the chunk one step later; where it has ended, an action of 0."""
        if self.length == 1:
            return Chunk(torch.zeros_like(tau.a), (), ())
        size = tau.a.shape[-1]
        actions = torch.cat([tau.rest, torch.zeros_like(tau.a)], dim=-1)
        left = (self._left(tau) - 1).clamp(min=0).to(tau.a.dtype).unsqueeze(-1) / (self.length - 1)
        return Chunk(actions[..., :size], actions[..., size:], left)

    def start(self, a_hat: torch.Tensor, tau: Any) -> Chunk:
        """Starts the chunk that the actor proposes, `[..., h A]`; `tau` is ignored."""
        return make_chunk(a_hat, self.length, self.length)

    def with_rest(self, tau: Chunk, proposal: torch.Tensor) -> Chunk:
        """Returns a chunk of 1 to h actions: that which `tau` executes, then those of a proposal `[..., h A]` after its first."""
        count = torch.randint(1, self.length + 1, proposal.shape[:-1], device=proposal.device)
        return make_chunk(torch.cat([tau.a, proposal[..., tau.a.shape[-1] :]], dim=-1), count, self.length)

    def plans(self, action: torch.Tensor, first: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the h recorded actions from each frame on, `[T, ..., h A]`; an episode's last one is repeated.

        Args:
            action: `[T, ..., A]`, taken at frames 0..T-1; at LAST there is none.
            first: `[T+1, ...]` bool, whether a frame is FIRST; None: all are of one episode.
        """
        count, lead = len(action), (1,) * (action.dim() - 2)
        frame = torch.arange(count, device=action.device).view(-1, *lead).expand(action.shape[:-1])
        last = torch.full_like(frame, count - 1)  # at which the episode has an action
        if first is not None:
            ends = first[1:] | torch.cat([first[2:], torch.ones_like(first[:1])])
            for t in reversed(range(count)):
                last[t] = torch.where(ends[t], t, last[min(t + 1, count - 1)])
        ahead = [torch.minimum(frame + i, last).unsqueeze(-1).expand_as(action) for i in range(self.length)]
        return torch.cat([action.gather(0, index) for index in ahead], dim=-1)

    def proposal(self, tau: Chunk) -> torch.Tensor:
        """Returns the h actions of a chunk `[..., h A]` that executes its first one."""
        return tau.a if self.length == 1 else torch.cat([tau.a, tau.rest], dim=-1)

    def output_for(self, action: torch.Tensor, tau: Any) -> torch.Tensor:
        """Returns the proposal that executes `action` `[..., A]` at all steps."""
        return action.repeat(*(1,) * (action.dim() - 1), self.length)

    def _left(self, tau: Chunk) -> torch.Tensor:
        """Returns how many actions are left after the executed one, `[...]`."""
        return (tau.left[..., 0] * (self.length - 1)).round()
