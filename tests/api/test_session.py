"""What surrounds each call leaves the caller's GPU, gin and threads alone, and is not theirs."""

from __future__ import annotations

import threading

import gin
import pytest
import torch

import taac
from taac.api.session import session
from taac.errors import TaacError
from tests.machine.pretend_gpu import pretended


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_random_numbers_of_a_gpu_are_the_callers(started, fails, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)
    with pretended():
        torch.manual_seed(7)
        before = torch.rand(3, device="cuda").tolist() if started else None
        expected = torch.rand(3, device="cuda").tolist(), torch.rand(3).tolist()
        torch.manual_seed(7)
        assert before is None or torch.rand(3, device="cuda").tolist() == before
        with pytest.raises(ZeroDivisionError) if fails else session(), session():
            torch.manual_seed(0)
            torch.rand(5, device="cuda")
            assert not fails or 1 / 0
        assert (torch.rand(3, device="cuda").tolist(), torch.rand(3).tolist()) == expected


def test_a_call_starts_no_cuda(monkeypatch):
    """It would fail in a process that was forked from one that has started it."""

    def start(*_):
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", start)
    with session():
        pass


def test_the_callers_gin_scope_is_not_that_of_a_call(trained):
    """A run recorded inside of it would hold its name before each setting."""
    with gin.config_scope("mine"), session():
        assert gin.current_scope() == []
    assert gin.current_scope() == []
    with gin.config_scope("mine"):
        assert taac.load(trained.root_dir).method == "taac" and gin.current_scope() == ["mine"]


def test_another_thread_is_refused_and_this_one_is_not(trained):
    said = []

    def other():
        try:
            taac.load(trained.root_dir)
        except TaacError as error:
            said.append(str(error))

    agent = taac.load(trained.root_dir)
    with session(), session():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert "another thread of this program is in a call of taac" in said[0]
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(said) == 1 and agent.method == "taac"


def test_an_agent_acts_as_in_training_whatever_torchs_modes(trained):
    agent, observation = taac.load(trained.root_dir), [0.5, -0.5, 1.0]
    expected, _ = agent.act(observation, agent.initial_state())
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu"), torch.device("meta"):
            found, _ = agent.act(observation, agent.initial_state())
            assert torch.get_default_dtype() == torch.float64 and torch.is_autocast_enabled("cpu")
    finally:
        torch.set_default_dtype(before)
    assert (found == expected).all()
