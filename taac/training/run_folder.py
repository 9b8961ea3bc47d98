"""The folder of a run: what is in it, and when a run may begin or go on there."""

from __future__ import annotations

import contextlib
import csv
import datetime
import difflib
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows: there, runs are not locked
    fcntl = None  # type: ignore[assignment]

from taac import __version__
from taac.errors import TaacError
from taac.training.metrics import EpisodeSummary

PACKAGES = (
    "torch",
    "numpy",
    "gymnasium",
    "mujoco",
    "box2d",
    "gymnasium-robotics",
    "highway-env",
    "tensorboard",
    "gin-config",
)
EVALUATION_COLUMNS = (
    "env_steps", "updates", "seconds", "episodes", "return_mean", "return_std", "length", "fraction_repeated",
    "mean_run", "max_run", "decisions", "jerk", "fraction_same",
)  # fmt: skip


class RunFolder:
    """Files of a run.

    `config.gin` the full operative configuration, which re-runs it; `run.json` versions, seed, environment, command, start,
    end and status; `evaluations.csv` a row an evaluation; `checkpoint.pt`; TensorBoard's event files.
    """

    def __init__(self, root_dir: str | Path):
        self.path = Path(root_dir)
        self.config = self.path / "config.gin"
        self.run = self.path / "run.json"
        self.evaluations = self.path / "evaluations.csv"
        self.checkpoint = self.path / "checkpoint.pt"

    def open(self, config: str) -> str:
        """Decides whether a run of this configuration may begin here; writes nothing.

        Returns:
            "new", "unfinished" (with or without a checkpoint) or "finished".

        Raises:
            TaacError: the folder holds a run of another configuration, or other files.
        """
        if self.path.exists() and not self.path.is_dir():
            raise TaacError(f"--root_dir {self.path} is a file; give a folder")
        files = {p.name for p in self.path.iterdir()} if self.path.exists() else set()
        files -= {".lock", "run.json.tmp", "config.gin.tmp"}
        # Killed in the making, a run has left its run.json alone. A config.gin alone may be the user's own.
        if not files or (files == {self.run.name} and "taac" in self.read_run().get("versions", {})):
            return "new"
        if not self.config.exists() or not self.run.exists():
            raise TaacError(
                f"--root_dir {self.path} is not empty and holds no run of taac "
                f"({self.config.name} and {self.run.name} are not both there); give a new or empty folder"
            )
        held = self.config.read_text(encoding="utf-8")
        if held != config:
            changes = list(
                difflib.unified_diff(held.splitlines(), config.splitlines(), "held", "asked", n=0, lineterm="")
            )
            raise TaacError(
                f"--root_dir {self.path} holds a run of another configuration; nothing was changed. Give another folder, "
                "or the configuration it holds. The difference:\n  " + "\n  ".join(changes[2:])
            )
        return "finished" if self.read_run().get("status") == "finished" else "unfinished"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from training here; the system lets go of it however this one ends.

        Raises:
            TaacError: another process does.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "w", encoding="utf-8") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise TaacError(
                        f"another process is training in {self.path}; wait for it, or give another folder"
                    ) from error
            yield

    def begin(self, config: str, about: dict[str, Any]) -> None:
        """Creates the folder's files for a new run."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_run(
            {
                "status": "running",
                **about,
                "command": shlex.join(["taac", *sys.argv[1:]]),
                "start": now(),
                "end": None,
                "resumed": [],
                "versions": versions(),
                "platform": {"system": platform.platform(), "processor": processor(), "cores": os.cpu_count()},
            }
        )
        self._write(self.config, config)
        self.keep_evaluations(-1)

    def read_run(self) -> dict[str, Any]:
        try:
            content = json.loads(self.run.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise TaacError(f"{self.run} cannot be read: {error}; is {self.path} the folder of a run?") from error
        if not isinstance(content, dict):
            raise TaacError(f"{self.run} holds no run: expected a JSON object, got {type(content).__name__}")
        return content

    def write_run(self, content: dict[str, Any]) -> None:
        self._write(self.run, json.dumps(content, indent=2) + "\n")

    def update_run(self, **changes: Any) -> None:
        self.write_run({**self.read_run(), **changes})

    def add_evaluation(self, env_steps: int, updates: int, seconds: float, summary: EpisodeSummary) -> None:
        """Appends a row to evaluations.csv."""
        row = {"env_steps": env_steps, "updates": updates, "seconds": round(seconds, 3), **summary._asdict()}
        with open(self.evaluations, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, EVALUATION_COLUMNS).writerow(row)

    def keep_evaluations(self, env_steps: int) -> None:
        """Keeps the rows up to `env_steps`: what came after the checkpoint is done again on resuming."""
        rows: list[dict[str, str]] = []
        if self.evaluations.exists():
            with open(self.evaluations, newline="", encoding="utf-8") as file:
                rows = [
                    r for r in csv.DictReader(file) if r[EVALUATION_COLUMNS[-1]] and int(r["env_steps"]) <= env_steps
                ]
        beside = self.evaluations.with_suffix(".tmp")
        with open(beside, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, EVALUATION_COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(beside, self.evaluations)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        beside = path.with_suffix(path.suffix + ".tmp")
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def versions() -> dict[str, str | None]:
    """Versions of what a result depends on."""
    found: dict[str, str | None] = {"taac": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
