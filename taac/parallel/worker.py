"""What runs in the process of a collector: environments, an agent that acts, and answers to the learner's messages.

Each message is answered by one reply, in order, however the messages travel.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from taac import nest
from taac.acting.collector import Collector
from taac.acting.explorers import Explorer
from taac.acting.metrics import Episode
from taac.acting.noise import Noise
from taac.acting.random_numbers import RandomNumbers, seed_generators
from taac.algorithms.agent import Agent
from taac.configuration.gin_state import PortableConfig
from taac.data_structures import Experience, Nest
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import EnvironmentFailed, TaacError
from taac.ops.schedules import Schedules

BEGIN, STEP, STATE = "begin", "step", "state"  # messages
DONE, FAILED, REFUSED, BROKEN = range(4)  # replies: a result; a failed environment; a TaacError; any other error

Arrays = dict[str, np.ndarray]


class Plan(NamedTuple):
    """What a collector is made from."""

    configuration: PortableConfig
    build: Callable[[int], tuple[VectorEnvironment, Agent]]  # called with the number of environments
    num_envs: int
    seed: int
    uniform_steps: int
    explorer: Explorer | Noise | None


class Order(NamedTuple):
    """Asks for one frame of each environment. The counts are the learner's when it sent this."""

    env_steps: int
    updates: int
    version: int  # updates in the newest parameters sent so far
    parameters: Arrays | None  # of `Agent.acting_state`; None: as before
    statistics: Arrays | None  # of observations; None: there are none
    explorer: dict[str, float]  # its numbers, which schedules and attributes may have set


class Frame(NamedTuple):
    """What happened at one frame of each environment. The learner already knows the time step that was acted at."""

    info: list[np.ndarray]  # leaves `[b, ...]` of the agent's `info`
    reached: list[np.ndarray]  # leaves `[b, ...]` of the time step to act at next
    cut: bool  # whether the episodes were truncated at this frame instead of stepped
    version: int  # of the parameters that acted
    env_steps: int
    transitions: int
    decisions: int
    ended: list[Episode]
    restarts: int  # how often environments were restarted since the last frame


class _Frames:
    """Stands for the replay buffer: holds frames until the learner asks for them."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.held: list[Experience] = []

    def add(self, experience: Experience) -> None:
        self.held.append(experience)

    def newest_episode(self, environment: int) -> None:
        return None


class Worker:
    """Steps its share of the environments, one frame for each `step`; goes on from the `state` of an earlier worker, if given."""

    def __init__(self, plan: Plan, state: dict[str, Any] | None):
        plan.configuration.install()
        torch.set_num_threads(1)
        self._environment, self._agent = plan.build(plan.num_envs)
        seed_generators(plan.seed)  # whatever the agent has drawn, whose parameters the learner will send
        self._agent.gathers_statistics = False  # the learner sees all collectors' observations
        self._explorer, self._frames = plan.explorer, _Frames()
        self._schedules = Schedules(self._agent)
        self._collector = Collector(self._environment, self._agent, self._frames, plan.seed, plan.explorer, plan.uniform_steps)
        if state is not None:
            RandomNumbers(self._agent.device).load_state_dict(state["random"])
            self._collector.load_state_dict(state["collector"])  # may truncate the episodes, which the next frame tells
        self._restarts = self._collector.num_restarts if state is None else int(state["collector"]["num_restarts"])

    def reached(self) -> list[np.ndarray]:
        """Returns the leaves of the time step to act at next."""
        return _arrays(self._collector.rollout.time_step)

    def step(self, order: Order) -> Frame:
        """Acts once in each environment. Raises `EnvironmentFailed` if one failed and cannot be restarted here."""
        self._take_over(order)
        collector, decisions, cut = self._collector, self._collector.decisions, bool(self._frames.held)
        collector.env_steps, transitions = order.env_steps, 0
        if not cut:
            try:
                transitions = collector.step()
            except EnvironmentFailed as failure:
                collector.restart(failure)
                cut = True
        experience = self._frames.held.pop()
        restarts, self._restarts = collector.num_restarts - self._restarts, collector.num_restarts
        return Frame(
            _arrays(experience.rollout_info), self.reached(), cut, order.version, collector.env_steps - order.env_steps,
            transitions, collector.decisions - decisions, collector.pop_episodes()[0], restarts,
        )  # fmt: skip

    def _take_over(self, order: Order) -> None:
        if order.parameters is not None:
            self._agent.load_acting_state(_tensors(order.parameters))
        if order.statistics is not None:
            assert self._agent.observation_normalizer is not None
            self._agent.observation_normalizer.load_state_dict(_tensors(order.statistics))
        self._schedules.move(order.env_steps, order.updates)
        for name, value in order.explorer.items():
            setattr(self._explorer, name, value)

    def state(self) -> dict[str, Any]:
        return {"collector": self._collector.state_dict(), "random": RandomNumbers(self._agent.device).state_dict()}

    def close(self) -> None:
        self._environment.close()


class Answers:
    """Answers messages, each a pickled pair of a name and its arguments, with pickled pairs of a kind and a result."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def answer(self, message: bytes) -> bytes:
        """Returns the reply to a message. Raises nothing: an error is a kind of reply."""
        try:
            name, arguments = pickle.loads(message)
            return pickle.dumps((DONE, self._result(name, arguments)), pickle.HIGHEST_PROTOCOL)
        except EnvironmentFailed as error:
            return pickle.dumps((FAILED, str(error)))
        except TaacError as error:
            return pickle.dumps((REFUSED, error))
        except Exception:
            return pickle.dumps((BROKEN, traceback.format_exc()))

    def _result(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == BEGIN:
            self._worker = Worker(*arguments)
            return self._worker.reached()
        assert self._worker is not None
        return self._worker.step(*arguments) if name == STEP else self._worker.state()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


def message(name: str, *arguments: Any) -> bytes:
    return pickle.dumps((name, arguments), pickle.HIGHEST_PROTOCOL)


def _arrays(structure: Nest) -> list[np.ndarray]:
    return [nest.array(leaf) for leaf in nest.flatten(structure)]


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
