"""The optimizer against its equation, and learning rates by group."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from taac.algorithms import SacAlgorithm
from taac.errors import TaacError
from taac.ops import losses
from taac.specs import bounded
from taac.training.agent import Agent
from taac.training.learner import Learner, TensorFlowAdam
from tests.methods import METHODS, fitting
from tests.training.test_trainer import build


def test_adam_adds_epsilon_as_tensorflow_does():
    """`lr sqrt(1-b2^t)/(1-b1^t) m / (sqrt(v) + eps)`, with an epsilon so large that its place matters."""
    lr, b1, b2, eps = 0.1, 0.9, 0.999, 0.5
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    optimizer = TensorFlowAdam([parameter], lr=lr, betas=(b1, b2), eps=eps)
    x, m, v = parameter.detach().numpy().copy(), np.zeros(3), np.zeros(3)
    for t in range(1, 20):
        gradient = np.sin(x * t)
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
        x = x - lr * np.sqrt(1 - b2**t) / (1 - b1**t) * m / (np.sqrt(v) + eps)
        np.testing.assert_allclose(parameter.detach().numpy(), x, rtol=1e-12)


def test_adam_goes_on_after_its_state_was_saved():
    def steps(parameter, optimizer, times):
        for t in times:
            parameter.grad = torch.tensor([0.3 * t, -1.0])
            optimizer.step()

    whole = torch.nn.Parameter(torch.ones(2))
    steps(whole, TensorFlowAdam([whole], lr=0.1, eps=0.5), range(6))
    part = torch.nn.Parameter(torch.ones(2))
    first = TensorFlowAdam([part], lr=0.1, eps=0.5)
    steps(part, first, range(3))
    second, state = TensorFlowAdam([part], lr=0.7, eps=0.1), copy.deepcopy(first.state_dict())
    before = part.detach().clone()
    steps(part, second, [7, 8])  # which the state knows nothing of
    part.data.copy_(before)
    second.load_state_dict(state)
    steps(part, second, range(3, 6))
    assert torch.equal(whole, part)


def test_adam_leaves_alone_what_has_no_gradient():
    """A group without gradients does not count the step either; what an update skipped goes on where it was."""
    moved, idle, sometimes = (torch.nn.Parameter(torch.ones(2)) for _ in range(3))
    optimizer = TensorFlowAdam([{"params": [moved, idle]}, {"params": [sometimes]}], lr=0.1, eps=1e-7)
    for t in range(4):
        moved.grad = torch.tensor([1.0, -1.0])
        sometimes.grad = torch.tensor([1.0, -1.0]) if t in (1, 3) else None
        optimizer.step()
    assert torch.equal(idle, torch.ones(2)) and idle not in optimizer.state
    assert [group["num_steps"] for group in optimizer.param_groups] == [4, 2]
    # A constant gradient moves by the learning rate at each step.
    torch.testing.assert_close(moved.detach(), torch.tensor([0.6, 1.4]))
    torch.testing.assert_close(sometimes.detach(), torch.tensor([0.8, 1.2]))


def test_adam_moves_what_has_a_gradient_this_time():
    first, second = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = TensorFlowAdam([first, second], lr=0.1, eps=1e-7)
    for moved, idle in ((first, second), (second, first), (second, first)):
        moved.grad, idle.grad = torch.ones(1), None
        before = idle.item()
        optimizer.step()
        assert idle.item() == before
    assert first.item() == pytest.approx(0.9)
    assert second.item() < 0.9 and optimizer.state[second]["exp_avg"].item() == pytest.approx(0.19)


def test_adam_takes_a_closure_and_skips_what_is_not_finite():
    parameter = torch.nn.Parameter(torch.tensor([3.0]))
    optimizer = TensorFlowAdam([parameter], lr=0.1)

    def closure():
        parameter.grad = None
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 9.0
    assert parameter.item() == pytest.approx(2.9)
    optimizer.step(closure, found_inf=torch.tensor(1.0))
    assert parameter.item() == pytest.approx(2.9)


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
