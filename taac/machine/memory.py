"""How much memory there is."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch


def available_bytes(device: torch.device) -> int:
    """Bytes that can still be allocated on a device: of the GPU, or of the machine and the control group around us."""
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
    # Cached files count as used, and are given up when memory is asked for.
    cached = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return available if limit == "max" else min(available, max(0, int(limit) - used + cached))


def readable_bytes(count: float) -> str:
    """`1234567` as `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
