"""One greedy step of an agent as a function of tensors alone, which `torch.export` can trace."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn as nn
from gymnasium import spaces

from taac import nest, specs
from taac.acting.bare import bare_time_step, read_by_acting, whole_observation
from taac.algorithms.agent import Agent
from taac.data_structures import Nest
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError


class Names(NamedTuple):
    """The names of a policy's inputs and outputs, in order."""

    inputs: tuple[str, ...]  # "first", observations, state
    outputs: tuple[str, ...]  # actions, "switch", next state


class ExportedPolicy(nn.Module):
    """One greedy step `(first, observation, state) -> (action, switch, next state)`, all leaves `[B, ...]`.

    Observations are those that acting reads, raw: as the environment returns them, in the dtypes of `observation_spec`.
    Normalisation is part of the function. Actions are in the environment's scale. The state is the action that was executed
    last, in the agent's scale, then the algorithm's own state (of TAAC: the trajectory that is followed and for how many
    steps). Where `first` is true, an episode begins and the state is replaced by the initial one, so any state may be passed
    in. Of N agents that share the policy, actions and states are `[B, N, ...]`.

    The agent has role "act" and is on the CPU. Raises TaacError if its greedy policy draws random numbers.
    """

    def __init__(self, agent: Agent, environment: VectorEnvironment):
        super().__init__()
        self.agent = agent.requires_grad_(False)  # a state that is passed back must hold no graph
        self._whole_spec, self.action_spec = environment.observation_spec, environment.action_spec
        self._space, self._reward_dim = environment.action_space, environment.reward_dim
        self.observation_spec = read_by_acting(agent, self._whole_spec, self.action_spec, self._reward_dim)
        self.initial = (specs.zeros(self.action_spec, 1), agent.initial_state(1))
        _check_deterministic(self)
        state = [*_named("prev_action", self.action_spec), *_named("state", self.initial[1])]
        self.names = Names(
            ("first", *_named("observation", self.observation_spec), *state),
            (*_named("action", self.action_spec), "switch", *(f"next_{name}" for name in state)),
        )

    def forward(self, first: torch.Tensor, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the tensors of `names.outputs` for those of `names.inputs`. `first`: `[B]` bool."""
        count = len(nest.flatten(self.observation_spec))
        observation = whole_observation(self._whole_spec, nest.pack_like(self.observation_spec, list(leaves[:count])))
        before = nest.pack_like(self.initial, list(leaves[count:]))
        prev_action, state = nest.where(first, self.initial, before)
        step = self.agent.predict_step(bare_time_step(first, observation, prev_action, self._reward_dim), state)
        action = _to_environment(self._space, step.output)
        return (*nest.flatten(action), step.decided, *nest.flatten(step.output), *nest.flatten(step.state))

    def example(self, batch_size: int) -> tuple[torch.Tensor, ...]:
        """Returns inputs that can occur, at the beginning of episodes."""
        first = torch.ones(batch_size, dtype=torch.bool)
        observation = [spec.blank(batch_size) for spec in nest.flatten(self.observation_spec)]
        state = [leaf.expand(batch_size, *leaf.shape[1:]).clone() for leaf in nest.flatten(self.initial)]
        return (first, *observation, *state)


def _named(kind: str, tree: Nest) -> list[str]:
    """Returns the name of each leaf: "observation.arm.angle"."""
    paths = (path.strip("/").replace("/", ".") for path, _ in nest.flatten_with_path(tree))
    return [f"{kind}.{path}" if path else kind for path in paths]


def _check_deterministic(policy: ExportedPolicy) -> None:
    """Refuses a policy whose greedy actions or states depend on random numbers, as far as many random observations show."""
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        blank = [torch.ones_like(x) if x.dtype == torch.bool else x for x in policy.example(256)]  # with all agents and choices
        inputs = [torch.randn(x.shape) if x.is_floating_point() else x for x in blank]
        found = []
        for seed in range(2):
            torch.manual_seed(seed)
            found.append(policy(*inputs))
    if not all(torch.equal(a, b) for a, b in zip(*found)):
        raise TaacError("this policy draws random numbers even when it acts greedily, so no file could repeat what it does")


def _to_environment(space: spaces.Space, action: Nest) -> Nest:
    """Converts actions in the agent's scale, leaves `[B, ...]`; as `spaces.action_adapter`, in tensors."""
    if isinstance(space, spaces.Tuple):
        return tuple(_to_environment(child, part) for child, part in zip(space.spaces, action))
    if isinstance(space, spaces.Dict):
        return {key: _to_environment(child, action[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Box):
        if bool(np.all(space.low == -1) and np.all(space.high == 1)):
            return action.to(_dtype(space))
        low, high = (torch.from_numpy(np.asarray(bound, dtype=np.float64)) for bound in (space.low, space.high))
        scaled = low + ((action + 1.0) * 0.5).double() * (high - low)  # rounded where the agent's own actions are
        return torch.minimum(torch.maximum(scaled, low), high).to(_dtype(space))
    assert isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))  # `action_adapter` has refused everything else
    return (action + torch.as_tensor(np.asarray(space.start))).to(_dtype(space))


def _dtype(space: spaces.Space) -> Any:
    return getattr(torch, np.dtype(space.dtype).name)
