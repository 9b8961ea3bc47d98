"""The loop: what counts as a step, when updates are due, and what a run leaves behind."""

from __future__ import annotations

import pytest
import torch

from taac.acting.evaluation import evaluate
from taac.acting.random_numbers import derived_seed
from taac.analysis.readers import events
from taac.data_structures import StepType
from taac.errors import TaacError
from taac.runs.run_folder import RunFolder
from taac.training.summaries import unknown_tags
from tests.training.runs import assert_resumes_exactly, build, rows, run


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
    assert trainer.collector.episodes == 3 * 12


@pytest.mark.parametrize("method, name", [("taac", "TaacAlgorithm"), ("sac_value", "SacAlgorithm")])
def test_targets_move_by_environment_steps(method, name):
    """Every 20 steps, with an update every 8: with updates 3, 5, 8 and 10, at steps 24, 40, 64 and 80."""
    trainer = build(
        "initial_collect_steps = 20", "hidden_layers = (4,)", "UpdateRatio.updates_per_env_step = 0.125", "target_tau = 1.0",
        f"{name}.target_update_env_steps = 20", method=method,
    )  # fmt: skip
    algorithm, moved = trainer.agent.algorithm, []
    slow, followed = algorithm.target_networks()[1]
    while trainer.env_steps < 20 + 85:
        trainer.collect()
        before = trainer.learner.num_updates
        trainer.learn()
        if trainer.learner.num_updates > before and all(map(torch.equal, slow.parameters(), followed.parameters())):
            moved.append((trainer.learner.num_updates, trainer.env_steps - 20))
    trainer.close()
    assert moved == [(3, 24), (5, 40), (8, 64), (10, 80)]


@pytest.mark.parametrize(
    "param",
    ["UpdateRatio.update_clock = 'transitions'", "UpdateRatio.updates_per_env_step = @LinearSchedule()"],
)
def test_environment_steps_of_the_targets_need_a_ratio_that_stays(param):
    schedule = ["LinearSchedule.start = 1.0", "LinearSchedule.end = 0.5", "LinearSchedule.env_steps = 100"]
    with pytest.raises(TaacError, match="target_update_env_steps needs a constant ratio"):
        build("TaacAlgorithm.target_update_env_steps = 20", param, *(schedule if "@" in param else []))


def test_every_option_of_the_sac_family_at_once_by_gin():
    trainer = build(
        "CriticEnsemble.num_critics = 1", "CriticEnsemble.last_init_range = 0.01", "ActorNetwork.head_init_range = 0.02",
        "Temperature.tuning = 'direct'", "Temperature.initial_value = 0.001", "Learner.temperature_learning_rate = 0.5",
        "Learner.actor_learning_rate = 0.002", "Learner.critic_learning_rate = 0.003", "OneStepTDLoss.ignore_done = True",
        "SacAlgorithm.entropy_in_target = False", "SacAlgorithm.dqda_clipping = 0.1",
        "SacAlgorithm.target_entropy = -3.0", "create_agent.normalize_observations = True",
        "create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer", "UpdateRatio.updates_per_env_step = 0.5",
        method="sac",
    )  # fmt: skip
    algorithm = trainer.agent.algorithm
    assert algorithm.critics.last.weight.shape[0] == 1 and algorithm.critics.last.weight.abs().max() <= 0.01
    assert algorithm.actor.head.weight.abs().max() <= 0.02
    rates = {group["lr"] for group in trainer.learner.optimizer.param_groups}
    assert rates == {0.002, 0.003, 0.5}
    for _ in range(330):
        trainer.collect()
        trainer.learn()
    trainer.close()
    assert trainer.learner.num_updates == (trainer.env_steps - 300) // 2
    # The entropy is above its target, and steps of 0.5 would have taken alpha below 0.
    assert algorithm.temperature.alpha() == 0.0
    assert torch.isfinite(torch.cat([p.flatten() for p in algorithm.parameters()])).all()


def test_observations_are_counted_in_rollouts_alone(tmp_path):
    trainer = build("num_envs = 2", "create_agent.normalize_observations = True", "initial_collect_steps = 20")
    folder = RunFolder(tmp_path)
    folder.begin("", {})
    for _ in range(15):
        trainer.collect()
        trainer.learn()
    assert trainer.learner.num_updates > 0
    assert trainer.agent.observation_normalizer.count == 2 * 15
    evaluate(trainer.agent, trainer.evaluation_environment, 1, seed=0)
    trainer.save(folder)
    trainer.close()
    assert trainer.agent.observation_normalizer.count == 2 * 15


@pytest.mark.parametrize("uniform", [True, False])
def test_uniform_collection_ends_with_the_initial_steps(uniform, monkeypatch):
    trainer = build("initial_collect_steps = 10", f"create_collector.uniform_initial_collect = {uniform}")
    kinds = []
    for name in ("random_step", "rollout_step"):
        taken = getattr(trainer.agent, name)
        monkeypatch.setattr(trainer.agent, name, lambda *given, name=name, taken=taken: kinds.append(name) or taken(*given))
    for _ in range(15):
        trainer.collect()
    trainer.close()
    assert kinds == ["random_step" if uniform else "rollout_step"] * 10 + ["rollout_step"] * 5


@pytest.mark.slow
def test_what_a_run_leaves_behind(tmp_path):
    trainer = run(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert [int(r["env_steps"]) for r in rows(folder.path)] == [0, 300, 600]
    assert [int(r["updates"]) for r in rows(folder.path)] == [0, 0, 300]
    assert all(float(r["length"]) == 200 and int(r["episodes"]) == 2 for r in rows(folder.path))
    found = folder.checkpoints.newest()
    counters = found.part("collector")
    assert counters["env_steps"] == 600 and found.num_updates == trainer.learner.num_updates == 300

    scalars = events.read(folder.path).scalars
    assert unknown_tags(list(scalars), {}) == []
    assert set(scalars) >= {"evaluation/return", "rollout/return", "loss/critic", "beta/alpha", "count/decisions"}
    assert scalars["count/update_ratio"].value[-1] == 1.0
    assert scalars["count/decisions"].env_steps.tolist() == [100, 200, 300, 400, 500, 600]
    told = [int(r["training_decisions"]) for r in rows(folder.path)]
    assert told == [0, *scalars["count/decisions"].value[[2, 5]].tolist()] and told[2] == counters["decisions"]
    assert scalars["evaluation/return"].value[-1] == pytest.approx(float(rows(folder.path)[-1]["return_mean"]))


@pytest.mark.slow
def test_nested_observations_with_an_image(tmp_path):
    """A dict of a picture and a tuple of floats and a category, normalised, through an encoder chosen in gin; resumed."""
    params = (
        "create_environment.env_name = 'tests.toy_tasks:taac-test/Camera-v0'", "num_envs = 2", "num_env_steps = 150",
        "initial_collect_steps = 100", "evaluation_interval = 100", "hidden_layers = (16,)", "batch_size = 8",
        "create_agent.normalize_observations = True", "Intervals.checkpoint_interval = 60",
        "ImageEncoder.channels = (4, 8)", "ImageEncoder.kernels = (3, 3)", "ImageEncoder.strides = (2, 1)",
        "ImageEncoder.output_size = 16",
    )  # fmt: skip
    before = build(*params, method="taac_l").agent.state_dict()
    whole, _ = assert_resumes_exactly(tmp_path, *params, method="taac_l", until=[130])
    kept = whole.replay_buffer._storage.time_step
    assert kept.observation["camera"].dtype == torch.uint8 and kept.observation["rest"][1].dtype == torch.int64
    assert kept.observation["rest"][0].dtype == torch.float32 and kept.prev_action.abs().max() <= 1
    convolution = "algorithm.encoder.images.0.convolutions.0.weight"
    assert not torch.equal(before[convolution], whole.agent.state_dict()[convolution])
    assert "taac-test/Camera-v0" in whole.environment.name


def test_derived_seeds_differ():
    seeds = {derived_seed(s, stream, n) for s in range(4) for stream in range(2) for n in range(10)}
    assert len(seeds) == 80 and all(0 <= s < 2**31 for s in seeds)
