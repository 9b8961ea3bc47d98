"""Collectors that are killed, hang or whose environments fail: replaced, with whole episodes; and nothing is left at work."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from taac import nest
from taac.acting.random_numbers import TRAINING, derived_seed
from taac.errors import RESUMABLE, EnvironmentFailed
from taac.parallel import worker
from taac.parallel.pool import CollectorPool, Lost, Remote
from taac.parallel.remote_collector import RemoteCollector
from taac.runs.run_folder import RunFolder
from tests import forked
from tests.campaigns.launched import wait_for
from tests.environments.team import TEAM
from tests.environments.toys import env_id
from tests.parallel.collecting import (
    FIRST,
    LAST,
    SHORT,
    assert_whole_episodes,
    counter,
    frames,
    gone,
    kill,
    lasts,
    processes,
    seed_of,
    with_collectors,
)
from tests.training.runs import build, run

STEPS = ("num_env_steps = 4000", "initial_collect_steps = 2000", "create_environment.max_episode_steps = 500")


@pytest.mark.slow
def test_a_killed_collector_ends_its_own_episodes_where_they_were_last_seen(capfd):
    """Episodes that never end, in columns 0 to 3. The collector of columns 2 and 3 is killed, twice.

    The environments observe (episode, step, action). Their steps are the frame's number since FIRST, and the reward is
    10 episode + step: no frame is left out, repeated or made up.
    """
    trainer = with_collectors(2, *STEPS, *counter(("9999n",)), frames_ahead=2, method="taac")
    collector = trainer.collector
    try:
        for row in range(30):
            collector.step()
            if row in (9, 19):
                kill(processes(trainer)[1])
        assert len(collector.pool.remotes) == 2 and collector.num_restarts == 2
    finally:
        trainer.close()
    held = frames(trainer)
    step_type, step = held["step_type"], held["observation"][..., 1]
    assert_whole_episodes(step_type)
    found = sorted(lasts(step_type))
    rows = [row for row, column in found if column == 2]
    assert found == [(row, column) for row in rows for column in (2, 3)] and len(rows) == 2  # none in columns 0 and 1
    # Up to 2 frames that it had answered are still taken, and then the frame that it reached.
    assert 10 <= rows[0] <= 12 and 20 <= rows[1] <= 22
    for column in range(4):
        begins = [0, *(row + 1 for row in rows if column > 1)]
        for begin, end in zip(begins, [*begins[1:], 30]):
            assert step[begin:end, column].tolist() == list(range(end - begin))
            assert held["reward"][begin:end, column].tolist() == list(range(end - begin))
    assert (held["discount"] == 1).all()  # truncations, which bootstrap
    # An action is what the next observation and `prev_action` say; the one at LAST led nowhere, and FIRST follows none.
    assert np.array_equal(held["observation"][..., 2:], held["prev_action"])
    assert (held["prev_action"][step_type == FIRST] == 0).all() and (held["prev_action"][step_type == LAST] != 0).all()
    # TAAC's critics learn a step from the trajectory in the info of the frame after it, also where that was lost.
    assert np.array_equal(held["rollout_info/tau_prev/a"], held["prev_action"])
    assert collector.env_steps == (step_type != LAST).sum() == 4 * 30 - 4
    err = capfd.readouterr().err
    assert err.count("collector 1: its process died (SIGKILL); replaced it") == 2


@pytest.mark.parametrize("comes_and_goes", [False, True])
def test_what_is_told_of_a_lost_time_step_is_the_action_before_it_of_every_agent_that_is_there(comes_and_goes):
    trainer = build(
        f"create_environment.env_name = '{TEAM}'", f"create_environment.env_kwargs = {{'comes_and_goes': {comes_and_goes}}}",
        "create_agent.shared_policy = True", "initial_collect_steps = 20",
    )  # fmt: skip
    with contextlib.closing(trainer):
        learner, replay = trainer.learner, trainer.replay_buffer
        remote = RemoteCollector(
            trainer.environment, trainer.agent, replay, 0, number=1, build=lambda number: None, learner=learner
        )
        for _ in range(4):
            trainer.collector.step()
        known = trainer.collector.rollout.time_step
        assert not known.is_first().any() and (known.prev_action != 0).any()
        told = nest.pack_like(remote._info_like, remote._lost_info([leaf.numpy() for leaf in nest.flatten(known)]))
    assert np.array_equal(told.tau_prev.a, known.prev_action)


class Answering:
    """A channel whose collector answers as many messages as it is told, and is lost then. Frames arrive at 0, 1, ..."""

    def __init__(self, answers):
        self.answers, self.sent, self.timeouts = answers, [], []

    def send(self, message):
        self.sent.append(pickle.loads(message))

    def receive(self, timeout):
        self.timeouts.append(timeout)
        if not self.answers:
            raise Lost("it is gone")
        self.answers -= 1
        (name, arguments), *self.sent = self.sent
        if name == worker.STEP:
            return pickle.dumps((worker.DONE, worker.Frame([], list(arguments), False, 1, 1, 1, 1, [], 0)))
        return pickle.dumps((worker.DONE, ["begins"] if name == worker.BEGIN else {"state": 1}))

    def hang_up(self):
        pass

    def close(self):
        pass


def test_a_replacement_is_told_everything_and_ends_the_episodes_after_the_frames_that_are_known():
    """It is lost when it has answered one of two orders: the frame that ends its episodes follows on that answer."""
    channels, told, seeds = [Answering(2), Answering(9)], [], []

    def order(with_parameters):
        told.append(with_parameters)
        return worker.message(worker.STEP, f"reached {len(told)}")

    waiting = iter(channels)
    pool = CollectorPool(
        1, lambda name: next(waiting), lambda seed: seeds.append(seed), 0, lambda held: [f"lost at {held[0]}"], None, 1
    )  # fmt: skip
    pool.begin()
    (remote,) = pool.remotes
    for _ in range(2):
        pool.order([remote], order)
    assert remote.held == ["begins"] and remote.ahead == 2
    assert pool.state(remote) == {"state": 1} and remote.generation == 1 and remote.ahead == 2
    first, second = pool.take(remote), pool.take(remote)
    assert (first.reached, first.cut, first.restarts) == (["reached 1"], False, 0)
    assert (second.info, second.reached, second.cut, second.restarts) == (["lost at reached 1"], ["begins"], True, 1)
    pool.order([remote], order)
    assert told == [True, False, True] and len(set(seeds)) == 2
    channels[1].answers = 0
    with pytest.raises(EnvironmentFailed, match="replaced 1 times within 3600 s"):
        pool.take(remote)


def test_every_replacement_counts_though_some_do_not_even_begin():
    """Generations give seeds: a run that gave up begins with one above the count, which must be above all of them."""
    waiting = iter([Answering(1), Answering(0), Answering(0), Answering(9)])
    pool = CollectorPool(1, lambda name: next(waiting), lambda seed: seed, 0, lambda held: held, None, 9)
    pool.begin()
    (remote,) = pool.remotes
    pool.order([remote], lambda with_parameters: worker.message(worker.STEP, "never"))
    assert pool.take(remote).restarts == remote.generation == 3


def test_replacements_are_forgotten_after_their_time(monkeypatch):
    """Two are allowed within an hour, and there are three, of which two are within it."""
    now = iter([0.0, 2000.0, 3700.0, 3800.0])
    monkeypatch.setattr("taac.parallel.pool.time.monotonic", lambda: next(now))
    pool = CollectorPool(1, lambda name: Answering(1), lambda seed: seed, 0, lambda held: held, None, 2)
    for _ in range(3):
        pool._check_replacements("gone")
    with pytest.raises(EnvironmentFailed, match="replaced 2 times within 3600 s"):
        pool._check_replacements("gone")


def test_a_collector_may_take_as_long_to_repeat_its_episodes_as_they_took():
    """It begins with those of two environments, of 7 and 40 frames. One that begins anew has its 60 seconds and one frame."""
    channels = [Answering(1), Answering(1), Answering(1)]
    waiting = iter(channels)
    pool = CollectorPool(3, lambda name: next(waiting), lambda seed: seed, 0, lambda held: held, 0.5, 1)
    actions = [[torch.zeros(7, 2)], [torch.zeros(40, 2)]]
    pool.begin([None, {"collector": {"running": None}}, {"collector": {"running": {"actions": actions}}}])
    assert [channel.timeouts for channel in channels] == [[60.5], [60.5], [60.5 + 40 * 0.5]]


def test_collectors_that_begin_anew_after_a_run_gave_up_have_other_seeds():
    collector = RemoteCollector.__new__(RemoteCollector)
    collector._given_up, collector.num_restarts = True, 3  # gave up before its last frame was known
    collector.pool = SimpleNamespace(close=lambda: None, remotes=[Remote(0, generation=2), Remote(1)])
    collector.give_up()
    collector._restore(None)
    assert collector.num_restarts == 4 and [remote.generation for remote in collector.pool.remotes] == [4, 4]


def test_statistics_are_those_of_the_frames_that_the_learner_has(tmp_path):
    """Also after a collector was lost, whose own would be gone."""
    trainer = with_collectors(2, *STEPS, *counter(("9n",)), "create_agent.normalize_observations = True")
    try:
        for row in range(12):
            trainer.collector.step()
            if row == 5:
                kill(processes(trainer)[0])
    finally:
        trainer.close()
    seen = frames(trainer)["observation"].reshape(-1, 4)
    normalizer = trainer.agent.observation_normalizer
    assert normalizer.count.item() == len(seen)
    scaled = normalizer(torch.from_numpy(seen).float())
    assert abs(scaled.mean(0)).max() < 1e-3


def fragile(tmp_path, how, at, times, **more):
    """Breaks down in the first environment of collector 1, unless it is its replacement's."""
    only = derived_seed(seed_of(1), TRAINING, 0)
    kwargs = {"how": how, "at": at, "log": str(tmp_path / "log"), "times": times, "modulus": only}
    return (f"create_environment.env_name = '{env_id('Fragile')}'", f"create_environment.env_kwargs = {kwargs!r}",
            *(f"create_environment.{name} = {value!r}" for name, value in more.items()))  # fmt: skip


@pytest.mark.parametrize("how, why", [("raise", "50% of the simulator is gone"), ("die", "SIGKILL"),
                                      ("hang", "did not answer within 1.5 s")])  # fmt: skip
def test_a_failed_environment_costs_its_collector_alone(tmp_path, capfd, how, why):
    options = {"timeout": 1.5} if how == "hang" else {}
    trainer = with_collectors(2, *STEPS, *fragile(tmp_path, how, at=5, times=1), num_envs=2, **options)
    try:
        for _ in range(12):
            trainer.collector.step()
    finally:
        trainer.close()
    step_type = frames(trainer)["step_type"]
    assert_whole_episodes(step_type)
    assert lasts(step_type) == {(4, 1)}  # step 5 never came about
    assert trainer.collector.num_restarts == 1 and trainer.collector.env_steps == 23
    assert why in capfd.readouterr().err


@pytest.mark.slow
def test_a_simulator_that_hangs_in_c_does_not_hold_up_the_learner(tmp_path, capfd):
    """Its process reads no message, because it keeps Python's lock. The parameters are more than a pipe takes."""
    large = ("hidden_layers = (512, 512)", *fragile(tmp_path, "hold", at=5, times=1))
    trainer = with_collectors(2, *STEPS, *large, num_envs=2, timeout=2.0)
    before = signal.signal(signal.SIGALRM, give_up_waiting)
    try:
        for _ in range(12):
            signal.alarm(40)
            trainer.collector.step()
            trainer.learner.num_updates += 1  # so that every order holds the parameters
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        trainer.close()
    assert lasts(frames(trainer)["step_type"]) == {(4, 1)} and trainer.collector.num_restarts == 1
    assert "collector 1: it did not answer within 2 s; replaced it" in capfd.readouterr().err


def give_up_waiting(*_):
    raise AssertionError("the learner waits for a collector that hangs")


def test_a_collector_that_cannot_begin_is_not_replaced(capfd):
    quits = (f"create_environment.env_name = '{env_id('Quits')}'", "create_environment.env_kwargs = {'when': 'reset'}")
    trainer = with_collectors(2, *STEPS, *quits, num_envs=2)
    try:
        with pytest.raises(EnvironmentFailed, match=r"a collector cannot begin: .* failed at reset"):
            trainer.collect()
        started = processes(trainer)
    finally:
        trainer.close()
    assert gone(started) and "replaced" not in capfd.readouterr().err


@pytest.mark.slow
def test_environments_in_processes_of_their_own_are_restarted_by_the_collector(tmp_path):
    trainer = with_collectors(2, *STEPS, *fragile(tmp_path, "die", at=5, times=1, asynchronous=True), num_envs=2)
    try:
        trainer.collector.step()
        before = [process.pid for process in processes(trainer)]
        for _ in range(11):
            trainer.collector.step()
        assert before == [process.pid for process in processes(trainer)]
        nested = [child for process in processes(trainer) for child in process.children(recursive=True)]
        assert len(nested) >= 2
    finally:
        trainer.close()
    step_type = frames(trainer)["step_type"]
    assert_whole_episodes(step_type)
    assert lasts(step_type) == {(4, 1)} and trainer.collector.num_restarts == 1
    assert gone(nested)


def test_too_many_end_the_run_with_a_checkpoint_that_goes_on(tmp_path):
    settings = (
        *SHORT, "num_env_steps = 80", "initial_collect_steps = 40", "evaluation_interval = 80", "num_envs = 2",
        "create_experiment.collectors = 2", "RemoteCollector.max_replacements = 1",
        *fragile(tmp_path, "raise", at=9, times=3)[:1],
        f"create_environment.env_kwargs = {{'how': 'raise', 'at': 9, 'log': '{tmp_path / 'log'}', 'times': 2}}",
    )  # fmt: skip
    with pytest.raises(EnvironmentFailed) as error:
        run(tmp_path / "run", *settings, method="sac")
    assert "replaced 1 times within 3600 s" in str(error.value) and "A checkpoint was written at" in str(error.value)
    (tmp_path / "log").write_text("xx")  # mended
    trainer = run(tmp_path / "run", *settings, method="sac")
    assert trainer.env_steps >= 80
    assert_whole_episodes(frames(trainer)["step_type"])


# Whole processes -------------------------------------------------------------------------------------------------------


def train(folder, *more):
    return [
        "train",
        "--task", "tests.toy_tasks:taac-test/Slow-v0", "--method", "sac", "--root_dir", str(folder), "--set", "collectors=2",
        "--num_env_steps", "100000", "--set", "num_envs=2", "--set", "initial_collect_steps=100", "--set", "hidden_layers=8,",
        "--set", "batch_size=8", "--set", "checkpoint_interval=60", "--set", "Evaluator.initial_evaluation=False",
        "--set", "updates_per_env_step=0.1", "--set", "create_agent.compile=False", *more,
    ]  # fmt: skip


@pytest.mark.slow
def test_nothing_is_left_at_work_however_the_learner_ends(tmp_path):
    """SIGTERM to all its processes, as a scheduler sends it: a checkpoint with the running episodes. SIGKILL to the learner."""
    learners = [forked.Process(train(tmp_path / name), cwd=tmp_path) for name in ("stopped", "killed")]
    families = []
    for name, learner in zip(("stopped", "killed"), learners):
        wait_for(lambda name=name: any((tmp_path / name).glob("checkpoints/*.json")), learner)
        families.append(psutil.Process(learner.pid).children(recursive=True))
        assert len(families[-1]) >= 3  # two collectors, and what they were forked from
    os.killpg(learners[0].pid, signal.SIGTERM)
    learners[1].kill()
    _, err = learners[0].communicate(timeout=60)
    learners[1].communicate(timeout=60)  # of its output, which its collectors have too
    assert learners[0].returncode == RESUMABLE, err
    assert "replaced" not in err and "Traceback" not in err
    assert all(gone(family) for family in families)
    found = RunFolder(tmp_path / "stopped").checkpoints.newest().part("collector")
    assert len(found["running"]["collectors"]) == 2 and found["num_restarts"] == 0


def test_how_often_a_collector_was_replaced_is_saved():
    """Its seed follows from that, with which its running episodes are repeated."""
    again = Remote(0)
    again.load_state_dict(Remote(0, generation=3).state_dict({}), (), (), 2)
    assert again.generation == 3
