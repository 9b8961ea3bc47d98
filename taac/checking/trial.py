"""Building an experiment only to learn whether it can be built, before a comparison starts its runs."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from taac import configuration
from taac.campaigns.run import Run
from taac.configuration import RunRequest
from taac.environments.create import create_environment
from taac.errors import TaacError
from taac.runs import layout
from taac.training.experiment import create_agent, create_experiment

REPLAY_LENGTH = 1000  # at most: a buffer of full length may need all memory, and a minute to be cleared


def check_buildable(request: RunRequest, here: bool) -> None:
    """Builds an experiment as `taac train` does, with a short replay buffer, and releases it.

    If it will not run `here`, on this machine, only the environment and the agent are built, on the CPU, because the other
    machine may have other devices. What `taac train` would say is raised after the names of the method and the task.
    """
    try:
        loaded = _cheaper(request).load()
        with contextlib.ExitStack() as opened:
            if not here:
                environment = configuration.build(lambda: create_environment(num_envs=1))
                opened.callback(environment.close)
                configuration.build(lambda: create_agent(environment, torch.device("cpu")))
                return
            opened.callback(configuration.build(create_experiment).close)
            loaded.check_used()
    except TaacError as error:
        raise TaacError(f"{request.method} on {request.task}: {error}") from error


def check_new(runs: Sequence[Run], here: bool) -> None:
    """Refuses combinations of method and task that cannot be built, of the runs that are not begun; see `check_buildable`."""
    new = {(run.request.task, run.request.method): run.request for run in runs if not (run.folder / layout.CONFIG).exists()}
    for request in new.values():
        check_buildable(request, here)


def _cheaper(request: RunRequest) -> RunRequest:
    """Returns the experiment without processes for environments, and with a short replay buffer unless demonstrations fill it."""
    loaded = request.load()
    params = [*request.gin_params, "create_environment.asynchronous = False"]
    length = loaded.bound("ReplayBuffer.length")
    if isinstance(length, int) and length > REPLAY_LENGTH and loaded.bound("create_experiment.demonstrations") is None:
        params.append(f"ReplayBuffer.length = {REPLAY_LENGTH}")
    return request._replace(gin_params=tuple(params))
