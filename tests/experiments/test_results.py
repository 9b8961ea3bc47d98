"""The results page follows from the raw files alone, and what is collected carries nothing of the machine it came from."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

from experiments.results import cells, claims, collect, figures, page
from taac.analysis.readers import run_records
from taac.analysis.report.tables import Published
from taac.errors import TaacError
from taac.runs import layout


def write_run(folder, root, seed=0, status="finished", returns=(1.0, 2.0, 3.0, 6.0), method="sac", task="Toy-v0", repeated=1.0):
    folder.mkdir(parents=True)
    rows = [",".join(layout.COLUMNS)]
    for i, value in enumerate(returns, 1):
        cells = dict.fromkeys(layout.COLUMNS, 1.0) | {"env_steps": 100 * i, "return_mean": value, "seconds": 900.0 * i}
        cells["fraction_repeated"] = repeated
        rows.append(",".join(str(cells[name]) for name in layout.COLUMNS))
    (folder / "evaluations.csv").write_text("\n".join(rows) + "\n")
    (folder / "config.gin").write_text("Intervals.num_env_steps = 400\n")
    about = {
        "status": status,
        "method": method,
        "seed": seed,
        "environment": task,
        "versions": {"torch": "2"},
        "platform": {"system": "host-7", "processor": "P", "cores": 2},
        "command": f"taac train --root_dir {root.resolve()}/x --y",
    }
    if status == "diverged":
        about["diverged"] = {"env_steps": 100 * len(returns) + 50, "error": "a loss is not finite"}
    (folder / "run.json").write_text(json.dumps(about))


@pytest.fixture(scope="module")
def committed():
    """The runs of every campaign of the repository."""
    return {folder: page.runs_of(folder) for folder, _ in page.campaigns()}


def test_the_page_in_the_repository_is_what_its_raw_files_give(committed, monkeypatch):
    monkeypatch.setattr(page, "runs_of", committed.__getitem__)
    assert (page.DOCS / "results.md").read_text(encoding="utf-8") == page.page()
    assert (page.HERE / "README.md").read_text(encoding="utf-8") == page.how_made()
    for folder, _ in page.campaigns():
        assert (page.DOCS / "images" / f"results_{folder.name}.png").exists() == bool(committed[folder])


def test_each_campaign_has_a_place_of_its_own():
    numbers = [about["number"] for _, about in page.campaigns()]
    assert numbers == [*range(1, len(numbers) + 1)]


def test_the_readme_tells_no_other_numbers():
    text = (page.DOCS.parent / "README.md").read_text(encoding="utf-8").partition("## Results\n")[2].partition("\n## ")[0]
    told = re.findall(r"-?\d+(?:[.,]\d+)*", re.sub(r"^\d\. |\]\(.*?\)|\w+-\d\w+", "", text, flags=re.MULTILINE))
    results = (page.DOCS / "results.md").read_text(encoding="utf-8")
    assert len(told) > 5 and [number for number in told if number not in results] == []


def test_committed_runs_are_finished_and_reach_their_budget(committed):
    runs = [(about["planned"], record) for folder, about in page.campaigns() for record in committed[folder]]
    assert runs
    for planned, record in runs:
        reached = record.status == "finished" and record.last_step >= page.steps_of(planned, record.task)
        assert reached or record.diverged is not None, record.folder
        assert record.task in planned["tasks"] and record.method in planned["methods"]


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


def test_a_campaign_goes_on_elsewhere_from_what_is_kept_here(tmp_path):
    kept, root = tmp_path / "kept", tmp_path / "elsewhere"
    write_run(tmp_path / "first" / "x", tmp_path / "first")
    collect.collect(tmp_path / "first", kept)
    (kept / "Toy-v0" / "sac" / "seed_0" / collect.ROLLOUTS).write_text("env_steps,return_mean\n100,1\n")
    shutil.copytree(kept, root)
    assert [layout.is_finished(root / "Toy-v0" / "sac" / f"seed_{seed}") for seed in (0, 1)] == [True, False]
    write_run(root / "Toy-v0" / "sac" / "seed_1", root, seed=1)
    before = {path: path.read_text() for path in kept.rglob("*.*")}
    assert [r.seed for r in collect.collect(root, kept)[0]] == [0, 1]
    assert {path: path.read_text() for path in before} == before


def test_a_file_that_names_the_campaigns_folder_is_not_published(tmp_path):
    root = tmp_path / "campaign"
    write_run(root / "a", root)
    (root / "a" / "config.gin").write_text(f"Trainer.load_from = '{root.resolve()}/b'\n")
    with pytest.raises(TaacError, match="names a folder of this machine"):
        collect.collect(root, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    "command, told",
    [
        ("train --root_dir /a/b/Toy-v0/sac/seed_3 --x 1", "train --root_dir DIR/Toy-v0/sac/seed_3 --x 1"),
        ("train --root_dir /a/Toy-v0/sac/seed_3", "train --root_dir DIR/Toy-v0/sac/seed_3"),
        ("sb3 --root_dir /a/b --her", "sb3 --root_dir DIR --her"), ("sb3 --root_dir runs/b", "sb3 --root_dir runs/b"),
    ],
)  # fmt: skip
def test_a_run_that_was_copied_names_no_folder_of_where_it_ran(tmp_path, command, told):
    assert collect.without_root(command, tmp_path) == told


def test_a_command_with_another_folder_is_not_published(tmp_path):
    root = tmp_path / "campaign"
    write_run(root / "a", root)
    about = json.loads((root / "a" / "run.json").read_text())
    (root / "a" / "run.json").write_text(json.dumps({**about, "command": "taac train --gin_file /home/me/mine.gin"}))
    with pytest.raises(TaacError, match=r"run\.json names a folder of this machine in its command"):
        collect.collect(root, tmp_path / "kept")


def test_what_is_kept_names_no_folder_of_a_machine():
    for path in page.HERE.rglob("run.json"):
        assert not re.search(r'[" =]/\w', path.read_text(encoding="utf-8")), path


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
    for seed, last in enumerate((6.0, 12.0, 18.0)):
        write_run(tmp_path / str(seed), tmp_path, seed=seed, returns=(1.0, 2.0, 3.0, last))
    runs = run_records.find(tmp_path)
    # Final returns (2 + 3 + last) / 3: mean 17 / 3, standard error 2 / sqrt 3, t(2, 95%) = 4.3027.
    final, each, first, end, solved, exploring, *_ = cells.numbers(tmp_path, runs, [100, 400])
    assert final == "5.67 [0.698, 10.6]" and each == "3.67, 5.67, 7.67"
    assert first == "1 +- 0" and end == "12 +- 6" and solved == "no threshold" and exploring == "-"
    assert cells.numbers(tmp_path, runs[:2], [])[:2] == ["4.67", "3.67, 5.67"]  # two seeds have no interval


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0"), (1e-4, "0.000"), (-1e-4, "0.000"), (-0.0016, "-0.002"), (0.0156, "0.016"), (0.124, "0.124"),
        (-12.34, "-12.3"), (99.96, "100"), (999.7, "1000"), (-1234.4, "-1234"),
    ],
)  # fmt: skip
def test_a_number_shows_what_is_not_nothing(value, text):
    assert cells.number(value) == text


def test_first_solved_is_of_the_first_evaluation_at_the_threshold(tmp_path):
    of_seeds = [(0.0, 89.9, 90.0, 12.0), (0.0, 0.0, 0.0, 89.9), (0.0, float("nan"), 95.0, 95.0)]  # 90: solved
    for seed, returns in enumerate(of_seeds):
        write_run(tmp_path / str(seed), tmp_path, seed, returns=returns, task="MountainCarContinuous-v0")
    runs = sorted(run_records.find(tmp_path), key=lambda r: r.seed)
    assert cells.first_solved(runs[:2]) == "0.3k, -" and cells.first_solved(runs[1:2]) == "never"
    assert cells.first_solved(runs)[:8] == "0.3k, -," and runs[2].problems  # a run that diverged may have solved it before


def test_a_task_without_a_threshold_says_so(tmp_path):
    for task, said in (("Walker2d-v5", "no threshold"), ("Toy-v0", "no threshold"), ("Reacher-v5", "0.1k")):
        write_run(tmp_path / task, tmp_path, task=task)
        assert cells.first_solved(run_records.find(tmp_path / task)) == said  # Reacher's is -3.75


def test_published_returns_are_beside_the_same_number_of_steps(tmp_path):
    """Steps that a source does not count are added, and a run that ends a little before is shown at its end, 400."""
    write_run(tmp_path / "a", tmp_path)  # returns 1, 2, 3, 6 at 100, 200, 300, 400
    entry = Published("Toy", "sac", 200, 5.0, 1.0, 10, "others", "v9", "theirs", uncounted_steps=100)
    late, too_late = entry._replace(env_steps=340), entry._replace(env_steps=345)
    runs = page.grouped(run_records.find(tmp_path))
    shown = [line for line in page.beside_published(runs, [entry, late, too_late]) if "others (1)" in line]
    assert shown == [
        "| Toy-v0 | 300 | 3 (n = 1) | 5.0 +- 1.0 (n = 10) at 200 | others (1), v9 |",
        "|  | 400 | 6 (n = 1) | 5.0 +- 1.0 (n = 10) at 340 | others (1), v9 |",
    ]


@pytest.mark.parametrize("step, expected", [(100, 1.0), (99, 1.0), (101, np.nan), (400, 6.0), (401, np.nan)])
def test_a_value_at_a_step_is_of_the_evaluation_that_was_due_there(tmp_path, step, expected):
    write_run(tmp_path / "a", tmp_path)
    np.testing.assert_equal(cells.value_at(run_records.find(tmp_path)[0], step), expected)


def test_a_run_that_diverged_is_kept_and_named(tmp_path):
    root, target = tmp_path / "campaign", tmp_path / "kept"
    for seed in range(3):
        write_run(root / str(seed), root, seed)
    write_run(root / "3", root, 3, returns=(), status="diverged")  # before its first evaluation
    (root / "3" / "config.gin").write_text("")
    write_run(root / "4", root, 4, returns=(1.0, float("nan"), 3.0, 4.0))
    write_run(root / "5", root, 5, status="failed")
    copied, left = collect.collect(root, target)
    assert [r.seed for r in copied] == [0, 1, 2, 3, 4] and [r.seed for r in left] == [5]
    [(key, runs)] = page.grouped(page.runs_of(target)).items()
    each = "3.67, 3.67, 3.67, diverged, diverged"
    assert cells.numbers(target, runs, [100])[:3] == ["3.67; 2 of 5 diverged", each, "1 +- 0"]
    assert cells.numbers(target, runs[3:], [100]) == ["2 diverged", "diverged, diverged", *["-"] * 5]
    assert page.missing({key: runs}, {"tasks": ["Toy-v0"], "methods": ["sac"], "seeds": 6}) == "sac on Toy-v0, seed 5"
    assert page.provenance(target, runs)[:3] == ["2", "4.0", "P"]
    about = json.loads((page.HERE / page.FIRST / "campaign.json").read_text(encoding="utf-8"))
    about["planned"]["env_steps"] = 400
    told = "\n".join(page.section(target, about, []))
    assert f"| 3.67; 2 of 5 diverged | {each} | 1 +- 0 | 2 +- 0 | 3 +- 0 | 6 +- 0 |" in told
    about["planned"]["env_steps"] = 460  # no run was evaluated at 115, 230, 345 or 460 steps
    assert " | each seed | first solved | exploring | " in "\n".join(page.section(target, about, []))
    figures.draw({key: runs, ("Toy-v0", "taac"): runs[3:]}, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def test_the_mean_curve_is_of_evaluations_that_were_due_at_the_same_steps(tmp_path):
    """A method that repeats actions inside the environment passes the step at which it is due: 101 for 100."""
    write_run(tmp_path / "a", tmp_path, 0, returns=(1.0, 2.0, 3.0, 6.0))
    write_run(tmp_path / "b", tmp_path, 1, returns=(3.0, 4.0, 5.0, 10.0))
    write_run(tmp_path / "c", tmp_path, 2, returns=(9.0, float("nan"), 9.0, 9.0))  # it diverged
    file = tmp_path / "b" / "evaluations.csv"
    file.write_text(file.read_text().replace("\n100", "\n101"))
    for name in "abc":
        (tmp_path / name / "config.gin").write_text("Intervals.num_env_steps = 400\nIntervals.evaluation_interval = 100\n")
    runs = run_records.find(tmp_path)
    steps, mean = figures.mean_curve(runs)
    assert steps.tolist() == [100, 200, 300, 400] and mean.tolist() == [2, 3, 4, 8]
    assert figures.mean_curve(runs[2:])[0].size == 0
    assert page.protocol(runs) == ["100", "1", "0 of 4"] and page.protocol(runs[2:]) == ["-", "-", "- of -"]


def test_a_figure_shows_runs_of_other_campaigns_by_their_names(tmp_path, monkeypatch):
    write_run(tmp_path / "first" / "a", tmp_path)
    groups = page.grouped(run_records.find(tmp_path / "first"))
    monkeypatch.setattr(page, "HERE", tmp_path)
    found = page.of_others({"title": "second", "beside": ["first/sac"]})
    assert list(found) == [("Toy-v0", "first/sac")]
    assert page.of_others({"title": "second"}) == {}
    with pytest.raises(TaacError, match="names first/taac, which has no runs; expected campaign/method"):
        page.of_others({"title": "second", "beside": ["first/taac"]})
    figures.draw(groups, tmp_path / "alone.png")
    figures.draw(groups, tmp_path / "beside.png", found | {("Other-v0", "first/sac"): []})
    assert (tmp_path / "alone.png").read_bytes() != (tmp_path / "beside.png").read_bytes()


def test_a_run_that_is_replaced_leaves_no_rollouts(tmp_path):
    root, target = tmp_path / "campaign", tmp_path / "kept"
    write_run(root / "a", root)
    collect.collect(root, target)
    old = target / "Toy-v0" / "sac" / "seed_0" / collect.ROLLOUTS
    old.write_text("env_steps,return_mean\n400,1\n")
    collect.collect(root, target)
    assert old.exists(), "only a run that is replaced loses them"
    collect.collect(root, target, replace=True)
    assert not old.exists()


def test_runs_that_differ_in_a_setting_are_not_averaged(tmp_path):
    for seed in range(2):
        write_run(tmp_path / "x" / str(seed), tmp_path, seed)
    (tmp_path / "x" / "1" / "config.gin").write_text("Intervals.num_env_steps = 400\nLearner.epsilon = 1e-8\n")
    with pytest.raises(TaacError, match="not comparable"):
        page.runs_of(tmp_path)


def test_a_run_that_is_no_result_is_refused(tmp_path):
    """Its last evaluations would pass for a final return, and a damaged file for a run that diverged."""
    for name, options in {"early": {"returns": (1.0, 2.0, 3.0)}, "stopped": {"status": "interrupted"}, "damaged": {}}.items():
        write_run(tmp_path / name / "a", tmp_path, **options)
    file = tmp_path / "damaged" / "a" / "evaluations.csv"
    file.write_text(file.read_text().replace("300,", "300,,", 1))
    for name, why in {"early": "it ends at step 300 of 400", "stopped": "its status", "damaged": "evaluations.csv is"}.items():
        with pytest.raises(TaacError, match=f"a: {why}"):
            page.runs_of(tmp_path / name)


def test_a_campaign_may_have_no_run_yet(tmp_path):
    about = json.loads((page.HERE / page.FIRST / "campaign.json").read_text(encoding="utf-8"))
    assert page.runs_of(tmp_path) == []
    assert "No run is finished yet." in page.section(tmp_path, about, [])
    (tmp_path / "campaign.json").write_text(json.dumps(about))
    assert page.described(tmp_path / "campaign.json") == about
    del about["commit"], about["planned"]["seeds"]
    (tmp_path / "campaign.json").write_text(json.dumps(about))
    with pytest.raises(TaacError, match=r"commit, planned\.seeds is missing or wrong; expected number"):
        page.described(tmp_path / "campaign.json")


def test_what_was_planned_and_not_run_is_listed(tmp_path):
    write_run(tmp_path / "a", tmp_path, seed=1)
    plan = {"tasks": ["Toy-v0"], "methods": ["sac", "taac"], "seeds": 2}
    missing = page.missing(page.grouped(run_records.find(tmp_path)), plan)
    assert missing == "sac on Toy-v0, seed 0; taac on Toy-v0, seeds 0, 1"
    plan = {"tasks": ["A-v0", "B-v0"], "methods": ["sac"], "seeds": 2}
    assert page.missing({}, plan) == "sac on A-v0, B-v0, seeds 0, 1"


def test_the_return_while_exploring_is_of_the_last_tenth(tmp_path):
    write_run(tmp_path / "a", tmp_path)
    (tmp_path / "a" / collect.ROLLOUTS).write_text("env_steps,return_mean\n360,100\n361,1\n400,2\n")
    assert cells.exploring_return(tmp_path / "a", run_records.find(tmp_path)[0]) == 1.5


def test_runs_that_differ_in_a_setting_are_kept_under_names_of_their_own(tmp_path):
    root, target = tmp_path / "campaign", tmp_path / "kept"
    write_run(root / "a", root)
    for name in ("sac_one", "sac_other"):
        collect.collect(root, target, method=name)
    assert [(r.method, r.seed) for r in run_records.find(target)] == [("sac_one", 0), ("sac_other", 0)]
    write_run(root / "b", root, seed=1, method="taac")
    with pytest.raises(TaacError, match="would mix the methods sac, taac"):
        collect.collect(root, target, method="sac_third")


def test_a_campaign_has_comparisons_of_its_own_also_with_runs_of_other_packages(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "HERE", tmp_path)
    about = json.loads((claims.HERE / "sac_reference" / "campaign.json").read_text(encoding="utf-8"))
    about["planned"] |= {"tasks": ["Toy-v0"], "seeds": 3}
    for seed, value in enumerate((10.0, 11.0, 12.0)):
        write_run(tmp_path / "own" / "a" / str(seed), tmp_path, seed, returns=(value,) * 4)
        other = tmp_path / "own" / "b" / str(seed)
        write_run(other, tmp_path, seed, returns=(value + 1,) * 4, method="sb3_sac")
        kept = [",".join(line.split(",")[:8]) for line in (other / "evaluations.csv").read_text().splitlines()]
        (other / "evaluations.csv").write_text("\n".join(kept) + "\n")  # it repeats nothing, and does not say so
    (tmp_path / "own" / "campaign.json").write_text(json.dumps(about))
    lines = page.section(tmp_path / "own", about, [])
    assert any("sb3_sac" in line and "12" in line for line in lines)
    [row] = [line for line in lines if "in Stable-Baselines3 |" in line]
    # A difference of 1 with a standard error of sqrt(2 / 3) and 4 degrees of freedom; 10 of 20 exchanges differ as much.
    assert "-1 [-3.27, 1.27], n = 3, 3; detectable: nothing | 0.29, 0.5 (0.05) | not decidable at this n |" in row
    # Standard error sqrt(1/3 + 1/3), df 4, t(97.5%) = 2.776: 2.267
