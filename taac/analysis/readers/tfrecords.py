"""TFRecord files, which TensorBoard's event files are: where the records lie, and which are whole.

A record is the length of its payload (uint64), a checksum of those 8 bytes (uint32), the payload, and its checksum
(uint32), all little-endian. The checksum is CRC-32C (Castagnoli), rotated right by 15 bits, plus 0xa282ead8. See
https://www.tensorflow.org/tutorials/load_data/tfrecord.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taac.runs import files

MAX_BYTES = 1 << 30  # of a file
_HEAD, _FOOT = 12, 4  # bytes before and after a payload
_BLOCK = 1 << 18  # places that are looked at together
_NAMED = 4  # damaged stretches that notes name


class Records(NamedTuple):
    """The records of one file, in order."""

    data: np.ndarray  # [bytes] uint8, the file
    start: np.ndarray  # [n] int64, where a payload begins
    length: np.ndarray  # [n] int64, of the payload
    notes: tuple[str, ...]  # what was left out of the file


def read(path: Path) -> Records:
    """All records whose length can be trusted; after damage, reading goes on at the next whole head of a record.

    Payloads are not checked yet: `intact`. Time and memory grow with the size of the file, however it is damaged.

    Raises:
        OSError: the file is missing or cannot be read.
        Damaged: it is no plain file, or longer than `MAX_BYTES`.
    """
    raw = files.read_bounded(path, MAX_BYTES)
    data = np.frombuffer(raw, dtype=np.uint8)
    start, at = _chain(data, raw)
    notes: list[str] = []
    if at < len(raw):
        more, notes = _chains(data, raw, at)
        start = np.concatenate([start, more])
    return Records(data, start, _uint64(data, start - _HEAD), tuple(notes))


def intact(records: Records, rows: np.ndarray) -> np.ndarray:
    """Whether the payloads of some records have their checksum: `[len(rows)]` bool. Takes time by the longest of them."""
    start, length = records.start[rows], records.length[rows]
    return _masked_crc(records.data, start, length) == _uint32(records.data, start + length)


def crc32c(data: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """CRC-32C of several stretches of bytes at once, `[n]` uint32: byte j of all of them, then byte j + 1."""
    order = np.argsort(-length, kind="stable")
    start, falling = start[order], -length[order]
    crc = np.full(start.shape, 0xFFFFFFFF, dtype=np.uint32)
    for j in range(-falling[0] if falling.size else 0):
        n = np.searchsorted(falling, -j)  # those longer than j
        crc[:n] = _TABLE[(crc[:n] ^ data[start[:n] + j]) & 0xFF] ^ (crc[:n] >> 8)
    out = np.empty_like(crc)
    out[order] = ~crc
    return out


def _table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


_TABLE = _table()


def _masked_crc(data: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    crc = crc32c(data, start, length)
    return ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)  # modulo 2^32


def _chain(data: np.ndarray, raw: bytes) -> tuple[np.ndarray, int]:
    """Payloads that follow each other from the beginning on while their heads are whole, and where this ends."""
    unpack, starts, at, end = struct.Struct("<Q").unpack_from, [], 0, len(raw) - _HEAD - _FOOT
    while at <= end:
        (length,) = unpack(raw, at)
        if length > end - at:
            break
        starts.append(at + _HEAD)
        at += length + _HEAD + _FOOT
    start = np.array(starts, dtype=np.int64)
    whole = _whole_heads(data, start - _HEAD)
    if not whole.all():
        first = int(np.argmin(whole))
        return start[:first], int(start[first]) - _HEAD
    return start, at


def _chains(data: np.ndarray, raw: bytes, at: int) -> tuple[np.ndarray, list[str]]:
    """Payloads from a damaged place on, and what was left out between them."""
    unpack, starts, end = struct.Struct("<Q").unpack_from, [], len(raw) - _HEAD - _FOOT
    heads = _find_heads(data, at)
    whole = set(heads.tolist())
    notes: list[str] = []
    damaged = 0
    while at < len(raw):
        if at in whole:
            (length,) = unpack(raw, at)
            if length <= end - at:
                starts.append(at + _HEAD)
                at += length + _HEAD + _FOOT
                continue
        if at in whole or at + _HEAD > len(raw):
            notes.append("the last record is torn, left out")
            break
        place = int(np.searchsorted(heads, at))
        following = int(heads[place]) if place < heads.size else len(raw)
        damaged += 1
        if damaged <= _NAMED:
            notes.append(f"bytes {at} to {following} are damaged, left out")
        at = following
    if damaged > _NAMED:
        notes.append(f"{damaged - _NAMED} more stretches are damaged, left out")
    return np.array(starts, dtype=np.int64), notes


def _whole_heads(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    return _masked_crc(data, at, np.full(at.shape, 8)) == _uint32(data, at + 8)


def _find_heads(data: np.ndarray, at: int) -> np.ndarray:
    """Where whole heads are, `[n]` int64, rising, from `at` on; a block at a time, to need little memory."""
    found = [np.zeros(0, dtype=np.int64)]
    for first in range(at, data.size - _HEAD + 1, _BLOCK):
        places = np.arange(first, min(first + _BLOCK, data.size - _HEAD + 1))
        found.append(places[_whole_heads(data, places)])
    return np.concatenate(found)


def _uint32(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    return data[at[:, None] + np.arange(4)].view("<u4")[:, 0]


def _uint64(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    return data[at[:, None] + np.arange(8)].view("<i8")[:, 0]
