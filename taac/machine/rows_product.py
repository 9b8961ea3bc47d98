"""Matrix products that leave out rows of zeros, in compiled programs on the CPU.

The kernel, `rows_product.cpp`, gathers the other rows, calls the library's product for them, and puts the results back.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from taac.machine import kernels

SOURCE = kernels.FOLDER / "rows_product.cpp"
# The declaration of the kernel in torch's compiled programs, which call it by this name.
_DECLARATION = "AOTITorchError aoti_torch_cpu_product_of_rows(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle*)"


@torch.library.custom_op("taac::product_of_rows", mutates_args=(), device_types="cpu")
def product_of_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`x @ y` for two batches of float32 matrices on the CPU, `[N, R, K]` and `[N, K, C]`.

    Python computes the whole product. Compiled programs leave out the rows of x that are 0, whose results are then 0 also where
    y is not finite.

    Returns:
        `[N, R, C]`.
    """
    return torch.bmm(x, y)


@product_of_rows.register_fake
def _result(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], y.shape[-1])


@functools.cache
def compiler_options() -> dict[str, Any]:
    """Options for torch's compiler with which its programs call the kernel; empty where it cannot be compiled or called."""
    if sys.platform != "linux":
        return {}
    try:
        kernels.load(SOURCE)
    except kernels.ERRORS:
        return {}
    return kernels.compiler_options("product_of_rows", _DECLARATION)
