"""Pictures and tables of one run and of many."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest

from taac.analysis.curves import plots, tag_curves
from taac.analysis.curves.tag_curves import Options, choose, smooth
from taac.analysis.statistics.intervals import estimate_interval
from taac.errors import TaacError
from tests.analysis.campaigns import COLUMNS, STEPS, make_run, summarize
from tests.analysis.test_events import point, start, write

NAN = math.nan
OLDER = [column for column in COLUMNS if column != "training_decisions"]  # of runs made before it was there


def make_group(root, lines, tag="rollout/return", method="sac", **more):
    """A run for each line `{step: value}` of a tag."""
    for seed, line in enumerate(lines):
        summarize(make_run(root / method / f"seed_{seed}", method, seed=seed, **more), {tag: line})
    return root


def only(root, **options):
    """The one curve of `rollout/return`, and the notes."""
    found = tag_curves.make_curves([root], Options(("rollout/return",), **options))
    (of,) = found.curves
    return of.curve, found.notes


# --- One run --------------------------------------------------------------------------------------


def test_one_run_is_drawn_and_its_scalars_are_written(tmp_path):
    folder = summarize(make_run(tmp_path / "run"), {"loss/critic": {100: 0.5, 200: NAN}, "beta/alpha": {100: 2.0}})
    picture, table, notes = plots.plot_run(folder)
    assert picture.read_bytes().startswith(b"\x89PNG") and notes == []
    with open(table) as file:
        rows = [(r["tag"], r["env_steps"], r["value"]) for r in csv.DictReader(file)]
    assert rows == [("beta/alpha", "100", "2.0"), ("loss/critic", "100", "0.5"), ("loss/critic", "200", "nan")]


def test_what_the_picture_of_a_run_shows(tmp_path):
    folder = make_run(tmp_path / "run", returns=np.linspace(1, 9, len(STEPS)), repeated=0.25)
    record = plots.drawable(folder)
    deviation = record.evaluations["return_std"][:] = np.arange(len(STEPS)) + 1.0
    record.evaluations["fraction_same"][:] = 0.75
    top, bottom = plots.run_figure(record).axes
    band = {tuple(point) for path in top.collections[0].get_paths() for point in path.vertices}
    assert {(x, y + sign * d) for x, y, d in zip(STEPS, np.linspace(1, 9, len(STEPS)), deviation) for sign in (-1, 1)} <= band
    assert (bottom.lines[0].get_ydata() == 0.25).all()


def test_the_title_of_a_run_names_method_task_and_seed_and_is_whole(tmp_path):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    titles = []
    for method, task in (("taac_q", "Ant-v5"), ("taac_lr_" * 20, "Walker2d-" * 20)):
        figure = plots.run_figure(plots.drawable(make_run(tmp_path / method, method, task, seed=4)))
        box = figure._suptitle.get_window_extent(FigureCanvasAgg(figure).get_renderer())
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width
        titles.append(figure._suptitle.get_text())
    assert titles[0] == "taac_q on Ant-v5, seed 4" and len(titles[1]) < 140


def test_a_run_with_problems_is_drawn_and_they_are_reported(tmp_path):
    folder = make_run(tmp_path / "run", returns=[1, 2, NAN, *range(7)])
    (folder / "run.json").write_text("{")
    notes = plots.plot_run(folder)[2]
    assert any("run.json cannot be read" in note for note in notes)


def test_folders_that_cannot_be_drawn(tmp_path):
    with pytest.raises(TaacError, match=r"there is no evaluations\.csv"):
        plots.plot_run(tmp_path)
    with pytest.raises(TaacError, match="no evaluation yet"):
        plots.plot_run(make_run(tmp_path / "empty", steps=()))
    with pytest.raises(TaacError, match="not a finite number"):
        plots.plot_run(make_run(tmp_path / "diverged", returns=[NAN] * 10))


# --- Means over runs ------------------------------------------------------------------------------


def test_runs_are_averaged_on_the_steps_of_all_within_the_range_of_all(tmp_path):
    """Steps 10 to 30 are common; at 20 the second run is halfway between 2 and 6, at 25 the first between 4 and 9."""
    make_group(tmp_path, [{0: 0, 10: 2, 20: 4, 30: 9}, {10: 2, 30: 6, 40: 8}, {5: 1, 25: 5, 35: 1}])
    curve, notes = only(tmp_path)
    assert curve.steps.tolist() == [10, 20, 25, 30]
    table = np.array([[2, 4, 6.5, 9], [2, 4, 5, 6], [2, 4, 5, 3]])
    np.testing.assert_allclose(curve.estimate, table.mean(0))
    for i in (2, 3):
        assert (curve.low[i], curve.high[i]) == pytest.approx(estimate_interval([table[:, i]], "mean")[1:3])
    assert np.isnan(curve.low[:2]).all()  # equal runs tell no spread
    assert notes == ["rollout/return of sac on Hopper-v5: drawn up to 30 environment steps, which all 3 runs have reached"]


def test_a_value_that_is_not_finite_leaves_a_gap_and_is_reported(tmp_path):
    make_group(tmp_path, [{10: 1, 20: 2, 30: math.inf, 40: 4}, {10: 1, 25: 2, 40: 5}])
    curve, notes = only(tmp_path)
    assert curve.steps.tolist() == [10, 20, 25, 30, 40]
    np.testing.assert_allclose(curve.estimate, [1, (2 + 5 / 3) / 2, NAN, NAN, 4.5])
    assert notes == ["sac/seed_0: rollout/return has 1 value(s) that are not finite, first at step 30"]


def test_runs_without_a_common_range_are_not_drawn(tmp_path):
    make_group(tmp_path, [{10: 1, 20: 2}, {30: 1, 40: 2}])
    with pytest.raises(TaacError, match=r"(?s)nothing to draw.*of its 2 runs do not overlap"):
        only(tmp_path)


def test_methods_and_tasks_are_kept_apart(tmp_path):
    for task in ("A-v0", "B-v0"):
        for method, value in (("sac", 1.0), ("taac", 2.0)):
            tag = "loss/actor" if (task, method) == ("B-v0", "sac") else "rollout/return"
            summarize(make_run(tmp_path / task / method, method, task), {tag: {1: value, 2: value}})
    found = tag_curves.make_curves([tmp_path], Options(("rollout/return",)))
    assert [(c.task, c.method, c.runs, c.curve.estimate.tolist()) for c in found.curves] == [
        ("A-v0", "sac", 1, [1, 1]), ("A-v0", "taac", 1, [2, 2]), ("B-v0", "taac", 1, [2, 2]),
    ]  # fmt: skip
    assert found.notes == ["B-v0/sac: no rollout/return"]


def test_evaluations_are_those_of_the_table(tmp_path):
    """The event files' are of lower precision, and need not be there."""
    make_run(tmp_path / "a", repeated=0.75, returns=np.array(STEPS) / 3)
    summarize(tmp_path / "a", {"evaluation/return": {100: 7.0}})
    found = tag_curves.make_curves([tmp_path], Options())
    assert [c.tag for c in found.curves] == ["evaluation/return", "evaluation/fraction_repeated"]
    assert found.curves[0].curve.estimate.tolist() == (np.array(STEPS) / 3).tolist()
    assert found.curves[1].curve.estimate.tolist() == [0.75] * 10


def test_damaged_evaluations_are_not_drawn_beside_others(tmp_path):
    for seed in range(3):
        make_run(tmp_path / f"s{seed}", seed=seed, returns=[s + seed for s in STEPS])
    file = tmp_path / "s2" / "evaluations.csv"
    file.write_text(file.read_text().replace(",502.0,", ",5o2.0,"))
    found = tag_curves.make_curves([tmp_path], Options(("evaluation/return",)))
    (of,) = found.curves
    assert of.runs == 2 and of.curve.estimate.tolist() == [s + 0.5 for s in STEPS]
    assert "s2: evaluations.csv is damaged: line 6 has '5o2.0' for return_mean, expected a number" in found.notes
    assert "s2: no evaluation/return" in found.notes


def test_a_run_without_evaluations_is_drawn_from_its_summaries(tmp_path):
    make_group(tmp_path, [{1: 1.0, 2: 2.0}], status="running")
    (tmp_path / "sac" / "seed_0" / "evaluations.csv").unlink()
    curve, notes = only(tmp_path)
    assert curve.estimate.tolist() == [1, 2]
    assert notes == ["sac/seed_0: there is no evaluations.csv", "sac/seed_0: not finished: running"]


def test_several_folders_and_each_run_once(tmp_path):
    make_group(tmp_path / "one", [{1: 1.0, 2: 1.0}])
    summarize(make_run(tmp_path / "two", seed=1), {"rollout/return": {1: 3.0, 2: 3.0}})
    roots = [tmp_path / "one", tmp_path / "two", tmp_path / "one" / ".."]
    (of,) = tag_curves.make_curves(roots, Options(("rollout/return",))).curves
    assert of.runs == 2 and of.curve.estimate.tolist() == [2, 2]


# --- The axis -------------------------------------------------------------------------------------


def test_the_axes_of_counts_are_interpolated_and_never_extrapolated(tmp_path):
    """40 decisions in the first 100 steps, then 10; no count is known beyond step 200."""
    folder = make_run(tmp_path / "run", columns=OLDER)
    returns = {50: 1.0, 100: 2.0, 150: 3.0, 200: 4.0, 250: 5.0}
    summarize(folder, {"rollout/return": returns, "count/decisions": {100: 40.0, 200: 50.0}})
    curve, notes = only(tmp_path, x="decisions")
    assert curve.steps.tolist() == [20, 40, 45, 50] and curve.estimate.tolist() == [1, 2, 3, 4]
    assert notes == [
        "run: evaluations.csv has no column training_decisions",
        "run: rollout/return has 1 point(s) whose decisions are not known, left out",
    ]


def test_updates_are_those_of_summaries_and_evaluations_and_the_last_point_of_a_place_counts(tmp_path):
    """No update in the first 100 steps; the planted evaluation at step 1000 reports 1000 updates."""
    folder = make_run(tmp_path / "run", steps=(1000,))
    returns = {50: 1.0, 100: 2.0, 200: 3.0, 1000: 4.0}
    summarize(folder, {"rollout/return": returns, "count/updates": {50: 0.0, 100: 0.0, 200: 100.0}})
    curve, notes = only(tmp_path, x="updates")
    assert curve.steps.tolist() == [0, 100, 1000] and curve.estimate.tolist() == [2, 3, 4] and not notes


def test_a_clock_that_was_set_back_stands_still(tmp_path):
    messages = [point(s, float(s), "rollout/return", wall) for s, wall in ((1, 110.0), (2, 105.0), (3, 120.0))]
    write(make_run(tmp_path / "run"), "1", [start(0, 100.0), *messages])
    curve, _ = only(tmp_path, x="wall_time")
    assert curve.steps.tolist() == [10, 20] and curve.estimate.tolist() == [2, 3]


@pytest.mark.parametrize("jump", [30_000.0, -3_000.0])
def test_time_that_a_machine_slept_or_a_clock_was_set_is_no_training(tmp_path, jump):
    """Evaluations at 100, 200, 300 after 10, 20, 30 s. After 120 steps the clock is off by `jump`; it began 5 s late."""
    walls = {s: 100.0 - 5 + s / 10 + jump * (s > 120) for s in (50, 100, 110, 150, 200, 250, 300, 320)}
    messages = [point(s, float(s), "rollout/return", wall) for s, wall in walls.items() if s not in (100, 200, 300)]
    told = [point(s, float(s), "evaluation/return", wall) for s, wall in walls.items() if s in (100, 200, 300)]
    write(make_run(tmp_path / "run", steps=(100, 200, 300)), "1", [start(0, 100.0), *messages, *told])
    curve, _ = only(tmp_path, x="wall_time")
    assert curve.steps == pytest.approx([5, 11, 15, 25, 32])
    assert curve.estimate.tolist() == [50, 110, 150, 250, 320]


# --- Smoothing ------------------------------------------------------------------------------------


def test_smoothing_is_the_mean_of_the_window_up_to_each_point():
    """Windows (x - 10, x]: {0}, {0, 5}, {5, 10}, {10, 12}, {30}; the point 10 before is out."""
    x, y = np.array([0.0, 5, 10, 12, 30]), np.array([1.0, 3, 5, 10, 2])
    assert smooth(x, y, 10).tolist() == [1, 2, 4, 6, 2]
    assert smooth(x, y, 0) is y
    assert smooth(x, y, 1).tolist() == y.tolist()
    assert smooth(x, y, 1e9).tolist() == pytest.approx([1, 2, 3, 19 / 4, 21 / 5])


def test_nan_neither_spreads_nor_is_hidden_by_smoothing():
    x, y = np.arange(5.0), np.array([NAN, 1, NAN, 3, 5])
    np.testing.assert_array_equal(smooth(x, y, 3), [NAN, 1, NAN, 2, 4])
    np.testing.assert_array_equal(smooth(x, np.full(5, NAN), 3), np.full(5, NAN))


def test_a_large_value_does_not_outlive_its_window():
    y = np.array([1e20, 1, 2, 3])
    assert smooth(np.arange(4.0), y, 2).tolist() == [1e20, 5e19, 1.5, 2.5]


# --- Which tags -----------------------------------------------------------------------------------


def test_tags_are_chosen_by_name_and_pattern_each_once_in_order():
    known = ["beta/alpha", "beta/entropy", "loss/actor", "rollout/return", "rollout/return_std"]
    assert choose(["rollout/*", "beta/alpha", "*/return"], known) == ["rollout/return", "rollout/return_std", "beta/alpha"]
    assert choose(["beta/[ae]*"], known) == known[:2]
    assert choose(["w[0]"], ["w[0]"]) == ["w[0]"]  # a name before it is a pattern


@pytest.mark.parametrize(
    "pattern, message",
    [
        ("rollout/retrun", r"did you mean 'rollout/return'\?; there are: loss/actor, rollout/return$"),
        ("zzz*", r"no run has such a series; there are: loss/actor"),
        ("Rollout/return", r"did you mean 'rollout/return'\?"),
    ],
)
def test_a_tag_that_no_run_has(pattern, message):
    with pytest.raises(TaacError, match=message):
        choose([pattern], ["loss/actor", "rollout/return"])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"x": "steps"}, "--x must be one of env_steps, decisions, updates, wall_time, got 'steps'"),
        ({"smoothing": -1.0}, "--smoothing must be 0 or more environment steps"),
        ({"smoothing": NAN}, "--smoothing"),
        ({"tags": ()}, "--tags is empty"),
    ],
)
def test_options_that_make_no_sense(tmp_path, options, message):
    with pytest.raises(TaacError, match=message):
        tag_curves.make_curves([tmp_path], Options(**options))


def test_folders_without_runs_and_runs_without_series(tmp_path):
    with pytest.raises(TaacError, match="holds no run"):
        tag_curves.make_curves([tmp_path], Options())
    make_run(tmp_path / "run", steps=())
    with pytest.raises(TaacError, match="neither evaluations nor summaries yet"):
        tag_curves.make_curves([tmp_path], Options())


def test_runs_that_are_not_comparable_are_refused(tmp_path):
    make_group(tmp_path, [{1: 1.0, 2: 2.0}])
    summarize(make_run(tmp_path / "other", seed=1, updates_per_iteration=9), {"rollout/return": {1: 3.0, 2: 4.0}})
    with pytest.raises(TaacError, match=r"updates per environment step on Hopper-v5"):
        only(tmp_path)
    found = tag_curves.make_curves([tmp_path], Options(("rollout/return",), allow_mixed=True))
    assert len(found.curves) == 2 and any(note.startswith("not comparable") for note in found.notes)


# --- Files ----------------------------------------------------------------------------------------


@pytest.fixture
def found(tmp_path):
    make_group(tmp_path, [{10: 1, 20: 2, 30: NAN, 40: 4}, {10: 2, 20: 5, 40: 5}])
    make_group(tmp_path, [{10: 1, 20: 2}], method="taac", task="Ant-v5")
    return tag_curves.make_curves([tmp_path], Options(("rollout/return", "evaluation/return"), smoothing=15))


def test_the_table_holds_the_curves_and_says_what_they_are(found):
    rows = list(csv.DictReader(io.StringIO(plots.table(found))))
    curves = [c for c in found.curves for _ in c.curve.steps]
    assert len(rows) == len(curves) == 4 + 2 + 10 + 10
    for row, of in zip(rows, curves, strict=True):
        assert (row["tag"], row["task"], row["method"], row["runs"]) == (of.tag, of.task, of.method, str(of.runs))
        assert row["x"] == "env_steps" and row["confidence"] == "0.95"
        assert row["smoothing"] == "mean of the run's points in the last 15 environment steps"
        assert row["interval"] == ("Student t, at each point by itself" if of.runs > 1 else "none: one run")
    of = next(c for c in found.curves if c.runs == 2).curve
    (second,) = [r for r in rows if r["tag"] == "rollout/return" and r["method"] == "sac" and r["at"] == "20.0"]
    i = of.steps.tolist().index(20)
    assert (
        [float(second[k]) for k in ("mean", "low", "high")]
        == [of.estimate[i], of.low[i], of.high[i]]
        == pytest.approx([(1.5 + 3.5) / 2, 2.5 - 12.706204736, 2.5 + 12.706204736])
    )
    (gap,) = [r for r in rows if r["tag"] == "rollout/return" and r["at"] == "30.0"]
    assert gap["mean"] == gap["low"] == gap["high"] == ""


def test_pictures_state_smoothing_and_interval_and_show_every_panel(found, tmp_path):
    import xml.etree.ElementTree as ElementTree

    text = plots.write_curves(found, tmp_path / "out" / "a.svg").read_text()
    ElementTree.fromstring(text)
    for words in (
        "mean over runs, band: 95% interval (Student t, at each point by itself), may leave the panel; single runs are faint",
        "smoothing: mean of the run's points in the last 15 environment steps", "Hopper-v5", "Ant-v5", "rollout/return",
        "evaluation/return", "environment steps", "sac (2)", "taac (1)",
    ):  # fmt: skip
        assert f"<!-- {words} -->" in text, words
    png = plots.write_curves(found, tmp_path / "a.PNG")
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["a.png", "a.svg", "a.csv"])
def test_the_same_curves_give_the_same_bytes(found, tmp_path, name):
    first, second = (plots.write_curves(found, tmp_path / f"{place}{name}").read_bytes() for place in "12")
    assert first == second


def test_a_format_that_is_none_and_too_many_panels(found, tmp_path):
    with pytest.raises(TaacError, match=r"must end in \.png or \.svg or \.csv"):
        plots.write_curves(found, tmp_path / "a.pdf")
    many = found._replace(curves=[found.curves[0]._replace(tag=str(i)) for i in range(61)])
    with pytest.raises(TaacError, match="61 tags are too many"):
        plots.write_curves(many, tmp_path / "a.png")
    assert plots.table(many).count("\n") == 61 * 2 + 1
    wide = found._replace(curves=[found.curves[0]._replace(task=str(i)) for i in range(61)])
    with pytest.raises(TaacError, match="61 tasks are too many"):
        plots.write_curves(wide, tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_a_run_json_of_an_older_run(tmp_path):
    """The task is unknown. The run is still drawn, under a name that says so."""
    make_group(tmp_path, [{1: 1.0, 2: 2.0}])
    folder = tmp_path / "sac" / "seed_0"
    (folder / "run.json").write_text(json.dumps({"status": "finished", "method": "sac"}))
    (folder / "config.gin").unlink()
    (of,) = tag_curves.make_curves([tmp_path], Options(("rollout/return",))).curves
    assert of.task == "unknown task"
