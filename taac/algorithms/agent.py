"""An algorithm and its normalisers: the unit that is trained, saved and played."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, get_args

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
from taac.machine.ranks import Ranks
from taac.networks import ObservationNormalizer, RewardNormalizer, RewardScaler
from taac.ops.pictures import random_shift
from taac.specs import is_picture, observed

Role = Literal["learn", "collect", "act", "value"]
Policy = Callable[..., AlgStep]  # of a time step and a state


class Agent(nn.Module):
    """Normalises observations and rewards before an algorithm sees them. The replay buffer stores raw values.

    All its networks are in evaluation mode, except in `learning`. Dropout and batch normalisation read the mode.

    Args:
        algorithm: acts and learns.
        observation_normalizer: updated by rollouts, and by demonstrations that are cloned before training; in offline runs by
            stored frames. None: observations are not normalised.
        reward_normalizer: updated by sampled batches, or by rollouts; None: rewards are not normalised.
        reward_signals: each adds one part to the reward, after those of the environment. Used for learning only.
        role: "learn" does everything; "collect" explores and plays, and updates the statistics of observations; "act" only
            plays. The latter two keep only the networks that acting needs. The others are removed from `algorithm` itself.
            "value" only plays, too, and keeps all networks, for `valued_step`.
        compile: whether to compile an update's loss and gradients into one program, and acting in rollouts into another. Each
            is compiled at its first call, which takes up to 20 seconds, or 1 if it was compiled before. Random numbers stay
            the same; sums are rounded differently. On a GPU programs are replayed as CUDA graphs. "auto" leaves the choice to
            `compile_programs`, which a trainer calls where it pays.
        agents: folds the frames of several agents that share the policy into frames of one agent, which the normalisers and
            the algorithm see; None: there is one agent.
        random_shift: sampled pictures are moved by up to this many pixels in each direction, each frame by its own random shift.

    Attributes:
        gathers_statistics: whether rollouts update the statistics of observations. A collector in another process sets it to
            False, because it takes them over with `load_acting_state`.

    Raises:
        TaacError: an unknown role; no working compiler; an algorithm that does not support agents that can join and leave.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        observation_normalizer: ObservationNormalizer | None = None,
        reward_normalizer: RewardNormalizer | RewardScaler | None = None,
        role: Role = "learn",
        reward_signals: Sequence[RewardSignal] = (),
        compile: bool | Literal["auto"] = False,
        agents: AgentBatch | None = None,
        random_shift: int = 0,
    ):
        super().__init__()
        self.random_shift = random_shift
        if role not in get_args(Role):
            raise TaacError(f"role must be 'learn', 'collect', 'act' or 'value', got '{role}'")
        self.role, self.gathers_statistics = role, True
        self.signal_names = tuple(signal.name for signal in reward_signals)  # of any role
        self._absent: tuple[str, ...] = ()  # prefixes of the names in a learning agent's state that this agent lacks
        if role != "learn":
            others = [] if role == "value" else _not_for_acting(algorithm)
            self._absent = _prefixes(others)
            for name in others:
                delattr(algorithm, name)
            reward_normalizer, reward_signals = None, ()
        self.algorithm = algorithm
        self.observation_normalizer = observation_normalizer
        self.reward_normalizer = reward_normalizer
        self.reward_signals = nn.ModuleDict({signal.name: signal for signal in reward_signals})
        self.signals = list(reward_signals)
        self.agents = agents
        if agents is not None and agents.masked:
            _check_masked(algorithm, reward_normalizer)
        self.device = next(algorithm.parameters()).device
        self.eval()
        explores = role in ("learn", "collect")
        self.may_compile = compile == "auto" and explores
        if compile is True and explores:
            check_compiler(self.device)
            self.compile_programs()
        else:
            self.run_uncompiled()

    def compile_programs(self) -> None:
        """Compiles acting in rollouts and, by a learner made or told afterwards, updates."""
        self.compiled = True
        self._rollout_step: Policy = CompiledFunction(
            self.algorithm.rollout_step, self.algorithm, optional=self.may_compile
        )

    def run_uncompiled(self) -> None:
        """Undoes `compile_programs`."""
        self.compiled = False
        self._rollout_step = self.algorithm.rollout_step

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """A context for computing the loss of a gradient step, in which networks are in training mode.

        Target networks and modules without a trained parameter stay in evaluation mode. TAAC compares candidates in
        evaluation mode, too.
        """
        for part in self._trained:
            vars(part)["training"] = True  # `Module.train` would take as long as a small network's forward pass
        try:
            yield
        finally:
            for part in self._trained:
                vars(part)["training"] = False

    @functools.cached_property
    def _trained(self) -> list[nn.Module]:
        return _trained_parts(self)

    def _seen(self, time_step: TimeStep) -> TimeStep:
        if self.observation_normalizer is None:
            return time_step
        return time_step._replace(observation=self.observation_normalizer(time_step.observation))

    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        return self._act(functools.partial(self.algorithm.predict_step, epsilon=epsilon), time_step, state)

    def needed_modules(self, step: AlgStep) -> dict[str, torch.Tensor]:
        return self.algorithm.needed_modules(step)

    def valued_step(self, time_step: TimeStep, state: Nest, action: Nest | None = None) -> AlgStep:
        """Acts like `predict_step`. `info` is what `action_values` returns of `action`, or by default of what is executed."""
        given = action
        if action is not None and self.agents is not None:
            given = self.agents.fold(time_step._replace(prev_action=action), 0).prev_action

        def step(seen: TimeStep, state: Nest) -> AlgStep:
            taken = self.algorithm.predict_step(seen, state)
            asked = taken if given is None else taken._replace(output=given, decided=torch.ones_like(taken.decided))
            return taken._replace(info=self.algorithm.action_values(seen, state, asked))

        return self._act(step, time_step, state)

    def rollout_step(self, time_step: TimeStep, state: Nest, *noise: torch.Tensor) -> AlgStep:
        """Acts to explore, with `noise` `[B(, N), A]` if it is given; see `taac/acting/noise.py`."""
        self.count(time_step)
        return self._act(self._rollout_step, time_step, state, *noise)

    @torch.inference_mode()
    def noise_basis(self, time_step: TimeStep) -> torch.Tensor:
        """Returns `Algorithm.noise_basis` of the observations `[B, ...]`, `[B(, N), J, A or 1]`."""
        folded = time_step if self.agents is None else self.agents.fold(time_step, 0)
        basis = self.algorithm.noise_basis(self.algorithm.actor_features(self._seen(folded).observation))
        return basis if self.agents is None else basis.unflatten(0, (-1, self.agents.count))

    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        self.count(time_step)
        return self.unobserved_random_step(time_step, state)

    def unobserved_random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        """Acts like `random_step`, but does not update the statistics of rollouts."""
        return self._act(self.algorithm.random_step, time_step, state)

    def _act(self, step: Policy, time_step: TimeStep, state: Nest, *noise: torch.Tensor) -> AlgStep:
        if self.agents is None:
            return step(self._seen(time_step), state, *noise)
        folded = [x.flatten(0, 1) for x in noise]
        return self.agents.act(lambda t, s: step(self._seen(t), s, *folded), self.algorithm.initial_state, time_step, state)

    def count(self, time_step: TimeStep) -> None:
        """Adds the frames `[B]` of a rollout to the statistics of observations and of returns."""
        self.observe(time_step.observation)
        if self.reward_normalizer is not None and self.gathers_statistics:
            self.reward_normalizer.observe(time_step if self.agents is None else self.agents.fold(time_step, 0))

    def count_recorded(self, frames: Iterable[TimeStep], num_envs: int) -> None:
        """Adds recorded frames, leaves `[B, ...]` each, whose rewards are learnt from, to the statistics of returns."""
        if isinstance(self.reward_normalizer, RewardScaler):
            agents = self.agents
            if agents is None:  # which are told apart by the observation
                frames = (frame._replace(observation=(), prev_action=()) for frame in frames)
            there = (nest.map_structure(lambda x: x.to(self.device), frame) for frame in frames)
            folded = there if agents is None else (agents.fold(frame, 0) for frame in there)
            self.reward_normalizer.observe_recorded(folded, num_envs * (1 if agents is None else agents.count))

    def observe(self, observation: Nest) -> None:
        """Adds a rollout's observations, leaves `[B, ...]`, to their statistics. Absent agents are left out."""
        if self.role not in ("learn", "collect"):
            raise TaacError(f"an agent whose role is '{self.role}' does not explore; build it with role 'collect' or 'learn'")
        if self.observation_normalizer is not None and self.gathers_statistics:
            if self.agents is not None:
                observation = self.agents.present_observations(observation)
            if len(nest.flatten(observation)[0]):
                self.observation_normalizer.update(observation)

    def join(self, ranks: Ranks) -> None:
        """Takes the parameters of the first of several ranks, and has statistics count what all of them see from now on."""
        ranks.copy_first(list(self.state_dict().values()))
        if isinstance(self.reward_normalizer, RewardNormalizer):
            self.reward_normalizer.ranks = ranks
        if self.observation_normalizer is not None:
            self.observation_normalizer.wait_for_merge()

    def merge_observations(self, ranks: Ranks) -> None:
        """Adds what all ranks have observed since the last call to the statistics of observations."""
        if self.observation_normalizer is not None:
            self.observation_normalizer.merge(ranks)

    def prepare(self, experience: Experience) -> Experience:
        """Moves a sampled batch to the device, normalises it and adds reward signals. Updates the reward statistics."""
        experience = self._folded(experience)
        time_step = self._augmented(self._seen(experience.time_step))
        if self.reward_normalizer is not None:
            self._count_rewards(time_step)
            time_step = time_step._replace(reward=self.reward_normalizer(time_step.reward, time_step.duration))
        if self.signals:
            task = time_step.reward if time_step.reward.dim() == 3 else time_step.reward.unsqueeze(-1)
            shown = self.shown_to_signals(time_step)
            own = [signal(shown).unsqueeze(-1) for signal in self.signals]
            time_step = time_step._replace(reward=torch.cat([task, *own], dim=-1))
        learnt = self.algorithm.learnt_reward(time_step.reward)
        return experience._replace(time_step=time_step._replace(reward=learnt))

    def _augmented(self, time_step: TimeStep) -> TimeStep:
        if not self.random_shift:
            return time_step
        return time_step._replace(observation=nest.map_structure(self._shifted, time_step.observation))

    def _shifted(self, x: torch.Tensor) -> torch.Tensor:
        """Returns pictures `[T, B, H, W, C]` of bytes randomly shifted, and all else as it is."""
        return random_shift(x, self.random_shift) if is_picture(x[0, 0]) else x

    @staticmethod
    def shown_to_signals(time_step: TimeStep) -> TimeStep:
        """Returns the frames `[T, B]` as reward signals see them: without the mask of choices, like all networks."""
        return time_step._replace(observation=observed(time_step.observation, time_step.prev_action))

    def _count_rewards(self, time_step: TimeStep) -> None:
        """Updates the reward statistics. Frames of an agent that stays absent are left out; see `AgentBatch.counted`."""
        assert self.reward_normalizer is not None
        reward, duration = time_step.reward, time_step.duration
        if self.agents is not None and self.agents.masked:
            counted = self.agents.counted(time_step)
            if not bool(counted.any()):
                return
            reward, duration = reward[counted].unsqueeze(0), duration[counted].unsqueeze(0)
        self.reward_normalizer.update(reward, duration)

    def _folded(self, experience: Experience) -> Experience:
        """Moves a batch to the agent's device and folds it into frames of one agent."""
        if experience.time_step.reward.device != self.device:  # the replay buffer is on another device
            experience = nest.map_structure(lambda x: x.to(self.device, non_blocking=True), experience)
        return experience if self.agents is None else self.agents.fold_experience(experience)

    def prepare_observations(self, experience: Experience, sampled: bool = False) -> Experience:
        """Prepares frames like `prepare`, but leaves their rewards raw and updates no statistics.

        `sampled`: they are a batch to learn from, whose pictures are shifted, too.
        """
        moved = self._folded(experience)
        seen = self._seen(moved.time_step)
        return moved._replace(time_step=self._augmented(seen) if sampled else seen)

    def demonstrated_info(self, time_step: TimeStep) -> Nest:
        """Returns the algorithm's `info` of recorded frames, leaves `[T, E, ...]`; see `Algorithm.demonstrated_info`."""
        if self.agents is None:
            return self.algorithm.demonstrated_info(time_step)
        folded = self.agents.fold_experience(Experience(time_step, ())).time_step
        return self.agents.unfold_info(self.algorithm.demonstrated_info(folded))

    def own_state(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Selects the entries of `state`, from an agent of any role, that this agent can hold. Adds no missing entries."""
        return {name: value for name, value in state.items() if not name.startswith(self._absent)}

    def acting_state(self) -> dict[str, torch.Tensor]:
        """Returns copies on the CPU of all tensors that acting and exploring read, by name, for a remote agent of role "collect".

        These are networks, temperatures, statistics of observations, and values that checkpoints do not hold, such as reward
        weights that may follow a schedule. Plain tensors can be sent between processes and machines by any means.
        """
        return {name: tensor.detach().cpu().clone() for name, tensor in self._read_by_acting().items()}

    def load_acting_state(self, state: dict[str, torch.Tensor]) -> None:
        """Copies in the tensors that `acting_state` returned. They are written in place, so this is safe between any two steps.

        The policy's memory is not included, because callers pass it in and out. Episodes in progress continue.

        Raises:
            TaacError: the tensors are those of another agent; nothing is changed.
        """
        own = self._read_by_acting()
        kinds, expected = (nest.map_structure(nest.kind, tensors) for tensors in (state, own))
        if kinds != expected:
            wrong = [
                f"'{name}' is {kinds.get(name, 'missing')}, expected {expected.get(name, 'nothing of that name')}"
                for name in sorted({*kinds, *expected})
                if kinds.get(name) != expected.get(name)
            ]
            raise TaacError(f"the acting state is of another agent: {'; '.join(wrong[:3])}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def _read_by_acting(self) -> dict[str, torch.Tensor]:
        absent, held = _prefixes(_not_for_acting(self.algorithm)), {**dict(self.named_parameters()), **dict(self.named_buffers())}
        return {name: tensor for name, tensor in held.items() if not name.startswith(absent)}

    def initial_state(self, batch_size: int) -> Nest:
        if self.agents is None:
            return self.algorithm.initial_state(batch_size)
        return self.agents.initial_state(self.algorithm.initial_state, batch_size, self.device)

    def to_device(self, device: torch.device) -> Agent:
        self.to(device)
        self.device = device
        return self


def _trained_parts(module: nn.Module) -> list[nn.Module]:
    """Returns a module and its parts, without target networks and modules without a trained parameter."""
    trains = [parameter.requires_grad for parameter in module.parameters()]
    if trains and not any(trains):
        return []
    children = [child for name, child in module.named_children() if not name.startswith("target_")]
    return [module, *(part for child in children for part in _trained_parts(child))]


def _not_for_acting(algorithm: Algorithm) -> list[str]:
    """Returns the names of the sub-modules that acting does not need."""
    kept = algorithm.acting_modules()
    return [name for name, _ in algorithm.named_children() if name not in kept]


def _prefixes(others: Sequence[str]) -> tuple[str, ...]:
    """Returns how the names begin, in an agent's state, of what an agent lacks that only acts without these sub-modules."""
    return ("reward_normalizer.", "reward_signals.", *(f"algorithm.{name}." for name in others))


def _check_masked(algorithm: Algorithm, reward_normalizer: RewardNormalizer | RewardScaler | None) -> None:
    """Refuses settings that would ignore that an agent has left."""
    if isinstance(algorithm, ActorCriticAlgorithm) and algorithm.td_loss.ignore_done:
        raise TaacError(
            "the observation has an 'agent_mask', so the episode of an agent that leaves terminates: bind ignore_done = False "
            "of the TD loss, which would ignore that"
        )
    if isinstance(reward_normalizer, RewardScaler):
        raise TaacError(
            "create_agent.normalize_rewards = 'scale' and 'bounded' cannot be combined with an 'agent_mask' in the observation: "
            "an absent agent has no return. Bind True or False"
        )
