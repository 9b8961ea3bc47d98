"""Compiles a function of tensors to a single program.

`torch.compile` breaks its graph at `torch.autograd.grad`, which an actor's loss needs in the middle of a forward pass. The
function is therefore first traced below autograd, where every operation is visible, including those of backward passes. The
traced graph has no breaks, so torch's compiler compiles it as a whole: elementwise operations are fused, and no Python runs
between operations.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError, first_line
from taac.machine import amx
from taac.machine.cuda_graphs import captured
from taac.machine.processes import interruptions_held
from taac.machine.program_cache import VARIABLE, use_program_cache
from taac.machine.traced_attributes import TracedAttributes, Unwatched

_aten = torch.ops.aten
MOST_RETRACES = 8
ADVICE = "Bind create_agent.compile = False to run without compilation"


class CompiledFunction(Unwatched):
    """A compiled version of `fn`, traced at the first call and for each new combination of argument shapes and dtypes.

    It draws torch's own random numbers in the same order as `fn`. Floating-point results may be rounded differently.

    Args:
        fn: maps nests of tensors to a nest of tensors (or None) without gradients. Python values that it reads are fixed
            at their values when it was traced.
        module: the module whose parameters and buffers `fn` reads. They may change between calls, but only in place. `fn`
            may change buffers. If one of its Python attributes has changed, `fn` is traced and compiled again.
        parts: number of bfloat16 parts of each float32 factor in matrix products, see `amx`. None uses torch's products.
        optional: warns and calls `fn` itself where compiling fails.

    Attributes:
        failed: whether compiling failed, so that `fn` itself is called.

    Raises:
        TaacError: raised by a call, unless `optional`: `fn` depends on the values of tensors, cannot be compiled, or is
            traced again and again.
    """

    def __init__(
        self,
        fn: Callable[..., Nest],
        module: torch.nn.Module,
        parts: int | None = None,
        optional: bool = False,
    ):
        self._fn, self._module, self._parts, self._optional = fn, module, parts, optional
        self._programs: dict[Any, tuple[Callable[..., list[Any]], Callable[[Iterator[Any]], Nest]]] = {}
        self._attributes = TracedAttributes(module)
        self.retraced = 0  # how often an attribute had changed
        self.failed = False

    def __call__(self, *args: Nest) -> Nest:
        if self.failed:
            return self._fn(*args)
        try:
            if (changed := self._attributes.changed()) is not None:
                self._forget(changed)
            leaves = nest.flatten(args)
            key = _key(leaves)
            if (known := self._programs.get(key)) is None:
                return self._first_call(key, args, leaves)
        except TaacError as error:
            if not self._optional:
                raise
            self.failed = True
            warnings.warn(f"not compiled, which is slower: {error}", stacklevel=2)
            return self._fn(*args)
        program, pack = known
        with torch.no_grad():
            return pack(iter(program(*leaves)))

    def _forget(self, changed: str) -> None:
        """Drops the programs, because an attribute that they may have read has changed."""
        self._attributes = TracedAttributes(self._module)
        if not self._programs:
            return
        self._programs.clear()
        self.retraced += 1
        if self.retraced > MOST_RETRACES:
            raise TaacError(
                f"{changed} has changed {self.retraced} times, and {_name(self._fn)} is compiled for one value of it. {ADVICE}, "
                "or bind a schedule"
            )

    def _first_call(self, key: Any, args: tuple[Nest, ...], leaves: list[torch.Tensor]) -> Nest:
        graph, structure = trace(self._fn, args, self._module, decompositions(self._parts))
        try:
            program = captured(lambda leaves: compile_graph(graph, leaves, self._parts), graph, leaves)
            with torch.no_grad():
                results = program(*leaves)
        except Exception as error:
            raise TaacError(
                f"{_name(self._fn)} could not be compiled: {first_line(error)}. {ADVICE}. If a process was ended while it "
                f"compiled, half a program may be left in {os.environ.get(VARIABLE)}: remove that folder"
            ) from error
        self._programs[key] = program, nest.packer(structure)
        return nest.pack_like(structure, results)


def trace(
    fn: Callable[..., Nest], args: tuple[Nest, ...], module: torch.nn.Module, into: dict[Any, Callable[..., Any]]
) -> tuple[torch.fx.GraphModule, Nest]:
    """Traces `fn`, which reads `module`, below autograd, into some decompositions. Draws no random numbers, and changes nothing.

    Of the arguments only shapes and dtypes count. Returns the graph, which maps their leaves to those of the result, and the
    result's structure, with None as leaves.

    Raises:
        TaacError: the function depends on the values of tensors.
    """
    use_program_cache()  # before tracing, which sets torch's own folder
    structure: Nest = None

    def flat(*leaves: torch.Tensor) -> list[torch.Tensor | None]:
        nonlocal structure
        structure = fn(*nest.pack_like(args, list(leaves)))
        return nest.flatten(structure)

    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:  # with fake tensors: draws no random numbers and computes nothing but scalars
        graph = make_fx(flat, into, tracing_mode="fake", _allow_non_fake_inputs=True)(*nest.flatten(args))
    except Exception as error:
        raise TaacError(f"{_name(fn)} cannot be traced as a whole: {first_line(error)}. {ADVICE}") from error
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
    return graph, nest.map_structure(lambda _: None, structure)


def compile_graph(graph: Any, leaves: list[torch.Tensor], parts: int | None) -> Callable[..., list[Any]]:
    """Compiles the graph for tensors like `leaves`, without the guards that `torch.compile` would check at each call.

    `parts` is as in `CompiledFunction`.
    """
    import torch._inductor.config as settings  # here, because it takes a second and most runs compile nothing

    on_cpu = all(leaf.device.type == "cpu" for leaf in leaves)
    options = {
        "fallback_random": True,  # torch's own random numbers
        "cpp_wrapper": on_cpu,  # no Python between its kernels
        # On a GPU, torch would choose kernels by their times, though they round differently. torch 2.6 lacks the setting.
        **({} if on_cpu or not hasattr(settings, "deterministic") else {"deterministic": True}),
        "cpp_cache_precompile_headers": False,  # takes 280 MB of the disk and saves less time than it takes
        **({} if parts is None else amx.compiler_options()),
    }
    with warnings.catch_warnings(), torch.no_grad(), interruptions_held():
        warnings.simplefilter("ignore")  # from torch's own code
        program = torch._inductor.compile(graph, [*leaves], options=options)
    # Remove the wrapper that keeps torch.compile from compiling the program again, as nothing here would.
    wrapped = getattr(program, "_torchdynamo_disable", False)
    return getattr(program, "_torchdynamo_orig_callable", program) if wrapped else program


def find_compiler() -> str | None:
    """Returns the path of a C++ compiler that torch would use, if Python's headers are there too. Compiles nothing."""
    found = shutil.which(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"))
    return found if os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")) else None


def check_compiler(device: torch.device) -> None:
    """Compiles a sum on a device, to check that compilation works there; says what it needs if it does not."""
    try:
        CompiledFunction(lambda x: x + 1, torch.nn.Module())(torch.zeros(2, device=device))
    except TaacError as error:
        raise TaacError(
            f"create_agent.compile needs a C++ compiler that torch can use (g++ or clang++, and Python's headers): {error}"
        ) from error


def _addmm(bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor, beta: float = 1, alpha: float = 1) -> Any:
    if not beta == alpha == 1:
        return NotImplemented
    # On the CPU as a batch of one product, because the compiler would make an addmm of `bias + mm` again.
    return (bias + torch.mm(x, y)[None])[0] if x.device.type == "cpu" else bias + torch.mm(x, y)


def _baddbmm(bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor, beta: float = 1, alpha: float = 1) -> Any:
    return bias + torch.bmm(x, y) if beta == alpha == 1 else NotImplemented


# A separate bias is fused with the activation. As part of the product, it would first be copied into the product's result.
_UNFUSED = {_aten.addmm.default: _addmm, _aten.baddbmm.default: _baddbmm}


def _key(leaves: list[torch.Tensor]) -> Any:
    return tuple([(leaf.shape, leaf.dtype) for leaf in leaves])


def decompositions(parts: int | None) -> dict[Any, Callable[..., Any]]:
    """Returns the decompositions to trace with, for the `parts` of `CompiledFunction`."""
    return _UNFUSED if parts is None else {**_UNFUSED, **amx.decompositions(parts)}


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__qualname__", type(fn).__name__)
