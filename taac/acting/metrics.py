"""Statistics of episodes: return, length, and how often actions were repeated. All of them are computed here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from taac import nest
from taac.data_structures import FIRST, LAST, AlgStep, TimeStep
from taac.runs.layout import EpisodeSummary


class Episode(NamedTuple):
    """One finished episode of one environment."""

    ret: np.ndarray  # undiscounted sum of raw rewards; [] or [D]
    length: int  # environment steps
    repeated: float  # steps that continued the old trajectory; averaged over dimensions that decide separately
    decisions: int  # steps at which at least one dimension chose a new action
    runs: float  # runs of steps under one decision; an episode's first step always begins a run
    longest_run: int  # most steps in a row under one decision
    jerk: float  # mean squared second difference of the action in [-1, 1], over dimensions and time; 0 if length < 3
    same: float  # steps whose action exactly equals the one before; mean over dimensions
    change: float  # mean of |a_t - a_{t-1}|, a in [-1, 1], over dimensions and time; 0 if length < 2
    effort: float  # mean of a^2, over dimensions and time
    high_frequency: float = math.nan  # see `high_frequency`; of evaluations
    multiply_adds: float = math.nan  # of the networks that acting needed; of evaluations
    info: dict[str, float] | None = None  # what the environment reports of it, by name; None: nothing


class EpisodeRecorder:
    """Follows the environments of a rollout and returns episodes as they end.

    `add` expects the frames in order.

    Args:
        num_envs: B.
        duration_coordinate: whether the last number of an action is its duration, which no measure of the action contains.
        info: names of the K numbers that the environment reports of an episode.

    Attributes:
        steps, transitions, decisions: environment steps, actions sent to environments, and new actions, in the last frame
            added, summed over environments.
        last: `[B]` bool, where that frame ended an episode.
        action: the actions taken there, leaves `[B, ...]`.
        moves: the places of an action's numbers that are no duration.
    """

    steps = transitions = decisions = 0
    last: np.ndarray
    action: list[np.ndarray]

    def __init__(self, num_envs: int, duration_coordinate: bool = False, info: Sequence[str] = ()):
        self._num_envs, self._ones = num_envs, np.ones(num_envs, dtype=np.int64)
        self.moves, self._info = slice(-1 if duration_coordinate else None), info
        self._rows: _Rows | None = None

    def add(
        self,
        time_step: TimeStep,
        alg_step: AlgStep,
        raw_reward: np.ndarray | None = None,
        duration: torch.Tensor | np.ndarray | None = None,
        episode_info: np.ndarray | None = None,
    ) -> list[tuple[int, Episode]]:
        """Adds one frame of every environment; returns (environment, episode) for each episode that ended in it.

        Args:
            time_step: the frame, of tensors or numpy arrays.
            alg_step: what the agent did there.
            raw_reward: `[B]` or `[B, D]`, undiscounted reward received on arriving here; None: `time_step.reward`.
            duration: `[B]`, environment steps that the action taken here lasts; None: 1.
            episode_info: `[B, K]`, what an episode reports that ended here; None: nothing, as of one that was cut off.
        """
        step_type, decided = nest.array(time_step.step_type), nest.array(alg_step.decided)
        reward = nest.array(time_step.reward) if raw_reward is None else raw_reward
        lasts = self._ones if duration is None else nest.array(duration)
        self.last, first = step_type == LAST, step_type == FIRST
        ended = int(np.count_nonzero(self.last))
        if ended:
            lasts = np.where(self.last, 0, lasts)
        acts = decided if decided.ndim == 1 else decided.reshape(self._num_envs, -1).any(1)
        self.transitions, self.steps = self._num_envs - ended, sum(lasts.tolist())
        self.decisions = int(np.count_nonzero(acts & ~self.last if ended else acts))
        self.action = [nest.array(leaf) for leaf in nest.flatten(alg_step.output)]
        vector, decided = _vector(self.action)[..., self.moves], decided.reshape(self._num_envs, -1)
        if self._rows is None:
            self._rows = _Rows(self._num_envs, reward.shape[1:], vector.shape[1], decided.shape[1])
        self._rows.clear(first)
        self._rows.ret[~first] += reward[~first]
        for step in range(int(lasts.max())):  # steps repeated inside the environment count as repeats
            self._rows.act(lasts > step, vector, decided & (step == 0))
        done = [(i, self._rows.episode(i)) for i in np.flatnonzero(self.last).tolist()] if ended else []
        if self._info and episode_info is not None:
            done = [(i, episode._replace(info=dict(zip(self._info, episode_info[i].tolist())))) for i, episode in done]
        return done

    def state_dict(self) -> dict[str, torch.Tensor] | None:
        """Returns the statistics of the running episodes; None before the first frame."""
        return None if self._rows is None else {name: torch.from_numpy(v.copy()) for name, v in vars(self._rows).items()}

    def load_state_dict(self, state: dict[str, torch.Tensor] | None) -> None:
        self._rows = None
        if state is not None:
            rewards, actions, parts = (state[name].shape[1:] for name in ("ret", "last", "run"))
            self._rows = _Rows(self._num_envs, tuple(rewards), *actions, *parts)
            for name, value in vars(self._rows).items():
                value[...] = state[name].numpy()


def _mean(x: np.ndarray) -> np.ndarray:
    """Computes `x.mean(-1)`, but four times as fast on rows as short as an action."""
    return np.add.reduce(x, axis=-1, dtype=np.float64) / x.shape[-1]


def _vector(action: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the continuous parts of an action, or its choices if there is nothing else, `[B, A]`."""
    parts = [leaf for leaf in action if leaf.dtype.kind == "f"] or action
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in parts], axis=1)


def high_frequency(actions: np.ndarray) -> float:
    """Returns `2/n sum_i M_i f_i` of a series of actions `[T, A]`, averaged over dimensions; 0 if T < 2. Smaller is smoother.

    f_i = i/T are the n = floor(T/2) frequencies above 0 in cycles per step, and M_i is 2/T times the length of the series'
    Fourier coefficient at f_i: its amplitude there, and twice that at f = 1/2, the chatter from step to step.

    Source: Mysore et al., Regularizing Action Policies for Smooth Control (arXiv:2012.06644), "smoothness measure" Sm.
    """
    length = len(actions)
    if length < 2:
        return 0.0
    amplitude = 2 / length * np.abs(np.fft.rfft(actions, axis=0)[1:])
    return float(np.mean(2 * amplitude * np.fft.rfftfreq(length)[1:, None]))


class Traces:
    """Keeps what an evaluation needs of whole episodes: their actions, and the multiply-adds that choosing them took."""

    def __init__(self, num_envs: int, moves: slice = slice(None)):
        self._moves, self._actions = moves, [list[np.ndarray]() for _ in range(num_envs)]
        self._cost = np.zeros(num_envs)

    def add(self, step_type: np.ndarray, action: Sequence[np.ndarray], duration: np.ndarray, cost: np.ndarray) -> None:
        """Adds a frame of every environment.

        Args:
            step_type, duration: `[B]`, as in `EpisodeRecorder.add`.
            action: leaves `[B, ...]`, as executed.
            cost: `[B]`, multiply-adds that choosing the action needed.
        """
        vector = _vector(action)[..., self._moves]
        for i, (kind, kept) in enumerate(zip(step_type.tolist(), self._actions)):
            if kind == FIRST:
                kept.clear()
                self._cost[i] = 0
            if kind != LAST:
                kept += [vector[i].copy()] * int(duration[i])
                self._cost[i] += cost[i]

    def complete(self, i: int, episode: Episode) -> Episode:
        """Returns the episode that ended in environment `i` with what was kept of it."""
        actions = np.array(self._actions[i], dtype=np.float64)
        return episode._replace(high_frequency=high_frequency(actions), multiply_adds=float(self._cost[i]))


class _Rows:
    """Statistics of the running episodes, a row per environment."""

    def __init__(self, num_envs: int, reward_shape: tuple[int, ...], action_size: int, parts: int):
        self.ret = np.zeros((num_envs, *reward_shape))
        self.length, self.decisions, self.longest = (np.zeros(num_envs, dtype=np.int64) for _ in range(3))
        self.repeated, self.runs, self.jerk, self.same, self.change, self.effort = (np.zeros(num_envs) for _ in range(6))
        self.run = np.zeros((num_envs, parts), dtype=np.int64)
        self.last, self.before = np.zeros((num_envs, action_size)), np.zeros((num_envs, action_size))

    def clear(self, rows: np.ndarray) -> None:
        if rows.any():
            for value in vars(self).values():
                value[rows] = 0

    def act(self, rows: np.ndarray, action: np.ndarray, decided: np.ndarray) -> None:
        """Adds a transition in the selected rows `[B]` bool; `action` and `decided` are `[B, A]` and `[B, parts]`."""
        second, third = rows & (self.length > 0), rows & (self.length > 1)
        begins = decided | (self.length == 0)[:, None]
        self.run = np.where(begins & rows[:, None], 1, self.run + rows[:, None])
        self.longest = np.maximum(self.longest, self.run.max(1))
        self.decisions += rows & decided.any(1)
        self.repeated += rows * _mean(~decided)
        self.runs += rows * _mean(begins)
        self.same += second * _mean(action == self.last)
        self.change += second * _mean(np.abs(action - self.last))
        self.jerk += third * _mean(np.square(action - 2 * self.last + self.before))
        self.effort += rows * _mean(np.square(action))
        self.length += rows
        self.before[rows], self.last[rows] = self.last[rows], action[rows]

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
            change=float(self.change[row] / (length - 1)) if length > 1 else 0.0,
            effort=float(self.effort[row] / length) if length > 0 else 0.0,
        )


def summarize(episodes: Sequence[Episode]) -> EpisodeSummary:
    """Averages statistics over one or more episodes. A vector return is summed over its parts."""
    returns = np.array([np.sum(e.ret) for e in episodes], dtype=np.float64)
    steps = sum(e.length for e in episodes)
    told = [e.info for e in episodes if e.info]
    return EpisodeSummary(
        episodes=len(episodes),
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        length=steps / len(episodes),
        fraction_repeated=sum(e.repeated for e in episodes) / max(1, steps),
        mean_run=steps / max(1, sum(e.runs for e in episodes)),
        max_run=max(e.longest_run for e in episodes),
        decisions=sum(e.decisions for e in episodes) / len(episodes),
        jerk=float(np.mean([e.jerk for e in episodes])),
        fraction_same=sum(e.same for e in episodes) / max(1, steps),
        action_change=float(np.mean([e.change for e in episodes])),
        effort=float(np.mean([e.effort for e in episodes])),
        high_frequency=float(np.mean([e.high_frequency for e in episodes])),
        multiply_adds=float(np.mean([e.multiply_adds for e in episodes])),
        info={name: float(np.mean([one[name] for one in told])) for name in (told[0] if told else ())},
    )
