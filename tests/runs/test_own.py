"""Seals: which runs are one's own, and which only look like it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from taac.runs import own
from taac.runs.run_folder import RunFolder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="owners and permissions of POSIX")
CONFIG = "import taac_own_module\na = 1\n"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home for the key, and a path without what other tests added."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "state" / "taac" / "key"


@pytest.fixture
def project(tmp_path):
    (tmp_path / "project").mkdir(mode=0o755)
    (tmp_path / "project" / "taac_own_module.py").write_text("raise SystemExit('it was imported')")
    return tmp_path / "project"


@pytest.fixture
def run(tmp_path, project, monkeypatch):
    """The folder of a sealed run that imported a module of the project, whose folder is no longer on the path."""
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as there:
        there.syspath_prepend(str(project))
        folder.begin(CONFIG, own.sealed(folder.path, CONFIG, ["taac_own_module.sub", "taac.algorithms"]))
    return folder


def checked(folder):
    return own.check(folder, (folder / "config.gin").read_text())


def test_ones_own_run_tells_where_its_modules_are(run, project, home):
    assert checked(run.path) == {"taac_own_module": str(project)}
    assert (home.stat().st_mode & 0o777, home.stat().st_size, home.parent.stat().st_mode & 0o777) == (0o600, 32, 0o700)
    assert os.listdir(home.parent) == ["key"]
    own.import_from(checked(run.path))
    assert sys.path[-1] == str(project) and "taac_own_module" not in sys.modules


def test_it_does_not_matter_from_where_it_is_asked_nor_what_its_modules_hold_now(run, project, monkeypatch):
    (project / "taac_own_module.py").write_text("changed = True")
    project.chmod(0o775)  # as with a umask of 002
    (run.path / "evaluations.csv").write_text("more\n")
    run.update_run(status="finished", end="now")
    monkeypatch.chdir(run.path.parent)
    assert checked(run.path.relative_to(run.path.parent)) == {"taac_own_module": str(project)}


def change(run, **changes):
    about = json.loads(run.run.read_text())
    run.run.write_text(json.dumps({**about, **changes}))


def elsewhere(run, project, home):
    other = run.path.with_name("other")
    shutil.copytree(run.path, other)
    return other


def other_key(run, project, home):
    home.unlink()
    own.sealed(run.path, CONFIG, [])


def made_by_a_stranger(run, project, home):
    """With a key of theirs, of this very folder."""
    mine = home.read_bytes()
    home.write_bytes(b"x" * 32)
    run.update_run(**own.sealed(run.path, CONFIG, []))
    home.write_bytes(mine)


def world_writable(path):
    path.chmod(0o777)


@pytest.mark.parametrize(
    "kind, change_it",
    {
        "config.gin is changed": lambda run, *_: run.config.write_text(CONFIG + "import os\n"),
        "run.json is gone": lambda run, *_: run.run.unlink(),
        "another module": lambda run, *_: change(run, imports={"evil": "/tmp"}),
        "another folder": lambda run, *_: change(run, imports={"taac_own_module": "/tmp"}),
        "fewer modules": lambda run, *_: change(run, imports={}),
        "a seal that is none": lambda run, *_: change(run, seal=None),
        "an empty seal": lambda run, *_: change(run, seal=""),
        "a seal beyond ASCII": lambda run, *_: change(run, seal="\ud800ä"),
        "imports that are none": lambda run, *_: change(run, imports=[1]),
        "imports from nowhere": lambda run, *_: change(run, imports={"a": 3}),
        "run.json is no JSON": lambda run, *_: run.run.write_text("{"),
        "copied": elsewhere,
        "moved": lambda run, *_: run.path.rename(run.path.with_name("other")) and run.path.with_name("other"),
        "another user": other_key,
        "a stranger's seal": made_by_a_stranger,
        "no key": lambda run, project, home: home.unlink(),
        "a key for all to read": lambda run, project, home: home.chmod(0o644),
        "a torn key": lambda run, project, home: home.write_bytes(home.read_bytes()[:31]),
        "a longer key": lambda run, project, home: home.write_bytes(home.read_bytes() + b"x"),
        "a link to a key": lambda run, project, home: home.rename(home.with_name("k")) and home.symlink_to("k"),
        "a folder for all to write": lambda run, project, home: world_writable(project),
        "a module for all to write": lambda run, project, home: world_writable(project / "taac_own_module.py"),
        "the modules are gone": lambda run, project, home: shutil.rmtree(project),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_only_looks_like_ones_own_run(run, project, home, kind, change_it):
    checked(run.path)
    changed = change_it(run, project, home)
    folder = changed if isinstance(changed, Path) else run.path
    with pytest.raises(own.NotOwn):
        checked(folder)


@pytest.mark.parametrize("installed", [False, True])
def test_another_module_of_that_name_is_not_imported(run, project, tmp_path, monkeypatch, installed):
    monkeypatch.setattr(own, "_is_installed", lambda place: installed and place == str(tmp_path / "first"))
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "taac_own_module.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    with pytest.raises(own.NotOwn, match=r"now another would be, from .*first"):
        own.import_from(checked(run.path))


def test_a_folder_of_somebody_else_is_refused(run, project, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    if os.stat(project).st_uid == 0:
        monkeypatch.setattr(own, "_read_key", lambda path, create: path.read_bytes())
        os.chown(project, 12346, -1)
    with pytest.raises(own.NotOwn, match=r"is not yours"):
        checked(run.path)


def test_packages_and_installed_modules_have_folders_too(run, project, monkeypatch):
    (project / "taac_own_package").mkdir()
    (project / "taac_own_package" / "__init__.py").write_text("")
    (project / "taac_own_namespace").mkdir()
    monkeypatch.syspath_prepend(str(project))
    found = own.sealed(run.path, CONFIG, ["taac_own_package", "taac_own_namespace", "pytest", "json"])["imports"]
    assert found["taac_own_package"] == found["taac_own_namespace"] == str(project)
    assert os.path.samefile(found["pytest"], os.path.dirname(os.path.dirname(pytest.__file__)))
    assert own.sealed(run.path, CONFIG, ["taac_there_is_no_such_module"]) == {"imports": None, "seal": None}


def test_without_a_place_for_a_key_nothing_is_sealed(run, home, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("XDG_STATE_HOME", str(place))
        assert own.sealed(run.path, CONFIG, []) == {"imports": None, "seal": None}


def test_a_relative_state_home_counts_for_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert own._key_file() == tmp_path / ".local" / "state" / "taac" / "key"


def test_a_key_that_is_there_stays(home, run):
    before = home.read_bytes()
    own._make_key(home)
    assert home.read_bytes() == before and os.listdir(home.parent) == ["key"]
