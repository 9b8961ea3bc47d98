"""One run that was damaged, or made to do harm, among sound ones: it is named, left out, and stops nothing."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taac.analysis.readers import run_records
from taac.analysis.report import anchors
from taac.analysis.report.content import make_report
from taac.analysis.report.files import write_report
from taac.analysis.report.scores import Options
from taac.campaigns import time_left
from taac.campaigns.comparison import check_folders
from taac.campaigns.run import Run
from taac.configuration import RunRequest
from taac.errors import TaacError
from taac.runs import layout
from tests.analysis.campaigns import COLUMNS, make_run

DEEP = "[" * 100_000


def change(folder, **changes):
    file = folder / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def csv_of(step="100", value="1.0", head=None):
    row = [{"env_steps": step, "return_mean": value}.get(name, "0") for name in COLUMNS]
    return ",".join(head or COLUMNS) + "\n" + ",".join(row) + "\n"


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def huge(name):
    return lambda folder: os.truncate(folder / name, 100 << 20)


def garble(old, new):
    def spoil(folder):
        text = (folder / "evaluations.csv").read_text()
        assert text.count(old) == 1
        (folder / "evaluations.csv").write_text(text.replace(old, new))

    return spoil


def link(folder):
    (folder / "run.json").rename(folder / "elsewhere.json")
    (folder / "run.json").symlink_to(folder / "elsewhere.json")


BAD = {
    "deep": (write("run.json", DEEP), "run.json is not JSON: RecursionError"),
    "no text": (write("run.json", b'{"a": "\xff"}'), "run.json is not UTF-8"),
    "huge run.json": (huge("run.json"), "expected at most"),
    "huge evaluations": (huge("evaluations.csv"), "expected at most"),
    "link": (link, "not a plain file"),
    "versions": (lambda f: change(f, versions={"torch": {"a": 1}}), "1 of its 'versions' are no names"),
    "a list of versions": (lambda f: change(f, versions=[1]), "'versions' are none"),
    "long method": (lambda f: change(f, method="m" * 3_000_000), "'method' is no name"),
    "surrogate": (lambda f: change(f, method="\ud800"), "'method' is no name"),
    "lines": (lambda f: change(f, environment="a\nb"), "'environment' is no name"),
    "status": (lambda f: change(f, status=["finished"]), "'status' is no name"),
    "far": (write("evaluations.csv", csv_of(step="1e300")), "first at step 1e+300"),
    "before": (write("evaluations.csv", csv_of(step="-1")), "first at step -1"),
    "great": (
        write("evaluations.csv", csv_of(value="1e200")),
        "impossible numbers in 1 row(s), the first at step 100: 1e+200 for return_mean",
    ),
    "garbled": (garble(",900.0,1.0,", ",9oo.0,1.0,"), "evaluations.csv is damaged: line 10 has '9oo.0' for return_mean"),
    "short": (garble(",900.0,1.0,", ",1.0,"), "evaluations.csv is damaged: line 10 has 13 values for 14 columns"),
    "long field": (write("evaluations.csv", csv_of(head=["x" * 200_000])), "field larger than"),
}  # fmt: skip


@pytest.fixture
def root(tmp_path):
    for method in ("sac", "taac"):
        for seed in range(2):
            make_run(tmp_path / method / f"seed_{seed}", method, seed=seed, returns=[s + seed for s in range(10)])
    return tmp_path


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_run_is_named_and_left_out_of_the_report(root, tmp_path, kind):
    spoil, why = BAD[kind]
    spoil(make_run(root / "bad", "sac", seed=9))
    content = make_report(root, Options(allow_mixed=True))
    (told,) = [w for w in content["warnings"] if w.startswith("run bad (") and "left out" in w]
    assert why in told and len(told) < 1000
    assert sum(r["left_out"] is None for r in content["runs"]) == 4
    json.dumps(content, ensure_ascii=False).encode()  # can be written


@pytest.mark.parametrize(
    "line",
    [
        "create_environment.env_name = [1]",
        "Intervals.num_env_steps = {[]: 1}",
        "Intervals.num_env_steps = 0x" + "f" * 500,
        "UpdateRatio.updates_per_env_step = 1e999",
        "UpdateRatio.updates_per_iteration = " + "9" * 400,
        "UpdateRatio.update_clock = " + "(" * 500,
        "UpdateRatio.update_clock = " + "-" * 900 + "1",
        "UpdateRatio.unroll_length = 1e-320",
        "create_experiment.seed = '\\d'",
    ],
)
def test_settings_that_stand_for_nothing_are_not_known(root, line):
    folder = make_run(root / "odd", "sac", seed=9)
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**about, "seed": None}))
    with open(folder / "config.gin", "a") as file:
        file.write(line + "\n")
    record = run_records.read(folder, root)
    assert record.task == "Hopper-v5" and record.seed in (None, 9)
    assert not record.problems
    make_report(root, Options(allow_mixed=True))


@pytest.mark.parametrize("value", ["", "x" * 201, "a\nb", "\x1b", "\ud800", "\u202e", 3, ["a"], None, True])
def test_what_is_no_name(value):
    assert not layout.is_name(value) and layout.is_name("x" * 200)


def test_a_long_value_of_many_lines_is_put_together_once():
    value = "\n".join(["    1,"] * 50_000)
    assert len(layout.parse_bindings(f"a = \\\n{value}\n")["a"]) == 3 * 50_000 - 1


@pytest.mark.parametrize("name", ["$", "a$b$c", "$\\frac$", "${", "_x"])
def test_names_are_drawn_as_they_are_written(root, tmp_path, name):
    make_run(root / "odd", name, seed=0)
    make_run(root / "odder", name, seed=1)
    written = write_report(make_report(root, Options()), tmp_path / "out")
    assert name in (tmp_path / "out" / "report.md").read_text() and len(written) > 4


@pytest.mark.parametrize(
    "text, why",
    [
        (DEEP, "not JSON"),
        ('{"tasks": {"a": {"y0": 1e300, "y1": 0}}}', "no scale"),
        ('{"tasks": {"a": {"y0": 1e-300, "y1": 0}}}', "no scale"),
        ('{"tasks": {"a": {"y0": %s, "y1": 0}}}' % ("9" * 400), "no numbers"),
    ],
)
def test_anchors_that_are_none_are_refused(tmp_path, text, why):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(TaacError, match=why):
        anchors.load(tmp_path / "a.json")


@pytest.mark.parametrize("content", [DEEP.encode(), b"\xff", b"[]", b'{"status": ["finished"]}'])
def test_a_bad_run_json_is_no_finished_run_of_a_comparison(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    assert not Run("t", "m", 0, tmp_path, ()).finished()


@pytest.mark.parametrize(
    "row", ["1e300,1", "5,nan", "5,inf", "5,1e300", "5", "-5,1", "x" * 200_000 + ",1", "9" * 300 + ",1"]
)
def test_invalid_evaluations_yield_no_pace(tmp_path, row):
    (tmp_path / "config.gin").write_text("num_env_steps = 100\n")
    (tmp_path / "evaluations.csv").write_text(f"env_steps,seconds\n{row}\n")
    assert time_left.read_pace(tmp_path, 0.0) is None


def test_a_budget_of_many_digits_yields_no_pace(tmp_path):
    (tmp_path / "config.gin").write_text(f"num_env_steps = {'9' * 400}\n")
    (tmp_path / "evaluations.csv").write_text("env_steps,seconds\n5,1\n")
    assert time_left.read_pace(tmp_path, 0.0) is None


@pytest.mark.parametrize("value", ["[" * 100_000, "0x" + "f" * 100_000, "{[]: 1}", "\0"])
def test_a_config_that_cannot_be_read_is_refused_with_its_folder(tmp_path, value):
    (tmp_path / "config.gin").write_text(f"gamma = {value}\n")
    asked = RunRequest("Pendulum-v1", "sac")
    with pytest.raises(TaacError, match=f"{tmp_path} holds a run of other settings"):
        check_folders([Run("Pendulum-v1", "sac", 0, tmp_path, (), asked)])


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("status", "seed", "environment", "task", "method", "versions", "diverged", "env_steps")
NUMBER = st.floats().map(repr) | st.sampled_from(["", "1e400", "0x1", "9" * 400, "\0", '"', "-0"])


@settings(max_examples=60, deadline=None)
@given(
    about=st.dictionaries(st.sampled_from(FIELDS), ANY),
    rows=st.lists(st.lists(NUMBER, min_size=len(COLUMNS), max_size=len(COLUMNS)), max_size=3),
    value=st.sampled_from(["1", "[1]", "{}", "1e999", "'x'", "%a", "@b()", "-1", "0", "nan", "True", "1j"]) | st.text(),
    name=st.sampled_from(["Intervals.num_env_steps", "UpdateRatio.unroll_length", "create_environment.env_name"]),
)
def test_whatever_a_run_holds_it_stops_no_report(tmp_path_factory, about, rows, value, name):
    root = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        make_run(root / f"seed_{seed}", seed=seed)
    folder = make_run(root / "odd", seed=2)
    change(folder, **about)
    (folder / "config.gin").write_bytes(f"{name} = {value}\n".encode("utf-8", "backslashreplace"))
    table = "\n".join(",".join(row) for row in [list(COLUMNS), *rows]) + "\n"
    (folder / "evaluations.csv").write_text(table)
    content = make_report(root, Options(allow_mixed=True))
    json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
