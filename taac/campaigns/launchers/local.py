"""Launches runs as processes on this machine."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from taac.campaigns.launchers import Outcome
from taac.campaigns.run import ATTEMPT, Run
from taac.machine.processes import die_with_parent
from taac.runs import files, provenance

# One thread per run, because the threads of parallel runs would compete for the cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
PATIENCE = 120.0  # seconds that a stopped run has to save


class LocalProcesses:
    """Starts each run at once in its own process, with variables of `environment` beside the present ones."""

    interval, attempts = 0.5, 4

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self._environment = environment
        self._running: dict[Run, subprocess.Popen[bytes]] = {}

    def begin(self, run: Run) -> None:
        self._running[run] = start(run.command, run.log, environment=self._environment)

    def begun(self, run: Run) -> bool:
        return True

    def ended(self) -> list[tuple[Run, Outcome]]:
        over = {run: code for run, process in self._running.items() if (code := process.poll()) is not None}
        for run in over:
            del self._running[run]
        return [(run, Outcome(code)) for run, code in over.items()]

    def ask_to_stop(self, run: Run) -> None:
        """Asks a run to save and stop. `ended` reports it then."""
        self._running[run].terminate()

    def stop(self) -> None:
        stop(list(self._running.values()))
        self._running.clear()


def start(
    command: Sequence[str], log: Path, cwd: str | None = None, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a run that appends its output to `log` and is stopped when this process ends."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(files.open_file(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
        file.write(f"{ATTEMPT}{provenance.now()} {socket.gethostname()}\n".encode())
        file.flush()
        # A new session keeps Ctrl-C from reaching the run, so the campaign can stop its runs in order. If the campaign is
        # killed, its runs are still asked to stop.
        return subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=cwd, start_new_session=True,
            preexec_fn=functools.partial(die_with_parent, signal.SIGTERM),
            env={**os.environ, **(environment or {}), **ONE_THREAD},
        )  # fmt: skip


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Asks the processes to stop, and kills those that do not within `PATIENCE`, which they share."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        try:
            process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the number of cores this process may use, from its affinity and the quota of its container (Linux)."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = _quota(cgroup) + _quota(cgroup / "cpu")  # version 1 mounts each controller separately
    return max(1, int(min([float(allowed), *quotas])))


def _quota(folder: Path) -> list[float]:
    try:
        if (folder / "cpu.max").exists():  # version 2: "max 100000" or "150000 100000", in microseconds
            quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8").strip()
        return [] if quota in ("max", "-1") else [int(quota) / int(period)]
    except (OSError, ValueError):
        return []
