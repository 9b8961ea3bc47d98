"""What one core of the machine can do: matrix products on each path there is, and memory bandwidth.

    python -m experiments.benchmarks.floor

Paths for float32 products: torch's default, numpy's BLAS, and torch with
`torch.backends.mkldnn.matmul.fp32_precision = "bf16"`. That last one allows oneDNN to round to bfloat16, which it does
only where the processor has instructions that gain by it (AMX); elsewhere it is oneDNN at full float32 accuracy. The
relative error against float64 tells which, and a path whose error is not float32's does not count as one. Our own products,
sums of six or three bfloat16 products of parts of the factors (`taac.machine.amx`), are shown beside them and are not counted
in the peak rate, which is what libraries make of the units for float32.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from experiments.benchmarks import common

# Rows, inner size and columns: a hidden layer of one critic over a batch of 256; of TAAC's 1,024 and 2,048 rows; first
# layers; and two that leave no overhead to see.
SHAPES = [(256, 256, 256), (1024, 256, 256), (2048, 256, 256), (256, 23, 256), (1024, 1024, 1024), (2048, 2048, 2048)]
FLOAT32_ERROR = 1e-5  # above this a product is not one of float32
SLOW = 0.02  # of the default's rate; larger shapes leave out such paths, as bfloat16 without its instructions: minutes each


class Product(NamedTuple):
    """A product that is ready to be called."""

    call: Callable[[], Any]
    result: Callable[[], Any]  # the last result, as float64 numpy
    prepare: Callable[[], None]  # sets what is global to the process


def _operands(rows: int, inner: int, columns: int) -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(0)
    return (
        rng.normal(size=(rows, inner)).astype(np.float32),
        (rng.normal(size=(inner, columns)) / inner**0.5).astype(np.float32),
    )


def _torch_product(precision: str, dtype: str) -> Callable[[int, int, int], Product]:
    def make(rows: int, inner: int, columns: int) -> Product:
        import torch

        torch.set_num_threads(1)
        a, b = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in _operands(rows, inner, columns))
        c = torch.empty(rows, columns, dtype=a.dtype)

        def prepare() -> None:
            torch.backends.mkldnn.matmul.fp32_precision = precision

        prepare()
        return Product(lambda: torch.mm(a, b, out=c), lambda: c.double().numpy(), prepare)

    return make


def _numpy_product(rows: int, inner: int, columns: int) -> Product:
    import numpy as np

    a, b = _operands(rows, inner, columns)
    c = np.empty((rows, columns), dtype=np.float32)
    return Product(lambda: np.matmul(a, b, out=c), lambda: c.astype(np.float64), lambda: None)


def _amx_product(parts: int) -> Callable[[int, int, int], Product]:
    def make(rows: int, inner: int, columns: int) -> Product:
        import torch

        from taac.machine import amx

        why = amx.reason_unavailable()
        if why is not None:
            raise RuntimeError(why)
        a, b = (torch.from_numpy(x) for x in _operands(rows, inner, columns))
        return Product(
            lambda: amx.amx_product(a, b, parts), lambda: amx.amx_product(a, b, parts).double().numpy(), lambda: None
        )

    return make


DEFAULT, ONEDNN, NUMPY, BFLOAT16 = "torch, default", "torch, oneDNN", "numpy", "torch, bfloat16"
SIX, THREE = "taac, bfloat16x6", "taac, bfloat16x3"
LIBRARIES = (DEFAULT, ONEDNN, NUMPY)  # whose best float32 product is the peak
PATHS: dict[str, Callable[[int, int, int], Product]] = {
    DEFAULT: _torch_product("none", "float32"),
    ONEDNN: _torch_product("bf16", "float32"),
    NUMPY: _numpy_product,
    BFLOAT16: _torch_product("none", "bfloat16"),
    SIX: _amx_product(3),
    THREE: _amx_product(2),
}


def rate(product: Product, seconds: float) -> float:
    """Calls a second."""
    product.prepare()
    product.call()
    times, elapsed = 1, 0.0
    while True:
        start = time.perf_counter()
        for _ in range(times):
            product.call()
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return times / elapsed
        times = max(times + 1, int(times * min(10.0, 1.2 * seconds / max(elapsed, 1e-9))))


def relative_error(product: Product, shape: tuple[int, int, int]) -> float:
    """Returns the error of the product against float64: norm of the difference over the norm."""
    import numpy as np

    a, b = (x.astype(np.float64) for x in _operands(*shape))
    product.prepare()
    product.call()
    exact = a @ b
    return float(np.linalg.norm(product.result() - exact) / np.linalg.norm(exact))


def measure(
    seconds: float, megabytes: int = 256, shapes: list[tuple[int, int, int]] | None = None, rounds: int = 3
) -> dict[str, Any]:
    """Measures in this process, as it is pinned: `products`, each with its rates in GFLOP/s, and `bandwidth` in GB/s.

    Args:
        seconds: of one product on one path, once.
        megabytes: of the arrays for the bandwidth; should be well above the last cache.
    """
    products = []
    slow: dict[str, str] = {}
    for shape in shapes or SHAPES:
        ready, missing = {}, dict(slow)
        for path, make in PATHS.items():
            if path in slow:
                continue
            try:
                ready[path] = make(*shape)
            except (AttributeError, RuntimeError, ValueError) as error:  # a torch without this path
                missing[path] = f"{type(error).__name__}: {error}"
        flops = 2 * shape[0] * shape[1] * shape[2]
        rates: dict[str, list[float]] = {path: [] for path in ready}
        for _ in range(rounds):
            for path, product in ready.items():
                rates[path].append(rate(product, seconds / rounds) * flops / 1e9)
        for path, product in ready.items():
            error = relative_error(product, shape)
            products.append({"path": path, "shape": list(shape), "gflops": rates[path], "relative_error": error})
            if statistics.median(rates[path]) < SLOW * statistics.median(rates[DEFAULT]):
                slow[path] = f"below {SLOW} of the default's rate at {' x '.join(map(str, shape))}"
        products += [{"path": path, "shape": list(shape), "missing": why} for path, why in missing.items()]
    return {"products": products, "bandwidth": bandwidth(seconds, megabytes)}


def bandwidth(seconds: float, megabytes: int) -> dict[str, float]:
    """GB/s of reading (a sum) and of copying (bytes read and bytes written), out of memory."""
    import numpy as np

    source = np.ones(megabytes * 250_000, dtype=np.float32)
    target = np.empty_like(source)
    work = {"read": (source.sum, 1), "copy": (lambda: np.copyto(target, source), 2)}
    found = {}
    for name, (call, passes) in work.items():
        times = rate(Product(call, lambda: None, lambda: None), seconds)
        found[name] = times * passes * source.nbytes / 1e9
    return found


def peak(products: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the best float32 product of a library: its path, shape and rates."""
    honest = [p for p in products if p["path"] in LIBRARIES and p.get("relative_error", 1.0) < FLOAT32_ERROR]
    return max(honest, key=lambda p: statistics.median(p["gflops"]))


def run(options: argparse.Namespace) -> dict[str, Any]:
    common.say("peak rates")
    sent = {"task": "floor", "seconds": options.seconds / 3, "megabytes": 64 if options.quick else 256}
    floor = common.Contender("floor", common.OURS, sent)
    everyone = argparse.Namespace(**{**vars(options), "contenders": None, "gin_param": []})
    with common.started([floor], everyone) as (_, about, problems):
        if problems:
            raise RuntimeError(problems["floor"])
        found = about["floor"]
    figures = []
    for product in found["products"]:
        what = f"{product['path']}, {' x '.join(map(str, product['shape']))}"
        if "missing" in product:
            figures.append(common.missing_figure(what, product["missing"]))
        else:
            note = f"relative error {product['relative_error']:.1e}"
            figures.append(common.figure(what, product["gflops"], "GFLOP/s", note=note))
    figures += [common.figure(f"memory, {name}", [value], "GB/s") for name, value in found["bandwidth"].items()]
    best = peak(found["products"])
    common.say(f"  best float32: {best['path']}, {best['shape']}: {statistics.median(best['gflops']):.0f} GFLOP/s")
    return {"title": "Peak rates of one core", "figures": figures, "goals": [], "peak": best}


if __name__ == "__main__":
    common.main("floor", common.parser(__doc__.splitlines()[0]), run)
