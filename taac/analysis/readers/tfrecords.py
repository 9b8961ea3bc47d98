"""Reads TFRecord files, the format of TensorBoard's event files: finds records and checks which are intact.

A record is the length of its payload (uint64), a checksum of those 8 bytes (uint32), the payload, and its checksum
(uint32), all little-endian. The checksum is CRC-32C (Castagnoli), rotated right by 15 bits, plus 0xa282ead8. See
https://www.tensorflow.org/tutorials/load_data/tfrecord.
"""

from __future__ import annotations

import array
import functools
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taac.runs import files

MAX_BYTES = 1 << 30  # per file
MAX_RECORDS = 1 << 22  # per file; a run of 10^7 steps with 100 tags every 1000 steps writes a quarter of that
_HEAD, _FOOT = 12, 4  # bytes before and after a payload
_BLOCK = 1 << 20  # number of positions searched at once
_NAMED = 4  # the most damaged stretches named in notes


class Records(NamedTuple):
    """The records of one file, in order."""

    data: np.ndarray  # [bytes] uint8, the file
    start: np.ndarray  # [n] int64, where each payload begins
    length: np.ndarray  # [n] int64, of each payload
    notes: tuple[str, ...]  # on parts of the file that were left out


def read(path: Path, most: int = MAX_RECORDS) -> Records:
    """Reads all records whose length has a valid checksum. After damage, continues at the next intact record head.

    It does not check payloads; `intact` does. Time and memory are linear in the size of the file, however it is damaged.
    Random damage takes some seconds per GiB; heads with nothing behind them, and damage after every record, two minutes.

    Args:
        most: the most records to read; later ones are left out.

    Raises:
        OSError: the file is missing or cannot be read.
        Damaged: it is not a plain file, or longer than `MAX_BYTES`.
    """
    raw = files.read_bounded(path, MAX_BYTES)
    data = np.frombuffer(raw, dtype=np.uint8)
    start, at = _chain(data, raw, most)
    notes: list[str] = []
    if at < len(raw) and start.size < most:
        more, notes = _chains(data, raw, at, most - start.size)
        start = np.concatenate([start, more])
    if start.size >= most and at < len(raw):
        notes.append(f"only the first {most} records are read")
    return Records(data, start, _uint64(data, start - _HEAD), tuple(notes))


def intact(records: Records, rows: np.ndarray) -> np.ndarray:
    """Whether the payloads of some records match their checksums, `[len(rows)]` bool. The longest one determines the time."""
    start, length = records.start[rows], records.length[rows]
    return _masked_crc(records.data, start, length) == _uint32(records.data, start + length)


def crc32c(data: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """CRC-32C of several byte ranges at once, `[n]` uint32. Processes byte j of all ranges, then byte j + 1."""
    order = np.argsort(-length, kind="stable")
    start, falling = start[order], -length[order]
    crc = np.full(start.shape, 0xFFFFFFFF, dtype=np.uint32)
    for j in range(-falling[0] if falling.size else 0):
        n = np.searchsorted(falling, -j)  # number of ranges longer than j
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
    return _masked(crc32c(data, start, length))


def _masked(crc: np.ndarray) -> np.ndarray:
    return ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)  # modulo 2^32


def _chain(data: np.ndarray, raw: bytes, most: int) -> tuple[np.ndarray, int]:
    """Follows consecutive records from the start while their heads are intact. Returns the payloads and the end position."""
    unpack, starts, at, end = struct.Struct("<Q").unpack_from, array.array("q"), 0, len(raw) - _HEAD - _FOOT
    while at <= end and len(starts) < most:
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


def _chains(data: np.ndarray, raw: bytes, at: int, most: int) -> tuple[np.ndarray, list[str]]:
    """Finds at most `most` payloads after a damaged position. Returns them and notes on what was left out."""
    unpack, starts, end = struct.Struct("<Q").unpack_from, array.array("q"), len(raw) - _HEAD - _FOOT
    heads = _find_heads(data, at, 2 * most)
    notes: list[str] = []
    damaged = place = 0
    while at < len(raw) and len(starts) < most:
        while place < heads.size and heads[place] < at:  # inside a payload
            place += 1
        whole = place < heads.size and heads[place] == at
        if whole:
            (length,) = unpack(raw, at)
            if length <= end - at:
                starts.append(at + _HEAD)
                at += length + _HEAD + _FOOT
                continue
        if whole or at + _HEAD > len(raw):
            notes.append("the last record is torn, left out")
            break
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


def _find_heads(data: np.ndarray, at: int, enough: int) -> np.ndarray:
    """The positions of intact heads of records below 4 GiB, `[n]` int64, rising, from `at` on.

    It searches a block at a time until there are more than `enough`. The upper 4 of the 8 bytes of such a length are 0, which
    is true at few positions of most files. The checksum is linear in each bit, so there it is the exclusive or of one number
    for each half of the lower 4 bytes.
    """
    of_halves, of_zeros = _of_heads()
    found, count = [np.zeros(0, dtype=np.int64)], 0
    for first in range(at, data.size - _HEAD + 1, _BLOCK):
        block = data[first : first + _BLOCK + _HEAD - 1]
        shape = (block.size - _HEAD + 1,)
        lower, upper, given = (np.ndarray(shape, "<u4", block, k, (1,)) for k in (0, 4, 8))  # at every place
        places = np.flatnonzero(upper == 0)
        lower, given = lower[places], given[places]
        crc = of_zeros ^ of_halves[0][lower & 0xFFFF] ^ of_halves[1][lower >> 16]
        found.append(first + places[_masked(crc) == given])
        count += found[-1].size
        if count > enough:
            break
    return np.concatenate(found)


@functools.cache
def _of_heads() -> tuple[np.ndarray, np.uint32]:
    """The contribution of each value of each half of a length's lower 4 bytes to its checksum, `[2, 2^16]`, and that of 0."""
    lengths = np.stack([np.arange(1 << 16, dtype="<u8"), np.arange(1 << 16, dtype="<u8") << 16])
    crc = crc32c(lengths.reshape(-1).view(np.uint8), np.arange(1 << 17) * 8, np.full(1 << 17, 8)).reshape(2, -1)
    return crc ^ crc[0, 0], crc[0, 0]


def _uint32(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    return data[at[:, None] + np.arange(4)].view("<u4")[:, 0]


def _uint64(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    return data[at[:, None] + np.arange(8)].view("<i8")[:, 0]
