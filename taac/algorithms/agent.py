"""An algorithm together with the normalisers of what it sees: what is trained, saved and played."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn as nn

from taac import nest
from taac.algorithms import Algorithm
from taac.algorithms.actor_critic import ActorCriticAlgorithm
from taac.algorithms.reward_signals import RewardSignal
from taac.algorithms.shared_policy import AgentBatch
from taac.data_structures import AlgStep, Experience, Nest, TimeStep
from taac.errors import TaacError
from taac.machine.compiled import CompiledFunction, check_compiler
from taac.networks import ObservationNormalizer, RewardNormalizer

Role = Literal["learn", "collect", "act"]
Policy = Callable[[TimeStep, Nest], AlgStep]


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
        agents: folds the frames of several agents that share the policy into those of one, which normalisers and algorithm
            see; None: there is one agent.

    Raises:
        TaacError: an unknown role; nothing can be compiled here; what agents that come and go cannot be combined with.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        observation_normalizer: ObservationNormalizer | None = None,
        reward_normalizer: RewardNormalizer | None = None,
        role: Role = "learn",
        reward_signals: Sequence[RewardSignal] = (),
        compile: bool = False,
        agents: AgentBatch | None = None,
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
        self.agents = agents
        if agents is not None and agents.masked:
            _check_masked(algorithm, reward_signals)
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
        return self._act(functools.partial(self.algorithm.predict_step, epsilon=epsilon), time_step, state)

    def rollout_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        self.observe(time_step.observation)
        return self._act(self._rollout_step, time_step, state)

    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        self.observe(time_step.observation)
        return self.unobserved_random_step(time_step, state)

    def unobserved_random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        """As `random_step`, at a frame that the statistics of observations know already, or are not to know."""
        return self._act(self.algorithm.random_step, time_step, state)

    def _act(self, step: Policy, time_step: TimeStep, state: Nest) -> AlgStep:
        if self.agents is None:
            return step(self._seen(time_step), state)
        return self.agents.act(lambda t, s: step(self._seen(t), s), self.algorithm.initial_state, time_step, state)

    def observe(self, observation: Nest) -> None:
        """Takes observations of a rollout, leaves `[B, ...]`, into their statistics; of present agents alone."""
        if self.role == "act":
            raise TaacError("an agent whose role is 'act' does not explore; build it with role 'collect' or 'learn'")
        if self.observation_normalizer is not None:
            if self.agents is not None:
                observation = self.agents.present_observations(observation)
            if len(nest.flatten(observation)[0]):
                self.observation_normalizer.update(observation)

    def prepare(self, experience: Experience) -> Experience:
        """A sampled batch as the algorithm is to see it, on its device; moves the reward statistics."""
        experience = self._folded(experience)
        time_step = self._seen(experience.time_step)
        if self.reward_normalizer is not None:
            self._count_rewards(time_step)
            time_step = time_step._replace(reward=self.reward_normalizer(time_step.reward, time_step.duration))
        if self.signals:
            task = time_step.reward if time_step.reward.dim() == 3 else time_step.reward.unsqueeze(-1)
            own = [signal(time_step).unsqueeze(-1) for signal in self.signals]
            time_step = time_step._replace(reward=torch.cat([task, *own], dim=-1))
        learnt = self.algorithm.learnt_reward(time_step.reward)
        return experience._replace(time_step=time_step._replace(reward=learnt))

    def _count_rewards(self, time_step: TimeStep) -> None:
        """Moves the reward statistics; rewards that arrive at an agent which has not acted do not count."""
        assert self.reward_normalizer is not None
        reward, duration = time_step.reward, time_step.duration
        if self.agents is not None and self.agents.masked:
            counted = self.agents.counted(time_step)
            if not bool(counted.any()):
                return
            reward, duration = reward[counted].unsqueeze(0), duration[counted].unsqueeze(0)
        self.reward_normalizer.update(reward, duration)

    def _folded(self, experience: Experience) -> Experience:
        """A batch on the agent's device, of one agent's frames."""
        if experience.time_step.reward.device != self.device:  # frames kept elsewhere than the agent
            experience = nest.map_structure(lambda x: x.to(self.device, non_blocking=True), experience)
        return experience if self.agents is None else self.agents.fold_experience(experience)

    def prepare_observations(self, experience: Experience) -> Experience:
        """Frames as the algorithm is to see them but for their rewards, which are raw, on its device; no statistics move."""
        moved = self._folded(experience)
        return moved._replace(time_step=self._seen(moved.time_step))

    def demonstrated_info(self, time_step: TimeStep) -> Nest:
        """The algorithm's `info` of recorded frames, leaves `[T, E, ...]`; see `Algorithm.demonstrated_info`."""
        if self.agents is None:
            return self.algorithm.demonstrated_info(time_step)
        folded = self.agents.fold_experience(Experience(time_step, ())).time_step
        return self.agents.unfold_info(self.algorithm.demonstrated_info(folded))

    def own_state(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of the state of an agent of any role, what this one holds: a state that lacks some of it stays without."""
        return {name: value for name, value in state.items() if not name.startswith(self._absent)}

    def acting_state(self) -> dict[str, torch.Tensor]:
        """All that acting and exploring read, by name, as copies on the CPU, for an agent with the role "collect" elsewhere.

        Networks, temperatures, statistics of observations, and what checkpoints do not hold, such as the weights of a reward's
        parts, which may follow a schedule. They are plain tensors, which processes and machines can hand over as they like.
        """
        return {name: tensor.detach().cpu().clone() for name, tensor in self._read_by_acting().items()}

    def load_acting_state(self, state: dict[str, torch.Tensor], statistics: bool = True) -> None:
        """Takes over what `acting_state` returned, in place, so that it can be done between any two steps.

        The memory of the policy, which is passed in and out, is not part of it: episodes that are under way go on.

        Args:
            statistics: whether the statistics of observations are taken over too; False keeps those of what this agent saw.

        Raises:
            TaacError: it is of another agent; nothing is changed.
        """
        own = self._read_by_acting()
        kinds, expected = (
            {name: f"{tensor.dtype} {list(tensor.shape)}" for name, tensor in tensors.items()}
            for tensors in (state, own)
        )
        if kinds != expected:
            wrong = [
                f"'{name}' is {kinds.get(name, 'missing')}, expected {expected.get(name, 'nothing of that name')}"
                for name in sorted({*kinds, *expected})
                if kinds.get(name) != expected.get(name)
            ]
            raise TaacError(f"the acting state is of another agent: {'; '.join(wrong[:3])}")
        with torch.no_grad():
            for name, tensor in own.items():
                if statistics or not name.startswith("observation_normalizer."):
                    tensor.copy_(state[name])

    def _read_by_acting(self) -> dict[str, torch.Tensor]:
        kept = self.algorithm.acting_modules()
        others = [name for name, _ in self.algorithm.named_children() if name not in kept]
        absent = ("reward_normalizer.", "reward_signals.", *(f"algorithm.{name}." for name in others))
        held = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {name: tensor for name, tensor in held.items() if not name.startswith(absent)}

    def initial_state(self, batch_size: int) -> Nest:
        if self.agents is None:
            return self.algorithm.initial_state(batch_size)
        return self.agents.initial_state(self.algorithm.initial_state, batch_size)

    def to_device(self, device: torch.device) -> Agent:
        self.to(device)
        self.device = device
        return self


def _check_masked(algorithm: Algorithm, reward_signals: Sequence[RewardSignal]) -> None:
    """Refuses what would learn from the frames of absent agents."""
    if isinstance(algorithm, ActorCriticAlgorithm) and algorithm.td_loss.ignore_done:
        raise TaacError(
            "agents that come and go (an 'agent_mask' in the observation) leave as by a termination, which the TD loss's "
            "ignore_done = True would ignore: bind it to False"
        )
    if reward_signals:
        raise TaacError(
            "create_agent.reward_signals cannot be combined with agents that come and go (an 'agent_mask' in the "
            "observation): their models would learn from the frames of absent agents"
        )
