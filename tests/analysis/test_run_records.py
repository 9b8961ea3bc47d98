"""Finding runs, and reading those that are not whole."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from taac.analysis.readers import comparable, run_records
from taac.errors import TaacError
from taac.runs import layout
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
    scandir = os.scandir
    denied = PermissionError(errno.EACCES, "Permission denied")
    errors = {"gone": FileNotFoundError(errno.ENOENT, "No such file"), "theirs": denied, "checkpoints": denied}

    def closed(path):
        if (error := errors.get(Path(path).name)) is not None:
            error.filename = path
            raise error
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    mine, theirs = run_records.find(tmp_path)
    assert not mine.problems and theirs.folder == "theirs"
    assert theirs.problems[0] == "the folder cannot be listed, so runs in it are unknown: Permission denied"


@pytest.mark.parametrize("name", ["d", "d" * 30])  # 30: paths that are too long for the system
def test_folders_of_any_depth_are_searched(tmp_path, monkeypatch, name):
    make_run(tmp_path / "sac" / "run", method=None)
    monkeypatch.chdir(tmp_path)
    for _ in range(1200):
        os.mkdir(name)
        os.chdir(name)
    try:
        found = {record.folder: record.problems for record in run_records.find(tmp_path)}
    finally:
        for _ in range(1200):  # else nobody could remove them
            os.chdir("..")
            os.rmdir(name)
    assert found.pop("sac/run") == ()
    assert not found if name == "d" else "cannot be listed" in found[name][0] and "too long" in found[name][0]


def test_a_run_itself_can_be_the_root(tmp_path):
    make_run(tmp_path / "sac" / "run", method=None, algorithm="")
    record = only(tmp_path / "sac" / "run")
    assert record.folder == "." and record.method == "sac"


@pytest.mark.parametrize(
    "method, algorithm, expected",
    [
        ("taac_q", "TaacAlgorithm", ("taac_q", "run.json")),
        (None, "TaacAlgorithm", ("TaacAlgorithm", "algorithm")),
        (None, "scope/mine.MyAlgorithm()", ("MyAlgorithm", "algorithm")),
        (None, "", ("parent", "folder")),
    ],
)
def test_where_the_name_of_a_method_is_from(tmp_path, method, algorithm, expected):
    make_run(tmp_path / "parent" / "run", method=method, algorithm=algorithm)
    record = only(tmp_path)
    assert (record.method, record.method_rule) == expected


@pytest.mark.parametrize(
    "bound, expected",
    [
        ("'mine'", ("mine", "config.gin")),
        ("None", ("TaacAlgorithm", "algorithm")),
        ("'a\\nb'", ("TaacAlgorithm", "algorithm")),
        ("['" + "x" * 300 + "']", ("TaacAlgorithm", "algorithm")),
        ("'" + "x" * 201 + "'", ("TaacAlgorithm", "algorithm")),
    ],
)
def test_without_a_name_in_run_json_the_configuration_tells_it(tmp_path, bound, expected):
    given = f"create_experiment.method = {bound}\n"
    make_run(tmp_path / "parent" / "run", method=None, algorithm="TaacAlgorithm", extra_gin=given)
    record = only(tmp_path)
    assert (record.method, record.method_rule) == expected
    assert "create_experiment.method" not in record.settings
    folder = tmp_path / "parent" / "run"
    assert run_records.method_of(folder, {"method": None}) == expected[0]
    assert run_records.method_of(folder, {"method": ["x"]}) == expected[0]
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


def test_macros_that_name_each_other_end():
    assert layout.parse_bindings("a = %b\nb = %a\nX.y = %c\nc = %d\nd = 3\n")["X.y"] == "3"
    assert layout.parse_bindings("a = %b\nb = %a\n")["a"] in ("%a", "%b")


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
    "a field short": (cells(lambda row: row[:5] + row[6:]), "line 10 has 13 values for 14 columns"),
    "a field too many": (cells(lambda row: row[:5] + ["0", *row[5:]]), "line 10 has 15 values for 14 columns"),
    "NUL bytes in a return": (cells(lambda row: [*row[:5], "9\0\0.0", *row[6:]]), "has '9\\x00\\x00.0' for return_mean"),
    "a line of NUL bytes": (lambda lines: [*lines[:9], "\0" * 40, *lines[9:]], "line 10 has 1 values for 14 columns"),
    "a garbled return": (cells(lambda row: [*row[:5], "1x9.0", *row[6:]]), "line 10 has '1x9.0' for return_mean"),
    "no return": (cells(lambda row: [*row[:5], "", *row[6:]]), "line 10 has '' for return_mean"),
    "a garbled length": (cells(lambda row: [*row[:7], "#REF!", *row[8:]]), "line 10 has '#REF!' for length"),
    "underscores": (cells(lambda row: [*row[:5], "1_99", *row[6:]]), "line 10 has '1_99' for return_mean"),
    "too many digits": (cells(lambda row: [*row[:5], "1e999", *row[6:]]), "line 10 has '1e999' for return_mean"),
    "no step": (cells(lambda row: ["", *row[1:]]), "line 10 has '' for env_steps"),
    "a step of nan": (cells(lambda row: ["nan", *row[1:]]), "line 10 has nan for env_steps, expected a whole number"),
    "half a step": (cells(lambda row: ["900.5", *row[1:]]), "line 10 has 900.5 for env_steps, expected a whole number"),
    "a step that lost a digit": (cells(lambda row: ["90", *row[1:]]), "line 10 has step 90 after step 800"),
    "a step twice": (lambda lines: [*lines[:9], lines[8], *lines[9:]], "line 10 has step 800 after step 800"),
    "two lines in one": (lambda lines: [*lines[:8], lines[8] + lines[9], lines[10]], "line 9 has 27 values"),
    "a quotation mark": (cells(lambda row: ['"' + row[0], *row[1:]]), "line 11 has 1 values for 14 columns"),
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


def broken(folder, kind):
    file = folder / "evaluations.csv"
    if kind == "nan":
        file.write_text(file.read_text().replace(",500.0,", ",nan,"))
    elif kind == "infinite":
        file.write_text(file.read_text().replace(",500.0,", ",-inf,"))
    elif kind == "no run.json":
        (folder / "run.json").unlink()
    elif kind == "half a run.json":
        (folder / "run.json").write_text('{"status": "fin')
    elif kind == "a list":
        (folder / "run.json").write_text("[]")
    elif kind == "no evaluations":
        file.unlink()
    elif kind == "a header alone":
        file.write_text(file.read_text().splitlines()[0] + "\n")
    elif kind == "nothing at all":
        file.write_text("")
    elif kind == "no returns":
        file.write_text(file.read_text().replace("return_mean", "score"))
    elif kind == "no text":
        file.write_bytes(b"\xff\xfe\x00")
    elif kind == "no task":
        (folder / "run.json").write_text("{}")
        (folder / "config.gin").unlink()


@pytest.mark.parametrize(
    "kind, problem",
    [
        ("nan", "diverged: the return is not a finite number at step 500"),
        ("infinite", "diverged: the return is not a finite number at step 500"),
        ("no run.json", "no run.json"),
        ("half a run.json", "run.json cannot be read"),
        ("a list", "holds a list"),
        ("no evaluations", "no evaluations.csv"),
        ("a header alone", "no evaluation yet"),
        ("nothing at all", "no column"),
        ("no returns", "no column return_mean"),
        ("no text", "cannot be read"),
        ("no task", "names its task"),
    ],
)
def test_a_damaged_run_is_a_record_that_says_so(tmp_path, kind, problem):
    folder = make_run(tmp_path / "run")
    broken(folder, kind)
    assert any(problem in told for told in only(tmp_path).problems), only(tmp_path).problems


def test_folders_without_runs(tmp_path):
    with pytest.raises(TaacError, match="holds no run"):
        run_records.find(tmp_path)
    with pytest.raises(TaacError, match="is no folder"):
        run_records.find(tmp_path / "nothing")


# --- What is not comparable -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "other, what",
    [
        (
            {"versions": {**VERSIONS, "gymnasium": "1.3.0"}},
            "version of gymnasium: 1.4.0 in 3 run(s), but odd has 1.3.0",
        ),
        ({"budget": 2000}, "budget on Hopper-v5, environment steps: 1000 in 3 run(s), but odd has 2000"),
        ({"updates_per_iteration": 4}, "updates per environment step on Hopper-v5: 0.5 in 3 run(s), but odd has 2.0"),
        ({"extra_gin": "create_environment.env_kwargs = {'a': 1}\n"}, None),  # the others do not say: nothing differs
        ({"extra_gin": "SacAlgorithm.gamma = 0.5\n", "method": "sac"}, "odd has SacAlgorithm.gamma = 0.5 for None"),
        ({"method": "sac", "seed": 1}, "seed 1 of sac on Hopper-v5 occurs more than once: odd, sac_1"),
        ({"versions": {**VERSIONS, "tensorboard": "1.0"}}, None),
        ({"versions": {"taac": "0.1.0"}}, None),
        ({"task": "Ant-v5", "budget": 77, "updates_per_iteration": 9}, None),
    ],
)
def test_what_differs_is_named(tmp_path, other, what):
    for seed in range(3):
        make_run(tmp_path / f"sac_{seed}", seed=seed)
    make_run(tmp_path / "odd", **{"method": "taac", "seed": 7, **other})
    records = run_records.find(tmp_path)
    found = comparable.mixtures(records)
    if what is None:
        assert found == []
        return
    assert len(found) == 1 and what in found[0], found
    with pytest.raises(TaacError, match="--allow_mixed") as refused:
        comparable.refuse_mixtures(records, allow_mixed=False)
    assert what in str(refused.value)
    assert what in comparable.refuse_mixtures(records, allow_mixed=True)[0]


def test_a_run_with_videos_of_its_evaluations_is_no_other_configuration(tmp_path):
    for seed in range(2):
        folder = make_run(tmp_path / f"sac_{seed}", seed=seed)
        with open(folder / "config.gin", "a", encoding="utf-8") as file:
            file.write(f"\ncreate_experiment.evaluation_video = {seed == 1}\n")
    assert comparable.mixtures(run_records.find(tmp_path)) == []
