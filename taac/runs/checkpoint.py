"""Checkpoints: everything that a run needs to resume, in files that survive a kill at any moment and are safe to load.

For each checkpoint, named by its environment steps, a folder holds

    10000.json          the manifest: a line with format and checksum, then JSON: plain values, and each file's size and checksum
    10000.safetensors   its tensors, except the replay buffer's frames; 10000-again.safetensors if a checkpoint is replaced
    frames-3-25000.safetensors   frames of part 3 of the buffer, as of 25000 added frames; see `FrameChunks`

The manifest is written last, when all files that it names are on the disk. So a checkpoint exists as a whole or not at all.
Older checkpoints are kept as well, and the newest undamaged one is used.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from taac.errors import TaacError
from taac.runs import durable, files, tensor_files
from taac.runs.files import Damaged
from taac.runs.frame_chunks import FrameChunks
from taac.runs.tensor_files import make_manifest, read_entry, read_manifest, write_entry
from taac.runs.terminal import warn_user

_OURS = re.compile(r"\d+\.json|\d+(-again)?\.safetensors|frames-\d+-\d+\.safetensors|\d+\.json\.damaged")


class Checkpoint(NamedTuple):
    """A checkpoint whose manifest and tensors were read and verified."""

    path: Path  # of its manifest
    env_steps: int
    state: dict[str, Any]
    frames: list[dict[str, Any]]  # for `FrameChunks.load`

    def part(self, name: str) -> Any:
        """Returns a part of the state, such as "agent". Raises TaacError if there is none, or it is no dict."""
        if not isinstance(self.state.get(name), dict):
            raise TaacError(f"the checkpoint {self.path} holds no '{name}'; it holds: {', '.join(map(str, self.state))}")
        return self.state[name]

    @property
    def num_updates(self) -> int:
        """Gradient steps taken when it was written."""
        try:
            return int(self.part("learner")["num_updates"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TaacError(f"the checkpoint {self.path} does not count updates: {error!r}") from error


class Checkpoints:
    """The checkpoints of a run, of which the newest `keep` are kept. Their folder is created when the first is saved.

    `resumed` are those that the run resumes from, if they are others; messages name them.
    """

    def __init__(self, path: Path, keep: int = 2, resumed: Checkpoints | None = None):
        self.path, self.keep, self._resumed = path, keep, resumed or self
        self._kept: dict[int, set[str]] | None = None  # env_steps -> names of files; None: not read yet

    def saved(self) -> list[int]:
        """Returns the environment steps of all checkpoints, damaged or not, the newest first."""
        names = [p.stem for p in self.path.glob("*.json")] if files.check_folder(self.path) else []
        return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

    # Writing ---------------------------------------------------------------------------------------------------------

    def save(self, env_steps: int, state: dict[str, Any], frames: FrameChunks | None = None) -> None:
        """Writes a checkpoint, then removes all but the newest `keep`. Of replayed frames, it writes only those that changed.

        `state` is nested dicts, lists and tuples of tensors, numbers and strings. Raises TaacError, with the bytes needed, if it
        cannot be written. Earlier checkpoints are then unchanged.
        """
        tree, tensors = tensor_files.encode(state)
        data = tensor_files.pack(tensors)
        needed = len(data) + (frames.stale_bytes() if frames else 0)
        try:
            self._make_folder()
            name = f"{env_steps}.safetensors"
            if name in self._remember().get(env_steps, ()):  # it stays until the new manifest replaces the one that names it
                name = f"{env_steps}-again.safetensors"
            held = frames.write_stale(self.path) if frames else []
            entry = write_entry(self.path / name, data)
            manifest = make_manifest({"env_steps": env_steps, "state": tree, "tensors": entry, "frames": held})
            needed += len(manifest)
            if len(manifest) > files.MAX_JSON_BYTES:  # reading it would be refused
                raise TaacError(
                    f"the checkpoint {self.path / str(env_steps)} would hold {len(manifest)} bytes of numbers and texts, and at "
                    f"most {files.MAX_JSON_BYTES} can be read again. Episodes that wait for the next summary are among them: "
                    "with a smaller Intervals.summary_interval there are fewer"
                )
            durable.write(self.path / f"{env_steps}.json", manifest)
        except OSError as error:
            raise durable.refusal(error, self.path, needed, self.what_remains()) from error
        self._remember()[env_steps] = {entry["name"], *(frame["name"] for frame in held)}
        newest = sorted(self._remember())[-self.keep :]
        self.remove([s for s in self.saved() if s not in newest])

    def follow(self, frames: FrameChunks) -> None:
        """Writes the parts of the replay buffer that have become full, so that the next checkpoint has less to write."""
        try:
            self._make_folder()
            frames.write_stale(self.path, but_current=True)
        except OSError as error:
            raise durable.refusal(error, self.path, frames.stale_bytes(), self.what_remains()) from error
        self._sweep(frames.names())

    def _make_folder(self) -> None:
        if not files.check_folder(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def what_remains(self) -> str:
        """Returns a clause for messages on what is still whole after a failed write."""
        saved = self._resumed.saved()
        return f"the checkpoint at {saved[0]} environment steps is whole" if saved else "there is no checkpoint yet"

    def _remember(self) -> dict[int, set[str]]:
        """Returns the checkpoints on the disk, read from their manifests on the first call."""
        if self._kept is None:
            self._kept = {}
            for steps in self.saved():
                with contextlib.suppress(Damaged, KeyError, TypeError, ValueError):
                    content = read_manifest(self.path / f"{steps}.json")
                    self._kept[steps] = {content["tensors"]["name"], *(frame["name"] for frame in content["frames"])}
        return self._kept

    def remove(self, unwanted: Sequence[int]) -> None:
        """Removes the checkpoints at the given environment steps."""
        for steps in unwanted:
            with contextlib.suppress(OSError):
                (self.path / f"{steps}.json").unlink()
        self._kept = {steps: held for steps, held in self._remember().items() if steps not in unwanted}
        if self.path.is_dir():
            self._sweep(set())

    def _sweep(self, wanted: set[str]) -> None:
        """Removes the files of removed or unfinished checkpoints: all that neither a manifest nor `wanted` names."""
        for steps, names in self._remember().items():
            wanted = wanted | names | {f"{steps}.json"}
        for file in self.path.iterdir():
            if (_OURS.fullmatch(file.name) or durable.is_temporary(file.name)) and file.name not in wanted:
                with contextlib.suppress(OSError):
                    file.unlink()

    # Reading ---------------------------------------------------------------------------------------------------------

    def readable(self) -> Iterator[Checkpoint]:
        """Yields undamaged checkpoints, newest first; warns of each damaged one. Raises TaacError for another format, or none."""
        if not self.saved():
            raise TaacError(f"there is no checkpoint in {self.path}; train first, or give the folder of a run")
        tried: set[int] = set()
        while left := [steps for steps in self.saved() if steps not in tried]:  # the run may write and remove some meanwhile
            tried.add(left[0])
            path = self.path / f"{left[0]}.json"
            try:
                found = self.read(left[0])
            except Damaged as error:
                if path.exists():
                    warn_user(f"the checkpoint {path} is damaged: {error}; looking for the one before it")
            else:
                yield found

    def newest(self) -> Checkpoint:
        """Returns the newest undamaged checkpoint. Raises TaacError as `readable`, or if none is whole."""
        if (found := next(self.readable(), None)) is None:
            raise self.nothing_left()
        return found

    def check_format(self) -> None:
        """Raises TaacError if the newest checkpoint has another format."""
        with contextlib.suppress(Damaged):
            for steps in self.saved()[:1]:
                read_manifest(self.path / f"{steps}.json")

    def nothing_left(self) -> TaacError:
        return TaacError(
            f"no checkpoint in {self.path} is whole; remove that folder to begin the run again, or give another --root_dir"
        )

    def set_aside(self, newer_than: int) -> None:
        """Renames damaged checkpoints newer than `newer_than` to `*.damaged`, so that they are not used again."""
        for steps in self.saved():
            if steps > newer_than:
                (self.path / f"{steps}.json").replace(self.path / f"{steps}.json.damaged")
        self._kept = None

    def read(self, env_steps: int) -> Checkpoint:
        """Returns the checkpoint at the given environment steps. Its frames are not read.

        Raises Damaged if it is missing or damaged, and TaacError if it has another format.
        """
        path = self.path / f"{env_steps}.json"
        content = read_manifest(path)
        try:
            frames, held_steps = list(content["frames"]), int(content["env_steps"])
            state = tensor_files.decode(content["state"], read_entry(self.path, content["tensors"]))
        except TaacError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise Damaged(f"{path} is not a manifest: {error!r}") from error
        if not isinstance(state, dict) or held_steps != env_steps:
            raise Damaged(f"{path} is not the manifest of a checkpoint at {env_steps} environment steps")
        return Checkpoint(path, env_steps, state, frames)


@contextlib.contextmanager
def restoring(what: str) -> Iterator[None]:
    """A context that uses content of a checkpoint. What malformed content raises becomes a `TaacError`, which names `what`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        if isinstance(error, TaacError):
            raise
        raise TaacError(f"{what} cannot be restored; another version of taac may have written it: {error!r}") from error


def load_into(module: torch.nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """Loads a module's parameters. Raises TaacError if it has others, or other shapes; lists each."""
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError, LookupError) as error:
        raise TaacError(f"the checkpoint {path} holds another network: {error}") from error
