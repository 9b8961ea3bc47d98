"""Replay: the time-major ring buffer, sampled uniformly or by priority."""

from taac.replay.batch import Batch, Replay
from taac.replay.prioritized import PrioritizedReplayBuffer
from taac.replay.replay_buffer import ReplayBuffer

__all__ = ["Batch", "PrioritizedReplayBuffer", "Replay", "ReplayBuffer"]
