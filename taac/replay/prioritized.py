"""Prioritised replay: segments are sampled with probabilities that grow with the critics' last error on them.

Source: Schaul, Quan, Antonoglou and Silver, Prioritized Experience Replay (ICLR 2016, arXiv:1511.05952), the proportional
variant, applied to segments. Equation numbers below are that paper's.
"""

from __future__ import annotations

from typing import Any, Literal

import gin
import torch

from taac.data_structures import LAST, Nest
from taac.errors import TaacError
from taac.replay.replay_buffer import Batch, ReplayBuffer
from taac.replay.sum_tree import SumTree


@gin.configurable(denylist=["critics_need"])
class PrioritizedReplayBuffer(ReplayBuffer):
    """A ring buffer whose segments are sampled with probability `P(i) = p_i^alpha / sum_k p_k^alpha` (equation 1).

    An item is the segment that starts at a frame. Its priority is `p_i = error_i + epsilon`, with the error from the last
    time it was learnt from. A segment enters with the greatest priority seen so far (initially 1) once all its frames are
    stored. Before that, and after its first frame is overwritten, its probability is 0, so no segment ever crosses the write
    pointer. The sum of priorities, ordered by environment and then along the ring, is divided into k equal parts, and a
    batch of k takes one segment from each.

    A segment whose first T-1 frames, after `burn_in`, are all LAST has no critic loss, where T is the segment length requested
    when its last frame was stored. Such a segment has probability 0 and does not affect the weights. At T = 2 these are the
    segments that begin at LAST. Of chunks (`critics_need`) they are those that begin at LAST, or hold a LAST.

    With equal priorities or `alpha = 0`, sampling is uniform over the remaining segments and all weights are 1. As in
    `ReplayBuffer`, every environment then contributes equally if the number of environments divides the batch size and all
    have the same number of segments. Unlike there, the random numbers differ, and a remainder goes to environments at random.

    Args:
        experience_spec, num_envs: as in `ReplayBuffer`.
        alpha: strength of the priorities, in [0, 1]; 0 is uniform.
        beta: exponent of the importance weights at the beginning of the run, in [0, 1]. It rises linearly to 1 over the run.
            0 disables the weights, which then stay 1.
        epsilon: added to every error, so that segments without error are still sampled; > 0, in units of Q. The paper states
            no value.
        critics_need: see `Algorithm`; set by `create_experiment`.
        buffer_arguments: the other arguments of `ReplayBuffer`; gin binds them there.

    Raises:
        TaacError: a setting is out of range; also as in `ReplayBuffer`.
    """

    def __init__(
        self,
        experience_spec: Nest,
        num_envs: int,
        alpha: float = 0.6,
        beta: float = 0.4,
        epsilon: float = 0.01,
        critics_need: Literal["any", "first", "all"] = "any",
        **buffer_arguments: Any,
    ):
        for name, value in {"alpha": alpha, "beta": beta}.items():
            if not 0 <= value <= 1:
                raise TaacError(f"PrioritizedReplayBuffer.{name} must be in [0, 1], got {value}")
        if not 0 < epsilon < float("inf"):
            raise TaacError(f"PrioritizedReplayBuffer.epsilon must be above 0, got {epsilon}")
        super().__init__(experience_spec, num_envs, **buffer_arguments)
        self.alpha, self.beta, self.epsilon, self._critics_need = alpha, beta, epsilon, critics_need
        self._tree = SumTree(num_envs * self.length, self.device)  # item: environment * length + position in the ring
        self._greatest = torch.ones((), dtype=torch.float64, device=self.device)  # the greatest priority so far
        self._unopened = 0  # number of newest frames of each environment whose segments have no priority yet

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self._tree.num_bytes

    def add(self, experience: Any) -> None:
        super().add(experience)
        self._unopened = min(self._unopened + 1, self.length)

    def sample_batch(self, batch_size: int, length: int, progress: float = 0.0) -> Batch:
        """Returns segments drawn by their priorities, with weights and indices; see `Replay`.

        Raises:
            TaacError: fewer than `length` frames are stored; or (on a CPU) no segment has a frame to learn from.
        """
        items = self._draw_items(batch_size, self._starts(length))
        environment = torch.div(items, self.length, rounding_mode="floor")
        first = self.oldest + (items - environment * self.length - self.oldest) % self.length
        weights = self.importance_weights(items, progress)
        return self.at(environment, first, length)._replace(weights=weights, indices=items)

    def _draw_items(self, batch_size: int, starts: int) -> torch.Tensor:
        self._open(self.size - starts)
        if self.device.type == "cpu" and not self._tree.total > 0:  # on a GPU the check would wait for the device
            raise TaacError(
                f"none of the {self.num_envs * starts} stored segments has a frame to learn from: all that could be "
                "learnt from are LAST, or cut short by it; raise ReplayBuffer.length, or lower Trainer.segment_length"
            )
        uniform = torch.rand(batch_size, device=self.device, dtype=torch.float64)
        part = torch.arange(batch_size, device=self.device)
        return self._tree.find((part + uniform) / batch_size * self._tree.total)

    def _open(self, unfinished: int) -> None:
        """Sets the first priority of segments that are now complete. The `unfinished` newest frames start incomplete ones.

        Segments that the critics cannot learn from keep probability 0.
        """
        newness = torch.arange(max(self._unopened, unfinished), device=self.device)
        place = (self.next - 1 - newness) % self.length
        stop = max(self.burn_in + 1, unfinished)
        learnt_from = torch.arange(self.burn_in, stop, device=self.device).unsqueeze(1)  # frames up to T-2 of each segment
        read = ((place + learnt_from) % self.length).clamp_(max=self.reserved - 1)  # incomplete segments do not open
        step_type = self._storage.time_step.step_type[read]  # [T-1-burn_in, frames, B]
        acted = step_type[:1] != LAST if self._critics_need == "first" else step_type != LAST
        opens = (acted.all(0) if self._critics_need == "all" else acted.any(0)) & (newness >= unfinished).unsqueeze(1)
        mass = torch.where(opens, self._greatest**self.alpha, 0.0)
        environment = torch.arange(self.num_envs, device=self.device)
        self._tree.set((environment * self.length + place.unsqueeze(1)).flatten(), mass.flatten())
        self._unopened = unfinished

    def importance_weights(self, indices: torch.Tensor, progress: float) -> torch.Tensor:
        """Returns `w_i = (N P(i))^-beta / max_j w_j` (section 3.4), `[B']` float32.

        Args:
            indices: the segments of a batch, `[B']`; the maximum is over these.
            progress: the fraction of the run that is done, in [0, 1]. The exponent is `beta + progress * (1 - beta)`, or 0 if
                beta is 0.
        """
        beta = self.beta + min(1.0, progress) * (1.0 - self.beta) if self.beta else 0.0
        mass = self._tree.masses[indices]
        return (mass / mass.min()).pow(-beta).float()  # N and the sum of priorities cancel

    def update_priorities(self, batch: Batch, error: torch.Tensor | None) -> None:
        """Sets the priorities of a batch's segments from their errors `[B']`, >= 0.

        For a segment drawn twice, the greater error counts.
        An error that is not finite counts as the greatest priority so far.

        Raises:
            TaacError: the batch has no indices, or not one error for each.
        """
        if batch.indices is None:
            raise TaacError("the batch has no indices: draw it by sample_batch of the prioritised replay buffer")
        if error is None or error.shape != batch.indices.shape:
            raise TaacError(
                f"expected an error for each of the {len(batch.indices)} segments of the batch, got "
                f"{None if error is None else list(error.shape)}"
            )
        priority = error.detach().to(self.device, torch.float64) + self.epsilon
        priority = torch.where(priority.isfinite(), priority, self._greatest)
        self._greatest = torch.maximum(self._greatest, priority.max())
        self._tree.set(batch.indices, priority**self.alpha)

    def state_dict(self) -> dict[str, torch.Tensor]:
        masses = self._tree.masses.view(self.num_envs, self.length)[:, : self.size]
        return {
            **super().state_dict(),
            "priorities/masses": masses.t().clone(memory_format=torch.contiguous_format),  # [size, B], p^alpha
            "priorities/greatest": self._greatest.clone(),
            "priorities/unopened": torch.tensor(self._unopened),
        }

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        own = {name: value for name, value in state.items() if name.startswith("priorities/")}
        if len(own) != 3:
            raise TaacError("the saved replay buffer has no priorities, so its run had no prioritised replay")
        super().load_state_dict({name: value for name, value in state.items() if name not in own})
        masses = self._tree.masses.new_zeros(self.num_envs, self.length)
        masses[:, : self.size] = own["priorities/masses"].t()
        self._tree.set(torch.arange(self._tree.size, device=self.device), masses.flatten())
        self._greatest.copy_(own["priorities/greatest"])
        self._unopened = int(own["priorities/unopened"])
