"""Agents that share a policy, treated as rows of a single agent's batch.

The algorithm is written for one agent. In an environment of N agents, observations have the agents' dimension after the
batch, `[B, N, ...]`. Folding it into the batch, `[B N, ...]`, makes each agent a row of its own, and all rows use the same
networks. The loss of a batch is then also the mean over agents.

Source: parameter sharing, Gupta, Egorov and Kochenderfer (AAMAS 2017), section 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from taac import nest
from taac.data_structures import FIRST, LAST, AlgStep, Experience, Nest, StepType, TimeStep
from taac.errors import TaacError
from taac.specs import AGENT_MASK, AGENT_TRUNCATED, GLOBAL_STATE, TensorSpec

_MID = int(StepType.MID)


class PresentAgents(NamedTuple):
    """The state when agents can join and leave."""

    inner: Nest  # [B, N, ...] the algorithm's state
    present: torch.Tensor  # [B, N] bool, whether each agent was present at the previous frame; all False at FIRST


class AgentBatch:
    """Folds the dimension of N agents into the batch, and unfolds it again.

    Every leaf of the action and of the observation has the agents' dimension first, `[N, ...]`. A Dict observation may have
    three special keys:

    - `global_state`, a leaf or nest without that dimension. It becomes part of every agent's observation. It is meant for
      the critics; `networks.LocalEncoder` hides it from the actor.
    - `agent_mask`, bools `[N]`: which agents are present. An agent that leaves has its LAST frame there, with discount 0; the
      reward at that frame is its last one. While an agent is absent its frames are LAST, so that all losses and summaries
      skip them; its action is 0, and its state is the initial one. An agent that joins has its FIRST frame there.
    - `agent_truncated`, bools `[N]`, beside that mask: which of the absent agents were cut off. The LAST frame of an agent that
      leaves has discount 1 then, as where an episode is truncated, and its observation there is bootstrapped from.

    A scalar reward is shared by all agents. A reward of N parts has one part per agent.

    Args:
        observation_spec, action_spec, reward_dim: of the environment.

    Attributes:
        count: N.
        masked: whether agents can join and leave.
        centralised: whether there is a `global_state`.
        observation, action: specs of one agent.

    Raises:
        TaacError: leaves without the agents' dimension, agents with different action spaces, a reward with another number of
            parts, a mask of the wrong type or shape.
    """

    def __init__(self, observation_spec: Nest, action_spec: Nest, reward_dim: int | None):
        leaves: list[TensorSpec] = nest.flatten(action_spec)
        if not leaves or any(not leaf.shape for leaf in leaves):
            raise TaacError(
                "create_agent.shared_policy = True needs actions with the dimension of agents first (MultiDiscrete [N], Box "
                f"[N, A]), got {', '.join(map(str, leaves))}; for one agent, bind it to False, or not at all"
            )
        self.count = leaves[0].shape[0]
        keyed = observation_spec if isinstance(observation_spec, dict) else {}
        if pending := [key for key in ("pending_actions", "unseen_actions") if key in keyed]:
            raise TaacError(
                f"agents cannot share a policy that sees '{pending[0]}', which has steps first: bind observe_pending = False"
            )
        self.masked, self.centralised = AGENT_MASK in keyed, GLOBAL_STATE in keyed
        self._limited = AGENT_TRUNCATED in keyed
        if self._limited and not self.masked:
            raise TaacError(
                f"the observation has an '{AGENT_TRUNCATED}' and no '{AGENT_MASK}', which says which agents have left: add it"
            )
        for key in (key for key in (AGENT_MASK, AGENT_TRUNCATED) if key in keyed):
            mask = keyed[key]
            if not isinstance(mask, TensorSpec) or mask.dtype != torch.bool or mask.shape != (self.count,):
                raise TaacError(
                    f"the observation's '{key}' must be binary (a MultiBinary space, or a Box of integers in [0, 1]) of "
                    f"shape [{self.count}], one entry an agent; got {mask}"
                )
        if reward_dim not in (None, self.count):
            raise TaacError(
                f"{self.count} agents share the policy, so the reward must be one number, or {self.count}, one an agent; it "
                f"has {reward_dim} parts"
            )
        self._own_reward = reward_dim is not None
        self.action = nest.map_structure(self._action_of_one, action_spec)
        if keyed:
            self.observation: Nest = {
                key: part if key == GLOBAL_STATE else nest.map_structure(self._leaf_of_one, part)
                for key, part in keyed.items()
                if key not in (AGENT_MASK, AGENT_TRUNCATED)
            }
        else:
            self.observation = nest.map_structure(self._leaf_of_one, observation_spec)

    def _leaf_of_one(self, spec: TensorSpec) -> TensorSpec:
        if spec.shape[:1] != (self.count,):
            raise TaacError(
                f"the actions are of {self.count} agents that share a policy (create_agent.shared_policy), so every "
                f"observation but '{GLOBAL_STATE}' must be [{self.count}, ...], got {spec}"
            )
        low, high = (None if b is None else np.broadcast_to(b, spec.shape) for b in (spec.minimum, spec.maximum))
        return dataclasses.replace(
            spec,
            shape=spec.shape[1:],
            minimum=None if low is None else low.min(0),
            maximum=None if high is None else high.max(0),
        )

    def _action_of_one(self, spec: TensorSpec) -> TensorSpec:
        one = self._leaf_of_one(spec)
        for bound, of_one in ((spec.minimum, one.minimum), (spec.maximum, one.maximum)):
            if bound is not None and np.any(np.broadcast_to(bound, spec.shape) != of_one):
                raise TaacError(
                    f"{self.count} agents that share a policy need equal actions, got {spec}, of least and greatest "
                    f"{spec.minimum} and {spec.maximum}; for one agent that chooses in several branches at once, bind "
                    "create_agent.shared_policy = False"
                )
        return one

    # Acting ----------------------------------------------------------------------------------------------------------

    def initial_state(self, initial: Callable[[int], Nest], batch_size: int, device: torch.device) -> Nest:
        """Returns leaves `[B, N, ...]`; `initial` maps a number of rows to the algorithm's initial state."""
        inner = initial(batch_size * self.count)
        if not self.masked:
            return self._unfold(inner, 0)
        present = torch.zeros(batch_size, self.count, dtype=torch.bool, device=device)
        return PresentAgents(self._unfold(inner, 0), present)

    def act(
        self,
        step: Callable[[TimeStep, Nest], AlgStep],
        initial: Callable[[int], Nest],
        time_step: TimeStep,
        state: Nest,
    ) -> AlgStep:
        """Applies an algorithm's acting step to the frames `[B]` of all agents. The result has leaves `[B, N, ...]`."""
        if not self.masked:
            return AlgStep(*self._unfold(step(self.fold(time_step, 0), self._fold(state, 0)), 0))
        present, batch = self.present(time_step.observation), time_step.step_type.shape[0]  # an export leaves it open
        folded = self.fold(time_step, 0)
        came = self._fold(present & ~state.present, 0)
        acted = step(_begun(folded, came), self._fold(state.inner, 0))
        absent = self._fold(~present, 0)
        output = nest.map_structure(lambda a: torch.where(nest.broadcast(absent, a), 0, a), acted.output)
        after = nest.where(absent, initial(batch * self.count), acted.state)
        decided = acted.decided & ~nest.broadcast(absent, acted.decided)
        unfolded = AlgStep(*self._unfold(acted._replace(output=output, state=after, decided=decided), 0))
        return unfolded._replace(state=PresentAgents(unfolded.state, present))

    def present(self, observation: Nest) -> torch.Tensor:
        """Returns which agents are present, bools `[..., N]`."""
        return observation[AGENT_MASK]

    def present_observations(self, observation: Nest) -> Nest:
        """Returns the observations of the M agents that are present, `[M, ...]`, from those of all agents `[B, N, ...]`."""
        folded = self.fold_observation(observation, 0)
        return nest.index(folded, self._fold(self.present(observation), 0)) if self.masked else folded

    # Learning --------------------------------------------------------------------------------------------------------

    def fold_experience(self, experience: Experience) -> Experience:
        """Folds replayed frames `[T, B]` of all agents into frames `[T, B N]` of one agent."""
        time_step, info = experience
        folded = self.fold(time_step, 1)
        if self.masked:
            present = self.present(time_step.observation)
            came = torch.zeros_like(present)
            came[1:] = present[1:] & ~present[:-1]
            folded = _begun(folded, self._fold(came, 1))
        return Experience(folded, self._fold(info, 1))

    @staticmethod
    def counted(folded: TimeStep) -> torch.Tensor:
        """Returns which frames of `fold_experience` have rewards that count, bools `[T, B N]`.

        These are the frames that are not LAST, and LAST frames whose previous frame in the segment is not LAST. Frames of an
        agent that stays absent are therefore left out.
        """
        last = folded.is_last()
        return ~last | torch.cat([torch.zeros_like(last[:1]), ~last[:-1]])

    def repeat_for_agents(self, of_segments: torch.Tensor) -> torch.Tensor:
        """Repeats numbers of segments `[B]` for each of their agents, `[B N]`."""
        return self._repeat(of_segments, 0)

    def mean_over_agents(self, of_rows: torch.Tensor) -> torch.Tensor:
        """Returns the mean over agents `[B]` of numbers `[B N]`. Absent agents are included in the mean."""
        return of_rows.unflatten(0, (-1, self.count)).mean(1)

    # Folding ---------------------------------------------------------------------------------------------------------

    def fold(self, time_step: TimeStep, dim: int) -> TimeStep:
        """Folds frames of all agents into frames of one, with the batch in dimension `dim`. Absent agents are LAST."""
        step_type, discount, duration = (
            self._repeat(x, dim) for x in (time_step.step_type, time_step.discount, time_step.duration)
        )
        if self.masked:
            absent = self._fold(~self.present(time_step.observation), dim)
            step_type = torch.where(absent, LAST, step_type)
            if self._limited:
                absent = absent & ~self._fold(time_step.observation[AGENT_TRUNCATED], dim)
            discount = torch.where(absent, 0.0, discount)
        reward = time_step.reward
        return TimeStep(
            step_type=step_type,
            reward=self._fold(reward, dim) if self._own_reward else self._repeat(reward, dim),
            discount=discount,
            observation=self.fold_observation(time_step.observation, dim),
            prev_action=self._fold(time_step.prev_action, dim),
            duration=duration,
        )

    def fold_observation(self, observation: Nest, dim: int) -> Nest:
        """Folds the observation of all agents into observations of one, with the batch in dimension `dim`."""
        if not isinstance(observation, dict):
            return self._fold(observation, dim)
        return {
            key: nest.map_structure(lambda x: self._repeat(x, dim), part)
            if key == GLOBAL_STATE
            else self._fold(part, dim)
            for key, part in observation.items()
            if key not in (AGENT_MASK, AGENT_TRUNCATED)
        }

    @staticmethod
    def _fold(part: Nest, dim: int) -> Nest:
        return nest.map_structure(lambda x: x.flatten(dim, dim + 1), part)

    def _unfold(self, part: Nest, dim: int) -> Nest:
        return nest.map_structure(lambda x: x.unflatten(dim, (-1, self.count)), part)

    def unfold_info(self, info: Nest) -> Nest:
        """Unfolds an algorithm's `info` of frames `[T, B N]` to `[T, B, N]`."""
        return self._unfold(info, 1)

    def _repeat(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return x.repeat_interleave(self.count, dim)


def _begun(folded: TimeStep, came: torch.Tensor) -> TimeStep:
    """Returns frames that are FIRST where an agent `came` in the middle of an episode."""
    return folded._replace(step_type=torch.where(came & (folded.step_type == _MID), FIRST, folded.step_type))
