"""Collectors against the collector of one process; what they are ahead; that timing changes nothing; resuming."""

from __future__ import annotations

import functools
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from taac import configuration
from taac.acting.collector import Collector
from taac.data_structures import TimeStep
from taac.errors import NotFiniteError, TaacError
from taac.parallel import ray_actors
from taac.parallel.pool import Remote
from taac.parallel.remote_collector import RemoteCollector
from taac.parallel.worker import Frame, Order, Worker
from taac.training import experiment
from tests.parallel.collecting import (
    FIRST,
    LAST,
    MID,
    POINT,
    SHORT,
    assert_whole_episodes,
    counter,
    frames,
    processes,
    seed_of,
    tells_variable,
    with_collectors,
)
from tests.training.runs import assert_resumes_exactly, assert_same_parameters, build, curves

BREAKS = "create_environment.env_name = 'tests.toy_tasks:taac-test/BreaksDown-v0'"
NORMALIZED = "create_agent.normalize_observations = True"


class Own:
    """Takes a collector's steps with random numbers of their own, as a collector in another process does."""

    def __init__(self, trainer, seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            options = {"explorer": trainer.collector.explorer, "uniform_steps": trainer.update_ratio.initial_collect_steps}
            self.collector = Collector(trainer.environment, trainer.agent, trainer.replay_buffer, seed, **options)
            self.numbers = torch.get_rng_state()
        self.step_before, self.collector.step = self.collector.step, self.step

    def step(self):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.numbers)
            transitions = self.step_before()
            self.numbers = torch.get_rng_state()
        return transitions


def trained(trainer, iterations):
    for _ in range(iterations):
        trainer.collect()
        trainer.learn()
    return trainer


@pytest.mark.parametrize("free, told", [({"CPU": 1.5, "GPU": 8.0}, True), ({"CPU": 2.0}, False), ({}, True)])
def test_actors_that_ray_would_have_wait_are_told(free, told, monkeypatch, capfd):
    """A run whose collectors wait for a CPU looks like one that hangs."""
    ray = SimpleNamespace(available_resources=lambda: free)
    monkeypatch.setattr(ray_actors, "connected", lambda address: ray)
    with_collectors(2, launcher="ray").close()
    err = capfd.readouterr().err
    assert ("the run waits until there are enough" in err) == told
    assert (f"has {free.get('CPU', 0):g} free CPUs, and each of 2 collectors" in err) == told


LEARNING = ("num_env_steps = 400", "initial_collect_steps = 30", "UpdateRatio.updates_per_env_step = 0.5")


FADING = ("ZetaExplorer.epsilon = @LinearSchedule()", "LinearSchedule.start = 0.9", "LinearSchedule.end = 0.1",
          "LinearSchedule.env_steps = 100")  # fmt: skip


@pytest.mark.parametrize(
    "method, more",
    [("taac", ("normalize_rewards = 'scale'",)), ("sac_ez", FADING), ("sac", ("create_agent.reward_signals = (@RND,)",
                                                                         "Learner.diagnostics = 'scalars'"))],
)  # fmt: skip
def test_one_collector_that_waits_does_what_one_process_does(method, more):
    """Bit for bit, with updates, statistics of observations and returns, and random steps first, where both draw alike."""
    here = build(POINT, *SHORT, NORMALIZED, "num_envs = 2", *LEARNING, *more, method=method)
    own = Own(here, seed_of(0)).collector
    own._with_signal_returns = here.collector._with_signal_returns
    here.collector.close()
    here.collector = own
    here.replay_buffer.load_state_dict({"position": torch.tensor([0, 0, here.replay_buffer.length, 0])})
    there = with_collectors(1, NORMALIZED, *LEARNING, *more, num_envs=2, frames_ahead=0, method=method)
    try:
        torch.manual_seed(1)
        trained(here, 60)
        torch.manual_seed(1)
        trained(there, 60)
    finally:
        there.close()
        here.close()
    assert there.learner.num_updates == here.learner.num_updates > 30
    assert_same_parameters(here, there)  # statistics too
    for name, value in frames(here).items():
        assert np.array_equal(frames(there)[name], value), name
    for name in ("env_steps", "decisions", "episodes", "fraction_repeated", "num_restarts"):
        assert getattr(there.collector, name) == getattr(here.collector, name), name
    assert str(there.collector.pop_episodes()) == str(here.collector.pop_episodes())
    assert there.collector.episodes == 2 * (60 // 13)
    assert there.collector.summaries() == {"collectors/staleness": 0.0, "collectors/restarts": 0.0}


def test_every_collector_fills_its_own_columns():
    """Two columns each, that hold what the collector of one process has with the seed of that collector."""
    there = with_collectors(2, "num_env_steps = 400", "initial_collect_steps = 300", frames_ahead=3)
    alone = build(POINT, *SHORT, "num_envs = 2", "num_env_steps = 400", "initial_collect_steps = 300", method="sac")
    try:
        for _ in range(30):
            there.collector.step()
        held = frames(there)
        assert_whole_episodes(held["step_type"])
        for number in (0, 1):
            own = Own(alone, seed_of(number))
            alone.replay_buffer.load_state_dict({"position": torch.tensor([0, 0, alone.replay_buffer.length, 0])})
            for _ in range(30):
                own.step()
            for name, value in frames(alone).items():
                assert np.array_equal(held[name][:, 2 * number : 2 * number + 2], value), name
    finally:
        there.close()
        alone.close()
    assert there.collector.env_steps == 4 * 28 and there.collector.episodes == 8  # rows 13 and 26 are resets
    assert [episode.length for episode in there.collector.ended] == [12] * 8


def test_episodes_that_end_are_those_of_the_columns_that_end():
    """Two collectors of three environments each. The second was cut off at its frame, which says nothing of staleness."""
    learners_own = RemoteCollector.__new__(RemoteCollector)
    added, pool = [], SimpleNamespace(remotes=[Remote(0), Remote(1)])
    for name, value in {"env_steps": 0, "decisions": 1, "num_restarts": 0, "_share": 3, "pool": pool, "_staleness": [],
                        "_learner": SimpleNamespace(num_updates=9), "_add_ended": added.append}.items():  # fmt: skip
        setattr(learners_own, name, value)
    row = SimpleNamespace(step_type=torch.tensor([MID, LAST, MID, FIRST, LAST, LAST]))
    learners_own._count(row, [Frame([], [], False, 7, 3, 3, 2, ["a"], 0), Frame([], [], True, 0, 2, 0, 1, ["b", "c"], 1)])
    assert added == [[(1, "a")], [(4, "b"), (5, "c")]] and learners_own._staleness == [2]
    assert (learners_own.env_steps, learners_own.decisions, learners_own.num_restarts) == (5, 4, 1)


def given(frame, kinds):
    """The learner's own side, at a row of step types, whose one collector sends a frame; and what it stores and adds."""
    learners_own, stored, added = RemoteCollector.__new__(RemoteCollector), [], []
    row = TimeStep(torch.tensor(kinds), *(torch.zeros(2) for _ in TimeStep._fields[1:]))
    for name, value in {"env_steps": 0, "decisions": 0, "num_restarts": 0, "_share": 2, "_staleness": [], "frames_ahead": 1,
                        "_learner": SimpleNamespace(num_updates=0), "_add_ended": added.append, "_begin": lambda: None,
                        "_row": lambda: row, "_info": lambda infos: (), "_order": lambda ahead: None,
                        "agent": SimpleNamespace(count=lambda x: None, device="cpu"),
                        "pool": SimpleNamespace(remotes=[Remote(0)], take=lambda remote: frame),
                        "_replay": SimpleNamespace(add=stored.append)}.items():  # fmt: skip
        setattr(learners_own, name, value)
    return learners_own, stored, added


def test_an_episode_that_had_ended_when_its_collector_was_cut_off_is_that_of_its_column():
    """The first of its two environments was at LAST when the second failed; the cut makes both LAST."""
    learners_own, stored, added = given(Frame([], [], True, 0, 0, 0, 0, ["ended"], 1), [LAST, MID])
    assert learners_own.step() == 0
    assert stored[0].time_step.step_type.tolist() == [LAST, LAST] and added == [[(0, "ended")]]


def test_a_collectors_transitions_are_not_its_environment_steps():
    """Of an action that is repeated three times, for the clock of updates."""
    frame = Frame([], [], False, 0, env_steps=6, transitions=2, decisions=2, ended=[], restarts=0)
    learners_own, *_ = given(frame, [MID, MID])
    assert learners_own.step() == 2 and learners_own.env_steps == 6


def test_an_order_moves_schedules_and_the_explorers_numbers():
    moved, there = [], Worker.__new__(Worker)
    there._schedules, there._explorer = SimpleNamespace(move=lambda *counts: moved.append(counts)), SimpleNamespace(epsilon=0.5)
    there._take_over(Order(env_steps=30, updates=4, version=4, parameters=None, statistics=None, explorer={"epsilon": 0.25}))
    assert moved == [(30, 4)] and there._explorer.epsilon == 0.25


def test_what_acts_is_as_old_as_it_may_be():
    """An update for each row. With K frames ahead, frame t was ordered when frame t - K had been taken: K updates before.

    The first K are ordered before the first update. Parameters that are sent at every third update are up to 2 older.
    """
    settings = ("num_env_steps = 400", "initial_collect_steps = 4", "UpdateRatio.updates_per_env_step = 0.5")
    scripts = counter(("99n",))
    for ahead, every in ((0, 1), (2, 1), (3, 1), (2, 3)):
        trainer = with_collectors(
            2, *settings, *scripts, "segment_length = 2", num_envs=2, frames_ahead=ahead, updates_per_broadcast=every
        )
        try:
            found = []
            for _ in range(12):  # the episodes' length
                trained(trainer, 1)
                found.append(trainer.collector.summaries()["collectors/staleness"])
        finally:
            trainer.close()
        assert trainer.learner.num_updates == 10  # after rows 2 to 11
        if every == 1:  # rows 0 to 2 are taken before the first update
            assert found == [0, 0, *(min(ahead, row - 2) for row in range(2, 12))], (ahead, found)
        else:
            assert max(found) == ahead + every - 1 and min(found[5:]) >= ahead, found


def test_a_slow_collector_changes_nothing_but_the_time():
    """One of two runs pauses, so that its collectors are ahead of the learner by other numbers of frames."""

    def run_(pauses):
        trainer = with_collectors(2, NORMALIZED, *LEARNING, num_envs=2, frames_ahead=2)
        torch.manual_seed(1)
        try:
            for number in range(60):
                if pauses and number % 7 == 0:
                    time.sleep(0.02)
                if pauses and number % 10 == 0 and number:
                    (first, *_) = processes(trainer)
                    first.suspend()
                    first.resume()
                trained(trainer, 1)
        finally:
            trainer.close()
        return trainer

    first, second = run_(False), run_(True)
    assert_same_parameters(first, second)
    for name, value in frames(first).items():
        assert np.array_equal(frames(second)[name], value), name


@pytest.mark.slow
@pytest.mark.parametrize("ahead, every", [(0, 1), (2, 3)])
def test_a_run_that_is_stopped_ends_as_one_that_is_not(tmp_path, ahead, every):
    params = (
        POINT, *SHORT, NORMALIZED, "create_experiment.collectors = 2", "num_envs = 4", "num_env_steps = 240",
        "initial_collect_steps = 60", f"RemoteCollector.frames_ahead = {ahead}", "UpdateRatio.updates_per_env_step = 0.25",
        f"RemoteCollector.updates_per_broadcast = {every}", "evaluation_interval = 120", "checkpoint_interval = 100",
        "Intervals.summary_interval = 50",
    )  # fmt: skip
    whole, resumed = assert_resumes_exactly(tmp_path, *params, stop=[40, 170])
    assert resumed.collector.num_restarts == 0 and whole.collector.episodes == resumed.collector.episodes > 10
    assert curves(tmp_path / "whole") == curves(tmp_path / "cut")
    for name, value in frames(whole).items():
        assert np.array_equal(frames(resumed)[name], value), name


def test_what_cannot_be_is_refused_before_any_work():
    with pytest.raises(TaacError, match=r"collectors = 3 must divide create_environment.num_envs = 4"):
        with_collectors(3)
    with pytest.raises(TaacError, match=r"frames_ahead must be 0 or more, got -1"):
        with_collectors(2, frames_ahead=-1)
    with pytest.raises(TaacError, match=r"updates_per_broadcast must be 1 or more, got 0"):
        with_collectors(2, updates_per_broadcast=0)
    with pytest.raises(TaacError, match="timeout must be above 0"):
        with_collectors(2, timeout=0.0)


def test_memories_of_choices_that_do_not_count_from_0():
    """What collectors send is found out on blank frames."""
    camera = "create_environment.env_name = 'tests.toy_tasks:taac-test/Camera-v0'"
    small = ("ImageEncoder.channels = (4,)", "ImageEncoder.kernels = (3,)", "ImageEncoder.strides = (2,)")
    trainer = build(camera, *small, "create_experiment.collectors = 1", method="sac_recurrent")
    assert trainer.collector._info_like.actor.shape == (128,)
    trainer.close()


def test_errors_of_a_collector_are_the_learners():
    """A reward that is no number ends the run, as it does in one process, with the tensors that show it."""
    trainer = with_collectors(2, BREAKS, "num_env_steps = 400", "initial_collect_steps = 300", num_envs=2)
    try:
        with pytest.raises(NotFiniteError, match=r"not finite|nan") as error:
            trained(trainer, 150)
    finally:
        trainer.close()
    assert error.value.evidence


def test_a_collector_whose_environment_has_other_spaces_is_refused():
    """As on a machine where another version of it is installed."""
    trainer = with_collectors(1, num_envs=1)
    plan, build = trainer.collector.pool._plan, functools.partial(experiment.create_collecting, {"action_space": "another"})
    assert plan(0).build.args == (trainer.environment.state_dict(),)
    trainer.collector.pool._plan = lambda seed: plan(seed)._replace(build=build)
    try:
        with pytest.raises(TaacError, match=r"has action_space = .*, and it was 'another' in training"):
            trainer.collect()
    finally:
        trainer.close()


def test_collectors_see_the_variables_that_the_learner_has_now(monkeypatch):
    """They are forked from a process that is older."""
    for value in ("one", "two"):
        monkeypatch.setenv("TAAC_TOLD", value)
        trainer = with_collectors(1, num_envs=1)
        plan = trainer.collector.pool._plan
        trainer.collector.pool._plan = lambda seed, plan=plan: plan(seed)._replace(build=tells_variable)
        try:
            with pytest.raises(TaacError, match=f"TAAC_TOLD is {value}"):
                trainer.collect()
        finally:
            trainer.close()


@pytest.mark.slow
def test_learning_is_as_in_one_process():
    """One state, reward 1, cut off after 5 steps: Q = 1/(1 - gamma) = 5, as `tests/test_learning.py` derives it."""
    loaded = configuration.load(
        ["gin/tasks/simple_control.gin", "gin/methods/sac.gin"],
        [
            "create_environment.env_name = 'tests.toy_tasks:taac-test/Countdown-v0'", "normalize_rewards = False",
            "create_environment.env_kwargs = {'length': 5, 'truncate': True, 'one_state': True}", "reward_clip = None",
            "gamma = 0.8", "learning_rate = 3e-3", "target_tau = 0.05", "hidden_layers = (32,)", "batch_size = 32",
            "initial_collect_steps = 200", "replay_length = 2000", "SacAlgorithm.entropy_in_target = False",
            "num_envs = 2", "create_experiment.collectors = 2",
        ],
    )  # fmt: skip
    trainer = configuration.build(experiment.create_experiment)
    loaded.check_used()
    try:
        while trainer.learner.num_updates < 700:
            trained(trainer, 1)
    finally:
        trainer.close()
    seen = trainer.replay_buffer.sample(400, 2).time_step
    acted = ~seen.is_last()[0]
    with torch.no_grad():
        algorithm = trainer.agent.algorithm
        q = algorithm.critics(algorithm.encoder(seen.observation[0][acted]), seen.prev_action[1][acted]).mean(0)
    assert q.mean() == pytest.approx(5.0, rel=0.04) and q.std() < 0.3
