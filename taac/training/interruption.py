"""SIGTERM, Ctrl-C and SIGHUP: the first asks a run to stop in order, the second ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from taac.errors import RESUMABLE
from taac.machine.processes import INTERRUPTIONS


class Interruption:
    """Within it, a signal is remembered instead of obeyed: calling it says whether one came.

    One that this process was started to ignore (by `nohup`, or as a background job of a script) is ignored still. A second
    signal ends the process at once. That is safe at any moment, as SIGKILL is: what is on the disk is whole. One within
    `SAME` seconds of the first is the first once more: a terminal or a scheduler sends it to all processes of a run, and
    those between (make, a batch script, a container's init) pass it on.
    """

    SAME = 0.5

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # no other may
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
            _write("left at once; the same command goes on from the last checkpoint")
            os._exit(RESUMABLE)
        self.signal, self._since = signal.Signals(number), now
        _write(f"{self.signal.name}: finishing this iteration; once more to leave at once")


def _write(message: str) -> None:
    with contextlib.suppress(OSError):  # who reads it may have been ended by the same signal
        os.write(2, f"\ntaac: {message}\n".encode())  # printing may have been what was interrupted
