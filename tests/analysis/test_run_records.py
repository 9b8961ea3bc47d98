"""Finding runs, and reading those that are not whole."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from taac.analysis.readers import run_records
from taac.errors import TaacError
from tests.analysis.campaigns import COLUMNS, STEPS, VERSIONS, make_run


def only(root):
    (record,) = run_records.find(root)
    return record


def test_runs_are_found_at_any_depth_in_order(tmp_path):
    for name in ("z", "a/b/c", "a/b/d/e"):
        make_run(tmp_path / name)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "evaluation.csv").write_text("no run")
    assert [r.folder for r in run_records.find(tmp_path)] == ["a/b/c", "a/b/d/e", "z"]


def test_a_folder_that_cannot_be_listed_is_told(tmp_path, monkeypatch):
    """As one of somebody else's. One that is removed meanwhile is none, and inside of a run there are no runs."""
    make_run(tmp_path / "mine")
    for name in ("gone", "theirs", "mine/checkpoints"):
        (tmp_path / name).mkdir()
    scandir, errors = os.scandir, {"gone": errno.ENOENT, "theirs": errno.EACCES, "checkpoints": errno.EACCES}

    def closed(path):
        if (number := errors.get(Path(path).name)) is not None:
            raise OSError(number, os.strerror(number), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    mine, theirs = run_records.find(tmp_path)
    assert not mine.problems and theirs.folder == "theirs"
    assert theirs.problems[0] == "the folder cannot be listed, so runs in it are unknown: Permission denied"


def test_a_run_itself_can_be_the_root(tmp_path):
    make_run(tmp_path / "sac" / "run", method=None, algorithm="")
    record = only(tmp_path / "sac" / "run")
    assert record.folder == "." and record.method == "sac"


@pytest.mark.parametrize(
    "method, algorithm, expected",
    [
        ("taac_q", "TaacAlgorithm", "taac_q"),
        (None, "TaacAlgorithm", "TaacAlgorithm"),
        (None, "scope/mine.MyAlgorithm()", "MyAlgorithm"),
        (None, "", "parent"),
    ],
)
def test_where_the_name_of_a_method_is_from(tmp_path, method, algorithm, expected):
    make_run(tmp_path / "parent" / "run", method=method, algorithm=algorithm)
    record = only(tmp_path)
    assert record.method == expected


@pytest.mark.parametrize(
    "bound, expected",
    [
        ("'mine'", "mine"),
        ("None", "TaacAlgorithm"),
        ("'a\\nb'", "TaacAlgorithm"),
        ("'" + "x" * 201 + "'", "TaacAlgorithm"),
    ],
)
def test_without_a_name_in_run_json_the_configuration_tells_it(tmp_path, bound, expected):
    given = f"create_experiment.method = {bound}\n"
    make_run(tmp_path / "parent" / "run", method=None, algorithm="TaacAlgorithm", extra_gin=given)
    record = only(tmp_path)
    assert record.method == expected
    assert "create_experiment.method" not in record.settings
    folder = tmp_path / "parent" / "run"
    assert run_records.method_of(folder, {"method": None}) == expected
    assert run_records.method_of(folder, {"method": "y"}) == "y"


def test_a_record_holds_the_contents_of_the_folder(tmp_path):
    record = only(make_run(tmp_path / "run", seed=3, budget=5000, updates_per_iteration=3, task="Ant-v5").parent)
    assert (record.task, record.seed, record.budget, record.update_ratio) == ("Ant-v5", 3, 5000, 1.5)
    assert record.versions == VERSIONS and record.status == "finished" and not record.problems and not record.notes
    assert record.settings["create_environment.wrappers"] == "()"
    assert "create_experiment.seed" not in record.settings
    assert record.steps.tolist() == list(range(100, 1001, 100))


@pytest.mark.parametrize("given, expected", [("0.25", 0.25), ("@ratio/LinearSchedule()", None), ("None", 1.5)])
def test_an_update_ratio_that_was_given_counts(tmp_path, given, expected):
    given = f"UpdateRatio.updates_per_env_step = {given}\n"
    record = only(make_run(tmp_path / "run", updates_per_iteration=3, extra_gin=given).parent)
    assert record.update_ratio == expected


@pytest.mark.parametrize("clock, expected", [("env_steps", 1.5), ("transitions", None)])
def test_a_ratio_to_transitions_is_none_to_environment_steps(tmp_path, clock, expected):
    given = f"UpdateRatio.update_clock = '{clock}'\n"
    record = only(make_run(tmp_path / "run", updates_per_iteration=3, extra_gin=given).parent)
    assert record.update_ratio == expected


def test_task_in_run_json_wins_and_config_gin_helps_out(tmp_path):
    folder = make_run(tmp_path / "run", task="Ant-v5", seed=4)
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**about, "task": "Mine-v0"}))
    assert only(tmp_path).task == "Mine-v0"
    (folder / "run.json").write_text(json.dumps({"status": "finished"}))
    record = only(tmp_path)
    assert (record.task, record.seed) == ("Ant-v5", 4)


def test_a_torn_last_line_is_left_out_even_where_it_reads_as_numbers(tmp_path):
    folder = make_run(tmp_path / "run", repeated=0.75)
    text = (folder / "evaluations.csv").read_bytes()
    (folder / "evaluations.csv").write_bytes(text[:-3])  # 0.75 and its line end become 0.7
    record = only(tmp_path)
    assert record.steps[-1] == 900 and (record.evaluations["fraction_same"] == 0.75).all()
    assert "torn" in record.notes[0] and not record.problems


def test_columns_that_older_runs_lack_are_nan_and_reported(tmp_path):
    make_run(tmp_path / "run", columns=[c for c in COLUMNS if c not in ("jerk", "fraction_same")])
    record = only(tmp_path)
    assert np.isnan(record.evaluations["jerk"]).all() and np.isfinite(record.returns).all()
    assert record.notes == ("evaluations.csv has no column jerk, fraction_same",) and not record.problems


def cells(change):
    """Changes the cells of one row, the one of step 900, of ten."""

    def spoil(lines):
        lines[9] = ",".join(change(lines[9].split(",")))
        return lines

    return spoil


DAMAGED = {  # what happens to the lines of evaluations.csv, the header first, and what is said
    "a field short": (cells(lambda row: row[:5] + row[6:]), "line 10 has 17 values for 18 columns"),
    "a line of NUL bytes": (lambda lines: [*lines[:9], "\0" * 40, *lines[9:]], "line 10 has 1 values for 18 columns"),
    "a garbled return": (cells(lambda row: [*row[:5], "1x9.0", *row[6:]]), "line 10 has '1x9.0' for return_mean"),
    "no return": (cells(lambda row: [*row[:5], "", *row[6:]]), "line 10 has '' for return_mean"),
    "a garbled length": (cells(lambda row: [*row[:7], "#REF!", *row[8:]]), "line 10 has '#REF!' for length"),
    "too many digits": (cells(lambda row: [*row[:5], "1e999", *row[6:]]), "line 10 has '1e999' for return_mean"),
    "half a step": (cells(lambda row: ["900.5", *row[1:]]), "line 10 has 900.5 for env_steps, expected a whole number"),
    "a step that lost a digit": (cells(lambda row: ["90", *row[1:]]), "line 10 has step 90 after step 800"),
    "a column named twice": (lambda lines: [lines[0].replace("jerk", "length"), *lines[1:]], "line 1 names a column twice"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_evaluations_are_named_and_the_run_left_out(tmp_path, kind):
    spoil, why = DAMAGED[kind]
    file = make_run(tmp_path / "run") / "evaluations.csv"
    lines = file.read_bytes().decode().split("\r\n")[:-1]
    file.write_bytes("\r\n".join([*spoil(lines), ""]).encode())
    record = only(tmp_path)
    (problem,) = record.problems
    assert problem.startswith("evaluations.csv is damaged: line ") and why in problem
    assert record.diverged is None and record.steps.tolist() == list(STEPS[: record.steps.size])
    assert record.returns.tolist() == record.steps.tolist()  # up to the damage, as written


def test_numbers_as_python_and_spreadsheets_write_them_are_no_damage(tmp_path):
    folder = make_run(tmp_path / "run", returns=[1, "-2.5e-07", "+3.", ".5", "1E+03", 6, 7, 8, 9, 10])
    text = (folder / "evaluations.csv").read_text().replace("\n\n", "\n")
    (folder / "evaluations.csv").write_text(text + "\n")  # an empty line at the end
    record = only(tmp_path)
    assert record.returns.tolist() == [1, -2.5e-07, 3, 0.5, 1000, 6, 7, 8, 9, 10]
    assert not record.problems and not record.notes


@pytest.mark.parametrize(
    "name, change, problem",
    [
        ("evaluations.csv", lambda text: text.replace(",500.0,", ",nan,"), "diverged: the return is not a finite number"),
        ("evaluations.csv", lambda text: text.replace(",500.0,", ",-inf,"), "diverged"),
        ("evaluations.csv", lambda text: text.splitlines()[0] + "\n", "no evaluation yet"),
        ("evaluations.csv", lambda text: "", "no column"),
        ("evaluations.csv", lambda text: text.replace("return_mean", "score"), "no column return_mean"),
        ("evaluations.csv", lambda text: "\udcff", "cannot be read"),
        ("evaluations.csv", None, "no evaluations.csv"),
        ("run.json", lambda text: '{"status": "fin', "run.json cannot be read"),
        ("run.json", lambda text: "[]", "holds a list"),
        ("run.json", None, "no run.json"),
        ("run.json", lambda text: '{"method": "sac"}', "names its task"),
    ],
)  # fmt: skip
def test_a_damaged_run_is_a_record_that_says_so(tmp_path, name, change, problem):
    file = make_run(tmp_path / "run") / name
    if problem == "names its task":
        (tmp_path / "run" / "config.gin").unlink()
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_text()).encode("utf-8", "surrogateescape"))
    assert any(problem in told for told in only(tmp_path).problems), only(tmp_path).problems


def test_folders_without_runs(tmp_path):
    with pytest.raises(TaacError, match="holds no run"):
        run_records.find(tmp_path)
    with pytest.raises(TaacError, match="is not a folder"):
        run_records.find(tmp_path / "nothing")


def test_the_update_ratio_counts_steps_of_all_environments_and_of_the_whole_unroll(tmp_path):
    make_run(tmp_path / "run", updates_per_iteration=3, extra_gin="UpdateRatio.unroll_length = 4\n")
    assert only(tmp_path).update_ratio == 3 / (4 * 2)
