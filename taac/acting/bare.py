"""The time step that a policy sees outside of training, where nobody counts rewards."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from taac import nest, specs
from taac.algorithms.agent import Agent
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


def read_by_acting(agent: Agent, observation_spec: Nest, action_spec: Nest, reward_dim: int | None) -> Nest:
    """Returns the spec of an observation without those entries of dicts that acting does not read, greedy or not.

    An example is a `global_state` that only critics read. All entries stay where what is read cannot be traced.
    """
    if not isinstance(observation_spec, dict):
        return observation_spec
    first, action = torch.ones(2, dtype=torch.bool), specs.zeros(action_spec, 2)

    def act(*leaves: torch.Tensor) -> list[torch.Tensor]:
        seen = bare_time_step(first, nest.pack_like(observation_spec, list(leaves)), action, reward_dim)
        state = agent.initial_state(2)
        return nest.flatten([tuple(agent.predict_step(seen, state, epsilon)) for epsilon in (0.0, 1.0)])

    try:  # with fake tensors: draws no random numbers, and refuses what looks at numbers
        blank = nest.flatten(specs.blank(observation_spec, 2))
        graph = make_fx(act, tracing_mode="fake", _allow_non_fake_inputs=True)(*blank).graph
    except Exception:
        return observation_spec
    graph.eliminate_dead_code()
    read = [bool(node.users) for node in graph.nodes if node.op == "placeholder"]
    return _read(observation_spec, iter(read)) or observation_spec


def _read(spec: Nest, read: Iterator[bool]) -> Nest | None:
    """Returns the parts of a nest that are read, of which a tuple stays whole; None if none is."""
    if isinstance(spec, dict):
        parts = {key: _read(part, read) for key, part in spec.items()}
        return {key: part for key, part in parts.items() if part is not None} or None
    return spec if sum(next(read) for _ in nest.flatten(spec)) else None  # `any` would stop at the first


def whole_observation(observation_spec: Nest, observation: Nest) -> Nest:
    """Returns an observation `[B, ...]` of the parts that acting reads, with blank ones in place of the others."""
    if not isinstance(observation_spec, dict):
        return observation
    batch = nest.flatten(observation)[0].shape[0]
    return {
        key: whole_observation(part, observation[key]) if key in observation else specs.blank(part, batch)
        for key, part in observation_spec.items()
    }
