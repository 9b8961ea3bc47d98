"""Learning rates by group, and what a method's loss is made of."""

from __future__ import annotations

import pytest
import torch

from taac.algorithms import SacAlgorithm
from taac.algorithms.agent import Agent
from taac.errors import TaacError
from taac.learning.learner import Learner
from taac.ops import losses
from taac.specs import bounded
from tests.methods import METHODS, fitting
from tests.training.test_trainer import build


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


def first_batch(method, *params):
    """A trainer of a method when its first update is due, and the batch."""
    trainer = build(
        "num_envs = 2", "hidden_layers = (8,)", "initial_collect_steps = 40", *fitting(method), *params, method=method
    )
    while not trainer.updates_earned():
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
