"""What a run folder holds, for those who write it and those who read it. Loads neither torch nor gin."""

from __future__ import annotations

from typing import NamedTuple


class EpisodeSummary(NamedTuple):
    """Averages over episodes."""

    episodes: int
    return_mean: float
    return_std: float
    length: float
    fraction_repeated: float  # of all transitions
    mean_run: float  # transitions a run
    max_run: int
    decisions: float  # per episode
    jerk: float
    fraction_same: float  # of all transitions, measured on the actions alone, whatever the method says it did
