"""Kernels in C++: compiled on first use, kept in torch's cache of compiled code, and called by compiled programs."""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

import torch

from taac.machine.processes import interruptions_held

FOLDER = pathlib.Path(__file__).parent
ERRORS = (OSError, RuntimeError, subprocess.SubprocessError, ImportError)  # what `load` raises
_FLAGS = ["-std=c++17", "-O3", "-shared", "-fPIC", "-fvisibility=hidden"]


def load(source: pathlib.Path, flags: Sequence[str] = ()) -> ctypes.CDLL:
    """Compiles a C++ file, unless that was done before, and loads it so that compiled programs find its functions.

    Args:
        flags: more flags of the compiler.

    Raises:
        OSError, RuntimeError, subprocess.SubprocessError, ImportError: it cannot be compiled or loaded.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    torch_folder = pathlib.Path(torch.__file__).parent
    with interruptions_held():
        command = [get_cpp_compiler(), *_FLAGS, *flags, f"-I{torch_folder / 'include'}", str(source)]
        libraries = [f"-L{torch_folder / 'lib'}", "-ltorch_cpu"]
        key = hashlib.sha256(
            repr([torch.__version__, *command, *libraries]).encode() + source.read_bytes()
        ).hexdigest()
        path = pathlib.Path(cache_dir(), f"taac_{source.stem}_{key[:32]}.so")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(f".{os.getpid()}")
            # Without a limit in time: programs without the kernel round differently, however long it takes.
            subprocess.run([*command, *libraries, "-o", str(new)], check=True, capture_output=True, text=True)
            os.replace(new, path)  # another process may have been here first
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def reason(error: Exception) -> str:
    """Returns the first line that tells why a kernel could not be compiled or loaded."""
    lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or [type(error).__name__]
    return next((line for line in lines if "error" in line), lines[0])


class _Operation:
    """Stands for an operation of `torch.ops.taac` as a dictionary's key.

    Unlike the operation, it can be pickled, without which torch reads no compiled program from its caches.
    """

    def __init__(self, name: str):
        self.name, self._operation = name, getattr(torch.ops.taac, name).default

    def __hash__(self) -> int:
        return hash(self._operation)

    def __eq__(self, other: object) -> bool:
        return other is self._operation or (isinstance(other, _Operation) and other.name == self.name)

    def __reduce__(self) -> Any:
        return _Operation, (self.name,)


def compiler_options(name: str, declaration: str) -> dict[str, Any]:
    """Options for torch's compiler that make its programs call a kernel directly instead of an operation through Python.

    Empty if this version of torch does not support that.

    Args:
        name: of the operation in `torch.ops.taac`.
        declaration: the kernel's, in C.
    """
    import torch._inductor.config as settings

    option = "custom_ops_to_c_shims"
    has_it = hasattr(settings.aot_inductor, option)
    return {f"aot_inductor.{option}": {_Operation(name): [declaration]}} if has_it else {}
