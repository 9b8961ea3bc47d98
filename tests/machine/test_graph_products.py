"""Matrix products of traced graphs: what is rewritten, what is not, and that results stay."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from taac.machine import graph_products, rows_product
from taac.machine.compiled import decompositions, trace
from tests.learning.test_compiled_update import updated

MM, BMM, ROWS = torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.taac.product_of_rows.default


@pytest.fixture(autouse=True)
def small_products_count(monkeypatch):
    monkeypatch.setattr(graph_products, "WORTH", 0)


@pytest.fixture
def kernel(monkeypatch):
    """The kernel for rows of zeros is there, and pays for products of any size."""
    monkeypatch.setattr(rows_product, "compiler_options", lambda: {"there": True})
    monkeypatch.setattr(graph_products, "LARGE", 0)


def products(graph):
    """Each product's operation, and the shape of its result."""
    found = [node for node in graph.graph.nodes if node.target in (MM, BMM, ROWS)]
    return [(node.target, tuple(node.meta["val"].shape)) for node in found]


def rewritten(fn, *args):
    """The products of a function's graph before and after; the results are the same in number and in memory order."""
    graph = make_fx(fn, tracing_mode="fake")(*args)
    before, expected = products(graph), fn(*args)
    graph_products.rewrite(graph)
    graph.graph.lint()
    found = graph(*args)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()
    assert [n for n in graph.graph.nodes if n.target in (MM, BMM, ROWS)]
    return before, products(graph)


def factors(rows, inner, columns, batch=()):
    torch.manual_seed(0)
    return torch.randn(*batch, rows, inner), torch.randn(*batch, inner, columns)


# Columns that nothing reads ----------------------------------------------------------------------------------------------


def test_columns_that_nothing_reads_are_not_computed():
    x, y = factors(100, 90, 80)
    assert rewritten(lambda x, y: [(x @ y)[:, 5:75].relu()], x, y) == ([(MM, (100, 80))], [(MM, (100, 70))])


def test_through_sums_and_views_as_in_the_gradient_of_the_critics_input():
    x, y = factors(12, 90, 80, batch=(2,))

    def gradient(x, y):
        q = torch.ops.aten.view(torch.bmm(x, y).sum(0, keepdim=True), [3, 4, 80])
        torch.ops.aten.slice(q, 2, 0, 10)  # the observation's, which nothing reads
        return [torch.ops.aten.slice(q, 2, 10, 80).relu()]

    assert rewritten(gradient, x, y) == ([(BMM, (2, 12, 80))], [(BMM, (2, 12, 70))])


def test_to_a_single_number():
    before, after = rewritten(lambda x, y: [torch.ops.aten.view(x @ y, [])], *factors(1, 30, 1))
    assert after == before


@pytest.mark.parametrize(
    "fn",
    [
        lambda z: [z],
        lambda z: [z[:, :70], z.sum()],
        lambda z: [z[:, :70], z[:, 10:]],
        lambda z: [z[:70]],
        lambda z: [z.view(50, 160)[:, :70]],
        lambda z: [z.sum(1, keepdim=True).expand(-1, 80)[:, :70].contiguous()],
        lambda z: [z.softmax(1)[:, :70]],
        lambda z: [z[:, ::2]],
        lambda z: [z[:, :]],
        lambda z: [z[:, :70], z[:, :70].sum(), z.t()],
        lambda z: [z[:, 5:5]],
        lambda z: [z[:, :70].as_strided((80, 70), (80, 1))],
        lambda z: [torch.ops.aten.sum.dim_IntList(z, [], True)[:, :1], torch.ops.aten.sum.dim_IntList(z, None)],
    ],
    ids=["all", "also all", "two parts", "rows", "other rows", "summed", "mixed", "every other", "all as a part", "turned",
         "none", "by place", "summed over all"],
)
def test_products_that_are_read_in_another_way_stay(fn):
    before, after = rewritten(lambda x, y: fn(x @ y), *factors(100, 90, 80))
    assert after == before == [(MM, (100, 80))]


# Few columns -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch, op", [((), MM), ((3,), BMM)])
def test_a_product_with_few_columns_is_computed_transposed(batch, op):
    x, y = factors(40, 30, 12, batch)
    before, after = rewritten(lambda x, y: [x @ y, (x @ y).view(-1)], x, y)
    assert before == [(op, (*batch, 40, 12))] * 2 and after == [(op, (*batch, 12, 40))] * 2


@pytest.mark.parametrize("rows, columns", [(23, 12), (400, 64), (40, 1)], ids=["few rows too", "wide", "one column"])
def test_other_products_are_not(rows, columns):
    before, after = rewritten(lambda x, y: [torch.mm(x, y)], *factors(rows, 30, columns))
    assert after == before


def test_neither_are_small_ones(monkeypatch):
    monkeypatch.setattr(graph_products, "WORTH", 40 * 30 * 12 + 1)
    before, after = rewritten(lambda x, y: [torch.mm(x, y)], *factors(40, 30, 12))
    assert after == before


def test_neither_are_those_of_other_numbers():
    x, y = (factor.double() for factor in factors(40, 30, 12))
    before, after = rewritten(lambda x, y: [torch.mm(x, y)[:, :3]], x, y)
    assert after == before


def test_few_columns_of_which_fewer_are_read():
    x, y = factors(40, 30, 12)
    assert rewritten(lambda x, y: [(x @ y)[:, 4:].contiguous()], x, y)[1] == [(MM, (8, 40))]


# Rows of zeros -----------------------------------------------------------------------------------------------------------


def of_minimum(x, hidden, w, least=True):
    """The gradient by x of the minimum, or the mean, of two critics with a hidden layer of ReLU."""
    x = x.detach().requires_grad_()
    q = torch.bmm(torch.relu(torch.bmm(x.expand(2, -1, -1), hidden)), w).view(2, -1)
    return [*torch.autograd.grad((q.amin(0) if least else q.mean(0)).sum(), x)]


@pytest.mark.parametrize("least, expected", [(True, ROWS), (False, BMM)])
def test_rows_are_left_out_of_the_gradient_of_a_minimum_alone(least, expected, kernel):
    args = torch.randn(80, 70), torch.randn(2, 70, 66), torch.randn(2, 66, 1)
    _, after = rewritten(lambda *args: of_minimum(*args, least=least), *args)
    assert [op for op, _ in after] == [BMM, BMM, BMM, expected]  # two layers, and the last one's gradient before


def test_rows_stay_where_there_is_no_kernel_and_where_products_are_small(monkeypatch, kernel):
    args = torch.randn(80, 70), torch.randn(2, 70, 66), torch.randn(2, 66, 1)
    with monkeypatch.context() as patch:
        patch.setattr(rows_product, "compiler_options", lambda: {})
        before, after = rewritten(lambda *args: of_minimum(*args), *args)
        assert after == before
    monkeypatch.setattr(graph_products, "LARGE", 80 * 70 * 66 + 1)
    before, after = rewritten(lambda *args: of_minimum(*args), *args)
    assert after == before


@pytest.mark.parametrize("method", ["sac", "taac"])
def test_an_update_has_one_such_product_and_computes_no_gradient_by_the_observation(method, kernel):
    trainer, _ = updated(method, updates=1)
    learner, batch = trainer.learner, trainer.replay_buffer.sample_batch(trainer.batch_size, trainer.segment_length)
    prepared = trainer.agent.prepare(batch.experience)
    graph, _ = trace(learner.differentiate, (prepared, ()), trainer.agent, decompositions(None))
    before = products(graph)
    graph_products.rewrite(graph)
    after = products(graph)
    assert [op for op, _ in before].count(ROWS) == 0 and [op for op, _ in after].count(ROWS) == 1
    critics, actions = trainer.agent.algorithm.critics.num_critics, trainer.agent.algorithm.action_size
    inputs = trainer.agent.algorithm.feature_size + actions
    by_input = BMM, (critics, prepared.time_step.reward.numel(), inputs)
    assert by_input in before and by_input not in after
