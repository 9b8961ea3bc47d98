"""The time step that a policy sees outside of training, where nobody counts rewards."""

from __future__ import annotations

import torch

from taac.data_structures import FIRST, Nest, StepType, TimeStep


def bare_time_step(first: torch.Tensor, observation: Nest, prev_action: Nest, reward_dim: int | None) -> TimeStep:
    """Returns a time step without reward. Greedy policies do not look at rewards, discounts and durations.

    Args:
        first: `[B]` bool, where an episode begins.
        observation, prev_action: leaves `[B, ...]`; the action in the agent's scale.
        reward_dim: D if the reward is a vector.
    """
    zeros = torch.zeros_like(first, dtype=torch.float32)
    return TimeStep(
        step_type=torch.where(first, FIRST, int(StepType.MID)).to(torch.uint8),
        reward=zeros if reward_dim is None else zeros.unsqueeze(-1).expand(-1, reward_dim),
        discount=torch.ones_like(zeros),
        observation=observation,
        prev_action=prev_action,
        duration=torch.where(first, 0, 1).to(torch.int16),
    )
