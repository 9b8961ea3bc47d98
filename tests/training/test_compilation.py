"""`create_agent.compile = "auto"`: what is decided, that a run keeps to it, and what happens where compiling fails."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import os
import signal
import sys
import time

import pytest
import torch

from experiments.examples.own_trajectory import FadingTrajectory  # noqa: F401, gin's by its import
from taac import configuration
from taac.algorithms import agent as agent_module
from taac.errors import Interrupted, TaacError
from taac.learning import learner as learner_module
from taac.machine import ahead as ahead_module
from taac.machine import attributes
from taac.machine import compiled as compiled_module
from taac.machine.ahead import compile_ahead
from taac.machine.compiled import CompiledFunction
from taac.runs.run_folder import RunFolder
from taac.training import compilation, experiment
from taac.training.conduct import conduct
from taac.training.interruption import Interruption
from taac.training.progress_bar import ProgressBar
from tests.algorithms.test_own_encoders import LinearEncoder  # noqa: F401, gin's by its import
from tests.learning.test_compiled_update import traced_only  # noqa: F401
from tests.methods import METHODS, fitting
from tests.training.runs import SMALL, TASK, assert_same_parameters, build, built, rows, run

LONG = "num_env_steps = 10300"  # 10,000 updates, as the first 300 steps earn none


@pytest.fixture
def compiler(monkeypatch, traced_only):  # noqa: F811
    """A machine with a compiler, whatever this one has."""
    monkeypatch.setattr(compilation, "FEWEST_UPDATES", 10_000)  # tests/conftest.py sets more
    for module in (compilation, learner_module):
        monkeypatch.setattr(module, "find_compiler", lambda: "/usr/bin/g++")


def decided(*params):
    trainer = build(*params)
    trainer.close()
    held = isinstance(trainer.agent._rollout_step, CompiledFunction)
    assert held == isinstance(trainer.learner._loss_and_gradients, CompiledFunction) == trainer.agent.compiled
    return trainer.agent.compiled, trainer.compilation


@pytest.mark.parametrize(
    "params, compiled, why",
    [
        ([LONG], True, "pays with 10000 updates"),
        (["num_env_steps = 10299"], False, "9999 updates are too few"),
        ([LONG, "create_agent.compile = False"], False, "create_agent.compile = False"),
        ([LONG, "Trainer.batch_size = @PiecewiseSchedule()", "PiecewiseSchedule.values = (32, 16)",
          "PiecewiseSchedule.updates = (0, 4)"], False, "each batch size"),
        ([LONG, "create_agent.algorithm_ctor = @TaacAlgorithm", "ActorCriticAlgorithm.encoder_ctor = @LinearEncoder"],
         False, "LinearEncoder may read"),
        ([LONG, "create_agent.algorithm_ctor = @TaacAlgorithm", "TaacAlgorithm.trajectory = @FadingTrajectory()"],
         False, "FadingTrajectory may read"),
        (["num_env_steps = 30300", "create_environment.action_repeat = 3", "Trainer.update_clock = 'transitions'"],
         True, "pays with 10000 updates"),
        (["num_env_steps = 30299", "create_environment.action_repeat = 3", "Trainer.update_clock = 'transitions'"],
         False, "9999 updates are too few"),
    ],
)  # fmt: skip
def test_the_configuration_decides(params, compiled, why, compiler):
    found, sentence = decided(*params)
    assert found == compiled and why in sentence


@pytest.mark.parametrize("method", METHODS)
def test_no_method_of_the_package_holds_a_part_of_ones_own(method, compiler):
    with contextlib.closing(built([TASK, f"gin/methods/{method}.gin"], [*SMALL, *fitting(method)])) as trainer:
        assert compilation._why_not(trainer.agent, 10_000, 8) is None
        held = [type(part).__module__ for part in attributes.parts(trainer.agent)]
        assert {"taac.algorithms.agent", type(trainer.agent.algorithm).__module__} < {*held}


def test_without_a_compiler_a_long_run_is_not_compiled_and_says_what_it_would_gain(monkeypatch):
    monkeypatch.setattr(compilation, "find_compiler", lambda: None)
    monkeypatch.setattr(compilation, "FEWEST_UPDATES", 10_000)
    found, sentence = decided(LONG)
    assert not found and "no C++ compiler" in sentence and "three quarters" in sentence


def test_a_folder_for_programs_that_torch_could_not_make_is_refused_with_its_variable(monkeypatch, tmp_path):
    """Torch makes it for the first optimizer of a process, also of a run that compiles nothing, and names only the folder."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "file" / "programs"))
    with pytest.raises(TaacError, match=r"TORCHINDUCTOR_CACHE_DIR names a folder that cannot be made.*Not a directory"):
        build("create_agent.compile = False")


@pytest.mark.parametrize("began", [True, False])
def test_a_run_goes_on_as_it_began(began, compiler, monkeypatch, tmp_path):
    """Compiled, and the compiler gone when it is resumed: it is found again here, so only the decision is another."""
    monkeypatch.setattr(compilation, "FEWEST_UPDATES", 1 if began else 10**6)
    whole = run(tmp_path / "whole", "num_env_steps = 340")
    assert whole.agent.compiled is began
    run(tmp_path / "stopped", "num_env_steps = 340", stop=320)
    monkeypatch.setattr(compilation, "FEWEST_UPDATES", 10**6 if began else 1)
    resumed = run(tmp_path / "stopped", "num_env_steps = 340")
    assert resumed.agent.compiled is began
    assert ("not compiled" in resumed.compilation) is began  # what a new run would do
    assert_same_parameters(whole, resumed)
    assert rows(tmp_path / "whole") == rows(tmp_path / "stopped")


def test_a_compiled_run_goes_on_where_there_is_no_compiler(monkeypatch):
    trainer = build()
    monkeypatch.setattr(learner_module, "find_compiler", lambda: None)
    trainer.learner.keep(True, "plain")
    assert not trainer.agent.compiled and trainer.learner.products == "plain"
    trainer.close()


def test_what_was_bound_is_not_overridden(compiler):
    trainer = build("create_agent.compile = False")
    trainer.learner.keep(True, "plain")
    assert not trainer.agent.compiled
    trainer.close()


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
    return CompiledFunction(module.forward, module, compiler="none", **options)


def test_an_attribute_that_changes_is_read_again():
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


def test_what_changes_at_every_call_is_refused_or_not_compiled():
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


def test_what_cannot_be_traced_runs_uncompiled_if_it_may():
    class Branching(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    compiled, x = program(Branching(), optional=True), torch.ones(2)
    with pytest.warns(UserWarning, match="cannot be traced"):
        assert compiled(x).tolist() == [2.0, 2.0]
    assert compiled(-x).tolist() == [-2.0, -2.0]  # said once
    assert compiled.failed
    with pytest.raises(TaacError, match="cannot be traced"):
        program(Branching())(x)


# Compiling while frames are collected


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


@pytest.mark.parametrize("alone", [True, False])
def test_learners_that_share_a_program_compile_none_ahead(alone, monkeypatch):
    monkeypatch.setattr(agent_module, "check_compiler", lambda: None)
    called = []
    monkeypatch.setattr(learner_module, "compile_ahead", lambda calls: called.append(len(calls)) or (lambda stop: None))
    trainer = build("create_agent.compile = True")
    trainer.close()
    trainer.learner.compiles_ahead = lambda: alone
    trainer.learner.compile_ahead(trainer.replay_buffer.blank(8, 2), None, ())
    assert called == [1] * alone


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely here")
def test_a_process_that_hangs_while_it_compiles_ahead_is_ended(monkeypatch, in_torchs_cache, children):
    here = os.getpid()
    monkeypatch.setattr(compiled_module, "compile_graph", lambda graph, *_: graph if os.getpid() == here else time.sleep(60))
    monkeypatch.setattr(ahead_module, "LONGEST", 0.05)
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
@pytest.mark.parametrize("replay", ["ReplayBuffer", "PrioritizedReplayBuffer"])
def test_a_run_is_the_same_and_traces_nothing_twice(replay, in_torchs_cache, monkeypatch, tmp_path):
    monkeypatch.setattr(agent_module, "check_compiler", lambda: None)
    params = ["create_agent.compile = True", f"create_experiment.replay_buffer_ctor = @{replay}", "num_env_steps = 330"]
    traced = []
    trace = CompiledFunction._trace
    monkeypatch.setattr(CompiledFunction, "_trace", lambda self, *args: traced.append(self) or trace(self, *args))
    ahead = run(tmp_path / "ahead", *params)
    assert len(traced) == len(set(traced)) == 2  # acting and updates
    assert len(in_torchs_cache()) == 4 and len(set(in_torchs_cache())) == 2
    monkeypatch.setattr(learner_module, "compile_ahead", lambda calls: lambda stop: None)
    alone = run(tmp_path / "alone", *params)
    assert len(traced) == 4 and ahead.learner.num_updates == 30
    assert_same_parameters(ahead, alone)
    assert rows(tmp_path / "ahead") == rows(tmp_path / "alone")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely here")
def test_a_run_that_is_told_to_stop_while_it_waits_for_its_programs_stops_there(in_torchs_cache, monkeypatch, tmp_path, children):
    """Before its first update, after 300 steps; what is resumed then has the bits of what was not stopped."""
    monkeypatch.setattr(agent_module, "check_compiler", lambda: None)
    params = ["create_agent.compile = True", "num_env_steps = 330"]
    whole = run(tmp_path / "whole", *params)
    here, compiles = os.getpid(), compiled_module.compile_graph
    slowly = lambda *args: compiles(*args) if os.getpid() == here else time.sleep(600)  # noqa: E731
    monkeypatch.setattr(compiled_module, "compile_graph", slowly)
    monkeypatch.setattr(ahead_module, "LONGEST", 60.0)
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
    monkeypatch.setattr(agent_module, "check_compiler", lambda: None)
    here = os.getpid()
    monkeypatch.setattr(compiled_module, "compile_graph", lambda graph, *_: graph if os.getpid() == here else time.sleep(600))
    trainer = run(tmp_path / "run", "create_agent.compile = True", "num_env_steps = 330", stop=5)
    assert trainer.env_steps == 5 and children() == []


@pytest.mark.parametrize("fails", [False, True])
def test_run_json_says_what_was_taken(fails, compiler, monkeypatch, tmp_path):
    monkeypatch.setattr(compilation, "FEWEST_UPDATES", 1)
    params = ["num_env_steps = 310"]
    if fails:
        monkeypatch.setattr(CompiledFunction, "_trace", unable)
    told = []
    with pytest.warns(UserWarning, match="not compiled") if fails else contextlib.nullcontext():
        folder = conducted(tmp_path / "run", *params, tell=told.append)
    assert folder.read_run()["compiled"] is not fails
    assert any("the first waits until that is done" in line for line in told)  # meanwhile the bar stands still


def test_a_resumed_run_says_again_that_its_first_update_waits(compiler, monkeypatch, tmp_path):
    class ToldToStop(Interruption):
        def __call__(self):
            return True

    monkeypatch.setattr(compilation, "FEWEST_UPDATES", 1)
    with pytest.raises(Interrupted):
        conducted(tmp_path / "run", "num_env_steps = 310", interruption=ToldToStop)
    told = []
    conducted(tmp_path / "run", "num_env_steps = 310", tell=told.append)
    assert told[0].startswith("resuming ") and any("the first waits until that is done" in line for line in told)


def unable(*_):
    raise TaacError("cannot be traced")


def test_a_run_says_that_its_products_are_slow(monkeypatch, tmp_path):
    monkeypatch.setattr("taac.training.conduct.slowness", lambda products, device: f"{products} on {device} is slow")
    told = []
    conducted(tmp_path / "run", "create_agent.compile = False", "create_experiment.device = 'cpu'", tell=told.append)
    assert any(line.startswith("note: ") and line.endswith(" on cpu is slow") for line in told)
    assert not any("are compiled" in line for line in told)


def conducted(path, *params, tell=lambda _: None, interruption=Interruption):
    loaded = configuration.load([TASK, "gin/methods/taac.gin"], [*SMALL, *params])
    trainer = configuration.build(experiment.create_experiment)
    folder = RunFolder(path)
    try:
        conduct(trainer, loaded, folder, ProgressBar, tell=tell, interruption=interruption)
    finally:
        trainer.close()
    return folder
