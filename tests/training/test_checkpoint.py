"""Checkpoint files: replaced as a whole, safe to load, and refused with a reason."""

from __future__ import annotations

import pickle

import pytest
import torch

from taac.errors import TaacError
from taac.training import checkpoint


def test_round_trip(tmp_path):
    state = {"a": torch.arange(3), "b": {"c": [1, 2.5, "x", None], "d": torch.zeros(())}}
    checkpoint.save(tmp_path / "c.pt", state)
    for lazily in (False, True):
        loaded = checkpoint.load(tmp_path / "c.pt", lazily)
        assert torch.equal(loaded["a"], state["a"]) and loaded["b"]["c"] == state["b"]["c"]
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


def test_a_failed_write_leaves_the_previous_one(tmp_path, monkeypatch):
    checkpoint.save(tmp_path / "c.pt", {"a": 1})

    def fail(content, file):
        file.write(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError):
        checkpoint.save(tmp_path / "c.pt", {"a": 2})
    assert checkpoint.load(tmp_path / "c.pt") == {"a": 1}


def test_missing_and_damaged(tmp_path):
    with pytest.raises(TaacError, match="no checkpoint"):
        checkpoint.load(tmp_path / "c.pt")
    checkpoint.save(tmp_path / "c.pt", {"a": torch.zeros(1000)})
    whole = (tmp_path / "c.pt").read_bytes()
    (tmp_path / "c.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TaacError, match="damaged"):
        checkpoint.load(tmp_path / "c.pt")


def test_another_format_is_refused(tmp_path):
    torch.save({"format": 99, "state": {}}, tmp_path / "c.pt")
    with pytest.raises(TaacError, match="format 99"):
        checkpoint.load(tmp_path / "c.pt")


class Malicious:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code ran')",))


@pytest.mark.parametrize("lazily", [False, True])
def test_loading_cannot_run_code(tmp_path, lazily):
    torch.save({"format": 1, "state": Malicious()}, tmp_path / "c.pt")
    with pytest.raises(TaacError):
        checkpoint.load(tmp_path / "c.pt", lazily)
    (tmp_path / "d.pt").write_bytes(pickle.dumps(Malicious()))
    with pytest.raises(TaacError):
        checkpoint.load(tmp_path / "d.pt", lazily)


def test_another_network_is_refused_with_both_shapes(tmp_path):
    with pytest.raises(TaacError, match=r"(?s)\[3, 2\].*\[5, 2\]"):
        checkpoint.load_into(torch.nn.Linear(2, 5), torch.nn.Linear(2, 3).state_dict(), tmp_path / "c.pt")
