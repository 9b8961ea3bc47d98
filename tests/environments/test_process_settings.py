"""Environments in this process leave torch's random numbers and the working directory as they were."""

from __future__ import annotations

import os
import sys

import gymnasium
import numpy as np
import pytest
import torch

from taac.acting.random_numbers import seed_generators
from taac.environments.create import create_environment
from taac.environments.process_settings import kept
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


def test_an_environment_that_draws_from_torch_goes_on_in_its_stream():
    seed_generators(5)
    expected = []
    for call in range(8):
        if 3 <= call <= 6 and call % 2:  # every second call of `step` begins the next episode
            torch.rand(2)
        expected.append(drawn())
    seed_generators(5)
    assert seven_calls(drawn, when="step", does=lambda: torch.rand(2)) == expected


def test_an_environment_that_restores_what_it_has_seeded():
    def seeds():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)

    seed_generators(5)
    expected = [drawn() for _ in range(8)]
    seed_generators(5)
    assert seven_calls(drawn, when="step", does=seeds) == expected


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
        with kept():
            torch.manual_seed(7)
            on_gpu()
        assert on_gpu() == expected


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
    with kept():
        os.chdir(tmp_path)
    assert os.getcwd() == str(tmp_path)  # there is none to go back to
    os.chdir(tmp_path / "meanwhile")
    with kept():
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
