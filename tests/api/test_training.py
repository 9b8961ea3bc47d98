"""`taac.train`: the run of the command, without gin, that can be stopped, resumed and ended early."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import gin
import gymnasium
import numpy as np
import pytest
import torch

import taac
from taac import configuration
from taac.analysis.readers import run_records
from taac.api import training
from taac.configuration import RunRequest, gin_state
from taac.errors import Interrupted, TaacError
from taac.runs import history
from taac.runs.run_folder import RunFolder
from taac.training import conduct, experiment
from taac.training.hooks import StopWhen
from taac.training.interruption import Interruption
from taac.training.progress_bar import ProgressBar
from taac.training.resets import Reset
from tests.api.small import SMALL


def train(root_dir, environment="Pendulum-v1", method="taac", **more):
    return taac.train(environment, method, root_dir=root_dir, **{**SMALL, "seed": 3, **more})


def state_of(run):
    return RunFolder(run.root_dir).checkpoints.newest().part("agent")


def assert_same_agent(first, second):
    first, second = state_of(first), state_of(second)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_importing_is_light_and_works_where_gin_is_locked():
    code = "import sys, taac; assert not {'torch', 'gin', 'numpy', 'gymnasium'} & set(sys.modules); import gin; gin.finalize()\n"
    code += "try: taac.train('Pendulum-v1', 'tac')\nexcept taac.TaacError as error: assert 'taac' in str(error)\nelse: assert 0\n"
    code += "assert gin.config_is_locked()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(taac.API) <= set(dir(taac)) and all(hasattr(taac, name) for name in taac.API)
    assert sys.modules["taac.api"].__all__ == taac.API
    assert "from taac.api import *" in Path(taac.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    with pytest.raises(AttributeError, match="has no attribute 'tran'"):
        taac.tran  # noqa: B018


def test_a_run_is_the_same_in_another_mode_of_torch(trained, tmp_path):
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            run = train(tmp_path / "run")
            assert not torch.is_grad_enabled() and torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert_same_agent(run, trained)


def test_a_run_is_that_of_the_command_bit_for_bit(trained, tmp_path):
    named = {name: value for name, value in SMALL.items() if name not in ("progress", "num_env_steps")}
    texts = tuple(f"{name}={value}" for name, value in named.items())
    loaded = RunRequest("Pendulum-v1", "taac", settings=texts, num_env_steps="330", seed=3).load()
    trainer = configuration.build(experiment.create_experiment)
    conduct.conduct(trainer, loaded, RunFolder(tmp_path / "command"), ProgressBar, tell=lambda _: None)
    trainer.close()
    command = taac.Run(tmp_path / "command")
    assert_same_agent(trained, command)
    assert trained.config == command.config
    assert [trained.curve[name].tolist() for name in ("env_steps", "return_mean")] == [
        command.curve[name].tolist() for name in ("env_steps", "return_mean")
    ]


def test_the_caller_keeps_gin_random_numbers_and_threads(tmp_path, trained):
    gin_state.clear()
    gin.parse_config("hidden_layers = (7, 7)\nLearner.epsilon = %hidden_layers")
    gin.finalize()
    torch.manual_seed(5)
    np.random.seed(5)
    before = (gin.config_str(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist())
    torch.set_num_threads(2)
    try:
        run = train(tmp_path / "run", num_env_steps=301)
        taac.load(run.root_dir)
        run.evaluate(1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert (gin.config_str(), torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()) == before
    assert gin.config_is_locked() and "hidden_layers = (16, 16)" in run.config
    gin_state.clear()
    with pytest.raises(TaacError, match=r"gamma = 'x' has the wrong type"):
        train("nowhere", gamma="x")
    assert gin.config_str() == "" and not gin.config_is_locked()


def test_a_finished_run_is_returned_untrained(trained, capsys):
    before = (trained.root_dir / "run.json").read_bytes()
    again = taac.train("Pendulum-v1", "taac", root_dir=trained.root_dir, seed=3, **SMALL)
    assert repr(again) == repr(trained) and "finished" in repr(again)
    assert (trained.root_dir / "run.json").read_bytes() == before
    assert "already holds this run, finished" in capsys.readouterr().err


def interrupt_at(env_steps, times=1):
    def callback(trainer):
        if env_steps <= trainer.env_steps < env_steps + times:
            signal.raise_signal(signal.SIGINT)

    return callback


def test_a_finished_run_that_is_found_is_trusted_as_little_as_any(trained, tmp_path):
    """It is somebody else's, perhaps, who exchanges what has been compared."""
    run = train(shutil.copytree(trained.root_dir, tmp_path / "theirs"))
    with open(run.root_dir / "config.gin", "a") as file:
        file.write("\ncreate_environment.max_episode_steps = @x/create_experiment()\n")
    with pytest.raises(TaacError, match=r"give trust=True.*moved or copied"):
        run.agent  # noqa: B018


def test_ctrl_c_in_a_notebook_returns_a_run_that_the_same_call_resumes(tmp_path, trained, monkeypatch, capsys):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    run = train(tmp_path / "run", on_iteration=interrupt_at(315))
    assert run.status == "interrupted" and run.agent.env_steps == 315
    assert "the same call continues to the same end" in capsys.readouterr().err
    assert run.evaluate(1).summary.episodes == 1
    again = train(tmp_path / "run")
    assert again.status == "finished" and again.about["callbacks"] is None
    assert_same_agent(again, trained)


def test_ctrl_c_ends_a_script_and_other_signals_say_interrupted(tmp_path, monkeypatch):
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.setattr(training, "_interactive", lambda: False)
    with pytest.raises(KeyboardInterrupt, match="the same call continues"):
        train(tmp_path / "run", on_iteration=interrupt_at(305))
    with pytest.raises(Interrupted, match="SIGTERM"):
        train(tmp_path / "run", on_iteration=lambda trainer: signal.raise_signal(signal.SIGTERM))
    assert taac.Run(tmp_path / "run").agent.env_steps == 306


def test_a_second_ctrl_c_stops_at_once_and_ends_no_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(Interruption, "SAME", -1.0)
    with pytest.raises(KeyboardInterrupt, match="stopped at once"):
        train(tmp_path / "run", on_iteration=[interrupt_at(312), interrupt_at(312)])
    assert taac.Run(tmp_path / "run").agent.env_steps == 310  # the last checkpoint


def test_callbacks_are_called_and_named(tmp_path):
    calls = []

    def note(name):
        return lambda trainer: calls.append((name, trainer.env_steps)) or (name == "iteration" and trainer.env_steps == 330)

    run = train(
        tmp_path / "run", on_iteration=note("iteration"), on_evaluation=[note("evaluation")], on_checkpoint=note("checkpoint")
    )
    assert [c for c in calls if c[0] != "iteration"] == [
        ("evaluation", 0), ("checkpoint", 310), ("evaluation", 320), ("evaluation", 330), ("checkpoint", 330),
    ]  # fmt: skip
    assert sorted({c[1] for c in calls if c[0] == "iteration"}) == list(range(1, 331))  # a reset is an iteration, too
    assert run.stopped is None  # the rule that it follows at its last step ends nothing early
    assert [text.partition(":")[0] for text in run.about["callbacks"]] == ["on_iteration", "on_evaluation", "on_checkpoint"]


def test_what_a_callback_draws_changes_nothing(tmp_path, trained):
    agent = trained.agent

    def draw(trainer):
        np.random.rand(3)
        agent.act(np.zeros(3), agent.initial_state(), greedy=False)

    assert_same_agent(train(tmp_path / "run", on_iteration=draw), trained)


def test_a_recording_that_fails_leaves_no_file_in_the_way(tmp_path, trained, monkeypatch):
    def fail(agent, environment, num_episodes, seed, epsilon, on_step):
        path.write_bytes(b"a part of a video")
        raise TaacError("the environment broke")

    path = tmp_path / "x.gif"
    with monkeypatch.context() as broken:
        broken.setattr("taac.playing.episodes.evaluate", fail)
        with pytest.raises(TaacError, match="the environment broke"):
            trained.play(num_episodes=1, record_file=path)
    trained.play(num_episodes=1, record_file=path)
    assert path.stat().st_size > 1000


def test_a_hook_of_another_point_is_refused_as_a_callback(tmp_path):
    with pytest.raises(TaacError, match=r"on_iteration: StopWhen.* is a hook for 'after_evaluation': give it as on_evaluation"):
        train(tmp_path / "run", on_iteration=StopWhen(no_improvement=5))
    with pytest.raises(TaacError, match=r"on_iteration: .*Reset.* is a hook for 'before_update'$"):
        train(tmp_path / "run", on_iteration=Reset(at=(2,)))

    class Picky:
        def __call__(self, trainer):
            pass

        def check(self, trainer):
            raise TaacError(f"not on {trainer.environment.name}")

    with pytest.raises(TaacError, match="not on "):
        train(tmp_path / "run", on_iteration=Picky())
    assert not (tmp_path / "run").exists()


def test_a_callback_that_returns_true_ends_the_run_early(tmp_path, trained):
    run = train(tmp_path / "run", on_iteration=lambda trainer: np.bool_(trainer.env_steps >= 305))
    assert run.status == "finished" and run.curve["env_steps"].tolist() == [0, 305]  # with an evaluation
    assert run.agent.env_steps == 305  # and a checkpoint
    assert run.stopped.startswith("on_iteration: ") and run.stopped.endswith("returned True (at 305 environment steps)")
    assert trained.stopped is None and (run.about["env_steps"], run.about["updates"]) == (305, 5)
    longer = train(tmp_path / "run", num_env_steps=340, extend=True)
    assert longer.stopped is None and longer.agent.env_steps == 340
    assert longer.about["extended"][0]["command"].startswith("taac.train: ")  # not the program's own


def test_an_extension_that_only_fills_the_buffer_says_so(tmp_path, capsys):
    unsaved = {"settings": {"Saving.save_replay": False}}
    train(tmp_path / "run", **unsaved)
    train(tmp_path / "run", num_env_steps=340, extend=True, **unsaved)
    assert "nothing more will be learnt" in "".join(capsys.readouterr())


def test_a_run_that_ends_after_an_iteration_of_resets_is_not_evaluated_twice(tmp_path):
    """Episodes of 20 steps end at the evaluation at 320. The iteration after it takes no step."""
    at = []

    def in_the_second_iteration(trainer):
        at.append(trainer.env_steps)
        return at.count(320) == 2

    run = train(tmp_path / "run", on_iteration=in_the_second_iteration)
    assert run.status == "finished" and run.curve["env_steps"].tolist() == [0, 320]
    assert run.agent.env_steps == 320 and not run_records.read(run.root_dir, run.root_dir).problems


@pytest.mark.slow
def test_a_run_that_was_killed_when_it_had_ended_early_goes_no_further(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed_before_it_is_marked(folder, **changes):
        if changes.get("status") == "finished":
            raise Killed
        update_run(folder, **changes)

    update_run = RunFolder.update_run
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(RunFolder, "update_run", killed_before_it_is_marked)
        train(tmp_path / "run", on_iteration=lambda trainer: trainer.env_steps >= 305)
    run = train(tmp_path / "run", on_iteration=lambda trainer: False)
    assert run.status == "finished" and run.stopped.endswith("returned True (at 305 environment steps)")
    assert run.curve["env_steps"].tolist() == [0, 305]
    longer = train(tmp_path / "run", num_env_steps=335, extend=True)
    assert longer.stopped is None and longer.agent.env_steps == 335


@pytest.mark.slow
def test_an_extended_run_that_fails_before_its_first_checkpoint_still_forgets_why_the_shorter_one_ended(tmp_path):
    def fails(trainer):
        raise RuntimeError("out of memory")

    train(tmp_path / "run", on_iteration=lambda trainer: trainer.env_steps >= 305)
    with pytest.raises(RuntimeError, match="out of memory"):
        train(tmp_path / "run", num_env_steps=335, extend=True, on_iteration=fails)
    assert RunFolder(tmp_path / "run").read_run()["error"] == "RuntimeError: out of memory"
    longer = train(tmp_path / "run", num_env_steps=335)
    assert longer.stopped is longer.about["error"] is None and longer.agent.env_steps == 335


def test_a_run_that_an_evaluation_ends_is_not_evaluated_twice_and_reports_say_so(tmp_path):
    """The rule as a callback, and as the gin file binds it: the latter is kept in config.gin."""
    rule = {"Trainer.hooks": {"after_evaluation": "@StopWhen()"}, "StopWhen.return_at_least": -1e9}
    runs = [
        train(tmp_path / "python", on_evaluation=taac.StopWhen(return_at_least=-1e9)),
        train(tmp_path / "gin", settings=rule),
    ]
    for run in runs:
        assert run.curve["env_steps"].tolist() == [0, 320] and "the return reached -1e+09" in run.stopped
    assert runs[0].about["callbacks"] == ["on_evaluation: StopWhen(return_at_least=-1000000000.0, evaluations=1)"]
    assert runs[1].about["callbacks"] is None and "StopWhen.return_at_least = -1000000000.0" in runs[1].config
    record = run_records.read(runs[0].root_dir, runs[0].root_dir)
    assert list(record.notes) == [f"it ended early, at 320 environment steps: {runs[0].about['stopped']['why']}"]


@pytest.mark.parametrize(
    "held, told",
    [
        (3, []), ({"env_steps": "5", "why": "x"}, []), ({"env_steps": -1}, []),
        ({"env_steps": 5, "why": "\x1b[2J"}, ["it ended early, at 5 environment steps"]),
    ],
)
def test_a_strangers_reason_is_bounded(held, told):
    assert history.describe_stopped({"stopped": held}) == told


class Count:
    """Counts its calls."""

    calls = 0

    def __call__(self, trainer):
        self.calls += 1

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


def test_checkpoints_keep_the_state_of_callbacks(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    first, second = Count(), Count()
    train(tmp_path / "run", on_iteration=[first, interrupt_at(305)])
    train(tmp_path / "run", on_iteration=[second, lambda trainer: True])
    assert first.calls > 300 and second.calls == first.calls + 1


def test_numbers_of_an_evaluation_that_cannot_be_are_refused(trained):
    run = taac.Run(trained.root_dir)
    for given, message in (
        ({"num_episodes": 0}, "num_episodes must be an integer, 1 or more, got 0"), ({"num_episodes": 2.5}, "got 2.5"),
        ({"seed": None}, r"seed must be an integer in \[0, 2\^32\), got None"), ({"seed": -1}, "got -1"),
    ):  # fmt: skip
        with pytest.raises(TaacError, match=message):
            run.evaluate(**given)
    with pytest.raises(TaacError, match=r"epsilon_greedy must be a number in \[0, 1\], got 1.5"):
        run.play(epsilon_greedy=1.5)
    assert run.evaluate(np.int64(1), seed=np.uint32(3)).returns.shape == (1,)


def test_what_is_played_is_what_was_asked_for(trained, monkeypatch):
    run, asked = taac.Run(trained.root_dir, trust=True), []

    def played(*given):
        asked.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr("taac.api.run.play", played)
    for call, given in ((run.play, {"seed": 4, "epsilon_greedy": 0.5, "switch_threshold": 0.7}), (run.evaluate, {})):
        with pytest.raises(KeyboardInterrupt):
            call(3, best=True, **given)
    no_pictures = asked[0][3], asked[1][3]
    assert asked[0] == (trained.root_dir, 3, 4, no_pictures[0], 0.5, True, True, None, 0.7)
    assert asked[1] == (trained.root_dir, 3, 0, no_pictures[1], 0.0, True, True, None, None)
    monkeypatch.setattr("taac.api.run.load_in", lambda environment, folder, best, trust: (folder, best, trust))
    assert (run.agent, run.best_agent) == ((trained.root_dir, False, True), (trained.root_dir, True, True))


@pytest.mark.parametrize(
    "given, message",
    [
        ({"on_evaluation": taac.StopWhen}, "on_evaluation must be a function of the trainer"),
        ({"on_iteration": "f"}, "on_iteration must be a function"),
        ({"total_timesteps": 1}, "what other packages call total_timesteps is num_env_steps here"),
        ({"learning_rat": 1}, r"learning_rat=1: there is no macro and no parameter named 'learning_rat'; did you"),
        ({"method": None}, "method is missing beside environment Pendulum-v1"),
        ({"method": "tac"}, "method tac: there is no method 'tac'; did you mean 'taac'"),
        ({"method": torch.nn.Linear}, "method must be a name, such as 'taac', or a .gin file, got <class.*algorithm_ctor"),
        ({"settings": {"Learner.epsilon": "small"}}, "settings: Learner.epsilon = 'small' has the wrong type"),
        ({"settings": {"gamma": float("nan")}}, "cannot be kept in config.gin"),
        ({"settings": ["gamma=1"]}, r"settings must be a dict of values by name.*got \['gamma=1'\]"),
        ({"gin_files": Path("no.gin")}, "there is no file 'no.gin'"),
        ({"environment": 3}, "an environment must be an id"),
        ({"environment": gymnasium.make_vec("Pendulum-v1", 2)}, "for several copies, set num_envs"),
        ({"environment": None, "method": None, "gin_files": "experiments/smoke.gin", "root_dir": None}, "root_dir is missing"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_before_any_work(tmp_path, given, message):
    arguments = {"root_dir": tmp_path / "run", "environment": "Pendulum-v1", "method": "taac", **given}
    with pytest.raises(TaacError, match=message):
        taac.train(**arguments)
    assert not (tmp_path / "run").exists()
