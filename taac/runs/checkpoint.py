"""Checkpoints: everything a run needs to go on, in files that survive a kill at any moment and are safe to load.

A folder holds for each checkpoint, named by its environment steps,

    10000.json          the manifest: a line with format and checksum, then JSON: plain values, and each file's size and checksum
    10000.safetensors   its tensors, but for the replay buffer's frames
    frames-3-25000.safetensors   frames of part 3 of the buffer, as they were when 25000 had been added; see `FrameChunks`

The manifest comes last, when all that it names is on the disk: a checkpoint is there as a whole, or not. The one before
it is kept, and is used when the newest turns out to be damaged.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from taac.errors import TaacError
from taac.runs import files
from taac.runs.files import Damaged, warn_user
from taac.runs.frame_chunks import FrameChunks
from taac.runs.manifest import READABLE, FileEntry, make_manifest, read_entry, read_manifest

_OURS = re.compile(r"\d+\.(json|safetensors)|frames-\d+-\d+\.safetensors|\d+\.json\.damaged")


class Checkpoint(NamedTuple):
    """One that was read, and found as it was written."""

    path: Path  # of its manifest
    env_steps: int
    scheduled: bool  # False: written when the run was stopped between two scheduled ones
    state: dict[str, Any]
    frames: list[dict[str, Any]]  # for `FrameChunks.load`

    def part(self, name: str) -> Any:
        """A part of the state, such as "agent".

        Raises:
            TaacError: there is none of that name.
        """
        if name not in self.state:
            raise TaacError(
                f"the checkpoint {self.path} holds no '{name}'; it holds: {', '.join(map(str, self.state))}"
            )
        return self.state[name]

    @property
    def num_updates(self) -> int:
        """Gradient steps that had been taken when it was written."""
        counters = self.state.get("counters")  # in format 2
        return int(self.part("learner")["num_updates"] if counters is None else counters["updates"])


class Checkpoints:
    """The checkpoints of a run, in a folder that is made when the first is saved.

    Args:
        path: of the folder.
        keep: how many scheduled ones are kept.
        resumed: those that the run goes on from, if these are not; for messages.
    """

    def __init__(self, path: Path, keep: int = 2, resumed: Checkpoints | None = None):
        self.path, self.keep, self._resumed = path, keep, resumed or self
        self._kept: dict[int, tuple[bool, set[str]]] | None = (
            None  # env_steps -> (scheduled, files); None: not looked yet
        )

    def saved(self) -> list[int]:
        """Environment steps of those that are there, damaged or not; the newest first.

        Raises:
            NotPlain: the folder is a link, or no folder.
        """
        names = [p.stem for p in self.path.glob("*.json")] if files.check_folder(self.path) else []
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    # Writing ---------------------------------------------------------------------------------------------------------

    def save(
        self, env_steps: int, state: dict[str, Any], frames: FrameChunks | None = None, scheduled: bool = True
    ) -> None:
        """Writes a checkpoint; then forgets those that are not to be kept.

        Args:
            state: nested dicts, lists and tuples of tensors, numbers and strings.
            frames: the replay buffer, of which only what has changed is written.
            scheduled: False keeps the scheduled ones beside it, and takes the place of another that is not.

        Raises:
            TaacError: it could not be written, with the bytes that it needs; those before it are as they were.
        """
        tree, tensors = files.encode(state)
        data = files.pack(tensors)
        needed = len(data) + (frames.stale_bytes() if frames else 0)
        entry = FileEntry(f"{env_steps}.safetensors", len(data), files.digest(data))
        try:
            self._make_folder()
            held = frames.write_stale(self.path) if frames else []
            files.write(self.path / entry.name, data)
            content = {"env_steps": env_steps, "scheduled": scheduled, "state": tree}
            manifest = make_manifest({**content, "tensors": entry._asdict(), "frames": held})
            needed += len(manifest)
            files.write(self.path / f"{env_steps}.json", manifest)
        except OSError as error:
            raise files.refusal(error, self.path, needed, self.what_remains()) from error
        self._remember()[env_steps] = scheduled, {entry.name, *(frame["name"] for frame in held)}
        self._forget()

    def follow(self, frames: FrameChunks) -> None:
        """Writes the parts of the replay buffer that have become full, so that little is left to do at a checkpoint."""
        try:
            self._make_folder()
            frames.write_stale(self.path, but_current=True)
        except OSError as error:
            raise files.refusal(error, self.path, frames.stale_bytes(), self.what_remains()) from error
        self._sweep(frames.names())

    def _make_folder(self) -> None:
        if not files.check_folder(self.path):  # a link would let files elsewhere be written and swept away
            self.path.mkdir(parents=True, exist_ok=True)

    def what_remains(self) -> str:
        """For messages: what a write that failed has left whole."""
        saved = self._resumed.saved()
        before = f"the checkpoint at {saved[0]} environment steps is whole" if saved else "there is no checkpoint yet"
        return f"{before}. Make room and call the same command again"

    def _remember(self) -> dict[int, tuple[bool, set[str]]]:
        """What is on the disk, by its manifests."""
        if self._kept is None:
            self._kept = {}
            for steps in self.saved():
                with contextlib.suppress(Damaged, KeyError, TypeError, ValueError):
                    content = read_manifest(self.path / f"{steps}.json")
                    names = {content["tensors"]["name"], *(frame["name"] for frame in content["frames"])}
                    self._kept[steps] = content["scheduled"], names
        return self._kept

    def _forget(self) -> None:
        """Keeps the last scheduled ones and the last of all; while there is no scheduled one, as many of the others."""
        kept = self._remember()
        keep = sorted(steps for steps, (scheduled, _) in kept.items() if scheduled)[-self.keep :]
        keep = sorted({*keep, *sorted(kept)[-1 if keep else -self.keep :]})
        self.remove([s for s in self.saved() if s not in keep])

    def remove(self, unwanted: Sequence[int]) -> None:
        """Removes those at the given environment steps."""
        for steps in unwanted:
            with contextlib.suppress(OSError):
                (self.path / f"{steps}.json").unlink()
        self._kept = {steps: held for steps, held in self._remember().items() if steps not in unwanted}
        if self.path.is_dir():
            self._sweep(set())

    def _sweep(self, wanted: set[str]) -> None:
        """Removes files that no manifest names: of checkpoints that are forgotten, or were never finished."""
        for steps, (_, names) in self._remember().items():
            wanted = wanted | names | {f"{steps}.json"}
        for file in self.path.iterdir():
            if (_OURS.fullmatch(file.name) or files.is_temporary(file.name)) and file.name not in wanted:
                with contextlib.suppress(OSError):
                    file.unlink()

    # Reading ---------------------------------------------------------------------------------------------------------

    def readable(self) -> Iterator[Checkpoint]:
        """Those that are as they were written, the newest first; tells of each that is not.

        Raises:
            TaacError: there is none, or one of another format.
        """
        saved = self.saved()
        if not saved:
            old, formats = self.path.parent / "checkpoint.pt", " and ".join(map(str, READABLE))
            raise TaacError(
                f"{old} is a checkpoint of format 1; this version of taac reads formats {formats}: train again in another "
                "folder, or go on with the version that wrote it"
                if old.exists()
                else f"there is no checkpoint in {self.path}; train first, or give the folder of a run"
            )
        for steps in saved:
            path = self.path / f"{steps}.json"
            try:
                found = self._read(path)
            except Damaged as error:
                warn_user(f"the checkpoint {path} is damaged: {error}; looking for the one before it")
            else:
                yield found

    def newest(self) -> Checkpoint:
        """The newest that is as it was written; its frames have not been looked at.

        Raises:
            TaacError: there is none, or one of another format.
        """
        for found in self.readable():
            return found
        raise self.nothing_left()

    def refuse_earlier_version(self) -> None:
        """Refuses to go on from a checkpoint in which the running episodes had been ended.

        Raises:
            TaacError: the newest is such a one.
        """
        with contextlib.suppress(Damaged, KeyError, TypeError):
            for steps in self.saved()[:1]:
                if "num_checkpoints" in read_manifest(self.path / f"{steps}.json")["state"]["counters"]:
                    raise TaacError(
                        f"the checkpoints in {self.path} were written by an earlier version, in which checkpoints ended the "
                        "running episodes: this run can go on with that version only. taac play and create_experiment.load_from "
                        "still read it"
                    )

    def nothing_left(self) -> TaacError:
        return TaacError(
            f"no checkpoint in {self.path} is whole; remove that folder to begin the run again, or give another --root_dir"
        )

    def set_aside(self, newer_than: int) -> None:
        """Takes checkpoints that are newer, which were found damaged, out of the row, so that none is mistaken for good."""
        for steps in self.saved():
            if steps > newer_than:
                path = self.path / f"{steps}.json"
                path.replace(path.with_name(path.name + ".damaged"))
        self._kept = None

    def _read(self, path: Path) -> Checkpoint:
        content = read_manifest(path)
        try:
            entry = FileEntry(**content["tensors"])
            frames, env_steps, scheduled = (
                list(content["frames"]),
                int(content["env_steps"]),
                bool(content["scheduled"]),
            )
            data = read_entry(self.path, entry)
            state = files.decode(content["state"], files.unpack(data, path))
        except TaacError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Damaged(f"{path} is no manifest: {error!r}") from error
        if not isinstance(state, dict) or env_steps != int(path.stem):
            raise Damaged(f"{path} is no manifest of a checkpoint at {path.stem} environment steps")
        return Checkpoint(path, env_steps, scheduled, state, frames)


def load_into(module: torch.nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """Loads a module's parameters.

    Raises:
        TaacError: the module has other parameters, or of other shapes; names each.
    """
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise TaacError(f"the checkpoint {path} is of another network: {error}") from error
