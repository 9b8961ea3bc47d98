"""A ring buffer of frames, in tensors `[length, B, ...]`, from which segments `[T, B', ...]` are sampled."""

from __future__ import annotations

import gin
import numpy as np
import torch

from taac import nest
from taac.data_structures import FIRST, Experience, Nest
from taac.errors import TaacError
from taac.machine.memory import available_bytes, readable_bytes


@gin.configurable
class ReplayBuffer:
    """Keeps the last `length` frames of each environment.

    A segment is any T consecutive frames of one environment, those across LAST and FIRST included; it never crosses the
    write pointer. Sampling is uniform over segments, stratified over their age within each environment: of n segments
    from one environment, one starts in each n-th part of its frames.

    Args:
        experience_spec: nest of specs of one frame of one environment.
        num_envs: B, environments that write.
        length: frames kept for each environment.
        device: where the frames are kept.

    Raises:
        TaacError: the frames cannot fit in the device's free memory.
    """

    def __init__(self, experience_spec: Nest, num_envs: int, length: int = 100_000, device: torch.device | str = "cpu"):
        if length < 2:
            raise TaacError(f"ReplayBuffer.length must be 2 or more frames, got {length}")
        self.num_envs, self.length, self.device = num_envs, length, torch.device(device)
        self.num_bytes = required_bytes(experience_spec, num_envs, length)
        free = available_bytes(self.device)
        if self.num_bytes > free:
            raise TaacError(
                f"the replay buffer needs {readable_bytes(self.num_bytes)} "
                f"({length} frames x {num_envs} environments x "
                f"{readable_bytes(self.num_bytes / length / num_envs)} a frame), but {readable_bytes(free)} is free on "
                f"{self.device}; lower ReplayBuffer.length"
                + (", or bind create_experiment.replay_device = 'cpu'" if self.device.type == "cuda" else "")
            )
        self._storage = nest.map_structure(lambda s: s.zeros(length, num_envs, device=self.device), experience_spec)
        self._leaves: list[torch.Tensor] = nest.flatten(self._storage)
        # The same memory as numpy sees it, which writes a frame in a quarter of the time; none on a GPU.
        self._rows = [leaf.numpy() for leaf in self._leaves] if self.device.type == "cpu" else []
        self._strata: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None  # of the batch size sampled last
        self._next = 0  # where the next frame is written
        self._size = 0
        self._added = 0

    @property
    def size(self) -> int:
        """Frames held for each environment."""
        return self._size

    @property
    def added(self) -> int:
        """Frames ever added for each environment."""
        return self._added

    @property
    def next(self) -> int:
        """Where in the ring the next frame is written."""
        return self._next

    def add(self, experience: Experience) -> None:
        """Writes one frame of every environment, leaves `[B, ...]`, over the oldest."""
        for number, (storage, leaf) in enumerate(zip(self._leaves, nest.flatten_like(self._storage, experience))):
            if leaf.shape != storage.shape[1:]:
                raise TaacError(
                    f"a frame of shape {list(leaf.shape)} does not fit the buffer's {list(storage.shape[1:])}"
                )
            if self._rows:
                self._rows[number][self._next] = leaf.cpu().numpy()
            else:
                storage[self._next] = leaf
        self._next = (self._next + 1) % self.length
        self._size = min(self._size + 1, self.length)
        self._added += 1

    def sample(self, batch_size: int, length: int) -> Experience:
        """`batch_size` segments of `length` frames, leaves `[length, batch_size, ...]`.

        Every environment gives equally many; what does not divide goes to environments drawn at random.

        Raises:
            TaacError: fewer than `length` frames are held.
        """
        starts = self._starts(length)
        return self._segments(*self._draw(batch_size, starts), length)

    def sample_aside(self, batch_size: int, length: int) -> Experience:
        """As `sample`, uniformly whatever the buffer goes by, and without becoming the batch that was sampled last."""
        starts = self._starts(length)
        return self._segments(*ReplayBuffer._draw(self, batch_size, starts), length)

    def newest_episode(self, environment: int) -> Experience | None:
        """The frames of the episode that an environment is in, from its FIRST to the newest, leaves `[T, 1, ...]`.

        None if its FIRST is not held.
        """
        newest_first = (self._next - 1 - torch.arange(self._size, device=self.device)) % self.length
        firsts = (self._storage.time_step.step_type[newest_first, environment] == FIRST).nonzero()
        if not len(firsts):
            return None
        length = int(firsts[0]) + 1
        return self._segments(torch.tensor([environment]), torch.tensor([self._size - length]), length)

    def _starts(self, length: int) -> int:
        """How many frames of each environment a segment can begin at."""
        starts = self._size - length + 1
        if starts < 1:
            raise TaacError(
                f"cannot sample segments of {length} frames from a buffer that holds {self._size} an environment; "
                "raise Trainer.initial_collect_steps or ReplayBuffer.length"
            )
        return starts

    def _segments(self, environment: torch.Tensor, start: torch.Tensor, length: int) -> Experience:
        gather = self._gather_numpy if self._rows else self._gather
        return nest.pack_like(self._storage, gather(environment, start, length))

    def _gather(self, environment: torch.Tensor, start: torch.Tensor, length: int) -> list[torch.Tensor]:
        """The segments of `_draw`, leaves `[T, B', ...]`."""
        place = start + torch.arange(length, device=self.device).unsqueeze(1)  # [T, B'], from the oldest frame on
        index = ((self._next - self._size + place) % self.length * self.num_envs + environment).view(-1)
        taken = [leaf.flatten(0, 1).index_select(0, index) for leaf in self._leaves]
        return [leaf.view(length, len(start), *leaf.shape[1:]) for leaf in taken]

    def _gather_numpy(self, environment: torch.Tensor, start: torch.Tensor, length: int) -> list[torch.Tensor]:
        """`_gather` by numpy on `_rows`, in half the time."""
        place = start.numpy() + np.arange(length)[:, None]
        index = (self._next - self._size + place) % self.length * self.num_envs + environment.numpy()
        return [torch.from_numpy(rows.reshape(-1, *rows.shape[2:]).take(index, axis=0)) for rows in self._rows]

    def _draw(self, batch_size: int, starts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Environments and first frames `[B']` of segments; a frame from 0, the oldest, to `starts - 1`."""
        if self._strata is None or len(self._strata[0]) != batch_size:
            self._strata = self._stratify(batch_size)
        turn, stratum, strata = self._strata
        environment = turn if self.num_envs == 1 else torch.randperm(self.num_envs, device=self.device)[turn]
        uniform = torch.rand(batch_size, device=self.device, dtype=torch.float64)
        return environment, uniform.add_(stratum).div_(strata).mul_(starts).long().clamp_(max=starts - 1)

    def _stratify(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of each segment of a batch `[B']`: whose turn it is, its stratum there, and of how many."""
        row = torch.arange(batch_size, device=self.device)
        turn, stratum = row % self.num_envs, torch.div(row, self.num_envs, rounding_mode="floor")
        return turn, stratum, torch.div(batch_size - 1 - turn, self.num_envs, rounding_mode="floor") + 1

    def importance_weights(self, progress: float) -> torch.Tensor | None:
        """Weights `[B']` of the segments sampled last, `progress` of the run being over; None: all count alike."""
        return None

    def update_priorities(self, error: torch.Tensor | None) -> None:
        """Is told the errors `[B']` of the segments sampled last, when they have been learnt from."""

    def frames(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """The frames at `start` to `stop` in the ring, by path, `[stop - start, B, ...]`: the buffer's own memory, no copy."""
        return {f"frames/{path}": leaf[start:stop] for path, leaf in nest.flatten_with_path(self._storage)}

    def state_dict(self, frames: bool = True) -> dict[str, torch.Tensor]:
        """The frames held, as tensors by path, and where the ring stands.

        Args:
            frames: without them, whoever saves takes care of them by way of `frames`; they can be more than there is memory.
        """
        held = {name: leaf.clone() for name, leaf in self.frames(0, self._size).items()} if frames else {}
        return {**held, "position": torch.tensor([self._next, self._size, self.length, self._added])}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Takes up what `state_dict` gave; without frames in it, those in the ring are taken to be the right ones.

        Raises:
            TaacError: it is of a buffer of another length, number of environments or kind of frames; nothing is changed.
        """
        position, size, length, added = (int(x) for x in state["position"])
        given = {name: list(leaf.shape) for name, leaf in state.items() if name.startswith("frames/")}
        if length != self.length or size != min(added, length) or position != added % length:
            raise TaacError(
                f"the saved replay buffer is of another shape: length {length}, of which {size} are held after {added} "
                f"were added, the next at {position}; expected length {self.length}"
            )
        held = self.frames(0, size)
        shapes = {name: list(leaf.shape) for name, leaf in held.items()}
        if given and given != shapes:
            raise TaacError(f"the saved replay buffer is of another shape: frames {given}, expected {shapes}")
        self._next, self._size, self._added = position, size, added
        for name in given:
            held[name].copy_(state[name])


def required_bytes(experience_spec: Nest, num_envs: int, length: int) -> int:
    """Bytes of a buffer, before there is one."""
    return length * num_envs * sum(spec.num_bytes for spec in nest.flatten(experience_spec))
