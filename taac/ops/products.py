"""Which matrix product torch calls on the CPU.

torch's float32 products go to MKL, which takes a slow path on AMD processors; the oneDNN in torch does not. torch offers
oneDNN for float32 products under the name of a precision, `fp32_precision = "bf16"`: a processor that has no units for that
(AMX) computes them in full float32. So it is taken only where that was checked, and where it was measured to be faster.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch

from taac.errors import TaacError

Products = Literal["auto", "plain", "onednn", "bfloat16"]


def using(kind: str) -> contextlib.AbstractContextManager[None]:
    """Inside, products of float32 tensors on the CPU are torch's own ("plain"), or oneDNN's in full float32 ("onednn")."""
    return _using_onednn() if kind == "onednn" else contextlib.nullcontext()


@contextlib.contextmanager
def _using_onednn() -> Iterator[None]:
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, setting.fp32_precision = setting.fp32_precision, "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


def resolve(kind: Products, device: torch.device) -> str:
    """What "auto" stands for on a device and this processor: "onednn" where it is exact and faster, else "plain".

    Raises:
        TaacError: an unknown name; oneDNN where it is missing or not exact.
    """
    if kind not in get_args(Products):
        raise TaacError(f"Learner.products must be one of {', '.join(map(repr, get_args(Products)))}, got '{kind}'")
    if kind == "auto":
        return "onednn" if available("onednn", device) and onednn_speed() > 1.03 else "plain"
    if not available(kind, device):
        raise TaacError(
            f"products 'onednn' was asked for on {device}, where torch {torch.__version__} has no exact float32 product "
            "of oneDNN's; use 'auto' or 'plain'"
        )
    return kind


def available(kind: str, device: torch.device) -> bool:
    """Whether a device has such a product."""
    return kind != "onednn" or (device.type == "cpu" and onednn_is_exact())


@functools.cache
def onednn_is_exact() -> bool:
    """Whether oneDNN's product is there, and as exact as float32 is (checked on one product)."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.backends.mkldnn, "matmul"):
        return False
    left, right = _operands()
    expected = torch.bmm(left.double(), right.double())
    try:
        with warnings.catch_warnings(), using("onednn"):
            warnings.simplefilter("error")
            error = (torch.bmm(left, right) - expected).norm() / expected.norm()
    except (RuntimeError, AttributeError, UserWarning):  # this torch or processor has none
        return False
    return error.item() < 2e-6  # float32's is 3e-7, bfloat16's 3e-3


@functools.cache
def onednn_speed() -> float:
    """How many times as fast as torch's own product oneDNN's is, on a layer of two critics; measured once, in some 60 ms."""
    left, right = _operands()
    best = {kind: float("inf") for kind in ("plain", "onednn")}
    for _ in range(8):  # in turn, so that a busy moment hits both
        for kind in best:
            with using(kind):
                best[kind] = min(best[kind], _seconds(lambda: torch.bmm(left.transpose(1, 2), torch.bmm(left, right))))
    return best["plain"] / best["onednn"]


def _operands() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 512, 256, generator=generator), torch.randn(2, 256, 256, generator=generator)


def _seconds(fn: Callable[[], object]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start
