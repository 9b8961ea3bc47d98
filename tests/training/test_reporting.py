"""The reporter alone, with a collector and a learner that only hold numbers, and a clock that is set by hand."""

from __future__ import annotations

import csv
from types import SimpleNamespace

import numpy as np
import pytest

from taac.acting.evaluation import Evaluation
from taac.acting.metrics import Episode
from taac.analysis.readers import events
from taac.runs.layout import EpisodeSummary
from taac.runs.run_folder import RunFolder
from taac.training import reporting
from taac.training.reporting import Reporter

EPISODE = Episode(np.array(6.0), 4, 1.0, 3, 3.0, 2, jerk=0.5, same=1.0, change=0.25, effort=1.0)
SUMMARY = EpisodeSummary(2, 1.5, 0.5, 4.0, 0.25, 1.5, 3, 2.0, 0.125, 0.75, 0.5, 0.25, 0.0625, 7.0)


class Collecting(SimpleNamespace):
    """Stands for a collector: numbers, and the episodes since the last `pop_episodes`."""

    def pop_episodes(self):
        popped, self.popped = self.popped, ([], [])
        return popped


@pytest.fixture
def clock(monkeypatch):
    """A clock in seconds, `clock.now`."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(reporting.time, "perf_counter", lambda: clock.now)
    return clock


@pytest.fixture
def parts(tmp_path, clock):
    """A reporter, what it reports on, and the folder it reports to."""
    collector = Collecting(env_steps=0, decisions=0, episodes=0, fraction_repeated=0.25, popped=([], []))
    growth = SimpleNamespace(warnings=lambda losses, bonus_share: [])
    algorithm = SimpleNamespace(bonus_share=0.0, summary_tags=lambda: {"mine/number": "of this test"})
    learner = SimpleNamespace(
        num_updates=0, losses={}, growth=growth, agent=SimpleNamespace(algorithm=algorithm), summary=dict, histograms=dict,
        pop_seconds_sampling=lambda: 0.5,
    )  # fmt: skip
    folder = RunFolder(tmp_path)
    folder.begin("gamma = 0.5\n", {})
    return Reporter(collector, learner), collector, learner, folder


def scalars(folder):
    """What the event files hold: by tag, (step, value) in order."""
    found = events.read(folder.path).scalars
    return {tag: list(zip(of.env_steps.tolist(), of.value.tolist())) for tag, of in found.items()}


def test_a_summary_counts_from_the_one_before(parts, clock):
    """100 steps and 10 updates in 20 s, then 50 steps and 30 updates in 5 s: 5 and 0.5 a second, then 10 and 6."""
    reporter, collector, learner, folder = parts
    with reporter.reporting_to(folder, None):
        collector.env_steps, collector.decisions, collector.episodes = 100, 60, 2
        learner.num_updates, learner.summary = 10, lambda: {"loss/total": 4.0, "mine/number": 3.0}
        clock.now += 20.0
        reporter.training({"count/update_ratio": 0.1})
        collector.env_steps, learner.num_updates = 150, 40
        clock.now += 5.0
        reporter.training({})
    found = scalars(folder)
    assert found["time/env_steps_per_second"] == [(100, 5.0), (150, 10.0)]
    assert found["time/updates_per_second"] == [(100, 0.5), (150, 6.0)]
    assert found["count/updates"] == [(100, 10), (150, 40)]
    assert found["count/decisions"] == [(100, 60), (150, 60)] and found["count/episodes"] == [(100, 2), (150, 2)]
    assert found["mine/number"] == [(100, 3.0), (150, 3.0)] and found["loss/total"][0] == (100, 4.0)
    assert found["count/update_ratio"] == [(100, pytest.approx(0.1))]


def test_seconds_of_what_a_run_does_are_those_since_the_last_summary(parts, clock):
    """Two collections of 2 s and an update that fails after 1 s; then an evaluation of 4 s alone."""
    reporter, collector, _, folder = parts

    class Run:
        def __init__(self):
            self.reporter = reporter

        @reporting.timed("collecting")
        def collect(self, seconds):
            clock.now += seconds
            return seconds

        @reporting.timed("updating")
        def learn(self):
            clock.now += 1.0
            raise ValueError("diverged")

    run = Run()
    with reporter.reporting_to(folder, None):
        assert run.collect(2.0) == run.collect(seconds=2.0) == 2.0
        with pytest.raises(ValueError, match="diverged"):
            run.learn()
        collector.env_steps = 10
        reporter.training({})
        collector.env_steps, clock.now = 20, clock.now + 1.0
        reporter.training({})
    found = scalars(folder)
    assert found["time/collecting"] == [(10, 4.0)] and found["time/updating"] == [(10, 1.0)]
    assert found["time/sampling"] == [(10, 0.5), (20, 0.5)]


def test_episodes_and_signals_are_averaged_once(parts, clock):
    """Returns of 6 and 2: 4 on average, 2 their standard deviation; a signal's sums of 1 and 4: 2.5."""
    reporter, collector, _, folder = parts
    with reporter.reporting_to(folder, None):
        for step in (10, 20):  # nothing ended before the second
            if step == 10:
                collector.popped = [EPISODE, EPISODE._replace(ret=np.array(2.0))], [{"rnd": 1.0}, {"rnd": 4.0}]
            collector.env_steps, clock.now = step, clock.now + 1.0
            reporter.training({})
    found = scalars(folder)
    assert found["rollout/return"] == [(10, 4.0)] and found["rollout/return_std"] == [(10, 2.0)]
    assert found["rollout/length"] == [(10, 4.0)] and found["rollout/fraction_repeated"] == [(10, 0.25)]
    assert found["signal/rnd_return"] == [(10, 2.5)]


def test_an_evaluation_is_a_row_and_scalars(parts, clock):
    reporter, collector, learner, folder = parts
    with reporter.reporting_to(folder, None):
        collector.env_steps, collector.decisions, learner.num_updates = 30, 20, 7
        clock.now += 2.5
        reporter.evaluation(Evaluation(SUMMARY, True, None))
        with open(folder.evaluations, newline="") as file:  # on the disk before the run goes on
            (row,) = csv.DictReader(file)
        assert scalars(folder)["evaluation/return"] == [(30, 1.5)]
    assert {name: float(row[name]) for name in ("env_steps", "updates", "training_decisions", "seconds")} == {
        "env_steps": 30, "updates": 7, "training_decisions": 20, "seconds": 2.5,
    }  # fmt: skip
    assert {name: float(row[name]) for name in SUMMARY.numbers()} == SUMMARY.numbers()
    assert scalars(folder)["evaluation/max_run"] == [(30, 3.0)]


def test_seconds_are_those_of_training_in_all_processes(parts, clock):
    """7 s of an earlier process, and 3 s inside the context. What passes before it does not count."""
    reporter, _, _, folder = parts
    reporter.load_state_dict({"seconds": 7.0})
    clock.now += 100.0
    with reporter.reporting_to(folder, None):
        clock.now += 1.0
        assert reporter.state_dict() == {"seconds": 8.0}
        clock.now += 2.0
        assert reporter.elapsed() == 10.0 and reporter.seconds == 10.0


def test_a_resumed_run_hides_what_it_repeats(parts, clock):
    """The first process was killed at 60, after its checkpoint at 50. The second begins there, and reports at 70."""
    reporter, collector, _, folder = parts
    for begin, steps, value in ((0, (50, 60), 1.0), (50, (70,), 2.0)):
        collector.env_steps = begin
        with reporter.reporting_to(folder, None):
            for step in steps:
                collector.env_steps, clock.now = step, clock.now + 1.0
                reporter.training({"mine/number": value})
    assert scalars(folder)["mine/number"] == [(50, 1.0), (70, 2.0)]


def test_warnings_are_said_and_shown(parts, clock, capsys):
    reporter, collector, learner, folder = parts
    learner.losses = {"critic/q": 1e9}
    learner.growth.warnings = lambda losses, bonus_share: [f"critic/q is {losses['critic/q']:g}"]
    with reporter.reporting_to(folder, None):
        collector.env_steps, clock.now = 40, clock.now + 1.0
        reporter.training({})
    assert capsys.readouterr().err == "taac: warning, at 40 environment steps: critic/q is 1e+09\n"


def test_progress_is_passed_on(parts):
    reporter, collector, learner, folder = parts
    seen = []
    collector.env_steps, learner.num_updates = 12, 3
    with reporter.reporting_to(folder, lambda *given: seen.append(given)):
        reporter.progress(None)
        reporter.progress(SUMMARY)
    assert seen == [(12, 3, None, 0.25), (12, 3, SUMMARY, 0.25)]


def test_loggers_are_told_whether_the_run_finished_this_time(parts, monkeypatch):
    reporter, _, _, folder = parts
    ended = []
    monkeypatch.setattr(reporter._loggers, "end", ended.append)
    for finished in (True, False):
        with reporter.reporting_to(folder, None):
            if finished:
                reporter.finished()
    assert ended == [True, False]


def test_the_event_file_is_closed_whatever_happens(parts):
    reporter, _, _, folder = parts
    with pytest.raises(ZeroDivisionError), reporter.reporting_to(folder, None):
        raise ZeroDivisionError
    reporter.flush()  # no file is open, so there is nothing to flush
    with pytest.raises(AssertionError, match="reports need"):
        reporter.finished()
