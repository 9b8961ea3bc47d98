"""Demonstrations, from a file to the gradient: what algorithms take them for, SQIL's loss and monitors, resuming."""

from __future__ import annotations

import math
from types import SimpleNamespace

import gin
import numpy as np
import pytest
import torch

import tests.toy_tasks  # noqa: F401
from taac import nest
from taac.acting.evaluation import evaluate
from taac.acting.metrics import summarize
from taac.algorithms.agent import Agent
from taac.data_structures import AlgStep, Experience, StepType
from taac.demonstrations.episode_files import EpisodeWriter
from taac.demonstrations.replay import SqilReplay, _groups, demonstrated_frames
from taac.environments.create import create_environment
from taac.errors import TaacError
from taac.replay import Batch
from taac.runs.run_folder import RunFolder
from taac.training import experiment
from taac.training.reporting import SqilMonitor
from tests.algorithms import reference, taac_reference
from tests.algorithms.reference import BATCH, IS_FIRST, STEPS, weights_of
from tests.methods import thinned
from tests.training.runs import (
    assert_resumes_exactly,
    assert_same_parameters,
    built,
    learn_until,
    recorded,
    rows,
    run,
    trained,
)

TASK, POINT = "gin/tasks/simple_control.gin", "taac-test/PointMass-v0"
SMALL = [
    f"create_environment.env_name = '{POINT}'", "num_env_steps = 400", "initial_collect_steps = 100",
    "hidden_layers = (8,)", "batch_size = 8", "replay_length = 1000", "create_experiment.evaluation_envs = 1",
]  # fmt: skip


def build(*params, method="sac", files=()):
    return built([TASK, f"gin/methods/{method}.gin", *files], [*SMALL, *params])


def drive(path, environment, policy, num_episodes, seed=0):
    """Records a policy from frames to actions `[1, A]`. Returns the mean return."""
    writer, total, time_step = EpisodeWriter(path, environment), 0.0, environment.reset(seed)
    while writer.num_episodes < num_episodes:
        action = policy(time_step)
        writer(time_step, AlgStep(action, (), (), torch.ones(1, dtype=torch.bool)))
        time_step = environment.step(action)
        total += float(environment.raw_reward.sum())
    writer.save()
    return total / num_episodes


def binding(path):
    return f"create_experiment.demonstrations = '{path}'"


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    """Three episodes of a point that goes straight to 0, at most 0.1 a step."""
    with gin.unlock_config():
        gin.clear_config()  # of whatever test ran before
    path = tmp_path_factory.mktemp("demonstrations") / "point.npz"
    drive(path, create_environment(POINT), lambda t: (-t.observation / 0.1).clamp(-1, 1), 3)
    return path


def test_episodes_are_padded_to_no_more_than_twice_their_frames():
    lengths = [50] * 70 + [1000, 3, 900, 3, 3, 3, 3]
    episodes = [SimpleNamespace(step_type=torch.zeros(n)) for n in lengths]
    groups = [[len(e.step_type) for e in group] for group in _groups(episodes)]
    assert [n for group in groups for n in group] == lengths
    assert groups == [[50] * 64, [50] * 6, [1000, 3, 900], [3] * 4]


# What recorded actions are taken for ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sac", "taac", "taac_l", "taac_q", "sac_hybrid", "sac_value"])
def test_recorded_rollouts_are_found_again_as_they_were_stored(method, tmp_path, monkeypatch):
    """Frames and info of the buffer, bit for bit; but where going on and a decision are one action, it is going on."""
    monkeypatch.setattr("taac.demonstrations.replay._EPISODES_AT_ONCE", 2)
    trainer = build(method=method)
    stored = recorded(
        trainer, tmp_path / "e.npz", 5, lambda i: trainer.agent.random_step if i < 80 else trainer.agent.rollout_step
    )
    spec = experiment.experience_spec(trainer.environment, trainer.agent)
    frames = demonstrated_frames(str(tmp_path / "e.npz"), trainer.environment, trainer.agent, spec)
    expected = nest.map_structure(lambda *leaves: torch.cat(leaves), *stored)
    count = len(frames.time_step.step_type)
    assert count == 5 * 31
    expected = nest.index(expected, slice(0, count))
    acted = ~frames.time_step.is_last()
    for (path, x), (_, y) in zip(nest.flatten_with_path(frames), nest.flatten_with_path(expected)):
        assert x.dtype == y.dtype and x.shape == y.shape, path
        if path == "rollout_info/switch":
            assert not (x & ~y)[acted].any() and (x == y)[acted].float().mean() > 0.9, path
        elif path in ("rollout_info/tau_prev/v", "rollout_info/tau_prev/u"):
            assert (x == y).float().mean() > 0.9, path  # a clamped action may be reached with other speeds
        else:
            assert torch.equal(x, y), path


def test_a_demonstrator_that_never_repeats_decides_at_every_step(demonstrations):
    """Then no compare-through return reaches through a demonstrated step."""
    trainer = build(method="taac")
    spec = experiment.experience_spec(trainer.environment, trainer.agent)
    noisy = demonstrations.with_name("noisy.npz")
    drive(noisy, create_environment(POINT), lambda t: torch.rand(1, 1) * 2 - 1, 2)
    frames = demonstrated_frames(str(noisy), trainer.environment, trainer.agent, spec)
    assert frames.rollout_info.switch.all()
    straight = demonstrated_frames(str(demonstrations), trainer.environment, trainer.agent, spec)
    assert 0.05 < straight.rollout_info.switch.float().mean() < 0.5  # full speed, then at rest
    trainer.close()


@pytest.mark.parametrize("method, stored", [("sac_ntd", "pre_tanh"), ("temporl", "decided"), ("tla", "slow_action")])
def test_methods_that_store_more_than_actions_contain_are_refused(method, stored, demonstrations):
    with pytest.raises(TaacError, match=rf"cannot learn from demonstrations: it stores .*{stored}.* of its rollouts"):
        build(binding(demonstrations), method=method)


# SQIL's loss ----------------------------------------------------------------------------------------------------------


def sqil_of(experience):
    """A `SqilReplay` whose buffers hold nothing but the columns of one batch, the demonstrations first."""
    replay = object.__new__(SqilReplay)

    class Columns:
        def __init__(self, columns):
            self.sample = lambda batch_size, length: nest.index(experience, (slice(None), columns))
            self.sample_batch = lambda batch_size, length, progress: Batch(self.sample(batch_size, length), None, None)

    replay.demonstrations, replay.agents = Columns(slice(0, BATCH // 2)), Columns(slice(BATCH // 2, BATCH))
    return replay


def rewarded(experience):
    """By hand: 1 at each transition of the first half, 0 elsewhere."""
    reward = torch.zeros(STEPS, BATCH, dtype=torch.float64)
    for t in range(STEPS):
        for b in range(BATCH // 2):
            reward[t, b] = 0.0 if IS_FIRST[t, b] else 1.0
    return experience._replace(time_step=experience.time_step._replace(reward=reward))


# SQIL's monitors ------------------------------------------------------------------------------------------------------


def policy_objective(algorithm, experience, noise):
    """Mean over frames of `alpha log pi - beta_1 min_i Q_i`, beta_1 as of `beta`; nothing of it is differentiated."""
    features = algorithm.encoder(experience.time_step.observation)
    if hasattr(algorithm, "trajectory"):
        tau = experience.rollout_info.tau_prev
        mean, log_std = algorithm.actor(algorithm.tau_embedding(features, tau))
        alpha = algorithm.action_temperature.value.exp()
    else:
        tau, (mean, log_std) = None, algorithm.actor(features)
        alpha = algorithm.temperature.value.exp()
    action = torch.tanh(mean + log_std.exp() * noise)
    density = torch.exp(-0.5 * noise**2) / (log_std.exp() * math.sqrt(2 * math.pi)) / (1 - action**2)
    if tau is None:
        return alpha * density.prod(-1).log(), algorithm.critics(features, action).amin(0), None
    parts = taac_reference.start("constant", action, [tau.a])
    q_1 = algorithm.critics(features, *parts).amin(0)
    q_0 = algorithm.critics(features, *taac_reference.advance("constant", [tau.a])).amin(0)
    return alpha * density.prod(-1).log(), q_1, torch.sigmoid((q_1 - q_0) / algorithm.beta_temperature.value.exp())


@torch.no_grad()
def numeric_policy_gradient(algorithm, experience, noise, step=1e-6):
    """By central differences, of every parameter of the actor, as a vector."""
    acted = (~experience.time_step.is_last()).double()
    _, _, beta_1 = policy_objective(algorithm, experience, noise)

    def objective():
        log_pi, q, _ = policy_objective(algorithm, experience, noise)
        return ((log_pi - (1.0 if beta_1 is None else beta_1) * q) * acted).sum().item()

    gradient = []
    for parameter in algorithm.parameter_groups()["actor"]:
        for i in range(parameter.numel()):
            flat, value = parameter.view(-1), parameter.view(-1)[i].item()
            flat[i] = value + step
            up = objective()
            flat[i] = value - step
            gradient.append((up - objective()) / (2 * step))
            flat[i] = value
    return np.array(gradient)


@pytest.mark.parametrize("backbone", ["sac", "taac"])
def test_the_monitors_are_those_of_finite_differences(backbone, monkeypatch):
    if backbone == "sac":
        settings = reference.SAC
        algorithm, experience = reference.sac(settings), Experience(reference.replayed(settings["spec"]), ())
    else:
        settings = taac_reference.TAAC
        algorithm, experience = taac_reference.taac(settings), taac_reference.experience_of(settings)
    replay = sqil_of(experience)
    draws = {"randn_like": [], "rand_like": []}
    for name, kept in draws.items():
        drawn = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda x, drawn=drawn, kept=kept: kept.append(drawn(x)) or kept[-1])
    before = {name: p.clone() for name, p in algorithm.state_dict().items()}
    torch.manual_seed(11)
    values = SqilMonitor()(Agent(algorithm), replay, BATCH, STEPS)
    assert all(torch.equal(p, before[name]) for name, p in algorithm.state_dict().items())
    assert all(p.grad is None for p in algorithm.parameters())

    demonstrated, own = replay.halves(BATCH, STEPS)
    halves, noises = (demonstrated, own.experience), draws["randn_like"]
    assert len(noises) == 2
    first, second = (numeric_policy_gradient(algorithm, half, noise) for half, noise in zip(halves, noises))
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert abs(cosine) < 0.999  # the halves do not agree by themselves
    assert values["sqil/gradient_cosine"].item() == pytest.approx(cosine, abs=1e-6)

    for number, name in enumerate(("demonstrations", "agent")):
        half, acted = halves[number], ~halves[number].time_step.is_last()
        with torch.no_grad():
            alpha_log_pi, _, _ = policy_objective(algorithm, half, noises[number])
        alpha = next(iter(algorithm.temperatures().values())).value.exp().item()
        assert values[f"sqil/entropy_{name}"].item() == pytest.approx(-alpha_log_pi[acted].mean().item() / alpha)
        monkeypatch.setattr(torch, "randn_like", lambda x, number=number: noises[number])
        monkeypatch.setattr(torch, "rand_like", lambda x, number=number: draws["rand_like"][number])
        info = algorithm.train_step(half)
        expected = td_error(algorithm, rewarded(experience), info, number * (BATCH // 2))
        assert values[f"sqil/actor_loss_{name}"].item() == pytest.approx(info.actor_loss[acted].mean().item())
        assert values[f"sqil/td_error_{name}"].item() == pytest.approx(expected)
    assert values["sqil/td_error_demonstrations"] != values["sqil/td_error_agent"]


@torch.no_grad()
def td_error(algorithm, experience, info, first):
    """Mean over frames of a half, its columns from `first` on, of `sum_i (Q_i - G)^2`, one frame at a time."""
    weights, time_step, errors = weights_of(algorithm), experience.time_step, []
    tau = getattr(experience.rollout_info, "tau_prev", None)
    executed = time_step.prev_action if tau is None else tau.a
    values, stop = ([[None] * BATCH for _ in range(STEPS)] for _ in range(2))
    for t in range(STEPS):
        for b in range(BATCH // 2):
            values[t][first + b] = info.value[t, b].reshape(1)
            stop[t][first + b] = True if tau is None else bool(info.switch[t, b])
    for t in range(STEPS - 1):
        for b in range(first, first + BATCH // 2):
            if not time_step.is_last()[t, b]:
                target = reference.forward_return(time_step, values, stop, t, b, (0.875,))
                q = reference.critics(weights, "critics", time_step.observation[t, b].double(), executed[t + 1, b])
                errors.append(sum((q_i - target) ** 2 for q_i in q).item())
    return sum(errors) / len(errors)


@pytest.mark.parametrize("critics", [[], ["CriticEnsemble.body = @MlpBody", "MlpBody.norm = @BatchNorm"]])
def test_the_monitor_looks_and_touches_nothing(demonstrations, critics):
    """A run with it ends as one without, bit for bit; and before the first update there is nothing to look at."""

    def trained(monitor, interval):
        trainer = build(binding(demonstrations), *critics, f"Intervals.summary_interval = {interval}", method="sqil_sac")
        told: list[dict] = []
        trainer.reporter.training = told.append
        while trainer.learner.num_updates < 30:
            trainer.collect()
            trainer.learn()
            if monitor:
                trainer.summarize()
        trainer.close()
        for values in told:
            seen = [values[tag] for tag in values if tag.startswith("sqil/")]
            assert all(x.dim() == 0 and bool(x.isfinite()) and not x.requires_grad for x in seen)
        assert not monitor or seen
        return trainer

    assert_same_parameters(trained(True, 10), trained(False, 1000))


def test_the_monitor_needs_two_halves(demonstrations):
    with pytest.raises(TaacError, match=r"bind create_experiment.demonstrations_ctor = @SqilReplay"):
        build(binding(demonstrations), "Reporter.monitor = @SqilMonitor()")


# The run --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sqil_taac", "taac_l", "sqil_sac"])
def test_a_killed_run_with_demonstrations_ends_as_if_it_had_not_been(method, demonstrations, tmp_path):
    more = [binding(demonstrations), *SMALL, "replay_length = 150", "Intervals.checkpoint_interval = 100",
            "evaluation_interval = 150", "evaluation_episodes = 1", "Intervals.summary_interval = 50"]  # fmt: skip
    assert_resumes_exactly(tmp_path, *more, method=method, until=[340])

    from taac.analysis.readers import events

    scalars = events.read(tmp_path / "whole").scalars
    monitored = {tag for tag in scalars if tag.startswith("sqil/")}
    assert len(monitored) == (7 if method.startswith("sqil") else 0)
    for tag in monitored:  # at summaries, from the first after the first update on
        assert scalars[tag].env_steps.tolist() == [150, 200, 250, 300, 350, 400]


def test_prefilling_counts_for_nothing(demonstrations):
    """Neither as environment steps nor towards the initial collection; the frames are the oldest in the buffer."""
    trainer = build(binding(demonstrations), "initial_collect_steps = 20")
    assert trainer.replay_buffer.size == 3 * 31
    assert trainer.env_steps == trainer.collector.episodes == trainer.collector.decisions == 0
    while trainer.learner.num_updates == 0:
        trainer.collect()
        trainer.learn()
    trainer.close()
    assert trainer.env_steps == 21 and trainer.replay_buffer.size == 3 * 31 + 21
    assert trainer.collector.rollout.time_step.observation.shape == (1, 1)


@pytest.mark.parametrize("num_envs, method, held", [(1, "sac", 3 * 31), (31, "taac", 3)])
def test_without_the_replay_buffer_demonstrations_do_not_stand_for_what_was_collected(
    num_envs, method, held, demonstrations, tmp_path, monkeypatch
):
    """It is refilled before updates continue, even if the demonstrations are shorter than a segment of 4 frames."""
    params = [*SMALL, binding(demonstrations), f"num_envs = {num_envs}", "Intervals.checkpoint_interval = 150",
              "initial_collect_steps = 124", "evaluation_episodes = 1", "Saving.save_replay = False"]  # fmt: skip
    run(tmp_path / "run", *params, method=method, until=200)
    trainer, folder = build(*params, method=method), RunFolder(tmp_path / "run")
    trainer.resume(folder)
    steps, updates = trainer.env_steps, trainer.learner.num_updates
    assert updates > 0 and trainer.replay_buffer.size == held
    asked: list[int] = []  # by the monitor, which has no segments of the agent's yet
    monkeypatch.setattr(trainer.reporter, "monitor", lambda *given: asked.append(trainer.env_steps) or {})
    monkeypatch.setattr(trainer.reporter, "training", lambda values: None)
    while trainer.env_steps <= steps + 124:
        assert trainer.learner.num_updates == updates
        trainer.collect()
        trainer.learn()
        trainer.summarize()
    trainer.close()
    assert trainer.learner.num_updates == updates + 1 and steps + 124 - num_envs <= min(asked)


OFFLINE = ["create_experiment.offline = True", "num_env_steps = 60", "evaluation_interval = 20", "evaluation_episodes = 2",
           "create_agent.normalize_observations = True", "normalize_rewards = 'scale'"]  # fmt: skip


@pytest.mark.parametrize("method", ["sac", "taac"])
def test_an_offline_run_takes_no_step_and_counts_as_if_it_did(method, demonstrations, monkeypatch):
    """Statistics are those of the demonstrations, each frame of which counts once."""
    trainer = build(binding(demonstrations), *OFFLINE, method=method)
    monkeypatch.setattr(trainer.environment, "step", None)
    monkeypatch.setattr(trainer.environment, "reset", None)
    held = trainer.replay_buffer.stored().time_step
    while trainer.env_steps < 60:
        trainer.collect()
        trainer.learn()
    trainer.close()
    assert trainer.learner.num_updates == 60 and trainer.collector.episodes == 0
    assert trainer.replay_buffer.added == len(held.step_type)
    normalizer, scaler = trainer.agent.observation_normalizer, trainer.agent.reward_normalizer
    assert normalizer.count == held.step_type.numel() and scaler.count == (held.step_type != StepType.FIRST).sum()
    torch.testing.assert_close(normalizer.mean_0, held.observation.double().mean((0, 1)))
    running, found = torch.zeros(held.step_type.shape[1]), []
    for kind, reward in zip(held.step_type, held.reward):
        running = torch.where(kind == StepType.FIRST, 0.0, scaler.gamma * running + reward)
        found.append(running[kind != StepType.FIRST])
    assert float(scaler.mean) == pytest.approx(torch.cat(found).double().mean().item(), rel=1e-5)


@pytest.mark.parametrize("saved", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_killed_offline_run_ends_as_if_it_had_not_been(saved, demonstrations, tmp_path):
    params = [*SMALL, binding(demonstrations), *OFFLINE, "Intervals.checkpoint_interval = 15", f"Saving.save_replay = {saved}"]
    assert_resumes_exactly(tmp_path, *params, method="taac", until=[40])
    assert [int(row["env_steps"]) for row in rows(tmp_path / "whole")] == [0, 20, 40, 60]


@pytest.mark.parametrize(
    "params, message",
    [
        ([], "learns from the first content of the replay buffer, which is empty: bind create_experiment.demonstrations"),
        (["create_experiment.demonstrations_ctor = @SqilReplay", "normalize_rewards = False"], "which is empty"),
        (["create_experiment.demonstrations_ctor = @SqilReplay"], "SqilReplay sets rewards to 1 and 0, and .*: bind False"),
        (["create_collector.explorer = @ZetaExplorer()"], "explorer has no effect with create_experiment.offline"),
        (["create_experiment.collectors = 1"], "collectors has no effect with create_experiment.offline"),
        (["create_agent.reward_signals = (@GAIL,)"], "GAIL would compare these with themselves"),
    ],
)
def test_what_an_offline_run_would_not_use_is_refused(params, message, demonstrations):
    given = [binding(demonstrations)] if params else []
    with pytest.raises(TaacError, match=message):
        build(*given, "create_experiment.offline = True", *params)


def test_an_offline_run_with_too_few_frames_for_each_environment(demonstrations):
    params = ["create_experiment.offline = True", "num_envs = 40", "Trainer.segment_length = 4"]
    with pytest.raises(TaacError, match=r"demonstrations are \d+ for each of 40 environments; lower num_envs, or record more"):
        build(binding(demonstrations), *params)


@pytest.mark.parametrize("ctor, counts", [("prefilled", True), ("HalfDemonstrations", True), ("kept_apart", False)])
def test_demonstrated_returns_count_for_the_scale_where_their_rewards_are_learnt(ctor, counts, demonstrations):
    params = ["normalize_rewards = 'scale'", f"create_experiment.demonstrations_ctor = @{ctor}"]
    trainer = build(binding(demonstrations), *params, files=["gin/cloning.gin"])
    scaler, sums = trainer.agent.reward_normalizer, []
    frames = trainer.learner.demonstrations._storage.time_step
    for kind, reward in zip(frames.step_type[:, 0].tolist(), frames.reward[:, 0].tolist()):
        sums.append(0.0 if kind == StepType.FIRST else scaler.gamma * sums[-1] + reward)
    kept = [x for x, kind in zip(sums, frames.step_type[:, 0].tolist()) if kind != StepType.FIRST] if counts else []
    assert int(scaler.count) == len(kept)
    assert float(scaler.mean) == pytest.approx(np.mean(kept) if kept else 0.0)
    assert scaler.returns.tolist() == [0.0]
    trainer.close()


def test_an_offline_run_may_clone(demonstrations):
    params = [binding(demonstrations), "create_experiment.offline = True", "Cloning.pretraining_updates = 3", "num_env_steps = 9"]
    with pytest.raises(TaacError, match=r"demonstrations_ctor to @prefilled, the default, where another is bound, as for behav"):
        build(*params, files=["gin/cloning.gin"])
    trainer = build(*params, "create_experiment.demonstrations_ctor = @prefilled", files=["gin/cloning.gin"])
    learn_until(trainer, 3)
    trainer.close()


def test_an_offline_run_learns_no_price(demonstrations):
    params = [binding(demonstrations), "create_experiment.offline = True", "TaacAlgorithm.target_decision_rate = 0.2"]
    with pytest.raises(TaacError, match=r"learns a price from decisions in rollouts, and .* has none"):
        build(*params, method="taac")


@pytest.mark.slow
def test_an_offline_run_learns_from_random_episodes(tmp_path):
    """To stay near 0, which returns about -4; the random episodes return far less."""
    returned = drive(tmp_path / "random.npz", create_environment(POINT), lambda t: 2 * torch.rand(1, 1) - 1, 60)
    trainer = build(
        binding(tmp_path / "random.npz"), "create_experiment.offline = True", "num_env_steps = 1500", "learning_rate = 3e-3",
        "target_tau = 0.05", "hidden_layers = (32, 32)", "batch_size = 64", "gamma = 0.95", "replay_length = 10000",
        "normalize_rewards = False", "reward_clip = None",
    )  # fmt: skip
    learn_until(trainer, 1500)
    found = summarize(evaluate(trainer.agent, trainer.evaluation_environment, 10, 0)).return_mean
    trainer.close()
    assert returned < -20 and found > -8, (returned, found)


def test_sqil_without_demonstrations_or_with_a_batch_of_one_is_refused(demonstrations):
    with pytest.raises(TaacError, match=r"this method learns from demonstrations: bind create_experiment.demonstr"):
        build(method="sqil_taac")
    with pytest.raises(TaacError, match=r"Trainer.batch_size must be 2 or more with SqilReplay, got 1"):
        build(binding(demonstrations), "batch_size = 1", method="sqil_sac")
    build(binding(demonstrations), "batch_size = 1").close()


def test_fewer_demonstrations_than_a_segment_are_refused(tmp_path):
    environment = create_environment(POINT, max_episode_steps=1)
    drive(tmp_path / "short.npz", environment, lambda t: torch.zeros(1, 1), 1)
    with pytest.raises(TaacError, match=r"demonstrations have 2 frames, fewer than Trainer.segment_length = 4"):
        build(binding(tmp_path / "short.npz"), method="sqil_taac")


WITH_SQIL = ["sac_value", "sac_krep", "sac_ez", "sac_nrep", "sdar", "taac_q", "td3"]


@pytest.mark.parametrize("method", thinned(WITH_SQIL, ("sac_krep", "sac_nrep", "sdar", "td3")))
def test_sqil_after_any_method_that_can_learn_from_demonstrations(method, tmp_path):
    plain = build(method=method)
    recorded(plain, tmp_path / "e.npz", 2, lambda i: plain.agent.random_step)
    trainer = build(binding(tmp_path / "e.npz"), method=method, files=["gin/sqil.gin"])
    learn_until(trainer, 3)
    batch = trainer.replay.sample_batch(8, 2).experience.time_step
    assert batch.reward[1][batch.step_type[1] != StepType.FIRST].unique().tolist() == [0, 1]
    told = trainer.reporter.monitor(trainer.agent, trainer.replay, 8, trainer.segment_length)
    assert len(told) == (5 if method == "td3" else 7)
    trainer.close()


CHUNKS = {
    "sac_chunk": [  # as published, on demonstrations
        "SacAlgorithm.entropy_in_target = False", "CriticEnsemble.num_critics = 10", "SacAlgorithm.actor_on_last_frame = False",
        "SacChunkAlgorithm.keep_cut_windows = False", "SacChunkAlgorithm.best_of = 4",
    ],
    "taac_chunk": ["ActorCriticAlgorithm.critic_ctor = @PrefixCritics", "PrefixCritics.hidden_layers = (8,)"],
}  # fmt: skip


@pytest.mark.parametrize("method", CHUNKS)
def test_half_demonstrations_for_methods_on_chunks(method, demonstrations):
    trainer = build(binding(demonstrations), *CHUNKS[method], method=method, files=["gin/half_demonstrations.gin"])
    before = [p.clone() for p in trainer.agent.algorithm.parameters()]
    learn_until(trainer, 3)
    assert sum(not torch.equal(p, old) for p, old in zip(trainer.agent.algorithm.parameters(), before)) > 10
    if method == "taac_chunk":  # chunks of five, but where episodes begin
        half = trainer.replay.sample_batch(64, 6).experience
        switch = half.rollout_info.switch[:, :32].float()
        inside = (half.time_step.step_type[:, :32] == StepType.MID).all(0)
        assert inside.any() and switch[:5, inside].sum(0).unique().tolist() == [1.0]
    trainer.close()


@pytest.mark.parametrize("method", ["sqil_sac", "sqil_taac"])
def test_sqil_with_prioritised_replay_of_the_agent_s_frames(method, demonstrations):
    """Demonstrations count 1, and the agent's frames on average; priorities are moved by the errors of that half alone."""
    more = "create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer"
    trainer = build(binding(demonstrations), more, method=method)
    update, seen = trainer.replay.update_priorities, []
    trainer.replay.update_priorities = lambda *given: seen.append(given) or update(*given)
    trained(trainer, 60)
    (_, weights, indices, *_), error = seen[-1]
    assert weights[:4].tolist() == [1] * 4 and len(weights) == 8
    assert any(len(batch.weights[4:].unique()) > 1 for batch, _ in seen)
    assert all(batch.weights[4:].mean().item() == pytest.approx(1.0) for batch, _ in seen)
    tree, own = trainer.replay_buffer, error[4:].double()
    priority = (own + tree.epsilon) ** tree.alpha
    for item, expected in zip(indices, priority):  # of a segment drawn twice the greater counts
        mass = tree._tree.masses[item]
        assert mass >= expected - 1e-12 and (priority - mass).abs().min() < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sqil_sac", "sqil_taac"])
def test_sqil_learns_from_demonstrations_alone(method, demonstrations):
    """To drive to 0, which returns about -4: standing still returns about -25. The task's reward is never seen."""
    trainer = build(
        binding(demonstrations), "learning_rate = 5e-3", "target_tau = 0.05", "hidden_layers = (32, 32)",
        "batch_size = 64", "initial_collect_steps = 300", "num_env_steps = 2000", "replay_length = 10000",
        "gamma = 0.95", method=method,
    )  # fmt: skip
    trained(trainer, 500)
    result = summarize(evaluate(trainer.agent, trainer.evaluation_environment, 20, seed=7))
    assert result.return_mean > -7, result
