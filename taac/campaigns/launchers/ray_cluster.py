"""Launches runs as tasks of a Ray cluster whose machines share a file system."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taac.campaigns.launchers import Outcome, local
from taac.campaigns.run import Run
from taac.errors import TaacError, first_line
from taac.runs.terminal import warn_user


class RayCluster:
    """Submits each run as a Ray task. Ray starts it where its share of CPUs and GPUs is free.

    Args:
        address: an address for `ray.init`: "auto" (the cluster that this machine belongs to), "host:port" of its head,
            "ray://host:port" of a Ray client server, or "local" (a new cluster of this machine alone).
        root_dir: the folder of all runs. Every machine must see it under the same path.
        cpus, gpus: CPUs and GPUs that each run occupies, fractions included: with 0.25, four runs share a GPU. A run sees only
            the GPUs that Ray gave it; without any, it trains on the CPU.
    """

    interval, attempts = 1.0, 4

    def __init__(self, address: str, root_dir: str | Path, cpus: float = 1.0, gpus: float = 0.0):
        _check_share("--ray_cpus", cpus)
        _check_share("--ray_gpus", gpus)
        if not (cpus or gpus):
            raise TaacError("--ray_cpus and --ray_gpus are both 0, so all runs would start at once: give one of them")
        self._ray: Any = connected(address)
        ray = self._ray
        # Ray itself does not retry after a machine fails. The campaign decides about another attempt.
        self._train = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(train)
        _tell_if_impossible([node["Resources"] for node in ray.nodes() if node["Alive"]], {"CPU": cpus, "GPU": gpus})
        # Ray hides the GPUs that a task does not have, but not all of them from one that has none.
        self._environment = {} if gpus else {"CUDA_VISIBLE_DEVICES": ""}
        if "PYTHONPATH" in os.environ:
            self._environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        self._root_dir = Path(root_dir).resolve()
        self._running: dict[Any, Run] = {}
        self._logged: dict[Run, int] = {}  # size of the log when the run was submitted

    def begin(self, run: Run) -> None:
        self._root_dir.mkdir(parents=True, exist_ok=True)
        self._logged[run] = _size(run.log)
        # File names are relative to the folder in which `taac compare` was called.
        folders = os.getcwd(), str(self._root_dir)
        self._running[self._train.remote(run.command[1:], os.path.abspath(run.log), *folders, self._environment)] = run

    def begun(self, run: Run) -> bool:
        return _size(run.log) > self._logged[run]  # the first line it writes says where it runs

    def ended(self) -> list[tuple[Run, Outcome]]:
        if not self._running:
            return []
        tasks, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        return [(self._running.pop(task), self._outcome(task)) for task in tasks]

    def _outcome(self, task: Any) -> Outcome:
        try:
            return Outcome(self._ray.get(task))
        except self._ray.exceptions.RayTaskError as error:  # raised by `train` itself
            return Outcome(1, str(error.cause))
        except self._ray.exceptions.RayError as error:
            return Outcome(None, first_line(error))

    def stop(self) -> None:
        for task in self._running:
            self._ray.cancel(task, force=False)
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=local.PATIENCE)
        self._running.clear()
        self._ray.shutdown()  # ends tasks that are still running


def train(words: Sequence[str], log: str, folder: str, root_dir: str, environment: Mapping[str, str]) -> int:
    """Trains one run on a machine of the cluster, and returns its exit code. Stops it if this task is cancelled.

    Args:
        words: the command without the interpreter, since each machine uses its own.
        folder, root_dir: the working directory, and a folder that must exist on this machine, too.
        environment: variables of the run beside this machine's.
    """
    for path in (folder, root_dir):
        if not Path(path).is_dir():
            raise TaacError(
                f"{socket.gethostname()} does not see {path}: the machines of the cluster must share the file system that "
                "the runs and the gin files are on, under the same names"
            )
    process = local.start((sys.executable, *words), Path(log), folder, dict(environment))
    try:
        while process.poll() is None:  # ray cancels between operations, so each wait must be short
            time.sleep(0.2)
        return process.returncode
    finally:
        local.stop([process])


def _check_share(flag: str, share: float) -> None:
    if not 0 <= share < 10_000 or (share > 1 and share != int(share)) or round(share, 4) != share:
        raise TaacError(
            f"{flag} must be 0 or more, a whole number above 1, and have at most 4 decimals, such as 0.5 or 2; got {share:g}"
        )


def _tell_if_impossible(machines: Sequence[Mapping[str, float]], share: Mapping[str, float]) -> None:
    """Warns if no machine of the cluster has room for a run, because the runs would wait until one joins."""
    if not any(all(machine.get(name, 0.0) >= amount for name, amount in share.items()) for machine in machines):
        asked = " and ".join(f"{amount:g} {name}" for name, amount in share.items() if amount)
        warn_user(f"no machine of the Ray cluster has {asked} for a run: the runs wait until one joins")


def connected(address: str) -> Any:
    """Connects this process to a Ray cluster (see `RayCluster`), if it is not yet connected; returns the module `ray`."""
    check_address(address)
    try:
        import ray
    except ImportError as error:
        raise TaacError("--launcher ray needs ray, which is not installed: pip install ray (taac's extra 'ray')") from error
    if ray.is_initialized():
        return ray
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:  # where nothing listens, Ray itself would keep trying for minutes
        if port.isdigit():
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise TaacError(
            f"--ray_address {address}: there is no Ray cluster to connect to: {error}; start one with `ray start --head`, "
            "which prints its address"
        ) from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except Exception as error:  # ray raises many types
        raise TaacError(f"--ray_address {address}: there is no Ray cluster to connect to: {error}") from error
    return ray


def check_address(address: str) -> None:
    """Refuses an address of another form. Of `MODULE://x`, Ray would import MODULE, whatever it is."""
    if not re.fullmatch(r"auto|local|(ray://)?([\w.-]+|\[[\da-fA-F:.]+\]):\d{1,5}", address, re.ASCII):
        raise TaacError(f"--ray_address must be auto, local, <host>:<port> or ray://<host>:<port>, got {address!r:.200}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
