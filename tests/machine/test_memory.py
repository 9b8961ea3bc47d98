"""How much memory is free, and sizes in words."""

from __future__ import annotations

import pytest
import torch

from taac.machine import memory


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
