"""Products on AMX: as near to the exact ones as their parts allow, of what is given and nothing beside it."""

from __future__ import annotations

import subprocess

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taac.errors import TaacError
from taac.machine import amx
from taac.machine.compiled import CompiledFunction

NO_AMX = amx.reason_unavailable()
needs_amx = pytest.mark.skipif(NO_AMX is not None, reason=f"no products on AMX here: {NO_AMX}")
# Of what the parts leave out, relative to the sum of |x| |y|: halves of 2^-8, 2^-16 and 2^-24 for each factor and a margin.
BOUNDS = {1: 2.0**-7, 2: 2.0**-15, 3: 2.0**-23}


def summing(inner):
    """Of what is lost by summing so many products in float32, relative to the same; ten times what is usual."""
    return 2.0**-22 * inner**0.5


def matrix(batch, rows, columns, transposed, dtype=torch.float32):
    """In a larger one whose other numbers are no numbers, so that to read one of them would show."""
    around = torch.full((batch + 1, rows + 3, columns + 5), float("nan"), dtype=dtype)
    inside = around[1:, 2 : rows + 2, 4 : columns + 4]
    inside.copy_(torch.randn(batch, rows, columns) * 10 ** torch.randn(batch, rows, columns))
    if not transposed:
        return inside
    stored = torch.full((batch + 1, columns + 5, rows + 3), float("nan"), dtype=dtype)
    stored[1:, 4 : columns + 4, 2 : rows + 2] = inside.transpose(1, 2)
    return stored[1:, 4 : columns + 4, 2 : rows + 2].transpose(1, 2)


sizes = st.one_of(st.integers(1, 70), st.sampled_from([16, 32, 64, 128, 129, 300]))


@needs_amx
@settings(deadline=None, max_examples=80)
@given(st.integers(1, 3), sizes, sizes, sizes, st.booleans(), st.booleans(), st.integers(1, 3))
def test_errors_are_within_what_the_parts_leave_out(batch, rows, inner, columns, x_transposed, y_transposed, parts):
    x, y = matrix(batch, rows, inner, x_transposed), matrix(batch, inner, columns, y_transposed)
    found, exact = amx.amx_product(x, y, parts), x.double() @ y.double()
    assert found.shape == exact.shape and found.is_contiguous() and found.dtype == torch.float32
    assert ((found - exact).abs() <= (BOUNDS[parts] + summing(inner)) * (x.double().abs() @ y.double().abs())).all()
    assert torch.equal(amx.amx_product(x[0], y[0], parts), found[0])  # one of them alone


@needs_amx
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3), sizes, sizes, sizes, st.booleans(), st.booleans())
def test_bfloat16_factors_are_summed_in_float32(batch, rows, inner, columns, x_transposed, y_transposed):
    x = matrix(batch, rows, inner, x_transposed, torch.bfloat16)
    y = matrix(batch, inner, columns, y_transposed, torch.bfloat16)
    found, exact = amx.amx_product(x, y, 1), x.double() @ y.double()
    assert found.dtype == torch.bfloat16 and found.is_contiguous()
    lost = 2.0**-8 * exact.abs() + summing(inner) * (x.double().abs() @ y.double().abs())  # in the result, in the sum
    assert ((found - exact).abs() <= lost).all()


@needs_amx
def test_three_parts_are_the_whole_number():
    x = torch.randn(50, 70) * 10 ** torch.empty(50, 70).uniform_(-20, 20)
    unit = torch.eye(70)
    assert torch.equal(amx.amx_product(x, unit, 3), x)
    assert torch.equal(amx.amx_product(unit, x.t(), 3), x.t())
    assert torch.equal(amx.amx_product(x, unit, 1), x.bfloat16().float())
    error = (amx.amx_product(x, unit, 2) - x).abs() / x.abs()
    assert 2.0**-20 < error.max() <= 2.0**-17


@needs_amx
@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "3.4028e38"])
def test_numbers_that_are_not_finite_affect_only_their_results(parts, number):
    for transposed in (False, True):
        x = torch.ones(20, 40).t() if transposed else torch.ones(40, 20)
        x[7, 3] = float(number)
        found = amx.amx_product(x, torch.ones(20, 33), parts)
        assert not found[7].isfinite().any()
        assert found[torch.arange(40) != 7].eq(20).all()
    all_ones = torch.tensor([[0x7FFFFFFF] * 4], dtype=torch.int32).view(torch.float32)  # another "not a number"
    assert amx.amx_product(all_ones, torch.ones(4, 2), parts).isnan().all()


@needs_amx
@pytest.mark.parametrize(
    "x, y, parts",
    [
        (torch.ones(3, 4), torch.ones(5, 3), 3),
        (torch.ones(2, 3, 4), torch.ones(3, 4, 3), 3),
        (torch.ones(4), torch.ones(4, 3), 3),
        (torch.ones(3, 0), torch.ones(0, 3), 3),
        (torch.ones(3, 4), torch.ones(4, 3).double(), 3),
        (torch.ones(3, 4), torch.ones(4, 3), 4),
        (torch.ones(3, 4).bfloat16(), torch.ones(4, 3).bfloat16(), 2),
        (torch.ones(6, 8)[::2, ::2], torch.ones(4, 3), 3),
    ],
)
def test_other_tensors_are_refused(x, y, parts):
    with pytest.raises(TaacError, match="amx_product expects"):
        amx.amx_product(x, y, parts)


def test_the_missing_feature_is_named(monkeypatch, tmp_path):
    missing = amx.reason_unavailable.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr(amx, "processor", lambda: amx._NEEDED - {"amx_tile"})
        assert missing() == "this processor has no amx_tile"
        patch.setattr(amx.platform, "machine", lambda: "arm64")
        assert missing().endswith("on arm64 has no AMX")
    monkeypatch.setattr(amx, "processor", lambda: amx._NEEDED)
    monkeypatch.setattr(amx.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(amx.sys, "platform", "linux")
    monkeypatch.setattr(amx, "_library", amx._library.__wrapped__)
    broken = tmp_path / "broken.cpp"
    broken.write_text("this is no program\n", encoding="utf-8")
    monkeypatch.setattr(amx, "_SOURCE", broken)
    assert "could not be compiled and loaded" in missing() and "error" in missing()

    def no_compiler(*args, **kwargs):
        raise FileNotFoundError("no g++")

    monkeypatch.setattr(subprocess, "run", no_compiler)
    assert missing() == "the kernel could not be compiled and loaded: no g++"


# In programs ---------------------------------------------------------------------------------------------------------


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(20, 48), torch.nn.Linear(48, 1)
        self.many = torch.nn.Parameter(torch.randn(2, 48, 33))

    def differentiate(self, x):
        hidden = torch.relu(self.first(x))
        loss = torch.bmm(hidden.expand(2, -1, -1), self.many).tanh().square().mean() + self.last(hidden).square().mean()
        return [loss.detach(), *torch.autograd.grad(loss, list(self.parameters()))]


def counted(monkeypatch):
    calls, library = [], amx._library()

    class Counting:
        def taac_amx_product(self, *args):
            calls.append(args)
            return library.taac_amx_product(*args)

    monkeypatch.setattr(amx, "_library", Counting)
    return calls


@needs_amx
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_products_of_a_program_and_of_its_gradients_are_these(parts, monkeypatch):
    torch.manual_seed(0)
    network, x = Network(), torch.randn(64, 20)
    calls = counted(monkeypatch)

    def differentiate(x):
        with torch.autocast("cpu", torch.bfloat16, enabled=parts == 1):
            return network.differentiate(x)

    expected = differentiate(x)
    found = CompiledFunction(differentiate, network, parts, "none")(x)
    # Of the first layer its output and the gradient of its weight; of `many` also that of its input. The last has one column.
    assert len(calls) == 5
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one, other, **({"rtol": 0.05, "atol": 0.01} if parts == 1 else {"rtol": 1e-4, "atol": 1e-5})
        )
    before = len(calls)
    compiled = CompiledFunction(differentiate, network, parts)
    for one, other in zip(compiled(x), found, strict=True):
        torch.testing.assert_close(
            one, other, **({"rtol": 0.05, "atol": 0.01} if parts == 1 else {"rtol": 1e-5, "atol": 1e-6})
        )
    assert len(calls) == before, "a compiled program calls the kernel itself"
    plain = CompiledFunction(network.differentiate, network, None, "none")(x)
    assert len(calls) == before and not all(torch.equal(a, b) for a, b in zip(plain, found))


@needs_amx
def test_a_torch_that_cannot_call_the_kernel_has_python_call_it(monkeypatch):
    monkeypatch.setattr(amx, "compiler_options", lambda: {})
    torch.manual_seed(0)
    network, x = Network(), torch.randn(64, 20)
    calls = counted(monkeypatch)
    found = CompiledFunction(network.differentiate, network, 3)(x)
    assert len(calls) == 5
    for one, other in zip(found, network.differentiate(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@needs_amx
def test_products_that_it_does_not_take_are_left_to_torch(monkeypatch):
    calls = counted(monkeypatch)
    x, y = torch.randn(6, 8), torch.randn(8, 3)

    def products(x, y):
        return [x.double() @ y.double(), x[:, ::2] @ y[::2], x[:1] @ y, x @ y[:, :1], x[:, :1] @ y[:1]]

    program = CompiledFunction(products, torch.nn.Module(), 3, "none")
    for one, other in zip(program(x, y), products(x, y), strict=True):
        torch.testing.assert_close(one, other)
    assert not calls
