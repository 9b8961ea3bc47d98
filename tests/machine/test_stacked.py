"""A function of several modules by one program, against the function of each."""

from __future__ import annotations

import pytest
import torch

from taac.machine import stacked as stacked_module
from taac.machine.stacked import CannotStack, StackedFunction, StackedTensors
from tests.machine.test_compiled import Model, assert_same, batch, needs_compiler

N = 3


class Holder:
    """Holds a tensor, and is no module."""

    def __init__(self):
        self.factor = torch.randn(2)


def models(kind=Model):
    made = [kind() for _ in range(N)]
    for number, model in enumerate(made):
        model.scale.fill_(1.0 + number)
        model.holder = Holder()
    return made


def stacked(modules, call="differentiate", **more):
    return StackedFunction([getattr(m, call) for m in modules], StackedTensors(modules), **more)


@pytest.mark.parametrize("compiler", ["none", pytest.param("inductor", marks=needs_compiler)])
def test_each_gets_its_own_result_and_draws_its_own_numbers(compiler):
    modules = models()
    function = stacked(modules, compiler=compiler)
    for step in range(3):
        batches, handed, own = [batch() for _ in modules], {}, {}
        for number in (2, 0, 1):  # in any order
            torch.manual_seed(number)
            handed[number] = function.hand_in(number, batches[number])
            drawn = torch.get_rng_state()
            torch.manual_seed(number)
            own[number] = modules[number].differentiate(batches[number])
            assert torch.equal(drawn, torch.get_rng_state())  # as many draws
        found = function(handed)
        for number in range(N):
            assert_same(found[number], own[number])
        with torch.no_grad():  # what changes in place is seen
            for model in modules:
                model.actor.weight.sub_(0.1 * torch.ones_like(model.actor.weight))
                model.scale.add_(step)


def test_those_that_hand_in_nothing_change_nothing():
    modules = models()
    function = stacked(modules)
    handed = {number: function.hand_in(number, batch()) for number in range(N)}
    all_of_them = function(handed)
    del handed[1]
    some = function(handed)
    assert some.keys() == {0, 2}
    for number, result in some.items():
        for one, other in zip(result["gradients"], all_of_them[number]["gradients"]):
            assert (one is None and other is None) or torch.equal(one, other)


def test_parameters_stay_what_they_are_to_others():
    modules = models()
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.1) for m in modules]
    states = [{k: v.clone() for k, v in m.state_dict().items()} for m in modules]
    held = StackedTensors(modules)
    for model, state in zip(modules, states):
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    modules[1].load_state_dict(states[2])
    for p in modules[2].parameters():
        p.grad = torch.ones_like(p)
    optimizers[2].step()
    weights = held["actor.weight"]
    assert torch.equal(weights[1], states[2]["actor.weight"]) and torch.equal(weights[0], states[0]["actor.weight"])
    torch.testing.assert_close(weights[2], states[2]["actor.weight"] - 0.1, rtol=0, atol=1e-5)


def test_too_little_memory_for_the_stacked_batches_is_told_to_each(monkeypatch):
    modules = models()
    function = stacked(modules)
    handed = {number: function.hand_in(number, batch()) for number in range(N)}

    def full(*_):
        raise torch.OutOfMemoryError("out of memory")

    with monkeypatch.context() as patch, pytest.raises(CannotStack, match="out of memory"):
        patch.setattr(torch, "stack", full)
        function(handed)
    assert function(handed).keys() == {0, 1, 2}


class Reads(Model):
    """Reads a tensor of an object that is no module."""

    def differentiate(self, x):
        return self.actor(x) * self.holder.factor


def test_tensors_of_other_objects_are_each_modules_own():
    modules = models(Reads)
    function, x = stacked(modules), torch.randn(5, 3)
    found = function({number: function.hand_in(number, x) for number in range(N)})
    for number, model in enumerate(modules):
        torch.testing.assert_close(found[number], model.differentiate(x).detach())


class Chooses(Model):
    def differentiate(self, x):
        return torch.multinomial(x.softmax(-1), 1)


class Changes(Model):
    def differentiate(self, x):
        self.scale.view(1).add_(1.0)
        return x * self.scale


class Branches(Model):
    def differentiate(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    "kind, why", [(Chooses, "depend on what it computes"), (Changes, "in place"), (Branches, "traced as a whole")]
)
def test_what_cannot_be_stacked_is_refused_and_draws_and_changes_nothing(kind, why, monkeypatch):
    modules = models(kind)
    function, before = stacked(modules), torch.get_rng_state()
    with pytest.raises(ValueError, match=why):
        function.hand_in(0, torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(before, torch.get_rng_state()) and [float(m.scale) for m in modules] == [1.0, 2.0, 3.0]
    monkeypatch.setattr(stacked_module, "trace", None)  # what no module can do is not tried again
    with pytest.raises(ValueError, match=why):
        function.hand_in(1, torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))


class DrawsFirst(Model):
    """Begins with draws, one of them like a tensor whose memory has another order, and returns such a tensor."""

    def differentiate(self, x):
        return (torch.rand(3, 5) * torch.randn_like(x.t()) + torch.rand(3, 5) * self.scale).t()


def test_draws_are_those_of_each_alone_in_any_order_of_memory():
    modules, x = models(DrawsFirst), torch.randn(5, 3)
    function, handed, own = stacked(modules), {}, {}
    for number in range(N):
        torch.manual_seed(number)
        handed[number] = function.hand_in(number, x)
        torch.manual_seed(number)
        own[number] = modules[number].differentiate(x)
    for number, found in function(handed).items():
        torch.testing.assert_close(found, own[number])
        assert found.is_contiguous()  # as those who use a gradient beside its weight expect


def test_so_many_shapes_are_stacked_and_no_more(monkeypatch):
    monkeypatch.setattr(stacked_module, "MOST_PROGRAMS", 2)
    function = stacked(models(Reads))
    for size in (1, 2, 1):
        function.hand_in(0, torch.randn(size, 3))
    with pytest.raises(CannotStack, match="2 combinations of shapes"):
        function.hand_in(0, torch.randn(3, 3))


class Scales(Model):
    number = 2.0

    def differentiate(self, x):
        return x * self.number


def test_numbers_that_change_or_differ_are_refused():
    modules = models(Scales)
    for model in modules:
        model.number = 2.0
    function, x = stacked(modules), torch.ones(2)
    assert function({0: function.hand_in(0, x)})[0].tolist() == [2.0, 2.0]
    modules[1].number = 3.0
    with pytest.raises(CannotStack, match=r"Scales\.number has changed"):
        function.hand_in(1, x)
    with pytest.raises(CannotStack, match=r"Scales\.number is not the same"):
        stacked(modules).hand_in(1, x)
    with pytest.raises(CannotStack, match=r"actor\.weight.* not of one shape"):
        StackedTensors([Model(), Narrow()])


class Narrow(Model):
    def __init__(self):
        super().__init__()
        self.actor = torch.nn.Linear(4, 2)


def test_multiplications_are_counted_and_limited():
    modules = models(Reads)
    function = stacked(modules)
    function.hand_in(0, torch.randn(5, 3))
    assert function.multiplications == 5 * 3 * 2
    stacked(modules, most_products=30).hand_in(0, torch.randn(5, 3))
    with pytest.raises(CannotStack, match="not faster"):
        stacked(modules, most_products=29).hand_in(0, torch.randn(5, 3))


class Convolves(torch.nn.Module):
    """Two convolutions of one image `[1, 2, 5, 5]`, to `[1, 3, 4, 4]` and `[1, 4, 2, 2]`."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Conv2d(2, 3, 2), torch.nn.Conv2d(3, 4, 2, 2)

    def differentiate(self, x):
        return list(torch.autograd.grad(self.second(self.first(x)).square().sum(), list(self.parameters())))


def test_multiplications_of_convolutions_are_counted():
    """First: 48 results of kernels of 8 numbers; second: 16 of 12. Backwards again, for both weights and the second's input."""
    modules = [Convolves() for _ in range(N)]
    function, x = stacked(modules), torch.randn(1, 2, 5, 5)
    function.hand_in(0, x)
    assert function.multiplications == 2 * 48 * 8 + 3 * 16 * 12
    found = function({number: function.hand_in(number, x) for number in range(N)})
    for number, module in enumerate(modules):
        torch.testing.assert_close(found[number], module.differentiate(x), rtol=1e-4, atol=1e-5)
