"""A function of tensors as one compiled program.

`torch.compile` stops at `torch.autograd.grad`, which an actor's loss needs in the middle of a forward pass. So the function
is first run under a tracer that sees every operation below autograd, backward passes among them; what it recorded has nothing
left to stop at, and torch's compiler takes it as a whole: elementwise work is fused, and Python is not asked between operations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError
from taac.machine import amx
from taac.machine.processes import interruptions_held

_aten = torch.ops.aten
ADVICE = "Bind create_agent.compile = False to run without"


class CompiledFunction:
    """Computes what `fn` does, traced at the first call and for each new shape of arguments, and compiled.

    Random numbers are torch's own, drawn in the order in which `fn` draws them; sums are rounded otherwise.

    Args:
        fn: called with nests of tensors, gives a nest of tensors (or None) without gradients. Python values that it reads
            are those of the trace for ever.
        module: whose parameters and buffers it reads, which may change between calls, but in place; it may move buffers.
        parts: bfloat16 numbers that stand for each float32 factor of a matrix product, see `amx`; None: torch's own products.
        compiler: "inductor", torch's, or "none", which runs what was traced as it is.

    Raises:
        TaacError: at a call: `fn` looks at numbers, or could not be compiled.
    """

    def __init__(
        self,
        fn: Callable[..., Nest],
        module: torch.nn.Module,
        parts: int | None = None,
        compiler: Literal["inductor", "none"] = "inductor",
    ):
        self._fn, self._module, self._compiler = fn, module, compiler
        self._parts = parts
        self._programs: dict[Any, tuple[Callable[..., list[Any]], Nest]] = {}

    def __call__(self, *args: Nest) -> Nest:
        leaves = nest.flatten(args)
        key = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        known = self._programs.get(key)
        if known is None:
            return self._first_call(key, args, leaves)
        program, structure = known
        with torch.no_grad():
            results = iter(program(*leaves))
        return nest.map_structure(lambda _: next(results), structure)

    def _first_call(self, key: Any, args: tuple[Nest, ...], leaves: list[torch.Tensor]) -> Nest:
        structure: Nest = None

        def flat(*leaves: torch.Tensor) -> list[torch.Tensor | None]:
            nonlocal structure
            structure = self._fn(*nest.pack_like(args, list(leaves)))
            return nest.flatten(structure)

        buffers = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        decompositions = _UNFUSED if self._parts is None else {**_UNFUSED, **amx.decompositions(self._parts)}
        try:  # on shapes alone: nothing is drawn, and no number computed but from scalars
            graph = make_fx(flat, decompositions, tracing_mode="fake", _allow_non_fake_inputs=True)(*leaves)
        except Exception as error:
            raise TaacError(f"{_name(self._fn)} cannot be traced as a whole: {_first_line(error)}. {ADVICE}") from error
        for buffer, before in buffers:
            buffer.copy_(before)
        structure = nest.map_structure(lambda _: None, structure)
        try:
            options = {} if self._parts is None else amx.compiler_options()
            program = graph if self._compiler == "none" else _compiled(graph, leaves, options)
            with torch.no_grad():
                results = program(*leaves)
        except Exception as error:
            raise TaacError(f"{_name(self._fn)} could not be compiled: {_first_line(error)}. {ADVICE}") from error
        self._programs[key] = program, structure
        return nest.pack_like(structure, results)


def _compiled(graph: Any, leaves: list[torch.Tensor], more_options: dict[str, Any]) -> Callable[..., list[Any]]:
    """The graph for tensors like these, without the checks at each call that `torch.compile` would put around it."""
    import torch._inductor  # takes a second, which runs that compile nothing are spared

    options = {
        "fallback_random": True,  # torch's own random numbers
        "cpp_wrapper": all(leaf.device.type == "cpu" for leaf in leaves),  # no Python between its kernels
        **more_options,
    }
    with warnings.catch_warnings(), torch.no_grad(), interruptions_held():
        warnings.simplefilter("ignore")  # of torch's own code
        program = torch._inductor.compile(graph, [*leaves], options=options)
    # Without the wrapper that keeps torch.compile from compiling it again, which nobody asks for here.
    wrapped = getattr(program, "_torchdynamo_disable", False)
    return getattr(program, "_torchdynamo_orig_callable", program) if wrapped else program


def check_compiler() -> None:
    """Compiles a sum.

    Raises:
        TaacError: that does not work here.
    """
    try:
        CompiledFunction(lambda x: x + 1, torch.nn.Module())(torch.zeros(2))
    except TaacError as error:
        raise TaacError(
            f"create_agent.compile needs a C++ compiler that torch can use (g++ or clang++, and Python's headers): {error}"
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
