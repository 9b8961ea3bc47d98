"""How much memory is available."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch


def available_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated: on the GPU, or within the machine's memory and this process's control group."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    available = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        lines = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return available
    # Cached files count as used, but are released when memory is needed.
    cached = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return available if limit == "max" else min(available, max(0, int(limit) - used + cached))


def readable_bytes(count: float) -> str:
    """Formats `1234567` as `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
