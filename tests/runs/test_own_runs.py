"""Which runs are one's own, and which only look like it."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from taac.runs import own_runs
from taac.runs.run_folder import RunFolder

CONFIG = "import taac_own_module\na = 1\n"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home for the list, and a path without what other tests added."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "state" / "taac" / "runs"


@pytest.fixture
def project(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "taac_own_module.py").write_text("raise SystemExit('it was imported')")
    return tmp_path / "project"


@pytest.fixture
def run(tmp_path, project, monkeypatch):
    """The folder of a run that imported a module of the project, whose folder is no longer on the path."""
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as there:
        there.syspath_prepend(str(project))
        folder.begin(CONFIG, {})
        own_runs.note(folder.path, CONFIG, ["taac_own_module.sub", "taac.algorithms"])
    return folder


def allowed(folder):
    own_runs.allow_imports(folder, (folder / "config.gin").read_text())


def test_what_ones_own_run_imported_is_importable_and_not_imported(run, project, home):
    allowed(run.path)
    assert sys.path[-1] == str(project) and "taac_own_module" not in sys.modules
    assert home.parent.stat().st_mode & 0o777 == 0o700
    own_runs.note(run.path, CONFIG, [])
    own_runs.note(run.path, CONFIG, [])  # as when it resumes
    assert len([*filter(None, home.read_text().splitlines())]) == 2


@pytest.mark.parametrize("torn", [b'["0123', b"\xff"])
def test_a_torn_line_does_not_hide_the_next(run, home, torn):
    text = home.read_bytes()
    home.write_bytes(torn)
    own_runs.note(run.path, CONFIG, [])
    allowed(run.path)
    assert home.read_bytes().startswith(torn) and len(home.read_bytes()) < len(torn) + len(text)
    home.write_bytes(text.strip()[:80])  # torn after the digest
    own_runs.note(run.path, CONFIG, [])
    allowed(run.path)


def test_it_does_not_matter_from_where_it_is_asked_nor_what_its_modules_hold_now(run, project, monkeypatch):
    (project / "taac_own_module.py").write_text("changed = True")
    run.update_run(status="finished", end="now")
    monkeypatch.chdir(run.path.parent)
    allowed(run.path.relative_to(run.path.parent))


@pytest.mark.parametrize(
    "change",
    [
        lambda run, home: run.config.write_text(CONFIG + "import os\n"),
        lambda run, home: run.path.rename(run.path.with_name("other")),
        lambda run, home: shutil.copytree(run.path, run.path.with_name("other")),
        lambda run, home: home.unlink(),
        lambda run, home: home.write_text(home.read_text()[:80]),
        lambda run, home: home.write_bytes(b"\xff"),
    ],
    ids=["config.gin is changed", "moved", "copied", "no list", "a torn list", "no text"],
)
def test_what_only_looks_like_ones_own_run(run, home, change):
    change(run, home)
    other = run.path.with_name("other")
    with pytest.raises(own_runs.NotOwn):
        allowed(other if other.exists() else run.path)


def test_packages_and_installed_modules_have_folders_too(run, project, monkeypatch, home):
    (project / "taac_own_package").mkdir()
    (project / "taac_own_package" / "__init__.py").write_text("")
    (project / "taac_own_namespace").mkdir()
    monkeypatch.syspath_prepend(str(project))
    assert own_runs._folder_of("taac_own_package") == own_runs._folder_of("taac_own_namespace") == str(project)
    assert os.path.samefile(own_runs._folder_of("pytest"), os.path.dirname(os.path.dirname(pytest.__file__)))
    assert own_runs._folder_of("sys") is None and own_runs._folder_of("taac_there_is_no_such_module") is None


def test_without_a_home_nothing_is_noted(run, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("XDG_STATE_HOME", str(place))
        own_runs.note(run.path, CONFIG, [])
        with pytest.raises(own_runs.NotOwn):
            allowed(run.path)


def test_a_relative_state_home_counts_for_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert own_runs._notes() == tmp_path / ".local" / "state" / "taac" / "runs"
