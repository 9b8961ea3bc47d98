"""The folder of a run: its files, and whether a run may begin or resume there."""

from __future__ import annotations

import contextlib
import csv
import difflib
import fcntl
import io
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from taac.errors import Occupied, TaacError
from taac.runs import durable, extension, files, layout, provenance
from taac.runs.checkpoint import Checkpoints
from taac.runs.layout import COLUMNS, EpisodeSummary
from taac.runs.provenance import command, now

# Keys of run.json that may change between checkpoints.
CHANGING = (
    "status", "end", "resumed", "stopped", "diverged", "error", "extended", "changed", "callbacks",
    "compiled", "products",
)  # fmt: skip
COUNTS = ("env_steps", "updates")  # keys that a run adds when it has finished
_MOST_LINES, _MOST_CHANGES, _LONGEST_LINE = 1000, 100, 500  # compared and shown of a configuration that differs


class RunFolder:
    """The files of a run, which `layout` names."""

    def __init__(self, root_dir: str | Path):
        self.path = Path(root_dir)
        self.config = self.path / layout.CONFIG
        self.run = self.path / layout.RUN
        self.evaluations = self.path / layout.EVALUATIONS
        self.checkpoints = Checkpoints(self.path / layout.CHECKPOINTS)
        self.evidence = self.path  # folder for what explains a number that is not finite
        self.best = Checkpoints(self.path / layout.BEST, keep=sys.maxsize, resumed=self.checkpoints)

    def open(self, config: str, extend: bool = False, change: bool = False) -> str:
        """Determines whether a run of this operative configuration may begin or resume here. Writes nothing.

        Returns "new", "unfinished" (with or without a checkpoint), "finished", "shorter" if it has more environment steps than
        the run here and `extend` must be called to resume, or "other" if it has other settings and `change` must be. Raises
        TaacError if these two are not allowed, or if the folder holds other files, or a link, pipe or device.
        """
        if self.path.exists() and not self.path.is_dir():
            raise TaacError(f"--root_dir {self.path} is a file; give a folder")
        for path in (self.path, self.checkpoints.path, self.best.path):
            if (path == self.path and path.exists()) or files.check_folder(path):
                files.check_entries(path)
        names = {p.name for p in self.path.iterdir()} if self.path.exists() else set()
        names = {name for name in names if name != layout.LOCK and not durable.is_temporary(name)}
        # A run that was killed while starting may leave only its run.json. A lone config.gin may be the user's own file.
        if not names:
            return "new"
        if names == {self.run.name} and isinstance(versions := self.read_run().get("versions"), dict) and "taac" in versions:
            return "new"
        if not self.config.exists() or not self.run.exists():
            raise TaacError(
                f"--root_dir {self.path} is not empty and holds no run of taac "
                f"({self.config.name} and {self.run.name} are not both there); give a new or empty folder"
            )
        held = files.read_bytes(self.config, files.MAX_CONFIG_BYTES).decode(errors="replace")
        if held != config:
            self.checkpoints.check_format()  # of another version, whose configuration has other parameters
            if (found := extension.lengths(held, config)) is not None:
                holds = f"--root_dir {self.path} holds this run with {found[0]} environment steps, and {found[1]} are asked for"
                if found[1] < found[0]:
                    raise TaacError(f"{holds}: no run can be shortened; give another folder")
                if not extend:
                    raise TaacError(
                        f"{holds}; nothing was changed. Add --extend to train it on to them, or give another folder"
                    )
                return "shorter"
            if change:
                return "other"
            lost = False
            with contextlib.suppress(TaacError):  # a damaged run.json
                lost = self.read_run().get("status") == "failed" and not self.has_checkpoints()
            why = " (that run failed before its first checkpoint: delete the folder to begin again)" if lost else ""
            raise TaacError(
                f"--root_dir {self.path} holds a run with another configuration; nothing was changed. Give another folder{why}, "
                "or the configuration of that run. The difference:\n  " + "\n  ".join(_difference(held, config))
            )
        try:
            return "finished" if self.read_run().get("status") == "finished" else "unfinished"
        except TaacError:
            if not self.checkpoints.saved():  # a checkpoint would restore it
                raise
            return "unfinished"

    def extend(self, config: str, env_steps: int, by: str = "") -> None:
        """Makes the run, which `open` calls "shorter" and which stands at `env_steps`, one of a configuration with more steps.

        run.json names the command `by` which it was done, by default this process's.
        """
        found = extension.lengths(files.read_text(self.config), config)
        assert found is not None
        run = self.read_run()
        entry = {
            "time": now(), "env_steps": env_steps, "from": found[0], "to": found[1], "command": by or command(),
            "follow_length": extension.following_length(config),
        }  # fmt: skip
        self._go_on(run, "extended", entry, "to", config)

    def change(self, config: str, env_steps: int, by: str = "") -> None:
        """Makes the run, which `open` calls "other", one of another configuration from where it stands; `by` as in `extend`."""
        run, changes = self.read_run(), extension.changes(files.read_text(self.config), config)
        settings = {name: list(values) for name, values in changes.items()}
        entry = {"time": now(), "env_steps": env_steps, "command": by or command(), "settings": settings}
        self._go_on(run, "changed", entry, "settings", config)

    def _go_on(self, run: dict[str, Any], name: str, entry: dict[str, Any], key: str, config: str) -> None:
        """Adds an entry to a list in run.json. Replaces one with the same `key`, which a command left that was killed here."""
        same = {"env_steps": entry["env_steps"], key: entry[key]}
        held = [e for e in extension.entries(run, name) if not same.items() <= e.items()]
        # run.json first: killed before config.gin is written, the run is unfinished and the same command does this again.
        self.write_run({**run, "status": "running", "end": None, name: [*held, entry]})
        self._write(self.config, config)

    def has_checkpoints(self) -> bool:
        """Returns whether a checkpoint exists, even if it is damaged or of a format that will be refused."""
        return bool(self.checkpoints.saved())

    @contextlib.contextmanager
    def lock(self, timeout: float = 0.0) -> Iterator[None]:
        """Keeps other processes from training here. The system releases the lock however this process ends.

        Raises Occupied if another process still trains here after `timeout` seconds, TaacError if the file system has no locks.
        """
        deadline = time.monotonic() + timeout
        path = self.path / layout.LOCK
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = files.open_file(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise durable.refusal(error, path, 0, otherwise="give a folder that you can write to") from error
        with os.fdopen(descriptor, "r+b") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() >= deadline:
                        raise Occupied(
                            f"another process is training in {self.path}; wait for it, or give another folder"
                        ) from error
                    time.sleep(0.1)
                except OSError as error:
                    raise TaacError(
                        f"{path} cannot be locked ({error}), so another process could train there too; give a "
                        "folder on a file system with locks: a local one, NFS with its lock service, or Lustre mounted with flock"
                    ) from error
            for left in self.path.iterdir():  # by a process killed while writing
                if durable.is_temporary(left.name):
                    with contextlib.suppress(OSError):
                        left.unlink()
            try:
                yield
            finally:
                # A process forked meanwhile, such as one that compiles, still has the file open.
                with contextlib.suppress(OSError):  # closing the file unlocks it otherwise
                    fcntl.flock(file, fcntl.LOCK_UN)

    def begin(self, config: str, about: dict[str, Any], info: Sequence[str] = ()) -> None:
        """Creates the files of a new run. `info` names what its environment reports, as in `create_environment`."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.write_run(
            {
                **dict.fromkeys(CHANGING),  # from the start, so that a resumed run ends with the same keys
                "status": "running",
                **about,
                "command": about.get("command", command()),
                "start": now(),
                "resumed": [],
                "versions": provenance.versions(),
                "commit": provenance.commit(),
                "platform": {"system": platform.platform(), "processor": provenance.processor(), "cores": os.cpu_count()},
            }
        )
        self._write(self.config, config)
        self._write(self.evaluations, ",".join([*COLUMNS, *(layout.INFO + name for name in info)]) + "\r\n")

    def read_run(self) -> dict[str, Any]:
        try:
            return layout.read_run(self.path)
        except (OSError, files.Damaged) as error:
            raise TaacError(f"{self.run} cannot be read: {error}; is {self.path} the folder of a run?") from error

    def write_run(self, content: dict[str, Any]) -> None:
        self._write(self.run, json.dumps(content, indent=2) + "\n")

    def update_run(self, **changes: Any) -> None:
        self.write_run({**self.read_run(), **changes})

    def add_evaluation(self, env_steps: int, updates: int, decisions: int, seconds: float, summary: EpisodeSummary) -> None:
        """Appends a row to evaluations.csv, in the order of its first line."""
        names = self._read(self.evaluations, files.MAX_EVALUATIONS_BYTES).partition("\r\n")[0].split(",")
        about = dict(zip(COLUMNS, (env_steps, updates, decisions, round(seconds, 3))))
        text = io.StringIO()
        csv.DictWriter(text, names, restval="", extrasaction="ignore").writerow({**about, **summary.numbers()})
        data = text.getvalue().encode()
        try:
            durable.append(self.evaluations, data)
        except OSError as error:
            raise durable.refusal(error, self.evaluations, len(data)) from error

    def save_best(self, env_steps: int, state: dict[str, Any]) -> None:
        """Saves the best agent so far. Keeps that as of the last checkpoint, because a killed run resumes from there."""
        self.best.save(env_steps, state)
        since = next(iter(self.checkpoints.saved()), 0)
        self.best.remove([steps for steps in self.best.saved() if since < steps < env_steps])

    def trim_best(self, up_to: int) -> None:
        """Keeps the best agent of evaluations up to where the run is, and up to each checkpoint from which it may go on."""
        saved = self.best.saved()
        ends = [up_to, *(steps for steps in self.checkpoints.saved() if steps < up_to)]
        kept = {max((steps for steps in saved if steps <= end), default=None) for end in ends}
        self.best.remove([steps for steps in saved if steps not in kept])

    def records(self) -> dict[str, Any]:
        """Returns a checkpoint's copy of the other files: their texts, and what run.json holds."""
        return {
            "run": self.read_run(),
            "config": self._read(self.config, files.MAX_CONFIG_BYTES),
            "evaluations": self._read(self.evaluations, files.MAX_EVALUATIONS_BYTES),
        }

    @staticmethod
    def _read(path: Path, most: int) -> str:
        try:
            return files.read_text(path, most)
        except (OSError, files.Damaged) as error:
            raise TaacError(
                f"{path} has changed since this run wrote it, so no checkpoint can be written: {error}. The checkpoint "
                "before it is whole: put the file back and run the same command again"
            ) from error

    def restore(self, records: dict[str, Any]) -> list[str]:
        """Restores evaluations.csv and run.json from a checkpoint, but for the keys `CHANGING`. Later evaluations are repeated.

        Returns a message for each file that was not as the run had written it. Raises TaacError if the records are malformed.
        """
        try:
            evaluations, about = records["evaluations"].encode(), json.loads(json.dumps(dict(records["run"])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise TaacError(f"a checkpoint of {self.path} lacks its copies of the run's other files: {error!r}") from error
        found = [f"{self.evaluations} had been changed; it was restored"]
        with contextlib.suppress(OSError, files.Damaged):
            if files.read_bytes(self.evaluations, files.MAX_EVALUATIONS_BYTES).startswith(evaluations):
                found = []
        try:
            run = self.read_run()
        except TaacError as error:
            run = {}
            found.append(f"{error}; it was restored")
        restored = {**about, **{name: run[name] for name in CHANGING if name in run}}
        if run and {name: value for name, value in run.items() if name not in COUNTS} != restored:
            found.append(f"{self.run} had been changed; it was restored")
        self._write(self.evaluations, evaluations.decode())
        self.write_run(restored)
        return found

    @staticmethod
    def _write(path: Path, text: str) -> None:
        try:
            durable.write(path, text.encode())
        except OSError as error:
            raise durable.refusal(error, path, len(text.encode())) from error


def _difference(held: str, asked: str) -> list[str]:
    lines = held.splitlines()[:_MOST_LINES]
    changes = list(difflib.unified_diff(lines, asked.splitlines(), n=0, lineterm=""))[2:]
    shown = [line[:_LONGEST_LINE] for line in changes[:_MOST_CHANGES]]
    return shown + ([f"and {len(changes) - len(shown)} lines more"] if len(changes) > len(shown) else [])
