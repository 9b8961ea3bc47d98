"""A ring buffer of frames in tensors `[length, B, ...]`, from which segments `[T, B', ...]` are sampled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import gin
import numpy as np
import torch

from taac import nest
from taac.data_structures import FIRST, LAST, Experience, Nest
from taac.errors import TaacError, refuse_below
from taac.machine.memory import available_bytes, readable_bytes
from taac.replay.episode_index import EpisodeIndex
from taac.specs import TensorSpec, is_picture

REDRAWS = 4  # of segments without a frame to learn from; once on a GPU, where each costs six operations, needed or not


class Batch(NamedTuple):
    """Segments to learn from, how much each counts, and where the replay keeps them and their priorities."""

    experience: Experience  # leaves [T, B', ...]
    weights: torch.Tensor | None  # [B'], importance weights; None: all segments count alike
    indices: torch.Tensor | None  # [n], where the last n segments have their priorities; None: none has any
    environment: torch.Tensor | None = None  # [B'], the environment of each segment; None: unknown
    first: torch.Tensor | None = None  # [B'], its first frame, counted from the first that was ever added


class Replay(Protocol):
    """What a learner draws from."""

    def sample(self, batch_size: int, length: int) -> Experience:
        """Returns `batch_size` segments of the agent's own frames, leaves `[length, batch_size, ...]`, drawn uniformly."""

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


@gin.configurable(denylist=["device", "burn_in", "learns_on_last_frame", "frame_stack"])
class ReplayBuffer:
    """Stores the last `length` frames of each environment. Takes memory for as many as `reserve` is told, and more as they come.

    A segment is any T consecutive frames of one environment. It may cross from LAST to FIRST, but never the write pointer.
    Sampling is uniform over segments and stratified by age: if a batch has n segments from one environment, one starts in
    each n-th part of its frames. Where a segment has only one frame to learn from (of two frames after `burn_in`, without
    `learns_on_last_frame`) and that frame is LAST, where no action was taken, another segment is drawn, so that a batch holds
    `batch_size` transitions.

    Args:
        experience_spec: nest of specs of one frame of one environment.
        num_envs: B, the number of environments that write.
        length: number of frames stored for each environment, 2 or more.
        device: the device that stores the frames.
        burn_in: first frames of a segment that the algorithm does not learn from.
        learns_on_last_frame: whether it learns from the last one.
        frame_stack: k: pictures of observations, uint8 `[H, W, k C]`, are stacks whose newest frame alone is stored, `[H, W, C]`.
            They are stacked anew when they are read, from frames of the same episode, whose first one is repeated. No segment
            begins with a stack that needs frames which are not stored (with priorities, or fewer than k - 1 segments to spare, it
            repeats the oldest one).

    Attributes:
        added: number of frames ever added for each environment.
        frame_bytes: size of a frame of all environments.

    Raises:
        TaacError: `length` is below 2.
    """

    min_batch_size = 1  # segments that a batch has at least
    smaller = "lower ReplayBuffer.length"  # what to do where it does not fit

    def __init__(
        self,
        experience_spec: Nest,
        num_envs: int,
        length: int = 100_000,
        device: torch.device | str = "cpu",
        burn_in: int = 0,
        learns_on_last_frame: bool = True,
        frame_stack: int = 1,
    ):
        refuse_below(2, "ReplayBuffer", length=length)
        self._stack, self._spec = frame_stack, experience_spec
        experience_spec = stored_spec(experience_spec, frame_stack)
        shapes = (spec.shape for spec in nest.flatten(experience_spec))
        self._stacked = [given.shape != stored for given, stored in zip(nest.flatten(self._spec), shapes)]
        self.num_envs, self.length, self.device = num_envs, length, torch.device(device)
        self.burn_in, self.learns_on_last_frame = burn_in, learns_on_last_frame
        self.frame_bytes = num_envs * sum(spec.num_bytes for spec in nest.flatten(experience_spec))
        self._hold(nest.map_structure(lambda s: s.zeros(0, num_envs, device=self.device), experience_spec))
        self._strata: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None  # for the last batch size
        self._episodes: EpisodeIndex | None = None  # until somebody asks
        self._begins_inside: bool | None = None  # an episode, with the first frame; until somebody asks
        self.added = 0

    def _hold(self, storage: Nest) -> None:
        self._storage = storage
        self._leaves: list[torch.Tensor] = nest.flatten(storage)
        # The same memory as numpy arrays, which write a frame in a quarter of the time; empty on a GPU.
        self._rows: list[Any] = [leaf.numpy() for leaf in self._leaves] if self.device.type == "cpu" else []
        self._kinds: list[Any] = [(leaf.shape[1:], leaf.dtype) for leaf in self._rows or self._leaves]

    def reserve(self, frames: int) -> None:
        """Takes memory for so many frames of each environment, at most `length`, if it does not have it.

        Raises:
            TaacError: they do not fit in the device's free memory.
        """
        held, frames = self.reserved, min(frames, self.length)
        if frames <= held:
            return
        needed, free = frames * self.frame_bytes, available_bytes(self.device)
        old = held * self.frame_bytes  # held until all is copied; on a CPU, memory is taken where something is written
        if (needed if self.device.type == "cuda" else max(old, needed - old)) > free:
            raise TaacError(
                f"the replay buffer needs {readable_bytes(needed)} ({frames} frames x {self.num_envs} environments x "
                f"{readable_bytes(self.frame_bytes / self.num_envs)} a frame), but {readable_bytes(free)} is free on "
                f"{self.device}; {self.smaller}"
                + (", or bind create_experiment.replay_device = 'cpu'" if self.device.type == "cuda" else "")
            )

        def longer(leaf: torch.Tensor) -> torch.Tensor:
            new = leaf.new_zeros(frames, *leaf.shape[1:])
            new[:held] = leaf
            return new

        self._hold(nest.map_structure(longer, self._storage))

    @property
    def reserved(self) -> int:
        """Number of frames of each environment that memory is taken for."""
        return len(self._leaves[0])

    @property
    def num_bytes(self) -> int:
        """Bytes of memory taken."""
        return self.reserved * self.frame_bytes

    @property
    def size(self) -> int:
        """Number of frames stored for each environment."""
        return min(self.added, self.length)

    @property
    def next(self) -> int:
        """Position in the ring at which the next frame is written."""
        return self.added % self.length

    @property
    def oldest(self) -> int:
        """The oldest stored frame, counted from the first that was ever added."""
        return self.added - self.size

    def add(self, experience: Experience) -> None:
        """Writes one frame of every environment, leaves `[B, ...]`, over the oldest.

        Args:
            experience: tensors, or numpy arrays if the buffer is on the CPU.

        Raises:
            TaacError: a leaf has another shape than the buffer's, or numbers that it would cut, such as floats for integers; or
            memory is full.
        """
        place, leaves = self.next, nest.flatten_like(self._storage, experience)
        if place >= self.reserved:
            self.reserve(max(1000, place * 5 // 4))
        if self._rows:
            leaves = [nest.array(leaf) for leaf in leaves]
        if self._stack > 1:
            leaves = [x[..., -kind[0][-1] :] if s else x for x, s, kind in zip(leaves, self._stacked, self._kinds)]
        for (shape, dtype), leaf, storage in zip(self._kinds, leaves, self._leaves):
            if leaf.shape != shape:
                raise TaacError(f"a frame of shape {list(leaf.shape)} does not fit the buffer's {list(shape)}")
            if leaf.dtype != dtype and not torch.can_cast(given := torch.as_tensor(leaf).dtype, storage.dtype):
                raise TaacError(
                    f"a frame has {given} where the buffer holds {storage.dtype}, which would cut its numbers: random_step and "
                    "rollout_step must return an info of the same dtypes"
                )
        for storage, leaf in zip(self._rows or self._leaves, leaves):
            storage[place] = leaf
        self.added += 1

    def sample(self, batch_size: int, length: int) -> Experience:
        """Returns `batch_size` segments of `length` frames, leaves `[length, batch_size, ...]`, drawn uniformly.

        Every environment contributes equally many. A remainder comes from environments drawn at random. Where segments have
        one frame to learn from, it is rarely LAST: of episodes with 10 steps in 1e-5 of the segments, on a GPU in 1e-2.

        Raises:
            TaacError: fewer than `length` frames are stored.
        """
        return self.at(*self.positions(batch_size, length), length).experience

    def sample_batch(self, batch_size: int, length: int, progress: float = 0.0) -> Batch:
        """Returns `sample` as a batch without weights; see `Replay`."""
        return self.at(*self.positions(batch_size, length), length)

    def positions(self, batch_size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws segments for `sample`: their environments and first frames `[B']`, counted as in `episode_bounds`."""
        skipped = self._stack - 1 if self._lacks_older() else 0  # stacks that begin there have lost frames
        skipped = max(0, min(skipped, self.size - length))
        starts = self._starts(length + skipped)
        environment, first = self._draw(batch_size, starts)
        first += self.oldest + skipped
        if length == self.burn_in + 2 and not self.learns_on_last_frame:
            first = self._where_actions_are(environment, first, starts, self.oldest + skipped)
        return environment, first

    def _lacks_older(self) -> bool:
        """Returns whether the oldest stored frames belong to episodes that began before them."""
        if self._stack == 1 or not self.added:
            return False
        if self.added > self.length:
            return True
        if self._begins_inside is None:  # asked once, because on a GPU it waits for the device
            self._begins_inside = bool((self._storage.time_step.step_type[0] != FIRST).any())
        return self._begins_inside

    def at(self, environment: torch.Tensor, first: torch.Tensor, length: int) -> Batch:
        """Returns the segments of `positions`, as a batch without weights."""
        return Batch(self._segments(environment, first, length), None, None, environment, first)

    def update_priorities(self, batch: Batch, error: torch.Tensor | None) -> None:
        """Does nothing: all segments are equally likely."""

    def newest_episode(self, environment: int) -> Experience | None:
        """Returns the frames of an environment's current episode, from FIRST to the newest, leaves `[T, 1, ...]`.

        None if its FIRST is no longer stored.
        """
        at = torch.tensor([environment, self.added - 1], device=self.device)
        first, _ = self.episode_bounds(at[:1], at[1:])
        if self._storage.time_step.step_type[first % self.length, environment] != FIRST:
            return None
        return self._segments(at[:1], first, self.added - int(first))

    def episode_bounds(self, environment: torch.Tensor, frame: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the first and last stored frames `[B']` of the episodes that have these stored frames, such as `Batch.first`.

        A running episode's last frame is its newest. Frames are counted from the first that was ever added.
        """
        if self._episodes is None:
            self._episodes = EpisodeIndex(self.num_envs, self.length, self.device)
        self._episodes.update(self._storage.time_step.step_type, self.added)
        first, last = self._episodes.bounds(environment, frame)
        return first.clamp_(min=self.oldest), last

    def read(
        self, environment: torch.Tensor, frame: torch.Tensor, part: Callable[[Experience], Nest] = lambda frames: frames
    ) -> Nest:
        """Returns a part of stored frames of the environments `[B']`, leaves `[B', ...]`; of stacks, the newest picture."""
        return nest.map_structure(lambda leaf: leaf[frame % self.length, environment], part(self._storage))

    def _starts(self, length: int) -> int:
        """Returns the number of frames of each environment at which a segment can start."""
        starts = self.size - length + 1
        if starts < 1:
            raise TaacError(
                f"cannot sample segments of {length} frames from a buffer that holds {self.size} for each environment; "
                "raise UpdateRatio.initial_collect_steps or ReplayBuffer.length"
            )
        return starts

    def _segments(self, environment: torch.Tensor, first: torch.Tensor, length: int) -> Experience:
        gather = self._gather_numpy if self._rows else self._gather
        leaves = gather(environment, first, length)
        if self._stack > 1:
            single, stacks = iter(leaves), iter(self._stacks(environment, first, length))
            leaves = [next(stacks if stacked else single) for stacked in self._stacked]
        return nest.pack_like(self._storage, leaves)

    def _stacks(self, environment: torch.Tensor, first: torch.Tensor, length: int) -> list[torch.Tensor]:
        """Reads the stacks of segments, `[T, B', H, W, k C]` each."""
        frame = first + torch.arange(length, device=self.device).unsqueeze(1)  # [T, B']
        env = environment.expand_as(frame)
        begin, _ = self.episode_bounds(env.flatten(), frame.flatten())
        back = torch.arange(self._stack - 1, -1, -1, device=self.device)  # frames back, the oldest first
        place = torch.maximum(frame.unsqueeze(-1) - back, begin.view(*frame.shape, 1)) % self.length  # [T, B', k]
        pictures = (leaf for leaf, stacked in zip(self._leaves, self._stacked) if stacked)
        return [leaf[place, env.unsqueeze(-1)].movedim(2, -2).flatten(-2) for leaf in pictures]

    def _gather(self, environment: torch.Tensor, first: torch.Tensor, length: int) -> list[torch.Tensor]:
        """Reads segments, leaves `[T, B', ...]`, without stacks."""
        frame = first + torch.arange(length, device=self.device).unsqueeze(1)  # [T, B']
        index = (frame % self.length * self.num_envs + environment).view(-1)
        single = (leaf for leaf, stacked in zip(self._leaves, self._stacked) if not stacked)
        rows = [leaf.flatten(0, 1).index_select(0, index) for leaf in single]
        return [leaf.view(length, len(first), *leaf.shape[1:]) for leaf in rows]

    def _gather_numpy(self, environment: torch.Tensor, first: torch.Tensor, length: int) -> list[torch.Tensor]:
        """Does `_gather` with numpy on `_rows`, in half the time."""
        frame = first.numpy() + np.arange(length)[:, None]
        index = frame % self.length * self.num_envs + environment.numpy()
        single = (rows for rows, stacked in zip(self._rows, self._stacked) if not stacked)
        return [torch.from_numpy(rows.reshape(-1, *rows.shape[2:]).take(index, axis=0)) for rows in single]

    def _draw(self, batch_size: int, starts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws environments `[B']`, and numbers `[B']` in [0, `starts` - 1]."""
        if self._strata is None or len(self._strata[0]) != batch_size:
            self._strata = self._stratify(batch_size)
        turn, stratum, strata = self._strata
        environment = turn if self.num_envs == 1 else torch.randperm(self.num_envs, device=self.device)[turn]
        uniform = torch.rand(batch_size, device=self.device, dtype=torch.float64)
        return environment, uniform.add_(stratum).div_(strata).mul_(starts).long().clamp_(max=starts - 1)

    def _where_actions_are(self, environment: torch.Tensor, first: torch.Tensor, starts: int, least: int) -> torch.Tensor:
        """Draws first frames `[B']` again, from `least` on, whose segment learns from nothing but LAST."""
        step_type, on_cpu = self._storage.time_step.step_type, self.device.type == "cpu"
        for _ in range(REDRAWS if on_cpu else 1):
            idle = step_type[(first + self.burn_in) % self.length, environment] == LAST
            if on_cpu and not idle.any():  # on a GPU the check would wait for the device
                break
            first = torch.where(idle, least + torch.randint(starts, first.shape, device=self.device), first)
        return first

    def _stratify(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns, for each segment of a batch `[B']`, its environment's index, its stratum, and the number of strata there."""
        row = torch.arange(batch_size, device=self.device)
        turn, stratum = row % self.num_envs, torch.div(row, self.num_envs, rounding_mode="floor")
        return turn, stratum, torch.div(batch_size - 1 - turn, self.num_envs, rounding_mode="floor") + 1

    def stored(self) -> Experience:
        """Returns all frames, leaves `[size, B, ...]` in the order of the ring, as views of its memory."""
        return nest.map_structure(lambda leaf: leaf[: self.size], self._storage)

    def frames(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Returns the frames from `start` to `stop` in the ring, by path, `[stop - start, B, ...]`, as views of the buffer."""
        return {f"frames/{path}": leaf[start:stop] for path, leaf in nest.flatten_with_path(self._storage)}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns the position in the ring. A copy of all frames may not fit in memory: savers read parts of them by `frames`."""
        return {"position": torch.tensor([self.next, self.size, self.length, self.added])}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restores `state_dict()`. The frames are then copied into what `frames` returns, by whoever saved them.

        Raises:
            TaacError: the state is from a buffer with another length. Nothing is changed then.
        """
        position, size, length, added = (int(x) for x in state["position"])
        if length != self.length or added < 0 or size != min(added, length) or position != added % length:
            raise TaacError(
                f"the saved replay buffer has another shape: length {length}, with {size} frames stored after {added} "
                f"were added, and position {position}; expected length {self.length}"
            )
        self.reserve(size)
        self._begins_inside = None
        self.added, self._episodes = added, None


def stored_spec(experience_spec: Nest, frame_stack: int) -> Nest:
    """Returns the spec of what is stored of a frame: of stacks of pictures, the newest one."""
    if frame_stack == 1:
        return experience_spec

    def newest(spec: TensorSpec) -> TensorSpec:
        if not is_picture(spec):
            return spec
        return TensorSpec((*spec.shape[:2], spec.shape[2] // frame_stack), spec.dtype)

    step = experience_spec.time_step
    return experience_spec._replace(time_step=step._replace(observation=nest.map_structure(newest, step.observation)))
