"""Collectors in processes of this machine."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from taac.machine.processes import INTERRUPTIONS, exit_reason, interruptions_held
from taac.parallel.pool import Lost
from taac.parallel.worker import Answers

PATIENCE = 2.0  # seconds that a collector has to end by itself


class ProcessChannel:
    """A collector in a process of its own, connected by a pipe.

    The process ends when its end of the pipe is closed, so it cannot outlive the learner. A thread writes the messages: a process
    that hangs reads none, and a pipe takes less than the parameters of most networks.
    """

    def __init__(self, name: str):
        context = _context()
        self._connection, theirs = context.Pipe()
        self._process: Any = context.Process(target=serve, args=(theirs, dict(os.environ)), name=name)
        with interruptions_held():  # the learner decides when to stop
            self._process.start()
        theirs.close()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._write, daemon=True).start()
        atexit.register(self.close)  # before multiprocessing's own, which would wait for the process

    def _write(self) -> None:
        """Writes all messages, and closes the connection when nothing follows. Nobody else does: its number could be reused."""
        while (message := self._outbox.get()) is not None:
            with contextlib.suppress(OSError):  # the process is gone, which `receive` finds
                self._connection.send_bytes(message)
        self._connection.close()

    def send(self, message: bytes) -> None:
        self._outbox.put(message)

    def receive(self, timeout: float | None) -> bytes:
        try:
            if timeout is not None and not self._connection.poll(timeout):
                raise Lost(f"it did not answer within {timeout:g} s")
            return self._connection.recv_bytes()
        except (OSError, EOFError) as error:
            raise Lost(self._end(error)) from error

    def _end(self, error: Exception) -> str:
        self._process.join(1.0)  # its exit code may come a moment after its end of the pipe is closed
        code = self._process.exitcode
        return f"its process died ({repr(error) if code is None else exit_reason(code)})"

    def hang_up(self) -> None:
        self._outbox.put(None)

    def close(self) -> None:
        atexit.unregister(self.close)
        self.hang_up()
        self._process.join(PATIENCE)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


def _context() -> Any:
    """Returns how processes are started: forked from one that has imported the package and does nothing else."""
    # Now, because starting it lets SIGINT and SIGTERM through, and a server that is started after it would end by them.
    resource_tracker.ensure_running()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(sorted(name for name in sys.modules if name.partition(".")[0] == "taac"))
    return context


def serve(connection: Connection, variables: dict[str, str]) -> None:
    """Answers the messages of a pipe until its other end is closed. Runs in the collector's process.

    `variables` are the learner's environment variables. The process that this one was forked from may be older than some.
    """
    os.environ.clear()
    os.environ.update(variables)
    # Signals do nothing, because the learner, which they may have reached too, still needs the running episodes. They are
    # handled, not ignored: programs that an environment starts would inherit that.
    for number in INTERRUPTIONS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTIONS)
    inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    over = threading.Event()
    threading.Thread(target=_read, args=(connection, inbox, over), daemon=True).start()
    answers = Answers()
    while (message := inbox.get()) is not None and not over.is_set():
        try:
            connection.send_bytes(answers.answer(message))
        except OSError:
            break
    answers.close()
    os._exit(0)


def _read(connection: Connection, inbox: queue.SimpleQueue[bytes | None], over: threading.Event) -> None:
    """Reads all messages as they come, so that the learner never waits for a step. Ends the process after the last."""
    try:
        while True:
            inbox.put(connection.recv_bytes())
    except (OSError, EOFError):
        over.set()
        inbox.put(None)
        threading.Event().wait(PATIENCE / 2)
        os._exit(1)  # the environment does not end
