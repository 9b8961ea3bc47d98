"""Writing and reading files safely: writes are whole or absent, reads are checked, content is tensors and JSON only."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import json
import operator
import os
import re
import secrets
import shutil
import stat
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taac.errors import TaacError

if TYPE_CHECKING:
    import torch  # importing it takes seconds; commands that read only text do without

MAX_JSON_BYTES = 64 << 20  # parsed JSON takes about ten times its size in memory
# Size limits in bytes for the files of a run, many times what the longest runs write.
MAX_RUN_BYTES, MAX_CONFIG_BYTES, MAX_EVALUATIONS_BYTES = 4 << 20, 1 << 20, 64 << 20
_PIECE = 1 << 20  # bytes
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    return NotPlain(f"{path} is not {expected} but {found}, and is left alone; move it away, or put {expected} there")


def open_file(path: Path, flags: int) -> int:
    """Opens a plain file without following links and without blocking; returns the descriptor.

    Raises:
        NotPlain: something else is there. With `O_APPEND`, also if the file has a second name (a hard link), because the
            appended bytes would appear there too.
        OSError: it cannot be opened.
    """
    check_file(path)  # before opening, because opening a device may already act on it
    more = [
        getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
    ]  # not on every system
    descriptor = os.open(path, flags | functools.reduce(operator.or_, more), 0o666)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise _not_plain(path, mode, "a plain file")
        if flags & os.O_APPEND and os.fstat(descriptor).st_nlink > 1:
            raise NotPlain(
                f"{path} is a file that has another name elsewhere (a hard link), and is left alone; move it away, or put a "
                "copy there"
            )
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


# Bytes ---------------------------------------------------------------------------------------------------------------


def write(path: Path, data: bytes) -> None:
    """Replaces the content of `path` with `data`, flushed to the disk. If writing fails, the old content stays.

    The data is written to a temporary file with an unpredictable name in the same folder, flushed and renamed. A concurrent
    reader sees either the old content or the new.

    Raises:
        NotPlain: `path` is a link, a pipe, a device or a folder.
        OSError: it could not be written. The temporary file is removed.
    """
    check_file(path)
    beside = temporary(path)
    try:
        descriptor = open_file(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
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
    """Returns whether `name` is a temporary file of a killed write. Earlier versions used names without the random part."""
    return re.fullmatch(r"[\w.-]+\.(csv|gin|json|safetensors)(\.[0-9a-f]{16})?\.tmp", name) is not None


def number_of_event_file(name: str) -> int | None:
    """Returns the number of a run's own event file, counted from 0; None if another program wrote the file."""
    found = re.search(r"\.taac-(\d{1,18})-[0-9a-f]{16}$", name)
    return int(found[1]) if found else None


def append(path: Path, data: bytes) -> None:
    """Appends `data` to an existing file and flushes it to the disk. A process killed meanwhile may leave part of it.

    Raises:
        NotPlain: `path` is no plain file.
        OSError: it does not exist, or could not be written.
    """
    descriptor = open_file(path, os.O_WRONLY | os.O_APPEND)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def sync(path: Path) -> None:
    """Flushes a file, or a folder's list of entries, to the disk."""
    if os.name == "nt":  # has no such call for folders, and does it for files on closing them
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refusal(error: OSError, path: Path, needed: int, more: str) -> TaacError:
    """Returns the error for a failed write of `needed` bytes at `path`; reports a full disk and missing inodes as such."""
    if isinstance(error, NotPlain):
        return error
    if error.errno not in FULL:
        return TaacError(f"cannot write {path}: {error}; {more}")
    if error.errno == errno.ENOSPC and _has_no_inodes(path):
        return TaacError(
            f"the file system of {path} has no inodes left: it holds as many files and folders as it can, however many bytes "
            f"are free; remove files there ({error.strerror}); {more}"
        )
    try:
        free = f"{shutil.disk_usage(path if path.exists() else path.parent).free} bytes are free"
    except OSError:
        free = "how many are free cannot be told"
    return TaacError(f"the disk is full at {path}: {needed} bytes are needed, {free} ({error.strerror}); {more}")


def _has_no_inodes(path: Path) -> bool:
    try:
        held = os.statvfs(path if path.exists() else path.parent)
    except (OSError, AttributeError):  # Windows has no such call
        return False
    return held.f_files > 0 and held.f_favail == 0  # file systems without a bound count 0 of 0


def digest(data: bytes) -> str:
    """Returns a checksum of 32 hexadecimal digits. Runs at about one gigabyte a second."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def digest_of_file(path: Path, most: int) -> tuple[int, str]:
    """Returns the size and checksum of the first `most` bytes of a plain file, read in pieces. Raises as `read_bytes`."""
    found, left = hashlib.blake2b(digest_size=16), most
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
        while left > 0 and (piece := file.read(min(left, _PIECE))):
            found.update(piece)
            left -= len(piece)
    return most - left, found.hexdigest()


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
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
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
        raise Damaged(f"{path} is not as it was written: its checksum is {digest(data)}, expected {expected_digest}")
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
    with os.fdopen(open_file(path, os.O_RDONLY), "rb") as file:
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
        raise Damaged(f"{path.name} is no UTF-8 text: {error}") from error


def read_bounded_json(path: Path, most: int) -> Any:
    """Returns the parsed JSON of a plain file of at most `most` bytes.

    Raises:
        OSError: it is missing or cannot be read.
        Damaged: it is longer, no plain file, not JSON, or nested too deeply.
    """
    try:
        return json.loads(read_bounded_text(path, most))
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path.name} is no JSON: {type(error).__name__}: {error}") from error


_DTYPES = {
    f"torch.{name}"
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
}

# Tensors -------------------------------------------------------------------------------------------------------------


def pack(tensors: dict[str, torch.Tensor]) -> bytes:
    """Serializes named tensors in the safetensors format: a JSON header of names, types and shapes, then plain numbers."""
    import safetensors.torch

    # Copies, because the format refuses tensors that share memory.
    return safetensors.torch.save({name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()})


def unpack(data: bytes, path: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors that `pack` serialized. Reading cannot run code, and uses no more memory than `data` is long.

    Raises:
        Damaged: the data is not safetensors, or holds a type of tensor that this package never writes.
    """
    import safetensors.torch

    try:
        tensors = safetensors.torch.load(data)
    except Exception as error:  # the type depends on what is wrong
        raise Damaged(f"{path} holds no tensors in the safetensors format: {type(error).__name__}: {error}") from error
    if odd := sorted({str(t.dtype) for t in tensors.values()} - _DTYPES):
        raise Damaged(f"{path} holds tensors of {', '.join(odd)}, which nothing of this package writes")
    return tensors


def encode(value: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """Splits nested dicts, lists and tuples of tensors, numbers, strings and None into JSON and a dict of tensors.

    Raises:
        TypeError: it contains anything else.
    """
    import torch

    tensors: dict[str, torch.Tensor] = {}

    def plain(value: Any, path: str) -> Any:
        if isinstance(value, torch.Tensor):
            while path in tensors:  # a key may itself contain "/"
                path += "'"
            tensors[path] = value
            return {"$tensor": path}
        if isinstance(value, dict):
            items = {key: plain(v, f"{path}/{key}" if path else str(key)) for key, v in value.items()}
            if all(isinstance(key, str) and not key.startswith("$") for key in items):
                return items
            if not all(isinstance(key, (str, int)) for key in items):
                raise TypeError(f"'{path}': keys must be strings or integers, got {list(items)}")
            return {"$items": [[key, v] for key, v in items.items()]}
        if isinstance(value, (list, tuple)):
            parts = [plain(v, f"{path}/{i}") for i, v in enumerate(value)]
            return parts if isinstance(value, list) else {"$tuple": parts}
        if value is None or type(value) in (bool, int, float, str):
            return value
        raise TypeError(f"'{path}': a {type(value).__name__} has no place in a file of tensors and JSON")

    return plain(value, ""), tensors


def decode(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Restores what `encode` split.

    Raises:
        Damaged: the tree names tensors that are missing, or does not have the form that `encode` writes.
    """
    try:
        return _decode(tree, tensors)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise Damaged(f"a description of tensors is of another make: {type(error).__name__}: {error}") from error


def _decode(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(tree, list):
        return [_decode(part, tensors) for part in tree]
    if not isinstance(tree, dict):
        return tree
    special = [key for key in tree if key.startswith("$")]
    if not special:
        return {key: _decode(part, tensors) for key, part in tree.items()}
    ((kind, content),) = tree.items()
    if kind == "$tensor":
        return tensors[content]
    if kind == "$items":
        return {key: _decode(part, tensors) for key, part in content}
    if kind == "$tuple":
        return tuple(_decode(part, tensors) for part in content)
    raise KeyError(kind)


def is_one_line(text: str) -> bool:
    """Returns whether a text, such as a file name, fits on one line: no line ends, control characters or lone surrogates."""
    return not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text)


_ORDERS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # change the direction of the text around them


def warn_user(message: str) -> None:
    """Prints a warning on standard error."""
    print(f"taac: {printable(message)}", file=sys.stderr, flush=True)


def printable(text: object) -> str:
    """Escapes text from files for a terminal, so that it cannot clear the screen, hide lines, or fail to encode.

    Control characters other than line ends and tabs, marks that change the text direction, and lone surrogates become
    escapes such as `\\x1b`.
    """
    return "".join(
        character.encode("unicode_escape").decode()
        if character in _ORDERS or (character not in "\n\t" and unicodedata.category(character) in ("Cc", "Cs"))
        else character
        for character in str(text)
    )
