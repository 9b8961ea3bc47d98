"""The matrix products that a run may choose between give the same numbers, and what is asked for is what is in force."""

from __future__ import annotations

import itertools
import random
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taac import configuration
from taac.errors import TaacError
from taac.learning import learner as learner_module
from taac.machine import products
from taac.training import experiment

needs_onednn = pytest.mark.skipif(not products.onednn_is_exact(), reason="no exact float32 product of oneDNN's here")


def precision():
    return torch.backends.mkldnn.matmul.fp32_precision


@needs_onednn
@settings(deadline=None, max_examples=40)
@given(st.integers(1, 3), st.integers(1, 300), st.integers(1, 70), st.integers(1, 70), st.booleans())
def test_onednn_is_as_exact_as_float32(batch, rows, inner, columns, transposed):
    """Forward and gradients of a layer against float64, in strides of both kinds; rounding to bfloat16 would err by 1e-3."""
    x = torch.randn(batch, rows, inner, requires_grad=True)
    weight = torch.randn(batch, columns, inner).transpose(1, 2) if transposed else torch.randn(batch, inner, columns)
    weight.requires_grad_(True)
    bias = torch.randn(batch, 1, columns)

    def run(dtype):
        y = torch.baddbmm(bias.to(dtype), x.to(dtype), weight.to(dtype))
        return y, *torch.autograd.grad(y.sin().sum(), (x, weight))

    expected = run(torch.float64)
    with products.using("onednn"):
        given_ = run(torch.float32)
    for one, other in zip(given_, expected, strict=True):
        assert (one - other).norm() <= 2e-6 * other.norm() + 1e-6


@needs_onednn
def test_what_was_in_force_before_is_in_force_again():
    before = precision()
    with pytest.raises(ZeroDivisionError), products.using("onednn"):
        assert precision() == "bf16"
        raise ZeroDivisionError
    assert precision() == before
    with products.using("plain"):
        assert precision() == before


CPU = torch.device("cpu")


AMX, INTEL, EPYC, OLD_EPYC = (
    frozenset(words.split())
    for words in (
        "GenuineIntel avx avx512f avx512_bf16 amx_tile amx_bf16", "GenuineIntel avx avx512f avx512_bf16",
        "AuthenticAMD avx avx512f avx512_bf16", "AuthenticAMD avx avx2",
    )
)  # fmt: skip


def test_auto_follows_from_the_processor_and_not_from_the_time(monkeypatch):
    """Whatever a clock says, as beside a busy process: each choice is asked for twenty times."""
    monkeypatch.setattr(products, "onednn_is_exact", lambda: True)
    monkeypatch.setattr(products.amx, "reason_unavailable", lambda: None)
    clock = itertools.accumulate(iter(random.random, None))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))

    def chosen(has, device=CPU, compiled=True):
        monkeypatch.setattr(products.amx, "processor", lambda: has)
        (kind,) = {products.resolve("auto", device, compiled) for _ in range(20)}
        return kind

    assert [chosen(has) for has in (AMX, INTEL, EPYC, OLD_EPYC)] == ["bfloat16x6", "plain", "onednn", "onednn"]
    assert chosen(AMX, compiled=False) == chosen(frozenset()) == chosen(EPYC, torch.device("cuda")) == "plain"
    monkeypatch.setattr(products, "onednn_is_exact", lambda: False)
    monkeypatch.setattr(products.amx, "reason_unavailable", lambda: "the kernel could not be compiled")
    assert chosen(AMX) == chosen(EPYC) == "plain"


def test_products_that_are_not_available_are_refused(monkeypatch):
    monkeypatch.setattr(products, "onednn_is_exact", lambda: False)
    with pytest.raises(
        TaacError, match=r"'onednn' were requested, but .* no exact float32 product.*use 'auto' or 'plain'"
    ):
        products.resolve("onednn", CPU)
    with pytest.raises(TaacError, match=r"'bfloat16x6' were requested, but they need create_agent.compile = True"):
        products.resolve("bfloat16x6", CPU)
    with pytest.raises(TaacError, match=r"they are for the CPU, and the agent is on cuda"):
        products.resolve("bfloat16x3", torch.device("cuda"), compiled=True)
    monkeypatch.setattr(products.amx, "reason_unavailable", lambda: "this processor has no amx_tile")
    with pytest.raises(TaacError, match=r"'bfloat16x3' were requested, but this processor has no amx_tile"):
        products.resolve("bfloat16x3", CPU, compiled=True)
    assert products.resolve("bfloat16", CPU, compiled=True) == "bfloat16"  # which torch has itself


def test_parts_of_compiled_products(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(products.amx, "reason_unavailable", lambda: asked.append(1))
    assert [products.parts(kind, CPU) for kind in ("plain", "onednn")] == [None, None] and not asked
    assert [products.parts(kind, CPU) for kind in ("bfloat16", "bfloat16x3", "bfloat16x6")] == [1, 2, 3]
    assert products.parts("bfloat16", torch.device("cuda")) is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert [products.parts(kind, CPU) for kind in ("bfloat16", "bfloat16x3", "bfloat16x6")] == [None, 2, 3]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(products.amx, "reason_unavailable", lambda: "there is none")
    assert products.parts("bfloat16", CPU) is None


@pytest.mark.parametrize("has, slow", [(AMX, False), (INTEL, True), (EPYC, False), (OLD_EPYC, True), (frozenset(), False)])
def test_slow_bfloat16_is_told_where_it_is_known_to_be(has, slow, monkeypatch):
    monkeypatch.setattr(products.amx, "processor", lambda: has)
    assert (products.slowness("bfloat16", CPU) is not None) == slow
    assert products.slowness("plain", CPU) is products.slowness("bfloat16", torch.device("cuda")) is None


def test_products_that_round_do_not_count_as_exact(monkeypatch):
    """On a processor that would really compute in bfloat16, the check must see it."""
    real = torch.bmm

    def rounding(a, b):
        return real(a, b) if a.dtype == torch.float64 else real(a.bfloat16(), b.bfloat16()).float()

    monkeypatch.setattr(torch, "bmm", rounding)
    assert not products.onednn_is_exact.__wrapped__()


def trainer(*params):
    configuration.load(
        ["gin/tasks/simple_control.gin", "gin/methods/taac.gin"],
        [
            "create_environment.env_name = 'Pendulum-v1'", "num_env_steps = 400", "initial_collect_steps = 100",
            "batch_size = 32", "replay_length = 500", *params,
        ],
    )  # fmt: skip
    return configuration.build(experiment.create_experiment)


def losses(kind):
    tested = trainer(f"Learner.matmul = '{kind}'")
    while tested.env_steps < 110:
        tested.collect()
    values = [tested.learner.update(tested.replay_buffer.sample(32, 4)).extra["loss/total"].item() for _ in range(5)]
    tested.close()
    return torch.tensor(values)


@needs_onednn
def test_an_update_is_the_same_with_either_product():
    torch.testing.assert_close(losses("onednn"), losses("plain"), rtol=1e-4, atol=1e-5)


def test_bfloat16_rounds_products_and_nothing_else():
    plain, rounded = losses("plain"), losses("bfloat16")
    torch.testing.assert_close(rounded, plain, rtol=0.05, atol=0.01)
    assert not torch.equal(rounded, plain)
    tested = trainer("Learner.matmul = 'bfloat16'")
    assert all(p.dtype == torch.float32 for p in tested.agent.parameters())
    tested.close()


def test_a_product_of_another_name_is_refused():
    with pytest.raises(TaacError, match=r"Learner\.matmul = 'mkl' has the wrong type"):
        trainer("Learner.matmul = 'mkl'")


@pytest.mark.parametrize("held", ["x", "auto", ["onednn"], {"plain": 1}, 3])
def test_what_no_machine_has_is_not_kept(held):
    """As a stranger's run.json may hold it."""
    assert not products.available(held, torch.device("cpu"))


def test_a_resumed_run_keeps_its_product(monkeypatch):
    """What "auto" meant when the run began: elsewhere it might be the other, which rounds differently."""
    tested, other = trainer("Learner.matmul = 'plain'"), trainer("Learner.matmul = 'bfloat16'")
    kept = tested.learner.state_dict()["products"]
    other.learner.keep(None, kept)
    assert other.learner.products == kept == "plain"
    monkeypatch.setattr(learner_module, "available", lambda kind, device, compiled: False)
    third = trainer("Learner.matmul = 'bfloat16'")
    third.learner.keep(None, kept)
    assert third.learner.products == "bfloat16", "a machine that has it not goes on with its own"
    for made in (tested, other, third):
        made.close()
