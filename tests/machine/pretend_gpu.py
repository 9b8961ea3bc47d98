"""A pretended GPU: tensors that say "cuda:0" and have their numbers in memory, so that whole runs train on a GPU without one.

As on a GPU, an operation refuses tensors of two devices, numpy reads no tensor, and random numbers have a generator of their own.
Kernels, streams and graphs are not pretended, nor what torch itself does otherwise on a GPU.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

_aten = torch.ops.aten
HERE, MEMORY = torch.device("cuda:0"), torch.device("cpu")
COPIES = (_aten.copy_.default, _aten._foreach_copy_.default)
INDEXES = (_aten.index.Tensor, _aten.index_put_.default, _aten._index_put_impl_.default)
# Kernels that take no number of the CPU beside tensors of the GPU, as elementwise ones do.
STRICT = (
    "cat",
    "stack",
    "foreach",
    "fused",
    "mm",
    "linear",
    "conv",
    "index_select",
    "gather",
    "scatter",
    "searchsorted",
    "lerp",
)
# They make tensors where their first one is, and autograd takes that to be on the CPU.
MAKES = (torch.nn.functional.one_hot, torch.Tensor.new_tensor)


class OnGpu(torch.Tensor):
    """A tensor on the pretended GPU."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype
        )

    def __init__(self, held):
        self.held = held

    device = property(lambda self: HERE)
    is_cpu, is_cuda = property(lambda self: False), property(lambda self: True)

    def cpu(self):
        return self.to(MEMORY)

    def tolist(self):
        return self.held.tolist()

    def numpy(self):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy

    @property
    def data(self):
        return OnGpu(self.held.detach())

    @data.setter
    def data(self, other):
        self.held = other.held

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            copied = self.detach().clone()
            is_parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(copied, self.requires_grad) if is_parameter else copied
        return memo[id(self)]

    def __repr__(self, **_):
        return f"OnGpu({self.held})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


def computed(func, args, kwargs):
    """Returns the results of an operation, on the device where they would be."""
    given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    asked = kwargs.get("device")
    here = any(isinstance(x, OnGpu) for x in given) if asked is None else asked.type == "cuda"
    here = here or (not given and torch._C._current_graph_task_id() >= 0)  # zeros that a backward pass makes
    if not here and not any(isinstance(x, OnGpu) for x in given):
        return func(*args, **kwargs)
    check(func, args, given)
    if func in COPIES:
        here = isinstance(tree_leaves(args[0])[0], OnGpu)
    if asked is not None:
        kwargs = {**kwargs, "device": MEMORY}
    with drawing_here() if here and torch.Tag.nondeterministic_seeded in func.tags else contextlib.nullcontext():
        result = func(*tree_map(plain, args), **tree_map(plain, kwargs))
    known = {id(plain(x)): x for x in given}
    return tree_map(lambda x: known.get(id(x), OnGpu(x) if here else x) if isinstance(x, torch.Tensor) else x, result)


def plain(x):
    return x.held if isinstance(x, OnGpu) else x


def check(func, args, given):
    """Raises what torch would, if an operation cannot compute with tensors of these devices."""
    others = [x for x in given if not isinstance(x, OnGpu)]
    if not others or len(others) == len(given) or func in COPIES:
        return
    changes = func._schema.is_mutable and not isinstance(tree_leaves(args[0])[0], OnGpu)
    if func in INDEXES and not changes:  # indices may be on the CPU
        others = [x for x in args[2:] if isinstance(x, torch.Tensor) and not isinstance(x, OnGpu)]
    strict = any(name in str(func) for name in STRICT)
    if changes or any(x.dim() or strict for x in others):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found cuda:0 and cpu! ({func})")


def moved(tensor, *args, **kwargs):
    """`Tensor.to`."""
    copy = kwargs.pop("copy", False)
    if args and isinstance(args[0], torch.Tensor):
        where, dtype, waits = args[0].device, args[0].dtype, True
    else:
        where, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        waits = not non_blocking
    before, dtype = tensor.device.type, dtype or tensor.dtype
    after = before if where is None else where.type
    if (after, dtype) == (before, tensor.dtype) and not copy:
        return tensor
    assert waits or after == "cuda", "numbers in memory would be read before they have arrived"
    return _aten._to_copy.default(tensor, dtype=dtype, device=torch.device(after))


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return computed(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        if torch.is_inference_mode_enabled():  # in which torch makes no such tensors
            with torch.inference_mode(False), torch.no_grad():
                return self.call(func, args, kwargs or {})
        return self.call(func, args, kwargs or {})

    @staticmethod
    def call(func, args, kwargs):
        if func is torch.Tensor.to:
            return moved(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            where, rest = kwargs["device"], {k: v for k, v in kwargs.items() if k != "device"}
            made = args[0] if isinstance(args[0], torch.Tensor) else func(*args, **rest)
            return moved(made, where, rest.get("dtype") or made.dtype)
        if func in MAKES and isinstance(args[0], OnGpu):
            return OnGpu(func(args[0].held, *args[1:], **kwargs))
        return func(*args, **kwargs)


# Random numbers ------------------------------------------------------------------------------------------------------

_state = torch.Generator().get_state()  # of the GPU's generator


@contextlib.contextmanager
def drawing_here():
    """A context in which torch draws the GPU's random numbers."""
    global _state
    before = torch.get_rng_state()
    torch.set_rng_state(_state)
    yield
    _state = torch.get_rng_state()
    torch.set_rng_state(before)


def get_rng_state(device):
    return _state.clone()


def set_rng_state(state, device):
    global _state
    assert not isinstance(state, OnGpu)
    _state = state.clone()


def manual_seed_all(seed):
    set_rng_state(torch.Generator().manual_seed(seed + 1).get_state(), HERE)


@contextlib.contextmanager
def pretended():
    """A context in which torch finds a GPU."""
    with pytest.MonkeyPatch.context() as patch, Operations(), Functions():
        for function in (get_rng_state, set_rng_state, manual_seed_all):
            patch.setattr(torch.cuda, function.__name__, function)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 2)  # of which one is used
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 34, 1 << 34))
        patch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
        yield
