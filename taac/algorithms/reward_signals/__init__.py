"""Additional rewards beside the task's, one file each."""

from taac.algorithms.reward_signals.gail import GAIL
from taac.algorithms.reward_signals.icm import ICM
from taac.algorithms.reward_signals.rnd import RND
from taac.algorithms.reward_signals.signal import RewardSignal

__all__ = ["GAIL", "ICM", "RND", "RewardSignal"]
