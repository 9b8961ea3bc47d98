"""Functions of the user's, called at points of the training loop."""

from __future__ import annotations

import errno

import gin
import numpy as np
import pytest
import torch

from taac.acting import evaluation as evaluation_module
from taac.acting.metrics import summarize
from taac.errors import TaacError
from taac.runs import durable
from taac.runs.run_folder import RunFolder
from taac.training.hooks import POINTS, Hooks, StopWhen
from taac.training.warm_start import load_parts
from tests.training.runs import assert_resumes_exactly, assert_same_parameters, build, run

SHORT = ("num_env_steps = 330", "evaluation_interval = 320", "checkpoint_interval = 310", "evaluation_episodes = 1",
         "create_experiment.evaluation_envs = 1", "create_environment.max_episode_steps = 20")  # fmt: skip
CALLS: list[tuple[str, int, int]] = []


@gin.configurable(module="tests.hooks")
class Note:
    """Writes down where the run is whenever it is called; counts its calls, which checkpoints keep."""

    def __init__(self, name: str = "note"):
        self.name, self.count = name, 0

    def __call__(self, trainer):
        self.count += 1
        CALLS.append((self.name, trainer.env_steps, trainer.learner.num_updates))

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@gin.configurable(module="tests.hooks")
def halve_the_temperature(trainer):
    trainer.agent.algorithm.action_temperature.value.data.sub_(0.7)


def test_every_point_is_reached_in_its_place(tmp_path):
    CALLS.clear()
    trainer = build(*SHORT, "Saving.keep_checkpoints = 1")
    for point in POINTS:
        trainer.hooks.add(point, Note(point))
    folder = RunFolder(tmp_path)
    folder.begin("x", {})
    trainer.train(folder)
    trainer.close()
    step = [c for c in CALLS if c[1] in (301, 302) and c[0] != "before_collect"]
    assert step == [
        ("after_collect", 301, 0), ("before_update", 301, 0), ("after_update", 301, 1), ("after_iteration", 301, 1),
        ("after_collect", 302, 1), ("before_update", 302, 1), ("after_update", 302, 2), ("after_iteration", 302, 2),
    ]  # fmt: skip
    assert ("before_collect", 301, 1) in CALLS and ("after_collect", 302, 1) in CALLS
    assert [c[:2] for c in CALLS if "evaluation" in c[0]] == [
        ("before_evaluation", 0), ("after_evaluation", 0), ("before_evaluation", 320), ("after_evaluation", 320),
        ("before_evaluation", 330), ("after_evaluation", 330),
    ]  # fmt: skip
    assert [c[:2] for c in CALLS if "checkpoint" in c[0]] == [
        ("before_checkpoint", 310), ("after_checkpoint", 310), ("before_checkpoint", 330), ("after_checkpoint", 330),
    ]  # fmt: skip
    assert folder.checkpoints.saved() == [330]


def test_an_evaluation_that_is_told_to_stop_is_prepared_once(tmp_path):
    CALLS.clear()

    def make():
        trainer = build(*SHORT)
        trainer.hooks.add("before_evaluation", Note("before_evaluation"))
        return trainer

    folder, asked = RunFolder(tmp_path), []
    folder.begin("x", {})
    begun = make()

    def stop():  # in the middle of the evaluation at 320
        asked.append(begun.env_steps)
        return asked.count(320) > 2

    begun.train(folder, stop=stop)
    begun.close()
    assert begun.evaluator.unfinished and begun.env_steps == 320
    resumed = make()
    resumed.resume(folder)
    asked.clear()
    resumed.train(folder, stop=lambda: (asked.append(resumed.env_steps), resumed.env_steps > 320)[1])
    saved = folder.checkpoints.read(320)  # so that a run killed after it does not evaluate once more
    assert not saved.part("evaluator")["unfinished"]
    resumed.train(folder)
    resumed.close()
    assert [c[1] for c in CALLS] == [0, 320, 330]


@pytest.mark.slow
def test_gin_binds_functions_and_objects_and_checkpoints_keep_their_state(tmp_path):
    params = (*SHORT, "Trainer.hooks = {'before_update': (@halve_the_temperature, @Note()), 'after_collect': @Note()}")
    without = run(tmp_path / "without", *SHORT)
    whole, resumed = assert_resumes_exactly(tmp_path, *params, stop=[315])
    assert whole.agent.algorithm.action_temperature.value < without.agent.algorithm.action_temperature.value - 10
    assert whole.hooks.state_dict() == resumed.hooks.state_dict()
    assert [state["count"] for state in whole.hooks.state_dict().values()] == [
        whole.learner.num_updates,
        # LAST frames are acted at, too
        330 + whole.collector.episodes,
    ]


@pytest.mark.slow
def test_a_hook_that_looks_changes_nothing(tmp_path):
    looked = []
    trainer = build(*SHORT)
    for point in POINTS:
        trainer.hooks.add(point, lambda t: looked.append(t.env_steps))
    folder = RunFolder(tmp_path / "looked")
    folder.begin("x", {})
    trainer.train(folder)
    trainer.close()
    assert len(looked) > 100
    assert_same_parameters(trainer, run(tmp_path / "plain", *SHORT))


def test_one_object_at_two_points_has_one_state():
    note = Note()
    hooks = Hooks({"before_update": note, "after_update": [note]})
    assert hooks.state_dict() == {"before_update/0": {"count": 0}}
    hooks.load_state_dict({"before_update/0": {"count": 4}, "gone/0": {}})
    assert note.count == 4


def test_states_find_their_hooks_by_place_and_none_is_dropped_without_a_word(capsys):
    first, second = Note(), Note()
    first.count, second.count = 1, 2
    saved = Hooks({"after_iteration": [first, second]}).state_dict()
    Hooks({"after_iteration": [Note(), Note()]}).load_state_dict(saved)
    assert capsys.readouterr().err == ""
    alone = Note()
    Hooks({"after_iteration": alone, "before_update": Note()}).load_state_dict(saved)
    assert alone.count == 1 and "no hook takes the saved state of after_iteration/1" in capsys.readouterr().err
    stop, saved = Hooks({"after_evaluation": [StopWhen(1.0)]}), {"after_evaluation/0": saved["after_iteration/0"]}
    with pytest.raises(TaacError, match=r"the hook after_evaluation/0, StopWhen\(.*KeyError.*in the same order"):
        stop.load_state_dict(saved)


def test_a_hook_of_one_point_is_refused_at_another():
    """At "after_iteration" it would count one evaluation many times."""
    stop = StopWhen(no_improvement=1)  # that has ended a run
    stop.load_state_dict({"best": 5.0, "enough": 2, "without": 3})
    Hooks({"after_evaluation": stop}).check(None)
    assert stop.state_dict() == {"best": None, "enough": 0, "without": 0}
    with pytest.raises(TaacError, match=r"hooks\['after_iteration'\]: StopWhen\(.*\) is a hook for 'after_evaluation'"):
        Hooks({"after_iteration": StopWhen(no_improvement=5)})


def test_a_state_that_cannot_be_saved_is_refused_before_training(tmp_path):
    note, trainer = Note(), build(*SHORT)
    note.count = np.int64(3)
    trainer.hooks.add("after_update", note)
    with pytest.raises(
        TaacError, match="state of a hook cannot be saved: 'after_update/0/count': a int64 cannot be saved"
    ):
        trainer.train(RunFolder(tmp_path))
    trainer.close()
    assert trainer.env_steps == 0


def test_a_state_that_could_not_be_restored_is_not_saved():
    class Module(torch.nn.Module):
        def __call__(self, trainer): ...

    class Half:
        def __call__(self, trainer): ...

        def state_dict(self):
            return {"x": 1}

    assert list(Hooks({"after_update": (Half(), Module())}).state_dict()) == ["after_update/1"]


@pytest.mark.parametrize(
    "given, message",
    [
        ({"after_updates": print}, "no point 'after_updates'; did you mean 'after_update'.*before_collect"),
        ({"after_update": "print"}, "must be a function of the trainer .* got 'print'"),
        ({"after_update": (print, 3)}, "got 3; in a gin file"),
        ({"after_update": Note}, "got <class .*an object @ItsClass()"),
    ],
)
def test_what_cannot_be_called_is_refused_before_any_work(given, message):
    with pytest.raises(TaacError, match=message):
        Hooks(given)
    with pytest.raises(TaacError, match="no point 'x'"):
        build("Trainer.hooks = {'x': @halve_the_temperature}")


@pytest.mark.slow
def test_the_agent_of_the_best_evaluation_is_kept_over_a_resume(tmp_path):
    params = ("num_env_steps = 420", "evaluation_interval = 20", "evaluation_episodes = 1", "checkpoint_interval = 30",
              "create_environment.max_episode_steps = 20", "UpdateRatio.updates_per_env_step = 0.5")  # fmt: skip
    agents, folder = {}, RunFolder(tmp_path / "whole")
    trainer = build(*params)
    trainer.hooks.add(
        "after_evaluation",
        lambda t: agents.update(
            {t.env_steps: (t.evaluation.return_mean, {k: v.clone() for k, v in t.agent.state_dict().items()})}
        ),
    )
    folder.begin("x", {})
    trainer.train(folder)
    trainer.close()
    del agents[0]  # the untrained agent is not kept, however good it is
    best = max(agents, key=lambda steps: agents[steps][0])  # the first of equals
    assert len(agents) == 21 and best not in (20, 420)
    found = folder.best.newest()
    assert folder.best.saved() == [best] and found.part("evaluation")["return_mean"] == agents[best][0]
    assert all(torch.equal(value, agents[best][1][name]) for name, value in found.part("agent").items())
    other = build(*params)
    (record,) = load_parts(other.learner, other.environment, [f"{folder.path}/best:actor"])
    other.close()
    assert record == {"run": str(folder.path), "module": "algorithm.actor", "env_steps": best}
    assert all(
        torch.equal(v, agents[best][1][f"algorithm.actor.{k}"])
        for k, v in other.agent.algorithm.actor.state_dict().items()
    )
    assert best + 60 < 420  # so that a checkpoint lies between it and the end
    for moment in (best - 5, best + 45):
        run(tmp_path / "killed", *params, until=moment)
    run(tmp_path / "killed", *params)
    again = RunFolder(tmp_path / "killed").best
    assert again.saved() == [best]
    assert all(torch.equal(value, agents[best][1][name]) for name, value in again.newest().part("agent").items())


@pytest.mark.slow
def test_the_best_agent_is_one_of_the_runs_own_after_a_resume_with_other_bits(tmp_path, monkeypatch):
    """Without its replay buffer, a resumed run goes another way: evaluations after the checkpoint are not its own."""
    returns = iter([99, 10, 20, 30, 40, 0, 15, 0, 0, 25, 0, 0])
    monkeypatch.setattr(evaluation_module, "summarize", lambda e: summarize(e)._replace(return_mean=float(next(returns))))
    params = (*SHORT[1:], "num_env_steps = 400", "evaluation_interval = 20", "checkpoint_interval = 50",
              "Saving.save_replay = False", "Intervals.summary_interval = 1000")  # fmt: skip
    folder = RunFolder(tmp_path)
    trainer = run(
        tmp_path, *params, until=95
    )  # evaluations 99 at step 0, which does not count, 10, 20 | 30, 40: the checkpoint at 50 knows of the first two
    assert trainer.env_steps == 95 and folder.best.saved() == [80, 40]
    run(tmp_path, *params, until=62)  # at 60: 0
    assert folder.best.saved() == [40] and folder.best.newest().part("evaluation")["return_mean"] == 20
    run(tmp_path, *params, until=85)  # at 60: 15, at 80: 0
    assert folder.best.saved() == [40]
    run(tmp_path, *params, until=105)  # at 60: 0, at 80: 25, at 100: 0; a checkpoint at 100
    assert folder.best.saved() == [80] and folder.best.newest().part("evaluation")["return_mean"] == 25


def test_a_full_disk_says_from_where_the_run_goes_on(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    run(tmp_path, *SHORT, stop=315)

    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "write", full)
    with pytest.raises(TaacError, match=r"disk is full at .*best.* the checkpoint at 315 environment steps is whole"):
        folder.save_best(320, {})


def test_a_run_in_a_folder_that_is_called_best_can_be_loaded_from(tmp_path):
    trainer = run(tmp_path / "best", *SHORT)
    (record,) = load_parts(trainer.learner, trainer.environment, [f"{tmp_path / 'best'}:actor"])
    assert record["env_steps"] == 330
    (record,) = load_parts(trainer.learner, trainer.environment, [f"{tmp_path / 'best' / 'best'}:actor"])
    assert record["env_steps"] in (320, 330)


def test_the_best_is_not_kept_where_nobody_wants_it(tmp_path):
    run(tmp_path, *SHORT, "Saving.save_best = False")
    assert not (tmp_path / "best").exists()


def test_a_run_that_is_told_to_stop_when_a_hook_has_ended_it_is_not_finished_before_its_evaluation(tmp_path):
    trainer, folder = build(*SHORT), RunFolder(tmp_path / "run")
    trainer.hooks.add("after_checkpoint", lambda t: t.stop_early("enough"))
    folder.begin("x", {})
    trainer.train(folder, stop=lambda: trainer.env_steps >= 10)
    assert trainer.env_steps == 10 and trainer.interrupted
    trainer.train(folder)
    trainer.close()
    assert trainer.env_steps == trainer.evaluator.evaluated_at == 11 and not trainer.interrupted


def test_the_checkpoint_of_a_run_that_a_hook_ends_has_the_evaluation_that_a_signal_had_ended(tmp_path):
    trainer, folder = build(*SHORT), RunFolder(tmp_path / "run")
    trainer.hooks.add("after_iteration", lambda t: t.env_steps >= 10 and t.stop_early("enough"))
    folder.begin("x", {})
    trainer.train(folder, stop=lambda: trainer.stopped is not None)
    assert trainer.interrupted and folder.checkpoints.newest().part("evaluator")["unfinished"]
    trainer.train(folder)
    trainer.close()
    assert not trainer.interrupted and folder.checkpoints.newest().part("evaluator")["evaluated_at"] == 10
