"""All ways in which a run is interrupted: by which signals, when, and whether it alone or its whole process group."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from tensorboard.summary.writer.record_writer import RecordWriter

from experiments.reliability import runs

CALLS = ("open", "write", "fsync", "rename", "unlink", "mkdir", "summary")
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interruption(NamedTuple):
    """One signal, or a second one after it."""

    signals: tuple[signal.Signals, ...]
    to: str = "process"  # or "group": the process and all that it started
    when: str = "time"  # or "compiling"; or one of `CALLS`; "worker": a process of an environment, at any time

    def __str__(self) -> str:
        names = ", then ".join(dict.fromkeys(s.name for s in self.signals))
        if len(self.signals) == 2:
            names = f"{self.signals[0].name}, then another signal"
        where = {"time": "at any time", "compiling": "while it compiles", "worker": "to an environment's process"}.get(
            self.when, {"write": "in a write, half done", "summary": "in a write of summaries, half done"}.get(
                self.when, f"before or after {self.when}"
            )
        )  # fmt: skip
        return f"{names} {where}{', to the group' if self.to == 'group' else ''}"


def _every() -> list[Interruption]:
    found = [Interruption((signal.SIGKILL,), to) for to in ("process", "group") for _ in range(2)]
    found += [Interruption((signal.SIGKILL,), when=call) for call in (*CALLS, "write", "rename")]
    for number in STOPS:
        found += [Interruption((number,), to) for to in ("process", "group")]
        found += [Interruption((number, second), to) for to, second in zip(("process", "group"), STOPS)]
    return found


EVERY = _every()
COMPILING = [
    Interruption(signals, to, "compiling")
    for signals in ((signal.SIGKILL,), (signal.SIGTERM,), (signal.SIGINT,), (signal.SIGINT, signal.SIGTERM))
    for to in ("process", "group")
]
WORKER = [Interruption((signal.SIGKILL,), when="worker")]


def deck(kinds: list[Interruption], rng: random.Random) -> Callable[[], Interruption]:
    """Gives kinds in random order, each equally often."""
    left: list[Interruption] = []

    def draw() -> Interruption:
        if not left:
            left.extend(rng.sample(kinds, len(kinds)))
        kind = left.pop()
        second = (rng.choice(STOPS),) if len(kind.signals) == 2 and kind.when == "time" else kind.signals[1:]
        return kind._replace(signals=(kind.signals[0], *second))

    return draw


# At a call that changes the disk --------------------------------------------------------------------------------------


class DiskCalls:
    """Counts, by name, the calls of this process that change what is below a folder; at one of them, it dies.

    Args:
        folder: of the run.
        name, at: of which call, and which of them, from 1; 0: none.
        late: it dies after the call instead of before; of a write, half is done either way.
    """

    def __init__(self, folder: Path, name: str = "", at: int = 0, late: bool = False):
        self.count: Counter[str] = Counter()
        self._folder, self._name, self._at, self._late = os.path.abspath(folder), name, at, late

    def install(self) -> None:
        """Takes the place of the calls in `os`, and of what writes TensorBoard's records."""
        self._wrap("open", os.open, lambda path, flags, *_: path if flags & os.O_CREAT else "")
        self._wrap("write", os.write, lambda descriptor, _: _path_of(descriptor))
        self._wrap("fsync", os.fsync, lambda descriptor: _path_of(descriptor))
        for name in ("rename", "replace"):
            self._wrap("rename", getattr(os, name), lambda path, *_: path, name)
        for name in ("unlink", "remove"):
            self._wrap("unlink", getattr(os, name), lambda path, *_: path, name)
        self._wrap("mkdir", os.mkdir, lambda path, *_: path)
        real = RecordWriter.write

        def write(writer: Any, data: bytes) -> None:
            if self._counted("summary"):
                writer._writer.write(data[: len(data) // 2])
                writer._writer.flush()
                runs.die("")
            real(writer, data)

        RecordWriter.write = write  # type: ignore[method-assign]

    def _wrap(self, name: str, call: Callable[..., Any], path_of: Callable[..., Any], attribute: str = "") -> None:
        def watched(*args: Any, **more: Any) -> Any:
            path = path_of(*args)
            if not isinstance(path, int) and not os.path.abspath(os.fsdecode(path)).startswith(self._folder):
                return call(*args, **more)
            if not self._counted(name):
                return call(*args, **more)
            if name == "write":
                call(args[0], args[1][: len(args[1]) // 2])
            elif self._late:
                call(*args, **more)
            runs.die("")

        setattr(os, attribute or name, watched)

    def _counted(self, name: str) -> bool:
        self.count[name] += 1
        return name == self._name and self.count[name] == self._at


def _path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


# At a time ------------------------------------------------------------------------------------------------------------


def send(number: signal.Signals, to: str, child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        (os.killpg if to == "group" else os.kill)(child, number)


def deliver(interruption: Interruption, child: int, rng: random.Random) -> None:
    """Sends its signals to a process.

    Before the second one the process is held for 0.1 to 1 s wherever it then is, up to 40 ms after the first: unhindered, it
    would have ended before.
    """
    first, *second = interruption.signals
    send(first, interruption.to, child)
    if second:
        time.sleep(rng.uniform(0, 0.04))
        send(signal.SIGSTOP, "process", child)
        time.sleep(rng.uniform(0.1, 1.0))
        send(second[0], interruption.to, child)
        send(signal.SIGCONT, "process", child)


def workers(child: int) -> list[int]:
    """Returns the processes of a run's environments."""
    found = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(child).children():
            with contextlib.suppress(psutil.Error):
                if any("spawn_main" in word for word in process.cmdline()):
                    found.append(process.pid)
    return found


def members(group: int) -> list[int]:
    """Returns the processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            state, _, of, *_ = (path / "stat").read_text().rsplit(")", 1)[1].split()
            if int(of) == group and state != "Z":
                found.append(int(path.name))
    return found


def outliving(group: int, seconds: float) -> list[int]:
    """Returns the processes of a group that have not ended after so many seconds; waits no longer than until all have."""
    deadline = time.monotonic() + seconds
    while (left := members(group)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


# While it compiles ----------------------------------------------------------------------------------------------------


class Compilations:
    """Notes how long each compilation of this process takes; or delivers an interruption in one of them.

    Args:
        cache: a folder of the compiler's own; the user's is left alone.
        interruption: None: nothing is interrupted.
        number: in which of them, from 0.
        after: seconds from its beginning.
    """

    def __init__(self, cache: Path, interruption: Interruption | None = None, number: int = 0, after: float = 0.0):
        self.seconds: list[float] = []
        self._cache, self._interruption, self._number, self._after = cache, interruption, number, after

    def install(self, module: Any) -> None:
        """Puts itself around `module.compile_graph`."""
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(self._cache)
        compile_, own = module.compile_graph, os.getpid()

        def compiled(*args: Any) -> Any:
            if self._interruption is not None and len(self.seconds) == self._number:
                threading.Timer(self._after, _send_all, (self._interruption, own)).start()
            start = time.monotonic()
            program = compile_(*args)
            self.seconds.append(time.monotonic() - start)
            return program

        module.compile_graph = compiled


def _send_all(interruption: Interruption, child: int) -> None:
    for number in interruption.signals:
        send(number, interruption.to, child)
        time.sleep(0.3)
