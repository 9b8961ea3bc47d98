"""N collectors as the learner sees them: starts them, orders frames from them, and replaces those that are lost."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from taac.acting.random_numbers import COLLECTORS
from taac.errors import EnvironmentFailed, TaacError
from taac.parallel import worker
from taac.parallel.channels import Channel, Lost
from taac.runs.terminal import warn_user

START = 60.0  # seconds that a process may take to start, besides those for a frame


@dataclass
class Remote:
    """One of the collectors."""

    number: int
    generation: int = 0  # which of the collectors it is that have had this number; its seeds follow from both
    channel: Channel | None = None
    held: list[np.ndarray] = field(default_factory=list)  # leaves of the time step of its next frame
    pending: deque[worker.Frame] = field(default_factory=deque)  # answered before they were needed
    asked: int = 0  # frames ordered and not yet answered
    informed: bool = False  # whether it was sent the newest parameters

    @property
    def ahead(self) -> int:
        """Frames that it was ordered and that have not been taken."""
        return self.asked + len(self.pending)

    def send(self, message: bytes) -> None:
        """Sends a message; see `Channel`."""
        assert self.channel is not None
        self.channel.send(message)

    def close(self) -> None:
        """Ends it."""
        if self.channel is not None:
            self.channel.close()


class CollectorPool:
    """Keeps N collectors at work.

    Args:
        number: N.
        start: starts a collector, of a name.
        plan: of a collector that has a seed.
        seed: of the run. Each collector, and each replacement of one, has a seed derived from it.
        lost_info: returns the leaves of the `info` at a frame that ends a lost collector's episodes, from those of its time step.
        timeout: seconds that a frame may take; None waits for ever.
        max_replacements, window: greatest number of collectors that are replaced within `window` seconds.
    """

    def __init__(
        self,
        number: int,
        start: Callable[[str], Channel],
        plan: Callable[[int], worker.Plan],
        seed: int,
        lost_info: Callable[[list[np.ndarray]], list[np.ndarray]],
        timeout: float | None,
        max_replacements: int,
        window: float,
    ):
        self.remotes = [Remote(index) for index in range(number)]
        self._start, self._plan, self._seed, self._lost_info = start, plan, seed, lost_info
        self._timeout, self._max_replacements, self._window = timeout, max_replacements, window
        self._replaced_at: deque[float] = deque()

    @property
    def begun(self) -> bool:
        """Whether the collectors have been started."""
        return self.remotes[0].channel is not None

    def begin(self, states: Sequence[dict[str, Any] | None] = ()) -> None:
        """Starts all collectors.

        Args:
            states: of earlier ones, as `state` returned them; None, or none at all, begins new episodes.

        Raises:
            EnvironmentFailed: one of them cannot begin. It is not replaced, because another one could not either.
        """
        given = states or [None] * len(self.remotes)
        try:
            for remote, state in zip(self.remotes, given, strict=True):
                self._launch(remote, state)
            for remote, state in zip(self.remotes, given):
                reached = self._receive(remote, START, 1 + _repeated(state))  # the leaves of its first time step
                remote.held = remote.held or reached
        except Lost as why:
            raise EnvironmentFailed(
                f"a collector cannot begin: {why}. Collectors are processes of their own, which import what makes the "
                "environment; a Python program that trains must do so below `if __name__ == '__main__':`"
            ) from why

    def order(self, remotes: Sequence[Remote], message: Callable[[bool], bytes]) -> None:
        """Orders a frame from each of some collectors.

        Args:
            message: returns an order, called with whether it must hold the parameters.
        """
        messages: dict[bool, bytes] = {}
        for remote in remotes:
            if remote.informed not in messages:
                messages[remote.informed] = message(not remote.informed)
            try:
                remote.send(messages[remote.informed])
            except Lost as why:
                remote.pending.append(self._replaced(remote, why))
                continue
            remote.asked, remote.informed = remote.asked + 1, True

    def take(self, remote: Remote) -> worker.Frame:
        """Returns the next frame of a collector.

        A collector that is lost is replaced. Its frame then ends its episodes where they were last seen.

        Raises:
            EnvironmentFailed: too many have been replaced.
            TaacError: what a collector raised otherwise.
        """
        if remote.pending:
            return remote.pending.popleft()
        try:
            frame: worker.Frame = self._receive(remote)
        except Lost as why:
            return self._replaced(remote, why)
        remote.asked -= 1
        return frame

    def state(self, remote: Remote) -> dict[str, Any]:
        """Returns the state of a collector after all frames that it was ordered, which wait to be taken from then on."""
        while True:
            try:
                while remote.asked:
                    remote.pending.append(self._receive(remote))
                    remote.asked -= 1
                remote.send(worker.message(worker.STATE))
                state: dict[str, Any] = self._receive(remote)
                return state
            except Lost as why:
                remote.pending.append(self._replaced(remote, why))

    def close(self) -> None:
        """Ends all collectors. `begin` can start them again."""
        for remote in self.remotes:
            if remote.channel is not None:
                remote.channel.hang_up()
        for remote in self.remotes:
            remote.close()
        self.remotes = [Remote(remote.number) for remote in self.remotes]

    def _launch(self, remote: Remote, state: dict[str, Any] | None) -> None:
        seeds = np.random.SeedSequence([self._seed, COLLECTORS, remote.number, remote.generation])
        plan = self._plan(int(seeds.generate_state(1)[0] % 2**31))
        remote.channel, remote.asked, remote.informed = self._start(f"taac collector {remote.number}"), 0, False
        remote.send(worker.message(worker.BEGIN, plan, state))

    def _receive(self, remote: Remote, more: float = 0.0, frames: int = 1) -> Any:
        """Returns the result of the next reply, which may take as long as so many frames, and `more` seconds."""
        assert remote.channel is not None
        timeout = None if self._timeout is None else self._timeout * frames + more
        kind, result = pickle.loads(remote.channel.receive(timeout))
        if kind == worker.FAILED:
            raise Lost(result)
        if kind == worker.REFUSED:
            raise result
        if kind == worker.BROKEN:
            raise TaacError(f"collector {remote.number} failed:\n{result}")
        return result

    def _replaced(self, remote: Remote, why: Lost) -> worker.Frame:
        """Replaces a lost collector. Returns the frame that ends its episodes."""
        times = 0
        while True:
            remote.close()
            self._check_replacements(f"collector {remote.number}: {why}")
            warn_user(
                f"collector {remote.number}: {why}; replaced it: its running episodes were truncated, and new ones begin"
            )
            remote.generation, times = remote.generation + 1, times + 1
            info = self._lost_info(remote.pending[-1].reached if remote.pending else remote.held)
            try:
                self._launch(remote, None)
                return worker.Frame(info, self._receive(remote, START), True, 0, 0, 0, 0, [], times)
            except Lost as again:
                why = again

    def _check_replacements(self, failure: str) -> None:
        now = time.monotonic()
        while self._replaced_at and now - self._replaced_at[0] > self._window:
            self._replaced_at.popleft()
        if len(self._replaced_at) >= self._max_replacements:
            raise EnvironmentFailed(
                f"{failure}. Collectors have been replaced {len(self._replaced_at)} times within {self._window:g} s, and "
                f"RemoteCollector.max_replacements = {self._max_replacements} allows no more"
            )
        self._replaced_at.append(now)


def _repeated(state: dict[str, Any] | None) -> int:
    """Returns the number of frames that a collector repeats when it begins with a state: those of its longest running episode."""
    running = None if state is None else state["collector"]["running"]
    return max((len(actions[0]) for actions in running["actions"]), default=0) if running else 0
