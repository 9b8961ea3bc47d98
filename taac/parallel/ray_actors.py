"""Collectors as actors on a Ray cluster."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Any

import torch

from taac.campaigns.launchers.ray_cluster import connected
from taac.errors import first_line
from taac.parallel.pool import Lost
from taac.parallel.worker import Answers
from taac.runs.terminal import warn_user


def cluster(address: str, number: int) -> Any:
    """Connects to a cluster. Warns if it has no room for so many actors now: Ray makes them and the run wait, silently."""
    ray = connected(address)
    free = ray.available_resources().get("CPU", 0.0)
    if free < number:
        warn_user(
            f"the Ray cluster has {free:g} free CPUs, and each of {number} collectors takes one: the run waits until there are "
            "enough"
        )
    return ray


class Actor(Answers):
    """A collector as a Ray actor. Ray answers calls in their order."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)


class ActorChannel:
    """A collector as an actor of one CPU. Ray ends it when the learner's process ends."""

    def __init__(self, ray: Any, name: str):
        self._ray = ray
        paths = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        self._actor = ray.remote(num_cpus=1, max_restarts=0, runtime_env={"env_vars": paths})(Actor).remote()
        self._replies: deque[Any] = deque()

    def send(self, message: bytes) -> None:
        self._replies.append(self._actor.answer.remote(message))

    def receive(self, timeout: float | None) -> bytes:
        try:
            reply: bytes = self._ray.get(self._replies[0], timeout=timeout)
        except self._ray.exceptions.GetTimeoutError as error:
            raise Lost(f"it did not answer within {timeout:g} s") from error
        except self._ray.exceptions.RayError as error:
            raise Lost(first_line(error)) from error
        self._replies.popleft()
        return reply

    def hang_up(self) -> None:
        """Does nothing: an actor ends at once."""

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the connection to the cluster may be gone
            self._ray.kill(self._actor)
