"""Environments in processes of their own: a limit on how long a step may take, and which of them failed, and how."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from taac.environments.seeded_episodes import REPLAY, Replay


class Workers(AsyncVectorEnv):
    """An `AsyncVectorEnv` whose calls have a time limit, and that can be ended when a process of it hangs or is gone.

    Args:
        makes: make the environments, each in a process of its own.
        step_timeout: seconds that a step or a reset may take; None: for ever.
    """

    _at_exit: Callable[[], None] | None = None

    def __init__(self, makes: Sequence[Callable[[], gymnasium.Env]], step_timeout: float | None = None):
        # Not "fork": torch's threads do not survive it.
        super().__init__(makes, copy=False, context="spawn", autoreset_mode=AutoresetMode.NEXT_STEP)
        self.step_timeout = step_timeout
        # Left open until the interpreter ends, they would be waited for, asked to stop by a signal that they ignore.
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
        """Raises what the first environment raised. Gymnasium's own also prints every traceback, as warnings."""
        count = sum(not success for success in successes)
        if count:
            found = [self.error_queue.get() for _ in range(count)]
            _, kind, value, _ = min(found, key=lambda item: item[0])
            raise kind(str(value))

    def failed(self, error: Exception) -> tuple[int, str] | None:
        """Of the environments for which a call failed: the first one's number, and how it failed; None: it is none of theirs.

        That is one whose process died or, if time ran out, one that has not answered.
        """
        if not isinstance(error, (multiprocessing.TimeoutError, ConnectionError, EOFError)):
            return None
        late = isinstance(error, multiprocessing.TimeoutError)
        silent = [i for i, pipe in enumerate(self.parent_pipes) if late and not _answers(pipe)]
        deadline = time.monotonic() + 1.0
        while True:  # a process that has closed its pipe may take a moment to be gone
            for index, process in enumerate(self.processes):
                if process.exitcode is not None:
                    return index, f"its process died ({_how(process.exitcode)})"
            if silent or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        return (silent[0], f"it did not answer within {self.step_timeout:g} s") if silent else None

    def kill(self) -> None:
        """Ends all processes at once, whatever they are doing."""
        self._state = AsyncState.DEFAULT  # nothing is waited for any more
        self.close(terminate=True)


def _kill(processes: Sequence[Any]) -> None:
    for process in processes:
        process.kill()
        process.join()


def _answers(pipe: Any) -> bool:
    try:
        return bool(pipe.poll(0))
    except OSError:
        return True  # closed at the other end


def _how(exitcode: int) -> str:
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"
