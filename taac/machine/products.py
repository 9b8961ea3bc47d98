"""Chooses the implementation of matrix products on the CPU.

torch computes float32 products with MKL, which is slow on AMD processors; torch's oneDNN is not. torch enables oneDNN for
float32 products only through a precision setting, `fp32_precision = "bf16"`. A processor without bfloat16 units (AMX) then
still computes them in full float32. oneDNN is therefore used only where a check shows full precision and a measurement shows
that it is faster. On a processor with AMX, compiled programs can sum float32 products from bfloat16 products, see `amx`.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch

from taac.errors import TaacError
from taac.machine import amx

Products = Literal["auto", "plain", "onednn", "bfloat16x6", "bfloat16x3", "bfloat16"]


@contextlib.contextmanager
def using(kind: str) -> Iterator[None]:
    """A context in which float32 products on the CPU use oneDNN in full float32 ("onednn") or torch's default ("plain")."""
    if kind != "onednn":
        yield
        return
    setting: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before, setting.fp32_precision = setting.fp32_precision, "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


def mixed_precision(kind: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A context in which hidden layers compute in bfloat16, if that is the kind of products; see `Learner.products`."""
    return torch.autocast(device.type, torch.bfloat16, enabled=kind == "bfloat16")


def resolve(kind: Products, device: torch.device, compiled: bool = False) -> str:
    """Replaces "auto" by the fastest product with float32 accuracy for a device. Checks any other kind and returns it.

    Args:
        compiled: whether the update is compiled, which "bfloat16x6" and "bfloat16x3" require.

    Raises:
        TaacError: the name is unknown, or the product is not available or, for "onednn", not exact.
    """
    if kind not in get_args(Products):
        raise TaacError(f"Learner.products must be one of {', '.join(map(repr, get_args(Products)))}, got '{kind}'")
    if kind == "auto":
        speeds = {other: speed(other) for other in ("onednn", "bfloat16x6") if available(other, device, compiled)}
        return max(
            ["plain", *(other for other in speeds if speeds[other] > 1.03)], key=lambda other: speeds.get(other, 1.0)
        )
    why = _missing(kind, device, compiled)
    if why is not None:
        raise TaacError(f"products '{kind}' were requested, but {why}; use 'auto' or 'plain'")
    return kind


def available(kind: str, device: torch.device, compiled: bool = False) -> bool:
    """Whether a kind of product can be used."""
    return _missing(kind, device, compiled) is None


def _missing(kind: str, device: torch.device, compiled: bool) -> str | None:
    if kind in ("onednn", "bfloat16x6", "bfloat16x3") and device.type != "cpu":
        return f"they are for the CPU, and the agent is on {device}"
    if kind == "onednn" and not onednn_is_exact():
        return f"torch {torch.__version__} has no exact float32 product from oneDNN here"
    if kind in ("bfloat16x6", "bfloat16x3"):
        return amx.missing() if compiled else "they need create_agent.compile = True"
    return None


def parts(kind: str, device: torch.device) -> int | None:
    """Number of bfloat16 parts of each factor for `amx`'s products in a compiled update. None for torch's own products."""
    if kind not in amx.PARTS or device.type != "cpu" or amx.missing() is not None:
        return None
    # torch's own bfloat16 products can use several threads.
    return None if kind == "bfloat16" and torch.get_num_threads() > 1 else amx.PARTS[kind]


@functools.cache
def onednn_is_exact() -> bool:
    """Whether oneDNN's product is available and as exact as float32, checked on one product."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.backends.mkldnn, "matmul"):
        return False
    left, right = _operands()
    expected = torch.bmm(left.double(), right.double())
    try:
        with warnings.catch_warnings(), using("onednn"):
            warnings.simplefilter("error")
            error = (torch.bmm(left, right) - expected).norm() / expected.norm()
    except (RuntimeError, AttributeError, UserWarning):  # not supported by this torch or processor
        return False
    return error.item() < 2e-6  # float32 has 3e-7, bfloat16 3e-3


def slowness(kind: str, device: torch.device) -> str | None:
    """A sentence for users if bfloat16 products were chosen and are slower than float32's on this processor, or None."""
    if kind != "bfloat16" or device.type != "cpu" or parts(kind, device) is not None or (ratio := speed(kind)) >= 1:
        return None
    return f"Learner.products = 'bfloat16' computes {ratio:.2g} times as fast as float32 on this processor; 'auto' is faster"


@functools.cache
def speed(kind: str) -> float:
    """Speed relative to torch's own float32 product, on a layer of two critics.

    Measured once, in about 60 ms. Without bfloat16 instructions "bfloat16" takes half a second a layer: it is called twice.
    """
    left, right = _operands()
    best = {"plain": float("inf"), kind: float("inf")}
    for times in range(8):  # in turn, so that a busy moment hits both
        for name in best:
            with using(name):
                best[name] = min(best[name], _layer_seconds(name, left, right))
        if times and best[kind] > 0.1:
            break
    return best["plain"] / best[kind]


def _operands() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 512, 256, generator=generator), torch.randn(2, 256, 256, generator=generator)


def _layer_seconds(kind: str, left: torch.Tensor, right: torch.Tensor) -> float:
    product = torch.bmm
    if kind == "bfloat16":
        left, right = left.bfloat16(), right.bfloat16()
    elif kind in amx.PARTS:
        product = functools.partial(amx.amx_product, parts=amx.PARTS[kind])
    start = time.perf_counter()
    product(left.transpose(1, 2), product(left, right))
    return time.perf_counter() - start
