"""Matrix products on a processor's units for bfloat16 products (AMX, as in Intel's server processors from 2023 on).

Those units multiply bfloat16 numbers, sum in float32, and are some ten times as fast as those for float32. A float32 number is
the sum of three bfloat16 numbers; so a product of two float32 matrices is a sum of products of their parts. With one part of
each factor, it is rounded to bfloat16's 8 bits; with two, which makes three products, to 16; with three, which makes six,
nothing is lost, and the result is as near to the exact one as that of a product in float32.

Source: Henry, Tang and Heinecke, Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations
(arXiv:1904.06376).

The kernel is `amx_product.cpp`, compiled when it is first needed, and kept where torch keeps what it compiled. It runs on one
thread.
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

PARTS = {"bfloat16x6": 3, "bfloat16x3": 2, "bfloat16": 1}  # of each float32 factor
_SOURCE = pathlib.Path(__file__).with_name("amx_product.cpp")
_FLAGS = ["-std=c++17", "-O3", "-shared", "-fPIC", "-fvisibility=hidden"]
_FLAGS += ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"]
_NEEDED = {"amx_tile", "amx_bf16", "avx512f", "avx512bw", "avx512vl", "avx512_bf16"}
# How torch's compiler is to declare the kernel, which it calls by this name.
_DECLARATION = (
    "AOTITorchError aoti_torch_cpu_amx_product(AtenTensorHandle, AtenTensorHandle, int64_t, AtenTensorHandle*)"
)


@functools.cache
def missing() -> str | None:
    """Why there are no such products here; None if there are. Compiles the kernel, once on a machine, in some 2 s."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"{sys.platform} on {platform.machine()} has no AMX"
    lacking = _NEEDED - _processor_flags()
    if lacking:
        return f"this processor has no {', '.join(sorted(lacking))}"
    try:
        _library()
    except (OSError, RuntimeError, subprocess.SubprocessError, ImportError) as error:
        return f"the kernel could not be compiled and loaded: {_reason(error)}"
    return None


def amx_product(x: torch.Tensor, y: torch.Tensor, parts: int) -> torch.Tensor:
    """`x @ y` of matrices on the CPU, or of batches of as many, `[(N, )R, K]` and `[(N, )K, C]`: contiguous, `[(N, )R, C]`.

    Sums are in float32. The result is of the type of both factors, float32 or bfloat16. A number that is not finite, or above
    bfloat16's greatest, 3.39e38, makes the results that it is in not finite.

    Args:
        parts: bfloat16 numbers of which a number is the sum, 1 to 3, of float32 factors; 1 of bfloat16 factors. For normal
            numbers the relative error is some 2e-3, 4e-6 and 1e-7 (that of a product in float32 is 3e-7).

    Raises:
        TaacError: other tensors, or other parts; this machine has no such products (see `missing`).
    """
    return torch.ops.taac.amx_product(x, y, parts)


@torch.library.custom_op("taac::amx_product", mutates_args=(), device_types="cpu")
def _amx_product(x: torch.Tensor, y: torch.Tensor, parts: int) -> torch.Tensor:
    why = missing()
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
    """What the result is written to; checks what is given."""
    fits = x.dim() == y.dim() in (2, 3) and x.shape[-1] == y.shape[-2] > 0 and x.shape[:-2] == y.shape[:-2]
    if not fits or not _is_taken(x, y, parts):
        raise TaacError(
            "amx_product takes two float32 matrices that fit, or batches of as many, and 1 to 3 parts, or bfloat16 ones and 1, "
            f"got {tuple(x.shape)} {x.dtype}, {tuple(y.shape)} {y.dtype} and {parts}"
        )
    if not all(1 in m.stride()[-2:] for m in (x, y)):
        raise TaacError(
            f"amx_product takes matrices of contiguous rows or columns, got strides {x.stride()} and {y.stride()}"
        )
    return x.new_empty(*x.shape[:-1], y.shape[-1])


def _is_taken(x: torch.Tensor, y: torch.Tensor, parts: int) -> bool:
    return x.dtype == y.dtype and parts in {torch.float32: (1, 2, 3), torch.bfloat16: (1,)}.get(x.dtype, ())


def decompositions(parts: int) -> dict[Any, Callable[..., Any]]:
    """For tracing: torch's products on the CPU as these, of float32 tensors, or with 1 part of bfloat16 tensors.

    Those without an inner dimension, or of one row or column, are no work for them.
    """
    dtype = torch.bfloat16 if parts == 1 else torch.float32

    def product(x: torch.Tensor, y: torch.Tensor) -> Any:
        fits = x.dtype == y.dtype == dtype and x.device.type == "cpu" and all(1 in m.stride()[-2:] for m in (x, y))
        return amx_product(x, y, parts) if fits and min(*x.shape[-2:], y.shape[-1]) > 1 else NotImplemented

    return {torch.ops.aten.mm.default: product, torch.ops.aten.bmm.default: product}


def compiler_options() -> dict[str, Any]:
    """For torch's compiler: its programs are to call the kernel itself, not by way of Python, where this torch can do that."""
    import torch._inductor.config as settings

    name = "custom_ops_to_c_shims"
    has_it = hasattr(settings.aot_inductor, name)
    return {f"aot_inductor.{name}": {torch.ops.taac.amx_product.default: [_DECLARATION]}} if has_it else {}


def _processor_flags() -> set[str]:
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    return set(next((line for line in text.splitlines() if line.startswith("flags")), "").split())


@functools.cache
def _library() -> ctypes.CDLL:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    torch_folder = pathlib.Path(torch.__file__).parent
    with interruptions_held():
        command = [get_cpp_compiler(), *_FLAGS, f"-I{torch_folder / 'include'}", str(_SOURCE)]
        libraries = [f"-L{torch_folder / 'lib'}", "-ltorch_cpu"]
        key = hashlib.sha256(
            repr([torch.__version__, *command, *libraries]).encode() + _SOURCE.read_bytes()
        ).hexdigest()
        path = pathlib.Path(cache_dir(), f"taac_amx_{key[:32]}.so")
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_suffix(f".{os.getpid()}")
            subprocess.run(
                [*command, *libraries, "-o", str(new)], check=True, capture_output=True, text=True, timeout=300
            )
            os.replace(new, path)  # another process may have been here first
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)  # where compiled programs find it
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.taac_amx_product.argtypes = [pointer, *[integer] * 3, pointer, *[integer] * 3, pointer, *[integer] * 5]
    if library.taac_amx_request() != 0:
        raise OSError("the system does not lend the tiles")
    return library


def _reason(error: Exception) -> str:
    lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines() or [type(error).__name__]
    return next((line for line in lines if "error" in line), lines[0])
