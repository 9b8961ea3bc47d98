"""How much memory is available, and keeping what was freed."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import psutil
import torch

# glibc's names of two settings (malloc.h), and bytes: freed memory up to the first is kept, and blocks above the second
# are still given back at once.
M_TRIM_THRESHOLD, KEPT = -1, 128 * 2**20
M_MMAP_THRESHOLD, LARGE = -3, 32 * 2**20


def keep_freed_memory() -> None:
    """Lets this process keep up to 128 MiB of freed memory for the next update.

    An update allocates and frees tens of megabytes. Left alone, glibc may give them back to the system each time, which has
    to clear them anew: a fifth of the processor time of TAAC on LunarLander. Blocks above 32 MiB are given back as before.

    Does nothing where the environment sets malloc already (`MALLOC_...`, `GLIBC_TUNABLES`), and with other C libraries.
    """
    chosen = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    if chosen or sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def available_bytes(device: torch.device) -> int:
    """Returns the bytes that can still be allocated: on the GPU, or in the machine's memory and this process's control group."""
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
