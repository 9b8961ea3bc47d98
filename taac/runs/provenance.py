"""What a run was trained with: this package's commit, versions, the command, the processor."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taac import __version__

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "torch", "numpy", "gymnasium", "mujoco", "box2d", "gymnasium-robotics", "highway-env", "mo-gymnasium", "envpool",
    "tensorboard", "gin-config",
)  # fmt: skip


def command() -> str:
    """Returns the command line of this process."""
    return shlex.join(["taac", *sys.argv[1:]])


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def processor() -> str:
    """Returns the name of the processor, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def versions() -> dict[str, str | None]:
    """Returns the versions of Python and of the packages that results depend on."""
    found: dict[str, str | None] = {"taac": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def commit() -> str | None:
    """Returns the git commit that this package is checked out at, with "-dirty" behind it if tracked files differ from it.

    None if the package is not in a checkout of its own, as after `pip install`, or if git cannot tell.
    """
    if not (ROOT / ".git").exists():  # a folder around the environment that the package is installed in may have one
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook that calls us
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(describe, env=environment, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def changed_versions(run: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what of `versions` and `commit` of a run.json differs in this process, for an entry of `resumed`."""
    held = run.get("versions")
    known = held if isinstance(held, dict) else {}
    changed = {name: version for name, version in versions().items() if name in known and known[name] != version}
    here = commit()
    moved = {"commit": here} if run.get("commit", here) != here else {}
    return ({"versions": changed} if changed else {}) | moved
