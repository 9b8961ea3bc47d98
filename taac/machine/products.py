"""Chooses the implementation of matrix products on the CPU.

torch computes float32 products with MKL, which is slow on AMD processors; torch's oneDNN is not. torch enables oneDNN for
float32 products only through a precision setting, `fp32_precision = "bf16"`. A processor without bfloat16 units (AMX) then
still computes them in full float32. oneDNN is therefore used only where a check shows full precision. On a processor with
AMX, compiled programs can sum float32 products from bfloat16 products, see `amx`.

Products round differently, so no choice depends on a measurement: the same processor chooses the same, however busy it is.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch

from taac.errors import TaacError
from taac.machine import amx

Products = Literal["auto", "plain", "onednn", "bfloat16x6", "bfloat16x3", "bfloat16", "tf32"]

# What "auto" chooses where the processor has an instruction or a vendor: the first that is available, otherwise "plain". Speed
# relative to "plain", two products of 2 x 512 x 256 x 256 on one thread, the best of 60: with AMX 1.3 (experiments/benchmarks);
# AMD EPYC with AVX-512 1.09 to 1.14, where layers of 64 units have 0.85; on Intel's others oneDNN and MKL are alike.
_FASTEST = (("amx_bf16", "bfloat16x6"), ("AuthenticAMD", "onednn"))
# Where "bfloat16" is faster than float32, see docs/performance.md.
_FAST_BFLOAT16 = ({"amx_bf16"}, {"AuthenticAMD", "avx512_bf16"})


@contextlib.contextmanager
def using(kind: str) -> Iterator[None]:
    """A context in which float32 products use oneDNN in full float32 ("onednn"), TF32 on a GPU ("tf32"), or torch's default."""
    if kind not in ("onednn", "tf32"):
        yield
        return
    # Of two names for the precision on a GPU, torch 2.9 and 2.10 compile with the old one alone.
    setting: Any = torch.backends.mkldnn.matmul if kind == "onednn" else torch.backends.cuda.matmul  # type: ignore[attr-defined]
    name, value = ("fp32_precision", "bf16") if kind == "onednn" else ("allow_tf32", True)
    before = getattr(setting, name)
    setattr(setting, name, value)
    try:
        yield
    finally:
        setattr(setting, name, before)


def mixed_precision(kind: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which hidden layers compute in bfloat16, if that is the kind of products; see `Learner.matmul`."""
    # Some versions of torch reuse a weight that was cast without gradients where gradients are asked for.
    return torch.autocast(device.type, torch.bfloat16, enabled=kind == "bfloat16", cache_enabled=False)


def resolve(kind: Products, device: torch.device, compiled: bool = False) -> str:
    """Replaces "auto" by the product with float32 accuracy for a device and processor. Checks any other kind and returns it.

    "bfloat16x6" and "bfloat16x3" require a compiled update.

    Raises:
        TaacError: the name is unknown, or the product is not available or, for "onednn", not exact.
    """
    if kind not in get_args(Products):
        raise TaacError(f"Learner.matmul must be one of {', '.join(map(repr, get_args(Products)))}, got '{kind}'")
    if kind == "auto":
        has = amx.processor()
        return next((other for word, other in _FASTEST if word in has and available(other, device, compiled)), "plain")
    why = _missing(kind, device, compiled)
    if why is not None:
        raise TaacError(f"Learner.matmul: products '{kind}' were requested, but {why}; use 'auto' or 'plain'")
    return kind


def available(kind: str, device: torch.device, compiled: bool = False) -> bool:
    return _missing(kind, device, compiled) is None


def _missing(kind: str, device: torch.device, compiled: bool) -> str | None:
    if kind not in get_args(Products)[1:]:
        return "no machine has them"  # what a run.json or a checkpoint holds
    if kind in ("onednn", "bfloat16x6", "bfloat16x3") and device.type != "cpu":
        return f"they are for the CPU, and the agent is on {device}"
    if kind == "tf32" and device.type != "cuda":
        return f"they are for GPUs, and the agent is on {device}"
    if kind == "onednn" and not onednn_is_exact():
        return f"torch {torch.__version__} has no exact float32 product from oneDNN here"
    if kind in ("bfloat16x6", "bfloat16x3"):
        return amx.reason_unavailable() if compiled else "they need create_agent.compile = True"
    return None


def parts(kind: str, device: torch.device) -> int | None:
    """Returns the number of bfloat16 parts of each factor for `amx`'s products in a compiled update; None for torch's own."""
    if kind not in amx.PARTS or device.type != "cpu" or amx.reason_unavailable() is not None:
        return None
    # torch's own bfloat16 products can use several threads.
    return None if kind == "bfloat16" and torch.get_num_threads() > 1 else amx.PARTS[kind]


@functools.cache
def onednn_is_exact() -> bool:
    """Returns whether oneDNN's product is available and as exact as float32, checked on one product."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.backends.mkldnn, "matmul"):
        return False
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(2, size, 256, generator=generator) for size in (512, 256))
    expected = torch.bmm(left.double(), right.double())
    try:
        with warnings.catch_warnings(), using("onednn"):
            warnings.simplefilter("error")
            error = (torch.bmm(left, right) - expected).norm() / expected.norm()
    except (RuntimeError, AttributeError, UserWarning):  # not supported by this torch or processor
        return False
    return error.item() < 2e-6  # float32 has 3e-7, bfloat16 3e-3


def slowness(kind: str, device: torch.device) -> str | None:
    """Returns a sentence for users if bfloat16 products were chosen and are slower than float32's on this processor, or None."""
    has = amx.processor()
    if kind != "bfloat16" or device.type != "cpu" or "avx" not in has or any(words <= has for words in _FAST_BFLOAT16):
        return None
    return (
        "Learner.matmul = 'bfloat16' is slower than float32 on this processor, which has neither AMX nor AMD's AVX512_BF16; "
        "'auto' is faster"
    )
