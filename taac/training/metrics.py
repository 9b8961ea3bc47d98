"""What happened in each episode: return, length, and the act-or-repeat record. The one place that counts it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from taac.data_structures import AlgStep, StepType, TimeStep


class Episode(NamedTuple):
    """One finished episode of one environment."""

    ret: np.ndarray  # undiscounted sum of raw rewards; [] or [D]
    length: int  # transitions
    repeated: int  # transitions at which the old trajectory went on
    decisions: int  # transitions at which a new action was chosen
    runs: int  # stretches of one decision; an episode that begins without a decision begins a run all the same
    longest_run: int  # most transitions in a row that followed one decision
    jerk: float  # mean squared second difference of the action in [-1, 1], over dimensions and time; 0 if length < 3


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


class EpisodeRecorder:
    """Follows the environments of a rollout and hands out episodes as they end.

    `add` takes the frames in order. What an episode needs of the past is kept for each environment.
    """

    def __init__(self, num_envs: int):
        self._rows: list[_Running] = [_Running() for _ in range(num_envs)]

    def add(
        self,
        time_step: TimeStep,
        alg_step: AlgStep,
        raw_reward: np.ndarray | None = None,
        durations: np.ndarray | None = None,
    ) -> list[tuple[int, Episode]]:
        """Takes one frame of every environment; gives (environment, episode) for those that ended here.

        Args:
            raw_reward: `[B]` or `[B, D]`, undiscounted, received on arriving here; None: it is `time_step.reward`.
            durations: `[B]`, how many environment steps the action taken here lasts; None: 1.
        """
        step_type = time_step.step_type.tolist()
        reward = time_step.reward.cpu().numpy() if raw_reward is None else raw_reward
        lasts = [1] * len(self._rows) if durations is None else durations.tolist()
        decided = alg_step.decided.tolist()
        action = alg_step.output.cpu().numpy()
        ended = []
        for i, row in enumerate(self._rows):
            if step_type[i] == StepType.FIRST:
                self._rows[i] = row = _Running()
            else:
                row.ret = row.ret + reward[i]
            if step_type[i] == StepType.LAST:
                ended.append((i, row.finish()))
                self._rows[i] = _Running()
            else:
                for step in range(lasts[i]):  # an action repeated inside the environment is repeated all the same
                    row.act(action[i], decided[i] and step == 0)
        return ended


class _Running:
    """An episode under way."""

    def __init__(self) -> None:
        self.ret = np.zeros(())
        self.length = self.repeated = self.runs = self.run = self.longest = 0
        self.last: np.ndarray | None = None
        self.before: np.ndarray | None = None
        self.jerk_sum = 0.0

    def act(self, action: np.ndarray, decided: bool) -> None:
        begins = decided or self.length == 0
        self.length += 1
        self.repeated += not decided
        self.runs += begins
        self.run = 1 if begins else self.run + 1
        self.longest = max(self.longest, self.run)
        if self.before is not None and self.last is not None:
            self.jerk_sum += float(np.mean((action - 2 * self.last + self.before) ** 2))
        self.before, self.last = self.last, action

    def finish(self) -> Episode:
        jerk = self.jerk_sum / (self.length - 2) if self.length > 2 else 0.0
        decisions = self.length - self.repeated
        return Episode(self.ret, self.length, self.repeated, decisions, self.runs, self.longest, jerk)


def summarize(episodes: Sequence[Episode] | Iterable[Episode]) -> EpisodeSummary:
    """Averages over at least one episode; a vector return is summed over its parts."""
    episodes = list(episodes)
    returns = np.array([np.sum(e.ret) for e in episodes], dtype=np.float64)
    transitions = sum(e.length for e in episodes)
    return EpisodeSummary(
        episodes=len(episodes),
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        length=transitions / len(episodes),
        fraction_repeated=sum(e.repeated for e in episodes) / max(1, transitions),
        mean_run=transitions / max(1, sum(e.runs for e in episodes)),
        max_run=max(e.longest_run for e in episodes),
        decisions=sum(e.decisions for e in episodes) / len(episodes),
        jerk=float(np.mean([e.jerk for e in episodes])),
    )
