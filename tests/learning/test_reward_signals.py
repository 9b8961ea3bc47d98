"""Reward signals and behaviour cloning in a run: parts of the reward, cadence, pretraining, resuming, refusals, imitation."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

import tests.toy_tasks  # noqa: F401
from taac import configuration, nest
from taac.acting.evaluation import evaluate
from taac.acting.metrics import summarize
from taac.analysis.readers import events
from taac.data_structures import FIRST, LAST
from taac.environments.create import create_environment
from taac.errors import DivergedError, TaacError
from taac.learning.optimizers import TensorFlowAdam
from taac.networks.batch_statistics import batch_statistics
from taac.networks.bodies import projections
from taac.runs import checkpoint
from taac.training import experiment
from tests.demonstrations.test_imitation import POINT, SMALL, binding, build, drive
from tests.environments.team import TEAM
from tests.environments.toys import env_id
from tests.methods import DISCRETE_METHODS, REPRESENTATIVES, fitting
from tests.training.runs import assert_resumes_exactly, assert_same_parameters, recorded, run, trained

CPU = torch.device("cpu")
SIGNALS = "create_agent.reward_signals = (@ICM, @RND)"
TWO = "create_environment.env_name = 'taac-test/TwoRewards-v0'"


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory):
    """Three episodes of a point that goes straight to 0, at most 0.1 a step."""
    path = tmp_path_factory.mktemp("demonstrations") / "point.npz"
    drive(path, create_environment(POINT), lambda t: (-t.observation / 0.1).clamp(-1, 1), 3)
    return path


def clones(modules):
    return {name: value.clone() for name, value in modules.state_dict().items()}


# Parts of the reward --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", REPRESENTATIVES)
def test_every_method_learns_the_signals_as_parts_of_its_reward(method):
    """The task's first, then the signals' as they are named, with strengths for weights and a discount each."""
    trainer = build(
        *fitting(method), SIGNALS, "ICM.strength = 0.25", "RND.strength = -0.5", "RND.gamma = 0.5", "gamma = 0.9",
        "create_agent.task_strength = 2.0", method=method,
    )  # fmt: skip
    algorithm = trainer.agent.algorithm
    assert algorithm.reward_weights == (2.0, 0.25, -0.5)
    assert algorithm.td_loss.gamma.tolist() == pytest.approx([0.9, 0.9, 0.5])
    before = clones(trainer.agent)
    trained(trainer, 2)
    experience = trainer.agent.prepare(trainer.replay_buffer.sample(4, trainer.segment_length))
    assert experience.time_step.reward.shape == (trainer.segment_length, 4, 3)
    assert {"signal/icm_reward", "signal/icm_loss", "signal/rnd_reward", "signal/rnd_loss"} <= set(trainer.learner.losses)
    after = trainer.agent.state_dict()
    moved = {
        name.split(".")[1] for name in before if "reward_signals" in name and not torch.equal(before[name], after[name])
    }
    assert moved == {"icm", "rnd"}
    fixed = [name for name in before if ".fixed" in name]
    assert fixed and all(torch.equal(before[name], after[name]) for name in fixed)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", [POINT, "taac-test/TwoRewards-v0"])
def test_the_parts_of_a_prepared_batch(name, normalize):
    """The task's own are what they would be alone, normalised or not; each signal's are those it gives."""
    own = 2 if "Two" in name else 1
    more = [f"create_environment.env_name = '{name}'", f"normalize_rewards = {normalize}",
            "create_agent.normalize_observations = True"]  # fmt: skip
    with_signals, alone = build(SIGNALS, *more), build(*more)
    for trainer in (with_signals, alone):
        for _ in range(40):
            trainer.collect()
        trainer.close()
    batch = with_signals.replay_buffer.sample(16, 4)
    alone.agent.observation_normalizer.load_state_dict(with_signals.agent.observation_normalizer.state_dict())
    expected = alone.agent.prepare(batch).time_step
    signals = nest.map_structure(lambda x: x, with_signals.agent.signals)
    states = [clones(signal) for signal in signals]
    given = with_signals.agent.prepare(batch).time_step
    assert torch.equal(given.reward[..., :own].squeeze(-1) if own == 1 else given.reward[..., :own], expected.reward)
    for number, (signal, state) in enumerate(zip(signals, states)):
        signal.load_state_dict(state)
        assert torch.equal(given.reward[..., own + number], signal(expected))  # of normalised observations
        assert given.reward[1:, :, own + number].any()
    assert [signal.name for signal in signals] == ["icm", "rnd"]


def test_strengths_and_discounts_beside_a_reward_that_is_a_vector():
    trainer = build(TWO, SIGNALS, "create_agent.task_strength = (1.0, 0.5)", "ICM.gamma = 0.25",
                    "gamma = (0.9, 0.8, 0.7, 0.6)")  # fmt: skip
    trainer.close()
    assert trainer.agent.algorithm.reward_weights == pytest.approx((1.0, 0.5, 0.1, 0.1))
    assert trainer.agent.algorithm.td_loss.gamma.tolist() == pytest.approx([0.9, 0.8, 0.25, 0.6])
    falling = "create_agent.task_strength = (@a/LinearSchedule(), @b/LinearSchedule())"
    of_a, of_b = ([f"{s}/LinearSchedule.start = {x}", f"{s}/LinearSchedule.end = 0.5"] for s, x in (("a", 1.0), ("b", 0.0)))
    two = build(TWO, SIGNALS, falling, *of_a, *of_b, "LinearSchedule.env_steps = 100")
    assert {f"create_agent.task_strength[{i}]" for i in range(2)} <= {s.name for s in two.agent.algorithm.scheduled}
    two.close()
    one = build(TWO, SIGNALS, "create_agent.task_strength = 3.0")
    one.close()
    assert one.agent.algorithm.reward_weights == pytest.approx((3.0, 3.0, 0.1, 0.1))


def test_signals_do_not_see_which_choices_are_valid(monkeypatch):
    """Their rewards, losses and returns are of frames without the mask, as those of the policy's networks."""
    masked = [f"create_environment.env_name = '{env_id('Masked')}'", "Intervals.summary_interval = 100"]
    trainer, seen = build(*masked, SIGNALS, "RND.batch_size = 4", "Learner.diagnostics = 'scalars'", method="sac_discrete"), []
    for signal in trainer.agent.signals:
        for name in ("reward", "loss"):
            own = getattr(signal, name)
            spy = lambda given, *more, own=own: seen.append(given.observation) or own(given, *more)  # noqa: E731
            monkeypatch.setattr(signal, name, spy)
    trained(trainer, 3)
    assert len(seen) > 12 and trainer.collector.signal_returns and all([*given] == ["numbers"] for given in seen)
    encoders = [trainer.agent.signals[0].pairs.observation, trainer.agent.signals[1].encoder]
    assert [encoder.output_size for encoder in encoders] == [5, 5]


# Cadence, clipping, and what is not there ------------------------------------------------------------------------------


def test_a_signal_learns_in_its_own_time():
    """Every third update, from the first; in between neither its parameters nor its place in Adam's equation move."""
    trainer = build(SIGNALS, "RND.update_period = 3", "RND.learning_rate = 1e-2", "ICM.learning_rate = 1e-4")
    icm, rnd = trainer.agent.signals
    groups = {id(p): group for group in trainer.learner.optimizer.param_groups for p in group["params"]}
    of_rnd, of_icm = (groups[id(next(p for p in s.parameters() if p.requires_grad))] for s in (rnd, icm))
    assert (of_rnd["lr"], of_icm["lr"]) == (1e-2, 1e-4)
    moved, losses = [], []
    for update in range(1, 8):
        before = [p.clone() for p in rnd.parameters()]
        icm_before = [p.clone() for p in icm.parameters()]
        trained(trainer, update)
        moved.append(any(not torch.equal(p, q) for p, q in zip(before, rnd.parameters())))
        assert any(not torch.equal(p, q) for p, q in zip(icm_before, icm.parameters()))
        losses.append(trainer.learner.losses["signal/rnd_loss"].item())
    assert moved == [True, False, False, True, False, False, True]
    assert losses[0] == losses[1] == losses[2] != losses[3] == losses[4] == losses[5] != losses[6]
    assert (of_rnd["num_steps"], of_icm["num_steps"]) == (3, 7)
    state = trainer.learner.optimizer.state
    assert {int(state[p]["step"]) for p in rnd.parameters() if p.requires_grad} == {3}


def test_a_signal_may_learn_more_often_than_the_algorithm(demonstrations):
    """Its first step is taken with the algorithm's, the others on new batches; the algorithm moves as it would alone."""
    parts = [binding(demonstrations), "Learner.max_grad_norm = 1.0", "create_agent.task_strength = 2.0"]
    often = build(*parts, "GAIL.update_period = 0.25", method="sac", files=["gin/gail.gin"])
    seen, actor = looked_at(often.agent.signals[0]), next(often.agent.algorithm.actor.parameters())
    step, moved = often.learner.optimizer.step_fused, []

    def watched(found_inf):
        before = actor.detach().clone()
        step(found_inf)
        moved.append(not torch.equal(before, actor))

    often.learner.optimizer.step_fused = watched
    trained(often, 3)
    assert moved == [True, False, False, False] * 3 and often.learner.num_updates == 3
    assert len(seen) == 12 and len({float(own.observation.sum()) for own, _ in seen}) == 12
    assert {(own.step_type.shape, shown.step_type.shape) for own, shown in seen} == {(torch.Size([2, 8]),) * 2}
    steps = dict(zip(often.learner.group_names, (g["num_steps"] for g in often.learner.optimizer.param_groups)))
    assert steps == {"actor": 3, "critic": 3, "temperature": 3, "gail": 12}


def test_further_steps_have_the_size_of_a_signals_own_batches_and_the_norm_is_of_the_algorithms():
    trainer = build(SIGNALS, "RND.update_period = 0.5", "RND.batch_size = 5", method="sac")
    seen = looked_at(trainer.agent.signals[1])
    trained(trainer, 3)
    assert [own.step_type.shape[1] for own, _ in seen] == [5] * 6
    assert trainer.learner.summary()["gradient/total"] > 0


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_signal_that_diverges_alone_is_found(monkeypatch, where):
    """The algorithm's own loss and gradients are finite."""
    trainer = trained(build(SIGNALS), 2)
    rnd, before = trainer.agent.signals[1], clones(trainer.agent)
    learnt = [p for p in rnd.parameters() if p.requires_grad]

    def loss(*_):
        finite = learnt[0].sum() * 0.0
        return finite + float("nan") if where == "loss" else finite.sqrt()  # whose slope at 0 is infinite

    monkeypatch.setattr(rnd, "loss", loss)
    with pytest.raises(DivergedError, match="update 3 was not taken"):
        trainer.learner.update(trainer.replay_buffer.sample(trainer.batch_size, trainer.segment_length))
    for name, value in clones(trainer.agent.algorithm).items():
        assert torch.equal(value, before[f"algorithm.{name}"]), name


def test_each_signals_own_reward_is_summarised(monkeypatch):
    trainer = build(SIGNALS)
    for number, signal in enumerate(trainer.agent.signals):
        # FIRST is arrived at by no action: what a signal says there is no reward
        monkeypatch.setattr(signal, "forward", lambda t, n=number: torch.where(t.is_first(), 99.0, 2.0 + n))
    sample = trainer.replay_buffer.sample

    def with_a_first(*args):
        experience = sample(*args)
        experience.time_step.step_type[1, 0] = FIRST
        return experience

    monkeypatch.setattr(trainer.replay_buffer, "sample", with_a_first)
    trained(trainer, 1)
    assert [trainer.learner.losses[f"signal/{name}_reward"].item() for name in ("icm", "rnd")] == [2.0, 3.0]


def test_clipping_leaves_signals_out():
    """The algorithm's gradient is clipped to the norm whatever the signals' is, and theirs is not."""
    trainer = build(SIGNALS, "Learner.max_grad_norm = 1e-3")
    trained(trainer, 1)
    norm = {
        of: torch.stack([p.grad.norm() for p in module.parameters() if p.grad is not None]).norm().item()
        for of, module in (("algorithm", trainer.agent.algorithm), ("signals", trainer.agent.reward_signals))
    }
    assert norm["algorithm"] == pytest.approx(1e-3, rel=1e-3)
    assert norm["signals"] > 1e-2


def test_without_signals_and_cloning_an_update_is_the_algorithms_alone():
    """Bit for bit, the optimizer's state too: three updates against a loop that knows of nothing else."""
    first, second = (build("Learner.max_grad_norm = 0.5", method="taac") for _ in range(2))
    for trainer in (first, second):
        torch.manual_seed(0)
        for _ in range(40):
            trainer.collect()
        trainer.close()
    assert first.learner.demonstrations is None and not first.agent.signals
    agent = second.agent
    optimizer = TensorFlowAdam(
        [{"params": p} for p in agent.algorithm.parameter_groups().values()],
        lr=second.learner.optimizer.param_groups[0]["lr"],
    )
    for update in range(1, 4):
        batch = first.replay_buffer.sample(8, 4)
        torch.manual_seed(update)
        first.learner.update(batch)
        torch.manual_seed(update)
        experience = agent.prepare(batch)
        loss = agent.algorithm.calc_loss(experience, agent.algorithm.train_step(experience)).loss.mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 0.5)
        optimizer.step()
        agent.algorithm.after_update(update)
    assert_same_parameters(first, second)


def test_a_monitor_leaves_statistics_alone(demonstrations):
    trainer = build(binding(demonstrations), SIGNALS, "create_agent.normalize_observations = True", method="sqil_sac")
    trained(trainer, 2)
    before = clones(trainer.agent)
    told = []
    trainer.reporter.training = told.append
    trainer.summarize()
    assert "sqil/gradient_cosine" in told[0]
    assert all(torch.equal(before[name], value) for name, value in trainer.agent.state_dict().items())


def looked_at(signal):
    """The frames that a signal's model learns from, at each of its updates: its own, and demonstrations."""
    found, loss = [], signal.loss
    signal.loss = lambda own, shown: found.append((own, shown)) or loss(own, shown)
    return found


@pytest.mark.parametrize("replay", ["ReplayBuffer", "PrioritizedReplayBuffer"])
def test_a_model_learns_from_batches_of_its_own_size(replay):
    """The other signal from the algorithm's; priorities stay those of the algorithm's batch."""
    trainer = build(
        SIGNALS, "RND.batch_size = 5", "create_agent.normalize_observations = True",
        f"create_experiment.replay_buffer_ctor = @{replay}", method="taac",
    )  # fmt: skip
    icm, rnd = (looked_at(signal) for signal in trainer.agent.signals)
    before = clones(trainer.agent.reward_signals)
    trained(trainer, 3)
    shape = (trainer.segment_length, trainer.batch_size)
    assert [frames.step_type.shape for frames, _ in icm] == [shape] * 3 and shape[1] != 5
    assert [frames.step_type.shape for frames, _ in rnd] == [(shape[0], 5)] * 3
    # Frames of the replay, as the algorithm sees them.
    stored = trainer.replay_buffer._storage.time_step
    for frames, shown in rnd:
        assert shown is None
        held = [
            bool((stored.reward[: trainer.replay_buffer.size].flatten() == r).any()) for r in frames.reward.flatten()
        ]
        assert all(held)
    (frames, _) = rnd[-1]
    assert not torch.isin(frames.observation, stored.observation).any()  # they are normalised
    assert len({float(frames.reward.sum()) for frames, _ in rnd}) == 3
    assert not torch.equal(before["rnd.predictor.0.weight"], trainer.agent.signals[1].predictor[0].weight)


def test_a_batch_of_its_own_brings_as_many_demonstrations(demonstrations):
    trainer = build(binding(demonstrations), "GAIL.batch_size = 3", method="sac", files=["gin/gail.gin"])
    seen, drawn, sample = looked_at(trainer.agent.signals[0]), [], trainer.learner.demonstrations.sample
    trainer.learner.demonstrations.sample = lambda *sizes: drawn.append(sizes) or sample(*sizes)
    trained(trainer, 2)
    assert [(own.step_type.shape[1], shown.step_type.shape[1]) for own, shown in seen] == [(3, 3), (3, 3)]
    assert drawn == [(3, 2)] * 2  # and no more


def test_beside_sqil_a_batch_of_its_own_is_the_agents_alone(demonstrations):
    """Half of the algorithm's batch are demonstrations, whose rewards are 1."""
    trainer = build(binding(demonstrations), SIGNALS, "RND.batch_size = 8", method="sac", files=["gin/sqil.gin"])
    icm, rnd = (looked_at(signal) for signal in trainer.agent.signals)
    trained(trainer, 2)
    of_agents = trainer.replay_buffer._storage.time_step.observation
    assert torch.isin(rnd[0][0].observation, of_agents).all()
    assert not torch.isin(icm[0][0].observation, of_agents).all()


@pytest.mark.parametrize("file", ["gail", "cloning"])
def test_demonstrations_of_one_transition_each_do_not_lead_from_one_episode_to_the_next(file, demonstrations):
    trainer = build(binding(demonstrations), method="sac", files=[f"gin/{file}.gin"])
    trainer.close()
    shown = trainer.learner.demonstrations
    assert sum(held.eq(LAST).sum() for path, held in shown.frames(0, shown.size).items() if "step_type" in path) == 3
    assert not any(shown.sample(64, 2).time_step.is_last()[0].any() for _ in range(20))


@pytest.mark.parametrize("file", ["gail", "cloning"])
def test_agents_that_share_a_policy_have_as_many_demonstrations_as_frames(file, tmp_path, monkeypatch):
    """Each batch has 8 segments of 3 agents, and so has its batch of demonstrations."""
    team, share = [f"create_environment.env_name = '{TEAM}'"], "create_agent.shared_policy = True"
    path = tmp_path / "team.npz"
    drive(path, create_environment(TEAM), lambda t: t.observation["x"].clamp(-1, 1), 3)
    trainer = build(*team, share, binding(path), method="sac", files=[f"gin/{file}.gin"])
    seen, prepare = [], trainer.agent.prepare_observations

    def count(experience, **how):
        seen.append(prepare(experience, **how))
        return seen[-1]

    monkeypatch.setattr(trainer.agent, "prepare_observations", count)
    trained(trainer, 2)
    assert [shown.time_step.step_type.shape[1] for shown in seen] == [8 * 3, 8 * 3]


# Behaviour cloning -----------------------------------------------------------------------------------------------------


def test_updates_that_hold_the_actor_clone_nothing(demonstrations):
    delayed = "ActorCriticAlgorithm.policy_delay = 3"
    trainer = build(binding(demonstrations), delayed, method="sac", files=["gin/cloning.gin"])
    drawn, sample, told, update = [], trainer.learner.demonstrations.sample, [], trainer.learner.update
    trainer.learner.demonstrations.sample = lambda *sizes: drawn.append(trainer.learner.num_updates + 1) or sample(*sizes)
    trainer.learner.update = lambda *args: told.append(update(*args)) or told[-1]
    trained(trainer, 7)
    assert [n for n in drawn if n > 1] == [3, 6]  # before the first update it is pretrained
    assert ["cloning/loss" in info.extra for info in told] == [False, False, True, False, False, True, False]


@pytest.mark.parametrize("method", ["sac", "taac_l", "sac_recurrent", "td3"])
def test_pretraining_moves_the_actor_alone_and_counts_for_nothing(method, demonstrations):
    trainer = build(
        binding(demonstrations), "Cloning.pretraining_updates = 5", "Cloning.initial_weight = 0.0",
        method=method, files=["gin/cloning.gin"],
    )  # fmt: skip
    assert trainer.replay_buffer.size == 0  # kept apart
    before, learner = clones(trainer.agent), trainer.learner
    learner.pretrain(8, trainer.segment_length)
    after = trainer.agent.state_dict()
    moved = {name.split(".")[1] for name in before if not torch.equal(before[name], after[name])}
    assert (
        moved
        == {
            "sac": {"actor"}, "taac_l": {"actor", "tau_embedding"}, "sac_recurrent": {"actor", "actor_encoder"},
            "td3": {"actor", "target_actor"},
        }[method]
    )  # fmt: skip
    assert learner.num_updates == trainer.env_steps == trainer.collector.decisions == 0
    assert [group["num_steps"] for group in learner.optimizer.param_groups][:2] == [5, 0]
    for target, network in trainer.agent.algorithm.target_networks():
        assert all(map(torch.equal, target.state_dict().values(), network.state_dict().values()))
    trained(trainer, 2)
    assert not {"cloning/loss", "cloning/weight"} & set(trainer.learner.losses)  # its weight is 0


@pytest.mark.parametrize("method", ["sac", "taac"])
def test_what_an_actor_with_batch_statistics_is_pretrained_to_outlasts_the_first_updates(method, demonstrations):
    """Its running statistics are those of the demonstrations, its weights are projected, and it is not held back."""
    trainer = build(
        binding(demonstrations), "Cloning.pretraining_updates = 100", "Cloning.initial_weight = 0.0", "BatchNorm.momentum = 0.1",
        "critic/FlashBody.width = 4", "actor/FlashBody.width = 16", "flash/CosineSchedule.start = 1e-2",
        method=method, files=["gin/backbones/flash_small.gin", "gin/cloning.gin"],
    )  # fmt: skip
    algorithm, learner = trainer.agent.algorithm, trainer.learner
    shown = learner._side.demonstrated(64, trainer.segment_length)
    distance = lambda: algorithm.cloning_loss(shown).mean().item()  # noqa: E731, as it acts: with running statistics
    before = distance()
    learner.pretrain(32, trainer.segment_length)
    after = distance()
    assert after < before / 4
    for part in projections(algorithm.actor):
        if hasattr(part, "weight"):
            norm = torch.linalg.vector_norm(part.weight, dim=1)
            torch.testing.assert_close(norm, torch.ones_like(norm))
    with torch.no_grad(), batch_statistics():
        for _ in range(20):  # updates whose gradients are 0
            algorithm.cloning_loss(shown)
    assert distance() == pytest.approx(after, abs=before / 20)


def test_pretraining_clips_gradients_as_updates_do(demonstrations):
    cloning = [binding(demonstrations), "Learner.cloning = @Cloning()", "Cloning.pretraining_updates = 1"]
    norms = []
    for more in ([], ["Learner.max_grad_norm = 1e-3"]):
        trainer = build(*cloning, *more, method="sac")
        trainer.learner.pretrain(256, 2)  # so that some frames are not yet at 0, where there is nothing to learn
        gradients = [p.grad.norm() for p in trainer.agent.parameters() if p.grad is not None]
        norms.append(torch.stack(gradients).norm().item())
        trainer.close()
    assert norms[0] > 1e-2 and norms[1] == pytest.approx(1e-3, rel=1e-3)


def test_a_run_begins_with_the_pretraining_and_a_resumed_one_does_not(demonstrations, tmp_path, monkeypatch):
    from taac.learning.learner import Learner

    called = []
    monkeypatch.setattr(Learner, "pretrain", lambda self, *sizes: called.append(sizes))
    more = [*SMALL, binding(demonstrations), "Learner.cloning = @Cloning()", "Cloning.pretraining_updates = 3",
            "num_env_steps = 150", "Intervals.checkpoint_interval = 60", "evaluation_episodes = 1"]  # fmt: skip
    run(tmp_path, *more, method="sac", until=100)
    assert called == [(8, 2)]
    run(tmp_path, *more, method="sac")
    assert called == [(8, 2)]


def test_statistics_of_observations_begin_with_the_demonstrations(demonstrations):
    """Otherwise the cloned policy would be taught on raw observations, and act on normalised ones."""
    more = ["Learner.cloning = @Cloning()", "create_agent.normalize_observations = True"]
    for settings, count in (("Cloning.pretraining_updates = 2", 3 * 31), ("Cloning.initial_weight = 1.0", 0)):
        trainer = build(binding(demonstrations), settings, *more)
        trainer.learner.pretrain(8, 2)
        assert trainer.agent.observation_normalizer.count.item() == count
        trainer.close()


def test_the_cloning_weight_falls_in_a_straight_line(demonstrations):
    """And multiplies the loss; after that no demonstration is drawn."""
    trainer = build(
        binding(demonstrations), "Learner.cloning = @Cloning()", "Cloning.initial_weight = 0.5", "Cloning.decay_updates = 4",
        "create_experiment.demonstrations_ctor = @kept_apart",
    )  # fmt: skip
    drawn, seen = [], []
    sample = trainer.learner.demonstrations.sample
    trainer.learner.demonstrations.sample = lambda *sizes: drawn.append(sizes) or sample(*sizes)
    for update in range(1, 7):
        trained(trainer, update)
        seen.append(trainer.learner.losses.get("cloning/weight"))
    assert [None if w is None else w.item() for w in seen] == [0.5, 0.375, 0.25, 0.125, None, None]
    assert drawn == [(8, 2)] * 4
    gradients, told = [], []
    for weight in (0.0, 1.0, 3.0):
        trainer.learner.cloning.weight = weight
        torch.manual_seed(1)
        rest = clones(trainer.agent)
        trainer.learner.update(trainer.replay_buffer.sample(8, 2))
        gradients.append(torch.cat([p.grad.flatten().clone() for p in trainer.agent.algorithm.actor.parameters()]))
        trainer.agent.load_state_dict(rest)
        told.append(trainer.learner.losses.get("cloning/loss"))
    assert told[0] is None and told[1] == told[2]  # without the weight
    torch.testing.assert_close(gradients[2] - gradients[0], 3 * (gradients[1] - gradients[0]), rtol=1e-3, atol=1e-5)
    assert (gradients[1] - gradients[0]).norm() > 1e-3


@pytest.mark.parametrize("memory", ["GRUMemory", "LSTMMemory"])
def test_demonstrations_begin_with_empty_memories(memory, tmp_path):
    """Otherwise they would be of networks that have learnt nothing, and of raw observations beside normalised ones."""
    from taac.demonstrations.replay import demonstrated_frames

    trainer = build(
        "create_agent.normalize_observations = True",
        f"RecurrentEncoder.memory_ctor = @{memory}",
        method="sac_recurrent",
    )
    stored = recorded(trainer, tmp_path / "e.npz", 3, lambda i: trainer.agent.rollout_step)
    spec = experiment.experience_spec(trainer.environment, trainer.agent)
    frames = demonstrated_frames(str(tmp_path / "e.npz"), trainer.environment, trainer.agent, spec)
    expected = nest.map_structure(lambda *leaves: torch.cat(leaves)[: 3 * 31], *stored)
    for x, y in zip(nest.flatten(frames.time_step), nest.flatten(expected.time_step), strict=True):
        assert torch.equal(x, y)
    for x, y in zip(nest.flatten(frames.rollout_info), nest.flatten(expected.rollout_info), strict=True):
        assert x.shape == y.shape and not x.any() and y.any()


# The run ---------------------------------------------------------------------------------------------------------------

@pytest.mark.slow
def test_a_killed_run_ends_as_if_it_had_not_been(demonstrations, tmp_path):
    """With three signals, one of which learns at every third update, and cloning whose weight is falling."""
    more = [
        *SMALL, binding(demonstrations), "create_agent.reward_signals = (@ICM, @RND, @GAIL)", "RND.update_period = 3",
        "RND.gamma = 0.5", "Learner.cloning = @Cloning()", "Cloning.pretraining_updates = 5", "Cloning.initial_weight = 1.0",
        "Cloning.decay_updates = 150", "create_agent.normalize_observations = True", "num_env_steps = 200",
        "Intervals.checkpoint_interval = 60", "evaluation_interval = 100", "evaluation_episodes = 1",
        "Intervals.summary_interval = 50",
    ]  # fmt: skip
    whole, resumed = assert_resumes_exactly(tmp_path, *more, method="sac", until=[130], stop=[170])
    assert resumed.learner.losses.keys() == whole.learner.losses.keys()
    assert all(float(resumed.learner.losses[tag]) == float(value) for tag, value in whole.learner.losses.items())
    tags = {tag for tag in events.read(tmp_path / "whole").scalars if tag.split("/")[0] in ("signal", "cloning")}
    assert len(tags) == 8, "reward and loss of each signal, loss and weight of cloning"


def test_a_run_does_not_go_on_with_other_demonstrations(demonstrations, tmp_path):
    more = [*SMALL, "create_experiment.demonstrations_ctor = @kept_apart", "create_agent.reward_signals = (@GAIL,)",
            "num_env_steps = 150", "Intervals.checkpoint_interval = 60", "evaluation_episodes = 1"]  # fmt: skip
    run(tmp_path / "run", *more, binding(demonstrations), method="sac", until=130)
    drive(tmp_path / "other.npz", create_environment(POINT), lambda t: torch.zeros(1, 1), 3)
    with pytest.raises(TaacError, match="demonstrations are not those that the run began with"):
        run(tmp_path / "run", *more, binding(tmp_path / "other.npz"), method="sac")


def test_roles_take_over_the_state_of_an_agent_that_learns_with_signals(tmp_path):
    trainer = trained(build(SIGNALS, method="taac"), 3)
    configuration.load(["gin/tasks/simple_control.gin", "gin/methods/taac.gin"], [*SMALL, SIGNALS])
    environment = configuration.build(experiment.create_environment)
    agent = configuration.build(lambda: experiment.create_agent(environment, CPU, role="act"))
    assert not agent.signals and not any("reward_signals" in name for name in agent.state_dict())
    state = trainer.agent.state_dict()
    assert any(name.startswith("reward_signals.rnd.") for name in state)
    checkpoint.load_into(agent, agent.own_state(state), tmp_path)
    time_step = environment.reset(3)
    given, expected = (a.predict_step(time_step, a.initial_state(1)).output for a in (agent, trainer.agent))
    assert torch.equal(given, expected)
    environment.close()


# gin -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [method for method in REPRESENTATIVES if method != "temporl"])
def test_gail_and_cloning_after_any_method_that_can_learn_from_demonstrations(method, tmp_path):
    more = ["create_environment.max_episode_steps = 30"] if method in DISCRETE_METHODS else []
    plain = build(*fitting(method), *more, method=method)
    recorded(plain, tmp_path / "e.npz", 2, lambda i: plain.agent.random_step)
    for file, tag in (("gail", "signal/gail_loss"), ("cloning", "cloning/loss")):
        trainer = build(
            *fitting(method), *more, binding(tmp_path / "e.npz"), *(["Cloning.pretraining_updates = 2"] * (file == "cloning")),
            method=method, files=[f"gin/{file}.gin"],
        )  # fmt: skip
        trainer.learner.pretrain(8, trainer.segment_length)
        trained(trainer, 3)
        assert tag in trainer.learner.losses and bool(torch.as_tensor(trainer.learner.losses[tag]).isfinite())


@pytest.mark.parametrize(
    "params, message",
    [
        (["create_agent.reward_signals = (@RND, @RND)"], "two signals of one name: rnd, rnd"),
        (
            ["create_agent.reward_signals = (@GAIL,)"],
            "this method learns from demonstrations: bind create_experiment.demonstr",
        ),
        (["Learner.cloning = @Cloning()", "Cloning.initial_weight = 1.0"], "this method learns from demonstrations"),
        (["create_experiment.demonstrations_ctor = @kept_apart"], "this method learns from demonstrations"),
        (["create_agent.task_strength = 0.5"], "task_strength has no effect without create_agent.reward_signals"),
        ([SIGNALS, "create_agent.task_strength = (1.0, 2.0)"], "task_strength must be one number or 1"),
        (
            [SIGNALS, "SacAlgorithm.reward_weights = (1.0,)"],
            "reward_weights.*: nothing in this experiment uses this binding",
        ),
        ([SIGNALS, "create_agent.task_strength = 1e999"], "finite"),
        ([SIGNALS, "gamma = (0.9, 0.8)"], "gamma has 2 numbers; expected 1 or 3"),
        (["create_agent.reward_signals = @RND"], "reward_signals"),
        ([SIGNALS, "RND.batch_size = 0"], r"RND\.batch_size must be 1 or more, got 0"),
        (["Learner.cloning = @Cloning()"], "Cloning does nothing"),
        (["Learner.cloning = @Cloning()", "Cloning.decay_updates = 0"], "decay_updates 1 or more"),
        (["Learner.cloning = @Cloning()", "Cloning.initial_weight = -1.0"], "initial_weight 0 or more"),
        (["Learner.cloning = @Cloning()", "Cloning.pretraining_updates = -1"], "pretraining_updates must be 0 or more"),
    ],
)
def test_what_cannot_work_is_refused(params, message):
    with pytest.raises(TaacError, match=message):
        build(*params)


def test_demonstrations_for_nobody_are_refused(demonstrations):
    with pytest.raises(
        TaacError, match="reserves the demonstrations for reward signals and behaviour cloning, but nothing uses"
    ):
        build(binding(demonstrations), "create_experiment.demonstrations_ctor = @kept_apart")


@pytest.mark.parametrize("method", ["sac_ntd", "temporl"])
@pytest.mark.parametrize("file", ["gail", "cloning"])
def test_methods_that_cannot_read_demonstrations_are_refused(method, file, demonstrations):
    with pytest.raises(TaacError, match="cannot learn from demonstrations: it stores"):
        build(binding(demonstrations), method=method, files=[f"gin/{file}.gin"])


def test_agents_that_share_a_policy_have_signals_each_of_its_own():
    """A signal sees one agent; its reward is the second part of each agent's."""
    team = [
        "create_environment.env_name = 'tests.environments.team:taac-test/Team-v0'",
        "create_agent.shared_policy = True",
    ]
    trainer = build(
        *team,
        "normalize_rewards = False",
        "reward_clip = None",
        "create_agent.reward_signals = (@RND,)",
        "Learner.diagnostics = 'scalars'",
        "create_environment.env_kwargs = {'own_reward': True}",
    )
    trained(trainer, 2)
    signal_returns = trainer.collector.signal_returns
    assert signal_returns and all(returns["rnd"] > 0 for returns in signal_returns)
    agent, batch = trainer.agent, trainer.replay_buffer.sample(4, trainer.segment_length)
    reward = agent.prepare(batch).time_step.reward
    assert reward.shape == (trainer.segment_length, 4 * 3, 2)
    torch.testing.assert_close(reward[..., 0], batch.time_step.reward.flatten(1))
    assert agent.signals[0].encoder.output_size == 1 and (reward[1:, :, 1] > 0).any()


# Learning --------------------------------------------------------------------------------------------------------------

LEARNING = ["learning_rate = 2e-3", "target_tau = 0.02", "hidden_layers = (64, 64)", "batch_size = 64",
            "initial_collect_steps = 500", "num_env_steps = 2000", "replay_length = 10000", "gamma = 0.9"]  # fmt: skip


def mean_return(trainer):
    return summarize(evaluate(trainer.agent, trainer.evaluation_environment, 20, seed=7)).return_mean


@pytest.mark.slow
def test_gail_imitates_without_the_tasks_reward(demonstrations):
    """To drive to 0 returns about -4, standing still about -25. A discriminator that learns fast, as updates are few."""
    more = ["GAIL.gradient_penalty = 1.0", "GAIL.learning_rate = 3e-3"]
    trainer = build(binding(demonstrations), *LEARNING, *more, files=["gin/gail.gin"])
    assert trainer.agent.algorithm.reward_weights == (1.0,)
    trained(trainer, 800)
    result = mean_return(trainer)
    assert result > -10, result


class Corridor(gymnasium.Env):
    """A place between -2 and 2, from 0 at most 0.05 a step, for 40 steps; nothing is ever rewarded."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-2.0, 2.0, (1,))
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._x, self._t = 0.0, 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action):
        self._t += 1
        self._x = float(np.clip(self._x + 0.05 * float(action[0]), -2.0, 2.0))
        return np.array([self._x], dtype=np.float32), 0.0, False, self._t >= 40, {}


gymnasium.register("taac-test/Corridor-v0", Corridor)


@pytest.mark.slow
def test_curiosity_and_novelty_lead_to_more_places():
    """Than the same agent finds without them, in as many steps."""
    places, settings = {}, [f"{s}.{v}" for s in ("ICM", "RND") for v in ("strength = 1.0", "learning_rate = 1e-3")]
    for signals in ("", "@ICM, @RND"):
        trainer = build(
            "create_environment.env_name = 'taac-test/Corridor-v0'", "hidden_layers = (32,)", "batch_size = 32",
            "learning_rate = 2e-3", "target_tau = 0.02", "num_env_steps = 2000", "initial_collect_steps = 200",
            "gamma = 0.95", "normalize_rewards = False", f"create_agent.reward_signals = ({signals})",
            *(settings if signals else []),
        )  # fmt: skip
        seen = set()
        while trainer.learner.num_updates < 600:
            trainer.collect()
            trainer.learn()
            seen.add(round(trainer.collector.rollout.time_step.observation.item() / 0.1))
        trainer.close()
        places[signals] = len(seen)
    assert places["@ICM, @RND"] > 1.3 * places[""], places


@pytest.mark.parametrize("normalize", [pytest.param(False, marks=pytest.mark.slow), True])
def test_cloning_alone_imitates(normalize, demonstrations):
    """Before any environment step."""
    trainer = build(
        binding(demonstrations), *LEARNING, "Cloning.pretraining_updates = 300",
        f"create_agent.normalize_observations = {normalize}", files=["gin/cloning.gin"],
    )  # fmt: skip
    before = mean_return(trainer)
    trainer.learner.pretrain(64, 2)
    result = mean_return(trainer)
    trainer.close()
    assert trainer.env_steps == 0 and before < -10 and result > -5, (before, result)
