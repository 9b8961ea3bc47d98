"""Reads arrays of numbers from an untrusted `.npz` file. Checks sizes before it decompresses or allocates anything."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable

import numpy as np


def check_members(held: zipfile.ZipFile, names: Iterable[str], most: int) -> None:
    """Checks the list of a file's arrays without reading them.

    Args:
        names: names of the expected arrays.
        most: the greatest total size in bytes, uncompressed.

    Raises:
        ValueError: an array is unexpected, missing or duplicated, the total size is greater, or the compression is not one
            that NumPy uses.
    """
    found, expected = sorted(info.filename for info in held.infolist()), sorted(f"{name}.npy" for name in names)
    if found != expected:
        raise ValueError(f"expected the arrays {', '.join(expected)}; got {found!r:.500}")
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in held.infolist()):
        raise ValueError("its arrays are compressed in a way that NumPy does not use; expected none or deflate")
    total = sum(info.file_size for info in held.infolist())
    if total > most:
        raise ValueError(f"its arrays have {total} bytes, expected at most {most}")


def read_array(held: zipfile.ZipFile, name: str, most: int) -> np.ndarray:
    """Reads an array of booleans or numbers.

    Raises:
        ValueError, KeyError, zipfile.BadZipFile: the array is missing, holds something else, has more than `most` bytes, or
            its size does not fit its shape.
    """
    info = held.getinfo(f"{name}.npy")
    if info.file_size > most:
        raise ValueError(f"array '{name}' has {info.file_size} bytes, expected at most {most}")
    with held.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"array '{name}' has version {version} of NumPy's format, expected (1, 0)")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.kind not in "biuf":
            raise ValueError(f"array '{name}' holds {dtype}, expected numbers; an array of objects would be a pickle")
        size = math.prod(shape) * dtype.itemsize + file.tell()
        if min(shape, default=0) < 0 or size != info.file_size:
            raise ValueError(f"array '{name}' of shape {shape!r:.100} would have {size} bytes, but has {info.file_size}")
        file.seek(0)
        array = np.lib.format.read_array(file, allow_pickle=False)
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise ValueError(f"array '{name}' holds bytes that are no booleans")
    return array
