"""The folder on the disk in which torch keeps compiled programs."""

from __future__ import annotations

import contextlib
import getpass
import os
import tempfile
import time
from pathlib import Path

from taac.errors import TaacError

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # torch's
MOST_BYTES = 1 << 30
KEPT = 24 * 3600  # seconds since a file's last use in which it is never removed


def use_program_cache() -> None:
    """Makes torch keep programs in a folder of this package, and removes what has not been used for a day if it is too large.

    The folder is `taac_programs_<user>` in the temporary folder, so that programs that other packages compile are left alone.
    Where the environment variable `TORCHINDUCTOR_CACHE_DIR` names another folder, that one is used and never cleaned. Torch's
    default counts as none named: torch sets the variable to it when the first optimizer is made.

    Raises:
        TaacError: the folder cannot be made, or belongs to somebody else, whose programs would be run.
    """
    from torch._inductor.runtime.runtime_utils import default_cache_dir  # here, because it takes seconds

    own = own_folder()
    named = os.environ.get(VARIABLE)
    if named is not None and named not in (str(own), os.path.abspath(default_cache_dir())):
        return
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        foreign = own.lstat().st_uid != os.getuid()
    except OSError as error:
        raise TaacError(f"no folder for compiled programs: {error}. Name another by {VARIABLE}") from error
    if foreign or own.is_symlink():
        raise TaacError(f"{own} for compiled programs is not a folder of this user. Name another by {VARIABLE}")
    os.environ[VARIABLE] = str(own)
    remove_unused(own)


def check_named_folder() -> None:
    """Refuses a folder that the environment names and that cannot be made: torch makes it for the first optimizer in any case."""
    try:
        if named := os.environ.get(VARIABLE):
            os.makedirs(named, exist_ok=True)
    except OSError as error:
        raise TaacError(
            f"the environment variable {VARIABLE} names a folder that cannot be made, and torch needs it: {error}. Name another "
            "folder, or unset it"
        ) from error


def own_folder() -> Path:
    try:
        user = getpass.getuser()
    except (KeyError, ImportError, OSError):  # a container's user without a name
        user = str(os.getuid())
    return Path(tempfile.gettempdir()).resolve() / f"taac_programs_{user.replace(os.sep, '_')}"


def remove_unused(folder: Path, most_bytes: int = MOST_BYTES, now: float | None = None) -> None:
    """Removes all files that were neither written nor read for a day, if the folder holds more than `most_bytes`.

    Torch compiles again what it misses. A file system that does not keep times of reading counts times of writing only.
    """
    now = time.time() if now is None else now
    found: list[tuple[str, os.stat_result]] = []
    for parent, _, names in os.walk(folder):
        for path in (os.path.join(parent, name) for name in names):
            with contextlib.suppress(OSError):  # another process removed it
                found.append((path, os.lstat(path)))
    if sum(status.st_size for _, status in found) <= most_bytes:
        return
    for path, status in found:
        if now - max(status.st_atime, status.st_mtime) > KEPT:
            with contextlib.suppress(OSError):
                os.remove(path)
