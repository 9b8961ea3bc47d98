"""The worked examples of docs/extending.md, each a file of experiments/examples/ that learns with its own gin file."""

from __future__ import annotations

import contextlib
import copy
import math
from pathlib import Path
from types import SimpleNamespace

import gin
import pytest
import torch

from experiments.examples.own_critics import QuantileCritics
from experiments.examples.own_trajectory import Fading, FadingTrajectory
from taac import nest
from taac.errors import DivergedError, TaacError
from tests.training.runs import built, learn_until

EXAMPLES = Path(__file__).resolve().parents[1] / "experiments" / "examples"
SMALL = [
    "create_environment.env_name = 'Pendulum-v1'", "num_env_steps = 200", "initial_collect_steps = 60", "batch_size = 8",
    "hidden_layers = (16,)", "replay_length = 300",
]  # fmt: skip


def build(name, *params):
    return built(["gin/tasks/simple_control.gin", str(EXAMPLES / f"{name}.gin")], [*SMALL, *params])


@pytest.fixture
def trained():
    opened = []

    def make(name, *params, updates=3):
        opened.append(trainer := build(name, *params))
        before = {name: p.clone() for name, p in trainer.agent.algorithm.named_parameters()}
        learn_until(trainer, updates)
        trainer.moved = {name for name, p in trainer.agent.algorithm.named_parameters() if not torch.equal(p, before[name])}
        return trainer

    yield make
    for trainer in opened:
        trainer.close()


def test_the_trajectory_fades_while_it_goes_on(trained):
    """By hand: 0.9 * (1, -0.5) = (0.9, -0.45)."""
    after = FadingTrajectory(0.9).advance(Fading(torch.tensor([1.0, -0.5])))
    torch.testing.assert_close(after.a, torch.tensor([0.9, -0.45]))
    trainer = trained("own_trajectory")
    replayed = trainer.replay_buffer.sample(60, 2)
    tau, b = replayed.rollout_info.tau_prev, replayed.rollout_info.switch
    goes_on = ~b[0] & ~replayed.time_step.is_last()[0]
    assert goes_on.any()
    torch.testing.assert_close(replayed.time_step.prev_action[1][goes_on], 0.9 * nest.index(tau, 0).a[goes_on])
    assert gin.query_parameter("create_experiment.method") == "taac_fading"


def test_the_exploration_repeats_no_action_until_training_begins():
    with contextlib.closing(build("own_exploration")) as trainer:
        assert gin.query_parameter("create_experiment.method") == "taac_uniform"
        for _ in range(60):
            trainer.collect()
        assert trainer.replay_buffer.sample(200, 2).rollout_info.switch.all()
        for _ in range(60):
            trainer.collect()
        assert not trainer.replay_buffer.sample(200, 2).rollout_info.switch.all()


def test_quantile_critics_find_the_quantiles():
    """Returns 0 or 1 with equal chances: the lower quartile is 0, the upper 1, and the value their mean, 1/2."""
    critics = QuantileCritics(1, hidden_layers=(8,), num_quantiles=2, kappa=0.01)
    optimizer = torch.optim.Adam(critics.parameters(), lr=0.02)
    features, target = torch.ones(1, 2, 1), torch.tensor([[0.0, 1.0]])
    for _ in range(400):
        optimizer.zero_grad()
        critics.loss(critics(features), target).mean().backward()
        optimizer.step()
    quantiles = critics(features)[:, 0, 0]
    torch.testing.assert_close(quantiles, torch.tensor([[0.0, 1.0]] * 2), atol=0.06, rtol=0)
    torch.testing.assert_close(critics.value(quantiles), torch.full((2,), 0.5), atol=0.06, rtol=0)


def test_quantile_critics_learn_in_taac(trained):
    trainer = trained("own_critics")
    assert {"critics.critics.0.1.weight", "critics.critics.1.1.weight"} <= trainer.moved
    assert math.isfinite(trainer.learner.summary()["critic/q"])


def test_the_learner_moves_the_critics_first_and_the_others_by_the_moved_critics():
    """By SGD, whose step is -rate * gradient: the critics' at the old parameters, the others' where the critics have moved."""
    sgd = ("Learner.optimizer_ctor = @SGD", "learning_rate = 0.01")
    with contextlib.closing(build("own_learner", *sgd)) as trainer:
        for _ in range(60):
            trainer.collect()
        learner, algorithm = trainer.learner, trainer.agent.algorithm
        experience = trainer.replay_buffer.sample(8, 2)
        before = copy.deepcopy(algorithm.state_dict())
        critics = {id(p) for p in algorithm.parameter_groups()["critic"]}
        names = {id(p): name for name, p in algorithm.named_parameters()}

        prepared = copy.deepcopy(trainer.agent).prepare(experience)
        torch.manual_seed(0)
        at_old = learner.uncompiled(prepared, ()).gradients
        parameters = [p for group in learner.optimizer.param_groups for p in group["params"]]
        with torch.no_grad():
            for p, g in zip(parameters, at_old):
                if id(p) in critics:
                    p -= 0.01 * g
        moved = learner.uncompiled(prepared, ()).gradients  # goes on with the same random numbers
        expected = dict(before)
        for p, old, new in zip(parameters, at_old, moved):
            expected[names[id(p)]] = before[names[id(p)]] - 0.01 * (old if id(p) in critics else new)
        of_others = [(old, new) for p, old, new in zip(parameters, at_old, moved) if id(p) not in critics]
        assert any(not torch.allclose(old, new) for old, new in of_others)

        algorithm.load_state_dict(before)
        torch.manual_seed(0)
        learner.update(experience)
        for name, p in algorithm.named_parameters():
            if not name.startswith("target_"):
                torch.testing.assert_close(p.data, expected[name], msg=name)
        assert learner.num_updates == 1


def test_the_learner_of_two_steps_refuses_what_it_cannot_do(monkeypatch):
    with pytest.raises(TaacError, match="max_grad_norm"):
        build("own_learner", "Learner.max_grad_norm = 1.0")
    with pytest.raises(TaacError, match="batch normalisation"):
        build("own_learner", "CriticEnsemble.body = @MlpBody", "MlpBody.norm = @BatchNorm", "MlpBody.hidden_layers = (8,)")
    with contextlib.closing(build("own_learner")) as trainer:
        for _ in range(60):
            trainer.collect()
        two = SimpleNamespace(count=2, averaging=lambda parameters: contextlib.nullcontext({}))
        monkeypatch.setattr(trainer.learner, "ranks", two)
        with pytest.raises(TaacError, match="over ranks"):
            trainer.learner.update(trainer.replay_buffer.sample(8, 2))


def test_the_learner_of_two_steps_leaves_the_models_of_reward_signals_alone():
    """They have a step of their own, every `update_period` updates; the gradient of the last one must not be taken again."""
    signal = ("create_agent.reward_signals = [@RND]", "RND.update_period = 1000")
    with contextlib.closing(build("own_learner", *signal)) as trainer:
        for _ in range(60):
            trainer.collect()
        parameters = [*trainer.agent.reward_signals.parameters()]
        before = [p.detach().clone() for p in parameters]
        trainer.learner.update(trainer.replay_buffer.sample(8, 2))
        first = [p.detach().clone() for p in parameters]
        assert not all(torch.equal(a, b) for a, b in zip(before, first))
        trainer.learner.update(trainer.replay_buffer.sample(8, 2))
        assert all(torch.equal(a, b) for a, b in zip(first, parameters))


def test_the_learner_of_two_steps_takes_optimizers_by_group():
    by_group = ("Learner.optimizer_ctor = {'critic': @critic/AdamW}", "critic/AdamW.betas = (0.9, 0.99)")
    with contextlib.closing(build("own_learner", *by_group)) as trainer:
        for _ in range(60):
            trainer.collect()
        before = [p.clone() for p in trainer.agent.algorithm.critics.parameters()]
        trainer.learner.update(trainer.replay_buffer.sample(8, 2))
        assert not any(map(torch.equal, before, trainer.agent.algorithm.critics.parameters()))


def test_the_learner_of_two_steps_moves_nothing_by_a_loss_that_is_not_finite():
    with contextlib.closing(build("own_learner", "Learner.optimizer_ctor = @SGD")) as trainer:
        for _ in range(60):
            trainer.collect()
        experience = trainer.replay_buffer.sample(8, 2)
        experience.time_step.reward.fill_(float("inf"))
        before = copy.deepcopy(trainer.agent.algorithm.state_dict())
        with pytest.raises(DivergedError):
            trainer.learner.update(experience)
        assert all(torch.equal(v, before[k]) for k, v in trainer.agent.algorithm.named_parameters())


def test_the_method_learns_and_moves_its_target_actor(trained):
    trainer = trained("own_method")
    algorithm = trainer.agent.algorithm
    assert {"actor.1.weight", "target_actor.1.weight"} <= trainer.moved
    assert any(name.startswith("critics.") for name in trainer.moved)
    assert math.isfinite(trainer.learner.summary()["ddpg/q"])
    time_step, state = trainer.collector.rollout.time_step, trainer.collector.rollout.state
    greedy, drawn = algorithm.predict_step(time_step, state), algorithm.rollout_step(time_step, state)
    assert torch.equal(greedy.output, algorithm.predict_step(time_step, state).output)
    assert not torch.equal(greedy.output, drawn.output)


def test_the_method_refuses_an_encoder_that_its_target_actor_has_no_copy_of():
    with pytest.raises(TaacError, match="remove actor_encoder_ctor"):
        build("own_method", "DdpgAlgorithm.actor_encoder_ctor = @ObservationEncoder")


def test_the_method_learns_the_value_of_a_task_of_one_state(trained):
    """Reward 1 at every step and no end: Q = 1 / (1 - gamma) = 5."""
    trainer = trained(
        "own_method", "create_environment.env_name = 'tests.toy_tasks:taac-test/Countdown-v0'",
        "create_environment.env_kwargs = {'length': 5, 'truncate': True, 'one_state': True}", "gamma = 0.8",
        "normalize_rewards = False", "reward_clip = None", "learning_rate = 3e-3", "target_tau = 0.1", "batch_size = 32",
        "num_env_steps = 2000", "initial_collect_steps = 100", "replay_length = 2000", updates=300,
    )  # fmt: skip
    algorithm, frames = trainer.agent.algorithm, trainer.replay_buffer.sample(100, 2).time_step
    with torch.no_grad():
        q = algorithm.q_values(algorithm.critics, algorithm.encoder(frames.observation[0]), frames.prev_action[1])
    assert q[:, ~frames.is_last()[0]].mean() == pytest.approx(5.0, rel=0.05)
