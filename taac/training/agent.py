"""An algorithm together with the normalisers of what it sees: what is trained, saved and played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn as nn

from taac import nest
from taac.algorithms import Algorithm
from taac.algorithms.reward_signals import RewardSignal
from taac.data_structures import AlgStep, Experience, Nest, TimeStep
from taac.errors import TaacError
from taac.networks import ObservationNormalizer, RewardNormalizer
from taac.ops.compiled import CompiledFunction, check_compiler

Role = Literal["learn", "collect", "act"]


class Agent(nn.Module):
    """Normalises observations and rewards on their way to an algorithm; raw ones are stored in the buffer.

    Args:
        algorithm: acts and learns.
            observation_normalizer: updated by rollouts alone, the demonstrator's among them where its policy is cloned before
            training; None: observations as they are.
            reward_normalizer: updated by sampled batches; None: rewards as they are.
        reward_signals: each gives one more part of the reward, after those of the environment; for learning alone.
        role: "learn" does everything; "collect" explores and plays, and moves the statistics of observations; "act" only
            plays. The latter two hold the networks that acting needs and no others: the algorithm loses the rest.
        compile: whether an update's loss and gradients, and acting in rollouts, are compiled into one program each, when they
            are first called (some 10 seconds each, fewer when it was done before). Random numbers are the same, sums are
            rounded otherwise.

    Raises:
        TaacError: an unknown role; nothing can be compiled here.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        observation_normalizer: ObservationNormalizer | None = None,
        reward_normalizer: RewardNormalizer | None = None,
        role: Role = "learn",
        reward_signals: Sequence[RewardSignal] = (),
        compile: bool = False,
    ):
        super().__init__()
        if role not in ("learn", "collect", "act"):
            raise TaacError(f"role must be 'learn', 'collect' or 'act', got '{role}'")
        self.role = role
        self._absent: tuple[str, ...] = ()  # beginnings of names in the state of an agent that learns
        if role != "learn":
            kept = algorithm.acting_modules()
            others = [name for name, _ in algorithm.named_children() if name not in kept]
            for name in others:
                delattr(algorithm, name)
            self._absent = ("reward_normalizer.", "reward_signals.", *(f"algorithm.{name}." for name in others))
            reward_normalizer, reward_signals = None, ()
        self.algorithm = algorithm
        self.observation_normalizer = observation_normalizer
        self.reward_normalizer = reward_normalizer
        self.reward_signals = nn.ModuleDict({signal.name: signal for signal in reward_signals})
        self.signals = list(reward_signals)
        self.device = next(algorithm.parameters()).device
        self.compiled = compile and role != "act"
        if self.compiled:
            check_compiler()
        self._rollout_step = (
            CompiledFunction(algorithm.rollout_step, algorithm) if self.compiled else algorithm.rollout_step
        )

    def _seen(self, time_step: TimeStep) -> TimeStep:
        if self.observation_normalizer is None:
            return time_step
        return time_step._replace(observation=self.observation_normalizer(time_step.observation))

    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        return self.algorithm.predict_step(self._seen(time_step), state, epsilon)

    def rollout_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        self.observe(time_step.observation)
        return self._rollout_step(self._seen(time_step), state)

    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        self.observe(time_step.observation)
        return self.algorithm.random_step(self._seen(time_step), state)

    def observe(self, observation: Nest) -> None:
        """Takes observations of a rollout, leaves `[B, ...]`, into their statistics."""
        if self.role == "act":
            raise TaacError("an agent whose role is 'act' does not explore; build it with role 'collect' or 'learn'")
        if self.observation_normalizer is not None:
            self.observation_normalizer.update(observation)

    def prepare(self, experience: Experience) -> Experience:
        """A sampled batch as the algorithm is to see it, on its device; moves the reward statistics."""
        if experience.time_step.reward.device != self.device:  # frames kept elsewhere than the agent
            experience = nest.map_structure(lambda x: x.to(self.device, non_blocking=True), experience)
        time_step = self._seen(experience.time_step)
        if self.reward_normalizer is not None:
            self.reward_normalizer.update(time_step.reward, time_step.duration)
            time_step = time_step._replace(reward=self.reward_normalizer(time_step.reward, time_step.duration))
        if self.signals:
            task = time_step.reward if time_step.reward.dim() == 3 else time_step.reward.unsqueeze(-1)
            own = [signal(time_step).unsqueeze(-1) for signal in self.signals]
            time_step = time_step._replace(reward=torch.cat([task, *own], dim=-1))
        learnt = self.algorithm.learnt_reward(time_step.reward)
        return experience._replace(time_step=time_step._replace(reward=learnt))

    def prepare_demonstrations(self, experience: Experience) -> Experience:
        """Demonstrations as the algorithm is to see them, on its device: their observations; no statistics move."""
        moved = nest.map_structure(lambda x: x.to(self.device, non_blocking=True), experience)
        return moved._replace(time_step=self._seen(moved.time_step))

    def own_state(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of the state of an agent of any role, what this one holds: a state that lacks some of it stays without."""
        return {name: value for name, value in state.items() if not name.startswith(self._absent)}

    def initial_state(self, batch_size: int) -> Nest:
        return self.algorithm.initial_state(batch_size)

    def to_device(self, device: torch.device) -> Agent:
        self.to(device)
        self.device = device
        return self
