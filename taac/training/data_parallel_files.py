"""The run folder of a run that several ranks train. The first rank writes it; each other rank adds only what it alone knows.

That is its replay buffer, its running episodes, its random numbers and its hooks. Rank 1 saves them in `checkpoints/rank_1`,
under the same environment steps as the checkpoint of the first rank, which holds all else. The first rank's is written last,
when those of the others are whole. So a checkpoint that exists can be resumed by all ranks.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from taac.acting.evaluation import Evaluation
from taac.errors import TaacError
from taac.machine.ranks import Ranks
from taac.runs.checkpoint import Checkpoint, Checkpoints
from taac.runs.files import Damaged
from taac.runs.frame_chunks import FrameChunks
from taac.runs.layout import EpisodeSummary
from taac.runs.run_folder import RunFolder
from taac.runs.terminal import warn_user
from taac.training.reporting import Progress, Reporter
from taac.training.saving import Part, Saver

OWN = ("replay", "hooks", "random", "collector")  # parts of a checkpoint that differ between ranks


class SharedFolder(RunFolder):
    """A run folder as ranks after the first see it. They write nothing but checkpoints of their own."""

    def __init__(self, root_dir: str | Path, number: int):
        super().__init__(root_dir)
        self.of_first = self.checkpoints
        self.checkpoints = Checkpoints(self.of_first.path / f"rank_{number}", keep=sys.maxsize)
        self.evidence = self.checkpoints.path

    def save_best(self, env_steps: int, state: dict[str, Any]) -> None: ...

    def trim_best(self, up_to: int) -> None: ...


class SilentReporter(Reporter):
    """Reports nothing, for ranks after the first. What is reported once, such as means since the last summary, is cleared."""

    @contextlib.contextmanager
    def reporting_to(self, folder: RunFolder, progress: Progress | None) -> Iterator[None]:
        yield

    def beginning(self, hyper_parameters: Mapping[str, Any] | None) -> None: ...

    def progress(self, evaluation: EpisodeSummary | None) -> None: ...

    def training(self, more: Mapping[str, float | torch.Tensor]) -> None:
        self._learner.summary()

    def evaluation(self, found: Evaluation) -> None: ...

    def finished(self) -> None: ...


class SharedSaver(Saver):
    """Writes and restores the checkpoints of several ranks together. `parts` and `frames` are those of this rank."""

    def __init__(self, ranks: Ranks, parts: Mapping[str, Part], frames: FrameChunks | None = None):
        super().__init__(parts, frames)
        self._ranks = ranks

    def save(self, folder: RunFolder, env_steps: int) -> None:
        with self._ranks.together():
            if not self._ranks.first:
                state = {name: part.state_dict() for name, part in self.parts.items() if name in OWN}
                folder.checkpoints.save(env_steps, state, self.frames)
        with self._ranks.together():
            if self._ranks.first:
                super().save(folder, env_steps)
        # Told, not read: on another machine, the list of a folder on NFS may lack for a minute what was just written.
        held = self._ranks.from_first(folder.checkpoints.saved())
        if not self._ranks.first:  # what the first no longer holds is not needed here either
            folder.checkpoints.remove([steps for steps in folder.checkpoints.saved() if steps not in held])

    def restore(self, folder: RunFolder, config: str | None = None, without: Collection[str] = ()) -> str:
        candidates = self.candidates(folder)
        while (env_steps := self._next(candidates)) is not None:
            damage: Damaged | None = None
            with self._ranks.together():
                try:
                    found = self._read(folder, env_steps)
                    self.load(found, without)
                except Damaged as error:
                    damage = error
                    warn_user(f"the checkpoint at {env_steps} environment steps cannot be used: {error}; looking for another")
            if self._ranks.exchange(None, [damage is not None])[0][0]:
                continue
            folder.checkpoints.set_aside(newer_than=env_steps)
            if self._ranks.first:
                for changed in folder.restore(found.state):
                    warn_user(changed)
            return str(found.state["config"])
        raise folder.checkpoints.nothing_left()

    def _next(self, candidates: Iterator[Checkpoint]) -> int | None:
        """Returns the environment steps of the next of the first rank's candidates, in all ranks."""
        env_steps: int | None = None
        with self._ranks.together():
            if self._ranks.first:
                env_steps = next((found.env_steps for found in candidates), None)
        found: int | None = self._ranks.from_first(env_steps)
        return found

    @staticmethod
    def _read(folder: RunFolder, env_steps: int) -> Checkpoint:
        """Returns the checkpoint of the first rank, with this rank's own parts and frames."""
        if not isinstance(folder, SharedFolder):
            return folder.checkpoints.read(env_steps)
        shared, own = folder.of_first.read(env_steps), folder.checkpoints.read(env_steps)
        return own._replace(state={**shared.state, **{name: own.part(name) for name in OWN if name in own.state}})


def check_count(folder: RunFolder, ranks: Ranks) -> None:
    """Refuses to resume a run with another number of ranks; says how to start as many as began it."""
    try:
        begun = folder.read_run().get("ranks") or 1
    except TaacError:
        return  # a checkpoint will restore run.json
    if begun == ranks.count:
        return
    how = "without torchrun" if begun == 1 else f"by torchrun, with {begun} processes in all (--nproc_per_node, --nnodes)"
    raise TaacError(
        f"{folder.path} holds a run of {begun} {'rank' if begun == 1 else 'ranks'}, and {ranks.count} would train it on; each "
        f"has its own part of the replay buffer. Nothing was changed. Start it {how}"
    )
