"""Small runs with collectors, and what a replay buffer must hold of them."""

from __future__ import annotations

import itertools
import os
import signal

import numpy as np
import psutil

from taac.acting.random_numbers import COLLECTORS
from taac.data_structures import StepType
from taac.errors import TaacError
from tests.environments.toys import env_id
from tests.training.runs import build

FIRST, MID, LAST = (int(kind) for kind in StepType)
POINT = "create_environment.env_name = 'tests.toy_tasks:taac-test/PointMass-v0'"
SHORT = ("hidden_layers = (8,)", "batch_size = 8", "evaluation_episodes = 1", "create_experiment.evaluation_envs = 1",
         "Evaluator.initial_evaluation = False", "create_environment.max_episode_steps = 12")  # fmt: skip


def seed_of(number, seed=0):
    """The seed that the first collector of a number has."""
    return int(np.random.SeedSequence([seed, COLLECTORS, number, 0]).generate_state(1)[0] % 2**31)


def with_collectors(number, *params, num_envs=4, method="sac", **options):
    """A trainer with collectors, on a point mass unless another environment is bound."""
    bound = [f"RemoteCollector.{name} = {value!r}" for name, value in options.items()]
    own = [f"create_experiment.collectors = {number}", f"num_envs = {num_envs}"]
    return build(POINT, *SHORT, *own, *bound, *params, method=method)


def counter(*scripts):
    """Settings of an environment whose every number follows from its script; see `Counter`."""
    return f"create_environment.env_name = '{env_id('Counter')}'", f"create_environment.env_kwargs = {{'scripts': {scripts}}}"


def tells_variable(num_envs):
    """Stands for what builds a collector's parts: raises an error with the value of a variable."""
    raise TaacError(f"TAAC_TOLD is {os.environ.get('TAAC_TOLD')}")


def processes(trainer):
    """The processes of the collectors, in their order."""
    return [psutil.Process(remote.channel._process.pid) for remote in trainer.collector.pool.remotes]


def kill(process):
    os.kill(process.pid, signal.SIGKILL)
    gone([process])


def gone(them, timeout=20):
    """Waits until processes are over; whoever started them may not have asked how they ended."""
    for process in them:
        try:
            process.wait(timeout)
        except psutil.TimeoutExpired:
            assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def frames(trainer):
    """The leaves of the replay buffer's time steps, `[T, B, ...]`, and of `info`."""
    held = trainer.replay_buffer.frames(0, trainer.replay_buffer.size)
    return {name.removeprefix("frames/").removeprefix("time_step/"): value.numpy().copy() for name, value in held.items()}


def assert_whole_episodes(step_type):
    """Every column is FIRST, MID..., LAST, FIRST...: no episode begins or ends without its frame."""
    for column in step_type.T:
        assert column[0] == FIRST
        for before, after in itertools.pairwise(column):
            assert (after == FIRST) == (before == LAST), column.tolist()


def lasts(step_type):
    """(row, column) of every LAST."""
    return {(int(row), int(column)) for row, column in zip(*np.nonzero(step_type == LAST))}
