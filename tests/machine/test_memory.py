"""How much memory is free, keeping what was freed, and sizes in words."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from taac.machine import memory
from taac.training import experiment


@pytest.mark.parametrize(
    "limit, used, expected",
    [
        ("max\n", "900\n", 5000),  # no limit on the group: the machine's
        ("2000\n", "600\n", 1500),  # the group's is lower; 100 of what is used are cached files
        ("9000\n", "500\n", 5000),  # the machine's is lower
        ("2000\n", "2500\n", 0),  # nothing left
        (None, None, 5000),  # no control groups here
    ],
)
def test_available_memory_is_the_lower_of_machine_and_group(monkeypatch, tmp_path, limit, used, expected):
    class Machine:
        available = 5000

    def path(name: str):
        return tmp_path / name.rsplit("/", 1)[1]

    monkeypatch.setattr(memory.psutil, "virtual_memory", Machine)
    monkeypatch.setattr(memory, "Path", path)
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text(used)
        (tmp_path / "memory.stat").write_text("anon 77\ninactive_file 100\nactive_file 50\n")
    assert memory.available_bytes(torch.device("cpu")) == expected


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 B"),
        (56.0, "56 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_234_567, "1.2 MB"),
        (999_900_000, "999.9 MB"),
        (5e9, "5.0 GB"),
        (5e12, "5.0 TB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_readable_bytes(count, text):
    assert memory.readable_bytes(count) == text


@pytest.mark.parametrize(
    "environment, functions, calls",
    [
        ({}, ["mallopt"], [(-3, 32 << 20), (-1, 128 << 20)]),
        ({"MALLOC_TRIM_THRESHOLD_": "0"}, ["mallopt"], []),  # the user's choice stays
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=0"}, ["mallopt"], []),
        ({}, [], []),  # musl has no such function
    ],
)
def test_freed_memory_is_kept_unless_the_environment_sets_malloc(environment, functions, calls, monkeypatch):
    called = []
    for name in [name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES"]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    library = SimpleNamespace(**{name: lambda *given: called.append(given) for name in functions})
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(memory.sys, "platform", "linux")
    memory.keep_freed_memory()
    assert called == calls


# Pages that the system had to give this process in 20 rounds of 64 blocks of 1 MiB: 16,384 pages of 4 KiB a round.
PAGES = """
import resource
import torch
from taac.machine.memory import keep_freed_memory

keep_freed_memory()
def pages():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def round():
    blocks = [torch.ones(2**18) for _ in range(64)]
round()  # the first has to ask for them
before = pages()
for _ in range(20):
    round()
print(pages() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(memory.ctypes.CDLL(None), "gnu_get_libc_version"), reason="glibc's setting"
)
@pytest.mark.parametrize("environment, kept", [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "0"}, False)])
def test_glibc_keeps_freed_memory(environment, kept):
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", PAGES]
    done = subprocess.run(command, env=plain | environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 16384 if kept else int(done.stdout) > 5 * 16384


def test_a_run_keeps_freed_memory(monkeypatch):
    """`create_experiment` sets it before it makes anything."""

    class Asked(Exception):
        pass

    def ask():
        raise Asked

    monkeypatch.setattr(experiment, "keep_freed_memory", ask)
    with pytest.raises(Asked):
        experiment.create_experiment()
