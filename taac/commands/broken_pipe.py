"""Output that survives a closed pipe, a terminal that was closed, and streams that were closed from the beginning."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Any, TextIO


def open_closed_streams() -> None:
    """Opens those of the three standard streams that were closed (`taac list >&-`) on the null device.

    Otherwise the next file that is opened gets the number of one, and what is printed goes into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)  # by processes that this one starts
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


class BrokenPipeTolerant:
    """A stream that discards its output once its reader has exited, instead of raising an error.

    A run of weeks should not end because `tee` did, or the terminal of a job that was disowned. Also, Ctrl-C ends `tee` before
    the run has saved its state.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._into_nothing():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._into_nothing():
            self._stream.flush()

    @contextlib.contextmanager
    def _into_nothing(self) -> Any:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO, errno.EBADF):
                raise
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno())
            os.close(nothing)
