"""Building an experiment only to learn whether it can be built, before a comparison starts its runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from taac import configuration
from taac.campaigns.run import Run
from taac.configuration import RunRequest, gin_state
from taac.configuration.config import Config
from taac.errors import TaacError
from taac.runs import layout
from taac.training.experiment import create_experiment

REPLAY_LENGTH = 1000  # at most: a buffer of full length may need all memory, and a minute to be cleared
ELSEWHERE = {  # what depends on a machine
    "create_experiment.device": "cpu", "create_experiment.replay_device": None, "create_agent.compile": False,
    "Learner.matmul": "auto",
}  # fmt: skip


def check_buildable(request: RunRequest, here: bool) -> None:
    """Builds an experiment as `taac train` does, with a short replay buffer, and releases it.

    If it will not run `here`, on this machine, it is built on the CPU and uncompiled, because the other machine may have other
    devices. What `taac train` would say is raised after the names of the method and the task.
    """
    try:
        loaded = request.load()
        gin_state.override(_cheaper(loaded, here))
        with contextlib.closing(configuration.build(create_experiment)):
            loaded.check_used()
    except TaacError as error:
        raise TaacError(f"{request.method} on {request.task}: {error}") from error


def check_new(runs: Sequence[Run], here: bool) -> None:
    """Refuses combinations of method and task that cannot be built, of the runs that are not begun; see `check_buildable`."""
    new = {(run.request.task, run.request.method): run.request for run in runs if not (run.folder / layout.CONFIG).exists()}
    for request in new.values():
        check_buildable(request, here)


def _cheaper(loaded: Config, here: bool) -> dict[str, Any]:
    """Returns the settings with which an experiment is only tried.

    It has no processes for environments, and a short replay buffer of a segment or more, unless demonstrations fill it.
    """
    params: dict[str, Any] = {"create_environment.asynchronous": False, **({} if here else ELSEWHERE)}
    length, segment = loaded.bound("ReplayBuffer.length"), loaded.bound("Trainer.segment_length")
    least = max(REPLAY_LENGTH, segment if isinstance(segment, int) else 0)
    if isinstance(length, int) and length > least and loaded.bound("create_experiment.demonstrations") is None:
        params["ReplayBuffer.length"] = least
    return params
