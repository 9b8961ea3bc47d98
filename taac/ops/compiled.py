"""A function of tensors as one compiled program.

`torch.compile` stops at `torch.autograd.grad`, which an actor's loss needs in the middle of a forward pass. So the function
is first run once under a tracer that sees every operation below autograd, backward passes among them; what it recorded has
nothing left to stop at, and is compiled as a whole: elementwise work is fused, and Python is not asked between operations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError

_aten = torch.ops.aten
ADVICE = "Bind Learner.compile = False to run without"


class CompiledFunction:
    """Computes what `fn` does, traced at the first call and for each new shape of arguments, and compiled.

    Random numbers are torch's own, drawn in the order in which `fn` draws them; sums are rounded otherwise.

    Args:
        fn: called with nests of tensors, gives a nest of tensors (or None) without gradients. Python values that it reads
            are those of the trace for ever.
        module: whose parameters and buffers it reads, which may change between calls, but in place; it may move buffers.
        backend: of `torch.compile`.

    Raises:
        TaacError: at a call: `fn` looks at numbers, or could not be compiled.
    """

    def __init__(self, fn: Callable[..., Nest], module: torch.nn.Module, backend: str = "inductor"):
        self._fn, self._module, self._backend = fn, module, backend
        self._programs: dict[Any, tuple[Callable[..., list[Any]], Nest]] = {}

    def __call__(self, *args: Nest) -> Nest:
        leaves = nest.flatten(args)
        key = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        known = self._programs.get(key)
        if known is None:
            return self._first_call(key, args, leaves)
        program, structure = known
        with torch.no_grad():
            return nest.pack_like(structure, program(*leaves))

    def _first_call(self, key: Any, args: tuple[Nest, ...], leaves: list[torch.Tensor]) -> Nest:
        structure: Nest = None

        def flat(*leaves: torch.Tensor) -> list[torch.Tensor | None]:
            nonlocal structure
            structure = self._fn(*nest.pack_like(args, list(leaves)))
            return nest.flatten(structure)

        buffers = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        try:  # on shapes alone: nothing is drawn, and no number computed but from scalars
            graph = make_fx(flat, _UNFUSED, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
        except Exception as error:
            raise TaacError(f"{_name(self._fn)} cannot be traced as a whole: {_first_line(error)}. {ADVICE}") from error
        for buffer, before in buffers:
            buffer.copy_(before)
        structure = nest.map_structure(lambda _: None, structure)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own code while it compiles
            options = inductor_options() if self._backend == "inductor" else None
            program = torch.compile(graph, backend=self._backend, dynamic=False, options=options)
            try:
                with torch.no_grad():
                    results = program(*leaves)
            except Exception as error:
                raise TaacError(f"{_name(self._fn)} could not be compiled: {_first_line(error)}. {ADVICE}") from error
        self._programs[key] = program, structure
        return nest.pack_like(structure, results)


def inductor_options() -> dict[str, Any]:
    """Torch's own random numbers; on the CPU, a program without Python between its kernels.

    torch would check before each call what it compiled for: shapes are looked at here, and all else stays as it was.
    """
    options: dict[str, Any] = {"fallback_random": True, "cpp_wrapper": not torch.cuda.is_available()}
    unchecked = getattr(torch.compiler, "skip_all_guards_unsafe", None)  # from torch 2.8 on
    return options if unchecked is None else {**options, "guard_filter_fn": unchecked}


def check_compiler() -> None:
    """Compiles a sum.

    Raises:
        TaacError: that does not work here.
    """
    try:
        CompiledFunction(lambda x: x + 1, torch.nn.Module())(torch.zeros(2))
    except TaacError as error:
        raise TaacError(
            f"Learner.compile needs a C++ compiler that torch can use (g++ or clang++, and Python's headers): {error}"
        ) from error


def _addmm(bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor, beta: float = 1, alpha: float = 1) -> Any:
    return bias + torch.mm(x, y) if beta == alpha == 1 else NotImplemented


def _baddbmm(bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor, beta: float = 1, alpha: float = 1) -> Any:
    return bias + torch.bmm(x, y) if beta == alpha == 1 else NotImplemented


# A bias apart from its product is fused with the activation; within, it is copied over the product's result first.
_UNFUSED = {_aten.addmm.default: _addmm, _aten.baddbmm.default: _baddbmm}


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)


def _first_line(error: BaseException) -> str:
    while isinstance(getattr(error, "inner_exception", None), BaseException):  # what torch.compile wraps
        error = error.inner_exception  # type: ignore[attr-defined]
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
