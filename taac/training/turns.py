"""Runs that take turns in one process: each in a thread of its own, only one of which runs at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from taac.acting.random_numbers import Generators


class Owner:
    """Whose numbers the global generators give at the moment. Exchanging them takes a tenth of a millisecond."""

    def __init__(self) -> None:
        self.turn: Turn | None = None

    def give(self, turn: Turn) -> None:
        """Has the generators go on as a turn left them, and remembers how they were left by the one before."""
        if self.turn is turn:
            return
        if self.turn is not None:
            self.turn.generators = Generators.now(self.turn.device)
        turn.generators.restore(turn.device)
        self.turn = turn


class _Signal:
    """Lets one thread wait for another: a semaphore that is never above 1, in half the time of threading's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.take, self.give = self._lock.acquire, self._lock.release


class Turn:
    """A function that runs only while its caller waits in `resume`: a coroutine around code that knows nothing of it.

    It finds the global random generators as it left them, whatever other turns have drawn from them meanwhile.

    Args:
        function: runs in a thread of its own, from the first `resume` on.
        device: that it computes on.
        generators: the state in which it finds them first; None: the present one.

    Attributes:
        began: whether it was ever resumed.
        ended: whether the function has returned or raised.
        error: what it raised.
        request: what it passed to `pause`, until it is resumed.
    """

    def __init__(
        self, function: Callable[[], object], device: torch.device, generators: Generators | None = None
    ):
        self._function, self.device = function, device
        self.generators = generators or Generators.now(device)
        self._own, self._callers = _Signal(), _Signal()
        self._answer: Any = None
        self.began = self.ended = False
        self.error: BaseException | None = None
        self.request: Any = None

    def resume(self, owner: Owner, answer: Any = None) -> None:
        """Lets the function run until it pauses or ends.

        Args:
            owner: the same for all turns that alternate.
            answer: returned by its `pause`.
        """
        owner.give(self)
        self._answer, self.request = answer, None
        if self.began:
            self._own.give()
        else:
            self.began = True
            threading.Thread(target=self._run, daemon=True).start()
        self._callers.take()

    def pause(self, request: Any = None) -> Any:
        """Gives the turn back to who called `resume`; called by the function itself. Returns the next answer."""
        self.request = request
        self._callers.give()
        self._own.take()
        return self._answer

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:  # given to the caller
            self.error = error
        self.ended = True
        self._callers.give()


def take_turns(
    turns: Sequence[Turn], compute: Callable[[dict[int, Any]], Mapping[int, Any]], stop: Callable[[], bool]
) -> None:
    """Gives turns until all have ended. What they request is computed when all that have not ended wait.

    Args:
        turns: begun or not.
        compute: called with requests by number of the turn; returns their answers, and draws no random numbers. Those who
            request None are not among them.
        stop: returns whether turns that have not begun are left out.
    """
    answers: dict[int, Any] = {}
    owner, outside = Owner(), [(device, Generators.now(device)) for device in {turn.device for turn in turns}]
    try:
        while going := [n for n, turn in enumerate(turns) if not turn.ended and (turn.began or not stop())]:
            for number in going:
                if turns[number].began or not stop():
                    turns[number].resume(owner, answers.pop(number, None))
            requests = {n: turns[n].request for n in going if not turns[n].ended and turns[n].request is not None}
            answers = dict(compute(requests))
    finally:
        for device, generators in outside:
            generators.restore(device)
