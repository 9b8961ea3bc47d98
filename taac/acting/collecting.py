"""The interface of collectors to the training loop: they fill the replay buffer and count what happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from taac import nest, specs
from taac.acting.explorers import Explorer
from taac.acting.metrics import Episode
from taac.acting.noise import Noise
from taac.algorithms.agent import Agent
from taac.data_structures import Experience
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import EnvironmentFailed
from taac.replay import ReplayBuffer
from taac.runs.files import Damaged

COUNTERS = ("env_steps", "decisions", "episodes", "num_restarts")  # attributes saved in a checkpoint


class Frames(Protocol):
    """Stores the frames of a collector: a replay buffer."""

    @property
    def device(self) -> torch.device:
        """Where they are stored."""
        ...

    def add(self, experience: Experience) -> None:
        """Stores frames, leaves `[B, ...]`, tensors or, on the CPU, numpy arrays."""

    def newest_episode(self, environment: int) -> Experience | None: ...


class Collecting:
    """The counts of a collector and the episodes that it has seen end.

    Args:
        environment: the environments of training.
        agent: its reward signals are summed up over episodes.
        replay: stores the frames.
        signal_returns: whether to sum up each reward signal over each episode.

    Attributes:
        env_steps: environment steps so far, summed over all environments. An action that is repeated k times inside the
            environment counts k. A reset does not count.
        decisions: steps so far at which a new action was chosen.
        episodes: episodes that have ended so far.
        ended: the episodes that ended since `pop_episodes`.
        signal_returns: the sum of each reward signal over each of them, by its name. Episodes whose first frames have left
            the replay buffer are skipped.
        num_restarts: how often running episodes were cut off because environments failed or could not be resumed.
    """

    def __init__(self, environment: VectorEnvironment, agent: Agent, replay: Frames, signal_returns: bool = False):
        self.environment, self.agent, self._replay = environment, agent, replay
        self.explorer: Explorer | Noise | None = None
        self._with_signal_returns = signal_returns and bool(agent.signals)
        self.env_steps = self.decisions = self.episodes = self.num_restarts = 0
        self.ended: list[Episode] = []
        self.signal_returns: list[dict[str, float]] = []

    def step(self) -> int:
        """Takes one step in every environment; returns how many of them were transitions rather than resets.

        Raises:
            EnvironmentFailed: an environment fails. Nothing is stored or counted; call `restart`.
        """
        raise NotImplementedError

    def restart(self, failure: EnvironmentFailed, stopping: Callable[[], bool] = lambda: False) -> None:
        """Recovers from a failed environment: truncates the running episodes and begins new ones.

        Raises:
            EnvironmentFailed: the run is `stopping`, or the environments cannot be restarted or have been restarted too often.
        """
        raise failure

    def give_up(self) -> None:
        """Truncates the running episodes after a failure that `restart` cannot mend. A resumed run begins new ones."""

    def summaries(self) -> dict[str, float]:
        """Returns scalars by tag, of what happened since the last call."""
        return {}

    def close(self) -> None:
        """Ends what collects elsewhere. The trainer closes its environments itself."""

    def pop_episodes(self) -> tuple[list[Episode], list[dict[str, float]]]:
        """Returns `ended` and `signal_returns`, and empties both."""
        popped = self.ended, self.signal_returns
        self.ended, self.signal_returns = [], []
        return popped

    @property
    def fraction_repeated(self) -> float:
        """Fraction of the environment steps so far at which no new action was chosen."""
        return 1.0 - self.decisions / max(1, self.env_steps)

    def _add_ended(self, episodes: list[tuple[int, Episode]]) -> None:
        """Adds episodes, each with the number of its environment, whose last frames are in the replay buffer.

        Each reward signal is summed over all agents.
        """
        self.episodes += len(episodes)
        self.ended += [episode for _, episode in episodes]
        for index, _ in episodes if self._with_signal_returns else ():
            frames = self._replay.newest_episode(index)
            if frames is not None:
                seen = self.agent.shown_to_signals(self.agent.prepare_observations(frames).time_step)
                self.signal_returns.append({signal.name: signal.total(seen).sum().item() for signal in self.agent.signals})

    # State -----------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the counters, the episodes waiting for `pop_episodes`, and the state of the running episodes."""
        return {
            **{name: getattr(self, name) for name in COUNTERS},
            "ended": [plain(episode) for episode in self.ended],
            "signal_returns": self.signal_returns,
            "running": self._running(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict()`, with the running episodes. Everything else of the run has been restored before.

        Raises:
            Damaged: a count is negative, or the running episodes do not fit this environment and agent.
            EnvironmentFailed: the environments cannot be reset.
        """
        for name in COUNTERS:
            setattr(self, name, int(state[name]))
            if getattr(self, name) < 0:
                raise Damaged(f"it counts {state[name]} {name}, expected 0 or more")
        self.ended = [episode(kept) for kept in state["ended"]]
        self.signal_returns = [{name: float(v) for name, v in one.items()} for one in state["signal_returns"]]
        self._restore(state["running"])

    def _running(self) -> dict[str, Any] | None:
        """Returns the state of the running episodes; None if they were truncated and no new ones have begun."""
        return None

    def _restore(self, running: dict[str, Any] | None) -> None:
        """Restores `_running()`."""


class Offline(Collecting):
    """Collects nothing: a run learns from the frames that its replay buffer holds from the beginning, and counts as if it acted.

    Each step counts one environment step for each environment, none of which is taken, so all that follows this count works as
    in other runs: the ratio of updates, schedules, evaluations, checkpoints, the length of the run. At the first, statistics of
    observations and returns take in the frames.
    """

    def __init__(self, environment: VectorEnvironment, agent: Agent, replay: ReplayBuffer):
        super().__init__(environment, agent, replay)
        self._num_envs, self._stored = environment.num_envs, replay

    def step(self) -> int:
        if self.env_steps == 0 and (self.agent.observation_normalizer or self.agent.reward_normalizer):
            stored = self._stored.stored().time_step
            for t in range(self._stored.size):
                self.agent.count(nest.map_structure(lambda x, t=t: x[t].to(self.agent.device), stored))
        self.env_steps += self._num_envs
        self.decisions += self._num_envs
        return self._num_envs


def plain(episode: Episode) -> dict[str, Any]:
    """Returns an episode as a checkpoint holds it."""
    return episode._replace(ret=episode.ret.tolist())._asdict()


def episode(kept: dict[str, Any]) -> Episode:
    """Returns the episode of `plain`."""
    return Episode(**{**kept, "ret": np.array(kept["ret"])})


def experience_spec(environment: VectorEnvironment, agent: Agent) -> Experience:
    """Returns the specs of one frame in the replay buffer: the environment's time step, and the `info` of a rollout."""
    time_step = specs.time_step_spec(environment.observation_spec, environment.action_spec, environment.reward_dim)
    with torch.random.fork_rng(devices=[]):
        blank = specs.blank(time_step, 1, device=agent.device)
        info = agent.unobserved_random_step(blank, agent.initial_state(1)).info
    return Experience(time_step, nest.map_structure(specs.spec_of, info))
