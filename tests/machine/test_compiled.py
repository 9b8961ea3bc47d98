"""The compiled function against the function itself."""

from __future__ import annotations

import os
import shutil
import signal
import warnings

import pytest
import torch

from taac.errors import TaacError
from taac.machine import compiled
from taac.machine.compiled import CompiledFunction, check_compiler, decompositions, trace
from taac.machine.processes import INTERRUPTIONS

# "none" runs what was traced as it is; "inductor" is what compiles. Both are tested, the first with more.
needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="there is no C++ compiler here"
)


class Model(torch.nn.Module):
    """What an update has: layers, noise, and a gradient in the middle of a forward pass."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)
        self.register_buffer("scale", torch.tensor(2.0))
        self.unused = torch.nn.Parameter(torch.zeros(1))

    def differentiate(self, batch):
        (x, (y,)), noise = batch["x"], torch.randn(4, 2)
        action = torch.relu(self.actor(x)) + noise
        (slope,) = torch.autograd.grad(self.critic(action).tanh().sum(), action)
        loss = (action * slope).sum() + self.scale * (self.critic(action.detach()) - y).square().mean()
        gradients = torch.autograd.grad(loss, list(self.parameters()), allow_unused=True)
        return {"loss": (loss.detach(), ()), "gradients": list(gradients), "none": None}


def batch(rows=4):
    return {"x": (torch.randn(rows, 3), [torch.randn(rows, 1)])}


def assert_same(found, expected):
    assert found.keys() == expected.keys() and found["none"] is None and found["loss"][1] == ()
    torch.testing.assert_close(found["loss"][0], expected["loss"][0])
    assert [g is None for g in found["gradients"]] == [g is None for g in expected["gradients"]]
    assert sum(g is None for g in found["gradients"]) == 1
    for one, other in zip(found["gradients"], expected["gradients"]):
        if other is not None:
            torch.testing.assert_close(one, other)
            assert not one.requires_grad


@pytest.mark.parametrize("compiler", ["none", pytest.param("inductor", marks=needs_compiler)])
def test_the_same_numbers_the_same_noise_and_what_changed_in_place(compiler, request):
    if compiler == "none":
        request.getfixturevalue("traced_only")
    torch.manual_seed(0)
    model = Model()
    program = CompiledFunction(model.differentiate, model)
    for _ in range(4):
        given, state = batch(), torch.get_rng_state()
        found, after = program(given), torch.get_rng_state()
        torch.set_rng_state(state)
        expected = model.differentiate(given)
        assert_same(found, expected)
        assert torch.equal(after, torch.get_rng_state())  # the first call, which traces, draws no more than the others
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
            model.scale.mul_(1.5)


@pytest.mark.slow
@needs_compiler
def test_compiled_products_are_rounded_to_bfloat16_where_they_are_said_to_be():
    """As without the compiler: nearer to it by far than that is to float32."""
    torch.manual_seed(0)
    x, weight = torch.randn(32, 64), torch.randn(64, 16)

    def product(x, weight):
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ weight).float()

    exact, plain, found = x @ weight, product(x, weight), CompiledFunction(product, torch.nn.Module())(x, weight)
    assert 0 < (plain - exact).norm() < 0.05 * exact.norm()
    assert (found - plain).norm() < 0.3 * (plain - exact).norm()


def test_another_shape_is_another_program(traced_only):
    model = Model()

    def means(x):
        return model.actor(x).mean(0)

    program = CompiledFunction(means, model)
    for rows in (2, 5, 2):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(program(x), means(x).detach())
    assert len(program._programs) == 2


def test_another_kind_of_number_is_another_program(traced_only):
    def half(x):
        return x / 2 if x.is_floating_point() else x // 2

    program = CompiledFunction(half, torch.nn.Module())
    for x, expected in ((torch.ones(1), 0.5), (torch.ones(1, dtype=torch.int64), 0), (torch.ones(1), 0.5)):
        assert program(x) == expected


def test_a_buffer_that_it_moves_moves_once_a_call(traced_only):
    model = torch.nn.BatchNorm1d(3)
    program = CompiledFunction(model, model)
    other = torch.nn.BatchNorm1d(3)
    for calls in (1, 2, 3):
        x = torch.randn(5, 3) + 1
        torch.testing.assert_close(program(x), other(x).detach())
        torch.testing.assert_close(model.running_mean, other.running_mean)
        assert model.num_batches_tracked == calls


def test_where_compiling_fails_an_optional_function_is_called_itself(monkeypatch):
    def failing(*_):
        raise IndexError("none left")

    monkeypatch.setattr(compiled, "compile_graph", failing)
    with pytest.raises(TaacError, match=r"could not be compiled: IndexError: none left.*compile = False"):
        CompiledFunction(lambda x: x + 1, torch.nn.Module())(torch.ones(2))
    with pytest.raises(TaacError, match=r"compile needs a C\+\+ compiler that torch can use .*none left"):
        check_compiler(torch.device("cpu"))
    optional = CompiledFunction(lambda x: x + 1, torch.nn.Module(), optional=True)
    with pytest.warns(UserWarning, match="not compiled"):
        assert torch.equal(optional(torch.ones(2)), torch.full((2,), 2.0))


def test_a_product_keeps_factors_of_its_bias(traced_only):
    """`addmm` and `baddbmm` are taken apart only where they are plain."""

    def scaled(x):
        return (
            torch.addmm(x, x, x, beta=2, alpha=3), torch.addmm(x, x, x, alpha=3),
            torch.baddbmm(x[None], x[None], x[None], beta=0.5, alpha=-1), torch.baddbmm(x[None], x[None], x[None], alpha=-1),
        )  # fmt: skip

    x = torch.randn(3, 3)
    found = CompiledFunction(scaled, torch.nn.Module())(x)
    torch.testing.assert_close(found, (2 * x + 3 * x @ x, x + 3 * x @ x, (0.5 * x - x @ x)[None], (x - x @ x)[None]))


def test_the_compiler_leaves_the_bias_out_of_the_product():
    """An `addmm` would first copy the bias into each row of its result. The compiler's own rules make one of `bias + mm`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from torch's own code, at its first import
        from torch._inductor.fx_passes.post_grad import post_grad_passes
        from torch._inductor.virtualized import V

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    x = torch.randn(5, 3)
    graph, _ = trace(model, (x,), model, decompositions(None))
    torch.testing.assert_close(graph(x)[0], model(x))
    (product, *_) = (node for node in graph.graph.nodes if node.target is torch.ops.aten.mm.default)
    with V.set_fake_mode(product.meta["val"].fake_mode):
        post_grad_passes(graph, is_inference=True)
    called = [node.target for node in graph.graph.nodes]
    assert called.count(torch.ops.aten.mm.default) == 2 and torch.ops.aten.addmm.default not in called


def test_interruptions_wait_while_it_compiles(monkeypatch):
    held = []

    def compiling(graph, *_, **__):
        held.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return graph

    import torch._inductor

    monkeypatch.setattr(torch._inductor, "compile", compiling)
    CompiledFunction(lambda x: x + 1, torch.nn.Module())(torch.ones(2))
    assert held == [set(INTERRUPTIONS)] and not signal.pthread_sigmask(signal.SIG_BLOCK, ())


# --- What changes between calls ----------------------------------------------------------------------


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.limit, self.held = 2.0, None, Held()

    def forward(self, x):
        y = x * self.scale + self.held.offset
        return y if self.limit is None else y.clamp(max=self.limit)


class Held:
    offset = 1.0

    def __init__(self):
        self.offset = 0.5


def program(module, **options):
    return CompiledFunction(module.forward, module, **options)


def test_an_attribute_that_changes_is_read_again(traced_only):
    module, x = Scaled(), torch.tensor([3.0])
    compiled = program(module)
    assert compiled(x).item() == 6.5 and compiled(x).item() == 6.5 and compiled.retraced == 0
    module.scale = 3.0
    assert compiled(x).item() == 9.5 and compiled.retraced == 1
    module.scale = float("3")  # equal, in another object
    assert compiled(x).item() == 9.5 and compiled.retraced == 1
    module.limit = 4.0
    assert compiled(x).item() == 4.0
    module.limit, module.held.offset = None, -1.0
    assert compiled(x).item() == 8.0
    module.held = Held()
    assert compiled(x).item() == 9.5
    module.remembered = [1]  # a list that appears is no value to compute with
    retraced = compiled.retraced
    assert compiled(x).item() == 9.5 and compiled.retraced == retraced


def test_what_changes_at_every_call_is_refused_or_not_compiled(traced_only):
    x = torch.tensor([1.0])

    def count(compiled, module):
        for _ in range(20):
            module.scale += 1.0
            result = compiled(x).item()
        return result

    module = Scaled()
    with pytest.raises(TaacError, match=r"Scaled\.scale has changed 9 times.*create_agent.compile = False"):
        count(program(module), module)
    module = Scaled()
    with pytest.warns(UserWarning, match=r"not compiled, which is slower: Scaled\.scale"):
        assert count(program(module, optional=True), module) == 22.5


def test_what_cannot_be_traced_runs_uncompiled_if_it_may(traced_only):
    class Branching(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    compiled, x = program(Branching(), optional=True), torch.ones(2)
    with pytest.warns(UserWarning, match="cannot be traced"):
        assert compiled(x).tolist() == [2.0, 2.0]
    assert compiled(-x).tolist() == [-2.0, -2.0]  # said once
    assert compiled.failed
    with pytest.raises(TaacError, match=r"forward cannot be traced as a whole: .*create_agent.compile = False"):
        program(Branching())(x)


@pytest.mark.parametrize("device, fixed", [("cpu", False), ("meta", True)])
def test_programs_of_a_gpu_are_not_chosen_by_their_times(device, fixed, monkeypatch):
    import torch._inductor.config

    given = []
    monkeypatch.setattr(torch._inductor, "compile", lambda graph, leaves, options: given.append(options) or graph)
    compiled.compile_graph(torch.nn.Identity(), [torch.zeros(2, device=device)], None)
    assert ("deterministic" in given[0]) == (fixed and hasattr(torch._inductor.config, "deterministic"))
