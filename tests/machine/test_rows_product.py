"""The product that leaves out rows of zeros, against the whole product."""

from __future__ import annotations

import pickle
import subprocess

import torch

from taac.machine import kernels, rows_product
from taac.machine.compiled import CompiledFunction
from tests.machine.test_compiled import needs_compiler


def with_zeros(*shape, kept):
    """Random matrices in which row r of matrix n stays if `kept(n, r)`; the others are 0."""
    x = torch.randn(*shape)
    for n, rows in enumerate(x):
        for r, row in enumerate(rows):
            if not kept(n, r):
                row.zero_()
    return x


CASES = {
    "each row in one of two": (with_zeros(2, 100, 30, kept=lambda n, r: (r * 7 % 11 < 5) == (n == 0)), (30, 40)),
    "none": (with_zeros(3, 40, 8, kept=lambda n, r: False), (8, 9)),
    "all": (with_zeros(2, 40, 8, kept=lambda n, r: True), (8, 9)),
    "all of one alone": (with_zeros(2, 40, 8, kept=lambda n, r: n == 1), (8, 9)),
    "one row": (with_zeros(2, 64, 20, kept=lambda n, r: (n, r) == (1, 63)), (20, 70)),
    "a number late in a row": (torch.zeros(1, 64, 20).index_fill_(2, torch.tensor(19), 1.0), (20, 7)),
    "columns in memory": (with_zeros(2, 64, 20, kept=lambda n, r: r % 4 == n).mT.contiguous().mT, (20, 7)),
    "wider rows in memory": (with_zeros(2, 64, 50, kept=lambda n, r: r % 4 == n)[:, :, 5:25], (20, 7)),
    "few rows": (with_zeros(2, 3, 20, kept=lambda n, r: r == n), (20, 7)),
}  # fmt: skip


@needs_compiler
def test_a_compiled_program_has_the_results_of_the_whole_product_and_leaves_out_rows_of_zeros():
    assert rows_product.compiler_options(), "there is a compiler, but no kernel"
    torch.manual_seed(0)
    y = [torch.randn(len(x), *shape) for x, shape in CASES.values()]
    turned = [factor.mT.contiguous().mT for factor in y]
    bad = torch.randn(2, 30, 40)
    bad[1, 3, 5] = float("nan")
    no_number = CASES["each row in one of two"][0].clone()
    no_number[0, 3, 2] = float("nan")

    def products(lefts, rights):
        return [rows_product.product_of_rows(x, y) for x, y in zip(lefts, rights, strict=True)]

    lefts = [x for x, _ in CASES.values()]
    args = [*lefts, *lefts, CASES["each row in one of two"][0], no_number], [*y, *turned, bad, y[0]]
    program = CompiledFunction(products, torch.nn.Module())
    for _ in range(2):  # the second call finds the first one's numbers in the kernel's memory
        *found, left_out, kept = program(*args)
        for name, one, x, right in zip([*CASES] * 2, found, *args):
            assert one.is_contiguous()
            torch.testing.assert_close(one, torch.bmm(x, right), msg=lambda text, name=name: f"{name}: {text}")
    zero = (args[0][-2] == 0).all(-1)
    assert (left_out[zero] == 0).all() and left_out[1, ~zero[1]].isnan().any(), "the kernel was not called"
    assert kept[0, 3].isnan().all() and kept.isnan().sum() == kept.shape[-1]


@needs_compiler
def test_programs_are_read_from_torchs_cache_again():
    """An operation itself cannot be part of the cache's key, and torch then compiles each program anew in each process."""
    from torch._dynamo.utils import counters

    x, y = torch.randn(2, 8, 4), torch.randn(2, 4, 3)
    program = CompiledFunction(lambda x, y: [rows_product.product_of_rows(x, y)], torch.nn.Module())
    before = {name: counters[name].copy() for name in ("inductor", "aot_autograd")}
    torch.testing.assert_close(program(x, y)[0], torch.bmm(x, y))
    for name, counts in before.items():
        new = {key: count - counts[key] for key, count in counters[name].items() if count > counts[key]}
        assert not [key for key in new if "bypass" in key], new
    key = next(iter(rows_product.compiler_options()["aot_inductor.custom_ops_to_c_shims"]))
    again = pickle.loads(pickle.dumps(key))
    assert again == key and key == torch.ops.taac.product_of_rows.default and hash(again) == hash(key)
    assert key != torch.ops.taac.amx_product.default and pickle.dumps(again) == pickle.dumps(key)


def test_without_the_kernel_it_is_the_whole_product():
    x, shape = CASES["each row in one of two"]
    y = torch.randn(2, *shape)
    assert torch.equal(rows_product.product_of_rows(x, y), torch.bmm(x, y))


def test_no_limit_in_time_decides_whether_programs_have_the_kernel(monkeypatch, tmp_path):
    given, compile = [], subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *args, **more: given.append(more) or compile(*args, **more))
    source = tmp_path / "own.cpp"
    source.write_text(f"int own{tmp_path.name[-1]};\n", encoding="utf-8")
    kernels.load(source)
    assert len(given) == 1 and given[0].get("timeout") is None


def test_where_the_kernel_cannot_be_compiled_programs_are_not_told_of_it(monkeypatch, tmp_path):
    options = rows_product.compiler_options.__wrapped__
    broken = tmp_path / "broken.cpp"
    broken.write_text("this is no program\n", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(rows_product, "SOURCE", broken)
        assert options() == {}

    def no_compiler(*args, **kwargs):
        raise FileNotFoundError("no g++")

    with monkeypatch.context() as patch:
        patch.setattr(rows_product, "SOURCE", tmp_path / "other.cpp")
        (tmp_path / "other.cpp").write_text("int other;\n", encoding="utf-8")
        patch.setattr(subprocess, "run", no_compiler)
        assert options() == {}
    monkeypatch.setattr(rows_product.sys, "platform", "darwin")
    monkeypatch.setattr(kernels, "load", None)  # not asked for
    assert options() == {}
