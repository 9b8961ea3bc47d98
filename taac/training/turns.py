"""Runs that take turns in one process: each in a thread of its own, only one of which runs at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch


class Generators(NamedTuple):
    """The global random generators, from which runs and environments draw."""

    of_python: Any
    of_numpy: Any
    of_torch: torch.Tensor
    of_cuda: torch.Tensor | None

    @staticmethod
    def now(device: torch.device) -> Generators:
        """Returns the current state.

        Args:
            device: of the run; its generator counts if it is a GPU.
        """
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return Generators(random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda)

    def restore(self, device: torch.device) -> None:
        """Makes this the current state."""
        random.setstate(self.of_python)
        np.random.set_state(self.of_numpy)
        torch.set_rng_state(self.of_torch)
        if self.of_cuda is not None:
            torch.cuda.set_rng_state(self.of_cuda, device)


class Turn:
    """A function that runs only while its caller waits in `resume`: a coroutine around code that knows nothing of it.

    It finds the global random generators as it left them, whatever was drawn from them meanwhile.

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
        self._function, self._device = function, device
        self._state = generators or Generators.now(device)
        self._own, self._callers = threading.Semaphore(0), threading.Semaphore(0)
        self._answer: Any = None
        self.began = self.ended = False
        self.error: BaseException | None = None
        self.request: Any = None

    def resume(self, answer: Any = None) -> None:
        """Lets the function run until it pauses or ends.

        Args:
            answer: returned by its `pause`.
        """
        outside = Generators.now(self._device)
        self._state.restore(self._device)
        self._answer, self.request = answer, None
        if self.began:
            self._own.release()
        else:
            self.began = True
            threading.Thread(target=self._run, daemon=True).start()
        self._callers.acquire()
        self._state = Generators.now(self._device)
        outside.restore(self._device)

    def pause(self, request: Any = None) -> Any:
        """Gives the turn back to who called `resume`; called by the function itself. Returns the next answer."""
        self.request = request
        self._callers.release()
        self._own.acquire()
        return self._answer

    def _run(self) -> None:
        try:
            self._function()
        except BaseException as error:  # given to the caller
            self.error = error
        self.ended = True
        self._callers.release()
