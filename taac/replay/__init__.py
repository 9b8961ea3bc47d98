"""Replay: the time-major ring buffer, sampled uniformly, by priority or with goals chosen in hindsight."""

from taac.replay.hindsight import HindsightReplayBuffer
from taac.replay.prioritized import PrioritizedReplayBuffer
from taac.replay.replay_buffer import Batch, Replay, ReplayBuffer

__all__ = ["Batch", "HindsightReplayBuffer", "PrioritizedReplayBuffer", "Replay", "ReplayBuffer"]
