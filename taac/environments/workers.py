"""Environments in worker processes: a time limit on each step, and a report of which environment failed and why."""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState, _async_worker

from taac.environments.seeded_episodes import REPLAY, Replay
from taac.machine.processes import exit_reason


class Workers(AsyncVectorEnv):
    """An `AsyncVectorEnv` whose calls have a time limit, and which can be closed when a process hangs or has died.

    A step or a reset may take `step_timeout` seconds; None waits for ever. A replay of n actions may take n + 1 times as long.
    """

    _at_exit: Callable[[], None] | None = None

    def __init__(self, makers: Sequence[Callable[[], gymnasium.Env]], step_timeout: float | None = None):
        # Not "fork", which torch's threads do not survive.
        super().__init__(makers, copy=False, context="spawn", autoreset_mode=AutoresetMode.NEXT_STEP, worker=_serve)
        self.step_timeout = step_timeout
        # At exit, multiprocessing would send processes that are still open a signal that they ignore, and wait for ever.
        self._at_exit = functools.partial(_kill, self.processes)
        atexit.register(self._at_exit)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        if terminate:
            _kill(self.processes)
        super().close_extras(timeout, terminate)
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        replays: Sequence[Replay] = (options or {}).get(REPLAY, ())
        steps = 1 + max((len(replay.actions) for replay in replays), default=0)
        self.reset_async(seed, options)
        return self.reset_wait(None if self.step_timeout is None else self.step_timeout * steps)

    def step(self, actions: Any) -> Any:
        self.step_async(actions)
        return self.step_wait(self.step_timeout)

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raises what the first failed environment raised. Gymnasium's method would also print every traceback as a warning."""
        count = sum(not success for success in successes)
        if count:
            errors = [self.error_queue.get() for _ in range(count)]
            _, kind, value, _ = min(errors, key=lambda item: item[0])
            raise kind(str(value))

    def find_failure(self, error: Exception) -> tuple[int, str] | None:
        """Returns the first environment that caused a call to fail and why: its process died, or it did not answer in time."""
        if not isinstance(error, (multiprocessing.TimeoutError, ConnectionError, EOFError)):
            return None
        late = isinstance(error, multiprocessing.TimeoutError)
        silent = [i for i, pipe in enumerate(self.parent_pipes) if late and not _has_answered(pipe)]
        deadline = time.monotonic() + 1.0
        while True:  # a process that has closed its pipe may take a moment to exit
            for index, process in enumerate(self.processes):
                if process.exitcode is not None:
                    return index, f"its process died ({exit_reason(process.exitcode)})"
            if silent or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return (silent[0], f"it did not answer within {self.step_timeout:g} s") if silent else None

    def any_dead(self) -> bool:
        return any(process.exitcode is not None for process in self.processes)

    def kill(self) -> None:
        """Kills all processes at once, whatever they are doing."""
        self._state = AsyncState.DEFAULT  # so that closing waits for no pending call
        self.close(terminate=True)


def _serve(*args: Any) -> None:
    """Gymnasium's worker, which ends without a traceback if the process that started it has ended, as by a signal to both."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _async_worker(*args)


def _kill(processes: Sequence[Any]) -> None:
    for process in processes:
        process.kill()
        process.join()


def _has_answered(pipe: Any) -> bool:
    with contextlib.suppress(OSError):  # closed at the other end
        return bool(pipe.poll(0))
    return True
