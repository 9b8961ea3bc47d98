"""Matrix products on a processor's bfloat16 units (AMX, in Intel's server processors since 2023).

These units multiply bfloat16 numbers, sum in float32, and are about ten times as fast as the float32 units. A float32 number
is the sum of three bfloat16 numbers, so a product of two float32 matrices is a sum of products of their parts:

- one part of each factor: one product, rounded to bfloat16's 8 bits;
- two parts: three products, rounded to 16 bits;
- three parts: six products, as accurate as a float32 product.

Source: Henry, Tang and Heinecke, Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations
(arXiv:1904.06376).

The kernel, `amx_product.cpp`, is compiled on first use and kept in torch's cache of compiled code. It runs on one thread.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

from taac.errors import TaacError
from taac.machine.processes import interruptions_held

PARTS = {"bfloat16x6": 3, "bfloat16x3": 2, "bfloat16": 1}  # parts of each float32 factor
_SOURCE = pathlib.Path(__file__).with_name("amx_product.cpp")
_FLAGS = ["-std=c++17", "-O3", "-shared", "-fPIC", "-fvisibility=hidden"]
_FLAGS += ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"]
_NEEDED = {"amx_tile", "amx_bf16", "avx512f", "avx512bw", "avx512vl", "avx512_bf16"}
# The declaration of the kernel in torch's compiled programs, which call it by this name.
_DECLARATION = "AOTITorchError aoti_torch_cpu_amx_product(AtenTensorHandle, AtenTensorHandle, int64_t, AtenTensorHandle*)"


@functools.cache
def reason_unavailable() -> str | None:
    """Returns why this machine has no AMX products, or None if it has. Compiles the kernel once per machine, in about 2 s."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"{sys.platform} on {platform.machine()} has no AMX"
    lacking = _NEEDED - processor()
    if lacking:
        return f"this processor has no {', '.join(sorted(lacking))}"
    try:
        _library()
    except (OSError, RuntimeError, subprocess.SubprocessError, ImportError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or [type(error).__name__]
        why = next((line for line in lines if "error" in line), lines[0])
        return f"the kernel could not be compiled and loaded: {why}"
    return None


def amx_product(x: torch.Tensor, y: torch.Tensor, parts: int) -> torch.Tensor:
    """Computes `x @ y` for two matrices on the CPU, or two batches of N matrices: `[(N, )R, K]` and `[(N, )K, C]`.

    Sums are in float32. An input that is not finite, or above bfloat16's maximum of 3.39e38, makes the results that depend
    on it not finite.

    Args:
        x, y: both float32 or both bfloat16, with contiguous rows or columns.
        parts: number of bfloat16 parts of each float32 factor, 1 to 3; must be 1 for bfloat16 factors. For normal numbers
            the relative error is about 2e-3, 4e-6 and 1e-7 (a float32 product has 3e-7).

    Returns:
        `[(N, )R, C]`, contiguous, with the dtype of the factors.

    Raises:
        TaacError: the tensors or `parts` are not as above, or this machine has no AMX products (see `reason_unavailable`).
    """
    return torch.ops.taac.amx_product(x, y, parts)


@torch.library.custom_op("taac::amx_product", mutates_args=(), device_types="cpu")
def _amx_product(x: torch.Tensor, y: torch.Tensor, parts: int) -> torch.Tensor:
    why = reason_unavailable()
    if why is not None:
        raise TaacError(f"amx_product: {why}")
    result = _result(x, y, parts)
    (a, b, c) = (x, y, result) if x.dim() == 3 else (x[None], y[None], result[None])
    sizes = (a.shape[0], a.shape[1], a.shape[2], b.shape[2])
    if _library().taac_amx_product(
        a.data_ptr(), *a.stride(), b.data_ptr(), *b.stride(), c.data_ptr(), *sizes, 0 if x.dtype == torch.bfloat16 else parts
    ):  # fmt: skip
        raise MemoryError("amx_product")
    return result


@_amx_product.register_fake
def _result(x: torch.Tensor, y: torch.Tensor, parts: int) -> torch.Tensor:
    fits = x.dim() == y.dim() in (2, 3) and x.shape[-1] == y.shape[-2] > 0 and x.shape[:-2] == y.shape[:-2]
    supported = parts in {torch.float32: (1, 2, 3), torch.bfloat16: (1,)}.get(x.dtype, ())
    if not (fits and supported and x.dtype == y.dtype):
        raise TaacError(
            "amx_product expects matrices [R, K] and [K, C], or equally many of each, in float32 with 1 to 3 parts or in "
            f"bfloat16 with 1 part, got {tuple(x.shape)} {x.dtype}, {tuple(y.shape)} {y.dtype} and {parts}"
        )
    if not all(1 in m.stride()[-2:] for m in (x, y)):
        raise TaacError(
            f"amx_product expects matrices with contiguous rows or columns, got strides {x.stride()} and {y.stride()}"
        )
    return x.new_empty(*x.shape[:-1], y.shape[-1])


def decompositions(parts: int) -> dict[Any, Callable[..., Any]]:
    """Returns decompositions for tracing that replace torch's CPU products by `amx_product`.

    With 1 part they replace products of bfloat16 tensors, with more parts those of float32 tensors. Products with an empty
    inner dimension, or a single row or column, are left to torch.
    """
    dtype = torch.bfloat16 if parts == 1 else torch.float32

    def product(x: torch.Tensor, y: torch.Tensor) -> Any:
        fits = x.dtype == y.dtype == dtype and x.device.type == "cpu" and all(1 in m.stride()[-2:] for m in (x, y))
        return amx_product(x, y, parts) if fits and min(*x.shape[-2:], y.shape[-1]) > 1 else NotImplemented

    return {torch.ops.aten.mm.default: product, torch.ops.aten.bmm.default: product}


class _Operation:
    """Stands for `torch.ops.taac.amx_product` as a dictionary's key.

    Unlike the operation, it can be pickled, without which torch reads no compiled program from its caches.
    """

    def __init__(self) -> None:
        self._operation = torch.ops.taac.amx_product.default

    def __hash__(self) -> int:
        return hash(self._operation)

    def __eq__(self, other: object) -> bool:
        return other is self._operation or isinstance(other, _Operation)

    def __reduce__(self) -> Any:
        return _Operation, ()


def compiler_options() -> dict[str, Any]:
    """Returns options for torch's compiler that make its programs call the kernel directly instead of through Python.

    Empty if this version of torch does not support that.
    """
    import torch._inductor.config as settings

    option = "custom_ops_to_c_shims"
    return {f"aot_inductor.{option}": {_Operation(): [_DECLARATION]}} if hasattr(settings.aot_inductor, option) else {}


@functools.cache
def processor() -> frozenset[str]:
    """Returns the vendor of the processor, such as "AuthenticAMD", and the names of its instructions, as Linux spells them."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset(platform.processor().replace(",", " ").split())  # on Windows the vendor, without instructions
    return frozenset(word for line in lines if line.startswith(("vendor_id", "flags")) for word in line.split())


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(_compiled()), mode=ctypes.RTLD_GLOBAL)  # where compiled programs find its functions
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.taac_amx_product.argtypes = [pointer, *[integer] * 3, pointer, *[integer] * 3, pointer, *[integer] * 5]
    if library.taac_amx_request() != 0:
        raise OSError("the operating system refuses access to the AMX tiles")
    return library


def _compiled() -> pathlib.Path:
    """Returns the compiled kernel, compiling it unless that was done before."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    torch_folder = pathlib.Path(torch.__file__).parent
    with interruptions_held():
        command = [get_cpp_compiler(), *_FLAGS, f"-I{torch_folder / 'include'}", str(_SOURCE)]
        command += [f"-L{torch_folder / 'lib'}", "-ltorch_cpu"]
        key = hashlib.sha256(repr([torch.__version__, *command]).encode() + _SOURCE.read_bytes()).hexdigest()
        path = pathlib.Path(cache_dir(), f"taac_{_SOURCE.stem}_{key[:32]}.so")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(f".{os.getpid()}")
            # Without a limit in time: programs without the kernel round differently, however long it takes.
            subprocess.run([*command, "-o", str(new)], check=True, capture_output=True, text=True)
            os.replace(new, path)  # another process may have been here first
    return path
