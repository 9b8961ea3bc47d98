"""The records that pass between environments, algorithms, replay and trainer.

Everything that has time is time-major: `[T, B, ...]`. A frame `t` of an episode holds what the environment returned
*on arriving at* step `t`, so `reward[t]` and `discount[t]` are the result of the action chosen at `t-1`, which is
`prev_action[t]`. An episode is FIRST, MID..., LAST. LAST is a frame of its own: the action taken there is ignored, and
the frame after it is the FIRST of the next episode.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import torch

Nest = Any  # a tensor, or a dict, tuple or NamedTuple of nests; () holds nothing


class StepType(enum.IntEnum):
    """Where in its episode a frame is."""

    FIRST = 0
    MID = 1
    LAST = 2


# Plain numbers, for comparing: with an enum's member it takes 10 us more for a tensor, and five times as long for an array.
FIRST, LAST = int(StepType.FIRST), int(StepType.LAST)


class TimeStep(NamedTuple):
    """What the environment returned on arriving at a step; `[B, ...]`, or `[T, B, ...]` when replayed."""

    step_type: torch.Tensor  # [B] uint8, a StepType
    reward: torch.Tensor  # [B] or [B, D] float32; 0 at FIRST
    discount: torch.Tensor  # [B] float32; 0 where terminated, else 1 (gamma^(k-1) if the action was repeated k times)
    observation: Nest  # [B, ...] each leaf
    prev_action: Nest  # [B, ...] the action that led here, in the algorithm's scale; zeros at FIRST
    # [B] int16, environment steps from the frame before to here: k if repeated k times; 0 at FIRST
    duration: torch.Tensor

    def is_first(self) -> torch.Tensor:
        return self.step_type == FIRST

    def is_last(self) -> torch.Tensor:
        return self.step_type == LAST


class AlgStep(NamedTuple):
    """What an algorithm answers to a time step."""

    output: Nest  # [B, ...] the action to execute
    state: Nest  # [B, ...] the state to hand in at the next step
    info: Nest  # [B, ...] what the replay buffer keeps of this step; () when only acting
    decided: torch.Tensor  # [B] bool, or [B, A] if dimensions decide alone; False: the old trajectory goes on
    switch_probability: Nest = ()  # shaped as `decided`, beta_1 at this step, for pictures; () where there is none
    # Parameters of the distribution that a rollout drew `output` from, for explorers; () where nothing was drawn. Of actions
    # (mean, log_std) before tanh, [B, A] each; of choices their probabilities, [B, K, C]; of both, probabilities [B, C] first.
    policy: Nest = ()


class Experience(NamedTuple):
    """One frame as the replay buffer keeps it; `[B, ...]` when added, `[T, B, ...]` when sampled."""

    time_step: TimeStep
    rollout_info: Nest  # AlgStep.info of the rollout at this frame


class LossInfo(NamedTuple):
    """What `Algorithm.calc_loss` returns."""

    loss: torch.Tensor  # [T, B] the loss of each frame, before its mean is taken
    extra: dict[str, torch.Tensor]  # scalars to summarise, by tag
    segment_error: torch.Tensor | None = (
        None  # [B] how wrong the critics are about each segment; None: it has no critics
    )
    detail: dict[str, torch.Tensor] | None = None  # of each frame, with graphs: see `ActorCriticAlgorithm.detail`
