"""Damaged, altered and foreign checkpoints and folders: restored, or refused by name."""

from __future__ import annotations

import copy
import errno
import os
import random
import shutil

import pytest
import torch

from taac import configuration
from taac.errors import TaacError
from taac.runs import files, history, run_folder, tensor_files
from taac.runs.checkpoint import Checkpoint
from taac.runs.files import Damaged
from taac.runs.layout import EpisodeSummary
from taac.runs.run_folder import RunFolder
from tests.methods import thinned
from tests.training.runs import assert_same_parameters, build, rows, run


def _running(state):
    """What a checkpoint holds of the running episodes."""
    return state["collector"]["running"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was told to stop after 70 steps."""
    return run(tmp_path_factory.mktemp("stopped") / "run", stop=70)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda state: state["random"]["numpy"].update(pos=10**6), "no state of numpy's generator"),
        (lambda state: state["random"]["numpy"].update(pos=-1), "no state of numpy's generator"),
        (lambda state: state["random"]["numpy"].update(key=torch.zeros(5)), "no state of numpy's generator"),
        (lambda state: _running(state).update(policy=[v.double() for v in _running(state)["policy"]]), "of another kind"),
        (lambda state: _running(state).update(policy=_running(state)["policy"][1:]), "of another kind"),
        (lambda state: _running(state).update(time_step=_running(state)["time_step"][1:]), "of another kind"),
        (lambda state: _running(state).update(numbers=[-1]), "no numbers of 1 episodes"),
        (lambda state: state["collector"].update(env_steps=-(10**12)), "it counts -1000000000000 env_steps"),
    ],
)
def test_a_checkpoint_with_a_part_of_another_kind_is_damaged(stopped, tmp_path, change, message):
    """One of them would make numpy read outside of its memory."""
    state = copy.deepcopy({name: part.state_dict() for name, part in stopped.saver.parts.items()})
    change(state)
    trainer = build("Saving.save_replay = False")
    with pytest.raises(Damaged, match=message):
        trainer.saver.load(Checkpoint(tmp_path / "70.json", 70, state, []))
    trainer.close()


def test_a_run_of_a_version_whose_checkpoints_have_another_format_is_refused_as_such(tmp_path, monkeypatch):
    """Its configuration differs too, by what has been added: that is not what is to be said."""
    run(tmp_path / "run", stop=70)
    folder, trainer = RunFolder(tmp_path / "run"), build()
    path = folder.checkpoints.path / "70.json"
    content = tensor_files.read_manifest(path)
    with monkeypatch.context() as earlier:
        earlier.setattr(tensor_files, "FORMAT", 2)
        path.write_bytes(tensor_files.make_manifest(content))
    operative = configuration.operative_config()
    for held in (operative, operative.replace("Saving.keep_checkpoints = 2\n", "")):
        folder.config.write_text(held)
        with pytest.raises(TaacError, match=r"70\.json has format 2, and this version of taac reads format 3: go on with"):
            folder.open(operative)
            trainer.resume(folder)
    trainer.close()


WHOLE = {}


@pytest.mark.slow
@pytest.mark.parametrize("kind, method", [("frames", "taac"), ("safetensors", "sac"), ("json", "taac")])
def test_a_damaged_checkpoint_costs_steps_and_no_bits(tmp_path, capsys, kind, method):
    params = ("checkpoint_interval = 20", "evaluation_interval = 20", "evaluation_episodes = 1", "num_env_steps = 360",
              "Evaluator.initial_evaluation = False", "create_environment.max_episode_steps = 50")  # fmt: skip
    if method not in WHOLE:
        WHOLE[method] = run(tmp_path / "whole", *params, method=method), rows(tmp_path / "whole")
    run(tmp_path / "run", *params, until=345, method=method)
    folder = RunFolder(tmp_path / "run")
    name = {"frames": "frames-0-346.safetensors", "safetensors": "340.safetensors", "json": "340.json"}[kind]
    file = folder.checkpoints.path / name  # 340 steps in 6 episodes are 346 frames
    file.write_bytes(file.read_bytes()[:-9])
    trainer = build(*params, method=method)
    trainer.resume(folder)
    trainer.close()
    assert folder.checkpoints.saved() == [320] and trainer.env_steps == 320
    resumed = run(tmp_path / "run", *params, method=method)
    said = capsys.readouterr().err
    assert "340.json" in said and "looking for the one before it" in said
    assert_same_parameters(WHOLE[method][0], resumed)
    assert WHOLE[method][1] == rows(tmp_path / "run")


OFTEN = ("checkpoint_interval = 100", "evaluation_interval = 100", "evaluation_episodes = 1")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a run that was killed at 350 steps, with a checkpoint at 300."""
    path = tmp_path_factory.mktemp("killed") / "run"
    run(path, *OFTEN, until=350)
    return path


def resumed(folder):
    trainer = build(*OFTEN)
    trainer.resume(folder)
    trainer.close()


@pytest.mark.parametrize("name", ["evaluations.csv", "run.json"])
@pytest.mark.parametrize("kind", thinned(["changed", "cut", "gone"], ("cut",)))
def test_records_that_were_altered_are_said_and_restored(killed, tmp_path, capsys, name, kind):
    folder = RunFolder(shutil.copytree(killed, tmp_path / "run"))
    expected, about = rows(folder.path)[:4], folder.read_run()
    file = folder.path / name
    text = file.read_text()
    if kind == "gone":
        file.unlink()
    else:
        file.write_text(
            text.replace("300", "301").replace('"seed": 0', '"seed": 1') if kind == "changed" else text[:50]
        )
    resumed(folder)
    assert rows(folder.path) == expected and folder.read_run() == about
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("part, name, count", [("learner", "num_updates", -(10**12)), ("update_ratio", "transitions", 10**12)])
def test_updates_that_no_run_owes_are_refused(tmp_path, part, name, count):
    """They would be taken at once, without end."""
    clock = "UpdateRatio.update_clock = 'transitions'"
    run(tmp_path / "run", clock, stop=70)
    path = tmp_path / "run" / "checkpoints" / "70.json"
    content = tensor_files.read_manifest(path)
    content["state"][part][name] = count
    path.write_bytes(tensor_files.make_manifest(content))
    trainer = build(clock)
    with pytest.raises(TaacError, match="no run writes that"):
        trainer.resume(RunFolder(tmp_path / "run"))
    trainer.close()


@pytest.mark.parametrize("name", ["config.gin", "evaluations.csv"])
@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b"\xff\n"), lambda path: path.unlink()])
def test_a_file_that_is_changed_while_the_run_writes_its_checkpoints_is_named(tmp_path, name, change):
    stopped = run(tmp_path / "run", stop=70)
    folder = RunFolder(tmp_path / "run")
    change(folder.path / name)
    with pytest.raises(TaacError, match=f"{name} has changed since this run wrote it"):
        stopped.saver.save(folder, 70)


@pytest.mark.slow
def test_a_damaged_frame_file_may_be_left_behind(tmp_path):
    params = ("checkpoint_interval = 100", "num_env_steps = 400", "evaluation_interval = 1000", "initial_collect_steps = 100")
    stopped = run(tmp_path / "run", *params, stop=250)
    folder = RunFolder(tmp_path / "run")
    for file in folder.checkpoints.path.glob("frames-*"):
        file.write_bytes(b"damaged")
    with pytest.raises(TaacError, match=r"no checkpoint in .* is whole.*--forget_replay"):
        build(*params).resume(folder)
    trainer = build(*params)
    trainer.resume(folder, forget_replay=True)
    assert_same_parameters(stopped, trainer)
    optimizers = [t.learner.optimizer.state_dict()["state"] for t in (stopped, trainer)]
    assert all(torch.equal(v, optimizers[1][i][name]) for i, of in optimizers[0].items() for name, v in of.items())
    assert trainer.replay_buffer.size == 0 and trainer.env_steps == stopped.env_steps == 250
    assert trainer.learner.num_updates == stopped.learner.num_updates == 150
    trainer.train(folder, stop=lambda: trainer.env_steps >= 380)
    trainer.close()
    assert trainer.learner.num_updates == 150 + 380 - 250 - 100  # none while it is filled
    resumptions = [{}, {"env_steps": 250, "forgot_replay": True}, {"env_steps": -1, "forgot_replay": True}]
    (told,) = history.describe_changes({"resumed": resumptions})
    assert "250 environment steps without its replay buffer" in told
    resumed = run(tmp_path / "run", *params)  # what it wrote since is whole
    assert resumed.env_steps == 400 and resumed.learner.num_updates == 150 + 400 - 250 - 100


def test_what_a_run_itself_changes_in_its_records_is_not_taken_for_damage(killed, tmp_path, capsys):
    folder = RunFolder(shutil.copytree(killed, tmp_path / "run"))
    changes = {
        "status": "interrupted", "end": "then", "resumed": [{"env_steps": 7}], "diverged": {"env_steps": 340},
        "compiled": False,  # as where compiling has failed
    }  # fmt: skip
    folder.update_run(**changes)
    capsys.readouterr()
    resumed(folder)
    assert not capsys.readouterr().err and changes.items() <= folder.read_run().items()


def test_whatever_a_strangers_checkpoint_holds_is_taken_or_refused(tmp_path):
    """Any plain value in any place of it, its checksums right: no exception but `TaacError`."""
    params = ("checkpoint_interval = 100", "num_env_steps = 350")
    run(tmp_path / "run", *params, stop=330)
    trainer, folder = build(*params), RunFolder(tmp_path / "run")
    for steps in folder.checkpoints.saved()[1:]:
        (folder.checkpoints.path / f"{steps}.json").unlink()
    path = folder.checkpoints.path / "330.json"
    whole, rng, taken = path.read_bytes(), random.Random(0), 0

    def places(content, way=()):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield (*way, key)
            if isinstance(content[key], (dict, list)) and content[key]:
                yield from places(content[key], (*way, key))

    found = list(places(tensor_files.read_manifest(path)["state"]))
    for way in rng.sample(found, 60):
        content = tensor_files.read_manifest(path)
        inner = content["state"]
        for key in way[:-1]:
            inner = inner[key]
        inner[way[-1]] = rng.choice(
            [None, -1, 10**30, 0.5, float("nan"), "x", [], {}, [1, "y"], {"$tensor": "random/cpu"}]
        )
        path.write_bytes(tensor_files.make_manifest(content))
        try:
            trainer.resume(folder)
            taken += 1
        except TaacError:
            pass
        path.write_bytes(whole)
    trainer.close()
    assert 0 < taken < 45


@pytest.mark.slow
def test_an_optimizer_of_other_shapes_is_refused(tmp_path):
    """torch does not look, and would read past the end of what is too short."""
    run(tmp_path / "run", "checkpoint_interval = 100", "num_env_steps = 310")
    trainer, folder = build("checkpoint_interval = 100", "num_env_steps = 310"), RunFolder(tmp_path / "run")
    path = folder.checkpoints.path / "310.json"
    content = tensor_files.read_manifest(path)
    moments = dict(content["state"]["learner"]["optimizer"]["state"]["$items"])[0]
    moments["exp_avg"], moments["step"] = moments["step"], moments["exp_avg"]
    path.write_bytes(tensor_files.make_manifest(content))
    with pytest.raises(TaacError, match=r"of another optimizer: '(step|exp_avg)' of parameter 0 is .* expected"):
        trainer.resume(folder)
    trainer.close()


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run(tmp_path / "a", "Intervals.checkpoint_interval = 100", until=250)
    run(tmp_path / "b", "Intervals.checkpoint_interval = 100", "create_experiment.seed = 1", until=250)
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    shutil.copytree(tmp_path / "b" / "checkpoints", tmp_path / "a" / "checkpoints")
    with pytest.raises(TaacError, match="to a run with another configuration"):
        run(tmp_path / "a", "Intervals.checkpoint_interval = 100")


def test_only_one_process_trains_in_a_folder(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.lock(), pytest.raises(TaacError, match="another process"), second.lock():
        pass
    with second.lock():
        pass
    assert first.open("") == "new"  # the lock alone is no run


def test_a_process_that_was_forked_meanwhile_keeps_nobody_out(tmp_path, monkeypatch):
    """Such as one that still compiles for a run that was told to stop: it has what the run had open."""
    folder, opened, open_file = RunFolder(tmp_path / "run"), [], files.open_file

    def opens(*args):
        opened.append(open_file(*args))
        return opened[-1]

    monkeypatch.setattr(files, "open_file", opens)
    with folder.lock():
        forked = os.dup(opened[0])
    with folder.lock():
        pass
    os.close(forked)


def test_a_file_system_without_locks_is_told_as_that(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_folder.fcntl, "flock", flock)
    told = r"\.lock cannot be locked \(.*No locks available\).*file system with locks"
    with pytest.raises(TaacError, match=told), RunFolder(tmp_path / "run").lock():
        pass


def test_what_was_told_since_the_last_checkpoint_is_no_damage(tmp_path):
    """Whether updates run compiled is known only once a compiler has failed, which may come after a checkpoint."""
    folder = RunFolder(tmp_path)
    folder.begin("a configuration", {})
    records = folder.records()
    folder.update_run(compiled=False)
    folder.add_evaluation(90, 40, 90, 1.0, EpisodeSummary(*[1] * 14))
    folder.update_run(status="finished", env_steps=90, updates=40)  # and is trained on with --extend
    assert folder.restore(records) == []
    for ended in ({"status": "diverged", "diverged": {"env_steps": 3}}, {"status": "failed", "error": "it"}):
        folder.update_run(**ended)
        assert folder.restore(records) == []
        assert {name: folder.read_run()[name] for name in ended} == ended
    assert folder.read_run()["compiled"] is False and not rows(tmp_path)


@pytest.mark.parametrize("name, text", [("config.gin", "gamma = 0.9"), ("run.json", '{"mine": 1}')])
def test_a_file_of_the_users_own_is_not_taken_for_a_run(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(TaacError, match="holds no run of taac"):
        RunFolder(tmp_path).open("a configuration")
