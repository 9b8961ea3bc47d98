"""Checkpoints of a run: named parts, each of which saves and restores its own state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

import gin
import torch.nn as nn

from taac.errors import NotFiniteError, TaacError, refuse_below
from taac.runs import checkpoint, extension, files, inspection
from taac.runs.checkpoint import Checkpoint
from taac.runs.files import Damaged
from taac.runs.frame_chunks import FrameChunks
from taac.runs.run_folder import RunFolder
from taac.runs.terminal import warn_user


@gin.configurable
class Saving:
    """What a run keeps.

    Args:
        keep_checkpoints: how many of the newest checkpoints are kept. With 1, a damaged checkpoint has no replacement.
        save_best: whether the agent of the evaluation with the highest return is saved, in the folder `best` of the run.
        save_replay: whether checkpoints hold the replay buffer. Without it, a resumed run differs from an uninterrupted one,
            because it takes `initial_collect_steps` steps to refill the buffer before updates continue.
    """

    def __init__(self, keep_checkpoints: int = 2, save_best: bool = True, save_replay: bool = True):
        refuse_below(1, "Saving", keep_checkpoints=keep_checkpoints)
        self.keep_checkpoints, self.save_best, self.save_replay = keep_checkpoints, save_best, save_replay


class Part(Protocol):
    """A part of a checkpoint. Its state consists of nested dicts, lists and tuples of tensors, numbers and strings."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> object: ...


class Saver:
    """Writes checkpoints of a run's parts into its folder, and restores them.

    Args:
        parts: by name, in the order in which they are restored. The collector comes last: where its environments cannot be
            restored, it acts with the agent, draws random numbers and adds frames, which needs the parts before it.
        frames: frames of the part "replay". They are saved in separate files and restored with that part. None: neither is
            saved.
    """

    def __init__(self, parts: Mapping[str, Part], frames: FrameChunks | None = None):
        self.parts, self.frames = dict(parts), frames

    def save(self, folder: RunFolder, env_steps: int) -> None:
        """Writes a checkpoint into the run folder; see `Checkpoints.save`. Changes nothing in the run."""
        state = {**folder.records(), **{name: part.state_dict() for name, part in self.parts.items()}}
        folder.checkpoints.save(env_steps, state, self.frames)
        folder.trim_best(env_steps)

    def write_full_chunks(self, folder: RunFolder) -> None:
        """Writes the frames that have filled a file since the last call, so that the next checkpoint has less to write."""
        if self.frames is not None and self.frames.moved_on():
            folder.checkpoints.follow(self.frames)

    def restore(self, folder: RunFolder, config: str | None = None, without: Collection[str] = ()) -> str:
        """Restores all parts and the folder's other files from the newest undamaged checkpoint. Warns of damaged ones.

        `config` is the configuration to go on with, if it is another than the folder's; parts in `without` are not restored.
        Returns the configuration of the checkpoint.

        Raises:
            TaacError: no checkpoint is undamaged, or it belongs to a run of another configuration.
        """
        for found in self.candidates(folder, config):
            try:
                self.load(found, without)
            except Damaged as error:
                warn_user(f"the checkpoint {found.path} cannot be used: {error}; looking for the one before it")
                continue
            folder.checkpoints.set_aside(newer_than=found.env_steps)
            for damage in folder.restore(found.state):
                warn_user(damage)
            return str(found.state["config"])
        raise TaacError(
            f"{folder.checkpoints.nothing_left()}. If only replayed frames are damaged, --forget_replay goes on without them"
        )

    @staticmethod
    def candidates(folder: RunFolder, config: str | None = None) -> Iterator[Checkpoint]:
        """Yields the folder's undamaged checkpoints, the newest first. Refuses those of another run."""
        held = files.read_text(folder.config)
        try:
            changed = extension.changed_in(folder.read_run())
        except TaacError:  # a checkpoint will restore it
            changed = set()
        changed |= set(extension.changes(held, config or held))
        for found in folder.checkpoints.readable():
            if not extension.continues(str(found.state.get("config")), config or held, changed):
                raise TaacError(
                    f"{found.path} belongs to a run with another configuration than {folder.config}; nothing was changed"
                )
            yield found

    def load(self, found: Checkpoint, without: Collection[str] = ()) -> None:
        """Restores all parts from a checkpoint, but for those in `without`.

        Raises:
            Damaged: the frames or the actions of the running episodes are not as they were written.
            TaacError: a part does not fit; the message names it.
        """
        for name, part in self.parts.items():
            if name in without:
                continue
            if isinstance(part, nn.Module):
                checkpoint.load_into(part, found.part(name), found.path)
            else:
                _load(part, name, found.part(name), found)
            if name == "replay" and self.frames is not None:
                self.frames.load(found.path.parent, found.frames)


def save_evidence(folder: RunFolder, env_steps: int, error: NotFiniteError) -> str:
    """Saves the tensors that explain a number that was not finite; returns a sentence on how to inspect them."""
    try:
        return f"To inspect it: taac check --batch {inspection.write(folder.evidence, env_steps, error)}"
    except OSError as failure:
        return f"The evidence could not be saved: {failure}"


def _load(part: Part, name: str, state: Any, found: Checkpoint) -> None:
    with checkpoint.restoring(f"the part '{name}' of the checkpoint {found.path}"):
        try:
            part.load_state_dict(state)
        except TaacError as error:
            if type(error) is not TaacError:
                raise
            raise TaacError(f"the checkpoint {found.path} cannot be used: {error}") from error
