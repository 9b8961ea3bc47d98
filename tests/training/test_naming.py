"""The name of a run's method, by what gin files and parameters bind and by the name of the method file."""

from __future__ import annotations

import pytest

from taac import configuration
from taac.configuration import run_request
from taac.errors import TaacError
from taac.training import experiment

TASK = "gin/tasks/simple_control.gin"
SMALL = ["hidden_layers = (8,)", "create_environment.env_name = 'Pendulum-v1'"]


def bound(loaded):
    return next((b.value for b in loaded.bindings.values() if b.name == "method"), None)


@pytest.mark.parametrize("name", ["sqil_sac", "sqil_taac"])
def test_the_other_method_files_bind_their_names(name):  # see tests/configuration/test_config.py
    assert bound(configuration.load([TASK, f"gin/methods/{name}.gin"])) == name


@pytest.mark.parametrize(
    "file, content, params, expected",
    [
        ("methods/mine.gin", "include 'gin/methods/taac.gin'", [], "mine"),
        ("methods/mine.gin", "include 'gin/methods/taac.gin'\ncreate_experiment.method = 'x'", [], "x"),
        ("methods/mine.gin", "include 'gin/taac_base.gin'", [], "mine"),
        ("mine.gin", "include 'gin/methods/taac.gin'", [], "taac"),
        ("mine.gin", "include 'gin/taac_base.gin'", [], None),
        ("mine.gin", "create_experiment.method = 'x'", [], "x"),
        ("methods/mine.gin", "include 'gin/methods/taac.gin'", ["create_experiment.method = 'y'"], "y"),
        ("methods/it's.gin", "include 'gin/taac_base.gin'", [], "it's"),
    ],
)
def test_where_the_name_is_from(tmp_path, file, content, params, expected):
    (tmp_path / "methods").mkdir()
    (tmp_path / file).write_text(content)
    assert bound(run_request.load_named([TASK, str(tmp_path / file)], params)) == expected


def test_of_several_method_files_the_last_counts(tmp_path, monkeypatch):
    assert bound(run_request.load_named([TASK, "gin/methods/taac.gin", "gin/methods/sac.gin"])) == "sac"
    assert bound(run_request.load_named([TASK, "gin/methods/taac.gin", "gin/cloning.gin"])) == "taac"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "mine.gin").write_text("include 'gin/methods/taac.gin'")
    assert bound(run_request.load_named([TASK, "methods/mine.gin"])) == "mine"


def test_of_two_method_files_without_a_name_the_last_gives_its_own(tmp_path):
    files = [tmp_path / "methods" / name for name in ("first.gin", "second.gin")]
    files[0].parent.mkdir()
    for file in files:
        file.write_text("include 'gin/taac_base.gin'")
    assert bound(run_request.load_named([TASK, *map(str, files)], SMALL)) == "second"


def operative(*files, params=()):
    run_request.load_named([*files], [*SMALL, *params] if TASK in files else params)
    configuration.build(experiment.create_experiment).close()
    return configuration.operative_config()


def test_the_saved_configuration_keeps_the_name(tmp_path):
    (tmp_path / "methods").mkdir()
    mine = tmp_path / "methods" / "mine.gin"
    mine.write_text("include 'gin/methods/sac.gin'")
    (tmp_path / "config.gin").write_text(operative(TASK, str(mine)))
    assert "create_experiment.method = 'mine'\n" in (tmp_path / "config.gin").read_text()
    assert bound(run_request.load_named([str(tmp_path / "config.gin")])) == "mine"


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, "\x1b[2J"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(TaacError, match=r"create_experiment\.method must be printable text of 1 to 200"):
        operative(TASK, "gin/methods/sac.gin", params=[f"create_experiment.method = {name!r}"])


@pytest.mark.parametrize("text", ["", "a\nb", "x" * 201])
def test_a_statement_of_tuning_is_a_line(text):
    with pytest.raises(TaacError, match=r"create_experiment\.tuning must be printable text of 1 to 200"):
        operative(TASK, "gin/methods/sac.gin", params=[f"create_experiment.tuning = {text!r}"])


def test_bounds_of_returns_are_a_range():
    with pytest.raises(TaacError, match=r"create_experiment\.return_bounds must be \(lowest, highest\), got \(1.0, 1.0\)"):
        operative(TASK, "gin/methods/sac.gin", params=["create_experiment.return_bounds = (1.0, 1.0)"])
