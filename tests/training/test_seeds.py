"""Seeds that train together against each alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch

import tests.toy_tasks  # noqa: F401, registers its environments
from taac import configuration
from taac.configuration import Asked
from taac.errors import Interrupted, TaacError
from taac.learning import joint
from taac.runs import layout
from taac.runs.layout import EpisodeSummary
from taac.runs.run_folder import RunFolder
from taac.training import experiment
from taac.training.conduct import conduct
from taac.training.loggers import Loggers
from taac.training.seeds import _Company, _OneBar, conduct_seeds, members
from tests.training.runs import TASK, rows

SMALL = (
    "create_environment.env_name = 'taac-test/PointMass-v0'", "num_env_steps = 90", "initial_collect_steps = 50",
    "hidden_layers = (8, 8)", "batch_size = 8", "replay_length = 100", "evaluation_interval = 60", "evaluation_episodes = 1",
    "create_experiment.evaluation_envs = 1", "Trainer.summary_interval = 40", "Trainer.checkpoint_interval = 70",
    "Learner.learning_rate = 0.003", "create_agent.compile = False",
)  # fmt: skip
SEEDS = (0, 1, 2)
STACKED = "one program for 3 seeds"


def asked(method="sac", *params):
    return Asked(gin_files=(TASK, f"gin/methods/{method}.gin"), gin_params=(*SMALL, *params))


@contextlib.contextmanager
def no_bar(total, initial):
    yield lambda *_: None


def alone(folder, seed, method="sac", *params):
    loaded = asked(method, *params)._replace(seed=seed).load()
    trainer = configuration.build(experiment.create_experiment)
    try:
        conduct(trainer, loaded, RunFolder(folder), no_bar, tell=lambda text: None)
    finally:
        trainer.close()
    return trainer


def together(parent, method="sac", *params, change=lambda runs: None):
    """Trains the seeds in one process; returns their trainers, how they ended, and what was told."""
    runs, told = members(asked(method, *params), SEEDS, parent), []
    change(runs)
    outcome = conduct_seeds(runs, no_bar, tell=told.append)
    return [run.trainer for run in runs], outcome, told


def about(folder):
    return json.loads((folder / layout.RUN).read_text())


def assert_same(trainer, expected, exact=False):
    """The same episodes, draws and counts, and parameters that are equal or nearly so."""
    for part in ("env_steps", "decisions", "episodes"):
        assert getattr(trainer.collector, part) == getattr(expected.collector, part)
    assert trainer.learner.num_updates == expected.learner.num_updates > 0
    found, states = trainer.agent.state_dict(), expected.agent.state_dict()
    assert found.keys() == states.keys()
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-3, "atol": 1e-4}
    for name, value in states.items():
        torch.testing.assert_close(found[name], value, **tolerance, msg=lambda text, name=name: f"{name}: {text}")


def generators(folder):
    """The random generators in the newest checkpoint."""
    (found, *_) = RunFolder(folder).checkpoints.readable()
    return found.state["random"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """SAC's seeds together: the folder that holds them, and their trainers."""
    folder = tmp_path_factory.mktemp("whole")
    trainers, outcome, _ = together(folder)
    assert outcome.finished == list(SEEDS) and not outcome.failed
    return folder, trainers


@pytest.mark.parametrize("method, seeds", [("sac", SEEDS), ("taac", SEEDS), ("taac_l", (1,)), ("taac_q", (2,))])
def test_each_seed_has_the_result_that_it_has_alone(method, seeds, tmp_path, whole):
    parent, trainers = whole if method == "sac" else (tmp_path / "all", together(tmp_path / "all", method)[0])
    for seed in seeds:
        trainer = trainers[seed]
        folder, own = parent / f"seed_{seed}", tmp_path / str(seed)
        assert_same(trainer, alone(own, seed, method))
        assert STACKED in about(folder)["updates_together"] and about(folder)["status"] == "finished"
        for one, other in zip(rows(folder), rows(own), strict=True):
            assert one["env_steps"] == other["env_steps"]
            assert float(one["return_mean"]) == pytest.approx(float(other["return_mean"]), rel=1e-3)
        drawn, expected = generators(folder), generators(own)
        assert torch.equal(drawn["cpu"], expected["cpu"])
        assert torch.equal(drawn["numpy"]["key"], expected["numpy"]["key"])
        assert (folder / layout.CONFIG).read_text() == (own / layout.CONFIG).read_text()
    weights = [trainer.agent.state_dict()["algorithm.critics.last.weight"] for trainer in trainers]
    assert not torch.equal(weights[0], weights[1]) and not torch.equal(weights[1], weights[2])


AROUND = (
    "create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer", "create_agent.reward_signals = (@RND,)",
    "create_agent.normalize_observations = True", "create_agent.normalize_rewards = True", "Learner.max_grad_norm = 0.5",
    "Learner.diagnostics = 'histograms'", "SacAlgorithm.target_entropy = @LinearSchedule()", "LinearSchedule.start = 0.5",
    "LinearSchedule.end = -5.0", "LinearSchedule.updates = 30",
)  # fmt: skip


def test_what_stands_around_the_loss_is_each_seeds_own(tmp_path):
    """Priorities, reward signals, statistics, clipping and schedules."""
    trainers, _, told = together(tmp_path / "all", "sac", *AROUND)
    assert any(STACKED in line for line in told)
    assert_same(trainers[1], alone(tmp_path / "1", 1, "sac", *AROUND))


def test_updates_that_cannot_be_stacked_are_taken_in_turn(tmp_path, monkeypatch):
    monkeypatch.setattr(joint, "MOST_UNCOMPILED", 100)
    trainers, outcome, told = together(tmp_path / "all")
    assert sum("updates: in turn" in line for line in told) == 1 and len(outcome.finished) == 3
    assert "in turn" in about(tmp_path / "all" / "seed_2")["updates_together"]
    assert_same(trainers[2], alone(tmp_path / "2", 2), exact=True)


def test_a_failing_stacked_program_leaves_each_seed_its_draws(tmp_path, monkeypatch):
    def fail(*_):
        raise joint.CannotStack("no memory")

    monkeypatch.setattr(joint.StackedFunction, "__call__", fail)
    trainers, _, told = together(tmp_path / "all")
    assert any("in turn: no memory" in line for line in told)
    assert_same(trainers[0], alone(tmp_path / "0", 0), exact=True)


def after_updates(trainer, updates, act):
    """Has `act` called once, when the run has taken so many updates."""
    learn = trainer.learn

    def watched():
        learn()
        if trainer.learner.num_updates == updates:
            act(trainer)

    trainer.learn = watched


def poison(trainer):
    with torch.no_grad():
        next(trainer.agent.algorithm.critics.parameters()).fill_(float("nan"))


def breaks(trainer):
    raise RuntimeError("a hook of one's own")


def test_those_that_diverge_or_fail_leave_the_others_as_they_are(tmp_path, whole, capsys):
    def change(runs):
        after_updates(runs[0].trainer, 9, poison)
        after_updates(runs[2].trainer, 20, breaks)

    trainers, outcome, _ = together(tmp_path, change=change)
    assert outcome.finished == [1] and "not finite" in str(outcome.failed[0]) and "one's own" in str(outcome.failed[2])
    assert "in breaks" in capsys.readouterr().err  # the traceback of what is no mistake of the user's input
    assert_same(trainers[1], whole[1][1], exact=True)
    assert [about(tmp_path / f"seed_{seed}")["status"] for seed in SEEDS] == ["diverged", "finished", "failed"]


def test_the_last_one_does_not_pay_for_all(tmp_path, whole, monkeypatch):
    monkeypatch.setattr(joint, "PATIENCE", 5)

    def change(runs):
        for number in (0, 1):
            after_updates(runs[number].trainer, 6, poison)

    trainers, outcome, told = together(tmp_path, change=change)
    assert outcome.finished == [2] and any("most of the seeds have ended" in line for line in told)
    assert_same(trainers[2], whole[1][2])
    assert all(env.closed for env in (trainers[0].environment._env, trainers[2].environment._env))


def test_a_signal_stops_all_and_the_same_call_goes_on_to_the_same_end(tmp_path, whole):
    parent, expected = whole

    def stop(runs):
        after_updates(runs[1].trainer, 15, lambda trainer: os.kill(os.getpid(), signal.SIGTERM))

    with pytest.raises(Interrupted, match="seeds 0, 1, 2 can go on"):
        together(tmp_path, change=stop)
    assert all(about(tmp_path / f"seed_{seed}")["status"] == "interrupted" for seed in SEEDS)
    trainers, outcome, _ = together(tmp_path)
    assert outcome.finished == list(SEEDS)
    for seed, trainer, other in zip(SEEDS, trainers, expected):
        assert_same(trainer, other)
        assert rows(tmp_path / f"seed_{seed}") == rows(parent / f"seed_{seed}")
        assert about(tmp_path / f"seed_{seed}")["resumed"]


def test_finished_seeds_are_left_and_others_join_them(tmp_path):
    alone(tmp_path / "seed_1", 1)
    before = (tmp_path / "seed_1" / layout.RUN).read_text()
    trainers, outcome, _ = together(tmp_path)
    assert outcome.finished == [0, 2] and len(trainers) == 2
    assert (tmp_path / "seed_1" / layout.RUN).read_text() == before
    assert members(asked(), SEEDS, tmp_path) == []


def test_those_that_never_began_are_closed_and_the_others_have_closed_themselves():
    closed, company = [], _Company.__new__(_Company)
    company._runs = [SimpleNamespace(trainer=SimpleNamespace(close=lambda n=n: closed.append(n))) for n in range(3)]
    company.turns = [SimpleNamespace(began=began) for began in (True, False, False)]
    company.close()
    assert closed == [1, 2]


def test_one_bar_shows_the_sums_and_the_mean_of_those_that_were_evaluated():
    opened, shown = [], []

    @contextlib.contextmanager
    def bar(total, initial):
        opened.append((total, initial))
        yield lambda *progress: shown.append(progress)

    def evaluation(value):
        return EpisodeSummary(*[value] * len(EpisodeSummary._fields))

    with _OneBar(bar, [SimpleNamespace(num_env_steps=100)] * 3) as one, contextlib.ExitStack() as parts:
        first, second, _ = [parts.enter_context(one.of(number)(100, 40)) for number in range(3)]
        first(50, 5, None, 0.6)
        second(60, 7, evaluation(4.0), 0.3)
        first(70, 6, evaluation(2.0), 0.0)
    assert opened == [(300, 130)]
    steps, updates, means, repeated = zip(*shown)
    assert (steps, updates) == ((130, 150, 170), (5, 12, 13)) and repeated == pytest.approx((0.2, 0.3, 0.1))
    assert [mean and mean.return_mean for mean in means] == [None, 4.0, 3.0]


def test_a_logger_of_one_run_a_process_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Loggers, "__init__", named_wandb)
    with pytest.raises(TaacError, match="WandbLogger logs one run of a process"):
        members(asked(), SEEDS, tmp_path)
    assert not list(tmp_path.iterdir())
    (alone,) = members(asked(), SEEDS[:1], tmp_path)
    alone.trainer.close()


def named_wandb(self, given=()):
    self._given, self._active, self.names = (), [], ["wandb"]


def test_a_folder_of_something_else_is_refused_before_any_seed_begins(tmp_path):
    alone(tmp_path / "seed_2", 2, "sac", "num_env_steps = 60")
    with pytest.raises(TaacError, match="seed_2"):
        members(asked(), SEEDS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["seed_2"]
