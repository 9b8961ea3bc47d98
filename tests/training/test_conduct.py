"""What `conduct` decides and records around a training, whose trainer is a stand-in here."""

from __future__ import annotations

import contextlib
import errno
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from taac import configuration
from taac.configuration import RunRequest
from taac.errors import DivergedError, Interrupted, NotFiniteError, RankLost, TaacError
from taac.runs.run_folder import RunFolder
from taac.training import conduct
from taac.training.experiment import create_experiment


class Stop(Exception):
    pass


def stops(*_):
    raise Stop


def begun(path, **about):
    folder = RunFolder(path / "run")
    folder.begin("x", about)
    return folder


noted = []  # folders that were noted as the user's own


def conducted(folder, extend=False, keep=stops, begin=stops, tell=lambda text: None, asked="x", change=False, **more):
    """Until the stand-in is asked for what it does not have."""
    trainer = SimpleNamespace(
        begin=begin, learner=SimpleNamespace(keep=keep), ranks=SimpleNamespace(first=True, count=1),
        parallel=SimpleNamespace(leading=contextlib.nullcontext, alone=True),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configuration, "operative_config", lambda: asked)
        patch.setattr(conduct.own_runs, "note", lambda path, *_: noted.append(path))
        return conduct.conduct(trainer, SimpleNamespace(modules=()), folder, None, extend, tell=tell, change=change, **more)


def test_the_folder_of_a_run_for_which_none_is_given():
    asked = RunRequest("Pendulum-v1", "taac")
    for params, seed in (([], 0), (["create_experiment.seed = %mine", "mine = 3"], 3)):
        found = conduct.default_folder(asked, configuration.load([], params))
        assert found == Path(f"runs/Pendulum-v1/taac/seed_{seed}")


def test_two_lines_say_where_settings_are_from_and_which_decide(tmp_path):
    own = tmp_path / "own.gin"
    own.write_text("gamma = 0.9\n")
    for task, gin_files, first in (
        ("Pendulum-v1", (), "gin/tasks/default.gin (no task file names this environment), gin/methods/taac.gin"),
        ("MountainCarContinuous-v0", (str(own),), f"gin/tasks/simple_control.gin, {own}, gin/methods/taac.gin"),
        (
            "Pendulum-v1", ("gin/durations.gin",),  # in the folder of what method files include
            "gin/tasks/default.gin (no task file names this environment), gin/methods/taac.gin, gin/durations.gin",
        ),
    ):  # fmt: skip
        loaded = RunRequest(task, "taac", gin_files, settings=("learning_rate=0.001", "hidden_layers=8,")).load()
        trainer = configuration.build(create_experiment)
        trainer.close()
        lines = conduct.headline(trainer, loaded, configuration.operative_config())
        assert lines[0] == f"settings: {first}; changed: learning_rate, hidden_layers"
        default = task == "Pendulum-v1"
        assert lines[1] == (
            f"learning rate: 0.001; random steps first: {'1000' if default else '10000'}; "
            f"rewards: {'raw' if default else 'normalised, with their mean subtracted, clipped at 5.0'}; updates a step: 1; "
            "batch: 256 x 4 frames"
        )


def test_what_cannot_be_loaded_is_refused_before_the_folder_exists(tmp_path):
    with pytest.raises(Stop):
        conducted(RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_checkpoint_is_begun_again_as_it_was(tmp_path):
    folder, kept, told = begun(tmp_path, compiled=True, products="plain"), [], []
    with pytest.raises(Stop):
        conducted(folder, keep=lambda *given: kept.append(given) or stops(), tell=told.append)
    assert kept == [(True, "plain")] and told == [f"{folder.path} has no checkpoint: the run begins again"]
    with pytest.raises(Stop):
        conducted(folder, extend=True, keep=lambda *given: kept.append(given) or stops())
    assert kept == [(True, "plain")] * 2 and noted[-2:] == [folder.path] * 2  # before anything is written
    with pytest.raises(TaacError, match="holds no run to train on"):
        conducted(RunFolder(tmp_path / "new"), extend=True)


def test_the_replay_buffer_is_forgotten_by_a_run_that_is_made_longer_or_changed_too(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(conduct.extension, "refuse_ratio", lambda operative: None)
    for go_on in (conduct._extend, conduct._change):
        trainer = SimpleNamespace(agent=SimpleNamespace(compiled=False), resume=lambda *a, **k: asked.append((a, k)) or stops())
        with pytest.raises(Stop):
            go_on(trainer, RunFolder(tmp_path), "x", lambda text: None, True)
    assert [True in a or k.get("forget_replay") for a, k in asked] == [True, True]


def test_a_run_that_another_process_finishes_meanwhile_is_left_alone(tmp_path, monkeypatch):
    folder = begun(tmp_path)

    @contextlib.contextmanager
    def lock(timeout):
        assert timeout == 7.0
        folder.update_run(status="finished")
        yield

    monkeypatch.setattr(folder, "lock", lock)
    assert conducted(folder, lock_timeout=7.0) is False


def test_a_run_that_finishes_before_its_settings_are_changed_keeps_them(tmp_path, monkeypatch):
    """It still trained when the change was checked first, and ended while this process waited for its lock."""
    folder, finds = begun(tmp_path), []

    def check(*_):
        finds.append(folder.read_run()["status"])
        if finds[-1] == "finished":
            raise TaacError("is finished; nothing was changed")

    @contextlib.contextmanager
    def lock(timeout):
        folder.update_run(status="finished")
        yield

    monkeypatch.setattr(conduct, "_check_changes", check)
    monkeypatch.setattr(conduct, "check_count", lambda *_: None)
    monkeypatch.setattr(folder, "has_checkpoints", lambda: True)
    monkeypatch.setattr(folder.checkpoints, "check_format", lambda: None)
    monkeypatch.setattr(folder, "lock", lock)
    with pytest.raises(TaacError, match="nothing was changed"):
        conducted(folder, asked="y", change=True)
    assert finds == ["running", "finished"] and folder.config.read_text() == "x"


def test_a_configuration_that_is_exchanged_while_the_run_is_loaded_is_refused(tmp_path):
    folder = begun(tmp_path)
    folder.config.write_text("import evil\nx")
    before = folder.read_run()
    trainer = SimpleNamespace(env_steps=7, hooks=SimpleNamespace(stopped=None))
    with pytest.raises(TaacError, match="was replaced"):
        conduct._resume(trainer, folder, "x", {})
    assert folder.read_run() == before


def test_a_run_whose_ratio_of_updates_follows_its_length_is_not_extended():
    config = "num_env_steps = 9\nLinearSchedule.env_steps = %num_env_steps\n"
    config += "UpdateRatio.updates_per_env_step = @LinearSchedule()\n"
    with pytest.raises(TaacError, match="this run cannot be extended"):
        conduct._extend(None, None, config, print)  # and nothing is touched


ENDS = [
    (None, None, None, {"status": "running"}),
    (None, signal.SIGTERM, Interrupted("SIGTERM at 7 environment steps"), {"status": "interrupted"}),
    (None, "another rank's", Interrupted("a signal to another rank at 7 environment steps"), {"status": "interrupted"}),
    (OSError(errno.EIO, "broken"), None, OSError("broken"), {"status": "failed", "error": "[Errno 5] broken"}),
    (
        OSError(errno.ENOSPC, "full"), None, TaacError("disk is full .* 5 bytes are needed"),
        {"status": "failed", "error": "[Errno 28] full"},
    ),
    (  # where a hook writes: not the folder's disk
        OSError(errno.ENOSPC, "full", "/elsewhere/x"), None, OSError(errno.ENOSPC, "full", "/elsewhere/x"), {"status": "failed"},
    ),
    (RankLost("rank 1 is gone"), None, Interrupted("rank 1 is gone; resumable"), {"status": "interrupted"}),
    (
        DivergedError("NaN"), None, DivergedError("NaN"),
        {"status": "diverged", "diverged": {"env_steps": 7, "error": "NaN"}, "error": None},
    ),
    (  # of an environment
        NotFiniteError("inf"), None, NotFiniteError("inf"), {"status": "diverged", "diverged": {"env_steps": 7, "error": "inf"}},
    ),
    (TaacError("no"), None, TaacError("no"), {"status": "failed", "error": "no"}),
    (TaacError("no"), signal.SIGINT, Interrupted("SIGINT, and then: no; resumable"), {"status": "interrupted", "error": None}),
    (KeyError("x"), None, KeyError("x"), {"status": "failed", "error": "KeyError: 'x'"}),
]  # fmt: skip


def train(folder, raised, told):
    """Until the stand-in raises an error or was told to stop by a signal, its own or another rank's."""

    def trains(*_):
        if raised is not None:
            raise raised

    trainer = SimpleNamespace(
        env_steps=7, num_env_steps=9, train=trains, checkpoint_bytes=lambda: 5, interrupted=told is not None
    )  # fmt: skip
    interruption = SimpleNamespace(signal=told if isinstance(told, signal.Signals) else None)
    conduct._train(trainer, folder, interruption, {}, lambda *_: contextlib.nullcontext())


@pytest.mark.parametrize("raised, told, expected, recorded", ENDS)
def test_what_ended_a_training_is_recorded(tmp_path, raised, told, expected, recorded):
    folder = begun(tmp_path)
    if expected is None:
        train(folder, raised, told)
    else:
        with pytest.raises(type(expected), match=str(expected.args[-1])) as caught:
            train(folder, raised, told)
        assert type(caught.value) is type(expected)
    held = folder.read_run()
    assert {name: held[name] for name in recorded} == recorded


def test_a_record_that_cannot_be_written_hides_no_error(tmp_path):
    folder = begun(tmp_path)
    folder.run.unlink()
    with pytest.raises(KeyError):
        train(folder, KeyError("x"), None)
