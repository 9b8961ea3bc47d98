"""One run that was damaged, or made to do harm, among sound ones: it is named, left out, and stops nothing."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text

from taac.analysis.readers import run_records
from taac.analysis.report.page import make_report, write_report
from taac.analysis.report.scores import Options
from taac.campaigns.comparison import check_folders
from taac.campaigns.run import Run
from taac.configuration import RunRequest
from taac.errors import TaacError
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


def link(folder):
    (folder / "run.json").rename(folder / "elsewhere.json")
    (folder / "run.json").symlink_to(folder / "elsewhere.json")


BAD = {
    "deep": (write("run.json", DEEP), "run.json is not JSON: RecursionError"),
    "no text": (write("run.json", b'{"a": "\xff"}'), "run.json is not UTF-8"),
    "huge run.json": (huge("run.json"), "expected at most"),
    "link": (link, "not a plain file"),
    "versions": (lambda f: change(f, versions={"torch": {"a": 1}}), "'versions' is not valid"),
    "a list of versions": (lambda f: change(f, versions=[1]), "'versions' is not valid"),
    "long method": (lambda f: change(f, method="m" * 3_000_000), "'method' is not a name"),
    "surrogate": (lambda f: change(f, environment="\ud800"), "'environment' is not a name"),
    "status": (lambda f: change(f, status=["finished"]), "'status' is not a name"),
    "far": (write("evaluations.csv", csv_of(step="1e300")), "first at step 1e+300"),
    "great": (
        write("evaluations.csv", csv_of(value="1e200")),
        "impossible numbers in 1 row(s), the first at step 100: 1e+200 for return_mean",
    ),
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
        "UpdateRatio.updates_per_env_step = 1e999",
        "UpdateRatio.update_clock = " + "-" * 900 + "1",
        "create_experiment.seed = '\\d'",
    ],
)
def test_settings_that_stand_for_nothing_are_not_known(root, line):
    change(make_run(root / "odd", "sac", seed=9, extra_gin=f"{line}\n"), seed=None)
    record = run_records.read(root / "odd", root)
    assert record.task == "Hopper-v5" and record.seed in (None, 9) and not record.problems
    make_report(root, Options(allow_mixed=True))


def test_names_are_drawn_as_they_are_written(root, tmp_path, monkeypatch):
    """matplotlib reads mathematics between dollars, and hides labels that begin with an underscore."""
    names, drawn, save = ("$", "$\\frac$", "_x"), [], Figure.savefig
    for name in names:
        make_run(root / f"odd {names.index(name)}", name, seed=0)
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **more: (
        drawn.append([text for text in self.findobj(Text) if text.get_visible()]), save(self, *args, **more))[1]
    )  # fmt: skip
    write_report(make_report(root, Options()), tmp_path / "out")
    for name in names:
        assert name in (tmp_path / "out" / "report.md").read_text()
        assert any(text.get_text() == name and not text.get_parse_math() for figure in drawn for text in figure), name


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


@settings(max_examples=30, deadline=None)
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
