"""Programs are compiled in another process while frames are collected: who waits for it, and that it is ended."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import sys
import time

import pytest
import torch

from taac import configuration
from taac.algorithms import agent as agent_module
from taac.errors import TaacError
from taac.learning import learner as learner_module
from taac.machine import compiled as compiled_module
from taac.machine.compiled import CompiledFunction, compile_ahead
from taac.runs.run_folder import RunFolder
from tests.machine.test_compiled import Scaled
from tests.training.runs import assert_same_parameters, build, rows, run


@pytest.fixture
def in_torchs_cache(monkeypatch, tmp_path):
    """A compiler that notes which process it runs in, and runs the traced graph. Returns what was noted."""
    noted = tmp_path / "noted"
    noted.touch()

    def compiled(graph, leaves, options):
        with noted.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return graph

    monkeypatch.setattr(compiled_module, "compile_graph", compiled)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    return lambda: [int(line) for line in noted.read_text().split()]


@pytest.fixture
def children():
    """Returns a function that lists the processes which this test has started and which still run."""
    before = set(multiprocessing.active_children())
    return lambda: [process for process in multiprocessing.active_children() if process not in before]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely here")
def test_programs_are_compiled_in_another_process_and_their_first_calls_wait_for_it(in_torchs_cache):
    module, x = Scaled(), torch.tensor([3.0])
    compiled, other = CompiledFunction(module.forward, module), CompiledFunction(lambda y: y + 1, module)
    compile_ahead([(compiled, (torch.zeros(1),)), (module.forward, (x,)), (other, (torch.zeros(2),))])
    assert compiled(x).item() == 6.5
    first, second, here = in_torchs_cache()  # the call has waited for both
    assert first == second != os.getpid() == here
    assert compiled(x).item() == 6.5 and len(in_torchs_cache()) == 3  # kept


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely here")
def test_what_was_traced_ahead_is_traced_again_where_an_attribute_has_changed(in_torchs_cache, children):
    module, x = Scaled(), torch.tensor([3.0])
    compiled = CompiledFunction(module.forward, module)
    wait = compile_ahead([(compiled, (x,))])
    module.scale = 3.0
    assert compiled(x).item() == 9.5 and compiled.retraced == 0
    wait(lambda: False)  # the call did not
    assert children() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely here")
def test_a_copy_of_what_is_compiled_ahead_waits_too(in_torchs_cache, children):
    module, x = Scaled(), torch.tensor([3.0])
    compiled = CompiledFunction(module.forward, module)
    compile_ahead([(compiled, (x,))])
    assert copy.deepcopy(compiled)(x).item() == 6.5 == compiled(x).item()
    assert len(in_torchs_cache()) == 3 and children() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely here")
def test_a_process_that_hangs_while_it_compiles_ahead_is_ended(monkeypatch, in_torchs_cache, children):
    here = os.getpid()
    monkeypatch.setattr(compiled_module, "compile_graph", lambda graph, *_: graph if os.getpid() == here else time.sleep(60))
    monkeypatch.setattr(compiled_module, "LONGEST", 0.05)
    module, x = Scaled(), torch.tensor([3.0])
    compiled = CompiledFunction(module.forward, module)
    compile_ahead([(compiled, (x,))])
    (process,) = children()
    assert compiled(x).item() == 6.5 and process.exitcode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely here")
def test_a_process_whose_end_is_told_to_nobody_is_waited_for(in_torchs_cache, children):
    """What starts a run may ignore SIGCHLD, and the run then does, too: the system tells nobody how its processes ended."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        module, x = Scaled(), torch.tensor([3.0])
        compiled = CompiledFunction(module.forward, module)
        compile_ahead([(compiled, (x,))])
        (process,) = children()
        assert compiled(x).item() == 6.5 and len(in_torchs_cache()) == 2
    finally:
        signal.signal(signal.SIGCHLD, before)
    process._popen.returncode = 0  # else it counts as active for ever


def test_what_cannot_be_traced_ahead_is_reported_by_the_call(in_torchs_cache):
    compiled = CompiledFunction(lambda x: x if x.sum() > 0 else -x, torch.nn.Module())
    compile_ahead([(compiled, (torch.ones(1),))])
    assert in_torchs_cache() == []
    with pytest.raises(TaacError, match="cannot be traced as a whole"):
        compiled(torch.ones(1))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely here")
@pytest.mark.slow
@pytest.mark.parametrize("replay", ["ReplayBuffer", "PrioritizedReplayBuffer"])
def test_a_run_is_the_same_and_traces_nothing_twice(replay, in_torchs_cache, monkeypatch, tmp_path):
    monkeypatch.setattr(agent_module, "check_compiler", lambda device: None)
    params = ["create_agent.compile = True", f"create_experiment.replay_buffer_ctor = @{replay}", "num_env_steps = 305"]
    traced = []
    trace = CompiledFunction._trace
    monkeypatch.setattr(CompiledFunction, "_trace", lambda self, *args: traced.append(self) or trace(self, *args))
    ahead = run(tmp_path / "ahead", *params)
    assert len(traced) == len(set(traced)) == 2  # acting and updates
    assert len(in_torchs_cache()) == 4 and len(set(in_torchs_cache())) == 2
    monkeypatch.setattr(learner_module, "compile_ahead", lambda calls: lambda stop: None)
    alone = run(tmp_path / "alone", *params)
    assert len(traced) == 4 and ahead.learner.num_updates == 5
    assert_same_parameters(ahead, alone)
    assert rows(tmp_path / "ahead") == rows(tmp_path / "alone")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely here")
@pytest.mark.slow
def test_a_run_that_is_told_to_stop_while_it_waits_for_its_programs_stops_there(in_torchs_cache, monkeypatch, tmp_path, children):
    """Before its first update, after 300 steps; what is resumed then has the bits of what was not stopped."""
    monkeypatch.setattr(agent_module, "check_compiler", lambda device: None)
    params = ["create_agent.compile = True", "num_env_steps = 305"]
    whole = run(tmp_path / "whole", *params)
    here, compiles = os.getpid(), compiled_module.compile_graph
    slowly = lambda *args: compiles(*args) if os.getpid() == here else time.sleep(600)  # noqa: E731
    monkeypatch.setattr(compiled_module, "compile_graph", slowly)
    monkeypatch.setattr(compiled_module, "LONGEST", 60.0)
    trainer, folder, asked = build(*params), RunFolder(tmp_path / "stopped"), []
    folder.begin(configuration.operative_config(), {"seed": trainer.seed, "environment": trainer.environment.name})

    def stop():  # while it waits, which is when it is asked more than once
        asked.append(trainer.env_steps)
        return asked.count(300) > 2

    trainer.train(folder, stop=stop)
    assert (trainer.env_steps, trainer.learner.num_updates, trainer.interrupted) == (300, 0, True)
    trainer.close()
    assert children() == []  # whose end the process would wait for at its own
    resumed = run(tmp_path / "stopped", *params)
    assert_same_parameters(whole, resumed)
    assert rows(tmp_path / "whole") == rows(tmp_path / "stopped")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely here")
def test_a_run_that_is_stopped_before_it_needs_its_programs_ends_their_process(in_torchs_cache, monkeypatch, tmp_path, children):
    monkeypatch.setattr(agent_module, "check_compiler", lambda device: None)
    here = os.getpid()
    monkeypatch.setattr(compiled_module, "compile_graph", lambda graph, *_: graph if os.getpid() == here else time.sleep(600))
    trainer = run(tmp_path / "run", "create_agent.compile = True", "num_env_steps = 330", stop=5)
    assert trainer.env_steps == 5 and children() == []
