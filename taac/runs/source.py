"""Which commit of this package a run was trained with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def commit() -> str | None:
    """Returns the git commit that this package is checked out at, with "-dirty" behind it if tracked files differ from it.

    None if the package is not in a checkout of its own, as after `pip install`, or if git cannot tell.
    """
    if not (ROOT / ".git").exists():  # a folder around the environment that the package is installed in may have one
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook that calls us
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip() or None
