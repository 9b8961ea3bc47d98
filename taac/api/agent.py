"""A trained agent that acts in a loop of the user's own."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from taac import nest, specs
from taac.acting.bare import bare_time_step, read_by_acting, whole_observation
from taac.algorithms.agent import Agent, Policy
from taac.api.environments import Environment, Named, named, refuse_other
from taac.api.session import session, torch_as_in_training
from taac.data_structures import AlgStep
from taac.environments import spaces
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError
from taac.playing.saved_agent import load_saved
from taac.specs import TensorSpec, zeros


class State(NamedTuple):
    """What an agent carries from step to step, as numpy arrays for B environments."""

    first: np.ndarray  # [B] bool, where an episode begins: there the rest is ignored
    action: Any  # [B, ...] each part of the action that was executed last, in the agent's scale
    memory: Any  # [B, ...] the algorithm's own; of TAAC the trajectory that is followed, and for how many steps
    decided: np.ndarray  # [B] bool, or [B, A] if each dimension decides; whether the last act began a new action

    def restarted(self, where: Any = True) -> State:
        """Returns the state with new episodes where `where` `[B]` is true; by default everywhere.

        Raises TaacError if it is neither one bool nor one for each environment.
        """
        given = np.asarray(where)
        if given.dtype != np.bool_ or given.shape not in ((), self.first.shape):
            raise TaacError(f"where must be a bool, or one for each of {len(self.first)} environments, got {where!r:.200}")
        return self._replace(first=self.first | given)


class Distribution(NamedTuple):
    """What a policy may do at an observation, as numpy arrays, batched as the observation is. None: there is no such part."""

    mean: np.ndarray | None  # [B, A], of chunks [B, h A], of the normal distribution whose tanh is the new action in [-1, 1]
    std: np.ndarray | None  # as `mean`
    probabilities: np.ndarray | None  # [B, K, C] of the choices of K branches; [B, C] beside continuous actions
    # [B], or [B, A] if each dimension decides: of beginning a new action instead of continuing. A greedy agent does so above its
    # `switch_threshold`.
    switch_probability: np.ndarray | None
    # Q, in the units of the rewards that are learnt from, as `combine_critics` says; the weighted sum of a vector reward.
    q: np.ndarray | None = None  # [B], of the action that `distribution` was given, or of what a greedy agent does
    # [B, K, C] of the choices of K branches, padded with the last one's; [B, C] of those beside the greedy continuous action; of
    # TAAC [B, 2], of continuing and of the greedy new action; of TempoRL [B, J], of holding that for 1 to J steps; of TLA
    # [B, 2], of a gate that is closed or open.
    q_choices: np.ndarray | None = None


class TrainedAgent:
    """An agent of a run. Its weights do not change, and it keeps no state: `act` takes the state and returns the next.

        agent = taac.load("runs/pendulum")
        state = agent.initial_state()
        action, state = agent.act(observation, state)

    Observations and actions are numpy arrays, or nests of them, as the environment has them. Rescaling and normalisation are
    done inside. An agent that was trained with wrappers or with repeated actions acts in an environment that has them, too.

    Attributes:
        observation_space: of one environment, without the keys of a Dict that acting does not read, such as a `global_state` that
            only critics see. `act` ignores them.
        action_space: of one environment.
        method: the name of the method.
        env_steps: environment steps of training.
        num_threads: torch's threads in `act`. 1 unless you set it, as in training: a step of one environment is too small to
            share. The program's own number is the same after `act` as before.
    """

    def __init__(self, agent: Agent, environment: VectorEnvironment, method: str, env_steps: int):
        self.action_space = environment.action_space
        self.method, self.env_steps, self.num_threads = method, env_steps, 1
        self._agent, self._reward_dim = agent, environment.reward_dim
        self._whole_spec, self._action_spec = environment.observation_spec, environment.action_spec
        self._observation_spec, self._valued = self._whole_spec, agent.role == "value"
        if not self._valued:  # critics may read all
            self._observation_spec = read_by_acting(agent, self._whole_spec, self._action_spec, self._reward_dim)
        self.observation_space = _of(self._observation_spec, environment.observation_space)
        self._to_environment = spaces.action_adapter(self.action_space)[1]

    def __repr__(self) -> str:
        return f"TrainedAgent({self.method}, {self.env_steps} environment steps)"

    def initial_state(self, num_envs: int = 1) -> State:
        """Returns the state at the beginning of episodes of B = `num_envs` environments."""
        if num_envs < 1:
            raise TaacError(f"num_envs must be 1 or more, got {num_envs}")
        with torch_as_in_training():
            action, memory = zeros(self._action_spec, num_envs), self._agent.initial_state(num_envs)
        nothing = np.zeros(num_envs, dtype=bool)
        return State(~nothing, nest.map_structure(nest.array, action), nest.map_structure(nest.array, memory), nothing)

    def act(self, observation: Any, state: State, *, greedy: bool = True) -> tuple[Any, State]:
        """Returns an action for an observation, and the state to pass in with the next one.

        When an episode ends, pass `agent.initial_state()`, or `state.restarted(done)` for those of several environments that
        have ended.

        Args:
            observation: of one environment, or `[B, ...]` of several.
            state: of as many environments.
            greedy: True: the most probable action. False: a sample of the policy, drawn from torch's generator.

        Returns the action in the environment's scale, batched as the observation is, and the next state. Raises TaacError if the
        observation does not fit the space or the state, or is not finite; or if the state is no `State`.
        """
        policy = functools.partial(self._agent.predict_step, epsilon=0.0 if greedy else 1.0)
        batched, step = self._step(observation, state, policy)
        executed = self._to_environment(step.output)
        after = State(
            np.zeros(len(state.first), dtype=bool),
            nest.map_structure(nest.array, step.output),
            nest.map_structure(nest.array, step.state),
            nest.array(step.decided),
        )
        return (executed if batched else nest.map_structure(lambda leaf: leaf[0], executed)), after

    def distribution(self, observation: Any, state: State, action: Any = None) -> Distribution:
        """Returns the distribution of what `act` may do, and Q if the agent was loaded with critics; see `Distribution`.

        Args:
            observation, state: as in `act`.
            action: what to value, in the environment's scale, batched as the observation is. It is a new action where the
                method may also continue an old one. None: what `act` does.

        Raises:
            TaacError: as in `act`; the action does not fit, or there are no critics to value it; or an algorithm of your own
                leaves `AlgStep.policy` empty in greedy steps, or defines no `action_values`.
        """
        if action is not None and not self._valued:
            raise TaacError("the agent has no critics to value an action with: load it with taac.load(..., critics=True)")
        given = None
        if action is not None:
            spec = spaces.observation_spec(self.action_space)  # in the environment's scale
            _, tensors = self._tensors("action", spec, spec, self.action_space, action, state)
            given = spaces.to_unit("the batch", self.action_space, tensors)
        ask = functools.partial(self._agent.valued_step, action=given) if self._valued else self._agent.predict_step
        batched, step = self._step(observation, state, ask)
        policy = step.policy
        if isinstance(policy, tuple) and not policy:
            raise TaacError(f"{type(self._agent.algorithm).__name__}.predict_step returns no AlgStep.policy to describe")
        probabilities, normal = policy if isinstance(policy, tuple) else (policy, None)
        if isinstance(normal, torch.Tensor):  # there are no choices
            probabilities, normal = None, policy
        mean, std = (None, None) if normal is None else (normal[0], normal[1].exp())
        switch = step.switch_probability if isinstance(step.switch_probability, torch.Tensor) else None
        values = [q if isinstance(q, torch.Tensor) else None for q in step.info] if self._valued else []
        parts = [None if p is None else nest.array(p) for p in (mean, std, probabilities, switch, *values)]
        return Distribution(*(p if p is None or batched else p[0] for p in parts))

    def controller(self, num_envs: int = 1, *, greedy: bool = True) -> Controller:
        """Returns a controller, which keeps the state itself."""
        return Controller(self, num_envs, greedy)

    def _step(self, observation: Any, state: State, policy: Policy) -> tuple[bool, AlgStep]:
        """Returns whether an observation is batched, and what the agent does there."""
        parts = ("observation", self._observation_spec, self._whole_spec, self.observation_space)
        batched, tensors = self._tensors(*parts, observation, state)
        first = torch.from_numpy(np.array(state.first))
        masked = len(first) == 1 and specs.is_masked(tensors, self._action_spec)
        if masked and specs.forbids_acting(tensors, self._action_spec).any():
            raise TaacError("the action_mask of the observation forbids every choice: begin a new episode before acting")
        with torch_as_in_training(), torch.inference_mode():
            torch.set_num_threads(self.num_threads)
            initial = (zeros(self._action_spec, len(first)), self._agent.initial_state(len(first)))
            before = nest.map_structure(torch.as_tensor, (state.action, state.memory))
            action, memory = nest.where(first, initial, before)
            seen = bare_time_step(first, whole_observation(self._whole_spec, tensors), action, self._reward_dim)
            return batched, policy(seen, memory)

    @staticmethod
    def _tensors(what: str, spec: Any, whole: Any, space: gymnasium.Space, given: Any, state: State) -> tuple[bool, Any]:
        """Returns whether an observation or an action is batched, and its tensors `[B, ...]`."""
        if not isinstance(state, State):
            raise TaacError(f"the state must be agent.initial_state(), or what the act before returned, got {state!r:.200}")
        num_envs = len(state.first)
        try:
            pairs = list(zip(nest.flatten(spec), _leaves(spec, whole, given), strict=True))
        except (AttributeError, KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise TaacError(f"the {what} does not fit {space}: got {given!r:.200} ({error!r})") from error
        extra = {leaf.ndim - len(part.shape) for part, leaf in pairs}
        batched = extra == {1}
        shapes = [(num_envs, *part.shape) if batched else part.shape for part, _ in pairs]
        found = [leaf.shape for _, leaf in pairs]
        if found != shapes or not (batched or num_envs == 1):
            raise TaacError(
                f"the {what} has the shape {_shapes(found)}, expected {_shapes([(num_envs, *s.shape) for s, _ in pairs])}: "
                f"the state is of {num_envs} environment{'s' if num_envs > 1 else ', whose dimension may be left out'}"
            )
        tensors = []
        for part, array in pairs:
            try:
                leaf = spaces.to_arrays(part, array)
            except (TypeError, ValueError) as error:
                raise TaacError(f"the {what} does not fit {space}: {error}") from error
            if not part.dtype.is_floating_point and array.dtype != leaf.dtype and (leaf != array).any():
                raise TaacError(
                    f"the {what} does not fit {space}: {array[leaf != array].flat[0]!s} is no {leaf.dtype}; "
                    f"pass {what}s as the environment has them, images of bytes from 0 to 255"
                )
            leaf = leaf if batched else leaf[None]
            if not np.isfinite(leaf).all():
                raise TaacError(f"the {what} holds a number that is not finite: {given!r:.500}")
            if part.is_categorical and not ((leaf >= part.minimum) & (leaf <= part.maximum)).all():
                raise TaacError(f"the {what} does not fit {space}: a choice is {leaf.tolist()}")
            tensors.append(torch.from_numpy(leaf))
        return batched, nest.pack_like(spec, tensors)


class Controller:
    """An agent that keeps its `State` itself: `controller.act(observation)`, and `controller.reset()` when an episode begins."""

    def __init__(self, agent: TrainedAgent, num_envs: int = 1, greedy: bool = True):
        self.agent, self.greedy = agent, greedy
        self.state = agent.initial_state(num_envs)

    def reset(self, where: Any = True) -> None:
        """Begins new episodes, in those environments only where `where` `[B]` is true."""
        self.state = self.state.restarted(where)

    def act(self, observation: Any) -> Any:
        """Returns an action for an observation; see `TrainedAgent.act`."""
        action, self.state = self.agent.act(observation, self.state, greedy=self.greedy)
        return action


def load(
    root_dir: str | Path,
    *,
    best: bool = False,
    environment: Environment | None = None,
    trust: bool = False,
    critics: bool = False,
    switch_threshold: float | None = None,
) -> TrainedAgent:
    """Loads the agent of a run, on the CPU.

    Args:
        root_dir: the folder of the run.
        best: the agent with the best evaluation instead of the newest checkpoint.
        environment: that of a run whose environment was given as an object or as a function of a program.
        trust: allows a run that was not trained here to import modules. They are code: look at them first.
        critics: keeps the critics, so that `TrainedAgent.distribution` says Q. `act` then asks for all that they observe.
        switch_threshold: the greedy agent switches where the probability is above this, in place of the run's setting.

    Raises:
        TaacError: the folder holds no run or no checkpoint, or one of another environment, or its configuration cannot be
            built; the method has no switch_threshold.
    """
    place = named(environment)
    refuse_other(environment, place, Path(root_dir))
    return load_in(place, root_dir, best, trust, critics, switch_threshold)


def load_in(
    place: Named | None,
    root_dir: str | Path,
    best: bool,
    trust: bool,
    critics: bool = False,
    switch_threshold: float | None = None,
) -> TrainedAgent:
    """Loads as `load` does, with the environment's name in place of the environment."""
    with session(place):
        saved = load_saved(root_dir, best, trust, "value" if critics else "act", switch_threshold)
        saved.environment.close()
        return TrainedAgent(saved.agent, saved.environment, saved.method, saved.env_steps)


def _of(spec: Any, space: gymnasium.Space) -> gymnasium.Space:
    """Returns a space without the keys that a spec lacks."""
    if not isinstance(spec, dict):
        return space
    assert isinstance(space, gymnasium.spaces.Dict)
    return gymnasium.spaces.Dict({key: _of(part, space[key]) for key, part in spec.items()})


def _leaves(spec: Any, whole: Any, observation: Any) -> list[np.ndarray]:
    """Returns the parts of an observation as arrays, in the order of the spec.

    Parts that it lacks raise, and those of no environment.
    """
    if isinstance(spec, dict):
        if not spec.keys() <= observation.keys() <= whole.keys():
            raise KeyError(f"expected the keys {', '.join(spec)}, got {', '.join(map(str, observation))}")
        return [leaf for key, child in spec.items() for leaf in _leaves(child, whole[key], observation[key])]
    if isinstance(spec, tuple) and not isinstance(spec, TensorSpec):
        return [leaf for child, part in zip(spec, observation, strict=True) for leaf in _leaves(child, child, part)]
    return [np.asarray(observation)]


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)
