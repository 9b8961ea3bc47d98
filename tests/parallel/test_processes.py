"""Collectors' processes and signals."""

from __future__ import annotations

import os
import re
import sys
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest

from taac.machine.processes import INTERRUPTIONS
from taac.parallel.processes import ProcessChannel


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_signal_to_the_whole_group_leaves_the_server_of_processes_alone(monkeypatch):
    """Also if it is the first of this process. A trainer that stops would otherwise fail where it starts a collector."""
    tracker, server = resource_tracker._resource_tracker, forkserver._forkserver
    for name in ("_fd", "_pid"):
        monkeypatch.setattr(tracker, name, None)
    for name in ("_forkserver_address", "_forkserver_alive_fd", "_forkserver_pid"):
        monkeypatch.setattr(server, name, None)
    channel = ProcessChannel("a collector")
    try:
        told = Path(f"/proc/{server._forkserver_pid}/status").read_text()
        blocked = int(re.search(r"SigBlk:\s*(\w+)", told)[1], 16)
        assert [number for number in INTERRUPTIONS if not blocked >> (number - 1) & 1] == []
    finally:
        channel.close()
        for descriptor, process in ((server._forkserver_alive_fd, server._forkserver_pid), (tracker._fd, tracker._pid)):
            os.close(descriptor)
            os.waitpid(process, 0)
