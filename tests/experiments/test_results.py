"""The results page follows from the raw files alone, and what is collected carries nothing of the machine it came from."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.results import claims, collect, page
from taac.analysis.readers import run_records
from taac.errors import TaacError
from taac.runs import layout


def write_run(folder, root, seed=0, status="finished", returns=(1.0, 2.0, 3.0, 6.0), method="sac", task="Toy-v0"):
    folder.mkdir(parents=True)
    rows = [",".join(layout.COLUMNS)]
    for i, value in enumerate(returns, 1):
        cells = dict.fromkeys(layout.COLUMNS, 1.0) | {"env_steps": 100 * i, "return_mean": value, "seconds": 900.0 * i}
        rows.append(",".join(str(cells[name]) for name in layout.COLUMNS))
    (folder / "evaluations.csv").write_text("\n".join(rows) + "\n")
    (folder / "config.gin").write_text("Trainer.num_env_steps = 400\n")
    about = {
        "status": status,
        "method": method,
        "seed": seed,
        "environment": task,
        "versions": {"torch": "2"},
        "platform": {"system": "host-7", "processor": "P", "cores": 2},
        "command": f"taac train --root_dir {root.resolve()}/x --y",
    }
    (folder / "run.json").write_text(json.dumps(about))


def test_the_page_in_the_repository_is_what_its_raw_files_give():
    assert (page.DOCS / "results.md").read_text(encoding="utf-8") == page.page()
    for folder, _ in page.campaigns():
        assert (page.DOCS / "images" / f"results_{folder.name}.png").exists()


def test_the_table_of_the_readme_is_what_the_raw_files_give():
    text = (page.DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert page.of_readme(text) == text
    emptied = text[: text.index(page.BEGIN)] + page.BEGIN + page.END + text[text.index(page.END) + len(page.END) :]
    assert emptied != text and page.of_readme(emptied) == text


def test_committed_runs_are_finished_and_reach_their_budget():
    for folder, about in page.campaigns():
        for record in run_records.find(folder):
            assert record.status == "finished" and record.last_step >= about["planned"]["env_steps"], record.folder
            assert record.task in about["planned"]["tasks"] and record.method in about["planned"]["methods"]


def test_finished_runs_are_copied_without_names_of_the_machine(tmp_path):
    root, target = tmp_path / "campaign", tmp_path / "kept"
    write_run(root / "a", root, seed=0)
    write_run(root / "b", root, seed=1, status="interrupted")
    copied, left = collect.collect(root, target)
    assert [r.seed for r in copied] == [0] and [r.seed for r in left] == [1]
    folder = target / "Toy-v0" / "sac" / "seed_0"
    about = json.loads((folder / "run.json").read_text())
    assert about["command"] == "taac train --root_dir DIR/x --y" and "system" not in about["platform"]
    assert (folder / "evaluations.csv").read_text() == (root / "a" / "evaluations.csv").read_text()
    [again] = run_records.find(target)
    assert not again.problems and again.returns.tolist() == [1, 2, 3, 6]


def test_a_file_that_names_the_campaigns_folder_is_not_published(tmp_path):
    root = tmp_path / "campaign"
    write_run(root / "a", root)
    (root / "a" / "config.gin").write_text(f"Trainer.load_from = '{root.resolve()}/b'\n")
    with pytest.raises(TaacError, match="names a folder of this machine"):
        collect.collect(root, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_results_are_not_replaced_unless_asked_to(tmp_path):
    root, target = tmp_path / "campaign", tmp_path / "kept"
    write_run(root / "a", root)
    collect.collect(root, target)
    collect.collect(root, target)  # the same again
    kept = target / "Toy-v0" / "sac" / "seed_0" / "evaluations.csv"
    kept.write_text(kept.read_text().replace("6.0", "9.0"))
    with pytest.raises(TaacError, match="exists and differs"):
        collect.collect(root, target)
    assert "9.0" in kept.read_text()
    collect.collect(root, target, replace=True)
    assert "9.0" not in kept.read_text()


def test_numbers_of_a_group_by_hand(tmp_path):
    for seed, last in enumerate((6.0, 12.0)):
        write_run(tmp_path / str(seed), tmp_path, seed=seed, returns=(1.0, 2.0, 3.0, last))
    runs = run_records.find(tmp_path)
    # Final returns (2 + 3 + 6) / 3 and (2 + 3 + 12) / 3: mean 14 / 3, standard error 1, t(1, 95%) = 12.706.
    final, first, end, exploring, *_ = page.numbers(tmp_path, runs, [100, 400])
    assert final == "4.67 [-8.04, 17.4]"
    assert first == "1 +- 0" and end == "9 +- 4.24" and exploring == "-"


@pytest.mark.parametrize("step, expected", [(100, 1.0), (99, 1.0), (101, np.nan), (400, 6.0), (401, np.nan)])
def test_a_value_at_a_step_is_of_the_evaluation_that_was_due_there(tmp_path, step, expected):
    write_run(tmp_path / "a", tmp_path)
    np.testing.assert_equal(page.value_at(run_records.find(tmp_path)[0], step), expected)


def test_a_run_that_diverged_is_named(tmp_path):
    write_run(tmp_path / "a", tmp_path, returns=(1.0, float("nan"), 3.0, 4.0))
    assert page.numbers(tmp_path, run_records.find(tmp_path), [100])[0].startswith("failed: seed 0: diverged")


def test_what_was_planned_and_not_run_is_listed(tmp_path):
    write_run(tmp_path / "a", tmp_path, seed=1)
    plan = {"tasks": ["Toy-v0"], "methods": ["sac", "taac"], "seeds": 2}
    missing = page.missing(page.grouped(run_records.find(tmp_path)), plan)
    assert missing == "sac on Toy-v0, seed 0; taac on Toy-v0, seeds 0, 1"


def test_the_return_while_exploring_is_of_the_last_tenth(tmp_path):
    write_run(tmp_path / "a", tmp_path)
    (tmp_path / "a" / collect.ROLLOUTS).write_text("env_steps,return_mean\n360,100\n361,1\n400,2\n")
    assert page.exploring_return(tmp_path / "a", run_records.find(tmp_path)[0]) == 1.5


def test_runs_that_differ_in_a_setting_are_kept_under_names_of_their_own(tmp_path):
    root, target = tmp_path / "campaign", tmp_path / "kept"
    write_run(root / "a", root)
    for name in ("sac_one", "sac_other"):
        collect.collect(root, target, method=name)
    assert [(r.method, r.seed) for r in run_records.find(target)] == [("sac_one", 0), ("sac_other", 0)]


@pytest.mark.parametrize(
    "low, high, verdict",
    [
        (0.80, 0.95, claims.AGREES),
        (0.70, 0.87, claims.AGREES),  # within the error of reading the figure
        (0.70, 0.85, claims.DISAGREES),
        (0.93, 0.99, claims.DISAGREES),
        (0.60, 0.95, claims.OPEN),  # too wide to agree with anything
    ],
)
def test_a_published_fraction_is_judged_by_our_interval(low, high, verdict):
    assert claims.judged(low, high, 0.89, 0.03) == verdict


@pytest.mark.parametrize(
    "better, worse, verdict",
    [
        ([10.0, 11.0, 12.0, 13.0, 14.0], [0.0, 1.0, 2.0, 3.0, 4.0], claims.AGREES),
        ([0.0, 1.0, 2.0, 3.0, 4.0], [10.0, 11.0, 12.0, 13.0, 14.0], claims.DISAGREES),
        ([10.0, 11.0, 12.0, 13.0, 14.0], [10.0, 11.0, 12.0, 13.0, 14.5], claims.OPEN),
        ([10.0, 11.0], [0.0, 1.0, 2.0], claims.OPEN),
        ([10.0, 11.0, 12.0], [], claims.NOT_RUN),
    ],
)
def test_a_claim_on_returns_is_judged_by_the_runs_of_both_methods(better, worse, verdict, tmp_path):
    for method, values in {"taac": better, "sac": worse}.items():
        for seed, value in enumerate(values):
            write_run(tmp_path / method / str(seed), tmp_path, seed, returns=(0.0, value, value, value), method=method)
    groups = page.grouped(run_records.find(tmp_path))
    paper = {"fraction_repeated": {"by_task": {"Toy": 0.5}}}
    rows = claims.rows({"simple_control": groups}, {"simple_control": ["Toy-v0"]}, paper)
    found = {row.claim: row for row in rows if row.task == "Toy-v0"}
    assert len(found) == 3
    assert [row.verdict for row in rows if "SAC" in row.claim and row.task == "Toy-v0"] == [verdict] * 2
    repeated = next(row for row in rows if "repeats" in row.claim)
    assert repeated.verdict == (claims.DISAGREES if len(better) > 2 else claims.OPEN)  # every run repeats all of its steps
    assert {row.verdict for row in rows if row.task == "all tasks"} == {claims.NOT_RUN}
