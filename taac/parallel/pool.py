"""N collectors as the learner sees them: starts them, orders frames from them, and replaces those that are lost.

Checkpoints hold collectors as tensors, numbers and lists.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from taac import nest
from taac.acting import collecting
from taac.acting.random_numbers import COLLECTORS, derived_seed
from taac.data_structures import Nest
from taac.errors import EnvironmentFailed, TaacError
from taac.parallel import worker
from taac.runs.files import Damaged
from taac.runs.terminal import warn_user

START = 60.0  # seconds that a process may take to start, besides those for a frame
WINDOW = 3600.0  # seconds within which losses are counted


class Lost(Exception):
    """A collector is gone, or does not answer. The message says why."""


class Channel(Protocol):
    """A collector of its own, which answers every message by one reply, in order; see `worker.Answers`."""

    def send(self, message: bytes) -> None:
        """Sends a message, without waiting until the collector reads it, even if the collector is gone."""

    def receive(self, timeout: float | None) -> bytes:
        """Returns the next reply. Raises `Lost` if the collector is gone, or silent for `timeout` seconds (None: no limit)."""

    def hang_up(self) -> None:
        """Tells the collector to end, and does not wait for it. What it has not answered is dropped."""

    def close(self) -> None:
        """Ends the collector, whatever it is doing."""


@dataclass
class Remote:
    """One of the collectors."""

    number: int
    generation: int = 0  # how often the collector of this number was replaced; its seed follows from both
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
        assert self.channel is not None
        self.channel.send(message)

    def close(self) -> None:
        if self.channel is not None:
            self.channel.close()

    def state_dict(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns the collector for a checkpoint, from its own `state`, as `Worker.state` returned it."""
        pending = [
            {
                **frame._asdict(), "info": _tensors(frame.info), "reached": _tensors(frame.reached),
                "ended": [collecting.plain(episode) for episode in frame.ended],
            }
            for frame in self.pending
        ]  # fmt: skip
        return {"worker": state, "generation": self.generation, "held": _tensors(self.held), "pending": pending}

    def load_state_dict(self, state: dict[str, Any], time_step: Nest, info: Nest, num_envs: int) -> None:
        """Restores `state_dict`, but for the collector's own state, given specs of both and the number of its environments.

        Raises:
            Damaged: its frames do not fit.
        """
        self.generation = int(state["generation"])
        self.held = _arrays(state["held"], time_step, num_envs)
        for kept in state["pending"]:
            leaves = {"info": _arrays(kept["info"], info, num_envs), "reached": _arrays(kept["reached"], time_step, num_envs)}
            ended = [collecting.episode(one) for one in kept["ended"]]
            self.pending.append(worker.Frame(**{**kept, **leaves, "ended": ended}))


def _tensors(leaves: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(np.array(leaf)) for leaf in leaves]


def _arrays(leaves: list[torch.Tensor], like: Nest, num_envs: int) -> list[np.ndarray]:
    expected = [(spec.dtype, [num_envs, *spec.shape]) for spec in nest.flatten(like)]
    if (given := [(leaf.dtype, list(leaf.shape)) for leaf in leaves]) != expected:
        raise Damaged(f"it holds frames of another kind: {given}, expected {expected}")
    return [leaf.numpy() for leaf in leaves]


class CollectorPool:
    """Keeps N collectors at work.

    Args:
        number: N.
        start: starts a collector of a name.
        plan: returns the plan of the collector with a seed.
        seed: of the run. Each collector, and each replacement of one, has a seed derived from it.
        lost_info: returns the leaves of the `info` at a frame that ends a lost collector's episodes, from those of its time step.
        timeout: seconds that a frame may take; None waits for ever.
        max_replacements: greatest number of collectors that are replaced within `WINDOW` seconds.
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
    ):
        self.remotes = [Remote(index) for index in range(number)]
        self._start, self._plan, self._seed, self._lost_info = start, plan, seed, lost_info
        self._timeout, self._max_replacements = timeout, max_replacements
        self._replaced_at: deque[float] = deque()

    @property
    def begun(self) -> bool:
        """Whether the collectors have been started."""
        return self.remotes[0].channel is not None

    def begin(self, states: Sequence[dict[str, Any] | None] = ()) -> None:
        """Starts all collectors with the states of earlier ones, as `state` returned them. Without them, new episodes begin.

        Raises:
            EnvironmentFailed: one of them cannot begin. It is not replaced, because another one could not either.
        """
        given = states or [None] * len(self.remotes)
        try:
            for remote, state in zip(self.remotes, given, strict=True):
                self._launch(remote, state)
            for remote, state in zip(self.remotes, given):
                running = None if state is None else state["collector"]["running"]  # it first repeats the running episodes
                repeated = max((len(actions[0]) for actions in running["actions"]), default=0) if running else 0
                reached = self._receive(remote, START, 1 + repeated)  # the leaves of its first time step
                remote.held = remote.held or reached
        except Lost as why:
            raise EnvironmentFailed(
                f"a collector cannot begin: {why}. Collectors are processes of their own, which import what makes the "
                "environment; a Python program that trains must do so below `if __name__ == '__main__':`"
            ) from why

    def order(self, remotes: Sequence[Remote], message: Callable[[bool], bytes]) -> None:
        """Orders a frame from each of some collectors, by a `message` that is made with or without the parameters."""
        messages: dict[bool, bytes] = {}
        for remote in remotes:
            if remote.informed not in messages:
                messages[remote.informed] = message(not remote.informed)
            remote.send(messages[remote.informed])
            remote.asked, remote.informed = remote.asked + 1, True

    def take(self, remote: Remote) -> worker.Frame:
        """Returns a collector's next frame. One that is lost is replaced; its frame ends its episodes where they were last seen.

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
        plan = self._plan(derived_seed(self._seed, COLLECTORS, remote.number, remote.generation))
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
            warn_user(f"collector {remote.number}: {why}; replaced it: its running episodes were truncated, and new ones begin")
            remote.generation, times = remote.generation + 1, times + 1
            info = self._lost_info(remote.pending[-1].reached if remote.pending else remote.held)
            try:
                self._launch(remote, None)
                return worker.Frame(info, self._receive(remote, START), True, 0, 0, 0, 0, [], times)
            except Lost as again:
                why = again

    def _check_replacements(self, failure: str) -> None:
        now = time.monotonic()
        while self._replaced_at and now - self._replaced_at[0] > WINDOW:
            self._replaced_at.popleft()
        if len(self._replaced_at) >= self._max_replacements:
            raise EnvironmentFailed(
                f"{failure}. Collectors have been replaced {len(self._replaced_at)} times within {WINDOW:g} s, and "
                f"RemoteCollector.max_replacements = {self._max_replacements} allows no more"
            )
        self._replaced_at.append(now)
