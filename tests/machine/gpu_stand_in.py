"""A stand-in for what `taac.machine.cuda_graphs` uses of `torch.cuda`, on the CPU.

A capture records the operations of torch, with the tensors and numbers that they were called with. A replay calls them again and
writes their results where the recorded ones are. As on a GPU, a capture computes nothing, changes nothing and draws nothing, may
not read a number, and numbers of Python are what they were when it was recorded.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from taac.machine import cuda_graphs

_aten = torch.ops.aten
READS = (_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.equal.default)


def tensors(*values):
    return [x for x in tree_leaves(values) if isinstance(x, torch.Tensor)]


def memory(tensor):
    return tensor.untyped_storage().data_ptr()


class Recording(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operations, self.before = [], {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in READS:
            raise RuntimeError("operation not permitted when stream is capturing\nand more lines")
        given = tensors(args, kwargs)
        if func._schema.is_mutable:
            for tensor in given:
                self.before.setdefault(id(tensor), (tensor, tensor.clone()))
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result


class CUDAGraph:
    made = 0
    replays = 0

    def __init__(self):
        type(self).made += 1

    def replay(self):
        type(self).replays += 1
        for func, args, kwargs, recorded in self.operations:
            known = {memory(tensor) for tensor in tensors(args, kwargs)}
            for old, new in zip(tensors(recorded), tensors(func(*args, **kwargs)), strict=True):
                if memory(old) not in known and old.numel():
                    old.copy_(new)


@contextlib.contextmanager
def graph(cuda_graph, stream, capture_error_mode):
    assert StandIn.now is stream and capture_error_mode == "thread_local"
    random_numbers, recording = torch.get_rng_state(), Recording()
    try:
        with recording:
            yield
    finally:
        torch.set_rng_state(random_numbers)
        for tensor, before in recording.before.values():
            tensor.copy_(before)
    changed = {memory(tensor) for tensor, _ in recording.before.values()}
    for _, args, kwargs, result in recording.operations:
        for tensor in tensors(result):
            if memory(tensor) not in {*changed, *(memory(t) for t in tensors(args, kwargs))} and tensor._base is None:
                tensor.fill_(torch.nan if tensor.is_floating_point() else 0)
    cuda_graph.operations = recording.operations


class Stream:
    def __init__(self, device=None):
        self.waited_for = []

    def wait_stream(self, other):
        self.waited_for.append(other)


class StandIn:
    main = now = Stream()
    CUDAGraph, Stream, graph = CUDAGraph, Stream, staticmethod(graph)

    @staticmethod
    @contextlib.contextmanager
    def stream(stream):
        before, StandIn.now = StandIn.now, stream
        assert stream.waited_for == [before]
        yield
        StandIn.now = before

    @staticmethod
    def current_stream(device):
        return StandIn.now

    @staticmethod
    def device(device):
        return contextlib.nullcontext()

    @staticmethod
    def get_rng_state(device):
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state, device):
        torch.set_rng_state(state)


@pytest.fixture
def stand_in(monkeypatch):
    """All tensors count as being on a GPU."""
    monkeypatch.setattr(cuda_graphs, "_gpu", StandIn)
    monkeypatch.setattr(cuda_graphs, "on_gpu", lambda tensors: True)
    monkeypatch.setattr(StandIn, "main", Stream())
    monkeypatch.setattr(StandIn, "now", StandIn.main)
    monkeypatch.setattr(CUDAGraph, "made", 0)
    monkeypatch.setattr(CUDAGraph, "replays", 0)
    return StandIn
