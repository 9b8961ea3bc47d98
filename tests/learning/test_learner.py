"""Learning rates by group, and what a method's loss is made of."""

from __future__ import annotations

import gin
import pytest
import torch

from taac import nest
from taac.algorithms import SacAlgorithm
from taac.algorithms.agent import Agent
from taac.errors import TaacError
from taac.learning.learner import Learner
from taac.networks import ActorNetwork, CriticEnsemble
from taac.ops import losses
from taac.runs.checkpoint import Checkpoints
from taac.specs import bounded
from tests.learning.test_compiled_update import COMPILE, traced_only  # noqa: F401, a fixture
from tests.learning.test_guard import make_batch
from tests.methods import METHODS, fitting
from tests.training.runs import assert_same_parameters, build, learn_until, run


def make_agent():
    return Agent(SacAlgorithm(bounded((3,), -1, 1), bounded((2,), -1, 1)))


def test_learning_rates_by_group():
    learner = Learner(make_agent(), 1e-3, actor_learning_rate=2e-3, temperature_learning_rate=3e-3)
    rates = {id(p): group["lr"] for group in learner.optimizer.param_groups for p in group["params"]}
    groups = learner.agent.algorithm.parameter_groups()
    assert {rates[id(p)] for p in groups["actor"]} == {2e-3}
    assert {rates[id(p)] for p in groups["critic"]} == {1e-3}
    assert {rates[id(p)] for p in groups["temperature"]} == {3e-3}


@pytest.mark.parametrize("name", ["learning_rate", "actor_learning_rate", "temperature_learning_rate"])
def test_a_learning_rate_of_zero_is_refused(name):
    with pytest.raises(TaacError, match="above 0"):
        Learner(make_agent(), **{name: 0.0})


def test_targets_move_after_every_update_that_completes_a_period():
    algorithm = SacAlgorithm(bounded((3,), -1, 1), bounded((2,), -1, 1), target_update_tau=1.0, target_update_period=3)
    learner, moved = Learner(Agent(algorithm), 0.01), []
    for _ in range(6):
        learner.update(make_batch())
        moved.append(all(map(torch.equal, algorithm.target_critics.parameters(), algorithm.critics.parameters())))
    assert moved == [False, False, True, False, False, True]


def test_a_restored_learner_learns_on_as_one_that_was_never_stopped(tmp_path):
    """Through a file, with means and losses that a summary has not shown yet."""
    whole, stopped, resumed = Learner(make_agent(), 0.01), Learner(make_agent(), 0.01), Learner(make_agent(), 0.5)
    stopped.agent.load_state_dict(whole.agent.state_dict())
    batches = [make_batch() for _ in range(4)]

    def update(learner, numbers):
        for number in numbers:
            torch.manual_seed(number)
            learner.update(batches[number])

    update(whole, range(4)), update(stopped, range(2))
    Checkpoints(tmp_path).save(1, {"agent": stopped.agent.state_dict(), "learner": stopped.state_dict()})
    found = Checkpoints(tmp_path).newest()
    resumed.agent.load_state_dict(found.part("agent"))
    resumed.load_state_dict(found.part("learner"))
    assert resumed.losses == stopped.losses and resumed.losses
    update(resumed, range(2, 4))
    assert resumed.num_updates == 4 and resumed.losses == whole.losses and resumed.summary() == whole.summary()
    assert resumed.growth.state_dict() == whole.growth.state_dict()
    assert_same_parameters(whole, resumed)


def test_the_state_of_another_optimizer_is_refused_and_changes_nothing():
    learner, other = Learner(make_agent()), Learner(make_agent())
    other.update(make_batch())
    state = other.state_dict()
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(1)
    before = str(learner.state_dict())
    with pytest.raises(TaacError, match=r"of another optimizer: 'exp_avg' of parameter 0 is .*\[1\], expected"):
        learner.load_state_dict(state)
    assert str(learner.state_dict()) == before


def first_batch(method, *params):
    """A trainer of a method when its first update is due, and the batch."""
    trainer = build(
        "num_envs = 2", "hidden_layers = (8,)", "initial_collect_steps = 40", *fitting(method), *params, method=method
    )
    while not trainer.update_ratio.updates_earned(trainer.env_steps):
        trainer.collect()
    trainer.close()
    return trainer, trainer.replay_buffer.sample(8, trainer.segment_length)


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_values_all_regress_by_the_error_that_was_chosen(method, monkeypatch):
    """Nothing is squared past the TD loss; and the loss is that of Huber."""
    trainer, experience = first_batch(method)
    critic_losses = []
    for delta in (None, 1e6, 0.01):
        trainer.agent.algorithm.td_loss.huber_delta = delta
        if delta is not None:
            monkeypatch.setattr(losses, "squared_td_error", None)
        torch.manual_seed(0)
        info = trainer.agent.algorithm.train_step(trainer.agent.prepare(experience))
        loss_info = trainer.agent.algorithm.calc_loss(trainer.agent.prepare(experience), info)
        critic_losses.append(
            [v for tag, v in loss_info.extra.items() if tag in ("loss/critic", "loss/value", "loss/skip")]
        )
    squared, wide, narrow = map(torch.stack, critic_losses)
    torch.testing.assert_close(wide, squared)
    assert (narrow < squared).all() and (narrow > 0).all()


# Networks that read the mode ---------------------------------------------------------------------------------------------


@gin.configurable
class NormalizedCritics(CriticEnsemble):
    """Critics of inputs that a batch norm has normalised."""

    def __init__(self, input_size, reward_dim=None):
        super().__init__(input_size, reward_dim, hidden_layers=(8,))
        self.norm = torch.nn.BatchNorm1d(input_size, momentum=0.5)

    def forward(self, features, *action):
        x = torch.cat([features, *action], dim=-1)
        return super().forward(self.norm(x.flatten(0, -2)).view_as(x))


@gin.configurable
class DroppingActor(ActorNetwork):
    """An actor some of whose inputs are dropped."""

    def forward(self, x):
        return super().forward(torch.nn.functional.dropout(x, 0.5, self.training))


MODES = ("num_env_steps = 120", "initial_collect_steps = 60", "batch_size = 4", "num_envs = 2", "evaluation_episodes = 1",
         "ActorCriticAlgorithm.critic_ctor = @NormalizedCritics", "TaacAlgorithm.actor_ctor = @DroppingActor",
         "create_environment.max_episode_steps = 20")  # fmt: skip


@pytest.mark.parametrize("compile", [(), (COMPILE,)], ids=["uncompiled", "compiled"])
def test_neither_evaluations_nor_neighbours_change_networks_with_statistics(compile, traced_only, tmp_path):  # noqa: F811
    trainers = [run(tmp_path / str(interval), *MODES, *compile, f"evaluation_interval = {interval}") for interval in (20, 120)]
    assert_same_parameters(*trainers)
    agent = trainers[0].agent
    statistics = {name: value.clone() for name, value in agent.named_buffers()}
    assert statistics["algorithm.critics.norm.num_batches_tracked"] > 0  # it learns by them
    frames = nest.map_structure(lambda leaf: leaf.repeat(6, *[1] * (leaf.dim() - 1)), trainers[0].collector.rollout.time_step)
    frames = frames._replace(observation=torch.randn_like(frames.observation))
    state = agent.initial_state(12)
    state = state._replace(tau=nest.map_structure(torch.rand_like, state.tau))
    alone, rows = nest.index((frames, state), slice(1)), (frames, state)
    for step in (agent.predict_step, agent.rollout_step):
        torch.manual_seed(0)
        probability = step(*alone).switch_probability
        torch.manual_seed(0)  # a rollout's proposal is drawn, and that of the first row first
        torch.testing.assert_close(probability, step(*rows).switch_probability[:1])
    for step in (agent.predict_step, agent.rollout_step, agent.random_step):
        step(*rows)
    assert all(torch.equal(value, statistics[name]) for name, value in agent.named_buffers())


def test_a_gradient_step_computes_its_loss_in_training_mode_and_all_else_in_evaluation_mode():
    trainer, seen = build(*MODES, "create_agent.reward_signals = (@RND,)", "create_agent.normalize_rewards = False"), {}
    agent = trainer.agent
    learn_until(trainer, 1)
    signal, algorithm = agent.signals[0], agent.algorithm
    for part in (*algorithm.children(), *signal.children()):
        part.register_forward_pre_hook(lambda part, *_: seen.setdefault(part, set()).add(part.training))
    assert not any(part.training for part in agent.modules())
    trainer.learner.update(trainer.replay_buffer.sample(4, trainer.segment_length))
    trainer.close()
    assert not any(part.training for part in agent.modules())
    for part in (algorithm.actor, algorithm.critics, algorithm.encoder, algorithm.tau_embedding):
        assert seen[part] == {True}
    for part in (algorithm.target_critics, algorithm.target_encoder, signal.fixed):
        assert seen[part] == {False}
    assert seen[signal.predictor] == {False, True}  # for its reward, and for its loss
