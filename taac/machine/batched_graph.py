"""Changes a traced graph into one of several modules: what it reads and draws becomes inputs, and all gets one more dimension."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from taac.errors import TaacError
from taac.machine.compiled import first_line

# Draws whose numbers depend on nothing but the generator. Of a tensor among their arguments only the shape counts.
DRAWS = ("aten::rand", "aten::randn", "aten::randint", "aten::rand_like", "aten::randn_like", "aten::randint_like")
_aten = torch.ops.aten


class CannotStack(TaacError):
    """A function cannot be computed for several modules at once. The message says why."""


class Draw(NamedTuple):
    """A random draw that was an operation of the graph."""

    operation: Callable[..., torch.Tensor]
    args: tuple[Any, ...]  # with tensors of the shapes that the operation had
    kwargs: dict[str, Any]
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def __call__(self) -> torch.Tensor:
        return self.operation(*self.args, **self.kwargs)

    def like(self) -> torch.Tensor:
        """Returns a tensor like what is drawn, without drawing."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def lift(graph: torch.fx.GraphModule, owned: Mapping[int, str]) -> tuple[list[str], list[Draw]]:
    """Turns the module's tensors that a graph reads, and its draws, into inputs: tensors first, draws last.

    Args:
        graph: is changed.
        owned: names of the module's tensors by their id.

    Returns:
        The names of the tensors, and the draws, each in the order of the new inputs.
    """
    nodes = graph.graph
    first = next(iter(nodes.nodes))
    tensors: dict[str, torch.fx.Node] = {}
    draws: list[Draw] = []
    after = next(node for node in nodes.nodes if node.op != "placeholder")
    for node in list(nodes.nodes):
        name = owned.get(id(getattr(graph, node.target))) if node.op == "get_attr" else None
        if name is not None:
            if name not in tensors:
                with nodes.inserting_before(first):
                    tensors[name] = nodes.placeholder(f"held_{len(tensors)}")
                tensors[name].meta = dict(node.meta)
            node.replace_all_uses_with(tensors[name])
            nodes.erase_node(node)
        elif _is_random(node):
            draws.append(_draw_of(node))
            with nodes.inserting_before(after):
                drawn = nodes.placeholder(f"draw_{len(draws)}")
            drawn.meta = dict(node.meta)
            node.replace_all_uses_with(drawn)
            if node is after:
                after = node.next
            nodes.erase_node(node)
    for node in nodes.nodes:
        if _changes(node) in tensors.values():
            raise CannotStack(f"it changes a tensor of the module in place ({node.target})")
    nodes.eliminate_dead_code()
    graph.recompile()
    return list(tensors), draws


def _is_random(node: torch.fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded in tags


def _draw_of(node: torch.fx.Node) -> Draw:
    """Returns a draw that can be made before the graph runs.

    Raises:
        CannotStack: its numbers depend on what the graph computes.
    """
    operation: Any = node.target
    if operation._schema.name not in DRAWS:
        raise CannotStack(f"its random numbers depend on what it computes ({operation})")
    made = [_like(a.meta["val"]) if isinstance(a, torch.fx.Node) else a for a in node.args]
    kwargs = {k: v for k, v in node.kwargs.items() if k != "pin_memory"}
    value = node.meta["val"]
    return Draw(operation, tuple(made), kwargs, value.shape, value.dtype, value.device)


def _like(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)


def _changes(node: torch.fx.Node) -> torch.fx.Node | None:
    """Returns the node whose memory an operation writes to, found through views; None if it writes to none."""
    if node.op != "call_function" or not getattr(getattr(node.target, "_schema", None), "is_mutable", False):
        return None
    written: Any = node.args[0]
    while isinstance(written, torch.fx.Node) and written.op == "call_function":
        arguments = written.target._schema.arguments if hasattr(written.target, "_schema") else ()
        if not arguments or arguments[0].alias_info is None:
            return written
        written = written.args[0]
    return written


def add_dimension(
    graph: torch.fx.GraphModule, inputs: list[torch.Tensor], into: dict[Any, Callable[..., Any]]
) -> torch.fx.GraphModule:
    """Returns the graph with one more dimension, the first, in all inputs and results. Leaves out results that are None."""

    def single(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(result for result in graph(*inputs) if result is not None)

    def stacked(*inputs: torch.Tensor) -> list[torch.Tensor]:
        return [result.contiguous() for result in torch.func.vmap(single)(*inputs)]

    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("error")  # of an operation that vmap would take in turn
            return make_fx(stacked, into, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    except Exception as error:
        raise CannotStack(f"it has an operation that cannot be batched: {first_line(error)}") from error


def count_multiplications(graph: torch.fx.GraphModule) -> int:
    """Counts the multiplications of a graph's matrix products and convolutions."""
    return sum(_multiplications(node) for node in graph.graph.nodes)


def _multiplications(node: torch.fx.Node) -> int:
    args: Any = node.args
    if node.target in (_aten.mm.default, _aten.bmm.default):
        return node.meta["val"].numel() * args[0].meta["val"].shape[-1]
    if node.target is _aten.convolution.default:  # each number of the result is a sum over a kernel
        return node.meta["val"].numel() * args[1].meta["val"][0].numel()
    if node.target is _aten.convolution_backward.default:  # of the result's gradient, for input and weight as the mask says
        wanted = sum(args[-1][:2])
        return wanted * args[0].meta["val"].numel() * args[2].meta["val"][0].numel()
    return 0
