"""Handles SIGTERM, Ctrl-C and SIGHUP: the first asks a run to save and stop, the second ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from taac.errors import RESUMABLE
from taac.machine.processes import INTERRUPTIONS


class Interruption:
    """A context in which the first signal is only recorded. Calling the object returns whether one has arrived.

    A second signal ends the process at once. That is as safe as SIGKILL, because files on the disk are whole at any moment.
    Signals within `SAME` seconds of the first count as the same one, because a terminal or a scheduler signals all processes of
    a run, and those in between (make, a batch script, a container's init) forward the signal. A signal that this process was
    started to ignore (by `nohup`, or as a background job of a script) stays ignored.

    Args:
        at_once: called at a second signal; by default it ends the process.
    """

    SAME = 0.5  # seconds

    def __init__(self, at_once: Callable[[], None] | None = None) -> None:
        self._at_once = at_once or _exit
        self.signal: signal.Signals | None = None
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # Python sets handlers only in the main thread
            wanted = [n for n in INTERRUPTIONS if signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._handle) for number in wanted}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.signal is not None:
            if now - self._since < self.SAME:
                return
            self._at_once()
        self.signal, self._since = signal.Signals(number), now
        _write(f"{self.signal.name}: finishing this iteration; send it again to stop at once")


def _exit() -> None:
    _write("stopped at once; the same command resumes from the last checkpoint")
    os._exit(RESUMABLE)


def _write(message: str) -> None:
    with contextlib.suppress(OSError):  # the same signal may have ended the reader
        os.write(2, f"\ntaac: {message}\n".encode())  # not print, because the signal may have interrupted a print
