"""Rewrites the float32 matrix products of a traced graph, so that they take less time on the CPU.

Results change by their rounding alone:

- Columns that nothing reads are not computed. An example is the gradient of the critics' input by the observation, where only
  that by the action is needed.
- Rows of zeros are left out of the gradient of the critics' minimum, where each row comes from one of the critics alone.
- `x y` with few columns is computed as `(y^T x^T)^T`, because libraries take up to four times as long for few columns as for
  few rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from taac.machine import rows_product

_aten = torch.ops.aten
_PRODUCTS = (_aten.mm.default, _aten.bmm.default)
NARROW = 64  # columns, below which a product is transposed,
WORTH = 300_000  # if it takes so many multiplications
LARGE = 2**23  # multiplications of one product of a batch, from which on rows of zeros are left out


def rewrite(module: GraphModule) -> None:
    """Rewrites the products of a graph in place.

    Args:
        module: traced by `make_fx`, so that the `meta["val"]` of each node has the shape of its result.
    """
    for step in (_leave_out_unread_columns, _leave_out_zero_rows, _transpose):
        for node in [*module.graph.nodes]:
            if node.target in _PRODUCTS and _value(node).dtype == torch.float32 and _value(node).device.type == "cpu":
                step(node)
    module.recompile()


# Columns that nothing reads ----------------------------------------------------------------------------------------------


def _leave_out_unread_columns(product: Node) -> None:
    """Computes only those columns of a product that are read, if its readers all read the same."""
    readers = _column_by_column(product)
    slices = [node for node in readers if _is_slice_of_columns(node)]
    read = {_bounds(node) for node in slices if node.users}
    if len(read) != 1:
        return
    ((start, stop),) = read
    if not 0 < stop - start < _value(product).shape[-1]:
        return
    (x, y), copies = _factors(product), {}
    with product.graph.inserting_before(product):
        few = _add(product, _aten.slice.Tensor, y, _value(y).dim() - 1, start, stop)
        copies[product] = _add(product, product.target, x, few)
    for node in readers:
        source, *rest = _arguments(node)
        if node in slices:
            node.replace_all_uses_with(copies[source])
            continue
        if node.target is _aten.view.default:
            rest = [[*_value(node).shape[:-1], stop - start]]
        with product.graph.inserting_before(node):
            copies[node] = _add(product, node.target, copies[source], *rest)
    for node in (*reversed(readers), product):
        product.graph.erase_node(node)


def _column_by_column(product: Node) -> list[Node]:
    """Returns the nodes that follow a product up to slices of its columns, in order; empty if it is read in another way.

    In those before the slices, each column depends on the same column of what came before.
    """
    columns, waiting = _value(product).shape[-1], [*product.users]
    found: set[Node] = set()
    while waiting:
        node = waiting.pop()
        found.add(node)
        if _is_slice_of_columns(node):
            continue
        if not _keeps_columns(node) or _value(node).shape[-1:] != (columns,) or not node.users or node.kwargs:
            return []
        waiting += node.users
    return [node for node in product.graph.nodes if node in found]


def _keeps_columns(node: Node) -> bool:
    if node.target is _aten.sum.dim_IntList:
        source, dims, *_ = _arguments(node)
        return bool(dims) and -1 not in dims and _value(source).dim() - 1 not in dims  # no dims: all of them
    return node.target is _aten.view.default


def _is_slice_of_columns(node: Node) -> bool:
    if node.target is not _aten.slice.Tensor or len(node.args) != 4:
        return False
    source, dim, *_ = _arguments(node)
    named = any(user.target is _aten.as_strided.default for user in node.users)  # by its place in memory, which would change
    return dim in (-1, _value(source).dim() - 1) and not named


def _bounds(node: Node) -> tuple[int, int]:
    """Returns the columns from the first to before the last that a slice takes."""
    source, _, start, stop = _arguments(node)
    start, stop, _ = slice(start, stop).indices(_value(source).shape[-1])
    return start, stop


# Rows of zeros -----------------------------------------------------------------------------------------------------------


def _leave_out_zero_rows(product: Node) -> None:
    """Leaves out rows of zeros if a product is `(relu'(h) * u v^T) y`, and u is 0 for critics that are not the minimum."""
    x, y = _factors(product)
    if product.target is not _aten.bmm.default or _value(x).shape[1:].numel() * _value(y).shape[-1] < LARGE:
        return
    outer = _arguments(x)[0] if x.target is _aten.threshold_backward.default else None
    if outer is None or outer.target is not _aten.bmm.default:
        return
    u, _ = _factors(outer)
    if _value(u).shape[-1] != 1 or not _follows_from_minimum(u) or not rows_product.compiler_options():
        return
    with product.graph.inserting_before(product):
        _replace(product, _add(product, torch.ops.taac.product_of_rows.default, x, y))


def _follows_from_minimum(node: Node) -> bool:
    """Returns whether a node has a factor that compares values with their minimum, as the gradient of `amin` does."""
    if node.target is _aten.eq.Tensor:
        return any(_origin(factor).target is _aten.amin.default for factor in node.all_input_nodes)
    passed = node.target in (_aten.view.default, _aten.mul.Tensor)
    return passed and any(_follows_from_minimum(factor) for factor in node.all_input_nodes)


def _origin(node: Node) -> Node:
    """Returns the node that a node is a view of."""
    while node.target in (_aten.view.default, _aten.detach.default):
        node = node.all_input_nodes[0]
    return node


# Few columns -------------------------------------------------------------------------------------------------------------


def _transpose(product: Node) -> None:
    """Computes a product with few columns and more rows from its transposed factors."""
    rows, columns = _value(product).shape[-2:]
    x, y = _factors(product)
    inner = _value(x).shape[-1]
    if not 1 < columns < NARROW or rows < 2 * columns or inner == 1 or rows * inner * columns < WORTH:
        return
    with product.graph.inserting_before(product):
        x, y = (_add(product, _aten.transpose.int, factor, -2, -1) for factor in (x, y))
        back = _add(product, _aten.transpose.int, _add(product, product.target, y, x), -2, -1)
        # In the memory order of the product that it replaces, which its readers may rely on.
        _replace(product, _add(product, _aten.clone.default, back, memory_format=torch.contiguous_format))


# Nodes -------------------------------------------------------------------------------------------------------------------


def _arguments(node: Node) -> Any:
    return node.args


def _factors(product: Node) -> tuple[Node, Node]:
    x, y = _arguments(product)
    return x, y


def _value(node: Any) -> torch.Tensor:
    return node.meta["val"]


def _add(near: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """Adds an operation to the graph of `near`, with the shape of its result."""
    node = near.graph.call_function(target, args, kwargs)
    with torch.no_grad():
        node.meta["val"] = target(*(_value(arg) if isinstance(arg, Node) else arg for arg in args), **kwargs)
    return node


def _replace(node: Node, other: Node) -> None:
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)
