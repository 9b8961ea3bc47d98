"""Two ranks train one run: the same learner in both, one folder, and the same end however often it was stopped on the way."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from taac import configuration
from taac.acting.random_numbers import RandomNumbers
from taac.commands.main import main
from taac.errors import DivergedError, EnvironmentFailed, Interrupted, NotFiniteError, TaacError
from taac.machine.ranks import Ranks
from taac.parallel.data_parallel import DataParallel
from taac.runs.run_folder import RunFolder
from taac.training import experiment
from taac.training.conduct import conduct
from taac.training.data_parallel_files import SharedFolder, SharedSaver
from tests import toy_tasks  # noqa: F401, registers them
from tests.learning.test_modes import NormalizedCritics  # noqa: F401, gin's by its import
from tests.ranks import DEADLINE, Died, fork, together
from tests.training.runs import SMALL, TASK, rows

PARAMS = [
    *SMALL,
    "create_environment.env_name = 'taac-test/PointMass-v0'",
    "num_envs = 4",
    "num_env_steps = 240",
    "initial_collect_steps = 80",
    "hidden_layers = (8,)",
    "batch_size = 8",
    "replay_length = 40",  # the ring wraps
    "evaluation_interval = 120",
    "Intervals.summary_interval = 60",
    "Intervals.checkpoint_interval = 80",
    "create_agent.normalize_observations = True",
]


def build(ranks, *params, method="taac"):
    loaded = configuration.load([TASK, f"gin/methods/{method}.gin"], [*PARAMS, *params])
    return configuration.build(lambda: experiment.create_experiment(ranks=ranks)), loaded


class Told:
    """In place of `Interruption`: stops when `stop()` says so, as if this process had received a signal."""

    signal = None

    def __init__(self, stop=lambda: False):
        self._stop = stop

    def __call__(self):
        return self._stop()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def train(ranks, path, params=(), change=lambda trainer, ranks: None, stop=None, method="taac", extend=False):
    """Trains in the folder from wherever it stands, as `taac train` does; returns what the rank then holds."""
    trainer, loaded = build(ranks, *params, method=method)
    change(trainer, ranks)
    told = Told(lambda: stop is not None and stop(trainer, ranks))
    failure = None
    try:
        bar = lambda *_: contextlib.nullcontext(lambda *_: None)  # noqa: E731
        conduct(trainer, loaded, RunFolder(path), bar, extend, interruption=lambda: told, tell=lambda text: None)
    except (TaacError, Interrupted) as error:
        failure = error
    finally:
        trainer.close()
    return {
        "state": trainer.agent.state_dict(),
        "env_steps": trainer.env_steps,
        "updates": trainer.learner.num_updates,
        "decisions": trainer.collector.decisions,
        "restarts": trainer.collector.num_restarts,
        "own": trainer.replay_buffer.frames(0, trainer.replay_buffer.size),
        "evaluation": trainer.evaluation,
        "failure": failure,
    }


def same(found, other):
    assert (found["env_steps"], found["updates"], found["decisions"]) == (
        other["env_steps"],
        other["updates"],
        other["decisions"],
    )
    assert found["evaluation"] == other["evaluation"]
    for name, tensor in other["state"].items():
        assert torch.equal(found["state"][name], tensor), name


def about(path):
    return json.loads(RunFolder(path).run.read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole")
    return path, together(train, path)


def test_two_ranks_train_one_run(whole):
    _, (first, second) = whole
    assert first["failure"] is None and second["failure"] is None
    same(first, second)
    assert first["env_steps"] == 240 and first["updates"] == (240 - 80) // 4
    frames = 4 * (60 + 1)  # of 4 environments: 60 steps, and the reset after an episode of 30, which is no step
    assert first["state"]["observation_normalizer.count"] == frames
    assert first["own"].keys() == second["own"].keys()
    assert not any(torch.equal(first["own"][n], second["own"][n]) for n in first["own"] if n.endswith("observation"))


@pytest.mark.slow
def test_two_ranks_train_one_run_on_chunks(tmp_path):
    first, second = together(functools.partial(train, method="taac_chunk"), tmp_path)
    assert first["failure"] is None and second["failure"] is None and first["updates"] == (240 - 80) // 4
    same(first, second)


def pretended(number, count):
    ranks = Ranks()
    ranks.number, ranks.count = number, count
    return ranks


def test_a_rank_keeps_its_checkpoint_though_it_cannot_see_that_of_the_first_yet(tmp_path):
    """On another machine, the list of a folder may be a minute old. The first rank says what it holds."""
    ranks, folder = pretended(1, 2), SharedFolder(tmp_path, 1)
    saver = SharedSaver(ranks, {"random": RandomNumbers(torch.device("cpu"))})
    for steps, held in ((10, [10]), (20, [20, 10]), (30, [30, 20])):
        ranks.from_first = lambda value, held=held: held
        saver.save(folder, steps)
        assert folder.checkpoints.saved() == held


def test_each_rank_has_seeds_of_its_own():
    """Rank 0 too: its environments are not those of a run that is trained alone. All begin with the same networks."""
    starts, drawn, states = [], [], []
    for ranks, num_envs in ((Ranks(), 2), (pretended(0, 2), 4), (pretended(1, 2), 4), (pretended(0, 2), 4)):
        trainer, _ = build(ranks, f"num_envs = {num_envs}")
        starts.append(trainer.collector.rollout.time_step.observation.flatten().tolist())
        drawn.append((torch.rand(()).item(), np.random.random()))
        states.append(trainer.agent.state_dict())
        trainer.close()
    assert len({tuple(start) for start in starts}) == 3 and starts[1] == starts[3]
    assert all(len({of[i] for of in drawn}) == 3 for i in (0, 1)) and drawn[1] == drawn[3]
    assert all(torch.equal(tensor, states[2][name]) for name, tensor in states[0].items())


def test_the_first_rank_writes_and_the_others_add_their_own_part(whole):
    path, _ = whole
    assert about(path)["status"] == "finished" and about(path)["ranks"] == 2
    assert {p.parent for p in path.rglob("run.json")} == {path} == {p.parent for p in path.rglob("events.*")}
    assert [row["env_steps"] for row in rows(path)] == ["0", "120", str(about(path)["env_steps"])]
    kept = [p.name for p in sorted(path.glob("checkpoints/*.json"))]
    assert len(kept) == 2 and kept == [p.name for p in sorted(path.glob("checkpoints/rank_1/*.json"))]
    held = RunFolder(path).checkpoints.newest().state
    assert "learner" in held and "learner" not in json.dumps([p.read_text() for p in path.glob("checkpoints/rank_1/*.json")])


def dies_collecting(trainer, ranks):
    collect = trainer.collect

    def dying():
        if ranks.number == 1 and trainer.env_steps >= 130:
            os._exit(9)
        collect()

    trainer.collect = dying


def dies_between_two_parts_of_a_checkpoint(trainer, ranks):
    """The other rank's part is on the disk and the first rank's is not."""
    save = trainer.saver.save

    def dying(folder, env_steps):
        if env_steps >= 160:
            if ranks.first:
                os._exit(9)  # before the manifest that would make it a checkpoint
            folder.checkpoints.save(env_steps, {name: p.state_dict() for name, p in trainer.saver.parts.items()})
        save(folder, env_steps)

    trainer.saver.save = dying


@pytest.mark.parametrize("dies", [dies_collecting, pytest.param(dies_between_two_parts_of_a_checkpoint, marks=pytest.mark.slow)])
def test_a_run_that_lost_a_rank_goes_on_to_the_same_end(whole, tmp_path, dies):
    found = together(train, tmp_path, ["Saving.keep_checkpoints = 1"], dies)
    lost = next(rank for rank in found if not isinstance(rank, Died))
    assert sum(isinstance(rank, Died) for rank in found) == 1
    assert isinstance(lost["failure"], Interrupted)
    assert "cannot reach the others" in str(lost["failure"]) and "the same command continues" in str(lost["failure"])
    assert about(tmp_path)["status"] == ("interrupted" if dies is dies_collecting else "running")
    resumed = together(train, tmp_path, ["Saving.keep_checkpoints = 1"])
    for rank, other in zip(resumed, whole[1]):
        assert rank["failure"] is None
        same(rank, other)
        assert all(torch.equal(rank["own"][name], tensor) for name, tensor in other["own"].items())
    assert rows(tmp_path) == rows(whole[0])
    assert len(about(tmp_path)["resumed"]) == 1


def test_a_signal_to_one_rank_stops_all_at_the_same_iteration(whole, tmp_path):
    found = together(train, tmp_path, (), lambda *_: None, lambda trainer, ranks: ranks.number == 1 and trainer.env_steps >= 100)
    assert [type(rank["failure"]) for rank in found] == [Interrupted, Interrupted]
    assert found[0]["env_steps"] == found[1]["env_steps"] < 130
    assert "a signal to another rank" in str(found[0]["failure"]) and about(tmp_path)["status"] == "interrupted"
    for rank, other in zip(together(train, tmp_path), whole[1]):
        same(rank, other)
    assert rows(tmp_path) == rows(whole[0])


def test_another_number_of_ranks_is_refused(whole, tmp_path):
    stop = lambda trainer, ranks: trainer.env_steps >= 100  # noqa: E731
    together(train, tmp_path / "two", (), lambda *_: None, stop)
    before = about(tmp_path / "two")
    assert "holds a run of 2 ranks, and 1 would train it on" in str(train(Ranks(), tmp_path / "two")["failure"])
    train(Ranks(), tmp_path / "one", (), lambda *_: None, stop)
    for rank in together(train, tmp_path / "one"):
        assert "holds a run of 1 rank, and 2 would train it on" in str(rank["failure"])
        assert "Start it without torchrun" in str(rank["failure"])
    assert about(tmp_path / "two") == before
    assert [rank["failure"] for rank in together(train, whole[0])] == [None, None], "finished: nothing is done"


def reward_is_not_finite(trainer, ranks):
    sample = trainer.replay_buffer.sample_batch

    def poisoned(*given):
        batch = sample(*given)
        if ranks.number == 1 and trainer.learner.num_updates == 20:
            batch.experience.time_step.reward[1, 2] = float("nan")
        return batch

    trainer.replay_buffer.sample_batch = poisoned


def action_is_not_finite(trainer, ranks):
    step = trainer.collector.step

    def diverging():
        if ranks.number == 1 and trainer.learner.num_updates == 20:
            raise DivergedError("an action is not finite", {"action": torch.tensor([float("nan")])})
        return step()

    trainer.collector.step = diverging


@pytest.mark.parametrize("change", [reward_is_not_finite, action_is_not_finite])
def test_what_is_not_finite_in_one_rank_ends_the_run_in_all(tmp_path, change):
    before_any_checkpoint = ["normalize_rewards = False", "Intervals.checkpoint_interval = 200"]
    first, second = together(train, tmp_path, before_any_checkpoint, change)
    for rank in (first, second):
        assert isinstance(rank["failure"], NotFiniteError) and rank["updates"] == 20
    same(first, second)
    assert about(tmp_path)["status"] == "diverged"
    assert about(tmp_path)["diverged"]["env_steps"] == first["env_steps"]
    assert list((tmp_path / "checkpoints/rank_1").glob("diverged-*.json")), "what the rank saw is saved beside its checkpoints"


def environment_fails(trainer, ranks):
    step = trainer.collector.step

    def failing():
        if ranks.number == 1 and trainer.env_steps >= 100:
            raise EnvironmentFailed("environment 'x' broke")
        return step()

    trainer.collector.step = failing


@pytest.mark.slow
def test_an_environment_that_fails_for_good_ends_the_run_with_a_checkpoint(tmp_path):
    found = together(train, tmp_path, (), environment_fails)
    for rank in found:
        assert isinstance(rank["failure"], EnvironmentFailed)
        assert "A checkpoint was written" in str(rank["failure"])
    assert "rank 1: environment 'x' broke" in str(found[0]["failure"])
    for rank in together(train, tmp_path):
        assert rank["failure"] is None and rank["env_steps"] >= 240


def environment_is_restarted(trainer, ranks):
    step, failures = trainer.collector.step, [EnvironmentFailed("environment 'x' broke")] * ranks.number
    trainer.environment.restart = lambda failure: None

    def failing():
        if failures and trainer.env_steps >= 100:
            raise failures.pop()
        return step()

    trainer.collector.step = failing


@pytest.mark.slow
def test_an_environment_that_is_restarted_costs_the_other_ranks_nothing(tmp_path):
    """Its rank takes no step in that iteration; counts stay equal, and so does the learner."""
    first, second = together(train, tmp_path, (), environment_is_restarted)
    assert first["failure"] is None and second["failure"] is None and first["env_steps"] >= 240
    assert (first["restarts"], second["restarts"]) == (0, 1)
    same(first, second)
    assert about(tmp_path)["status"] == "finished"


def evaluation_fails(trainer, ranks):
    def failing(*_):
        raise TaacError("episodes have not ended")

    trainer.evaluator.run = failing


def test_an_evaluation_that_fails_ends_all_ranks(tmp_path):
    first, second = together(train, tmp_path, (), evaluation_fails)
    assert str(first["failure"]) == "episodes have not ended" and str(second["failure"]) == "rank 0: episodes have not ended"


def parameter_changes(trainer, ranks):
    def change(trainer):
        if ranks.number == 1 and trainer.learner.num_updates == 20:
            with torch.no_grad():
                next(trainer.agent.parameters()).view(-1)[0] += 1e-6

    trainer.hooks.add("after_update", change)


def test_ranks_that_drift_apart_are_found(tmp_path):
    for rank in together(train, tmp_path, (), parameter_changes):
        assert "rank 1 no longer holds the same 'algorithm." in str(rank["failure"])
    assert about(tmp_path)["status"] == "failed"


@pytest.mark.parametrize("point", ["after_update", "after_checkpoint"])
def test_a_hook_of_one_rank_ends_the_run_in_all(tmp_path, point):
    """At points of which the other rank hears nothing until all agree: in an iteration, and at a checkpoint that follows it."""

    def stops_early(trainer, ranks):
        trainer.hooks.add(point, lambda t: t.env_steps >= 80 and ranks.number == 1 and t.stop_early("enough"))

    first, second = together(train, tmp_path, ("evaluation_interval = 80",), stops_early)
    assert first["failure"] is None and first["env_steps"] == second["env_steps"] < 130
    assert about(tmp_path)["status"] == "finished" and about(tmp_path)["stopped"]["why"] == "enough"


@pytest.mark.slow
def test_all_ranks_train_a_run_on_that_a_hook_ended_early(tmp_path):
    def stops_early(trainer, ranks):
        trainer.hooks.add("after_iteration", lambda t: t.env_steps == 84 and t.stop_early("enough"))

    together(train, tmp_path, (), stops_early)
    assert about(tmp_path)["stopped"]["env_steps"] == 84
    first, second = together(train, tmp_path, ("num_env_steps = 280",), stops_early, None, "taac", True)
    assert first["failure"] is None and second["failure"] is None
    same(first, second)
    assert first["env_steps"] >= 280 and about(tmp_path)["stopped"] is None


@pytest.mark.parametrize("count", [1, 2])
def test_each_rank_takes_memory_for_its_own_steps(count):
    trainer = build(pretended(0, count), "num_envs = 4", "num_env_steps = 1000", "replay_length = 5000")[0]
    steps = 1000 // 4  # num_envs is the number over all ranks, and so are the steps
    assert trainer.environment.num_envs == 4 // count
    assert trainer.replay_buffer.reserved == steps * 11 // 10
    trainer.close()


SCHEDULE = "s/LinearSchedule.start = 8\ns/LinearSchedule.end = 16\ns/LinearSchedule.updates = 9"


@pytest.mark.parametrize(
    "param, message",
    [
        ("num_envs = 3", "create_environment.num_envs 3 is the number over all ranks"),
        ("batch_size = 9", "Trainer.batch_size 9 is the number over all ranks"),
        (f"batch_size = @s/LinearSchedule()\n{SCHEDULE}", "Trainer.batch_size must be a number with 2 ranks"),
        ("create_agent.reward_signals = (@RND,)", r"create_agent.reward_signals \(RND\)"),
        ("normalize_rewards = 'scale'", "create_agent.normalize_rewards = 'scale' or 'bounded', because each rank has"),
        ("create_experiment.demonstrations = 'x.npz'", "demonstrations or behaviour cloning"),
        (
            "normalize_rewards = 'bounded'\nCriticEnsemble.returns = @CategoricalReturns()",
            "or 'bounded', because each rank has its own returns",
        ),
        ("ActorCriticAlgorithm.critic_ctor = @NormalizedCritics", "batch normalisation"),
        ("CriticEnsemble.body = @FlashBody", "batch normalisation"),
        ("create_experiment.collectors = 2", "create_experiment.collectors: give one or the other"),
        ("initial_collect_steps = 14", "segment_length x num_envs x action_repeat = 16"),
        ("create_experiment.device = 'cuda:1'", "'auto', 'cpu' or 'cuda' with 2 ranks"),
    ],
)
def test_what_two_ranks_cannot_train_is_refused_before_any_work(param, message):
    with pytest.raises(TaacError, match=message):
        build(pretended(0, 2), *param.split("\n"))


def torchrun(words, out):
    """What the program `torchrun --max_restarts 1` does, in a fork whose workers are forks as well: nothing is imported anew."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        1, 1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="fork", max_restarts=1,
        monitor_interval=0.1,
    )  # fmt: skip
    if (child := fork()) == 0:
        code = 1
        warnings.simplefilter("ignore")  # as `fork`, which torch does not call
        signal.alarm(DEADLINE)
        try:
            with open(out, "w") as file:
                os.dup2(file.fileno(), 1), os.dup2(file.fileno(), 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            elastic_launch(config, main)(["taac", *words])
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.slow
def test_torchrun_trains_and_goes_on_after_a_rank_was_killed(whole, tmp_path, monkeypatch):
    """The second rank kills itself once; torchrun ends the first, and starts both again."""
    own = [*PARAMS, "create_environment.env_name = 'tests.toy_tasks:taac-test/Killed-v0'"]
    words = ["train", "--gin_file", TASK, "--gin_file", "gin/methods/taac.gin", "--root_dir", str(tmp_path / "run")]
    words += [word for param in own for word in ("--gin_param", param)]
    monkeypatch.setenv("KILL_RANK", "1")
    monkeypatch.setenv("KILLED", str(tmp_path / "killed"))
    code = torchrun(words, tmp_path / "out")
    out = (tmp_path / "out").read_text()
    assert code == 0, out
    assert (tmp_path / "killed").exists()
    assert "cannot reach the others" in out and "resumable" in out
    assert out.count("training in") == 1 and out.count("resuming") == 1
    held = about(tmp_path / "run")
    assert held["status"] == "finished" and held["ranks"] == 2 and held["resumed"][0]["env_steps"] == 160
    found = RunFolder(tmp_path / "run").checkpoints.newest().part("agent")
    for name, tensor in whole[1][0]["state"].items():
        assert torch.equal(found[name], tensor), name


# Shares and sums -------------------------------------------------------------------------------------------------------


def test_each_rank_draws_its_share_of_a_batch(monkeypatch):
    (trainer, _), seen = build(pretended(0, 2)), []
    monkeypatch.setattr(trainer.learner, "learn_from", lambda replay, size, *rest: seen.append(size))
    monkeypatch.setattr(trainer.update_ratio, "filling", lambda steps: False)
    monkeypatch.setattr(trainer.update_ratio, "updates_earned", lambda steps: 1)
    trainer.learn()
    trainer.close()
    assert seen == [4]  # of a batch_size of 8


def test_counts_and_transitions_are_summed_over_ranks():
    ranks, ratio = pretended(0, 2), SimpleNamespace(transitions=4)
    collector = SimpleNamespace(env_steps=10, decisions=5, episodes=1)
    ranks.exchange = lambda failure, own: ([2 * number for number in own], None)
    agent = SimpleNamespace(merge_observations=lambda ranks: None)
    both = DataParallel(ranks, SimpleNamespace(agent=agent), collector, ratio, None)
    with both.collecting():
        collector.env_steps, collector.decisions, collector.episodes, ratio.transitions = 17, 9, 2, 7
    assert (collector.env_steps, collector.decisions, collector.episodes, ratio.transitions) == (24, 13, 3, 10)


def test_the_first_rank_reports_the_episodes_of_all():
    ranks, collector = pretended(0, 2), SimpleNamespace(pop_episodes=lambda: (["its own"], []), ended=[])
    ranks.gather = lambda own: [own, (["of the second"], [])]
    DataParallel(ranks, SimpleNamespace(agent=None), collector, None, None).gather_episodes()
    assert collector.ended == ["its own", "of the second"]
