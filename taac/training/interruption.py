"""SIGTERM and Ctrl-C: the first asks a run to stop in order, the second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from taac.errors import RESUMABLE

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interruption:
    """Within it, a signal is remembered instead of obeyed: calling it says whether one came.

    A second signal ends the process at once. That is safe at any moment, as SIGKILL is: what is on the disk is whole.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():  # no other may
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # os.write: printing may have been what was interrupted.
        if self.signal is not None:
            os.write(2, b"\ntaac: left at once; the same command goes on from the last checkpoint\n")
            os._exit(RESUMABLE)
        self.signal = signal.Signals(number)
        os.write(2, f"\ntaac: {self.signal.name}: finishing this iteration; once more to leave at once\n".encode())
