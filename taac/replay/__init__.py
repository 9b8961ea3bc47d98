"""Replay: the time-major ring buffer, sampled uniformly or by priority."""

from taac.replay.prioritized import PrioritizedReplayBuffer
from taac.replay.replay_buffer import Batch, Replay, ReplayBuffer

__all__ = ["Batch", "PrioritizedReplayBuffer", "Replay", "ReplayBuffer"]
