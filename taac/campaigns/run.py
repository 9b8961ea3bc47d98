"""One run of a campaign: its command, folder, log and error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from taac.configuration import RunRequest
from taac.runs import extension, files, layout

# First line of each attempt in the log. The output of earlier attempts stays above it.
ATTEMPT = "=== "
_END_OF_LOG = 64 << 10  # bytes at the end of the log that are searched for an error
_LONGEST_LINE = 1000  # characters shown


def train_command(folder: Path, request: RunRequest, *more: str) -> tuple[str, ...]:
    # A run that was just stopped may still hold the lock while it saves.
    train = (sys.executable, "-m", "taac", "train", "--root_dir", str(folder), "--lock_timeout", "120")
    return (*train, *more, *request.words())


class Run(NamedTuple):
    """One run of a comparison."""

    task: str  # environment id
    method: str  # name of its file
    seed: int
    folder: Path
    command: tuple[str, ...]
    request: RunRequest = RunRequest()  # what the command trains
    steps: int | None = None  # environment steps to which a shorter run is extended; None if it is not

    @property
    def name(self) -> str:
        return f"{self.task}/{self.method}/seed {self.seed}"

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def finished(self) -> bool:
        if self.steps is not None and (extension.held_steps(self.folder) or 0) < self.steps:
            return False
        return layout.is_finished(self.folder)

    def error(self) -> str:
        """Returns the last refusal ("taac train: ...") of the last attempt; without one, the last line that it printed."""
        try:
            text = files.read_end(self.log, _END_OF_LOG).decode(errors="replace").replace("\r", "\n")
        except OSError:
            text = ""
        lines: list[str] = []
        for line in text.splitlines():
            if line.startswith(ATTEMPT):
                lines = []
            elif line.strip():
                lines.append(line.strip())
        refused = [line for line in lines if line.startswith("taac train: ")]
        return (refused or lines or ["it printed nothing"])[-1][:_LONGEST_LINE]
