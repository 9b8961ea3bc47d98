"""This process and its children: what asks them to stop, how they end together, and the heap."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import signal
import sys
from collections.abc import Iterator

# What asks a process to stop: the system or a scheduler, Ctrl-C, a terminal that is closed.
INTERRUPTIONS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


@contextlib.contextmanager
def settled_heap() -> Iterator[None]:
    """Within it, Python's search for cycles leaves out the objects that are there at the beginning.

    Those of torch and the simulators are many, and looking at them again and again takes 3% of a training.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def interruptions_held() -> Iterator[None]:
    """Within it, signals that ask to stop wait, for this process and for programs that it starts, as a compiler.

    Ctrl-C goes to a terminal's whole group: a compiler that it ended would look like one that failed.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTIONS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with_parent(number: signal.Signals) -> None:
    """Has Linux send this process a signal when the thread that started it ends; elsewhere, does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG
