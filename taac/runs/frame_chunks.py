"""Saves a replay buffer in parts. Only changed parts are written, most of them before a checkpoint is due."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taac.errors import TaacError
from taac.replay import ReplayBuffer
from taac.runs import tensor_files
from taac.runs.files import Damaged
from taac.runs.tensor_files import read_entry, write_entry

CHUNK_BYTES = 4 << 20  # small enough for a slow disk, large enough to keep the number of files low


class FrameChunks:
    """Tracks which parts of a replay buffer are already on the disk.

    The ring of `length` frames is divided into parts of equal size. A file holds one part as of a certain number of added
    frames and is never modified. A part that has changed is written to a new file.
    """

    def __init__(self, buffer: ReplayBuffer):
        self._buffer = buffer
        self._step = max(1, CHUNK_BYTES // buffer.frame_bytes)  # frames per part
        self._entries: dict[int, dict[str, Any]] = {}  # manifest entry of each part's file
        self._current = 0

    def moved_on(self) -> bool:
        """Returns whether the buffer has begun another part since the last call, so that the previous part is full."""
        before, self._current = self._current, self._buffer.next // self._step
        return self._current != before

    def stale_bytes(self) -> int:
        """Estimates the bytes that `write_stale` will write."""
        frames = sum(stop - start for start, stop in map(self._slots, self._stale()))
        return frames * self._buffer.frame_bytes

    def write_stale(self, folder: Path, but_current: bool = False) -> list[dict[str, Any]]:
        """Writes the parts that have changed since they were written; with `but_current`, except the one that is being filled.

        Returns the manifest entries of all parts.
        """
        for part in self._stale():
            if but_current and part == self._buffer.next // self._step:
                continue
            start, stop = self._slots(part)
            added = number = self._buffer.added
            while (path := folder / f"frames-{part}-{number}.safetensors").exists():  # of a buffer that was forgotten
                number += 1
            entry = write_entry(path, tensor_files.pack(self._buffer.frames(start, stop)))
            self._entries[part] = {**entry, "start": start, "stop": stop, "added": added}
        return [self._entries[part] for part in sorted(self._entries)]

    def names(self) -> set[str]:
        """Returns the names of the latest file of each part."""
        return {entry["name"] for entry in self._entries.values()}

    def load(self, folder: Path, entries: list[dict[str, Any]]) -> None:
        """Reads frames back into the buffer, whose `load_state_dict` has already restored its size.

        Raises Damaged if a file is not as the manifest says, or parts are missing; TaacError if frames have another shape.
        """
        end, size = 0, self._buffer.size
        for entry in entries:
            try:
                start, stop, added = places = entry["start"], entry["stop"], entry["added"]
                whole = all(type(place) is int for place in places) and end == start < stop <= size and added >= 0
            except (KeyError, TypeError) as error:
                raise Damaged(f"a manifest in {folder} does not describe a part of a replay buffer: {error!r}") from error
            if not whole:
                raise Damaged(f"a manifest in {folder}: frames {start} to {stop} do not follow on {end}, of {size}")
            tensors = read_entry(folder, entry)
            held = self._buffer.frames(start, stop)
            given = {name: (t.dtype, list(t.shape)) for name, t in tensors.items()}
            expected = {name: (t.dtype, list(t.shape)) for name, t in held.items()}
            if given != expected:
                raise TaacError(f"{folder / entry['name']} holds frames of another shape: {given}, expected {expected}")
            for name, tensor in tensors.items():
                held[name].copy_(tensor)
            end = stop
        if end != size:
            raise Damaged(f"a manifest in {folder} names files of {end} frames, expected {size}")
        # Another version may have divided the buffer differently; its parts are then written again.
        parts = {entry["start"] // self._step: entry for entry in entries}
        self._entries = {part: e for part, e in parts.items() if (e["start"], e["stop"]) == self._slots(part)}
        self._current = self._buffer.next // self._step

    def _slots(self, part: int) -> tuple[int, int]:
        """Returns the part's range of held frames, as positions in the ring."""
        return part * self._step, min((part + 1) * self._step, self._buffer.size)

    def _stale(self) -> list[int]:
        parts = range(-(-self._buffer.size // self._step))
        return [p for p in parts if p not in self._entries or self._last_change(p) > self._entries[p]["added"]]

    def _last_change(self, part: int) -> int:
        """Returns how many frames had been added when this part last changed."""
        lap, newest = divmod(self._buffer.added - 1, self._buffer.length)  # position of the newest frame
        start, stop = self._slots(part)
        if start <= newest < stop:
            return self._buffer.added
        return (lap if stop <= newest else lap - 1) * self._buffer.length + stop
