"""Statistics of episodes: return, length, and how often actions were repeated. All of them are computed here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from taac import nest
from taac.data_structures import FIRST, LAST, AlgStep, Nest, TimeStep
from taac.runs.layout import EpisodeSummary

_AT_ONCE = 64  # frames processed together


class Episode(NamedTuple):
    """One finished episode of one environment."""

    ret: np.ndarray  # undiscounted sum of raw rewards; [] or [D]
    length: int  # transitions
    repeated: float  # transitions that continued the old trajectory; averaged over dimensions that decide separately
    decisions: int  # transitions at which at least one dimension chose a new action
    runs: float  # runs of transitions under one decision; an episode's first transition always begins a run
    longest_run: int  # most transitions in a row under one decision
    jerk: float  # mean squared second difference of the action in [-1, 1], over dimensions and time; 0 if length < 3
    same: float  # transitions whose action exactly equals the one before; mean over dimensions


class _Frame(NamedTuple):
    """The arguments of `EpisodeRecorder.add`, copied to arrays."""

    first: np.ndarray  # [B]
    last: np.ndarray  # [B]
    reward: np.ndarray  # [B] or [B, D]
    action: np.ndarray  # [B, A]
    decided: np.ndarray  # [B, parts]
    lasts: np.ndarray  # [B], environment steps that the action lasts; 0 at LAST


class EpisodeRecorder:
    """Follows the environments of a rollout and returns episodes as they end.

    `add` expects the frames in order. Frames are processed in groups, because processing them one by one, between policy and
    simulator, takes several times as long.

    Attributes:
        steps, transitions, decisions: environment steps, actions sent to environments, and new actions, in the last frame
            added, summed over environments.
    """

    steps = transitions = decisions = 0

    def __init__(self, num_envs: int):
        self._num_envs = num_envs
        self._rows: _Rows | None = None
        self._waiting: list[_Frame] = []  # not yet processed; only the last of them can end an episode

    def add(
        self,
        time_step: TimeStep,
        alg_step: AlgStep,
        raw_reward: np.ndarray | None = None,
        duration: torch.Tensor | None = None,
    ) -> list[tuple[int, Episode]]:
        """Adds one frame of every environment; returns (environment, episode) for each episode that ended in it.

        Args:
            time_step: the frame.
            alg_step: what the agent did there.
            raw_reward: `[B]` or `[B, D]`, undiscounted reward received on arriving here; None: `time_step.reward`.
            duration: `[B]`, environment steps that the action taken here lasts; None: 1.
        """
        reward = np.array(time_step.reward.cpu().numpy() if raw_reward is None else raw_reward)
        decided = np.array(alg_step.decided.cpu().numpy()).reshape(self._num_envs, -1)
        step_type = time_step.step_type.cpu().numpy()
        last = step_type == LAST
        lasts = np.where(last, 0, 1 if duration is None else duration.cpu().numpy())
        self._waiting.append(_Frame(step_type == FIRST, last, reward, _vector(alg_step.output), decided, lasts))
        self.steps, self.transitions = int(lasts.sum()), int((~last).sum())
        self.decisions = int((decided.any(1) & ~last).sum())
        return self._work() if len(self._waiting) == _AT_ONCE or last.any() else []

    def _work(self) -> list[tuple[int, Episode]]:
        """Processes the waiting frames; returns the episodes that end with the last of them."""
        ended: list[tuple[int, Episode]] = []
        for frame in self._waiting:
            if self._rows is None:
                sizes = frame.reward.shape[1:], frame.action.shape[1], frame.decided.shape[1]
                self._rows = _Rows(self._num_envs, *sizes)
            rows = self._rows
            rows.clear(frame.first)
            rows.ret[~frame.first] += frame.reward[~frame.first]
            ended += [(i, rows.episode(i)) for i in np.flatnonzero(frame.last).tolist()]
            for step in range(frame.lasts.max()):  # steps repeated inside the environment count as repeats
                rows.act(frame.lasts > step, frame.action, frame.decided if step == 0 else np.zeros_like(frame.decided))
        self._waiting.clear()
        return ended

    def state_dict(self) -> dict[str, torch.Tensor] | None:
        """Returns the statistics of the running episodes; None before the first frame."""
        self._work()  # ends no episode: `add` has already returned those that ended
        return (
            None if self._rows is None else {name: torch.from_numpy(v.copy()) for name, v in vars(self._rows).items()}
        )

    def load_state_dict(self, state: dict[str, torch.Tensor] | None) -> None:
        self._rows = None
        self._waiting.clear()
        if state is not None:
            rewards, actions, parts = (state[name].shape[1:] for name in ("ret", "last", "run"))
            self._rows = _Rows(self._num_envs, tuple(rewards), *actions, *parts)
            for name, value in vars(self._rows).items():
                value[...] = state[name].numpy()


def _vector(action: Nest) -> np.ndarray:
    """Returns the continuous parts of a nested action `[B, ...]` as one vector `[B, A]`; its choices, if it has none."""
    leaves = nest.flatten(action)
    continuous = [leaf for leaf in leaves if leaf.is_floating_point()] or leaves
    return np.concatenate([leaf.reshape(len(leaf), -1).cpu().numpy() for leaf in continuous], axis=1)


def _mean(x: np.ndarray) -> np.ndarray:
    """`x.mean(1)`, but four times as fast on rows as short as an action."""
    return np.add.reduce(x, axis=1, dtype=np.float64) / x.shape[1]


class _Rows:
    """Statistics of the running episodes, a row per environment."""

    def __init__(self, num_envs: int, reward_shape: tuple[int, ...], action_size: int, parts: int):
        self.ret = np.zeros((num_envs, *reward_shape))
        self.length, self.decisions, self.longest = (np.zeros(num_envs, dtype=np.int64) for _ in range(3))
        self.repeated, self.runs, self.jerk, self.same = (np.zeros(num_envs) for _ in range(4))
        self.run = np.zeros((num_envs, parts), dtype=np.int64)
        self.last, self.before = np.zeros((num_envs, action_size)), np.zeros((num_envs, action_size))

    def clear(self, rows: np.ndarray) -> None:
        if rows.any():
            for value in vars(self).values():
                value[rows] = 0

    def act(self, rows: np.ndarray, action: np.ndarray, decided: np.ndarray) -> None:
        """Adds one transition in the selected rows `[B]` (bool); `decided` is `[B, parts]`."""
        begins = decided | (self.length == 0)[:, None]
        self.run = np.where(rows[:, None], np.where(begins, 1, self.run + 1), self.run)
        self.longest = np.maximum(self.longest, self.run.max(1))
        self.decisions += rows & decided.any(1)
        self.repeated += rows * _mean(~decided)
        self.runs += rows * _mean(begins)
        self.same += rows * (self.length > 0) * _mean(action == self.last)
        self.jerk += rows * (self.length > 1) * _mean(np.square(action - 2 * self.last + self.before))
        self.length += rows
        self.before = np.where(rows[:, None], self.last, self.before)
        self.last = np.where(rows[:, None], action, self.last)

    def episode(self, row: int) -> Episode:
        length = int(self.length[row])
        return Episode(
            ret=self.ret[row].copy(),
            length=length,
            repeated=float(self.repeated[row]),
            decisions=int(self.decisions[row]),
            runs=float(self.runs[row]),
            longest_run=int(self.longest[row]),
            jerk=float(self.jerk[row] / (length - 2)) if length > 2 else 0.0,
            same=float(self.same[row]),
        )


def summarize(episodes: Sequence[Episode] | Iterable[Episode]) -> EpisodeSummary:
    """Averages statistics over one or more episodes. A vector return is summed over its parts."""
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
        fraction_same=sum(e.same for e in episodes) / max(1, transitions),
    )
