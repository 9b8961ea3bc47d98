"""Published returns stand beside those of a comparison, at the same step, and never become a verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taac.analysis.report import tables
from taac.analysis.report.page import make_report
from taac.analysis.report.scores import Options
from taac.errors import TaacError
from tests.analysis.campaigns import make_run

SHIPPED = Path(__file__).resolve().parents[2] / "experiments" / "results" / "published.json"
ENTRY = {"task": "Hopper", "method": "sac", "env_steps": 200, "mean": 2614, "sd": 991, "n": 10,
         "source": "tianshou", "environment_version": "v3", "protocol": "test return"}  # fmt: skip


@pytest.fixture
def campaign(tmp_path):
    """SAC on Hopper with returns 10, 20 and 30 (seed 0), and 10, 40 and 60 (seed 1), at steps 100, 200 and 300."""
    for seed, returns in enumerate(([10.0, 20.0, 30.0], [10.0, 40.0, 60.0])):
        make_run(tmp_path / "runs" / f"s{seed}", "sac", "Hopper-v5", seed, returns, (100, 200, 300))
    return tmp_path


def report(campaign, *entries):
    path = campaign / "published.json"
    path.write_text(json.dumps({"returns": list(entries)}))
    return make_report(campaign / "runs", Options(published=path))


def test_a_published_return_is_beside_the_evaluation_at_its_step(campaign):
    content = report(campaign, ENTRY)
    [row] = content["published"]
    assert row["task"] == "Hopper-v5" and row["here"] == {"mean": 30.0, "sd": pytest.approx(200**0.5), "n": 2}
    text = tables.markdown(content, [])
    assert "| Hopper-v5 | sac | 200 | 30 +- 14.14 (n = 2) | 2614 +- 991 (n = 10) | tianshou | v3 | test return |" in text
    assert "No verdict is made of them" in text and content["pairs"] == []


def test_steps_that_a_source_does_not_count_are_counted_here(campaign):
    content = report(campaign, {**ENTRY, "env_steps": 200, "uncounted_steps": 100})
    assert content["published"][0]["here"]["mean"] == 45.0  # of 30 and 60, at step 300
    assert "| Hopper-v5 | sac | 200 + 100 | 45 +- 21.21 (n = 2) |" in tables.markdown(content, [])


def test_other_tasks_methods_and_versions_are_left_out_and_other_steps_have_a_dash(campaign):
    others = [{**ENTRY, "task": "Walker2d"}, {**ENTRY, "method": "taac"}, {**ENTRY, "task": "Hopper-v4"}]
    late = {**ENTRY, "env_steps": 250, "sd": None}
    content = report(campaign, *others, late, {**ENTRY, "task": "Hopper-v5"})
    assert [(row["env_steps"], row["here"] is None) for row in content["published"]] == [(250, True), (200, False)]
    assert "| 250 | - | 2614 (n = 10) |" in tables.markdown(content, [])


def test_runs_that_diverged_are_counted_beside_the_mean_of_the_others(campaign):
    make_run(campaign / "runs" / "s2", "sac", "Hopper-v5", 2, [10.0, "nan", "nan"], (100, 200, 300))
    content = report(campaign, ENTRY, {**ENTRY, "env_steps": 250})
    assert [row["diverged"] for row in content["published"]] == [1, 1] and content["published"][0]["here"]["n"] == 2
    text = tables.markdown(content, [])
    assert "| 30 +- 14.14 (n = 2; 1 diverged) |" in text and "| 250 | - (1 diverged) |" in text


def test_a_file_of_other_tasks_and_methods_is_warned_of(campaign):
    told = "none of the 2 entries of --published published.json is of a task and a method compared here: sac on Hopper-v5"
    assert told in report(campaign, {**ENTRY, "task": "Walker2d"}, {**ENTRY, "method": "SAC"})["warnings"]
    assert not any("--published" in warning for warning in report(campaign, ENTRY, {**ENTRY, "task": "Walker2d"})["warnings"])


def test_an_entry_says_that_it_has_no_spread(campaign):
    """A misspelt "sd" would pass for an entry without one, which says null."""
    misspelt = {"std" if name == "sd" else name: value for name, value in ENTRY.items()}
    with pytest.raises(TaacError, match=r"sd of entry 1 is missing or wrong; .* null for an unknown sd"):
        report(campaign, misspelt)


def test_without_a_file_there_is_no_section(campaign):
    content = make_report(campaign / "runs", Options())
    assert content["published"] == [] and "Published" not in tables.markdown(content, [])


@pytest.mark.parametrize(
    "change, wrong",
    [({"mean": "2614"}, "mean"), ({"mean": float("nan")}, "mean"), ({"sd": -1}, "sd"), ({"n": 0}, "n"),
     ({"env_steps": 1.5}, "env_steps"), ({"source": ""}, "source"), ({"protocol": "x" * 501}, "protocol"),
     ({"task": None}, "task"), ({"uncounted_steps": -1}, "uncounted_steps")],
)  # fmt: skip
def test_a_wrong_entry_is_named(campaign, change, wrong):
    with pytest.raises(TaacError, match=f"{wrong} of entry 2 is missing or wrong"):
        report(campaign, ENTRY, {**ENTRY, **change})


@pytest.mark.parametrize("content", ["{", "[]", '{"returns": {}}', '{"returns": [3]}'])
def test_another_file_is_refused_with_an_example(campaign, content):
    path = campaign / "published.json"
    path.write_text(content)
    with pytest.raises(TaacError, match="--published"):
        make_report(campaign / "runs", Options(published=path))
