"""Compiles programs in another process while this one collects, into torch's cache on the disk."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

import torch

from taac.data_structures import Nest
from taac.machine.compiled import CompiledFunction
from taac.machine.processes import INTERRUPTIONS, die_with_parent

LONGEST = 1800.0  # seconds that a call waits for the process; what takes longer hangs


def compile_ahead(calls: Sequence[tuple[Callable[..., Nest], tuple[Nest, ...]]]) -> Callable[[Callable[[], bool]], None]:
    """Begins to compile functions in another process. Their first calls wait for it.

    Nothing else depends on how long that takes. A forked process can hang, on a lock that a thread of this one held; it is ended
    after `LONGEST`. Does nothing where a process cannot be forked safely: outside Linux, or where torch computes with several
    threads.

    Args:
        calls: functions with arguments like those of their first calls. Those that are not `CompiledFunction`s are left out.

    Returns:
        What waits for that process, or ends it as soon as the function that it is given returns true.
    """
    worker = _Worker()
    if sys.platform == "linux" and torch.get_num_threads() == 1:
        traced = [fn.trace_ahead(args, worker.wait) for fn, args in calls if isinstance(fn, CompiledFunction)]
        worker.start([compile for compile in traced if compile is not None])
    return worker.wait


class _Worker:
    """A process that calls functions for what they leave on the disk."""

    def __init__(self) -> None:
        self._process: Any = None

    def __deepcopy__(self, memo: Any) -> _Worker:
        return self  # a copy of a function waits for the same process

    def start(self, functions: Sequence[Callable[[], object]]) -> None:
        if not functions:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, whose locks `_run` does not take
            self._process = multiprocessing.get_context("fork").Process(target=_run, args=(functions,), daemon=True)
            self._process.start()

    def wait(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Waits for the process, or ends it as soon as `stop` returns true."""
        if self._process is None:
            return
        deadline = time.monotonic() + LONGEST
        while not connection.wait([self._process.sentinel], 0.1):  # no exit code is ever known where SIGCHLD is ignored
            if stop() or time.monotonic() > deadline:
                self._process.kill()
                break
        self._process.join()
        self._process = None


def _run(functions: Sequence[Callable[[], object]]) -> None:
    for number in INTERRUPTIONS:  # the run's own handlers would say that it stops
        signal.signal(number, signal.SIG_DFL)
    die_with_parent(signal.SIGKILL)
    with contextlib.suppress(Exception):  # what cannot be compiled is reported by the call
        for function in functions:
            function()
