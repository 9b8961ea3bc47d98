"""Opens and reads files that may be a stranger's: plain files only, of bounded size. No link is followed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from taac.errors import TaacError

MAX_JSON_BYTES = 64 << 20  # parsed JSON takes about ten times its size in memory
# Size limits in bytes for the files of a run, many times what the longest runs write.
MAX_RUN_BYTES, MAX_CONFIG_BYTES, MAX_EVALUATIONS_BYTES = 4 << 20, 1 << 20, 64 << 20


class Damaged(TaacError):
    """A file does not hold what was written: it is torn or altered, or it is missing although another file names it."""


class NotPlain(Damaged, OSError):
    """A link, pipe or device is where a plain file or folder belongs. It could lead anywhere, or never end."""


# What is at a path -----------------------------------------------------------------------------------------------------

_KINDS = {"-": "a plain file", "d": "a folder", "l": "a symbolic link", "p": "a named pipe", "s": "a socket"}


def check_file(path: Path) -> bool:
    """Returns whether a plain file exists at `path`. Raises NotPlain if something else is there, such as a link to a file."""
    return _check(path, "-", "a plain file")


def check_folder(path: Path) -> bool:
    """Returns whether a folder exists at `path`. Raises NotPlain if something else is there, such as a link to a folder."""
    return _check(path, "d", "a folder")


def check_entries(folder: Path) -> None:
    """Raises NotPlain if a folder holds anything but plain files and folders. Does not look inside its subfolders."""
    for path in sorted(folder.iterdir()):
        _check(path, "-d", "a plain file or folder")


def _check(path: Path, expected: str, name: str) -> bool:
    try:
        kind = stat.filemode(os.lstat(path).st_mode)[0]
    except (FileNotFoundError, NotADirectoryError):
        return False
    if kind not in expected:
        found = _KINDS.get(kind, "a device")
        raise NotPlain(f"{path} is not {name} but {found}, and was not touched; move it away, or put {name} there")
    return True


def open_file(path: Path, flags: int) -> int:
    """Opens a plain file without following links and without blocking; returns the descriptor.

    Raises NotPlain if something else is there, or with `O_APPEND` if the file has a second name (a hard link).
    """
    if check_file(path) and flags & os.O_APPEND and os.lstat(path).st_nlink > 1:  # what is appended would appear there too
        raise NotPlain(f"{path} has a second name (a hard link), and was not touched; move it away, or put a copy there")
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Adds the file's name to errors of the system, which those of open files lack (EIO, EROFS...)."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


# Reading -------------------------------------------------------------------------------------------------------------


def digest(data: bytes) -> str:
    """Returns a checksum of 32 hexadecimal digits. Runs at about one gigabyte a second."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Returns the content of a plain file of at most `most` bytes. The size is checked before anything is read.

    Raises Damaged if it is longer, or no plain file, and OSError if it cannot be read.
    """
    with named(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        found = os.fstat(file.fileno()).st_size
        if most is not None and found > most:
            raise Damaged(f"{path.name} has {found} bytes, expected at most {most}")
        return file.read() if most is None else file.read(most)


def read_end(path: Path, most: int) -> bytes:
    """Returns the last `most` bytes of a plain file, or all of a shorter one. Raises as `read_bytes`."""
    with named(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def read_text(path: Path, most: int | None = None) -> str:
    """Returns the UTF-8 text of a plain file. Raises as `read_bytes`, and Damaged if it is not UTF-8."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Damaged(f"{path.name} is not UTF-8 text: {error}") from error


def read_json(path: Path, most: int) -> Any:
    """Returns the parsed JSON of a plain file. Raises as `read_text`, and Damaged if it is not JSON or nested too deeply."""
    text = read_text(path, most)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path.name} is not JSON: {type(error).__name__}: {error}") from error
