"""Arrays of numbers from a `.npz` file of somebody else: nothing is inflated or allocated before its size is known."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable

import numpy as np


def check_members(held: zipfile.ZipFile, names: Iterable[str], most: int) -> None:
    """Looks at the list of a file's arrays alone.

    Args:
        names: of the arrays that are expected.
        most: bytes that they may have together, inflated.

    Raises:
        ValueError: there are others, one is missing or twice, they are more, or compressed in a way that NumPy's are not.
    """
    found, expected = sorted(info.filename for info in held.infolist()), sorted(f"{name}.npy" for name in names)
    if found != expected:
        raise ValueError(f"expected the arrays {', '.join(expected)}; got {found!r:.500}")
    if any(info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in held.infolist()):
        raise ValueError("its arrays are compressed otherwise than NumPy compresses them")
    total = sum(info.file_size for info in held.infolist())
    if total > most:
        raise ValueError(f"its arrays have {total} bytes, expected at most {most}")


def read_array(held: zipfile.ZipFile, name: str, most: int) -> np.ndarray:
    """An array of booleans or numbers.

    Raises:
        ValueError, KeyError, zipfile.BadZipFile: there is none, it holds something else, has more than `most` bytes, or not
            as many as its shape says.
    """
    info = held.getinfo(f"{name}.npy")
    if info.file_size > most:
        raise ValueError(f"array '{name}' has {info.file_size} bytes, expected at most {most}")
    with held.open(info) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"array '{name}' is of NumPy's format {version}, expected (1, 0)")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.kind not in "biuf":
            raise ValueError(f"array '{name}' holds {dtype}, expected numbers; an array of objects would be a pickle")
        size = math.prod(shape) * dtype.itemsize + file.tell()
        if min(shape, default=0) < 0 or size != info.file_size:
            raise ValueError(f"array '{name}' of shape {shape!r:.100} would be {size} bytes, but is {info.file_size}")
        file.seek(0)
        array = np.lib.format.read_array(file, allow_pickle=False)
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise ValueError(f"array '{name}' holds bytes that are no booleans")
    return array
