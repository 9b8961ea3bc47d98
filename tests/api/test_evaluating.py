"""`taac.evaluate`: the points of `taac evaluate`, and what it refuses."""

from __future__ import annotations

import csv
import json
import math
import shutil

import numpy as np
import pytest

import taac
from taac.api import evaluating
from taac.errors import TaacError
from taac.pictures.panels import panels
from taac.playing import conditions
from taac.playing.conditions import Condition, Point, Points, evaluate_runs, table_of_runs, write
from taac.runs.layout import EpisodeSummary


def test_each_combination_is_a_point_in_the_same_episodes(trained, tmp_path):
    found = taac.evaluate(
        trained.root_dir, num_episodes=2, seed=5, switch_threshold=[0.0, 0.5], hold=np.array([1, 4]), delay=(0, 20),
        output=tmp_path / "points.csv",
    )  # fmt: skip
    points = {(p.condition.delay, p.condition.switch_threshold, p.condition.hold): p for p in found.points}
    assert [*points] == [(d, t, h) for d in (0, 20) for t in (0.0, 0.5) for h in (1, 4)]
    plain = trained.evaluate(2, seed=5)
    assert points[0, 0.5, 1].summary == plain.summary  # 0.5 is what the run has
    assert points[0, 0.0, 1].summary == trained.evaluate(2, seed=5, switch_threshold=0.0).summary
    assert points[0, 0.0, 1].summary.decisions == 20 and points[0, 0.0, 4].summary.decisions == 5
    assert len({points[20, t, h].summary.return_mean for t in (0.0, 0.5) for h in (1, 4)}) == 1  # nothing is ever done
    assert repr(found).startswith("taac on Pendulum-v1, 2 greedy episodes each:") and "mean return over holds" in repr(found)
    with open(tmp_path / "points.csv") as file:
        assert [float(row["return_mean"]) for row in csv.DictReader(file)] == [p.summary.return_mean for p in found.points]


def test_of_many_runs_the_means_of_each_method_are_over_its_runs(tmp_path):
    from tests.api.small import SMALL

    for method, seed in ("taac", 0), ("taac", 1), ("sac", 0):
        taac.train("Pendulum-v1", method, root_dir=tmp_path / method / f"seed_{seed}", seed=seed, **SMALL)
    copies = {"sac/seed_1": "sac/seed_0", "taac/seed_2": "taac/seed_1"}
    for copy, run in copies.items():
        shutil.copytree(tmp_path / run, tmp_path / copy)
        about = json.loads((tmp_path / copy / "run.json").read_text())
        (tmp_path / copy / "run.json").write_text(json.dumps({**about, "seed": int(copy[-1])}))
    shutil.rmtree(tmp_path / "sac" / "seed_1" / "checkpoints")  # as of runs that were kept without
    record = tmp_path / "taac" / "seed_2" / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "status": "failed"}))
    found, notes = evaluate_runs(tmp_path, 2, 5, (0.0, 0.5), (1,), (0, 3), False, False)
    assert notes == [
        "left out: 1 run(s) of sac on Pendulum-v1 without a checkpoint",
        "left out: 1 run(s) of taac on Pendulum-v1 with the status failed",
    ]
    assert [(of.method, [p.condition for p in of.points]) for of in found] == [
        ("sac", [Condition(None, 1, delay) for delay in (0, 3)]),
        ("taac", [Condition(threshold, 1, delay) for delay in (0, 3) for threshold in (0.0, 0.5)]),
    ]
    folders = [tmp_path / "taac" / f"seed_{seed}" for seed in (0, 1)]
    each = [taac.evaluate(folder, num_episodes=2, seed=5, delay=3).points[0].summary for folder in folders]
    mean, returns = found[1].points[3].summary, [s.return_mean for s in each]
    assert (mean.episodes, mean.return_mean, mean.return_std) == (2, np.mean(returns), np.std(returns))
    assert mean.decisions == np.mean([s.decisions for s in each])
    write(found, tmp_path / "x.csv")
    rows = [*csv.DictReader((tmp_path / "x.csv").read_text().splitlines())]
    assert [(row["method"], row["runs"]) for row in rows] == [("sac", "1")] * 2 + [("taac", "2")] * 4
    assert float(rows[-1]["return_std_of_runs"]) == mean.return_std and "nan" not in str(found[0].points[0])
    write([found[0]._replace(method="=1+1")], tmp_path / "x.csv")
    assert ",'=1+1," in (tmp_path / "x.csv").read_text().splitlines()[1]
    write(found[1]._replace(method="$\\frac{$"), tmp_path / "x.png")  # no formula
    for name in ("best", "checkpoints"):
        shutil.rmtree(folders[0] / name)
    assert [of.points[0].summary.episodes for of in evaluate_runs(tmp_path, 1, 5, (None,), (1,), (0,), best=True)[0]] == [2, 1]
    lines = table_of_runs(found).splitlines()
    assert lines[0] == "Pendulum-v1, greedy episodes of finished runs:" and lines[6].split()[:5] == ["taac", "2", "0", "0.5", "1"]


def test_what_all_runs_of_a_method_tell_in_info_is_averaged_and_tasks_may_tell_other_things(trained, tmp_path):
    (point,) = taac.evaluate(trained.root_dir, num_episodes=1).points

    def points(task, **info):
        return Points(task, "sac", [point._replace(summary=point.summary._replace(info=info))])

    found = [conditions._mean_of([points("a", x=1.0, y=5.0), points("a", x=2.0)]), points("b", z=7.0)]
    write(found, tmp_path / "x.csv")
    rows = [*csv.DictReader((tmp_path / "x.csv").read_text().splitlines())]
    assert [(row["task"], row["info/x"], row["info/z"]) for row in rows] == [("a", "1.5", ""), ("b", "", "7.0")]
    assert "info/y" not in rows[0]


def test_what_does_not_fit_one_of_many_runs_is_refused_before_any_episode(tmp_path, monkeypatch):
    from tests.api.small import SMALL

    taac.train("Pendulum-v1", "sac", root_dir=tmp_path / "a", **SMALL)
    taac.train("CartPole-v1", "sac_discrete", root_dir=tmp_path / "b", **SMALL)
    monkeypatch.setattr(conditions, "evaluate", lambda *_: pytest.fail("an episode was played"))
    with pytest.raises(TaacError, match=r"^b: .*ActionDelay needs a Box of actions"):
        evaluate_runs(tmp_path, 2, 5, (None,), (1,), (0, 3), False, False)
    with pytest.raises(TaacError, match=r"no method of the runs in .* has a switch_threshold"):
        evaluate_runs(tmp_path, 2, 5, (0.5,), (1,), (0,), False, False)
    for conditions_of in (((), (1,), (0,)), ((None,), (), (0,)), ((None,), (1,), ())):
        with pytest.raises(TaacError, match="got none"):
            evaluate_runs(tmp_path, 2, 5, *conditions_of)


def test_the_best_agent_may_be_asked_for(trained, monkeypatch):
    asked = []
    monkeypatch.setattr(evaluating, "evaluate_conditions", lambda *given: asked.append(given))
    taac.evaluate(trained.root_dir, best=True, trust=True)
    assert asked == [(trained.root_dir, 20, 0, (None,), (1,), (0,), True, True)]


def test_one_condition_is_a_number_and_twice_the_same_is_once(trained):
    alone = taac.evaluate(trained.root_dir, num_episodes=2, hold=[2, 2])
    assert [p.condition for p in alone.points] == [(None, 2, 0)]
    assert alone.points == taac.evaluate(trained.root_dir, num_episodes=2, hold=2).points


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"hold": 0}, "hold must be 1 or more steps, got 0"),
        ({"hold": 1.5}, r"hold must be an integer, or several, got 1\.5"),
        ({"hold": []}, "hold and delay must be a number each, or several, got none"),
        ({"delay": "1"}, "delay must be an integer, or several, got '1'"),
        ({"delay": [0, -1]}, "delay must be 0 or more steps, got -1"),
        ({"switch_threshold": [0.5, 1.0]}, "switch_threshold must be 0 or more and below 1, got 1.0"),
        ({"switch_threshold": True}, "switch_threshold must be a number, or several, got True"),
        ({"num_episodes": 0}, "num_episodes must be an integer, 1 or more, got 0"),
        ({"seed": -1}, "seed must be an integer in"),
        ({"output": "points.txt"}, "output must end in .csv or .png, got 'points.txt'"),
    ],
)
def test_what_is_out_of_range_is_refused_before_any_episode(trained, monkeypatch, arguments, message):
    monkeypatch.setattr("taac.playing.conditions.evaluate", lambda *_: pytest.fail("it has played"))
    with pytest.raises(taac.TaacError, match=message):
        taac.evaluate(trained.root_dir, **arguments)


def test_a_method_without_a_probability_of_switching_has_no_threshold(tmp_path):
    from tests.api.small import SMALL

    run = taac.train("Pendulum-v1", "sac", root_dir=tmp_path / "run", **SMALL)
    with pytest.raises(taac.TaacError, match="SacAlgorithm has no switch_threshold"):
        taac.evaluate(run.root_dir, switch_threshold=0.5)


def test_a_hold_ends_with_its_episode(trained):
    """Episodes of 20 steps: 6 does not divide the 21 frames."""
    found = taac.evaluate(trained.root_dir, num_episodes=3, hold=6, switch_threshold=0.0)
    assert found.points[0].summary.decisions == 4


def point(hold, mean, std=0.0, n=4):
    fields = dict.fromkeys(EpisodeSummary._fields, 0.0) | {"episodes": n, "return_mean": mean, "return_std": std}
    return Point(Condition(hold=hold), EpisodeSummary(**fields))


def test_the_interval_of_a_point():
    """Returns 0, 0, 2, 2: mean 1, std 1 with n; t of 3 degrees of freedom 3.182; 3.182 * sqrt(4/3) / 2."""
    assert point(1, 1.0, 1.0).half_width == pytest.approx(3.182446 * math.sqrt(4 / 3) / 2, rel=1e-5)


def test_the_area_does_not_depend_on_the_order():
    line = [point(4, 2.0), point(1, 10.0), point(2, 4.0)]
    late = [p._replace(condition=p.condition._replace(delay=3), summary=p.summary._replace(return_mean=1.0)) for p in line]
    found = Points("T", "taac", line + late)
    area = (7.0 * 1 + 3.0 * 2) / 3
    assert found.areas() == {Condition(hold=1): pytest.approx(area), Condition(hold=1, delay=3): pytest.approx(1.0)}
    assert found.areas("delay") == {Condition(hold=hold): (mean + 1.0) / 2 for hold, mean in ((4, 2.0), (1, 10.0), (2, 4.0))}
    assert "hold 4: mean return over delays 1.50" in repr(found) and f"delay 0: mean return over holds {area:.2f}" in repr(found)
    assert Points("T", "taac", line[:1]).areas() == {}


def test_a_delay_that_the_environment_refuses_is_refused_before_any_episode(tmp_path, monkeypatch):
    from tests.api.small import SMALL

    run = taac.train("CartPole-v1", "sac_discrete", root_dir=tmp_path / "run", **SMALL)
    monkeypatch.setattr("taac.playing.conditions.evaluate", lambda *_: pytest.fail("it has played"))
    with pytest.raises(taac.TaacError, match="ActionDelay needs a Box"):
        taac.evaluate(run.root_dir, delay=[0, 1])


@pytest.mark.parametrize(
    "conditions, title, x",
    [
        ([(None, 8, 2), (None, 1, 2), (None, 4, 2)], "taac on T, delay 2", [1, 4, 8]),
        ([(0.7, 2, 0), (0.7, 1, 0)], "taac on T, delay 0, switch_threshold 0.7", [1, 2]),
        ([(None, 2, 0), (None, 1, 0)], "taac on T", [1, 2]),
        ([(None, 1, 3), (None, 1, 0)], "taac on T", [0, 3]),
        ([(None, 4, 3), (None, 4, 0)], "taac on T, hold 4", [0, 3]),
        ([(0.5, 1, 1), (0.9, 1, 1)], "taac on T: switch_threshold, delay 1", [0.0, 0.0]),  # decisions
        ([(0.5, 2, 0), (0.9, 2, 0)], "taac on T: switch_threshold, hold 2", [0.0, 0.0]),
    ],
)
def test_a_picture_says_what_all_its_points_share(monkeypatch, tmp_path, conditions, title, x):
    drawn = []
    monkeypatch.setattr("taac.playing.conditions.panels", lambda *how: drawn.append(panels(*how)) or drawn[-1])
    points = [point(1, 1.0, 1.0)._replace(condition=Condition(*one)) for one in conditions]
    write(Points("T", "taac", points), tmp_path / "x.png")
    axis = drawn[0][1][0][0]
    assert axis.get_title() == title and axis.containers[0].lines[0].get_xdata().tolist() == x
