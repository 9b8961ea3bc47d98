"""CUDA graphs on the CPU, with a stand-in that records operations and replays them."""

from __future__ import annotations

import pytest
import torch

from taac.machine import compiled, cuda_graphs
from taac.machine.compiled import CompiledFunction
from tests.learning.test_compiled_update import (
    COMPILE,
    PRIORITIZED,
    SCHEDULED,
    SIZES,
    assert_close,
    updated,
)
from tests.machine.gpu_stand_in import CUDAGraph, stand_in  # noqa: F401, a fixture
from tests.machine.test_compiled import Model, assert_same, batch
from tests.training.runs import assert_same_parameters, run

pytestmark = pytest.mark.usefixtures("stand_in", "traced_only")


def test_the_same_numbers_the_same_noise_and_what_changed_in_place():
    """From the first call on, whatever the runs before the capture drew."""
    model = Model()
    program = CompiledFunction(model.differentiate, model)
    for _ in range(4):
        given, state = batch(), torch.get_rng_state()
        found, after = program(given), torch.get_rng_state()
        torch.set_rng_state(state)
        assert_same(found, model.differentiate(given))
        assert torch.equal(after, torch.get_rng_state())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
            model.scale.mul_(1.5)
    assert (CUDAGraph.made, CUDAGraph.replays) == (1, 4)


def test_draws_go_on_from_a_saved_state():
    model = Model()
    program, given = CompiledFunction(model.differentiate, model), batch()
    program(given)
    state = torch.get_rng_state()
    expected = [program(given)["loss"][0] for _ in range(3)]
    torch.set_rng_state(state)
    assert [program(given)["loss"][0] for _ in range(3)] == expected
    torch.set_rng_state(state)
    again = CompiledFunction(model.differentiate, model)  # as in a resumed run, which captures anew
    assert [again(given)["loss"][0] for _ in range(3)] == expected


def test_results_and_arguments_are_the_callers_own():
    model = Model()
    program = CompiledFunction(lambda x: (x, x + 1, x[:1], None), model)
    first, second = torch.zeros(3), torch.ones(3)
    results = program(first), program(second)
    assert results[0][0].tolist() == results[0][1].sub(1).tolist() == [0, 0, 0] and results[0][2].tolist() == [0]
    assert results[1][1].tolist() == [2, 2, 2] and results[1][3] is None
    results[1][0].add_(5)
    first.add_(7)
    assert program(second)[1].tolist() == [2, 2, 2] and results[0][1].tolist() == [1, 1, 1]
    assert first.tolist() == [7, 7, 7] and second.tolist() == [1, 1, 1]


@pytest.mark.parametrize("given", [torch.arange(12.0).view(3, 4)[:, ::2], torch.ones(1, 2).expand(3, 2)])
def test_arguments_that_lie_otherwise_in_memory(given):
    program = CompiledFunction(lambda x: x * 2 + torch.ones(2, 3).t(), Model())
    for step in range(3):
        assert torch.equal(program(given + step), (given + step) * 2 + 1)
        assert torch.equal(program((given + step).contiguous()), (given + step) * 2 + 1)
    assert torch.equal(program(given), given * 2 + 1)
    assert CUDAGraph.made == 1


def test_another_shape_is_another_graph():
    model = Model()
    program = CompiledFunction(lambda x: x.sum(0), model)
    for rows in (2, 3, 2, 3):
        assert program(torch.full((rows, 2), 2.0)).tolist() == [2.0 * rows] * 2
    assert CUDAGraph.made == 2


class Counts(Model):
    """Counts its calls in a buffer, as statistics do."""

    def count(self, x):
        self.scale.add_(1.0)
        return x * self.scale


def test_what_the_program_changes_it_changes_once_a_call():
    model = Counts()
    program = CompiledFunction(model.count, model)
    assert [float(program(torch.ones(()))) for _ in range(3)] == [3.0, 4.0, 5.0] and float(model.scale) == 5.0


def test_a_tensor_that_moved_is_found():
    model = Model()
    program = CompiledFunction(lambda x: x * model.scale, model)
    assert float(program(torch.ones(()))) == 2.0
    model.scale.data = torch.tensor(7.0)
    assert float(program(torch.ones(()))) == 7.0 and CUDAGraph.made == 2
    assert float(program(torch.ones(()))) == 7.0 and CUDAGraph.made == 2
    moved = [torch.tensor(float(number)) for number in range(10)]  # all kept, so that none has another's address
    with pytest.warns(UserWarning, match="without a CUDA graph.*have moved 8 times"):
        for number, tensor in enumerate(moved):
            model.scale.data = tensor
            assert float(program(torch.ones(()))) == number
    assert CUDAGraph.made == 8


class Reads(Model):
    """Its program reads a number, as a traced one cannot."""

    def numbers(self, x):
        return x + torch.randn(())


def test_what_cannot_be_captured_runs_as_it_is(monkeypatch):
    model = Reads()
    program = CompiledFunction(model.numbers, model)

    def reading(graph, *_):
        return lambda *inputs: [graph(*inputs)[0] + 0 * inputs[0].sum().item()]

    monkeypatch.setattr(compiled, "compile_graph", reading)
    state = torch.get_rng_state()
    with pytest.warns(UserWarning, match="without a CUDA graph.*operation not permitted") as told:
        found = [float(program(torch.tensor(4.0))) for _ in range(3)]
    assert len(told) == 1 and "more lines" not in str(told[0].message) and CUDAGraph.replays == 0
    torch.set_rng_state(state)
    assert found == [float(model.numbers(torch.tensor(4.0))) for _ in range(3)]
    assert cuda_graphs._gpu.now is cuda_graphs._gpu.main
    assert len(cuda_graphs._gpu.main.waited_for) == 1  # for the runs on the side stream


def test_a_tensor_on_another_device_is_not_captured():
    """Its numbers would be read by the host once and for all."""
    graph = torch.fx.symbolic_trace(lambda x: x * 2)
    graph.register_buffer("number", torch.zeros((), device="meta"))
    with graph.graph.inserting_before():
        graph.graph.get_attr("number")
    with pytest.warns(UserWarning, match="'number' on another device"):
        program = cuda_graphs.captured(lambda inputs: lambda x: [x * 2], graph, [torch.ones(2)])
    assert program(torch.ones(2))[0].tolist() == [2.0, 2.0] and CUDAGraph.made == 0


def test_on_the_cpu_nothing_is_captured(monkeypatch):
    monkeypatch.undo()
    run = object()
    assert cuda_graphs.captured(lambda inputs: run, None, [torch.ones(2)]) is run and CUDAGraph.made == 0


NORMALISED = ["create_agent.normalize_rewards = True"]


@pytest.mark.parametrize(
    "method, params",
    [
        pytest.param("sac", [*SCHEDULED, *SIZES], marks=pytest.mark.slow),
        ("taac", [PRIORITIZED, *NORMALISED, "Learner.max_grad_norm = 0.5", "Learner.diagnostics = 'histograms'"]),
    ],
    ids=["SAC with schedules", "TAAC"],
)
def test_updates_and_acting(method, params, traced_only):
    """Nothing is fixed at the first call: rates, targets, weights and sizes of batches follow their schedules."""
    params = ("hidden_layers = (8,)", "initial_collect_steps = 60", *params)
    found = updated(method, COMPILE, *params)
    assert CUDAGraph.made == 2 + (SIZES[0] in params) and CUDAGraph.replays > 6
    assert_close(found, updated(method, *params), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_killed_run_ends_as_the_run_that_was_never_killed(tmp_path, traced_only):
    """It captures anew in the middle, which moves nothing."""
    params = (
        COMPILE, "Intervals.checkpoint_interval = 20", "hidden_layers = (8,)", "initial_collect_steps = 40",
        "num_env_steps = 70", "evaluation_interval = 1000", "Evaluator.evaluation_episodes = 1",
    )  # fmt: skip
    whole = run(tmp_path / "whole", *params)
    run(tmp_path / "killed", *params, until=65)
    made = CUDAGraph.made
    assert_same_parameters(whole, run(tmp_path / "killed", *params))
    assert CUDAGraph.made == made + 2
