"""Replay: the time-major ring buffer."""

from taac.replay.replay_buffer import ReplayBuffer

__all__ = ["ReplayBuffer"]
