"""A ring buffer of frames, in tensors `[length, B, ...]`, from which segments `[T, B', ...]` are sampled."""

from __future__ import annotations

import gin
import torch

from taac import nest
from taac.data_structures import Experience, Nest
from taac.errors import TaacError
from taac.replay.memory import available_bytes, readable_bytes


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
        self._next = 0  # where the next frame is written
        self._size = 0

    @property
    def size(self) -> int:
        """Frames held for each environment."""
        return self._size

    def add(self, experience: Experience) -> None:
        """Writes one frame of every environment, leaves `[B, ...]`, over the oldest."""
        nest.map_structure(self._write, self._storage, experience)
        self._next = (self._next + 1) % self.length
        self._size = min(self._size + 1, self.length)

    def _write(self, storage: torch.Tensor, leaf: torch.Tensor) -> None:
        if leaf.shape != storage.shape[1:]:
            raise TaacError(f"a frame of shape {list(leaf.shape)} does not fit the buffer's {list(storage.shape[1:])}")
        storage[self._next] = leaf

    def sample(self, batch_size: int, length: int) -> Experience:
        """`batch_size` segments of `length` frames, leaves `[length, batch_size, ...]`.

        Every environment gives equally many; what does not divide goes to environments drawn at random.

        Raises:
            TaacError: fewer than `length` frames are held.
        """
        starts = self._size - length + 1
        if starts < 1:
            raise TaacError(
                f"cannot sample segments of {length} frames from a buffer that holds {self._size} an environment; "
                "raise Trainer.initial_collect_steps or ReplayBuffer.length"
            )
        row = torch.arange(batch_size, device=self.device)
        environment = torch.randperm(self.num_envs, device=self.device)[row % self.num_envs]
        stratum = torch.div(row, self.num_envs, rounding_mode="floor")
        strata = torch.div(batch_size - 1 - row % self.num_envs, self.num_envs, rounding_mode="floor") + 1
        uniform = torch.rand(batch_size, device=self.device, dtype=torch.float64)
        start = ((stratum + uniform) / strata * starts).long().clamp(max=starts - 1)
        age = start + torch.arange(length, device=self.device).unsqueeze(1)  # [T, B'], from the oldest frame on
        index = (self._next - self._size + age) % self.length * self.num_envs + environment
        flat = index.reshape(-1)
        leaves = [s.flatten(0, 1).index_select(0, flat).unflatten(0, (length, batch_size)) for s in self._leaves]
        return nest.pack_like(self._storage, leaves)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The frames held, as tensors by path, and where the ring stands."""
        frames = {f"frames/{path}": leaf[: self._size].clone() for path, leaf in nest.flatten_with_path(self._storage)}
        return {**frames, "position": torch.tensor([self._next, self._size, self.length])}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Takes up what `state_dict` gave.

        Raises:
            TaacError: it is of a buffer of another length, number of environments or kind of frames; nothing is changed.
        """
        position, size, length = (int(x) for x in state["position"])
        held = {f"frames/{path}": leaf for path, leaf in nest.flatten_with_path(self._storage)}
        shapes = {name: list(leaf[:size].shape) for name, leaf in held.items()}
        given = {name: list(leaf.shape) for name, leaf in state.items() if name != "position"}
        if length != self.length or given != shapes:
            raise TaacError(
                f"the saved replay buffer is of another shape: length {length} and frames {given}, "
                f"expected length {self.length} and {shapes}"
            )
        self._next, self._size = position, size
        for name, leaf in held.items():
            leaf[:size] = state[name]


def required_bytes(experience_spec: Nest, num_envs: int, length: int) -> int:
    """Bytes of a buffer, before there is one."""
    return length * num_envs * sum(spec.num_bytes for spec in nest.flatten(experience_spec))
