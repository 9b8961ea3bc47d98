"""Replays a program on a GPU as one CUDA graph, so that its kernels are launched at once and no Python runs between them.

docs/gpu.md says what was seen on one. `tests/training/test_on_gpu.py` runs it where there is a GPU, and
`tests/machine/test_cuda_graphs.py` on the CPU, with a stand-in for the part of `torch.cuda` that it uses.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from taac.errors import first_line

Program = Callable[..., list[Any]]  # maps tensors to tensors, or None

WARM_UPS = 3  # runs before the capture, in which libraries allocate and choose what they keep
MOST_CAPTURES = 8
_gpu: Any = torch.cuda


def captured(make: Callable[[list[torch.Tensor]], Program], graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Program:
    """Returns a program for tensors like `inputs`; on a GPU it is a `CudaGraph`, else what `make` returns.

    `make` compiles the program, which computes `graph`, for tensors of the strides that it is given.
    """
    return CudaGraph(make, graph, inputs) if on_gpu(inputs) else make(inputs)


def on_gpu(tensors: Sequence[torch.Tensor]) -> bool:
    return any(tensor.device.type == "cuda" for tensor in tensors)


class CudaGraph:
    """A program that is captured when it is made, and replayed at each call.

    A graph computes in memory that stays the same. A call copies its arguments there, replays, and returns copies of the results,
    so nothing that a caller keeps changes later. Capturing computes nothing. The runs before it do, so the GPU's random generator
    and the tensors that the program reads are restored after them. If one of these is found at another address, the program is
    captured again.

    Random numbers are those that the program draws without a graph: according to torch ("CUDA Graph-safe RNG states" in
    ATen/cuda/CUDAGeneratorImpl.h), a replay starts where the default generator stands and then moves it by as much. A saved and
    restored state of the generator should therefore go on exactly.

    Where the program cannot be captured, a warning says why, and it runs as it is. What a failed capture leaves behind on a GPU
    is not known.

    Args:
        make, graph, inputs: as in `captured`.
    """

    def __init__(self, make: Callable[[list[torch.Tensor]], Program], graph: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        self._device = inputs[-1].device
        self._own = [torch.empty_like(tensor).copy_(tensor) for tensor in inputs]
        self._read = tensors_read(graph)
        self._run = make(self._own)
        self._graph: Any = None  # None: runs without
        self._results: list[Any] = []
        self._addresses: list[int] = []
        self._captures = 0
        if elsewhere := next((name for name, device in places(graph) if device != self._device), None):
            self._go_without(f"it computes '{elsewhere}' on another device")
        else:
            self._capture()

    @torch.no_grad()
    def __call__(self, *inputs: torch.Tensor) -> list[Any]:
        if self._graph is not None and self._addresses != [tensor.data_ptr() for tensor in self._read]:
            self._capture()
        copy(inputs, self._own)
        if self._graph is None:
            results = self._run(*self._own)
        else:
            self._graph.replay()
            results = self._results
        found = [result for result in results if result is not None]
        copies = [torch.empty_like(result) for result in found]
        copy(found, copies)
        copied = iter(copies)
        return [None if result is None else next(copied) for result in results]

    def _capture(self) -> None:
        self._graph, self._results = None, []
        self._addresses, self._captures = [tensor.data_ptr() for tensor in self._read], self._captures + 1
        if self._captures > MOST_CAPTURES:
            self._go_without(f"tensors that it reads have moved {MOST_CAPTURES} times")
            return
        random_numbers = _gpu.get_rng_state(self._device)
        before = [tensor.clone() for tensor in self._read]
        graph, side = _gpu.CUDAGraph(), _gpu.Stream(self._device)
        side.wait_stream(_gpu.current_stream(self._device))
        try:
            with torch.no_grad(), _gpu.device(self._device), _gpu.stream(side):
                for _ in range(WARM_UPS):
                    self._run(*self._own)
                copy(before, self._read)
                try:  # other threads, such as those that write summaries, may use the GPU meanwhile
                    with _gpu.graph(graph, stream=side, capture_error_mode="thread_local"):
                        self._results = self._run(*self._own)
                    self._graph = graph
                except Exception as error:
                    self._go_without(first_line(error))
        finally:
            _gpu.current_stream(self._device).wait_stream(side)
            _gpu.set_rng_state(random_numbers, self._device)

    def _go_without(self, why: str) -> None:
        self._graph, self._results = None, []
        warnings.warn(f"a program runs without a CUDA graph, which is slower: {why}", stacklevel=2)


def copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Copies tensors into others, in few kernels however many they are."""
    kinds: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for source, target in zip(sources, targets, strict=True):
        of_kind = kinds.setdefault(target.dtype, ([], []))
        of_kind[0].append(target)
        of_kind[1].append(source)
    for into, given in kinds.values():
        torch._foreach_copy_(into, given)


def tensors_read(graph: torch.fx.GraphModule) -> list[torch.Tensor]:
    """Returns the tensors that a traced graph reads besides its arguments."""
    found = (getattr(graph, str(node.target)) for node in graph.graph.nodes if node.op == "get_attr")
    return list({id(x): x for x in found if isinstance(x, torch.Tensor)}.values())


def places(graph: torch.fx.GraphModule) -> list[tuple[str, torch.device]]:
    """Returns name and device of each tensor that a traced graph reads or computes."""
    found = []
    for node in graph.graph.nodes:
        values = getattr(graph, str(node.target)) if node.op == "get_attr" else node.meta.get("val")
        for value in values if isinstance(values, (list, tuple)) else [values]:
            if isinstance(value, torch.Tensor):
                found.append((node.name, value.device))
    return found
