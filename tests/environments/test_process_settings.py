"""Environments in this process leave torch's random numbers and the working directory as they were."""

from __future__ import annotations

import os
import random
import sys

import gymnasium
import numpy as np
import pytest
import torch

from taac.acting.random_numbers import seed_generators
from taac.environments.create import create_environment
from taac.environments.process_settings import Preserved
from taac.errors import EnvironmentFailed
from tests.machine.pretend_gpu import pretended

CALLS = ("made", "reset", "step", "closed")


class Careless(gymnasium.Env):
    """Does `does(self)` when it is `made`, `reset`, stepped (`step`) or `closed`; every step is an episode."""

    def __init__(self, when="", does=None):
        self.observation_space = self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
        self._when, self._does = when, does
        self._now("made")

    def _now(self, when):
        if when == self._when:
            self._does()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._now("reset")
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._now("step")
        return np.zeros(1, np.float32), 0.0, True, False, {}

    def close(self):
        self._now("closed")


def seven_calls(between, **kwargs):
    """What `between` returned before and after each call into an environment: made, reset, four steps, closed."""
    found = [between()]
    environment = create_environment(f"{__name__}:Careless", env_kwargs=kwargs)
    found.append(between())
    environment.reset(5)
    found.append(between())
    for _ in range(4):
        environment.step(torch.zeros(1, 1))
        found.append(between())
    environment.close()
    return [*found, between()]


def drawn():
    return torch.randn(3).tolist()


def test_equal_seeds_draw_equal_numbers_of_every_global_generator():
    def drawn_of_each():
        seed_generators(5)
        return float(torch.rand(())), np.random.random(), random.random()

    assert drawn_of_each() == drawn_of_each()


@pytest.mark.parametrize("when", CALLS)
@pytest.mark.parametrize("seed", [0, 5, -1, None])  # 5 is the run's own
def test_an_environment_that_seeds_torch_does_not_repeat_the_noise_of_the_policy(when, seed):
    def seeds():
        torch.seed() if seed is None else torch.manual_seed(seed)
        torch.rand(2)

    seed_generators(5)
    expected = [drawn() for _ in range(8)]
    seed_generators(5)
    assert seven_calls(drawn, when=when, does=seeds) == expected


def restores():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)


@pytest.mark.parametrize("does, draws", [(lambda: torch.rand(2), 2), (restores, 0)])
def test_an_environment_that_draws_from_torch_or_restores_its_state_is_left_alone(does, draws):
    seed_generators(5)
    expected = []
    for call in range(8):
        if draws and 3 <= call <= 6 and call % 2:  # every second call of `step` begins the next episode
            torch.rand(draws)
        expected.append(drawn())
    seed_generators(5)
    assert seven_calls(drawn, when="step", does=does) == expected


def test_the_seed_is_kept_when_the_environment_raises():
    def fails():
        torch.manual_seed(0)
        raise RuntimeError("here")

    environment = create_environment(f"{__name__}:Careless", env_kwargs={"when": "step", "does": fails})
    environment.reset(0)
    seed_generators(5)
    expected = [drawn(), drawn()]
    seed_generators(5)
    assert drawn() == expected[0]
    with pytest.raises(EnvironmentFailed):
        environment.step(torch.zeros(1, 1))
    assert drawn() == expected[1]


@pytest.mark.parametrize("started", [False, True])
def test_the_gpus_random_numbers_are_kept(started, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)

    def on_gpu():
        return torch.rand(3, device="cuda").tolist()

    with pretended():
        seed_generators(7)
        before = on_gpu() if started else None
        expected = on_gpu()
        seed_generators(7)
        assert before is None or on_gpu() == before
        with Preserved(None):
            torch.manual_seed(7)
            on_gpu()
        assert on_gpu() == expected


@pytest.mark.parametrize("when", CALLS)
def test_an_environment_that_sets_torchs_threads_and_device(when):
    """Threads would make training many times slower, as would any default device, also the CPU."""

    def sets():
        torch.set_num_threads(torch.get_num_threads() + 3)
        torch.set_default_device("cpu" if when == "reset" else "meta")

    def found():
        return torch.get_num_threads(), torch.empty(0).device.type, torch._C._len_torch_function_stack()

    try:
        assert seven_calls(found, when=when, does=sets) == [found()] * 8 and found()[1:] == ("cpu", 0)
        with torch.device("meta"), Preserved(None):
            torch.set_default_device("cpu")
        assert torch.empty(0).device.type == "cpu"
    finally:
        torch.set_default_device(None)
        torch.set_num_threads(1)


@pytest.mark.parametrize("when", CALLS)
@pytest.mark.parametrize(
    "does, message",
    [
        (lambda: torch.set_default_dtype(torch.float64), "it changed torch's default dtype from torch.float32 to torch.float64"),
        (lambda: torch.set_grad_enabled(False), "it changed torch's gradient mode from True to False"),
    ],
)
def test_what_would_end_training_elsewhere_is_undone_and_named(when, does, message):
    with pytest.raises(EnvironmentFailed, match=rf"'{__name__}:Careless' failed .*: {message}"):
        seven_calls(lambda: None, when=when, does=does)
    assert torch.get_default_dtype() == torch.float32 and torch.is_grad_enabled()


@pytest.mark.parametrize("when", CALLS)
def test_an_environment_that_changes_the_working_directory(tmp_path, monkeypatch, when):
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    found = seven_calls(os.getcwd, when=when, does=lambda: os.chdir("../elsewhere"))
    assert found == [str(tmp_path / "run")] * 8


def test_a_working_directory_that_is_gone_is_no_failure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # to which it goes back at last
    for name in ("before", "meanwhile"):
        (tmp_path / name).mkdir()
    os.chdir(tmp_path / "before")
    (tmp_path / "before").rmdir()
    seven_calls(lambda: None)
    with Preserved(None):
        os.chdir(tmp_path)
    assert os.getcwd() == str(tmp_path)  # there is none to go back to
    os.chdir(tmp_path / "meanwhile")
    with Preserved(None):
        os.chdir(tmp_path)
        (tmp_path / "meanwhile").rmdir()
    assert os.getcwd() == str(tmp_path)


def test_a_module_that_seeds_torch_when_it_is_imported(tmp_path, monkeypatch):
    """Else the first weights of every run would be those of its seed: the agent is made after the environment."""
    (tmp_path / "careless_module.py").write_text(
        "import os, torch\n"
        f"from {__name__} import Careless\n"
        "torch.manual_seed(0), torch.rand(2)\n"
        f"os.chdir({str(tmp_path)!r})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    directory = os.getcwd()
    seed_generators(5)
    expected = drawn()
    seed_generators(5)
    create_environment("careless_module:Careless")
    assert drawn() == expected and os.getcwd() == directory
    del sys.modules["careless_module"]
