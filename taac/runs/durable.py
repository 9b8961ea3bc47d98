"""Writes files so that each is whole or absent, and on the disk when the call returns."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from taac.errors import TaacError
from taac.runs.files import NotPlain, check_file, named, open_file

AGAIN = "run the same command again"
FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "your quota of the disk is used up",
    errno.EFBIG: "a file may not become that large, by a limit of the process (ulimit -f) or of the file system",
}
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # of file systems, some of them remote, that cannot flush a folder


def write(path: Path, data: bytes) -> None:
    """Replaces the content of `path` with `data`, flushed to the disk. A reader sees the old content or the new.

    Raises OSError if it cannot be written, and NotPlain if no plain file is there. Then the old content stays.
    """
    check_file(path)
    beside = temporary(path)
    try:
        _write_flushed(beside, os.O_CREAT | os.O_EXCL, data, path)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    sync(path.parent)


def temporary(path: Path) -> Path:
    """Returns a new temporary name beside `path`, for the file that will replace it. `is_temporary` recognizes such names."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")


def is_temporary(name: str) -> bool:
    """Returns whether `name` is a temporary file of a killed write."""
    return re.fullmatch(r"[\w.-]+\.(csv|gin|json|safetensors)\.[0-9a-f]{16}\.tmp", name) is not None


def append(path: Path, data: bytes) -> None:
    """Appends `data` to an existing plain file and flushes it to the disk. A process killed meanwhile may leave part of it."""
    _write_flushed(path, os.O_APPEND, data, path)


def _write_flushed(path: Path, flags: int, data: bytes, called: Path) -> None:
    """Writes and flushes `data`. Errors name the file `called`."""
    descriptor = open_file(path, os.O_WRONLY | flags)
    left = memoryview(data)
    try:
        with named(called):
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """A context that only one process at a time can enter; the others wait. Where the file system has no locks, none waits.

    `path` is a file that is made for this, and stays.
    """
    descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Flushes a file, or a folder's list of entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
    try:
        with named(path):
            os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def refusal(
    error: OSError, path: Path, needed: int, whole: str = "", otherwise: str = f"{AGAIN} once it can be written"
) -> TaacError:
    """Returns the error for a failed write of `needed` bytes at `path`; names a full disk and a quota as such.

    It says what is still `whole`, and what to do `otherwise`, if the disk is not full.
    """
    if isinstance(error, NotPlain):
        return error
    kept, there, code = f"; {whole}" if whole else "", path if os.path.exists(path) else path.parent, error.errno
    if code not in FULL:
        return TaacError(f"cannot write {path}: {error}{kept}; {otherwise}")
    free = ""
    with contextlib.suppress(OSError):
        if code == errno.ENOSPC:
            left = shutil.disk_usage(there).free
            free = f", {left} bytes are free" if left < needed else f"; {left} bytes are free now, so look for a quota, too"
    mend = "raise it" if code == errno.EFBIG else "make room"
    return TaacError(f"{FULL[code]} at {path}: {needed} bytes are needed{free} ({error.strerror}){kept}; {mend} and {AGAIN}")
