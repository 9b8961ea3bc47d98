"""Squashed normal, beta and entropies: analytic references, extremes, refusals."""

import math

import numpy as np
import pytest
import torch

from taac.errors import TaacError
from taac.ops.distributions import (
    beta_distribution,
    boltzmann_distribution,
    categorical_entropy,
    continuous_target_entropy,
    discrete_target_entropy,
    squash_log_det,
    squashed_normal_log_prob,
    squashed_normal_mode,
    squashed_normal_sample,
)


# --- Squashed normal ------------------------------------------------------------------------------
def reference_log_prob(x, mean, log_std):
    """In Python floats, by `log N(x) + 2 log cosh x`, as `1 - tanh^2 = 1 / cosh^2`; cosh is finite to 700."""
    total = 0.0
    for x_i, mean_i, log_std_i in zip(x, mean, log_std):
        std = math.exp(log_std_i)
        normal = -((x_i - mean_i) ** 2) / (2 * std**2) - math.log(std * math.sqrt(2 * math.pi))
        total += normal + 2 * math.log(math.cosh(x_i))
    return total


SATURATED = torch.tensor([0.0, 1e-4, -0.3, 1.0, -4.0, 9.0, -9.9, 10.1, -12.0, 20.0, -20.0, 35.0, 50.0, -50.0]).double()


# In float64 softplus drops log1p(exp(-20)) = 2e-9 beyond its threshold of 20.
@pytest.mark.parametrize("dtype, atol", [(torch.float32, 1e-6), (torch.float64, 5e-9)])
def test_log_det_is_exact_at_saturation(dtype, atol):
    """And `d/dx log(1 - tanh(x)^2) = -2 tanh(x)` is finite and not 0 where tanh itself has no slope left."""
    x = SATURATED.to(dtype).requires_grad_()
    log_det = squash_log_det(x)
    assert log_det.dtype == dtype
    expected = torch.tensor([-2 * math.log(math.cosh(number)) for number in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(log_det.double(), expected, rtol=1e-6, atol=atol)
    (gradient,) = torch.autograd.grad(log_det.sum(), x)
    torch.testing.assert_close(gradient, -2 * torch.tanh(x.detach()), rtol=1e-6, atol=10 * atol)


@pytest.mark.parametrize("mean, log_std", [(0.0, 0.0), (0.5, -1.0), (-3.0, 2.0), (40.0, 1.5)])
def test_log_prob_at_saturation(mean, log_std):
    x = SATURATED.float().unsqueeze(-1)
    result = squashed_normal_log_prob(x, torch.full_like(x, mean), torch.full_like(x, log_std))
    expected = [reference_log_prob([number], [mean], [log_std]) for number in x.flatten().tolist()]
    assert result.tolist() == pytest.approx(expected, rel=2e-6, abs=2e-6)


def test_log_prob_sums_over_the_last_dimension_only():
    x = torch.tensor([[[0.5, -2.0, 15.0], [1.0, 0.0, -1.0]]], dtype=torch.float64)
    mean = torch.tensor([[[0.0, -1.0, 14.0], [2.0, 0.3, 0.0]]], dtype=torch.float64)
    log_std = torch.tensor([[[-1.0, 0.5, 0.0], [1.0, -2.0, 0.1]]], dtype=torch.float64)
    result = squashed_normal_log_prob(x, mean, log_std)
    assert result.shape == (1, 2)
    for i in range(2):
        expected = reference_log_prob(x[0, i].tolist(), mean[0, i].tolist(), log_std[0, i].tolist())
        assert result[0, i].item() == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("mean, log_std", [(0.0, 0.0), (0.7, -1.0), (-0.8, -0.5), (2.0, -2.0)])
def test_density_integrates_to_one(mean, log_std):
    """Over the action: the midpoint rule on (-1, 1); these densities vanish smoothly at both ends."""
    cells = 40_000
    a = torch.arange(cells, dtype=torch.float64) / cells * 2 - 1 + 1 / cells
    x = (0.5 * torch.log((1 + a) / (1 - a))).unsqueeze(-1)
    log_prob = squashed_normal_log_prob(x, torch.full_like(x, mean), torch.full_like(x, log_std))
    assert log_prob.exp().sum().item() * 2 / cells == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize(
    "shapes",
    [((2, 3), (3,), (2, 3)), ((2, 3), (2, 3), (2, 1)), ((3,), (2, 3), (2, 3)), ((1, 3), (2, 3), (2, 3))],
)
def test_log_prob_refuses_shapes_that_differ(shapes):
    with pytest.raises(TaacError, match="one shape") as error:
        squashed_normal_log_prob(*(torch.zeros(shape) for shape in shapes))
    assert all(str(list(shape)) in str(error.value) for shape in shapes)


def test_sample_and_its_log_prob_belong_together():
    """In float64 away from saturation atanh recovers the pre-tanh value."""
    mean = torch.linspace(-1.5, 1.5, 300, dtype=torch.float64).reshape(100, 3)
    log_std = torch.linspace(-3, 0, 300, dtype=torch.float64).reshape(100, 3).flip(0)
    action, log_prob = squashed_normal_sample(mean, log_std)
    assert action.shape == (100, 3) and log_prob.shape == (100,)
    assert action.dtype == log_prob.dtype == torch.float64
    assert action.abs().max() < 1 - 1e-4
    expected = squashed_normal_log_prob(torch.atanh(action), mean, log_std)
    torch.testing.assert_close(log_prob, expected, rtol=1e-7, atol=1e-7)


def test_sample_is_distributed_as_it_says():
    """Pre-tanh moments of 200k samples, within 5 standard errors; dimensions are independent."""
    n, mean, log_std = 200_000, torch.tensor([0.3, -0.2]), torch.tensor([-1.0, 0.2])
    action, log_prob = squashed_normal_sample(mean.expand(n, 2).double(), log_std.expand(n, 2).double())
    noise = (torch.atanh(action) - mean) / log_std.exp()
    error = 5 / math.sqrt(n)
    assert noise.mean(0).abs().max() < error
    assert (noise.square().mean(0) - 1).abs().max() < error * math.sqrt(2)
    assert (noise.pow(4).mean(0) - 3).abs().max() < error * math.sqrt(96)
    assert noise.prod(1).mean().abs() < error
    # E[1 / p(a)] over a in a region is the region's area, here 1 (at the centre: little variance).
    inside = (action.abs() < 0.5).all(1)
    volume = torch.where(inside, (-log_prob).exp(), 0.0)
    assert volume.mean().item() == pytest.approx(1.0, abs=5 * volume.std().item() / math.sqrt(n))


@pytest.mark.parametrize("mean", [-50.0, -12.0, 12.0, 50.0])
@pytest.mark.parametrize("log_std", [-20.0, 0.0, 2.0])
def test_saturated_sample_is_finite_and_so_are_its_gradients(mean, log_std):
    mean_leaf = torch.full((64, 1), mean, requires_grad=True)
    log_std_leaf = torch.full((64, 1), log_std, requires_grad=True)
    action, log_prob = squashed_normal_sample(mean_leaf, log_std_leaf)
    assert action.abs().max() <= 1
    assert torch.isfinite(log_prob).all()
    gradients = torch.autograd.grad(log_prob.sum() + action.sum(), [mean_leaf, log_std_leaf])
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_gradients_of_the_sample_match_finite_differences():
    shape = (4, 3)
    mean = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(shape)
    log_std = torch.linspace(0.5, -2, 12, dtype=torch.float64).reshape(shape)
    action_weight = torch.linspace(-1, 3, 12, dtype=torch.float64).reshape(shape)
    log_prob_weight = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)

    def objective(mean, log_std):
        torch.manual_seed(11)
        action, log_prob = squashed_normal_sample(mean, log_std)
        return torch.stack([(action * action_weight).sum(), (log_prob * log_prob_weight).sum()])

    inputs = (mean.requires_grad_(), log_std.requires_grad_())
    jacobian = torch.autograd.functional.jacobian(objective, inputs)
    with torch.no_grad():
        for which in range(2):
            for i in range(12):
                moved = []
                for sign in (1, -1):
                    point = [tensor.clone() for tensor in inputs]
                    point[which].view(-1)[i] += sign * 1e-5
                    moved.append(objective(*point))
                expected = (moved[0] - moved[1]) / 2e-5
                torch.testing.assert_close(jacobian[which].view(2, -1)[:, i], expected, rtol=1e-6, atol=1e-6)


# --- Beta -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("alpha", [0.1, 1.0, 7.0, 1e4])
def test_beta_is_the_softmax(alpha):
    q = np.random.default_rng(0).normal(size=(5, 4, 2)) * 3
    exponentials = np.exp(q / alpha - (q / alpha).max(-1, keepdims=True))
    expected = exponentials / exponentials.sum(-1, keepdims=True)
    beta = beta_distribution(torch.from_numpy(q), alpha)
    assert beta.dtype == torch.float64
    np.testing.assert_allclose(beta.numpy(), expected, rtol=1e-12, atol=1e-300)


def test_beta_does_not_lose_a_small_advantage_on_large_values():
    # 1e6 and 1e6 + 1/2 are float32, 1e6 / 0.3 is rounded to 1/4: the advantage must be taken before dividing.
    beta = beta_distribution(torch.tensor([1e6, 1e6 + 0.5]), 0.3)
    assert beta[1].item() == pytest.approx(1 / (1 + math.exp(-0.5 / 0.3)), rel=1e-6)


def test_beta_keeps_the_tail():
    """The probability of the worse choice is small, not 0: `exp(-50)`, where `1 - beta_1` is 0."""
    beta = beta_distribution(torch.tensor([[0.0, 50.0], [50.0, 0.0]]), 1.0)
    assert beta.tolist() == [pytest.approx([math.exp(-50), 1]), pytest.approx([1, math.exp(-50)])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clipping", [None, (None, None), (-1e30, 1e30)])
@pytest.mark.parametrize("alpha", [0.0, 1e-30, 1e-10, 1e-3, 1.0, 1e30])
def test_beta_at_extremes(dtype, clipping, alpha):
    advantage = torch.tensor([-3e38, -1e30, -1.0, -1e-30, 0.0, 1e-30, 1.0, 1e30, 3e38], dtype=dtype)
    pairs = [(0 * advantage, advantage), (-advantage / 2, advantage / 2), (-advantage, advantage)]
    beta = beta_distribution(torch.stack([torch.stack(pair, -1) for pair in pairs]), alpha, clipping)  # [3, 9, 2]
    assert torch.isfinite(beta).all() and (beta >= 0).all()
    assert (beta.sum(-1) - 1).abs().max() <= 2 * torch.finfo(dtype).eps
    assert (beta[:, advantage == 0] == 0.5).all()
    better, worse = (torch.where(advantage > 0, beta[..., i], beta[..., 1 - i])[:, advantage != 0] for i in (1, 0))
    assert (better >= 0.5).all() and (worse <= 0.5).all()
    large = advantage[advantage != 0].abs() >= 1
    if alpha <= 1e-3:
        assert (better[:, large] == 1).all() and (worse[:, large] == 0).all()
    if alpha == 1e30:
        assert (beta[:, advantage.abs() <= 1] == 0.5).all()


@pytest.mark.parametrize("alpha", [0.0, 1e-30, 0.3, 1e30])
@pytest.mark.parametrize("clipping", [None, (0.0, None), (None, 0.0), (-1.0, 1.0)])
def test_beta_splits_a_tie_exactly(alpha, clipping):
    q = torch.tensor([0.0, -7.25, 1e30, 1e-30]).unsqueeze(-1).expand(4, 2)
    assert beta_distribution(q, alpha, clipping).tolist() == [[0.5, 0.5]] * 4


@pytest.mark.parametrize(
    "alpha, advantage", [(0.0, 1e-10), (1e-30, 1e-10), (1e-12, 1e-10), (1e-10, 1e-10), (1e-9, 1e-9), (2.0, 2.0)]
)
def test_beta_treats_a_smaller_alpha_as_1e_minus_10(alpha, advantage):
    """The advantage over alpha is 1 in all of them: the odds of switching, listed second, are e."""
    beta = beta_distribution(torch.tensor([0.0, advantage]), alpha)
    assert beta.tolist() == pytest.approx([1 / (1 + math.e), math.e / (1 + math.e)], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_beta_accepts_alpha_as_tensor_or_number(dtype):
    q = torch.tensor([[0.5, 1.0], [2.0, -1.0]], dtype=dtype)
    expected = beta_distribution(q, 0.25)
    quarter = torch.tensor(0.25)
    for alpha in (quarter, quarter.double(), quarter.log().exp()):
        beta = beta_distribution(q, alpha)
        assert beta.dtype == dtype and beta.shape == q.shape
        torch.testing.assert_close(beta, expected)


def test_beta_is_never_differentiated():
    q = torch.randn(3, 4, 2, requires_grad=True)
    log_alpha = torch.zeros((), requires_grad=True)
    beta = beta_distribution(q * 2, log_alpha.exp(), (0.0, None))
    assert not beta.requires_grad and beta.grad_fn is None
    assert log_alpha.requires_grad and q.requires_grad


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(
    "clipping, advantage, clipped",
    [
        ((-1.0, 2.0), -5.0, -1.0),
        ((-1.0, 2.0), -0.5, -0.5),
        ((-1.0, 2.0), 1.5, 1.5),
        ((-1.0, 2.0), 5.0, 2.0),
        ((0.0, None), -5.0, 0.0),
        ((0.0, None), 5.0, 5.0),
        ((None, 0.0), -5.0, -5.0),
        ((None, 0.0), 5.0, 0.0),
        ((None, None), -5.0, -5.0),
        ((1.0, 1.0), -5.0, 1.0),
        ((1.0, None), 0.0, 1.0),
        ((0, None), -5.0, 0.0),  # as a configuration may have it: an int
    ],
)
@pytest.mark.parametrize("alpha", [1.0, 4.0])
def test_beta_clips_the_advantage_before_the_temperature(clipping, advantage, clipped, alpha):
    beta = beta_distribution(torch.tensor([10.0, 10.0 + advantage]), alpha, clipping)
    assert beta.tolist() == pytest.approx([sigmoid(-clipped / alpha), sigmoid(clipped / alpha)], rel=1e-6)


def test_beta_refuses_what_it_cannot_use():
    with pytest.raises(TaacError, match="low <= high"):
        beta_distribution(torch.zeros(2), 1.0, (1.0, -1.0))
    for shape in ((3,), (2, 1), (2, 4, 3)):
        with pytest.raises(TaacError, match=r"\[\.\.\., 2\]"):
            beta_distribution(torch.zeros(shape), 1.0)


# --- Entropies ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "probs, expected",
    [
        ([0.25, 0.25, 0.25, 0.25], math.log(4)),
        ([0.5, 0.5, 0.0], math.log(2)),
        # 1/2 log 2 + 2 * 1/4 log 4 = 1/2 log 2 + log 2
        ([0.5, 0.25, 0.25], 1.5 * math.log(2)),
        ([0.0, 1.0], 0.0),
        ([1.0], 0.0),
    ],
)
def test_categorical_entropy(probs, expected):
    assert categorical_entropy(torch.tensor(probs)).item() == pytest.approx(expected, abs=1e-7)


def test_categorical_entropy_is_over_the_last_dimension():
    probs = torch.tensor([[[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]])
    entropy = categorical_entropy(probs)
    assert entropy.shape == (1, 3)
    assert entropy[0].tolist() == pytest.approx([0, math.log(2), 0], abs=1e-7)


def test_continuous_target_entropy():
    # Two dimensions of [-1, 1] and p = 0.1: 2 log(2 * 0.1)
    target = continuous_target_entropy([-1, -1], [1, 1], 0.1)
    assert isinstance(target, float)
    assert target == pytest.approx(2 * math.log(0.2))
    # [0, 3] and [-1, 4]: log(3 * 0.5) + log(5 * 0.5)
    target = continuous_target_entropy(np.array([0, -1]), np.array([3, 4]), 0.5)
    assert target == pytest.approx(math.log(1.5) + math.log(2.5))
    # One dimension as a number; p = 1 is the uniform density, of entropy log(max - min)
    assert continuous_target_entropy(-1.0, 1.0, 1.0) == pytest.approx(math.log(2))
    assert continuous_target_entropy(0.0, 1.0, 1.0) == 0


@pytest.mark.parametrize("min_prob", [0.0, -0.1, 1.0001, 2.0, math.nan])
def test_continuous_target_entropy_refuses_impossible_probabilities(min_prob):
    with pytest.raises(TaacError, match="min_prob"):
        continuous_target_entropy([-1.0], [1.0], min_prob)


@pytest.mark.parametrize(
    "minimum, maximum",
    [
        ([1.0], [1.0]),
        ([1.0], [-1.0]),
        ([-1.0, 0.0], [1.0, 0.0]),
        ([-math.inf], [1.0]),
        ([0.0], [math.inf]),
        ([math.nan], [1.0]),
    ],
)
def test_continuous_target_entropy_refuses_empty_and_infinite_bounds(minimum, maximum):
    with pytest.raises(TaacError, match="bounds"):
        continuous_target_entropy(minimum, maximum, 0.1)


@pytest.mark.parametrize("num_choices, min_prob", [(2, 0.05), (2, 0.3), (3, 0.05), (5, 0.2), (18, 0.5), (1000, 0.9)])
def test_discrete_target_entropy_is_that_of_the_policy_it_describes(num_choices, min_prob):
    probs = [1 - min_prob] + [min_prob / (num_choices - 1)] * (num_choices - 1)
    assert sum(probs) == pytest.approx(1)
    entropy = -sum(p * math.log(p) for p in probs)
    assert discrete_target_entropy(num_choices, min_prob) == pytest.approx(entropy, rel=1e-9)
    tensor = torch.tensor(probs, dtype=torch.float64)
    assert categorical_entropy(tensor).item() == pytest.approx(entropy, rel=1e-9)


@pytest.mark.parametrize("num_choices", [2, 3, 4, 7, 100])
def test_discrete_target_entropy_grows_to_that_of_the_uniform_policy(num_choices):
    greatest = (num_choices - 1) / num_choices
    assert discrete_target_entropy(num_choices, greatest) == pytest.approx(math.log(num_choices), rel=1e-12)
    entropies = [discrete_target_entropy(num_choices, greatest * k / 20) for k in range(1, 21)]
    assert entropies == sorted(entropies)
    assert entropies[0] > 0


@pytest.mark.parametrize("num_choices", [1, 0, -3])
def test_discrete_target_entropy_refuses_fewer_than_two_choices(num_choices):
    with pytest.raises(TaacError, match="at least 2"):
        discrete_target_entropy(num_choices, 0.05)


@pytest.mark.parametrize("num_choices, min_prob", [(2, 0.0), (2, -0.1), (2, 0.51), (3, 0.67), (2, 1.0), (2, math.nan)])
def test_discrete_target_entropy_refuses_impossible_probabilities(num_choices, min_prob):
    with pytest.raises(TaacError, match="min_prob"):
        discrete_target_entropy(num_choices, min_prob)


# --- Boltzmann policy over choices ----------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.1, 1.0, 7.0])
def test_boltzmann_is_the_softmax_over_the_last_dimension(alpha):
    q = np.random.default_rng(0).normal(size=(3, 4, 5))
    weights = np.exp(q / alpha)
    for given in (alpha, torch.tensor(alpha, dtype=torch.float64), torch.tensor(alpha)):
        p = boltzmann_distribution(torch.tensor(q), given)
        np.testing.assert_allclose(p.numpy(), weights / weights.sum(-1, keepdims=True), rtol=1e-6)


def test_boltzmann_by_hand():
    # ln 2 apart at alpha 1: each choice is twice as likely as the one before; at alpha 1/2, four times
    q = torch.tensor([0.0, math.log(2), 2 * math.log(2)], dtype=torch.float64)
    assert boltzmann_distribution(q, 1.0).tolist() == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    assert boltzmann_distribution(q, 0.5).tolist() == pytest.approx([1 / 21, 4 / 21, 16 / 21])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [0.0, 1e-30, 1e-10, 1e-3, 1.0, 1e30])
def test_boltzmann_at_extremes(dtype, alpha):
    q = [[0.0, 0.0, 0.0], [1e30, 1e30, 0.0], [-1e30, 0.0, 1e-30], [3e38, -3e38, 3e38]]
    p = boltzmann_distribution(torch.tensor(q, dtype=dtype), alpha)
    assert p.isfinite().all() and p.sum(-1).tolist() == pytest.approx([1] * 4, abs=1e-6)
    assert p[0].tolist() == pytest.approx([1 / 3] * 3)
    if alpha <= 1e-3:  # ties share, all others have none
        assert p[[1, 3]].tolist() == [[0.5, 0.5, 0], [0.5, 0, 0.5]]


def test_boltzmann_keeps_a_small_advantage_on_large_values():
    p = boltzmann_distribution(torch.tensor([2.0**20, 2.0**20 + 0.125]), 0.125)
    assert p[1].item() == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-6)


@pytest.mark.parametrize("advantage", [-3.0, 0.0, 0.7, 40.0])
def test_boltzmann_of_two_choices_is_beta(advantage):
    q = torch.tensor([1.5, 1.5 + advantage], dtype=torch.float64)
    torch.testing.assert_close(boltzmann_distribution(q, 0.3), beta_distribution(q, 0.3))


def test_boltzmann_is_never_differentiated():
    q, alpha = torch.randn(4, 3, requires_grad=True), torch.tensor(0.5, requires_grad=True)
    assert not boltzmann_distribution(q, alpha).requires_grad
    assert boltzmann_distribution(torch.randn(4, 1), 1.0).tolist() == [[1.0]] * 4  # one choice is certain


# --- Mode -----------------------------------------------------------------------------------------


def test_the_mode_is_tanh_of_the_mean_and_draws_nothing():
    mean, log_std = torch.randn(3, 4, 2), torch.randn(3, 4, 2)
    state = torch.get_rng_state()
    assert torch.equal(squashed_normal_mode(mean, log_std), torch.tanh(mean))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("epsilon", [0.25, 1.0])
def test_the_mode_with_epsilon_is_a_sample_of_the_whole_action(epsilon):
    count = 20_000
    mean, log_std = (torch.tensor(x, dtype=torch.float64).expand(count, 2) for x in ([0.3, -0.7], [-1.0, 0.2]))
    action = squashed_normal_mode(mean, log_std, epsilon)
    sampled = action != torch.tanh(mean)
    assert torch.equal(sampled[:, 0], sampled[:, 1]), "all dimensions of an action, or none"
    error = 4 * math.sqrt(epsilon * (1 - epsilon) / count)
    assert sampled[:, 0].double().mean().item() == pytest.approx(epsilon, abs=error)
    x = torch.atanh(action[sampled[:, 0]])
    assert torch.all((x.mean(0) - mean[0]).abs() < 4 * log_std[0].exp() / math.sqrt(len(x)))
    assert torch.all((x.std(0) / log_std[0].exp() - 1).abs() < 4 / math.sqrt(len(x)))
