"""Opens and reads files that may be a stranger's: plain files only, of bounded size. No link is followed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from taac.errors import TaacError

MAX_JSON_BYTES = 64 << 20  # parsed JSON takes about ten times its size in memory
# Size limits in bytes for the files of a run, many times what the longest runs write.
MAX_RUN_BYTES, MAX_CONFIG_BYTES, MAX_EVALUATIONS_BYTES = 4 << 20, 1 << 20, 64 << 20
_PIECE = 1 << 20  # bytes


class Damaged(TaacError):
    """A file does not hold what was written: it is torn or altered, or it is missing although another file names it."""


class NotPlain(TaacError, OSError):
    """A link, pipe or device is where a plain file or folder belongs. It could lead anywhere, or never end."""


# What is at a path -----------------------------------------------------------------------------------------------------

_KINDS = (
    (stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a folder"), (stat.S_ISREG, "a plain file"),
    (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISBLK, "a device"), (stat.S_ISCHR, "a device"),
)  # fmt: skip


def check_file(path: Path) -> bool:
    """Returns whether a plain file exists at `path`. Links are not followed.

    Raises:
        NotPlain: something other than a plain file is there.
    """
    return _check(path, stat.S_ISREG, "a plain file")


def check_folder(path: Path) -> bool:
    """Returns whether a folder exists at `path`. Links are not followed.

    Raises:
        NotPlain: something else is there, such as a link to a folder.
    """
    return _check(path, stat.S_ISDIR, "a folder")


def check_entries(folder: Path) -> None:
    """Raises NotPlain if a folder holds anything but plain files and folders. Does not look inside its subfolders."""
    for path in sorted(folder.iterdir()):
        _check(path, lambda mode: stat.S_ISREG(mode) or stat.S_ISDIR(mode), "a plain file or folder")


def _check(path: Path, expected: Callable[[int], bool], name: str) -> bool:
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not expected(mode):
        raise _not_plain(path, mode, name)
    return True


def _not_plain(path: Path, mode: int, expected: str) -> NotPlain:
    found = next((kind for matches, kind in _KINDS if matches(mode)), "something else")
    return NotPlain(f"{path} is not {expected} but {found}, and was not touched; move it away, or put {expected} there")


def open_file(path: Path, flags: int) -> int:
    """Opens a plain file without following links and without blocking; returns the descriptor.

    Raises:
        NotPlain: something else is there. With `O_APPEND`, also if the file has a second name (a hard link), because the
            appended bytes would appear there too.
        OSError: it cannot be opened.
    """
    check_file(path)  # before opening, because opening a device may already act on it
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):  # not on every system
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise _not_plain(path, mode, "a plain file")
        if flags & os.O_APPEND and os.fstat(descriptor).st_nlink > 1:
            raise NotPlain(
                f"{path} has a second name (a hard link), and was not touched; move it away, or put a copy there"
            )
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Has errors of the system within say at which file they arose, which those of open files do not (EIO, EROFS...)."""
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


def digest_of_file(path: Path, most: int, begun: dict[Path, tuple[Any, int]] | None = None) -> tuple[int, str]:
    """Returns the size and checksum of the first `most` bytes of a plain file, read in pieces. Raises as `read_bytes`.

    Args:
        begun: what earlier calls have read of files that only grow, and do not read again. This call adds to it.
    """
    begun = {} if begun is None else begun
    with named(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        found, done = begun.get(path, (hashlib.blake2b(digest_size=16), 0))
        if done > min(most, os.fstat(file.fileno()).st_size):
            found, done = hashlib.blake2b(digest_size=16), 0
        found = found.copy()  # an error below leaves `begun` as it was
        file.seek(done)
        while done < most and (piece := file.read(min(most - done, _PIECE))):
            found.update(piece)
            done += len(piece)
    begun[path] = found, done
    return done, found.hexdigest()


def size(path: Path) -> int:
    """Returns the size of a plain file in bytes.

    Raises:
        Damaged: it is missing, or is no plain file.
    """
    try:
        check_file(path)
        return os.stat(path, follow_symlinks=False).st_size
    except NotPlain as error:
        raise Damaged(str(error)) from error
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read: {error}") from error


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Returns the content of a plain file of at most `most` bytes. The size is checked before anything is read.

    Raises:
        NotPlain: a link, a pipe, a device or a folder is there.
        Damaged: it is longer.
        OSError: it cannot be read.
    """
    with named(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        found = os.fstat(file.fileno()).st_size
        if most is not None and found > most:
            raise Damaged(f"{path.name} has {found} bytes, expected at most {most}")
        return file.read() if most is None else file.read(most)


def read_text(path: Path, errors: str = "strict", most: int | None = None) -> str:
    """Returns the text of a plain file, with line ends converted as by `Path.read_text`. Raises as `read_bytes`.

    Raises:
        UnicodeDecodeError: it is not UTF-8, unless `errors` says how to decode it.
    """
    return io.TextIOWrapper(io.BytesIO(read_bytes(path, most)), encoding="utf-8", errors=errors).read()


def read(path: Path, expected_size: int, expected_digest: str) -> bytes:
    """Returns the content of a file after checking its size and checksum.

    Raises:
        Damaged: it is missing, or its size or checksum differs.
    """
    found = size(path)
    if found != expected_size:
        raise Damaged(f"{path} has {found} bytes, expected {expected_size}")
    try:
        data = read_bytes(path)
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error}") from error
    if digest(data) != expected_digest:
        raise Damaged(f"{path} has changed since it was written: its checksum is {digest(data)}, expected {expected_digest}")
    return data


def read_bounded(path: Path, most: int) -> bytes:
    """As `read_bytes`, but anything other than a plain file counts as damage.

    Raises:
        OSError: it is missing or cannot be read.
        Damaged: it is longer than `most`, or no plain file.
    """
    try:
        return read_bytes(path, most)
    except NotPlain as error:
        raise Damaged(str(error)) from error


def read_end(path: Path, most: int) -> bytes:
    """Returns the last `most` bytes of a plain file, or all of a shorter one. Raises as `read_bytes`."""
    with named(path), os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def read_bounded_text(path: Path, most: int) -> str:
    """Returns the UTF-8 text of a plain file of at most `most` bytes.

    Raises:
        OSError: it is missing or cannot be read.
        Damaged: it is longer, no plain file, or not UTF-8.
    """
    try:
        return read_bounded(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Damaged(f"{path.name} is not UTF-8 text: {error}") from error


def read_bounded_json(path: Path, most: int) -> Any:
    """Returns the parsed JSON of a plain file of at most `most` bytes.

    Raises:
        OSError: it is missing or cannot be read.
        Damaged: it is longer, no plain file, not JSON, or nested too deeply.
    """
    try:
        return json.loads(read_bounded_text(path, most))
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path.name} is not JSON: {type(error).__name__}: {error}") from error
