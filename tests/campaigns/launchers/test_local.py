"""Processes of this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from taac.campaigns.launchers import Outcome, local
from taac.campaigns.run import Run
from taac.errors import TaacError
from taac.runs import run_folder
from tests.campaigns.launched import wait_for


def run(tmp_path, code):
    return Run("T", "m", 0, tmp_path / "m" / "seed_0", (sys.executable, "-c", code))


def until_ended(launcher):
    return wait_for(launcher.ended)


@pytest.mark.parametrize(
    "code, expected",
    [
        ("pass", Outcome(0)),
        ("raise SystemExit(75)", Outcome(75)),
        ("import os; os.kill(os.getpid(), 9)", Outcome(-9)),
    ],
)
def test_how_it_ended(tmp_path, code, expected):
    launcher, asked = local.LocalProcesses(), run(tmp_path, code)
    launcher.begin(asked)
    assert until_ended(launcher) == [(asked, expected)]
    assert launcher.ended() == [], "told once"


def test_what_it_prints_is_kept_and_it_has_one_thread(tmp_path):
    launcher, asked = local.LocalProcesses(), run(tmp_path, "import os, sys; print(os.environ['OMP_NUM_THREADS'])")
    for _ in range(2):
        launcher.begin(asked)
        until_ended(launcher)
    first, printed, *again = asked.log.read_text().splitlines()
    assert first.startswith("=== 20") and printed == "1" and len(again) == 2


def test_it_ends_with_the_process_that_started_it(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from taac.campaigns.launchers import local\n"
        f"p = local.start([sys.executable, '-c', 'import time; time.sleep(60)'], Path({str(tmp_path / 'log')!r}))\n"
        "print(p.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    if sys.platform == "linux":
        wait_for(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)
    else:
        os.kill(child, signal.SIGKILL)


class Stuck:
    """A process that ends only when it is killed. Waiting for it moves the clock."""

    def __init__(self, clock):
        self.clock, self.killed = clock, False

    def terminate(self):
        pass

    def wait(self, timeout=None):
        if not self.killed:
            self.clock[0] += timeout
            raise subprocess.TimeoutExpired("it", timeout)

    def kill(self):
        self.killed = True


def test_those_that_do_not_stop_share_the_patience(monkeypatch):
    clock = [7.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    stuck = [Stuck(clock) for _ in range(30)]
    local.stop(stuck)
    assert all(process.killed for process in stuck) and clock == [7.0 + local.PATIENCE]


@pytest.mark.parametrize(
    "files, expected",
    [
        ({}, 8), ({"cpu.max": "max 100000"}, 8), ({"cpu.max": "350000 100000"}, 3), ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "900000 100000"}, 8), ({"cpu.max": "nonsense"}, 8),
        ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)  # fmt: skip
def test_cores(tmp_path, monkeypatch, files, expected):
    """A container sees its own control group at the root."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert local.cores(tmp_path) == expected


def test_a_run_waits_for_another_that_is_still_saving(tmp_path, monkeypatch):
    """As when a campaign was killed and is called again at once."""
    folder, held = run_folder.RunFolder(tmp_path / "R"), contextlib.ExitStack()
    held.enter_context(folder.lock())
    with pytest.raises(TaacError, match="another process"), folder.lock():
        pass
    monkeypatch.setattr(run_folder, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: held.close()))
    with folder.lock(timeout=60.0):
        pass
