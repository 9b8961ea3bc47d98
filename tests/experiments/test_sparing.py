"""The table of deciding rarely: its commands, and when a published row counts as reproduced."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.sparing import __main__ as published
from experiments.sparing import conditions, pairs, reproduced
from experiments.sparing.reproduced import Row
from tests import forked


@pytest.mark.parametrize(
    ("row", "returns", "decisions", "expected"),
    [
        # 2 * 10 * sqrt(1 / 5 + 1 / 10) = 10.95
        (Row(-150, 10, 60, False), [-160.9] * 5, [75.0] * 5, "reproduced"),
        (Row(-150, 10, 60, False), [-161.0] * 5, [75.0] * 5, "return: not reproduced"),
        (Row(-150, 10, 60), [-139.1] * 5, [44.9] * 5, "decisions: not at this budget"),
        (Row(-150, 10, 60), [-100.0] * 5, [44.9] * 5, "return and decisions: not at this budget"),
        (Row(1000, 0, 100), [989.1] * 5, [100.0] * 5, "reproduced"),  # at least 1%: 2 * 10 * 0.5477 = 10.95
        (Row(1000, 0, 100), [989.0] * 5, [100.0] * 5, "return: not at this budget"),
        (Row(0, 0, 999), [-0.1] * 5, [999.0] * 5, "reproduced"),  # at least 0.1: 0.11
        (Row(0, 0, 999), [-0.2] * 5, [999.0] * 5, "return: not at this budget"),
        (Row(-150, 10, 60, False), [-170.0, -140.0, -135.0], [60.0] * 3, "reproduced"),  # of three seeds: 13.2
        (Row(-150, 10, 60, False), [-150.0] * 2, [60.0] * 2, "fewer than 3 seeds"),
    ],
)
def test_the_rule(row, returns, decisions, expected):
    assert reproduced.verdict(row, returns, decisions) == expected


def finished(root, method, seed, evaluations, **more):
    """A finished run of Pendulum with returns and decisions at steps 1, 2, ..."""
    run = root / "Pendulum-v1" / method / f"seed_{seed}"
    run.mkdir(parents=True)
    columns = ["env_steps", "updates", "training_decisions", "seconds", "episodes", "return_mean", "return_std", "length",
               "fraction_repeated", "mean_run", "max_run", "decisions", "fraction_same", "action_change",
               "multiply_adds"]  # fmt: skip
    rows = [
        f"{n},{n},{n},{n},10,{value},1,200,0.5,2,3,{decided},0.25,0.5,{decided}e5"
        for n, (value, decided) in enumerate(evaluations, 1)
    ]
    (run / "evaluations.csv").write_text("\n".join([",".join(columns), *rows]) + "\n")
    about = {"method": method, "environment": "Pendulum-v1", "seed": seed, "status": "finished", "env_steps": len(rows), **more}
    (run / "run.json").write_text(json.dumps(about))
    (run / "config.gin").write_text(f"Intervals.num_env_steps = {len(rows)}\n")


def test_the_table_of_finished_runs(tmp_path):
    for seed in range(3):
        finished(tmp_path, "tla", seed, [(-900, 3), (-150, 60), (-160, 61), (-155, 65)])
        finished(tmp_path, "td3", seed, [(-150, 200), ("nan" if seed == 1 else -146, 200)])
    lines = reproduced.table(tmp_path)
    assert "| Pendulum-v1 | tla | 3 | -155 | -154.92 | 62 | 62.31 | reproduced |" in lines
    assert "| Pendulum-v1 | td3 | 3 | -148 | -147.38 | 200 | 200 | not reproduced: 1 of 3 diverged |" in lines
    assert sum(line.endswith("| not run |") for line in lines) == len(reproduced.PUBLISHED) - 2
    assert reproduced.costs(tmp_path)[2:] == [  # actions of 2 units; TD3's are of the two seeds that did not diverge
        "| Pendulum-v1 | td3 | 25 | 7 | 1 | 1.02 | 20 | 24 |", "| Pendulum-v1 | tla | 25 | 70 | 1 | 0.62 | 6.2 | 12 |"
    ]  # fmt: skip


def test_pairs_are_of_equal_seeds(tmp_path):
    """The differences are 1, 2 and 3: 2 +- 4.303 / sqrt(3). Seed 3 has no SAC, and of `few` there are two pairs."""
    for seed, start in enumerate((-300.0, -100.0, 0.0)):
        finished(tmp_path, "sac", seed, [(start, 200)])
        finished(tmp_path, "taac", seed, [(start + seed + 1, 10 * (seed + 1))])
    finished(tmp_path, "taac", 3, [(0, 0)])
    for seed in (0, 1):
        finished(tmp_path, "few", seed, [(0, 0)])
    assert pairs.table(tmp_path)[2:] == ["| Pendulum-v1 | taac | 3 | +2 [-0.484, 4.48] | 20 |"]
    finished(tmp_path, "taac", 4, [("nan", 0)])
    assert pairs.table(tmp_path)[2:] == ["| Pendulum-v1 | taac | 3; 1 more diverged | +2 [-0.484, 4.48] | 20 |"]


def test_what_runs_is_what_the_published_rows_are_of():
    asked = {(words[1], Path(words[3]).stem) for words in published.comparisons()}
    assert asked == set(reproduced.PUBLISHED)
    assert len(list(published.comparisons(["Pendulum-v1"], seeds=2))) == 3
    for words in published.comparisons(["MountainCarContinuous-v0"]):  # which has more settings than the others
        done = forked.run(["compare", "--root_dir=x", "--dry_run", *words], cwd=Path())
        assert done.returncode == 0, done.stderr


def test_conditions_are_played_once(tmp_path, monkeypatch):
    from taac import api

    folder, asked = tmp_path / "runs", []
    for method in ("sac", "taac", "td3"):  # of the last, whose run was copied from elsewhere, there is no checkpoint
        run = folder / "Pendulum-v1" / method / "seed_3"
        (run / "checkpoints").mkdir(parents=True)
        if method != "td3":
            (run / "checkpoints" / "4.json").touch()
        (run / "evaluations.csv").write_text("env_steps,return_mean\n4,-100\n")
        (run / "run.json").write_text(
            f'{{"method": "{method}", "environment": "Pendulum-v1", "seed": 3, "status": "finished", "env_steps": 4}}'
        )
        (run / "config.gin").write_text("Intervals.num_env_steps = 4\n")

    def evaluate(run, **how):
        asked.append((run.parent.name, how["switch_threshold"], how["delay"]))
        summary = SimpleNamespace(return_mean=-150.0 - how["delay"], decisions=20.0)
        return SimpleNamespace(points=[SimpleNamespace(summary=summary)])

    monkeypatch.setattr(api, "evaluate", evaluate)
    monkeypatch.setattr("taac.evaluate", evaluate, raising=False)
    file = tmp_path / "conditions.csv"
    conditions.play(folder, file)
    late = [(None, 0), (None, 1), (None, 2)]
    assert asked == [("sac", *one) for one in late] + [("taac", *one) for one in late] + [
        ("taac", t, 0) for t in conditions.THRESHOLDS
    ]
    conditions.play(folder, file)
    assert len(asked) == 11
    text = "\n".join(conditions.tables(conditions.read(file)))
    assert "| Pendulum-v1 | sac | 1 | -150 (20) | -151 (20) | -152 (20) |" in text
    assert "| Pendulum-v1 | taac | 1 | -150 (20) | -150 (20) | -150 (20) | -150 (20) | -150 (20) | fewer than 3 seeds |" in text


def test_conditions_are_compared_on_equal_seeds():
    """Seed 1 was not played at the other thresholds: the mean at 0.5 is that of seed 0. Of `taac_rate` nothing is left."""
    seen = [("taac", s, t) for s, t in [*((0, t) for t in conditions.THRESHOLDS), (1, 0.5)]] + [("taac_rate", 0, 0.5)]
    rows = [
        {"task": "T", "method": m, "seed": s, "threshold": t, "delay": 0, "return_mean": -100.0 - s, "decisions": 50.0 + s}
        for m, s, t in seen
    ]
    lines = [line for line in conditions.tables(rows) if line.startswith("| T ")]
    assert lines == ["| T | taac | 1 |" + " -100 (50) |" * 5 + " fewer than 3 seeds |"]


@pytest.mark.parametrize(
    ("returns", "other", "decisions", "expected"),
    [
        ((-150.0, -160.0, -140.0), -155.0, 50.0, "yes, yes"),
        ((-150.0, -160.0, -140.0), -180.0, 51.0, "no, no"),  # the interval is 150 +- 24.8
        ((1000.0, 1000.0, 1000.0), 1000.0, 10.0, "yes, yes"),
        ((1000.0, 1000.0, 1000.0), 999.0, 10.0, "yes, no"),
    ],
)
def test_half_the_decisions_at_the_same_return(returns, other, decisions, expected):
    at_half = [{"return_mean": r, "decisions": 100.0} for r in returns]
    at_seven = [{"return_mean": other, "decisions": decisions}] * 3
    assert conditions._half([at_half, [], at_seven, [], []]) == expected
