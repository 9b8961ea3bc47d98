"""Learning rates by group, and what a method's loss is made of."""

from __future__ import annotations

import pytest
import torch

from taac.algorithms import SacAlgorithm
from taac.algorithms.agent import Agent
from taac.errors import TaacError
from taac.learning.learner import Learner
from taac.ops import losses
from taac.runs.checkpoint import Checkpoints
from taac.specs import bounded
from tests.learning.test_guard import make_batch
from tests.methods import fitting
from tests.training.runs import assert_same_parameters, build


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


@pytest.mark.parametrize("method", ["sac", "taac", "sac_value", "temporl", "sac_discrete"])
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
        critic_losses.append([v for tag, v in loss_info.extra.items() if tag in ("loss/critic", "loss/value", "loss/skip")])
    squared, wide, narrow = map(torch.stack, critic_losses)
    torch.testing.assert_close(wide, squared)
    assert (narrow < squared).all() and (narrow > 0).all()
