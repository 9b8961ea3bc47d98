"""Collects in other processes while the learner learns, and fills the replay buffer as a collector of one process does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import gin
import numpy as np
import torch

from taac import nest, specs
from taac.acting.collecting import Collecting, Frames, experience_spec
from taac.acting.explorers import Explorer
from taac.acting.noise import Noise
from taac.algorithms.agent import Agent
from taac.configuration import gin_state
from taac.data_structures import FIRST, LAST, Experience, Nest, TimeStep
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError, refuse_below
from taac.learning.learner import Learner
from taac.parallel import worker
from taac.parallel.pool import Channel, CollectorPool
from taac.parallel.processes import ProcessChannel
from taac.runs.files import Damaged


@gin.configurable(denylist=["environment", "agent", "replay", "seed", "explorer", "uniform_steps", "signal_returns", "number",
                            "build", "learner"])  # fmt: skip
class RemoteCollector(Collecting):
    """Orders frames from N collectors, each of which steps `num_envs / N` environments in a process of its own.

    The frame t of all collectors makes one row of the replay buffer, so segments stay whole. While the learner learns, each
    collector works on the next K frames, K = `frames_ahead`. The order of frame t is sent when frame t - K has been taken, and
    holds the parameters of that time. What a run computes therefore does not depend on how fast collectors are: it is
    reproducible, and a checkpoint resumes it exactly. Only the loss of a collector makes it differ.

    With K = 0 the learner waits while collectors act, and the parameters that act are its own. Statistics of observations are
    gathered by the learner, from the same frames in the same order as in one process.

    Args:
        environment: describes the environments, all N shares together.
        agent: the learner's.
        replay, seed, explorer, uniform_steps, signal_returns: as in `Collector`. The first random steps may be up to K frames
            more, because they are ordered ahead.
        number: N, the number of collectors.
        build: makes the environments and the agent of a collector; see `Plan`.
        learner: counts updates.
        launcher: where collectors run: "processes" of this machine, or "ray" for actors on a Ray cluster.
        ray_address: the Ray cluster, as in `taac compare`.
        frames_ahead: K.
        updates_per_broadcast: updates after which parameters are sent with the next order. Statistics of observations are sent
            with every order.
        timeout: seconds that a frame may take, after which its collector is replaced; None waits for ever. A resumed collector
            may take as long for each frame of its running episodes, which it repeats.
        max_replacements: greatest number of collectors that are replaced within an hour. One is replaced when its process
            dies, does not answer, or its environment fails. Its running episodes are truncated.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        agent: Agent,
        replay: Frames,
        seed: int,
        explorer: Explorer | Noise | None = None,
        uniform_steps: int = 0,
        signal_returns: bool = False,
        *,
        number: int,
        build: Callable[[int], tuple[VectorEnvironment, Agent]],
        learner: Learner,
        launcher: Literal["processes", "ray"] = "processes",
        ray_address: str = "auto",
        frames_ahead: int = 2,
        updates_per_broadcast: int = 1,
        timeout: float | None = None,
        max_replacements: int = 10,
    ):
        super().__init__(environment, agent, replay, signal_returns)
        if number < 1 or environment.num_envs % number:
            fitting = max(1, number) * max(1, environment.num_envs // max(1, number))
            raise TaacError(
                f"create_experiment.collectors = {number} must divide create_environment.num_envs = {environment.num_envs}, "
                f"because collectors have equally many environments: --set num_envs={fitting}, for example"
            )
        refuse_below(0, "RemoteCollector", frames_ahead=frames_ahead, max_replacements=max_replacements)
        refuse_below(1, "RemoteCollector", updates_per_broadcast=updates_per_broadcast)
        if timeout is not None and not timeout > 0:
            raise TaacError(f"RemoteCollector.timeout must be above 0 seconds, or None, got {timeout}")
        self._share, self.explorer, self._learner = environment.num_envs // number, explorer, learner
        self.frames_ahead, self.updates_per_broadcast = frames_ahead, updates_per_broadcast
        self._like, self._info_like = experience_spec(environment, agent)
        self._parameters: worker.Arrays = {}  # of the last broadcast
        self._version: int | None = None  # updates in them; None before the first
        self._given_up = False
        self._staleness: list[int] = []
        configuration = gin_state.portable()  # now: gin has one configuration for the whole process
        self.pool = CollectorPool(
            number, _launcher(launcher, ray_address, number),
            lambda own: worker.Plan(configuration, build, self._share, own, uniform_steps, explorer),
            seed, self._lost_info, timeout, max_replacements,
        )  # fmt: skip

    # Collecting ------------------------------------------------------------------------------------------------------

    def step(self) -> int:
        self._begin()
        remotes = self.pool.remotes
        row = self._row()
        self.agent.count(nest.map_structure(lambda x: x.to(self.agent.device), row))
        self._order(max(1, self.frames_ahead))
        frames = [self.pool.take(remote) for remote in remotes]
        cut = torch.tensor([frame.cut for frame in frames]).repeat_interleave(self._share)
        stored = row._replace(step_type=row.step_type.masked_fill(cut, int(LAST)))
        self._replay.add(Experience(stored, self._info([frame.info for frame in frames])))
        for remote, frame in zip(remotes, frames):
            remote.held = frame.reached
        self._count(row, frames)
        self._order(self.frames_ahead)
        return sum(frame.transitions for frame in frames)

    def _begin(self) -> None:
        if not self.pool.begun:
            self.pool.begin()

    def _row(self) -> TimeStep:
        return nest.pack_like(self._like, _joined([remote.held for remote in self.pool.remotes]))

    def _info(self, of_each: list[list[np.ndarray]]) -> Nest:
        return nest.pack_like(self._info_like, _joined(of_each))

    def _count(self, row: TimeStep, frames: list[worker.Frame]) -> None:
        self.env_steps += sum(frame.env_steps for frame in frames)
        self.decisions += sum(frame.decisions for frame in frames)
        self.num_restarts += sum(frame.restarts for frame in frames)
        self._staleness += [self._learner.num_updates - frame.version for frame in frames if not frame.cut]
        last = (row.step_type == int(LAST)).reshape(len(frames), self._share)
        for remote, frame, ended in zip(self.pool.remotes, frames, last):
            if frame.ended:
                columns = [remote.number * self._share + i for i in ended.nonzero().flatten().tolist()]
                self._add_ended(list(zip(columns, frame.ended, strict=True)))

    def summaries(self) -> dict[str, float]:
        """Returns the mean staleness since the last call, and how often running episodes were cut off."""
        staleness, self._staleness = self._staleness, []
        found = {"collectors/staleness": sum(staleness) / len(staleness)} if staleness else {}
        return {**found, "collectors/restarts": float(self.num_restarts)}

    # Orders ----------------------------------------------------------------------------------------------------------

    def _order(self, ahead: int) -> None:
        """Orders frames until each collector is `ahead` of the learner by as many."""
        while waiting := [remote for remote in self.pool.remotes if remote.ahead < ahead]:
            self._broadcast()
            self.pool.order(waiting, self._message)

    def _broadcast(self) -> None:
        """Has the learner's parameters sent with the next orders, if they have changed enough."""
        updates = self._learner.num_updates
        if self._version is None or updates - self._version >= self.updates_per_broadcast:
            self._parameters = {name: t.numpy() for name, t in self.agent.acting_state().items()}
            self._version = updates
            for remote in self.pool.remotes:
                remote.informed = False

    def _message(self, with_parameters: bool) -> bytes:
        normalizer = self.agent.observation_normalizer
        statistics = None if normalizer is None else {k: v.cpu().numpy() for k, v in normalizer.state_dict().items()}
        held = {} if self.explorer is None else vars(self.explorer)
        numbers = {name: v for name, v in held.items() if type(v) in (int, float)}
        assert self._version is not None
        return worker.message(
            worker.STEP,
            worker.Order(
                self.env_steps, self._learner.num_updates, self._version, self._parameters if with_parameters else None,
                statistics, numbers,
            ),
        )  # fmt: skip

    # Failures --------------------------------------------------------------------------------------------------------

    def _lost_info(self, held: list[np.ndarray]) -> list[np.ndarray]:
        """Returns the leaves of the `info` at a time step that ends episodes of which nobody knows the policy's state any more.

        The action there is ignored, but TAAC's critics learn the one before it from this `info`. It is what would be stored if
        that had been the episode's first, which is exact for constant trajectories; zeros for algorithms that cannot tell.
        """
        last: TimeStep = nest.pack_like(self._like, [torch.from_numpy(leaf) for leaf in held])
        first = last._replace(
            step_type=torch.full_like(last.step_type, int(FIRST)),
            prev_action=nest.map_structure(torch.zeros_like, last.prev_action),
        )  # of the same observation, in which the same agents are present
        two = nest.map_structure(lambda *x: torch.stack(x), first, last)
        told = [leaf[1].cpu() for leaf in nest.flatten(self.agent.demonstrated_info(two))]
        zeros = nest.flatten(specs.zeros(self._info_like, self._share))
        fits = [(x.dtype, x.shape) for x in told] == [(x.dtype, x.shape) for x in zeros]
        return [leaf.numpy() for leaf in (told if fits else zeros)]

    def give_up(self) -> None:
        if not self._given_up and all(remote.held for remote in self.pool.remotes):
            row = self._row()
            last = row._replace(step_type=torch.full_like(row.step_type, int(LAST)))
            self._replay.add(Experience(last, self._info([self._lost_info(remote.held) for remote in self.pool.remotes])))
        self._given_up = True
        self.num_restarts += 1

    def close(self) -> None:
        self.pool.close()

    # State -----------------------------------------------------------------------------------------------------------

    def _running(self) -> dict[str, Any] | None:
        """Returns the state of every collector, the frames that it is ahead, and what the next summary averages."""
        if self._given_up:
            return None
        self._begin()
        return {
            "collectors": [remote.state_dict(self.pool.state(remote)) for remote in self.pool.remotes],
            "parameters": {name: torch.from_numpy(array) for name, array in self._parameters.items()},
            "version": self._version,
            "staleness": list(self._staleness),
        }

    def _restore(self, running: dict[str, Any] | None) -> None:
        self.pool.close()
        remotes = self.pool.remotes
        if running is None:
            for remote in remotes:
                remote.generation = self.num_restarts  # so that their seeds are new
            return
        if len(running["collectors"]) != len(remotes):
            raise Damaged(f"it holds {len(running['collectors'])} collectors, expected {len(remotes)}")
        self._parameters = {name: tensor.numpy() for name, tensor in running["parameters"].items()}
        self._version = None if running["version"] is None else int(running["version"])
        self._staleness = list(map(int, running["staleness"]))
        for remote, state in zip(remotes, running["collectors"]):
            remote.load_state_dict(state, self._like, self._info_like, self._share)
        self.pool.begin([state["worker"] for state in running["collectors"]])


def _joined(of_each: list[list[np.ndarray]]) -> list[torch.Tensor]:
    """Joins the leaves `[b, ...]` of all collectors to leaves `[B, ...]`."""
    return [torch.from_numpy(np.concatenate(leaves)) for leaves in zip(*of_each, strict=True)]


def _launcher(launcher: str, address: str, number: int) -> Callable[[str], Channel]:
    if launcher == "processes":
        return ProcessChannel
    from taac.parallel import ray_actors

    return functools.partial(ray_actors.ActorChannel, ray_actors.cluster(address, number))
