"""What surrounds each call leaves the caller's GPU alone."""

from __future__ import annotations

import pytest
import torch

from taac.api.session import session
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
