"""Processes: what asks them to stop, and children that must not outlive who started them."""

from __future__ import annotations

import ctypes
import signal
import sys

# What asks a process to stop: the system or a scheduler, Ctrl-C, a terminal that is closed.
INTERRUPTIONS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


def die_with_parent(number: signal.Signals) -> None:
    """Has Linux send this process a signal when the thread that started it ends; elsewhere, does nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG
