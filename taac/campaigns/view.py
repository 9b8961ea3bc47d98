"""The progress of a campaign, on standard error."""

from __future__ import annotations

import contextlib
import shutil
import sys

from taac.campaigns.campaign import State
from taac.campaigns.run import Run
from taac.runs import terminal


class View:
    """Shows progress: one line that is updated in place on a terminal, or elsewhere a line whenever a run begins or ends.

    A failed run is reported at once, on a line that stays. Where nobody can read it any more, as when `tee` or the terminal has
    gone, the runs go on.
    """

    def __init__(self) -> None:
        self._file, self._live = sys.stderr, sys.stderr.isatty()
        self._counts = ""
        self._failed: set[Run] = set()

    def __enter__(self) -> View:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with contextlib.suppress(OSError):
            if self._live and self._counts:
                self._file.write("\n")

    def show(self, state: State) -> None:
        with contextlib.suppress(OSError):
            self._show(state)

    def _show(self, state: State) -> None:
        for run, why in state.failed.items():
            if run not in self._failed:
                self._failed.add(run)
                self._clear()
                print(f"failed: {terminal.printable(f'{run.name}: {why}')}", flush=True)
        line = str(state)
        counts = line.split(", about")[0]
        if self._live:
            self._clear()
            self._file.write(line[: shutil.get_terminal_size().columns - 1])  # a line that wraps could not be cleared
        elif counts != self._counts:
            self._file.write(f"{line}\n")
        self._counts = counts
        self._file.flush()

    def _clear(self) -> None:
        if self._live:
            self._file.write("\r\x1b[K")
            self._file.flush()
