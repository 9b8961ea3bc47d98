"""The name of a run's method, by what gin files and parameters bind and by the name of the method file."""

from __future__ import annotations

import pytest

from taac import configuration
from taac.configuration import naming
from taac.errors import TaacError
from taac.runs import layout
from taac.runs.run_folder import RunFolder
from taac.training import experiment
from tests.methods import FILES

TASK = "gin/tasks/simple_control.gin"
SMALL = ["hidden_layers = (8,)", "create_environment.env_name = 'Pendulum-v1'"]


def bound(loaded):
    return next((b.value for b in loaded.bindings.values() if b.name == "method"), None)


@pytest.mark.parametrize("name", FILES)
def test_every_shipped_method_file_binds_its_name(name):
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
    assert bound(naming.load([TASK, str(tmp_path / file)], params)) == expected


def test_of_several_method_files_the_last_counts(tmp_path, monkeypatch):
    assert bound(naming.load([TASK, "gin/methods/taac.gin", "gin/methods/sac.gin"])) == "sac"
    assert bound(naming.load([TASK, "gin/methods/taac.gin", "gin/cloning.gin"])) == "taac"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "mine.gin").write_text("include 'gin/methods/taac.gin'")
    assert bound(naming.load([TASK, "methods/mine.gin"])) == "mine"


def test_of_two_method_files_without_a_name_the_last_gives_its_own(tmp_path):
    files = [tmp_path / "methods" / name for name in ("first.gin", "second.gin")]
    files[0].parent.mkdir()
    for file in files:
        file.write_text("include 'gin/taac_base.gin'")
    assert bound(naming.load([TASK, *map(str, files)], SMALL)) == "second"


def operative(*files, params=()):
    naming.load([*files], [*SMALL, *params] if TASK in files else params)
    configuration.build(experiment.create_experiment).close()
    return configuration.operative_config()


def test_the_saved_configuration_keeps_the_name(tmp_path):
    (tmp_path / "methods").mkdir()
    mine = tmp_path / "methods" / "mine.gin"
    mine.write_text("include 'gin/methods/sac.gin'")
    (tmp_path / "config.gin").write_text(operative(TASK, str(mine)))
    assert "create_experiment.method = 'mine'\n" in (tmp_path / "config.gin").read_text()
    assert bound(naming.load([str(tmp_path / "config.gin")])) == "mine"


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


def test_a_folder_without_later_settings_holds_the_same_run():
    stated = ["create_experiment.tuning = 'for SAC'", "create_experiment.return_bounds = (0.0, 1.0)"]
    now = operative(TASK, "gin/methods/sac.gin", params=stated)
    added = ("create_experiment.tuning", "create_experiment.return_bounds")
    earlier = "".join(line for line in now.splitlines(keepends=True) if not line.startswith(added))
    assert len(earlier) < len(now) and layout.same_run(earlier, now) and not layout.same_run(now, earlier)


def test_a_folder_may_lack_imports_that_earlier_versions_did_not_note():
    held, asked = "import a.b\n\n\n# Macros:\nx = 1\n", "import a.b\nimport a.c as a2\n\n# Macros:\nx = 1\n"
    assert layout.same_run(held, asked) and layout.same_run("# Macros:\nx = 1\n", asked)
    assert not layout.same_run(asked, held) and not layout.same_run(held.replace("a.b", "a.d"), asked)
    assert not layout.same_run(held, asked.replace("x = 1", "x = 2"))
    assert not layout.same_run(f"{held}y = 'from 1'\n", f"{asked}y = 'from 2'\n")


def test_a_folder_of_an_earlier_version_holds_the_same_run(tmp_path):
    """Its config.gin has no name of the method, short or on lines of its own."""
    for params in ((), (f"create_experiment.method = '{'x' * 150}'",)):
        now = operative(TASK, "gin/methods/sac.gin", params=params)
        start = now.index("create_experiment.method")
        earlier = now[:start] + now[now.index("create_experiment.num_threads") :]
        assert "x" * 150 not in earlier and len(earlier) < len(now)
        assert layout.same_run(earlier, now) and not layout.same_run(now, earlier)
        assert not layout.same_run(earlier.replace("num_threads = 1", "num_threads = 2"), now)
        assert not layout.same_run(now, now.replace("create_experiment.method = ", "create_experiment.method = 'z' + "))
    folder = RunFolder(tmp_path / "run")
    folder.begin(earlier, {})
    assert folder.open(now) == "unfinished"
    folder.begin(now.replace("x" * 150, "y"), {})
    with pytest.raises(TaacError, match="another configuration"):
        folder.open(now)
