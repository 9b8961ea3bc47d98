"""A place in which hostile run folders are tried: a run among sound ones, files outside that nothing may touch, limits."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import re
import resource
import shutil
import signal
import stat
import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.backends.backend_agg  # what drawing takes long to import, imported once
import matplotlib.figure  # noqa: F401
import torch

from experiments.reliability import runs
from experiments.reliability.runs import Setting
from taac.errors import NotFiniteError
from taac.runs import inspection
from taac.runs.checkpoint import Checkpoints

SETTING = Setting("sac", "Pendulum-v1", 1, "", ("num_env_steps = 280", "checkpoint_interval = 120"))
SECONDS, PROCESSOR_SECONDS, BYTES = 90.0, 45.0, 2 << 30
MARKER = "evil_marker"  # a module that notes that it was imported
SCRIPT, CELL, ESCAPE = "<script>alert('evil')</script>", "=cmd|'/C evil'!A0", "\x1b[2Jevil\x07"
COMMANDS = ("train", "play", "pictures", "plot", "report", "compare", "check")


class Ended(NamedTuple):
    """How a command ended."""

    code: int  # minus a signal; 124: it had to be killed
    said: str
    processor: float  # seconds
    peak: int  # bytes, those of this process when it was forked among them


class Sandbox:
    """Folders of a case, made anew by `begin`.

    Attributes:
        runs: has `Pendulum-v1/sac/seed_0`, the victim, and `seed_1`, which is sound.
        run: the victim.
        canary: files that are none of its business.
        cwd: where commands are called; a module there notes that it is imported.
        out: where reports and plots go.
    """

    def __init__(self, folder: Path):
        self.folder = folder.resolve()
        self.base, self.case = self.folder / "base", self.folder / "case"
        self.runs, self.canary, self.cwd, self.out = (self.case / name for name in ("runs", "canary", "cwd", "out"))
        self.run = self.runs / "Pendulum-v1" / "sac" / "seed_0"
        self.demonstrations = self.case / "demonstrations.npz"

    def prepare(self) -> None:
        """Trains what cases are copied from: a finished run, one that was killed late, and demonstrations."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.base.mkdir(parents=True)
        log, play = (
            self.base / "log",
            ["taac", "play", "--root_dir", str(self.base / "finished"), "--num_episodes", "2"],
        )
        play += ["--record_demonstrations", str(self.base / "demonstrations.npz")]
        codes = [
            runs.run(SETTING, self.base / "finished", log),
            runs.run(SETTING, self.base / "finished", log, words=play),
        ]

        def killed_at_240() -> None:
            save = Checkpoints.save

            def saved(self: Any, env_steps: int, *args: Any, **more: Any) -> None:
                save(self, env_steps, *args, **more)
                if env_steps >= 240 and self.path.name == "checkpoints":
                    os.kill(os.getpid(), signal.SIGKILL)

            Checkpoints.save = saved  # type: ignore[method-assign]

        codes.append(runs.run(SETTING, self.base / "killed", log, killed_at_240))
        for kind in ("finished", "killed"):
            error = NotFiniteError(
                "a loss", {"sampled/reward": torch.tensor([1.0, math.nan]), "loss": torch.zeros(2, 3)}
            )
            inspection.write(self.base / kind, 240, error)
        if codes != [0, 0, -signal.SIGKILL]:
            raise RuntimeError(f"{codes}: {log.read_text()[-2000:]}")

    def begin(self, kind: str) -> None:
        """Copies a run that is "killed" or "finished"."""
        shutil.rmtree(self.case, ignore_errors=True)
        for path in (self.cwd, self.out, self.canary / "home" / "notes", self.run.parent):
            path.mkdir(parents=True)
        shutil.copytree(self.base / kind, self.run)
        shutil.copytree(self.base / "finished", self.run.with_name("seed_1"))
        shutil.copy(self.base / "demonstrations.npz", self.demonstrations)
        (self.cwd / f"{MARKER}.py").write_text(f"open({str(self.case / 'imported')!r}, 'w').close()\n")
        for name in (
            ".bashrc",
            "run.json",
            "240.json",
            "240.safetensors",
            "frames-0-1.safetensors",
            "notes/evaluations.csv",
        ):
            (self.canary / "home" / name).write_text(f"mine: {name}\n")

    def snapshot(self) -> dict[str, tuple[Any, ...]]:
        """All that lies outside of the victim's folder, and of those where commands write: names, kinds, content, times."""
        found = {}
        for top in (self.canary, self.cwd, self.run.with_name("seed_1")):
            for path in (top, *top.rglob("*")):
                if "__pycache__" in path.parts:
                    continue
                about = path.lstat()
                content = hashlib.blake2b(path.read_bytes()).hexdigest() if stat.S_ISREG(about.st_mode) else None
                found[str(path)] = about.st_mode, about.st_ino, about.st_mtime_ns, about.st_size, content
        return found

    def words(self, command: str) -> list[str]:
        """What is called of `taac`."""
        here = {
            "train": SETTING.words(self.run),
            "play": ["taac", "play", "--root_dir", str(self.run), "--num_episodes", "1"],
            "pictures": [
                "taac", "play", "--root_dir", str(self.run), "--num_episodes", "1", "--film_strip", str(self.out / "strip.png"),
                "--timeline", str(self.out / "timeline.png"),
            ],
            "plot": ["taac", "plot", "--root_dir", str(self.run)],
            "report": ["taac", "report", "--root_dir", str(self.runs), "--output_dir", str(self.out), "--allow_mixed"],
            "compare": [
                "taac",
                "compare",
                "--dry_run",
                "--root_dir",
                str(self.runs),
                "--methods",
                "sac",
                "--seeds",
                "1",
            ],
            "check": ["taac", "check", "--batch", str(self.run / "diverged-240.json")],
        }[command]
        if command == "compare":
            here += ["--tasks", "Pendulum-v1", "--gin_file", "gin/tasks/simple_control.gin"]
            bound = SETTING.words(self.run)[::-1]  # the same run
            params = [
                word for word, flag in itertools.pairwise(bound) if flag == "--gin_param" and "env_name" not in word
            ]
            here += [word for param in reversed(params) for word in ("--gin_param", param)]
        return here

    def demonstrated(self) -> list[str]:
        """`taac check` of an experiment with the demonstrations."""
        train = Setting(
            "sqil_sac", "Pendulum-v1", 1, "", (f"create_experiment.demonstrations = '{self.demonstrations}'",)
        )
        words = train.words(self.run)
        return ["taac", "check", *words[words.index("--gin_file") :]]

    def call(self, words: list[str]) -> Ended:
        """Calls a command in a process of its own, with limits on its time and its memory."""
        log = self.folder / "log"
        log.unlink(missing_ok=True)

        def limit() -> None:
            os.chdir(self.cwd)
            held = int(re.findall(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) << 10
            resource.setrlimit(resource.RLIMIT_AS, (held + (4 << 30),) * 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

        child, deadline, code = runs.start(SETTING, self.run, log, limit, words), time.monotonic() + SECONDS, None
        while True:
            done, status, usage = os.wait4(child, os.WNOHANG)
            if done:
                break
            if code is None and time.monotonic() > deadline:
                code = 124
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
            time.sleep(0.01)
        said = log.read_text(encoding="utf-8", errors="surrogateescape") if log.exists() else ""
        return Ended(
            code or os.waitstatus_to_exitcode(status), said, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10
        )

    def wrong(self, before: dict[str, tuple[Any, ...]], end: Ended) -> str | None:
        """What a command did that it must not; None: nothing. The first word is the verdict."""
        if (self.case / "imported").exists():
            return f"IMPORTED: {end.said[-500:]}"
        after = self.snapshot()
        if changed := [path for path in {**before, **after} if before.get(path) != after.get(path)]:
            return f"CANARY: {changed}"
        if end.code == 124:
            return f"HANG: {end.said[-500:]}"
        if end.processor > PROCESSOR_SECONDS:
            return f"SLOW: {end.processor:.0f} s"
        if end.peak > BYTES:
            return f"MEMORY: {end.peak} bytes"
        if "Traceback" in end.said:
            return f"TRACEBACK: {end.said[-1500:]}"
        if end.code not in (0, 1):
            return f"DIED: {end.code}: {end.said[-500:]}"
        if end.code == 1 and not re.search(r"^taac \w+: \S", end.said.replace("\r", "\n"), re.MULTILINE):
            return f"WORDLESS: {end.said[-500:]}"
        if raw := re.findall(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", end.said):
            return f"CONTROL: {sorted(set(raw))} in {end.said[-500:]!r}"
        for file in [*self.out.glob("*.html"), *self.out.glob("*.md"), *self.out.glob("*.csv")]:
            text = file.read_text(errors="replace")
            if SCRIPT in text or (file.suffix == ".csv" and re.search(f"(^|,){re.escape(CELL)}", text, re.MULTILINE)):
                return f"RAW: {file.name}"
        return None
