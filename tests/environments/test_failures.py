"""Environments that raise, hang or die: which is named, and how episodes end when they are recreated."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys

import gymnasium
import numpy as np
import psutil
import pytest
import torch

from taac.environments.create import create_environment
from taac.environments.workers import Workers
from taac.errors import EnvironmentFailed, TaacError
from tests.campaigns.launched import wait_for
from tests.environments.toys import env_id


def fragile(tmp_path, how, num_envs=3, at=3, times=1, modulus=3, **settings):
    """Of the environments seeded with 7, 8 and 9, the last breaks down."""
    kwargs = {"how": how, "at": at, "log": str(tmp_path / "log"), "times": times, "modulus": modulus}
    return create_environment(env_id("Fragile"), num_envs, env_kwargs=kwargs, **settings)


def break_down(environment):
    environment.reset(7)
    for step in range(3):
        environment.step(torch.full((environment.num_envs, 1), 0.25 * (step + 1)))


def test_worker_processes_whose_owner_has_ended_end_without_a_word(capfd):
    """As where a signal reaches all processes of a run that is just being built."""
    workers = Workers([functools.partial(gymnasium.make, "Pendulum-v1")] * 2)
    for pipe in workers.parent_pipes:
        pipe.close()
    for process in workers.processes:
        process.join(30)
        assert process.exitcode == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "how, shown",
    [
        ("raise", r"RuntimeError: 50% of the simulator is gone, and %d of it \(in step, .*toys\.py:\d+\)"),
        ("sys.exit", r"it would have ended the process with SystemExit\(0\)"),
        ("interrupt", r"it would have ended the process with KeyboardInterrupt\(\)"),
    ],
)
def test_an_environment_that_raises_is_named_with_seed_step_and_action(tmp_path, monkeypatch, how, shown, asynchronous):
    """Without a word of `taac check`, which is for what fails at once."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)  # as in training, where Ctrl-C is handled otherwise
    environment = fragile(tmp_path, how, asynchronous=asynchronous)
    place = rf"'{env_id('Fragile')}' \(number 2 of 3, seed 9, episode 1 since it was seeded\) failed at step 3"
    with pytest.raises(EnvironmentFailed, match=rf"{place}: {shown}; its last action, in its own scale, was \[0\.75\]$"):
        break_down(environment)
    environment.close()


@pytest.mark.parametrize("kwargs, message", [
    ({"where": "observation", "step": 0, "value": [1, 2, 3]}, r"failed at reset: ValueError: .*setting an array element"),
    ({"where": "reward", "step": 1, "value": np.ones(2)}, r"failed at step 1: it returned a reward of shape \[2\]"),
])  # fmt: skip
def test_what_fails_at_once_leads_to_the_check_of_the_environment(kwargs, message):
    environment = create_environment(env_id("Faulty"), 1, env_kwargs={"seed": 7, **kwargs})
    with pytest.raises(EnvironmentFailed, match=f"{message}.*; `taac check` of the environment alone says how to mend it$"):
        environment.reset(7)
        environment.step(torch.zeros(1, 1))


def test_ctrl_c_is_no_failure_of_an_environment(tmp_path):
    environment = fragile(tmp_path, "interrupt")
    with pytest.raises(KeyboardInterrupt):
        break_down(environment)
    environment.close()


@pytest.mark.parametrize(
    "when, message, asynchronous",
    [
        ("made", "failed when it was created", False),
        ("reset", "failed at reset", False),
        ("closed", "failed at its end", False),
        ("made", "failed when it was created", True),
        ("reset", "failed at reset", True),
    ],
)
def test_an_environment_that_exits_at_any_other_time_is_named(when, message, asynchronous):
    environment = None
    expected = rf"'{env_id('Quits')}' .*{message}: it would have ended the process with SystemExit\(0\)"
    with pytest.raises(TaacError, match=expected):
        environment = create_environment(env_id("Quits"), env_kwargs={"when": when}, asynchronous=asynchronous)
        environment.reset(0)
        environment.close()
    if environment is not None:
        environment.close()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name, value", [("terminated", "False"), ("truncated", None), ("terminated", np.array([True])),
                                         ("terminated", 0)])  # fmt: skip
def test_an_end_that_is_no_bool_is_refused(asynchronous, name, value):
    """The text 'False' ended every episode, and an array of one broke what is not in this process."""
    kwargs = {"where": name, "value": value, "seed": 8}
    environment = create_environment(env_id("Faulty"), 2, env_kwargs=kwargs, asynchronous=asynchronous)
    environment.reset(7)
    with pytest.raises(EnvironmentFailed, match=rf"\(number 1 of 2, seed 8, .* step 1: it returned {name} = .*, expected True"):
        environment.step(torch.zeros(2, 1))
    environment.close()


def test_a_process_that_dies_after_the_last_step_is_no_failure():
    """Nothing is asked of it any more: a run that has all its results ends as finished."""
    environment = create_environment(env_id("Counter"), 2, env_kwargs={"scripts": ("5t", "5t")}, asynchronous=True)
    environment.reset(0)
    processes = environment._env.processes
    processes[1].kill()
    processes[1].join()
    environment.close()
    assert all(process.exitcode is not None for process in processes)


@pytest.mark.slow
def test_an_environment_may_change_torch_in_a_process_of_its_own(tmp_path):
    create_environment(env_id("Quits"), env_kwargs={"when": "dtype"}, asynchronous=True).close()
    own = fragile(tmp_path, "dtype", num_envs=1, asynchronous=True, modulus=7)
    break_down(own)
    own.close()
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    "how, message",
    [
        ("die", "its process died (SIGKILL)"),
        ("exit", "its process died (exit code 3)"),
        ("hang", "it did not answer within 1.5 s"),
    ],
)
def test_an_environment_that_dies_or_hangs_is_named_and_recreated(tmp_path, how, message):
    environment = fragile(tmp_path, how, asynchronous=True, step_timeout=1.5, max_restarts=1)
    with pytest.raises(EnvironmentFailed) as error:
        break_down(environment)
    assert f"(number 2 of 3, seed 9) failed at step 3 after reset: {message}" in str(error.value)
    assert "its last action, in [-1, 1], was [0.75]" in str(error.value)
    environment.restart(error.value)
    time_step = environment.reset(7)
    assert time_step.observation[:, 0].tolist() == [7.0, 8.0, 9.0] and time_step.is_first().all()
    for _ in range(4):  # it has broken down once, which is all
        time_step = environment.step(torch.zeros(3, 1))
    assert time_step.observation[:, 1].tolist() == [4.0] * 3
    with pytest.raises(EnvironmentFailed, match=r"restarted 1 times, and .*max_restarts = 1 allows no more"):
        environment.restart(error.value)
    environment.close()


def test_a_failed_recreation_is_tried_again(tmp_path):
    environment = fragile(tmp_path, "raise", asynchronous=True, max_restarts=3)
    make, outcomes = environment._remake, [ConnectionRefusedError("no simulator"), TaacError("none at all"), None]

    def remake():
        if (error := outcomes.pop(0)) is not None:
            raise error
        return make()

    environment._remake = remake
    with pytest.raises(EnvironmentFailed) as error:
        break_down(environment)
    environment.restart(error.value)
    assert environment.restarts == 3 and environment.reset(7).is_first().all()
    outcomes.append(TaacError("none at all"))
    environment.max_restarts = 4
    with pytest.raises(EnvironmentFailed, match=r"could not be recreated: none at all\. Environments have been restarted 4"):
        environment.restart(error.value)
    environment.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "left open"])
def test_no_process_outlives_the_run_even_if_it_hangs(tmp_path, how):
    script = tmp_path / "run.py"
    script.write_text(
        "if __name__ == '__main__':  # with what the environments' processes need not import\n"
        "    import os, signal, sys, threading, time\n"
        "    from tests.environments.test_failures import break_down, fragile\n"
        "    environment = fragile(__import__('pathlib').Path(sys.argv[1]), 'hang', asynchronous=True)\n"
        "    threading.Thread(target=break_down, args=[environment], daemon=True).start()\n"
        "    while not os.path.exists(sys.argv[1] + '/log'):\n"
        "        time.sleep(0.05)\n"
        "    print(*environment.process_ids, flush=True)\n"
        "    if sys.argv[2] == 'killed':\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path), how], env={**os.environ, "PYTHONPATH": os.getcwd()}, timeout=120,
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == (-signal.SIGKILL if how == "killed" else 0), run.stderr
    pids = [int(word) for word in run.stdout.split()]
    assert len(pids) == 3
    wait_for(lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids))


def test_environments_of_this_process_are_not_recreated(tmp_path):
    environment = fragile(tmp_path, "raise", max_restarts=5)
    with pytest.raises(EnvironmentFailed) as error:
        break_down(environment)
    with pytest.raises(EnvironmentFailed) as again:
        environment.restart(error.value)
    assert again.value is error.value and environment.restarts == 0
    environment.close()


def test_seed_and_episode_are_those_of_the_environment(tmp_path):
    """Counter's first episode after the seed has 2 steps; what breaks down is a wrapper, in the third step of the second."""

    environment = create_environment(
        env_id("Counter"), 2, env_kwargs={"scripts": (("2t", "9t"),)}, wrappers=(BreaksInSecond,)
    )
    environment.reset(3)
    with pytest.raises(EnvironmentFailed, match=r"number 0 of 2, seed 3, episode 2 since it was seeded\) failed at step 3"):
        for _ in range(9):
            environment.step(torch.zeros(2, 2))
    environment.close()


class BreaksInSecond(gymnasium.Wrapper):
    def step(self, action):
        found = self.env.step(action)
        if found[0][0] == 1 and found[0][1] == 3:
            raise ValueError("here")
        return found
