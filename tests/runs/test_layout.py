"""A run folder as it is read: one reader of each file, whoever wrote it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from taac import __version__
from taac.errors import TaacError
from taac.runs import history, layout
from taac.runs.files import Damaged
from taac.runs.layout import EpisodeSummary
from taac.runs.provenance import changed_versions, versions
from taac.runs.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
SUMMARY = EpisodeSummary(2, -1.5, 0.5, 20.0, 0.25, 2.0, 4, 10.0, 0.125, 0.75, 0.5, 0.25, 0.0625, 7.0)


def test_what_is_written_is_what_is_read(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin("gamma = 0.9\n\nTDLoss.gamma = %gamma\nX.y = \\\n    (1,\n     2)\n", {"seed": 3})
    folder.add_evaluation(100, 40, 90, 2.5, SUMMARY)
    table = layout.read_evaluations(folder.path)
    assert table == layout.Table(layout.COLUMNS, [[100, 40, 90, 2.5, *SUMMARY[:-1]]], [], False, None)
    assert layout.read_run(folder.path) == folder.read_run() and folder.read_run()["seed"] == 3
    assert layout.read_bindings(folder.path) == {"gamma": "0.9", "TDLoss.gamma": "0.9", "X.y": "(1, 2)"}
    assert not layout.is_finished(folder.path)
    folder.update_run(status="finished")
    assert layout.is_finished(folder.path)
    assert {p.name for p in folder.path.iterdir()} == {layout.CONFIG, layout.RUN, layout.EVALUATIONS}


@pytest.mark.parametrize(
    "text, rows, torn, damage",
    [
        ("", [], False, None),
        ("env_steps,return_mean\n100,1.5\n200,17", [[100.0, 1.5]], True, None),  # 17 of 17.5, say
        ("return_mean,more,env_steps\r\n1.5,x,100\r\n2.5,,200\r\n", [[100.0, 1.5], [200.0, 2.5]], False, None),
        ("return_mean,more,env_steps\r\n1.5,x,100\r\n,,200\r\n3,,300\r\n", [[100.0, 1.5]], False, "line 3"),
        ("env_steps,return_mean\n100\nmany,2\n", [], False, "line 2"),
        ("env_steps,return_mean\n\n100,1\n\n", [[100.0, 1.0]], False, None),
        ("env_steps,return_mean\n100,1e999\n", [], False, "line 2 has '1e999' for return_mean"),
        ("env_steps,return_mean\n100,1\n100,2\n", [[100.0, 1.0]], False, "line 3 has step 100 after step 100"),
    ],
)
def test_evaluations_by_the_names_of_their_columns(tmp_path, text, rows, torn, damage):
    (tmp_path / "evaluations.csv").write_bytes(text.encode())
    table = layout.read_evaluations(tmp_path)
    steps, returns = layout.COLUMNS.index("env_steps"), layout.COLUMNS.index("return_mean")
    assert repr([[row[steps], row[returns]] for row in table.rows]) == repr(rows) and table.torn == torn
    assert table.damage is None if damage is None else damage in table.damage
    assert all(len(row) == len(layout.COLUMNS) for row in table.rows)
    assert set(layout.COLUMNS) - set(table.missing) == ({"env_steps", "return_mean"} if text else set())


def test_packages_that_a_run_did_not_note_have_not_changed():
    assert changed_versions({"versions": {"taac": __version__}}) == changed_versions({}) == {}
    assert changed_versions({"versions": {"taac": "0.0.1", "python": None}}) == {
        "versions": {"taac": __version__, "python": versions()["python"]}
    }


@pytest.mark.parametrize("text", ["[1]", "{", "", '"finished"', "[" * 100_000])
def test_a_run_json_that_is_none_is_refused_and_not_finished(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(Damaged):
        layout.read_run(tmp_path)
    with pytest.raises(TaacError, match=r"run\.json cannot be read.*is .* the folder of a run"):
        RunFolder(tmp_path).read_run()
    assert not layout.is_finished(tmp_path)
    (tmp_path / "config.gin").write_text("a configuration")
    with pytest.raises(TaacError, match=r"run\.json cannot be read"):
        RunFolder(tmp_path).open("a configuration")
    RunFolder(tmp_path).checkpoints.save(5, {})
    assert RunFolder(tmp_path).open("a configuration") == "unfinished"  # the checkpoint restores it


@pytest.mark.parametrize("status, saved, told", [("failed", False, True), ("failed", True, False), ("running", False, False)])
def test_a_run_that_failed_at_once_and_is_in_the_way_may_be_deleted(tmp_path, status, saved, told):
    folder = RunFolder(tmp_path / "run")
    folder.begin("a = 1\n", {"method": "sac"})
    folder.update_run(status=status)
    if saved:
        folder.checkpoints.save(5, {})
    with pytest.raises(TaacError, match="another configuration") as refused:
        folder.open("a = 2\n")
    assert ("failed before its first checkpoint: delete the folder" in str(refused.value)) == told


def test_versions_that_a_run_was_resumed_with_and_nothing_else_are_told():
    begun = {"torch": "1", "mujoco": None}
    entries = [
        None, 3, {}, {"env_steps": 5}, {"env_steps": "5", "versions": {"torch": "2"}}, {"env_steps": 5, "versions": ["torch"]},
        {"env_steps": 5, "versions": {"torch": [], "mujoco": "\x1b", "\n": "2"}},
        {"env_steps": 6, "versions": {"torch": "2", "mujoco": "3"}}, {"env_steps": 7, "versions": {"torch": "2"}},
    ]  # fmt: skip
    assert history.describe_versions({"versions": begun, "resumed": entries}) == [
        "it was resumed at 6 environment steps with torch 2; it was begun with 1",
        "it was resumed at 6 environment steps with mujoco 3; it was begun with none",
    ]
    moved = [{"env_steps": 5, "commit": "b-dirty"}, {"env_steps": 8, "commit": "b-dirty"}, {"env_steps": 9, "commit": ["c"]}]
    assert history.describe_versions({"commit": "a", "resumed": moved}) == [
        "it was resumed at 5 environment steps with commit b-dirty of taac; it was begun with a"
    ]
    for run in ({}, {"versions": 3, "resumed": entries}, {"versions": begun, "resumed": "x"}):
        assert history.describe_versions(run) == []


def test_the_names_of_files_are_written_once():
    """In code, that is: messages and docstrings may name them."""
    names = {layout.CONFIG, layout.RUN, layout.EVALUATIONS, layout.COMPARISON, layout.EVENTS}
    found = set()
    for path in (ROOT / "taac").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(name in text for name in names) else ():
            if isinstance(node, ast.Constant) and node.value in names:
                found.add(path.relative_to(ROOT).as_posix())
    assert found == {"taac/runs/layout.py"}


@pytest.mark.parametrize(
    "task, method, folder",
    [
        ("Pendulum-v1", "taac", "Pendulum-v1/taac"), ("taac/Recall-v0", "sac", "taac_Recall-v0/sac"),
        ("my.module:MyEnv", "sac", "my.module_MyEnv/sac"), ("../../etc", "..", "_.._etc/_"), ("a b\nc", ".git", "a_b_c/git"),
    ],
)  # fmt: skip
def test_the_folder_of_a_run_is_safe_as_a_name(task, method, folder):
    assert layout.run_folder("R", task, method, 3) == Path("R", folder, "seed_3")


@pytest.mark.parametrize("without", ["create_experiment.offline = True", "create_collector.uniform_initial_collect = False"])
def test_a_run_without_random_steps_says_so(without):
    steps = "UpdateRatio.initial_collect_steps = 500\n"
    told = [layout.deciding(layout.parse_bindings(text), 1.0)["random steps first"] for text in (steps, steps + without)]
    assert told == ["500", "0"]
