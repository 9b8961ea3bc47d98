"""The records that pass between environments, algorithms, replay and trainer.

Everything that has time is time-major: `[T, B, ...]`. Frame `t` of an episode holds what the environment returned
*on arriving at* step `t`. So `reward[t]` and `discount[t]` are the result of the action chosen at `t-1`, which is
`prev_action[t]`. An episode is FIRST, MID..., LAST. LAST is a frame of its own: the action chosen there is ignored, and
the next frame is the FIRST of the next episode.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import torch

Nest = Any  # a tensor, or a dict, tuple, list or NamedTuple of nests; () is empty


class StepType(enum.IntEnum):
    """The position of a frame in its episode."""

    FIRST = 0
    MID = 1
    LAST = 2


# Plain integers for comparisons: comparing an array with an enum member takes five times as long.
FIRST, LAST = int(StepType.FIRST), int(StepType.LAST)


class TimeStep(NamedTuple):
    """What the environment returned on arriving at a step; `[B, ...]`, or `[T, B, ...]` when replayed."""

    step_type: torch.Tensor  # [B] uint8, a StepType
    reward: torch.Tensor  # [B] or [B, D] float32; 0 at FIRST
    discount: torch.Tensor  # [B] float32; 0 where terminated, else 1 (gamma^(k-1) if the action was repeated k times)
    observation: Nest  # [B, ...] each leaf
    prev_action: Nest  # [B, ...] the action that led here, in the algorithm's scale; zeros at FIRST
    duration: torch.Tensor  # [B] int16, environment steps since the previous frame: k if repeated k times; 0 at FIRST

    def is_first(self) -> torch.Tensor:
        return self.step_type == FIRST

    def is_last(self) -> torch.Tensor:
        return self.step_type == LAST


class AlgStep(NamedTuple):
    """What an algorithm returns for a time step."""

    output: Nest  # [B, ...] the action to execute
    state: Nest  # [B, ...] the state to pass in at the next step
    info: Nest  # [B, ...] what the replay buffer stores about this step; () when only acting
    decided: torch.Tensor  # [B] bool, or [B, A] if each dimension decides; False where the old trajectory continues
    switch_probability: Nest = ()  # shaped as `decided`, beta_1 at this step, for pictures; () if there is none
    # Parameters of the distribution from which a rollout draws a new action, and whose mode a greedy step takes; () for a random
    # step. For continuous actions (mean, log_std) before tanh, [B, A] each, of chunks [B, h A], of TD3 with a log_std of -inf;
    # for choices their probabilities, [B, K, C]; for both, probabilities [B, C] first.
    policy: Nest = ()


class Experience(NamedTuple):
    """One frame as the replay buffer stores it; `[B, ...]` when added, `[T, B, ...]` when sampled."""

    time_step: TimeStep
    rollout_info: Nest  # AlgStep.info of the rollout at this frame


class LossInfo(NamedTuple):
    """What `Algorithm.calc_loss` returns."""

    loss: torch.Tensor  # [T, B] the loss of each frame, before averaging
    extra: dict[str, torch.Tensor]  # scalars to summarise, by tag
    segment_error: torch.Tensor | None = None  # [B] the critics' error on each segment; None without critics
    detail: dict[str, torch.Tensor] | None = None  # values of each frame, with graphs, see `ActorCriticAlgorithm.detail`
