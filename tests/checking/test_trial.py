"""What a comparison refuses before its first run, on this machine and for others."""

from __future__ import annotations

import pytest
import torch

from taac.checking.trial import check_buildable
from taac.configuration import RunRequest
from taac.errors import TaacError
from taac.training.experiment import choose_device


@pytest.mark.parametrize("here", [True, False])
def test_a_method_that_does_not_fit_the_task_is_refused(here):
    check_buildable(RunRequest("Pendulum-v1", "taac"), here)
    with pytest.raises(TaacError, match="taac on CartPole-v1: TaacAlgorithm needs a continuous action space"):
        check_buildable(RunRequest("CartPole-v1", "taac"), here)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")
def test_devices_matter_only_where_the_run_will_be():
    asked = RunRequest("Pendulum-v1", "sac", settings=("create_experiment.device=cuda",))
    check_buildable(asked, here=False)
    with pytest.raises(TaacError, match=r"device .cuda. is not available"):
        check_buildable(asked, here=True)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(TaacError, match=r"'cuda:2' is not available: torch finds 2 GPU"):
        choose_device("cuda:2")


def test_no_buffer_of_full_length_is_made():
    check_buildable(RunRequest("Pendulum-v1", "sac", settings=("replay_length=1000000000000000",)), here=True)
    longer = ("Trainer.segment_length=1001", "initial_collect_steps=1001", "num_env_steps=5000")
    check_buildable(RunRequest("Pendulum-v1", "sac", settings=longer), here=True)


@pytest.mark.parametrize("here", [True, False])
def test_settings_that_nothing_uses_and_missing_demonstrations_are_refused(here):
    with pytest.raises(TaacError, match="nothing in this experiment uses"):
        check_buildable(RunRequest("Pendulum-v1", "sac", settings=("max_repeat_steps=3",)), here)
    with pytest.raises(TaacError, match="learns from demonstrations"):
        check_buildable(RunRequest("Pendulum-v1", "sqil_sac"), here)
    with pytest.raises(TaacError, match="initial_collect_steps"):
        check_buildable(RunRequest("Pendulum-v1", "sac", settings=("num_env_steps=500", "initial_collect_steps=1000")), here)
