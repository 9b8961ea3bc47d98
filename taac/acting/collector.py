"""Collects experience: steps the environments of training, fills the replay buffer, and counts what happens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from taac import nest, specs
from taac.acting.action_log import ActionLog, ReplayMismatch
from taac.acting.collecting import Collecting, Frames
from taac.acting.explorers import Explorer
from taac.acting.metrics import EpisodeRecorder
from taac.acting.noise import Noise
from taac.acting.random_numbers import TRAINING, RandomNumbers, derived_seed
from taac.acting.rollout import Rollout
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import reset_where_first
from taac.data_structures import AlgStep, Experience, Nest, TimeStep
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import EnvironmentFailed, TaacError
from taac.runs.files import Damaged
from taac.runs.terminal import warn_user

_ROUNDING = 1e-5  # by which an explorer's action may be outside its range


class Collector(Collecting):
    """Steps the environments of training, one frame of each at a time, and adds the frames to the replay buffer.

    Args:
        environment, agent, replay, signal_returns: as in `Collecting`.
        seed: of the run. The environments' seeds are derived from it.
        explorer: may replace the agent's actions, or draws their noise, after the first `uniform_steps`.
        uniform_steps: environment steps at the beginning of the run that take uniformly random actions.

    Attributes:
        rollout: the current state of the environments and the agent.
    """

    _explorer_state: Nest  # None until the explorer has acted in these episodes
    _truncated: bool  # whether the running episodes were truncated and no new ones have begun

    def __init__(
        self,
        environment: VectorEnvironment,
        agent: Agent,
        replay: Frames,
        seed: int,
        explorer: Explorer | Noise | None = None,
        uniform_steps: int = 0,
        signal_returns: bool = False,
    ):
        super().__init__(environment, agent, replay, signal_returns)
        self.explorer = explorer
        self._seed, self._uniform_steps = seed, uniform_steps
        self.rollout = Rollout(environment, agent)
        self._begin_episodes()

    # Collecting ------------------------------------------------------------------------------------------------------

    def step(self) -> int:
        step = self.rollout.step(self.agent.random_step if self.env_steps < self._uniform_steps else self.explore)
        stored = step.arrays if self._replay.device.type == "cpu" else step.time_step
        self._replay.add(Experience(stored, step.alg_step.info))
        ended = self._recorder.add(step.arrays, step.alg_step, step.raw_reward, step.duration, step.episode_info)
        self.env_steps += self._recorder.steps
        self.decisions += self._recorder.decisions
        self._add_ended(ended)
        self._actions.append(self._recorder.action, self._recorder.last)
        return self._recorder.transitions

    def explore(self, time_step: TimeStep, state: Nest) -> AlgStep:
        """Returns the agent's collecting step, or the explorer's replacement of it, which must be in [-1, 1]."""
        if self.explorer is None:
            return self.agent.rollout_step(time_step, state)
        first = self._first_explorer_state
        explored = reset_where_first(first if self._explorer_state is None else self._explorer_state, first, time_step)
        if isinstance(self.explorer, Noise):
            noise, self._explorer_state = self.explorer.draw(self.agent, time_step, explored)
            return self.agent.rollout_step(time_step, state, noise)
        alg_step, self._explorer_state = self.explorer.step(
            time_step, self.agent.rollout_step(time_step, state), explored, self.env_steps,
            lambda: self.agent.unobserved_random_step(time_step, state).output,
        )  # fmt: skip
        for leaf in nest.flatten(alg_step.output):
            if leaf.is_floating_point() and bool((leaf.abs() > 1.0 + _ROUNDING).any()):
                raise TaacError(
                    f"create_collector.explorer {type(self.explorer).__name__} returned the action {leaf.tolist()}, outside "
                    "[-1, 1], the scale in which agents act: clamp it"
                )
        return alg_step

    @functools.cached_property
    def _first_explorer_state(self) -> Nest:
        assert self.explorer is not None
        if isinstance(self.explorer, Noise):
            return self.explorer.initial_state(self.agent, self.environment.num_envs)
        blank = specs.zeros(self.environment.action_spec, self.environment.num_envs, device=self.agent.device)
        return self.explorer.initial_state(blank)

    # Failures --------------------------------------------------------------------------------------------------------

    def restart(self, failure: EnvironmentFailed, stopping: Callable[[], bool] = lambda: False) -> None:
        """Truncates all running episodes and begins new ones.

        The last frame seen becomes the LAST frame of its episode. The action taken there led nowhere and is ignored, like all
        actions at LAST. No frame is invented, and the step does not count.
        """
        while True:
            if stopping():
                raise failure
            self.environment.restart(failure)
            self._truncate()
            self.num_restarts += 1
            warn_user(f"{failure}; restarted the environments: all running episodes were truncated, and new ones begin")
            try:
                self._begin_episodes()
                return
            except EnvironmentFailed as again:
                failure = again

    def give_up(self) -> None:
        self._truncate()
        self.num_restarts += 1

    def _truncate(self, recorded: bool = True) -> None:
        """Makes the frame to act at next the LAST one of its episodes.

        Args:
            recorded: whether the recorder has seen these episodes. It then returns those of which that frame was LAST anyway.
        """
        if self._truncated:
            return
        at, alg_step = self.rollout.time_step, self.rollout.act(self.agent.unobserved_random_step)
        self._replay.add(Experience(self.rollout.truncate(), alg_step.info))
        if recorded:
            environment = self.environment
            self._add_ended(self._recorder.add(at, alg_step, environment.raw_reward, episode_info=environment.episode_info))
        self._truncated = True

    def _begin_episodes(self) -> None:
        """Begins episodes whose seeds depend only on the run's seed and the number of restarts so far."""
        self.rollout.reset(self._environment_seed())
        self._truncated = False
        self._explorer_state = None
        environment = self.environment
        self._recorder = EpisodeRecorder(environment.num_envs, environment.duration_coordinate, environment.info)
        self._actions = ActionLog(self.environment)

    def _environment_seed(self) -> int:
        return derived_seed(self._seed, TRAINING, self.num_restarts)

    # State -----------------------------------------------------------------------------------------------------------

    def _restore(self, running: dict[str, Any] | None) -> None:
        """Restores `_running()` by replaying the actions of the running episodes in the environments.

        If the environments do not reach the saved state, warns, truncates the episodes there, and begins new ones. This requires
        that the agent, the replay buffer and the random numbers have been restored before.
        """
        if running is None:
            self._begin_episodes()
            return
        generators = RandomNumbers(self.agent.device)
        random_numbers, failure = generators.state_dict(), None
        self._begin_episodes()
        try:
            self._replay_running(running)
        except (ReplayMismatch, EnvironmentFailed) as error:
            failure = error
        generators.load_state_dict(random_numbers)  # environments may have drawn from them meanwhile
        if failure is not None:
            warn_user(
                f"at {self.env_steps} environment steps: {failure}. The running episodes were truncated there and new ones "
                "begin, so this run will differ from an uninterrupted one"
            )
            if isinstance(failure, EnvironmentFailed) and self.environment.process_ids:
                self.environment.restart(failure)
            self.rollout.set_time_step(running["time_step"])
            self._truncate(recorded=False)
            self.num_restarts += 1
            self._begin_episodes()

    def _running(self) -> dict[str, Any] | None:
        if self._truncated:
            return None
        return {
            "numbers": self.environment.episodes.tolist(),
            "actions": self._actions.state_dict(),
            "time_step": [leaf.cpu() for leaf in nest.flatten(self.rollout.time_step)],
            "policy": nest.flatten(self.rollout.state),
            "explorer": None if self._explorer_state is None else nest.flatten(self._explorer_state),
            "episodes": self._recorder.state_dict(),
        }

    def _replay_running(self, state: dict[str, Any]) -> None:
        device = self.agent.device
        numbers = np.array(state["numbers"], dtype=np.int64)
        if numbers.shape != self.environment.episodes.shape or (numbers < 0).any():
            raise Damaged(f"it holds no numbers of {self.environment.num_envs} episodes: {state['numbers']}")
        _packed(self.rollout.time_step, state["time_step"], device)  # refuses unfit states before the environments run
        self._actions.load_state_dict(state["actions"])
        # Before the environments run: if they fail, the episodes end in this state, which the info of their last frames holds.
        self.rollout.state = _packed(self.rollout.state, state["policy"], device)
        self.rollout.replay_actions(self._actions, self._environment_seed(), numbers, state["time_step"])
        if state["explorer"] is not None and self.explorer is not None:
            self._explorer_state = _packed(self._first_explorer_state, state["explorer"], device)
        self._recorder.load_state_dict(state["episodes"])


def _packed(like: Any, leaves: list[torch.Tensor], device: torch.device) -> Any:
    """Packs saved leaves like the structure `like`. Refuses leaves of another type or shape."""
    kinds = [nest.kind(leaf) for leaf in nest.flatten(like)]
    if (given := [nest.kind(leaf) for leaf in leaves]) != kinds:
        raise Damaged(f"it holds states of another kind: {given}, expected {kinds}")
    return nest.pack_like(like, [leaf.to(device) for leaf in leaves])
