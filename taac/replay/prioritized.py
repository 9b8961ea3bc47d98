"""Prioritised replay: segments are drawn in proportion to how wrong the critics last were about them.

Source: Schaul, Quan, Antonoglou and Silver, Prioritized Experience Replay (ICLR 2016, arXiv:1511.05952), the proportional
variant, for segments; equation numbers below are that paper's.
"""

from __future__ import annotations

from typing import Any

import gin
import torch

from taac.data_structures import LAST, Nest
from taac.errors import TaacError
from taac.replay.replay_buffer import ReplayBuffer
from taac.replay.sum_tree import SumTree


@gin.configurable
class PrioritizedReplayBuffer(ReplayBuffer):
    """A ring buffer whose segments are drawn with probability `P(i) = p_i^alpha / sum_k p_k^alpha` (equation 1).

    An item is the segment that starts at a frame. Its priority is `p_i = error_i + epsilon` as of when it was learnt from
    last. A segment gets the greatest priority seen so far (1 at first) once all of its frames are there; until then, and
    as soon as its first frame is overwritten, it has none: no segment ever crosses the write pointer. A batch of k is
    drawn from k equal parts of the sum of priorities, environment after environment and in each along the ring.

    A segment whose first T-1 frames are all LAST has no critic loss. Its probability is 0 (T being the length asked for when it
    became whole): it is never drawn, and has no part in the weights. At T = 2 these are the segments that begin at LAST.

    With all priorities equal, or `alpha = 0`, each draw is uniform over the other segments, with all weights 1. As in
    `ReplayBuffer`, the parts make each environment give equally many where their number divides the batch and each has as many
    segments. Not alike: the random numbers, and what does not divide, which here goes to environments by chance.

    Args:
        experience_spec, num_envs: as `ReplayBuffer`.
        alpha: how much priorities count, in [0, 1]; 0 is uniform.
        beta: of the weights at the beginning of the run, in (0, 1]; rises to 1 in a straight line over the run. 0: no weights,
            which are then 1 throughout.
        epsilon: keeps segments without error from never being seen again; > 0, in the units of Q. The paper gives none.
        buffer_arguments: everything else of `ReplayBuffer`, which is also where gin binds it.

    Raises:
        TaacError: as `ReplayBuffer`; settings out of range.
    """

    def __init__(
        self,
        experience_spec: Nest,
        num_envs: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        epsilon: float = 0.01,
        **buffer_arguments: Any,
    ):
        for name, value in {"alpha": alpha, "beta": beta}.items():
            if not 0 <= value <= 1:
                raise TaacError(f"PrioritizedReplayBuffer.{name} must be in [0, 1], got {value}")
        if not 0 < epsilon < float("inf"):
            raise TaacError(f"PrioritizedReplayBuffer.epsilon must be above 0, got {epsilon}")
        super().__init__(experience_spec, num_envs, **buffer_arguments)
        self.alpha, self.beta, self.epsilon = alpha, beta, epsilon
        self._tree = SumTree(num_envs * self.length, self.device)  # item: environment * length + place in the ring
        self.num_bytes += self._tree.num_bytes
        self._greatest = torch.ones((), dtype=torch.float64, device=self.device)  # priority seen
        self._unopened = 0  # newest frames of each environment at which no segment has begun to count
        self._drawn = torch.zeros(0, dtype=torch.int64, device=self.device)  # items of the last batch

    def add(self, experience: Any) -> None:
        super().add(experience)
        self._unopened = min(self._unopened + 1, self.length)

    def _draw(self, batch_size: int, starts: int) -> tuple[torch.Tensor, torch.Tensor]:
        self._open(self._size - starts)
        if self.device.type == "cpu" and not self._tree.total > 0:  # a GPU would be waited for
            raise TaacError(
                f"none of the {self.num_envs * starts} segments held has a frame to learn from: all but their last frames are "
                "LAST; raise ReplayBuffer.length"
            )
        uniform = torch.rand(batch_size, device=self.device, dtype=torch.float64)
        part = torch.arange(batch_size, device=self.device)
        self._drawn = self._tree.find((part + uniform) / batch_size * self._tree.total)
        environment = torch.div(self._drawn, self.length, rounding_mode="floor")
        place = self._drawn - environment * self.length
        return environment, (place - self._next + self._size) % self.length

    def _open(self, unfinished: int) -> None:
        """Gives segments that are whole by now their first priority; those of the `unfinished` newest frames are not yet.

        Segments that the critics cannot learn from stay without one.
        """
        newness = torch.arange(max(self._unopened, unfinished), device=self.device)
        place = (self._next - 1 - newness) % self.length
        learnt_from = torch.arange(max(1, unfinished), device=self.device).unsqueeze(1)  # frames 0..T-2 of a segment
        step_type = self._storage.time_step.step_type[(place + learnt_from) % self.length]  # [T-1, frames, B]
        opens = (step_type != LAST).any(0) & (newness >= unfinished).unsqueeze(1)
        mass = torch.where(opens, self._greatest**self.alpha, 0.0)
        environment = torch.arange(self.num_envs, device=self.device)
        self._tree.set((environment * self.length + place.unsqueeze(1)).flatten(), mass.flatten())
        self._unopened = unfinished

    def importance_weights(self, progress: float) -> torch.Tensor:
        """`w_i = (N P(i))^-beta / max_j w_j` of the batch drawn last, `[B']` float32 (section 3.4); the maximum is over it.

        Args:
            progress: how much of the run is over, in [0, 1]; beta is `beta + progress * (1 - beta)`, or 0 if it began with 0.
        """
        beta = self.beta + min(1.0, progress) * (1.0 - self.beta) if self.beta else 0.0
        mass = self._tree.masses[self._drawn]
        return (mass / mass.min()).pow(-beta).float()  # N and the sum of priorities cancel

    def update_priorities(self, error: torch.Tensor | None) -> None:
        """Takes the errors `[B']`, >= 0, of the batch drawn last; of a segment drawn twice the greater counts.

        An error that is not finite counts as the greatest priority seen.

        Raises:
            TaacError: they are not of that batch.
        """
        if error is None or error.shape != self._drawn.shape:
            raise TaacError(
                f"expected an error for each of the {len(self._drawn)} segments that were sampled last, got "
                f"{None if error is None else list(error.shape)}"
            )
        priority = error.detach().to(self.device, torch.float64) + self.epsilon
        priority = torch.where(priority.isfinite(), priority, self._greatest)
        self._greatest = torch.maximum(self._greatest, priority.max())
        self._tree.set(self._drawn, priority**self.alpha)

    def state_dict(self, frames: bool = True) -> dict[str, torch.Tensor]:
        masses = self._tree.masses.view(self.num_envs, self.length)[:, : self._size]
        return {
            **super().state_dict(frames),
            "priorities/masses": masses.t().clone(memory_format=torch.contiguous_format),  # [size, B], p^alpha
            "priorities/greatest": self._greatest.clone(),
            "priorities/unopened": torch.tensor(self._unopened),
        }

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        own = {name: value for name, value in state.items() if name.startswith("priorities/")}
        if len(own) != 3:
            raise TaacError("the saved replay buffer has no priorities: it is of a run without prioritised replay")
        super().load_state_dict({name: value for name, value in state.items() if name not in own})
        masses = self._tree.masses.new_zeros(self.num_envs, self.length)
        masses[:, : self._size] = own["priorities/masses"].t()
        self._tree.set(torch.arange(self._tree.size, device=self.device), masses.flatten())
        self._greatest.copy_(own["priorities/greatest"])
        self._unopened = int(own["priorities/unopened"])
        self._drawn = self._drawn[:0]
