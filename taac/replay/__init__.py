"""Replay: the time-major ring buffer, sampled uniformly or by priority; recorded episodes, and how they enter batches."""

from taac.demonstrations.replay import Demonstrations, SqilReplay, kept_apart, prefilled
from taac.replay.prioritized import PrioritizedReplayBuffer
from taac.replay.replay_buffer import ReplayBuffer

__all__ = ["Demonstrations", "PrioritizedReplayBuffer", "ReplayBuffer", "SqilReplay", "kept_apart", "prefilled"]
