"""Losses against independent derivatives and slow numpy."""

import numpy as np
import pytest
import torch

from taac.errors import TaacError
from taac.ops.losses import action_gradient_loss, huber_td_error, squared_td_error, temperature_loss


# --- Deterministic policy gradient ----------------------------------------------------------------
def test_action_gradient_loss_by_hand():
    # 1/2 |dQ/da|^2: 1/2 (9 + 16) = 12.5 and 1/2 (0 + 1) = 0.5, whatever the action is.
    gradient = torch.tensor([[3.0, -4.0], [0.0, 1.0]])
    action = torch.tensor([[0.25, -0.5], [0.0, 1.0]], requires_grad=True)
    loss = action_gradient_loss(action, gradient)
    assert loss.tolist() == [12.5, 0.5]
    # Descent moves the action up the gradient: d loss / d a = -dQ/da.
    loss.sum().backward()
    assert action.grad.tolist() == [[-3.0, 4.0], [0.0, -1.0]]


def test_the_gradient_of_action_gradient_loss_is_the_policy_gradient():
    """Actor a = W s and critic Q = -|a - c s_0|^2: `-dQ/da da/dW = 2 (a - c s_0) s^T`, in numpy."""
    generator = np.random.default_rng(1)
    weight, target = generator.normal(size=(2, 3)), generator.normal(size=2)
    s = generator.normal(size=(5, 4, 3))
    actor = torch.tensor(weight, requires_grad=True)
    critic_parameter = torch.tensor(target, requires_grad=True)
    states = torch.tensor(s)

    action = states @ actor.T
    constant_action = action.detach().requires_grad_()
    q = -(constant_action - critic_parameter * states[..., :1]).square().sum(-1)
    (dq_da,) = torch.autograd.grad(q.sum(), constant_action, create_graph=True)
    loss = action_gradient_loss(action, dq_da)
    assert loss.shape == (5, 4)
    loss.sum().backward()

    expected = np.zeros_like(weight)
    for state in s.reshape(-1, 3):
        expected += np.outer(2 * (weight @ state - target * state[0]), state)
    np.testing.assert_allclose(actor.grad.numpy(), expected, rtol=1e-12)
    assert critic_parameter.grad is None  # dQ/da is a constant, even where it has a graph


# --- Temperature ----------------------------------------------------------------------------------
@pytest.mark.parametrize("entropy, target, direction", [(0.5, 1.5, 1), (1.5, 0.5, -1), (-3.0, -2.0, 1), (0.5, 0.5, 0)])
def test_temperature_rises_while_the_entropy_is_too_low(entropy, target, direction):
    log_alpha = torch.zeros((), requires_grad=True)
    loss = temperature_loss(log_alpha, torch.full((2, 3), entropy), target)
    assert loss.shape == (2, 3)
    loss.mean().backward()
    step = -log_alpha.grad.item()  # of gradient descent
    assert step == pytest.approx(direction * abs(entropy - target))


def test_temperature_loss_by_hand():
    # 2 * (0.25 - 1) = -1.5, 2 * (3 - 1) = 4
    scale = torch.tensor(2.0, requires_grad=True)
    entropy = torch.tensor([0.25, 3.0], requires_grad=True)
    loss = temperature_loss(scale, entropy, 1.0)
    assert loss.tolist() == [-1.5, 4.0]
    loss.sum().backward()
    assert scale.grad.item() == 1.25  # -0.75 + 2
    assert entropy.grad is None  # the policy is not trained by it


# --- TD error -------------------------------------------------------------------------------------
def test_squared_td_error_by_hand():
    # Two critics, one frame: (1 - 3)^2 + (6 - 3)^2 = 4 + 9
    assert squared_td_error(torch.tensor([[[1.0]], [[6.0]]]), torch.tensor([[3.0]])).tolist() == [[13.0]]
    # Rewards (a, b), targets (3, 0): critic one (1, 2), critic two (6, 0): ((4 + 9) + (4 + 0)) / 2 = 8.5
    q = torch.tensor([[[[1.0, 2.0]]], [[[6.0, 0.0]]]])
    assert squared_td_error(q, torch.tensor([[[3.0, 0.0]]])).tolist() == [[8.5]]


@pytest.mark.parametrize("critics", [1, 2, 3])
@pytest.mark.parametrize("dims", [None, 1, 2, 3])
def test_squared_td_error_against_numpy(critics, dims):
    """Also where N = T = B = D = 3, so that no dimension can be taken for another."""
    shape = (3, 3) if dims is None else (3, 3, dims)
    generator = np.random.default_rng(2)
    q, target = generator.normal(size=(critics, *shape)), generator.normal(size=shape)
    loss = squared_td_error(torch.from_numpy(q), torch.from_numpy(target))
    assert loss.shape == (3, 3)
    for time, batch in np.ndindex(3, 3):
        expected = 0.0
        for n in range(critics):
            errors = np.atleast_1d(q[n, time, batch] - target[time, batch])
            expected += sum(error**2 for error in errors) / len(errors)
        assert loss[time, batch].item() == pytest.approx(expected, rel=1e-12)


def test_squared_td_error_trains_the_critics_and_not_their_target():
    # d (q - y)^2 / dq = 2 (q - y), and half of it each with two rewards.
    q = torch.tensor([[[1.0]], [[6.0]]], requires_grad=True)
    target = torch.tensor([[3.0]], requires_grad=True)
    squared_td_error(q, target).sum().backward()
    assert q.grad.flatten().tolist() == [-4.0, 6.0]
    assert target.grad is None
    q = torch.tensor([[[[1.0, 2.0]]]], requires_grad=True)
    squared_td_error(q, torch.tensor([[[3.0, 0.0]]])).sum().backward()
    assert q.grad.flatten().tolist() == [-2.0, 2.0]


def test_huber_td_error_by_hand():
    """delta 2: e^2 up to 2, then 2 (2 |e| - 2); the gradient is 2 e, kept within +-4."""
    # errors                0  1   -2  3   -5
    q = torch.tensor([[[10.0, 11, 8, 13, 5]]], requires_grad=True)
    target = torch.full((1, 5), 10.0, requires_grad=True)
    loss = huber_td_error(q, target, 2.0)
    assert loss.tolist() == [[0, 1, 4, 8, 16]]
    loss.sum().backward()
    assert q.grad.flatten().tolist() == [0, 2, -4, 4, -4] and target.grad is None
    # Two critics and two parts of the reward: the sum over critics of the mean over parts, (1 + 8) / 2 + (0 + 16) / 2.
    q = torch.tensor([[[[11.0, 3.0]]], [[[10.0, -5.0]]]])
    assert huber_td_error(q, torch.tensor([[[10.0, 0.0]]]), 2.0).tolist() == [[12.5]]
    with pytest.raises(TaacError, match="q must be"):
        huber_td_error(q, torch.zeros(1, 1), 2.0)


@pytest.mark.parametrize("dims", [(), (2,)])
def test_huber_with_a_delta_above_all_errors_is_squared(dims):
    q, target = torch.randn(2, 3, 4, *dims, dtype=torch.float64), torch.randn(3, 4, *dims, dtype=torch.float64)
    torch.testing.assert_close(huber_td_error(q, target, 100.0), squared_td_error(q, target), rtol=1e-14, atol=0)
    assert (huber_td_error(q, target, 0.1) < squared_td_error(q, target)).all()
