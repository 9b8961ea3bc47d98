"""Loggers besides TensorBoard: the same scalars, no influence on the run, one run at the service however often it is resumed."""

from __future__ import annotations

import json
import sys
import types
import uuid
from pathlib import Path
from typing import ClassVar

import gin
import pytest

from taac.analysis.readers import events, run_records
from taac.errors import TaacError
from taac.training import loggers, reporting
from tests.analysis.campaigns import make_run
from tests.methods import thinned
from tests.training.runs import assert_same_parameters, run

ROOT = Path(__file__).resolve().parent.parent.parent
SHORT = ("num_env_steps = 60", "initial_collect_steps = 20", "evaluation_interval = 30", "evaluation_episodes = 1",
         "create_experiment.evaluation_envs = 1", "create_environment.max_episode_steps = 20", "checkpoint_interval = 1000",
         "Intervals.summary_interval = 20")  # fmt: skip


@gin.configurable(module="tests.loggers")
class Notes:
    """Writes down its calls; draws random numbers at each; raises at the calls named in `fails`."""

    name = "notes"
    calls: ClassVar[list] = []

    def __init__(self, fails: tuple[str, ...] = ()):
        self._fails = fails

    def _called(self, what, *about):
        import random

        import numpy as np
        import torch

        random.random(), np.random.rand(), torch.rand(1)
        self.calls.append((what, *about))
        if what in self._fails:
            raise RuntimeError(f"no connection\x1b in {what}")

    def begin(self, about):
        self._called("begin", about.id, about.name, about.env_steps, about.settings["Intervals.num_env_steps"])
        return about.id or "abc"

    def scalars(self, values, env_steps):
        self._called("scalars", env_steps, dict(values))

    def end(self, finished):
        self._called("end", finished)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run without loggers, and its folder."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    return run(folder, *SHORT), folder


@pytest.fixture(autouse=True)
def _nothing_called():
    Notes.calls.clear()


def logged():
    """Tag -> step -> value of what `Notes` received."""
    found = {}
    for what, *about in Notes.calls:
        if what == "scalars":
            for tag, value in about[1].items():
                found.setdefault(tag, {})[about[0]] = value
    return found


def test_a_logger_receives_what_tensorboard_does_and_changes_no_bit(tmp_path, plain):
    trained = run(tmp_path / "run", *SHORT, "Reporter.loggers = @Notes()")
    assert_same_parameters(trained, plain[0])
    curves = events.read(tmp_path / "run").scalars
    assert {"evaluation/return", "rollout/return", "loss/critic", "count/updates"} < set(curves)
    assert {tag: list(steps) for tag, steps in logged().items()} == {t: s.env_steps.tolist() for t, s in curves.items()}
    for tag, series in curves.items():
        assert list(logged()[tag].values()) == pytest.approx(series.value.tolist(), rel=1e-6)
    assert Notes.calls[0] == ("begin", None, "None/Pendulum-v1/seed_0", 0, 60) and Notes.calls[-1] == ("end", True)


def test_a_resumed_run_goes_on_in_the_same_run_of_the_service(tmp_path):
    run(tmp_path / "run", *SHORT, "Reporter.loggers = (@Notes(),)", stop=40)
    assert Notes.calls[-1] == ("end", False)
    assert json.loads((tmp_path / "run" / loggers.IDS).read_text()) == {"notes": "abc"}
    Notes.calls.clear()
    run(tmp_path / "run", *SHORT, "Reporter.loggers = (@Notes(),)")
    assert Notes.calls[0][:4] == ("begin", "abc", "None/Pendulum-v1/seed_0", 40) and Notes.calls[-1] == ("end", True)
    assert min(logged()["loss/critic"]) == 60


@pytest.mark.parametrize("fails", thinned(["begin", "scalars", "end"], ("scalars",)))
def test_a_logger_that_fails_is_left_out_with_one_warning(tmp_path, plain, capsys, fails):
    trained = run(tmp_path / "run", *SHORT, "Reporter.loggers = @Notes()", f"Notes.fails = ('{fails}',)")
    assert_same_parameters(trained, plain[0])
    assert [call[0] for call in Notes.calls].count(fails) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if "notes is left out" in line]
    assert len(told) == 1 and f"RuntimeError: no connection\\x1b in {fails}" in told[0]


def test_a_logger_ends_where_no_event_file_can_be_opened(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(reporting, "SummaryWriter", full)
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path / "run", *SHORT, "Reporter.loggers = @Notes()")
    assert [call[0] for call in Notes.calls] == ["begin", "end"]


def test_what_is_no_logger_is_refused():
    for given, why in ((Notes, "must be loggers"), ((Notes(), 3), "must be loggers, got 3"), ((Notes(), Notes()), "one name")):
        with pytest.raises(TaacError, match=why):
            loggers.Loggers(given)


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda module: None)
    with pytest.raises(TaacError, match="needs the package wandb: pip install wandb"):
        loggers.Wandb()


@pytest.mark.parametrize("given", ["project/run.1", uuid.UUID(int=7)])
def test_an_id_that_would_not_be_read_again_is_said(tmp_path, monkeypatch, capsys, given):
    monkeypatch.setattr(Notes, "begin", lambda self, about: given)
    active = loggers.Loggers(Notes())
    active.begin(make_run(tmp_path / "run"), 0)
    told = capsys.readouterr().err
    assert f"notes gave the run the id {given!r}, which is not kept for when it is resumed: expected 1 to 64" in told
    assert "is left out" not in told


def test_ids_of_a_strangers_folder_are_ids_or_nothing(tmp_path):
    file = tmp_path / loggers.IDS
    assert loggers._read_ids(tmp_path) == {}
    good = {"wandb": "aB3_-"}
    for content, expected in (
        (json.dumps(good), good),
        (json.dumps({**good, "mlflow": "../../x", "a": 3, "b": "x" * 65, "c": ""}), good),
        ("[1]", {}),
        ("{", {}),
        ("[" * 100_000, {}),
    ):
        file.write_text(content)
        assert loggers._read_ids(tmp_path) == expected
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere")
    assert loggers._read_ids(tmp_path) == {}


def test_runs_with_other_loggers_are_of_one_method(plain):
    folder = plain[1]
    config = (folder / "config.gin").read_text()
    assert "Reporter.loggers = ()" in config
    (record,) = run_records.find(folder)
    more = config.replace("Reporter.loggers = ()", "Reporter.loggers = (@Wandb(),)\nWandb.init = {'project': 'mine'}")
    (folder / "config.gin").write_text(more)
    (other,) = run_records.find(folder)
    (folder / "config.gin").write_text(config)
    assert record.settings == other.settings and "Trainer.hooks" in record.settings


def test_wandb_follows_the_event_files(tmp_path, plain, monkeypatch):
    """Played by a stand-in: `init` must come before the event file is opened, because wandb then watches for it."""
    told = []

    def init(**given):
        told.append((given, list((tmp_path / "run").glob("events*"))))
        return types.SimpleNamespace(finish=lambda exit_code: told.append(exit_code))

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, __spec__=None))
    monkeypatch.setattr(loggers.importlib.util, "find_spec", lambda module: module)
    params = (*SHORT, "Reporter.loggers = @Wandb()", "Wandb.init = {'mode': 'offline'}")
    run(tmp_path / "run", *params, stop=40)
    assert_same_parameters(run(tmp_path / "run", *params), plain[0])
    (first, before), stopped, (again, _), ended = told
    assert (before, stopped, ended) == ([], 1, 0)
    assert first["sync_tensorboard"] is True and first["mode"] == "offline" and first["project"] == "taac"
    assert first["group"] == "None/Pendulum-v1" and first["config"]["Intervals.num_env_steps"] == 60
    assert again["id"] == first["id"] and again["resume"] == "allow"


def test_wandb_itself_writes_the_scalars(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install wandb")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    run(tmp_path / "run", *SHORT, "Reporter.loggers = @Wandb()", "Wandb.init = {'mode': 'offline'}")
    (written,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert b"evaluation/return" in written.read_bytes() and b"loss/critic" in written.read_bytes()


def test_the_documented_logger_logs_to_mlflow(tmp_path, monkeypatch):
    """Played by a stand-in of the four functions that it calls."""
    told, started = [], types.SimpleNamespace(info=types.SimpleNamespace(run_id="7"))
    mlflow = types.SimpleNamespace(
        start_run=lambda run_id, run_name: told.append((run_id, run_name)) or started,
        log_params=told.append, log_metrics=lambda values, step: told.append((step, values)), end_run=told.append,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    code = (ROOT / "docs" / "loggers.md").read_text().partition("```python\n")[2].partition("```")[0]
    exec(code.replace("@gin.configurable", ""), names := {})
    logger = names["MyMlflow"]()
    logged = loggers.Loggers(logger)
    logged.begin(make_run(tmp_path / "run"), 0)
    logged.scalars({"loss/critic": 1.0}, 20)
    logged.end(False)
    assert told[0][0] is None and "Intervals.num_env_steps" in told[1]
    assert told[2:] == [(20, {"loss/critic": 1.0}), "KILLED"]
    logged.begin(tmp_path / "run", 20)
    assert told[-1][0] == "7", "the resumed run goes on in the same run, and its parameters are not logged again"
