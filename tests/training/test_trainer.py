"""The loop: what counts as a step, when updates are due, and the same run whether it was interrupted or not."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch

from taac.data_structures import StepType
from taac.errors import TaacError
from taac.training import checkpoint, config, experiment
from taac.training.run_folder import RunFolder
from taac.training.summaries import known_tags
from taac.training.trainer import derived_seed

TASK = "gin/tasks/simple_control.gin"
SMALL = [
    "create_environment.env_name = 'Pendulum-v1'",
    "num_env_steps = 600",
    "initial_collect_steps = 300",
    "hidden_layers = (32, 32)",
    "batch_size = 32",
    "replay_length = 1000",
    "evaluation_interval = 300",
    "evaluation_episodes = 2",
    "Trainer.summary_interval = 100",
]


def build(*params, method="taac"):
    loaded = config.load([TASK, f"gin/methods/{method}.gin"], [*SMALL, *params])
    trainer = config.build(experiment.create_experiment)
    loaded.check_used()
    return trainer


class Killed(Exception):
    pass


def run(path, *params, method="taac", until=None):
    """Trains in a folder from wherever it stands; with `until`, dies there as if killed."""
    trainer, folder = build(*params, method=method), RunFolder(path)
    if folder.checkpoint.exists():
        trainer.resume(folder)
    else:
        folder.begin(config.operative_config(), {"seed": trainer.seed, "environment": trainer.environment.name})

    def progress(env_steps, *_):
        if until is not None and env_steps >= until:
            raise Killed

    try:
        trainer.train(folder, progress)
    except Killed:
        pass
    finally:
        trainer.close()
    return trainer


def rows(path):
    with open(RunFolder(path).evaluations) as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def assert_same_parameters(first, second):
    first, second = first.agent.state_dict(), second.agent.state_dict()
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("num_envs", [1, 3])
def test_same_seed_same_bits(tmp_path, num_envs):
    first = run(tmp_path / "a", f"num_envs = {num_envs}")
    second = run(tmp_path / "b", f"num_envs = {num_envs}")
    assert_same_parameters(first, second)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    other = run(tmp_path / "c", f"num_envs = {num_envs}", "create_experiment.seed = 1")
    with pytest.raises(AssertionError):
        assert_same_parameters(first, other)


@pytest.mark.parametrize("num_envs, method", [(1, "taac"), (3, "taac_q"), (2, "sac"), (1, "sac_ez"), (2, "sac_nrep")])
def test_a_killed_run_ends_as_the_run_that_was_never_killed(tmp_path, num_envs, method):
    params = (
        f"num_envs = {num_envs}",
        "replay_length = 150",  # the ring wraps, and is saved in the middle
        "Trainer.checkpoint_interval = 100",
        "evaluation_interval = 150",
        "create_agent.normalize_observations = True",
    )
    whole = run(tmp_path / "whole", *params, method=method)
    for moment in (50, 160, 410, 560):  # 160 and 560: after an evaluation that the last checkpoint does not know of
        killed = run(tmp_path / "killed", *params, method=method, until=moment)
        assert moment <= killed.env_steps < 600
    resumed = run(tmp_path / "killed", *params, method=method)
    assert_same_parameters(whole, resumed)
    assert rows(tmp_path / "whole") == rows(tmp_path / "killed")
    assert resumed.learner.num_updates == whole.learner.num_updates
    assert resumed.env_steps == whole.env_steps


def test_counting_transitions_and_updates():
    """Resets are no environment steps and earn no updates; the ratio is held exactly."""
    trainer = build("num_envs = 3", "create_environment.max_episode_steps = 7", "updates_per_iteration = 2",
                    "unroll_length = 5", "initial_collect_steps = 30")  # fmt: skip
    transitions = 0
    step = trainer.environment.step

    def counted(action):
        nonlocal transitions
        time_step = step(action)
        transitions += int((time_step.step_type != StepType.FIRST).sum())
        return time_step

    trainer.environment.step = counted
    for _ in range(20):
        trainer.collect()
        trainer.learn()
        assert trainer.env_steps == transitions
        assert trainer.learner.num_updates == max(0, transitions - 30) * 2 // 15
    trainer.close()
    # 100 vector steps of 3 environments; episodes of 7 transitions are 8 frames, so 12 resets an environment.
    assert transitions == 3 * (100 - 12)
    assert trainer.episodes == 3 * 12


def test_fewer_updates_than_steps():
    trainer = build("num_envs = 2", "unroll_length = 4", "initial_collect_steps = 8")
    for _ in range(10):
        trainer.collect()
        trainer.learn()
    trainer.close()
    assert trainer.env_steps == 80
    assert trainer.learner.num_updates == (80 - 8) // 8


def test_uniform_collection_ends_with_the_initial_steps(monkeypatch):
    trainer = build("initial_collect_steps = 10")
    kinds = []
    monkeypatch.setattr(type(trainer.agent), "random_step", _spy(type(trainer.agent).random_step, kinds, "random"))
    monkeypatch.setattr(type(trainer.agent), "rollout_step", _spy(type(trainer.agent).rollout_step, kinds, "policy"))
    for _ in range(15):
        trainer.collect()
    trainer.close()
    assert kinds == ["random"] * 10 + ["policy"] * 5


def test_collecting_with_the_untrained_policy(monkeypatch):
    trainer = build("initial_collect_steps = 10", "Trainer.uniform_initial_collect = False")
    kinds = []
    monkeypatch.setattr(type(trainer.agent), "rollout_step", _spy(type(trainer.agent).rollout_step, kinds, "policy"))
    for _ in range(5):
        trainer.collect()
    trainer.close()
    assert kinds == ["policy"] * 5


def _spy(fn, kinds, kind):
    def called(self, time_step, state):
        kinds.append(kind)
        return fn(self, time_step, state)

    return called


def test_a_checkpoint_ends_the_running_episodes_as_truncations(tmp_path):
    trainer = build("num_envs = 2")
    folder = RunFolder(tmp_path / "run")
    folder.begin("", {})
    for _ in range(10):
        trainer.collect()
    reached = trainer.rollout.time_step
    trainer.save(folder)
    trainer.collect()
    trainer.close()
    kept = trainer.replay_buffer._storage.time_step
    assert kept.step_type[:12].tolist() == [[0, 0]] + [[1, 1]] * 9 + [[2, 2]] + [[0, 0]]
    assert kept.discount[:12].eq(1).all()  # cut off, not terminated: LAST still bootstraps
    assert torch.equal(kept.reward[10], reached.reward)  # the last transition is not lost
    assert torch.equal(kept.observation[10], reached.observation)


def test_what_a_run_leaves_behind(tmp_path):
    trainer = run(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert [int(r["env_steps"]) for r in rows(folder.path)] == [300, 600]
    assert [int(r["updates"]) for r in rows(folder.path)] == [0, 300]
    assert all(float(r["length"]) == 200 and int(r["episodes"]) == 2 for r in rows(folder.path))
    counters = checkpoint.load(folder.checkpoint)["counters"]
    assert counters["env_steps"] == 600 and counters["updates"] == trainer.learner.num_updates == 300

    from taac.analysis import runs

    scalars = runs.read_scalars(folder.path)
    assert set(scalars) <= set(known_tags())
    assert set(scalars) >= {"evaluation/return", "rollout/return", "loss/critic", "beta/alpha", "count/decisions"}
    assert scalars["count/update_ratio"].value[-1] == 1.0
    assert scalars["count/decisions"].env_steps.tolist() == [100, 200, 300, 400, 500, 600]
    assert scalars["evaluation/return"].value[-1] == pytest.approx(float(rows(folder.path)[-1]["return_mean"]))


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run(tmp_path / "a", "Trainer.checkpoint_interval = 100", until=250)
    run(tmp_path / "b", "Trainer.checkpoint_interval = 100", "create_experiment.seed = 1", until=250)
    (tmp_path / "a" / "checkpoint.pt").write_bytes((tmp_path / "b" / "checkpoint.pt").read_bytes())
    with pytest.raises(TaacError, match="of a run of another configuration"):
        run(tmp_path / "a", "Trainer.checkpoint_interval = 100")


def test_a_resumed_run_reports_what_the_whole_run_reports(tmp_path):
    """Summaries and checkpoints at intervals that do not divide each other, with episodes that end in between."""
    from taac.analysis import runs

    params = ("Trainer.checkpoint_interval = 170", "create_environment.max_episode_steps = 20")
    run(tmp_path / "whole", *params)
    run(tmp_path / "killed", *params, until=390)
    run(tmp_path / "killed", *params)
    whole, killed = (runs.read_scalars(tmp_path / name)["rollout/return"] for name in ("whole", "killed"))
    assert killed.env_steps.tolist() == whole.env_steps.tolist()
    assert killed.value.tolist() == whole.value.tolist()


def test_both_global_random_streams_go_on_where_they_were(tmp_path):
    """Some environments draw from numpy's."""
    trainer, folder = build(), RunFolder(tmp_path / "run")
    folder.begin("", {})
    trainer.collect()
    np.random.randn()  # leaves half a pair of normals behind
    trainer.save(folder)
    expected = np.random.randn(3).tolist(), torch.rand(3).tolist()
    np.random.seed(9), torch.manual_seed(9)
    trainer.resume(folder)
    assert (np.random.randn(3).tolist(), torch.rand(3).tolist()) == expected
    trainer.close()


def test_only_one_process_trains_in_a_folder(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.lock(), pytest.raises(TaacError, match="another process"), second.lock():
        pass
    with second.lock():
        pass
    assert first.open("") == "new"  # the lock alone is no run


def test_a_run_killed_while_its_folder_was_made_can_begin(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    write = RunFolder._write

    def dies_at_the_second_file(path, text):
        if path.name == "config.gin":
            raise Killed
        write(path, text)

    monkeypatch.setattr(RunFolder, "_write", staticmethod(dies_at_the_second_file))
    with pytest.raises(Killed):
        folder.begin("a configuration", {})
    assert folder.open("a configuration") == "new"


@pytest.mark.parametrize("name, text", [("config.gin", "gamma = 0.9"), ("run.json", '{"mine": 1}')])
def test_a_file_of_the_users_own_is_not_taken_for_a_run(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(TaacError, match="holds no run of taac"):
        RunFolder(tmp_path).open("a configuration")


def test_an_evaluation_without_an_end_stops_the_run():
    trainer = build("Trainer.max_evaluation_steps = 50", "evaluation_episodes = 1")
    from taac.training.evaluation import evaluate

    with pytest.raises(TaacError, match=r"after 50 steps .*max_episode_steps"):
        evaluate(trainer.agent, trainer.evaluation_environment, 1, 0, max_steps=trainer.max_evaluation_steps)
    trainer.close()


@pytest.mark.parametrize("method", ["sac", "taac_l"])
def test_nested_observations_with_an_image(tmp_path, method):
    """A dict of a picture and a tuple of floats and a category, normalised, through an encoder chosen in gin; resumed."""
    params = (
        "create_environment.env_name = 'tests.toy_tasks:taac-test/Camera-v0'", "num_envs = 2", "num_env_steps = 200",
        "initial_collect_steps = 100", "evaluation_interval = 100", "hidden_layers = (16,)", "batch_size = 8",
        "create_agent.normalize_observations = True", "Trainer.checkpoint_interval = 60",
        "ImageEncoder.channels = (4, 8)", "ImageEncoder.kernels = (3, 3)", "ImageEncoder.strides = (2, 1)",
        "ImageEncoder.output_size = 16",
    )  # fmt: skip
    before = build(*params, method=method).agent.state_dict()
    whole = run(tmp_path / "whole", *params, method=method)
    run(tmp_path / "killed", *params, method=method, until=150)
    assert_same_parameters(whole, run(tmp_path / "killed", *params, method=method))
    kept = whole.replay_buffer._storage.time_step
    assert kept.observation["camera"].dtype == torch.uint8 and kept.observation["rest"][1].dtype == torch.int64
    assert kept.observation["rest"][0].dtype == torch.float32 and kept.prev_action.abs().max() <= 1
    convolution = "algorithm.encoder.images.0.convolutions.0.weight"
    assert not torch.equal(before[convolution], whole.agent.state_dict()[convolution])
    assert "taac-test/Camera-v0" in whole.environment.name


def test_derived_seeds_differ():
    seeds = {derived_seed(s, stream, n) for s in range(4) for stream in range(2) for n in range(10)}
    assert len(seeds) == 80 and all(0 <= s < 2**31 for s in seeds)
