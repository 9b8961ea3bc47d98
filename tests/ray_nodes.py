"""A real Ray cluster on this machine, for tests: of two CPUs, and one GPU that is only a number."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.campaigns.launched import wait_for


class Node:
    """A node of the cluster: `ray start --block` in a session of its own, which is all that is killed."""

    def __init__(self, folder, *words):
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=2", "--num-gpus=1", *words]
        self.log = Path(folder) / f"{len(list(Path(folder).iterdir()))}.log"
        env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
        with open(self.log, "w") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, env=env, start_new_session=True)
        # Ray says that it has started, then how to join: a look between the two finds half of the text.
        told = "--address=" if "--head" in command else "Ray runtime started"
        try:
            wait_for(lambda: told in self.log.read_text().rpartition("\n")[0], self.process)
        except BaseException:
            self.kill()
            raise

    def family(self):
        with_me = psutil.Process(self.process.pid)
        return [*with_me.children(recursive=True), with_me]

    def kill(self):
        family = self.family() if self.process.poll() is None else []
        for member in family:
            try:
                member.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait()


@pytest.fixture(scope="module")
def cluster():
    """Its address."""
    folder = tempfile.mkdtemp(prefix="ray_", dir="/tmp")  # the names of its sockets must be short
    memory = "--object-store-memory=80000000"
    head = Node(folder, "--head", "--port=0", "--include-dashboard=false", f"--temp-dir={folder}/r", memory)
    address = re.search(r"--address='([\d.:]+)'", head.log.read_text())[1]
    yield address
    head.kill()
    shutil.rmtree(folder, ignore_errors=True)
