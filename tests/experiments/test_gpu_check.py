"""`experiments.gpu_check` without a GPU."""

from __future__ import annotations

import sys

import pytest
import torch

from experiments import gpu_check


def called(monkeypatch, *args):
    monkeypatch.setattr(sys, "argv", ["gpu_check", *map(str, args)])
    return gpu_check.main()


def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert called(monkeypatch, "--out", tmp_path / "page") == 1
    assert "finds no GPU" in capsys.readouterr().err and not (tmp_path / "page").exists()


def test_a_part_that_fails_does_not_stop_the_next(monkeypatch, tmp_path):
    monkeypatch.setitem(gpu_check.PARTS, "tests", lambda options: 1 / 0)
    monkeypatch.setitem(gpu_check.PARTS, "updates", lambda options: "| a | table |")
    assert called(monkeypatch, "--device", "cpu", "--quick", "--parts", "tests,updates", "--out", tmp_path) == 0
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "ZeroDivisionError" in page and page.index("ZeroDivisionError") < page.index("| a | table |")


@pytest.mark.slow
def test_updates_on_the_cpu(monkeypatch, tmp_path):
    rows = "sac, 256-256.*(eager|compiled, own CUDA graph) . float32"
    called(monkeypatch, "--device", "cpu", "--quick", "--parts", "updates", "--rows", rows, "--out", tmp_path)
    lines = [line for line in (tmp_path / "gpu.md").read_text(encoding="utf-8").splitlines() if line.startswith("| sac")]
    assert len(lines) == 2 and all(float(line.split("|")[4]) > 0 for line in lines)
