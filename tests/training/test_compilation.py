"""`create_agent.compile = "auto"`: what is decided, that a run keeps to it, and what happens where compiling fails."""

from __future__ import annotations

import contextlib

import pytest

from experiments.examples.own_trajectory import FadingTrajectory  # noqa: F401, gin's by its import
from taac import configuration
from taac.errors import Interrupted, TaacError
from taac.learning import learner as learner_module
from taac.machine import compiled as compiled_module
from taac.machine import traced_attributes
from taac.machine.compiled import CompiledFunction
from taac.runs import history
from taac.runs.run_folder import RunFolder
from taac.training import compilation, experiment
from taac.training.conduct import conduct
from taac.training.interruption import Interruption
from taac.training.progress_bar import ProgressBar
from tests.algorithms.test_own_encoders import LinearEncoder  # noqa: F401, gin's by its import
from tests.methods import every_method, fitting
from tests.training.runs import SMALL, TASK, assert_same_parameters, build, built, rows, run

LONG = "num_env_steps = 10300"  # 10,000 updates, as the first 300 steps earn none


@pytest.fixture
def compiler(monkeypatch, traced_only):
    """A machine with a compiler, whatever this one has."""
    monkeypatch.setattr(compilation, "FEWEST_UPDATES", 10_000)  # tests/conftest.py sets more
    for module in (compilation, learner_module):
        monkeypatch.setattr(module, "find_compiler", lambda: "/usr/bin/g++")


def decided(*params):
    trainer = build(*params)
    trainer.close()
    held = isinstance(trainer.agent._rollout_step, CompiledFunction)
    assert held == isinstance(trainer.learner._program, CompiledFunction) == trainer.agent.compiled
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
        (["num_env_steps = 30300", "create_environment.action_repeat = 3", "UpdateRatio.update_clock = 'transitions'"],
         True, "pays with 10000 updates"),
        (["num_env_steps = 30299", "create_environment.action_repeat = 3", "UpdateRatio.update_clock = 'transitions'"],
         False, "9999 updates are too few"),
    ],
)  # fmt: skip
def test_the_configuration_decides(params, compiled, why, compiler):
    found, sentence = decided(*params)
    assert found == compiled and why in sentence


@pytest.mark.parametrize("method", every_method())
def test_no_method_of_the_package_holds_a_part_of_ones_own(method, compiler):
    with contextlib.closing(built([TASK, f"gin/methods/{method}.gin"], [*SMALL, *fitting(method)])) as trainer:
        assert compilation._reason_not_to_compile(trainer.agent, 10_000, 8) is None
        held = [type(part).__module__ for part in traced_attributes.parts(trainer.agent)]
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


@pytest.mark.parametrize("began", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_run_goes_on_as_it_began(began, compiler, monkeypatch, tmp_path):
    """Compiled, and the compiler gone when it is resumed: it is found again here, so only the decision is another."""
    monkeypatch.setattr(compilation, "FEWEST_UPDATES", 1 if began else 10**6)
    whole = run(tmp_path / "whole", "num_env_steps = 310")
    assert whole.agent.compiled is began
    run(tmp_path / "stopped", "num_env_steps = 310", stop=305)
    monkeypatch.setattr(compilation, "FEWEST_UPDATES", 10**6 if began else 1)
    resumed = run(tmp_path / "stopped", "num_env_steps = 310")
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


@pytest.mark.parametrize("fails", [pytest.param(False, marks=pytest.mark.slow), True])
def test_run_json_says_what_was_taken(fails, compiler, monkeypatch, tmp_path):
    monkeypatch.setattr(compilation, "FEWEST_UPDATES", 1)
    params = ["num_env_steps = 310"]
    if fails:
        monkeypatch.setattr(compiled_module, "trace", unable)
    told = []
    with pytest.warns(UserWarning, match="not compiled") if fails else contextlib.nullcontext():
        folder = conducted(tmp_path / "run", *params, tell=told.append)
    assert folder.read_run()["compiled"] is not fails
    assert any("the first update waits for it" in line for line in told)  # meanwhile the bar stands still


class ToldToStop(Interruption):
    def __call__(self):
        return True


@pytest.mark.slow
def test_a_run_that_goes_on_with_other_products_says_so(monkeypatch, tmp_path):
    """As on a processor that lacks those that it began with."""
    params = ("num_env_steps = 310", "create_agent.compile = False", "Evaluator.initial_evaluation = False")
    with pytest.raises(Interrupted):
        conducted(tmp_path / "run", *params, interruption=ToldToStop)
    began = RunFolder(tmp_path / "run").read_run()["products"]
    monkeypatch.setattr(learner_module, "available", lambda *_: False)
    monkeypatch.setattr(learner_module, "resolve", lambda *_: "bfloat16")
    about = conducted(tmp_path / "run", *params).read_run()
    assert began != about["products"] == about["resumed"][0]["products"] == "bfloat16"


def test_what_differs_where_a_run_goes_on_stands_in_its_record(monkeypatch, tmp_path):
    """Begun on a GPU, compiled, and diverged; without its replay buffer."""
    begin, there = RunFolder.begin, {"device": "cuda", "compiled": True}
    monkeypatch.setattr(RunFolder, "begin", lambda folder, text, about, info: begin(folder, text, {**about, **there}, info))
    params = ("num_env_steps = 310", "create_agent.compile = False", "Evaluator.initial_evaluation = False",
              "Saving.save_replay = False")  # fmt: skip
    with pytest.raises(Interrupted):
        conducted(tmp_path / "run", *params, interruption=ToldToStop)
    folder = RunFolder(tmp_path / "run")
    diverged = {"env_steps": 309, "error": "the loss"}
    folder.update_run(diverged=diverged)
    about = conducted(tmp_path / "run", *params).read_run()
    (entry,) = about["resumed"]
    stopped = entry["env_steps"]
    assert (entry["device"], entry["compiled"], entry["forgot_replay"], entry["diverged"]) == ("cpu", False, True, diverged)
    assert about["diverged"] is None and "products" not in entry
    forgot, again = history.describe(about)
    assert forgot == f"it was resumed at {stopped} environment steps without its replay buffer, which it filled again"
    assert again == f"it diverged at 309 environment steps, and was trained again from {stopped} on"


@pytest.mark.slow
def test_a_resumed_run_says_again_that_its_first_update_waits(compiler, monkeypatch, tmp_path):
    monkeypatch.setattr(compilation, "FEWEST_UPDATES", 1)
    params = ("num_env_steps = 310", "Evaluator.initial_evaluation = False")
    with pytest.raises(Interrupted):
        conducted(tmp_path / "run", *params, interruption=ToldToStop)
    told = []
    conducted(tmp_path / "run", *params, tell=told.append)
    assert told[0].startswith("resuming ") and any("the first update waits for it" in line for line in told)


def unable(*_):
    raise TaacError("cannot be traced")


@pytest.mark.slow
def test_a_run_says_that_its_products_are_slow(monkeypatch, tmp_path):
    monkeypatch.setattr("taac.training.conduct.slowness", lambda products, device: f"{products} on {device} is slow")
    told = []
    conducted(tmp_path / "run", "create_agent.compile = False", "create_experiment.device = 'cpu'", tell=told.append)
    assert any(line.startswith("note: ") and line.endswith(" on cpu is slow") for line in told)
    assert not any("are compiled" in line for line in told)


@pytest.mark.slow
def test_a_run_says_that_its_returns_do_not_fit_its_critics(tmp_path):
    told = []
    params = ("CriticEnsemble.returns = @CategoricalReturns()", "normalize_rewards = False")
    conducted(tmp_path / "run", *params, tell=told.append)
    assert [line for line in told if "rewards are not scaled to fit" in line and line.startswith("note: critics predict")]


def conducted(path, *params, tell=lambda _: None, interruption=Interruption):
    loaded = configuration.load([TASK, "gin/methods/taac.gin"], [*SMALL, *params])
    trainer = configuration.build(experiment.create_experiment)
    folder = RunFolder(path)
    try:
        conduct(trainer, loaded, folder, ProgressBar, tell=tell, interruption=interruption)
    finally:
        trainer.close()
    return folder
