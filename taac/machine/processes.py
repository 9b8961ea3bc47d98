"""Functions for this process and its children: signals, ending together, imports, and the garbage collector."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys
from collections.abc import Iterator

# Signals that ask a process to stop, from the system or a scheduler, Ctrl-C, or a closed terminal.
INTERRUPTIONS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def settled_heap() -> Iterator[None]:
    """Excludes the objects that exist on entry from Python's garbage collection while the context is active.

    torch and the simulators create many, and scanning them repeatedly would take 3% of the training time. Where the caller has
    excluded objects already, nothing is done: theirs would be included on exit, and looking through all others takes a third of
    a second.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def interruptions_held() -> Iterator[None]:
    """Delays signals to stop while the context is active, for this process and for programs that it starts.

    Ctrl-C goes to a terminal's whole process group. A compiler that it interrupts would look like one that failed.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def import_elsewhere(module: str) -> None:
    """Imports a module in another working directory, for what it reads and starts while it is imported.

    matplotlib obeys a `matplotlibrc` that lies there, which can be a pipe, or have LaTeX called with its author's text. glfw,
    with which MuJoCo draws, starts a `python -c`, which looks for modules there first.
    """
    before = None
    if module not in sys.modules:
        with contextlib.suppress(OSError):  # it has been removed, with all that lay there
            before = os.getcwd()
            os.chdir(os.path.dirname(__file__))
    try:
        importlib.import_module(module)
    finally:
        if before is not None:
            os.chdir(before)


def die_with_parent(number: signal.Signals) -> None:
    """Asks Linux to send this process a signal when the thread that started it ends. Does nothing on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def exit_reason(exitcode: int) -> str:
    """Says how a process ended, by its exit code, which is negative after a signal."""
    if exitcode >= 0:
        return f"exit code {exitcode}"
    known = {int(number) for number in signal.Signals}  # most real-time signals have no name
    return signal.Signals(-exitcode).name if -exitcode in known else f"signal {-exitcode}"
