"""`experiments.gpu_check` without a GPU."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest
import torch

from experiments import gpu_check
from experiments.benchmarks import ours


def called(monkeypatch, *args):
    monkeypatch.setattr(sys, "argv", ["gpu_check", *map(str, args)])
    return gpu_check.main()


def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert called(monkeypatch, "--out", tmp_path / "page") == 1
    assert "finds no GPU" in capsys.readouterr().err and not (tmp_path / "page").exists()


def test_a_part_that_is_not_there_is_refused(monkeypatch, capsys, tmp_path):
    with pytest.raises(SystemExit):
        called(monkeypatch, "--device", "cpu", "--parts", "updates,updtes", "--out", tmp_path / "page")
    assert "no part updtes; there are " in capsys.readouterr().err and not (tmp_path / "page").exists()


def test_a_part_that_fails_does_not_stop_the_next(monkeypatch, tmp_path):
    monkeypatch.setitem(gpu_check.PARTS, "tests", lambda options: 1 / 0)
    monkeypatch.setitem(gpu_check.PARTS, "updates", lambda options: "| a | table |")
    assert called(monkeypatch, "--device", "cpu", "--quick", "--parts", "tests,updates", "--out", tmp_path) == 0
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "ZeroDivisionError" in page and page.index("ZeroDivisionError") < page.index("| a | table |")
    with pytest.raises(SystemExit):  # an earlier page is not lost, and its trainings are not taken for new ones
        called(monkeypatch, "--device", "cpu", "--quick", "--parts", "updates", "--out", tmp_path)
    assert (tmp_path / "gpu.md").read_text(encoding="utf-8") == page


def test_parts_share_the_time_that_is_left(monkeypatch, tmp_path):
    limits, now = [], [0.0]
    monkeypatch.setattr(gpu_check.time, "time", lambda: now[0])

    def part(options):
        limits.append(options.limit)
        now[0] += 30
        return ""

    for name in gpu_check.PARTS:
        monkeypatch.setitem(gpu_check.PARTS, name, part)
    assert called(monkeypatch, "--device", "cpu", "--quick", "--minutes", 9, "--out", tmp_path) == 0
    assert limits == [540 * 2 / 9, 510 * 4 / 7, 480 * 2 / 3, 450]


def test_rows_for_which_no_time_is_left_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_check.common, "Process", lambda *_: pytest.fail("it has begun"))
    assert called(monkeypatch, "--device", "cpu", "--quick", "--parts", "updates", "--minutes", -1, "--out", tmp_path) == 0
    assert (tmp_path / "gpu.md").read_text(encoding="utf-8").count("| no time left |") == len(list(gpu_check.rows()))


def test_the_limit_of_getting_ready_is_over_once_a_process_is_ready(monkeypatch):
    trainer = SimpleNamespace(
        collector=SimpleNamespace(env_steps=0), learn=lambda: None, agent=SimpleNamespace(device=torch.device("cpu"))
    )
    told, limits = [], []
    monkeypatch.setattr(ours, "updater", lambda options: trainer)
    monkeypatch.setattr(ours.faulthandler, "dump_traceback_later", lambda seconds, exit: limits.append(seconds))
    monkeypatch.setattr(ours.faulthandler, "cancel_dump_traceback_later", lambda: limits.append("over"))
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))  # nobody asks
    with pytest.raises(SystemExit):
        ours.updates({"per_call": 1, "warmup": 2, "limit": 60}, lambda **content: told.append(content))
    assert told == [{"ready": True}] and limits == [60, "over"] and trainer.collector.env_steps == 2


@pytest.mark.slow
def test_updates_on_the_cpu(monkeypatch, tmp_path):
    rows = "sac, 256-256.*(eager|compiled, own CUDA graph) . float32"
    called(monkeypatch, "--device", "cpu", "--quick", "--parts", "updates", "--rows", rows, "--out", tmp_path)
    lines = [line for line in (tmp_path / "gpu.md").read_text(encoding="utf-8").splitlines() if line.startswith("| sac")]
    assert len(lines) == 2 and all(float(line.split("|")[4]) > 0 for line in lines)
