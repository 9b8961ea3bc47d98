"""How messages travel between the learner and a collector."""

from __future__ import annotations

from typing import Protocol


class Lost(Exception):
    """A collector is gone, or does not answer. The message says why."""


class Channel(Protocol):
    """A collector of its own, which answers every message by one reply, in order; see `worker.Answers`."""

    def send(self, message: bytes) -> None:
        """Sends a message. It does not wait for the collector to read it.

        Raises:
            Lost: the collector is gone.
        """

    def receive(self, timeout: float | None) -> bytes:
        """Returns the next reply. Waits `timeout` seconds; None waits for ever.

        Raises:
            Lost: the collector is gone, or there was no reply in time.
        """

    def hang_up(self) -> None:
        """Tells the collector to end, and does not wait for it. What it has not answered is dropped."""

    def close(self) -> None:
        """Ends the collector, whatever it is doing."""
