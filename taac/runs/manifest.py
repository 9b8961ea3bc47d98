"""The manifest of a checkpoint: a JSON file that lists all other files with their sizes and checksums."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from taac.errors import TaacError
from taac.machine.memory import available_bytes, readable_bytes
from taac.runs import durable, files
from taac.runs.files import Damaged

FORMAT = 3


class FileEntry(NamedTuple):
    """A file listed in a manifest."""

    name: str
    bytes: int
    blake2b: str  # checksum of the content


def write_entry(path: Path, data: bytes) -> FileEntry:
    """Writes a file, and returns it as a manifest lists it."""
    durable.write(path, data)
    return FileEntry(path.name, len(data), files.digest(data))


def read_entry(folder: Path, entry: FileEntry) -> bytes:
    """Returns the content of a file listed in a manifest.

    Raises:
        Damaged: it differs from what the manifest says.
        TaacError: it does not fit into memory.
    """
    if type(entry.name) is not str or not re.fullmatch(r"[\w-]+\.safetensors", entry.name):
        raise Damaged(f"a manifest in {folder} names the file {entry.name!r}, which no checkpoint has")
    path, free = folder / entry.name, available_bytes(torch.device("cpu"))
    if files.size(path) > free:
        raise TaacError(f"{path} does not fit into memory: {readable_bytes(free)} are free")
    return files.read(path, entry.bytes, entry.blake2b)


def make_manifest(content: dict[str, Any]) -> bytes:
    """Returns the bytes of a manifest: a line of JSON with format and checksum, then the content as JSON."""
    body = json.dumps(content).encode()
    return json.dumps({"taac_checkpoint": FORMAT, "blake2b": _digest(FORMAT, body)}).encode() + b"\n" + body


def _digest(version: int, body: bytes) -> str:
    return files.digest(str(version).encode() + b"\n" + body)


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the content of a manifest.

    Raises:
        Damaged: it is not as it was written.
        TaacError: it has another format.
    """
    try:
        first, _, body = files.read_bytes(path, files.MAX_JSON_BYTES).partition(b"\n")
        header = json.loads(first)
        version, expected = header["taac_checkpoint"], header["blake2b"]
        if type(version) is not int or _digest(version, body) != expected:
            raise Damaged(f"{path} has changed since it was written: its checksum differs")
        if version != FORMAT:
            raise TaacError(
                f"the checkpoint {path} has format {version}, and this version of taac reads format {FORMAT}: go on with the "
                "version that wrote it, or train again in another folder"
            )
        content = json.loads(body)
    except TaacError:
        raise
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error}") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Damaged(f"{path} is not a manifest: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict):
        raise Damaged(f"{path} is not a manifest: it holds a {type(content).__name__}")
    return content
