"""Sweeps without training: what is searched, what is tried, pruned and kept, and that being killed changes nothing."""

from __future__ import annotations

import contextlib
import json
import math
import sys

import pytest

from taac.analysis.readers import run_records
from taac.campaigns import search_space, sweeping
from taac.campaigns.launchers import Outcome
from taac.campaigns.run import ATTEMPT, Run
from taac.campaigns.search_space import Dimension
from taac.campaigns.sweep import RECORD, Record, Sweep, Trial, statement, write_best
from taac.campaigns.sweeping import Sweeping
from taac.commands import sweep as command
from taac.configuration import RunRequest, build, load, operative_config
from taac.errors import OCCUPIED, TaacError
from taac.training.experiment import create_experiment
from tests import forked
from tests.analysis.campaigns import make_run
from tests.campaigns.launched import POINT, SMALL, evaluations

SEARCH = ("x=0.0..1.0", "choice=a|b,c")
STEPS = 100
Kill = KeyboardInterrupt


def test_a_space_is_read_in_plain_words():
    given = ["learning_rate=log:1e-4..1e-2", "gamma = 0.9 .. 0.999", "n=-3..8", "hidden_layers=64,64|256,256", "s=@A()|none"]
    assert search_space.parse(given) == [
        Dimension("learning_rate", (), 1e-4, 1e-2, log=True),
        Dimension("gamma", (), 0.9, 0.999),
        Dimension("n", (), -3, 8, whole=True),
        Dimension("hidden_layers", ("64,64", "256,256")),
        Dimension("s", ("@A()", "none")),
    ]
    assert Dimension("x", (), 0.12344, 0.5).rounded(0.12344) == 0.12344 and Dimension("x", (), 0, 1).rounded(0.123456) == 0.1235
    assert [d.ends() for d in search_space.parse(given)[1:4]] == [["0.9", "0.999", "0.9378"], ["-3", "8"], ["64,64", "256,256"]]


@pytest.mark.parametrize(
    "given, told",
    [
        ([], "--search is missing"),
        (["learning_rate"], "expected NAME=SPACE"),
        (["=1..2"], "expected NAME=SPACE"),
        (["gamma=0.9"], "'0.9' is one value, for --set"),
        (["gamma=0.9|"], "two or more different choices"),
        (["gamma=0.9|0.9"], "two or more different choices"),
        (["gamma=a..b"], "must be numbers"),
        (["gamma=2..1"], "must rise"),
        (["gamma=1..1"], "must rise"),
        (["gamma=0..inf"], "must rise"),
        (["gamma=nan..1"], "must rise"),
        (["gamma=log:0..1"], "must begin above 0"),
        (["gamma=0..1", "gamma=2..3"], "given twice"),
    ],
)
def test_a_malformed_space_is_refused(given, told):
    with pytest.raises(TaacError, match=told):
        search_space.parse(given)


def test_a_sweep_refuses_what_it_cannot_do():
    for options, told in (
        ({"trials": 0}, "--trials must be from 1"),
        ({"seeds": 0}, "at least one"),
        ({"seeds": (3, -1)}, "0 or more"),
        ({"seeds": (3, 4), "first_seed": 7}, "first_seed has no meaning"),
    ):
        with pytest.raises(TaacError, match=told):
            Sweep(SEARCH, **options)
    assert Sweep(SEARCH).seeds == (1000, 1001, 1002)  # not those of a comparison


# The record --------------------------------------------------------------------------------------------------------------


def record_of(folder, sweep=None, **settings):
    sweep = sweep or Sweep(SEARCH)
    return Record(folder, {"task": "T", **sweep.settings(), **settings}, sweep.dimensions)


TRIALS = [
    Trial(0, {"x": "0.5", "choice": "a"}, "complete", 3.5, ((50, 1.0), (100, 3.5))),
    Trial(1, {"x": "1e-05", "choice": "b,c"}, "pruned", None, ((50, 0.0),), "pruned by median"),
    Trial(2, {"x": "0.25", "choice": "a"}, "complete", 3.5, ((100, 3.5),)),
    Trial(3, {"x": "0.75", "choice": "a"}, "running", None, ((50, 2.0),)),
]


def test_a_record_is_read_back_and_knows_the_best(tmp_path):
    record = record_of(tmp_path / "new")
    assert record.trials == [] and record.best() is None and not (tmp_path / "new").exists()
    for trial in TRIALS:
        record.put(trial)
    again = record_of(tmp_path / "new")
    assert again.trials == TRIALS and again.best() == TRIALS[0] and again.count("pruned", "failed") == 1
    with pytest.raises(TaacError, match=r"sweep of other settings; nothing was started.*\n.*'task': 'T', not 'U'"):
        record_of(tmp_path / "new", task="U")
    with pytest.raises(TaacError, match=r"other settings.*\n.*'seeds'"):
        record_of(tmp_path / "new", Sweep(SEARCH, seeds=4))
    record_of(tmp_path / "new", Sweep(SEARCH, trials=99))  # more trials are the same sweep


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").touch()
    with pytest.raises(TaacError, match="not empty and holds no sweep"):
        record_of(tmp_path)
    with pytest.raises(TaacError, match="is a file"):
        record_of(tmp_path / "notes.txt")


def test_a_sweep_that_was_killed_in_its_first_write_begins_again(tmp_path):
    (tmp_path / "sweep.json.0123456789abcdef.tmp").touch()
    (tmp_path / ".lock").touch()
    assert record_of(tmp_path).trials == []


HOSTILE = {
    "a path as a choice": {"texts": {"x": "0.5", "choice": "@evil()"}},
    "a number out of range": {"texts": {"x": "7", "choice": "a"}},
    "no number": {"texts": {"x": "nan", "choice": "a"}},
    "a number that is code": {"texts": {"x": "0.5 --gin_file=x", "choice": "a"}},
    "another setting": {"texts": {"x": "0.5", "load_from": "a"}},
    "more settings": {"texts": {"x": "0.5", "choice": "a", "more": "b"}},
    "an unknown state": {"state": "won"},
    "a value that is no number": {"value": "9"},
    "a value that is not finite": {"value": math.inf},
    "a complete trial without a value": {"value": None},
    "a pruned trial with a value": {"state": "pruned"},
    "another number": {"number": 3},
    "reports that are none": {"reports": [[50, "1"]]},
    "reports before the first step": {"reports": [[-1, 0.5]]},
    "a reason that is no text": {"why": 3},
    "no reports": {"reports": None},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_strangers_record_is_checked_before_anything_is_used(tmp_path, what):
    record = record_of(tmp_path)
    record.put(TRIALS[0])
    content = json.loads((tmp_path / RECORD).read_text())
    content["trials"][0].update(HOSTILE[what])
    (tmp_path / RECORD).write_text(json.dumps(content))
    with pytest.raises(TaacError, match=r"sweep\.json cannot be read"):
        record_of(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"trials": []}', "\x80\x04p"])
def test_a_damaged_record_is_refused(tmp_path, text):
    (tmp_path / RECORD).write_text(text)
    with pytest.raises(TaacError, match=r"sweep\.json cannot be read"):
        record_of(tmp_path)


# Trials, with stubs for runs ---------------------------------------------------------------------------------------------


class Stub:
    """A launcher whose runs write evaluations at 50 and 100 steps at once; `returns(run)` gives both, or an outcome.

    With `late`, the runs of trial n write them n % 3 steps later, as methods do whose actions last several steps.
    """

    interval, attempts = 0.0, 4

    def __init__(self, returns, kill_after=None, late=False):
        self.returns, self.kill_after, self.late, self.most = returns, kill_after, late, 0
        self.begun, self.asked, self._running, self._seen, self._saving = [], [], [], [], []

    def begin(self, run):
        if self.kill_after is not None and len(self.begun) >= self.kill_after:
            raise Kill
        self.begun.append(run)
        self._running.append((run, self.returns(run)))
        self.most = max(self.most, len(self._running))
        found = self._running[-1][1]
        if not isinstance(found, Outcome):
            later = int(run.method.split()[1]) % 3 if self.late else 0
            make_run(run.folder, returns=found, steps=(50 + later, 100 + later), budget=STEPS, seed=run.seed, status="running")

    def ended(self):
        over, still = [], []
        for run, found in self._running:
            if run not in self._seen:  # it runs until it has been looked at once
                self._seen.append(run)
                still.append((run, found))
            elif run in self.asked and run not in self._saving:  # and saves until it has been looked at once more
                self._saving.append(run)
                still.append((run, found))
            elif isinstance(found, Outcome):
                run.log.parent.mkdir(parents=True, exist_ok=True)
                run.log.write_text(f"{ATTEMPT}\ntaac train: it broke\n")
                over.append((run, found))
            elif run in self.asked:
                over.append((run, Outcome(75)))
            else:
                about = json.loads((run.folder / "run.json").read_text())
                (run.folder / "run.json").write_text(json.dumps({**about, "status": "finished"}))
                over.append((run, Outcome(0)))
        self._running = still
        return over

    def ask_to_stop(self, run):
        assert run not in self.asked, "a second signal would end the run without a checkpoint"
        self.asked.append(run)

    def stop(self):
        self._running = []


def x_of(run):
    return float(dict(word.split("=") for word in run.request.settings)["x"])


def swept(folder, returns, jobs=1, kill_after=None, late=False, **options):
    """Runs a sweep whose runs are stubs; returns its record and its launcher."""
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'taac[sweep]'")
    from taac.campaigns.suggestions import Suggestions

    sweep = Sweep(SEARCH, **{"trials": 8, "seeds": 2, **options})
    record = record_of(folder, sweep)
    record.retry_failed()
    launcher = Stub(returns, kill_after, late)
    score = command.scoring(sweep)

    def plan(trial, seed):
        run_folder = folder / "trials" / f"{trial.number:04d}" / f"seed_{seed}"
        return Run("T", f"trial {trial.number}", seed, run_folder, ("true",), RunRequest(settings=tuple(trial.words())))

    suggestions = Suggestions(sweep, record, STEPS, 50)
    work = Sweeping(sweep, record, suggestions, plan, launcher, jobs, STEPS, score, lambda trial: None)
    with contextlib.suppress(Kill):
        work.run()
    return record, launcher


@pytest.fixture(autouse=True)
def _settings_are_not_compared(monkeypatch):
    """The stubs' folders hold no configuration to compare."""
    monkeypatch.setattr("taac.campaigns.sweeping.check_folders", lambda runs: None)


def rising(run):
    """Better the nearer x is to 1/3, and with the seed."""
    value = -abs(x_of(run) - 1 / 3) + (run.seed - 1000)
    return (value - 1, value)


def test_every_trial_trains_its_seeds_and_the_best_is_the_best(tmp_path):
    record, launcher = swept(tmp_path / "s", rising, pruner="none", last_evaluations=1)
    assert [(run.method, run.seed) for run in launcher.begun] == [(f"trial {n}", s) for n in range(8) for s in (1000, 1001)]
    for trial in record.trials:
        x = float(trial.texts["x"])
        assert trial.state == "complete" and trial.value == pytest.approx(-abs(x - 1 / 3) + 0.5)
        mean = -abs(x - 1 / 3)
        expected = ((50, mean - 1), (100, mean), (150, (mean + (mean + 1 - 1)) / 2), (200, (mean + mean + 1) / 2))
        assert [step for step, _ in trial.reports] == [50, 100, 150, 200]
        assert [value for _, value in trial.reports] == pytest.approx([value for _, value in expected])
    assert record.best().value == max(trial.value for trial in record.trials)
    assert all(len(trial.texts["x"]) <= 7 for trial in record.trials)  # 0.1234, or 0.01234
    assert len({trial.texts["x"] for trial in record.trials}) == 8 and {t.texts["choice"] for t in record.trials} == {"a", "b,c"}


@pytest.mark.parametrize(
    "kill_after, options", [(1, {}), (7, {}), (0, {"sampler": "random", "trials": 3})], ids=str
)
def test_a_sweep_that_is_killed_ends_as_one_that_is_not(tmp_path, kill_after, options):
    whole, _ = swept(tmp_path / "whole", rising, **options)
    swept(tmp_path / "killed", rising, kill_after=kill_after, **options)
    before = len(record_of(tmp_path / "killed", Sweep(SEARCH, **{"trials": 8, "seeds": 2, **options})).trials)
    assert 1 <= before < len(whole.trials)
    again, _ = swept(tmp_path / "killed", rising, **options)
    assert again.trials == whole.trials


def test_a_run_that_cannot_be_scored_fails_its_trial_alone(tmp_path):
    endless = (0.0, math.inf)
    record, _ = swept(tmp_path / "one", lambda run: endless if run.method == "trial 3" else (0.0, 1.0), trials=5, pruner="none")
    assert [trial.state for trial in record.trials] == ["complete"] * 3 + ["failed", "complete"]
    assert "its returns are not finite" in record.trials[3].why
    with pytest.raises(TaacError, match=r"the first 3 trials failed.*not finite"):
        swept(tmp_path / "all", lambda run: endless, trials=5, pruner="none")


@pytest.mark.parametrize("late", [False, True])
def test_a_pruned_trial_stops_once_and_its_run_is_no_finished_one(tmp_path, late):
    """Late evaluations are compared at the step where they were due: the median prunes by those of the same step alone."""

    def worse_and_worse(run):
        number = int(run.method.split()[1])
        return (-number, -number)

    record, launcher = swept(tmp_path, worse_and_worse, late=late, trials=7)
    assert [trial.state for trial in record.trials] == ["complete"] * 5 + ["pruned"] * 2  # the median prunes from the sixth on
    for trial in record.trials[5:]:
        assert trial.value is None and trial.reports == ((50, -trial.number),)
        assert "pruned by median at step 50 of 200" in trial.why
    assert [run.method for run in launcher.asked] == ["trial 5", "trial 6"] and len(launcher.begun) == 5 * 2 + 2
    about = json.loads((tmp_path / "trials/0005/seed_1000/run.json").read_text())
    assert about["status"] == "pruned" and about["stopped"]["env_steps"] == 50 and "median" in about["stopped"]["why"]
    found = {r.folder: r for r in run_records.find(tmp_path)}
    assert found["trials/0005/seed_1000"].problems == ("a sweep pruned it",)
    assert found["trials/0000/seed_1000"].problems == ()
    assert record.best().number == 0


def test_a_trial_at_its_end_is_not_pruned(tmp_path):
    record, launcher = swept(tmp_path, lambda run: (0.0, 1.0 if run.method == "trial 5" else 10.0), trials=6, seeds=1)
    assert [trial.state for trial in record.trials] == ["complete"] * 6 and launcher.asked == []


def test_the_untrained_agent_is_no_final_return(tmp_path):
    score = command.scoring(Sweep(SEARCH, last_evaluations=3))
    assert score(make_run(tmp_path / "run", returns=[-100.0, 1.0, 2.0], steps=(0, 50, 100))) == 1.5
    with pytest.raises(TaacError, match="cannot be scored"):
        score(make_run(tmp_path / "untrained", returns=[-100.0], steps=(0,)))


def test_trials_that_fail_or_diverge_end_and_the_sweep_goes_on(tmp_path):
    def some(run):
        if run.method == "trial 1":
            return Outcome(1)
        if run.method == "trial 2":
            run.folder.mkdir(parents=True)
            (run.folder / "run.json").write_text('{"status": "diverged"}')
            return Outcome(1)
        return Outcome(-9) if run.method == "trial 3" else (1.0, 1.0)

    record, launcher = swept(tmp_path, some, trials=5, pruner="none")
    assert [trial.state for trial in record.trials] == ["complete", "failed", "diverged", "failed", "complete"]
    assert "exit code 1: taac train: it broke" in record.trials[1].why
    assert [run.method for run in launcher.begun].count("trial 3") == Stub.attempts  # killed from outside, tried again
    with pytest.raises(TaacError, match=r"the first 3 trials failed.*it broke"):
        swept(tmp_path / "hopeless", lambda run: Outcome(1))


class DivergingLater(Stub):
    """Trial 5 writes an evaluation after it was looked at for the last time, and diverges."""

    def ended(self):
        over = super().ended()
        for run in (run for run, _ in over if run.method == "trial 5"):
            make_run(run.folder, returns=(-1.0,), steps=(50,), budget=STEPS, seed=run.seed, status="diverged")
        return over


def test_the_last_evaluations_of_a_run_that_diverges_can_prune_it(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.Stub", DivergingLater)
    record, _ = swept(tmp_path, lambda run: Outcome(1) if run.method == "trial 5" else (1.0, 1.0), trials=6)
    assert record.trials[5].state == "pruned" and record.trials[5].reports == ((50, -1.0),)


def test_a_trial_that_another_process_still_trains_is_asked_for_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeping, "PAUSE", 0.01)
    held = [Outcome(OCCUPIED)] * (Stub.attempts + 2)
    record, launcher = swept(tmp_path, lambda run: held.pop() if held else (1.0, 1.0), trials=1, seeds=1)
    assert [trial.state for trial in record.trials] == ["complete"] and len(launcher.begun) == Stub.attempts + 3


@pytest.mark.parametrize("trials", [3, 5])
def test_the_same_command_tries_failed_trials_again(tmp_path, trials):
    """Here all of the first, after which a sweep gives up: it could never end well."""
    with pytest.raises(TaacError, match="the first 3 trials failed"):
        swept(tmp_path / "s", lambda run: Outcome(1), trials=trials)
    record, _ = swept(tmp_path / "s", rising, trials=trials)
    assert [trial.state for trial in record.trials] == ["complete"] * trials
    assert all(trial.why is None for trial in record.trials)
    whole, _ = swept(tmp_path / "whole", rising, trials=3)
    assert record.trials[:1] == whole.trials[:1]  # those after it were proposed without knowing it


def test_what_diverged_or_was_pruned_is_not_tried_again(tmp_path):
    record = record_of(tmp_path)
    for number, state in enumerate(("pruned", "diverged", "failed", "running")):
        record.put(Trial(number, {"x": "0.5", "choice": "a"}, state, None, ((50, 0.5),), "told"))
    record.retry_failed()
    again = record_of(tmp_path)
    assert [trial.state for trial in again.trials] == ["pruned", "diverged", "running", "running"]
    assert [trial.why for trial in again.trials] == ["told", "told", None, "told"]
    assert again.trials[2].reports == ((50, 0.5),)


@pytest.mark.parametrize(
    "objective, expected",
    # Two seeds: (0, 4) at steps 50 and 100, and (2, 8). Finals of the last two: 2 and 5. Areas over 50..100: 2 and 5.
    [("mean", 3.5), ("area", 3.5)],
)
def test_the_objective_is_what_reports_define(tmp_path, objective, expected):
    record, _ = swept(
        tmp_path, lambda run: (0.0, 4.0) if run.seed == 1000 else (2.0, 8.0), trials=1, objective=objective, last_evaluations=2
    )
    assert record.trials[0].value == expected
    score = command.scoring(Sweep(SEARCH, objective=objective, last_evaluations=1))
    assert score(tmp_path / "trials/0000/seed_1000") == (2.0 if objective == "area" else 4.0)


def test_a_sweep_that_goes_on_has_no_more_trials_at_a_time_than_asked_for(tmp_path):
    swept(tmp_path, rising, jobs=3, trials=5, kill_after=0)
    record, launcher = swept(tmp_path, rising, jobs=2, trials=5)
    assert launcher.most == 2 and [trial.state for trial in record.trials] == ["complete"] * 5


def test_a_missing_package_is_named_with_its_command(tmp_path, monkeypatch):
    from taac.campaigns.suggestions import Suggestions

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(TaacError, match=r"taac sweep needs the package optuna: pip install 'taac\[sweep\]'"):
        Suggestions(Sweep(SEARCH), record_of(tmp_path), STEPS, 50)


@pytest.mark.slow
def test_a_sweep_of_real_runs_finds_settings_that_train_again(tmp_path):
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'taac[sweep]'")
    asked = ["--task", POINT, "--method", "sac", "--search", "learning_rate=log:1e-4..1e-2", "--trials", 1, "--seeds", 1]
    small = [word for param in SMALL for word in ("--gin_param", param)]
    found = forked.run(["sweep", "--root_dir", "s", *asked, *small, "--num_env_steps", 120], cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines()[0] == "s: 1 of 1 trials to train, 1 seeds x 120 steps each"
    again = forked.run(["train", "--root_dir", "again", "--gin_file", "s/best.gin", "--seed", 1000], cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    rows = evaluations(tmp_path)
    assert rows["again"] == rows["s/trials/0000/seed_1000"] and len(rows["again"]) == 3
    (record,) = [r for r in run_records.find(tmp_path) if r.folder == "again"]
    assert run_records.tuning(record).startswith("taac sweep: 1 trials x 1 seeds x 120 steps, 120 steps in all, mean of final")


@pytest.mark.parametrize("name", ["num_env_steps", "Intervals.num_env_steps", "evaluation_interval"])
def test_what_makes_trials_incomparable_is_not_searched(name):
    asked = RunRequest(POINT, "sac", (), tuple(SMALL), (), None)
    with pytest.raises(TaacError, match="do not search num_env_steps or evaluation_interval"):
        command.check(Sweep((f"{name}=100|200",)), asked, new=False)


def test_a_setting_that_changes_nothing_is_not_searched():
    asked = RunRequest(POINT, "sac", (), tuple(SMALL), (), None)
    command.check(Sweep(("learning_rate=1e-4|1e-3",)), asked, new=True)
    with pytest.raises(TaacError, match=r"--search segment_length would compare equal trials: .*does not use segment_length"):
        command.check(Sweep(("segment_length=3|8",)), asked, new=True)
    idle = asked._replace(settings=("segment_length=8",))  # which is told, and is not what is searched
    command.check(Sweep(("ReplayBuffer.length=1000|2000",)), idle, new=True)
    with pytest.raises(TaacError, match=r"batch_size = 443\.8 has the wrong type"):
        command.check(Sweep(("batch_size=1e2..1e3",)), asked, new=True)


def test_a_sweep_whose_gin_file_has_changed_is_refused(tmp_path):
    mine = tmp_path / "mine.gin"
    mine.write_text("gamma = 0.9\n")
    asked = RunRequest(POINT, "sac", (str(mine),), tuple(p for p in SMALL if "steps" not in p or "collect" in p), (), "200")
    trial = Trial(3, {"learning_rate": "0.003"}, "complete", 5.0)
    done, begins = (command.planner(tmp_path, asked)(trial, seed) for seed in (1000, 1001))
    done.request.load()
    build(create_experiment).close()
    done.folder.mkdir(parents=True)
    (done.folder / "config.gin").write_text(operative_config())
    command.check_unchanged([done, begins])
    mine.write_text("gamma = 0.5\n")
    with pytest.raises(TaacError, match=r"0003/seed_1000 was trained with other settings than .*/trial 3/") as told:
        command.check_unchanged([begins, done])
    assert str(told.value).splitlines()[1:] == ["  gamma = 0.9, not 0.5"]


# The best trial ----------------------------------------------------------------------------------------------------------


def test_the_best_is_a_file_that_binds_what_the_trial_had(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.gin").write_text("gamma = 0.97\ncreate_experiment.tuning = 'by hand'\n")
    trial = Trial(4, {"learning_rate": "0.003", "hidden_layers": "64,64", "Learner.epsilon": "1e-07"}, "complete", 5.0)
    params = ("import tests.toy_tasks", "Saving.save_best = False", "include 'gin/pink_noise.gin'")
    asked = RunRequest("Hopper-v5", "taac+decision_price=0.1", ("mine.gin",), params, ("batch_size=32", *trial.words()), "2e4")
    write_best(tmp_path / "best.gin", asked, trial, "taac sweep: 5 trials", "5, mean of final returns")
    found = load([str(tmp_path / "best.gin")])
    assert found.bound("Learner.learning_rate") == 0.003 and found.bound("ActorNetwork.hidden_layers") == (64, 64)
    assert found.bound("Intervals.num_env_steps") == 20000 and found.bound("create_environment.env_name") == "Hopper-v5"
    assert found.bound("create_experiment.tuning") == "taac sweep: 5 trials" and found.bound("create_experiment.seed") is None
    assert found.bound("Learner.epsilon") == 1e-7 and found.bound("create_experiment.method") == "taac+decision_price=0.1"
    assert found.bound("TaacAlgorithm.decision_price") == 0.1
    assert any(b.line == "create_collector.explorer = @ColoredNoise()" for b in found.bindings.values())
    assert found.macros["gamma"] == 0.97 and found.bound("Saving.save_best") is False and "tests.toy_tasks" in found.imports
    text = (tmp_path / "best.gin").read_text()
    assert "include 'gin/methods/taac.gin'" in text and f"include '{tmp_path / 'mine.gin'}'" in text


def test_the_statement_says_what_tuning_took_in_a_line_that_reports_take(tmp_path):
    record = record_of(tmp_path)
    for trial in TRIALS:
        record.put(trial)
    told = statement(Sweep(SEARCH), record, STEPS)
    assert told == ("taac sweep: 3 trials (1 pruned) x 3 seeds x 100 steps, 300 steps in all, mean of final returns, of x choice")
    long = Sweep(tuple(f"setting_number_{n}=0..1" for n in range(50)))
    assert len(statement(long, record, STEPS)) == 200


# What Optuna is told -----------------------------------------------------------------------------------------------------


def suggestions_of(folder):
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'taac[sweep]'")
    from taac.campaigns.suggestions import Suggestions

    record = record_of(folder)
    return Suggestions(Sweep(SEARCH), record, STEPS, 50), record


def test_ranges_of_logarithms_are_searched_in_logarithms():
    pytest.importorskip("optuna", reason="optuna is not installed: pip install 'taac[sweep]'")
    rate, number, plain = search_space.parse(["learning_rate=log:1e-4..1e-2", "n=log:1..1000", "gamma=0.1..0.9"])
    assert [d.distribution().log for d in (rate, number, plain)] == [True, True, False]
    assert (rate.distribution().low, rate.distribution().high) == (1e-4, 1e-2)


def test_what_the_sampler_learns_of_a_trial(tmp_path):
    """Of one that diverged, that it is worse than all others; of one that failed, nothing."""
    suggestions, record = suggestions_of(tmp_path)
    record.put(Trial(0, {"x": "0.5", "choice": "a"}, "diverged", None, ((50, 9.0), (100, 9.0))))
    suggestions._add(study := suggestions._new_study(), record.trials[0])
    assert study.trials[0].intermediate_values == {} and study.trials[0].state.name == "PRUNED"
    names = {state: suggestions._state(Trial(0, {}, state)).name for state in ("complete", "failed", "pruned", "diverged")}
    assert names == {"complete": "COMPLETE", "failed": "FAIL", "pruned": "PRUNED", "diverged": "PRUNED"}


def test_later_trials_follow_the_earlier_ones_unless_they_are_random(tmp_path):
    """Optuna's TPE draws its first ten at random."""
    tried = {name: swept(tmp_path / name, rising, trials=25, pruner="none", sampler=name)[0].trials for name in ("tpe", "random")}
    near = {name: sum(abs(float(t.texts["x"]) - 1 / 3) for t in trials[12:]) for name, trials in tried.items()}
    assert near["tpe"] < 0.7 * near["random"]


def test_another_seed_of_the_sampler_tries_other_values(tmp_path):
    xs = [
        {t.texts["x"] for t in swept(tmp_path / str(seed), rising, trials=3, pruner="none", sampler_seed=seed)[0].trials}
        for seed in (0, 1)
    ]
    assert not xs[0] & xs[1]


def test_attempts_are_counted_for_each_run(tmp_path):
    """The run of the fourth seed is killed twice, which would be too often for the trial as a whole."""
    left = [2]

    def some(run):
        if run.seed == 1003 and left[0]:
            left[0] -= 1
            return Outcome(-9)
        return (1.0, 1.0)

    record, _ = swept(tmp_path, some, trials=1, seeds=4, pruner="none")
    assert [trial.state for trial in record.trials] == ["complete"]
