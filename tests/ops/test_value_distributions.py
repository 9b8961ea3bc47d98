"""Distributions of values against loops in float64, and what they are in special cases."""

from __future__ import annotations

import math

import pytest
import torch

from taac.algorithms.td_losses import OneStepTDLoss, TAACTDLoss, TDLoss
from taac.data_structures import StepType, TimeStep
from taac.ops import value_distributions, value_ops
from taac.ops.value_distributions import ValueDistribution, cross_entropy, hl_gauss, mixture, project, quantile_huber

SUPPORT = torch.linspace(-2.0, 3.0, 11, dtype=torch.float64)  # atoms at distances of 0.5
FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    points = 4 * torch.randn(*shape, generator=generator, dtype=torch.float64)
    return ValueDistribution(points, torch.rand(*shape, generator=generator, dtype=torch.float64).softmax(-1))


def c51(points, probs, support):
    """Equation 7 of arXiv:1707.06887, one atom after another."""
    low, high, width = float(support[0]), float(support[-1]), float(support[1] - support[0])
    found = [0.0] * len(support)
    for i, atom in enumerate(support.tolist()):
        for x, p in zip(points, probs):
            inside = min(max(x, low), high)
            found[i] += min(max(1 - abs(inside - atom) / width, 0.0), 1.0) * p
    return found


def test_projection_is_that_of_c51():
    value = drawn(4, 3, 7)
    found = project(value, SUPPORT)
    for t in range(4):
        for b in range(3):
            expected = c51(value.points[t, b].tolist(), value.probs[t, b].tolist(), SUPPORT)
            assert found[t, b].tolist() == pytest.approx(expected, abs=1e-12)
    assert found.sum(-1).flatten().tolist() == pytest.approx([1.0] * 12)


def test_a_projection_keeps_the_mean_inside_and_atoms_as_they_are():
    value = drawn(5, 6)
    inside = value._replace(points=value.points.clamp(-2.0, 3.0))
    found = ValueDistribution(SUPPORT, project(inside, SUPPORT))
    torch.testing.assert_close(found.mean(), inside.mean())
    torch.testing.assert_close(project(found, SUPPORT), found.probs)
    both_ends = ValueDistribution(torch.tensor([[-9.0, 9.0]], dtype=torch.float64), torch.tensor([[0.25, 0.75]]).double())
    assert project(both_ends, SUPPORT).tolist() == [[0.25, *[0.0] * 9, 0.75]]


@pytest.mark.parametrize("low, high, count, point", [(-5.0, 5.0, 101, 4.0), (-10.0, 10.0, 1001, 9.5)])
def test_in_float32_a_projection_does_not_move_values(low, high, count, point):
    """What it moves, bootstrapping multiplies by 1 / (1 - gamma)."""
    support = torch.linspace(low, high, count)
    value = ValueDistribution(torch.full((1,), point), torch.ones(1))
    for sigma in (None, 0.75 * (high - low) / (count - 1)):
        probs = project(value, support) if sigma is None else hl_gauss(value.points[0], support, sigma)
        mean = (probs.double() * torch.linspace(low, high, count, dtype=torch.float64)).sum().item()
        assert mean == pytest.approx(point, abs=3e-6)


def test_a_number_is_spread_over_the_bins_and_with_a_narrow_normal_is_two_hot_on_an_atom():
    target = torch.tensor([-2.0, 0.5, 1.1, 7.0], dtype=torch.float64)
    found, sigma = hl_gauss(target, SUPPORT, 0.4), 0.4
    for row, y in zip(found.tolist(), [-2.0, 0.5, 1.1, 3.0]):
        mass = [_normal(x + 0.25, y, sigma) - _normal(x - 0.25, y, sigma) for x in SUPPORT.tolist()]
        assert row == pytest.approx([m / sum(mass) for m in mass], abs=1e-12)
    two_hot = project(ValueDistribution(target.unsqueeze(-1), torch.ones(4, 1).double()), SUPPORT)
    on_atoms = [0, 1, 3]
    torch.testing.assert_close(hl_gauss(target, SUPPORT, 1e-4)[on_atoms], two_hot[on_atoms])


def _normal(x, mean, sigma):
    return 0.5 * (1 + math.erf((x - mean) / (sigma * math.sqrt(2))))


def test_a_mixture_is_not_the_mean_of_points():
    value = drawn(2, 3, 4)  # two candidates
    weights = torch.tensor([[0.25, 1.0, 0.5], [0.75, 0.0, 0.5]], dtype=torch.float64)
    found = mixture(value, weights)
    assert found.points.shape == (3, 8)
    torch.testing.assert_close(found.mean(), (weights * value.mean()).sum(0))
    square = ((found.points**2) * found.probs).sum(-1)
    torch.testing.assert_close(square, (weights * (value.points**2 * value.probs).sum(-1)).sum(0))
    shared = ValueDistribution(SUPPORT, drawn(2, 3, 11).probs)
    alike = mixture(shared._replace(points=SUPPORT.expand(2, 3, 11)), weights)
    torch.testing.assert_close(project(mixture(shared, weights), SUPPORT), project(alike, SUPPORT))


def test_cross_entropy_and_its_gradient():
    logits = torch.randn(2, 5, 11, dtype=torch.float64, requires_grad=True)
    probs = drawn(5, 11).probs
    loss = cross_entropy(logits, probs)
    by_hand = [
        [-sum(p * (x - math.log(sum(map(math.exp, row)))) for p, x in zip(probs[b].tolist(), row)) for b, row in enumerate(rows)]
        for rows in logits.tolist()
    ]
    torch.testing.assert_close(loss, torch.tensor(by_hand, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(gradient, logits.softmax(-1) - probs)


def test_quantile_huber_one_pair_after_another():
    quantiles, target = 2 * torch.randn(2, 3, 4, dtype=torch.float64), drawn(3, 5)
    found = quantile_huber(quantiles, target)
    for n in range(2):
        for b in range(3):
            total = 0.0
            for k, q in enumerate(quantiles[n, b].tolist()):
                tau = (k + 0.5) / 4
                for y, p in zip(target.points[b].tolist(), target.probs[b].tolist()):
                    u = y - q
                    huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
                    total += p * abs(tau - (u < 0)) * huber / 4
            assert float(found[n, b]) == pytest.approx(total)


def test_one_quantile_is_the_mean():
    """Within the Huber loss's square, its gradient is that of half the squared error, times |1/2 - 1{y < q}| = 1/2."""
    q = torch.tensor([[[0.3]]], dtype=torch.float64, requires_grad=True)
    target = ValueDistribution(torch.tensor([[0.1, 0.9]], dtype=torch.float64), torch.tensor([[0.25, 0.75]]).double())
    (gradient,) = torch.autograd.grad(quantile_huber(q, target).sum(), q)
    assert float(gradient) == pytest.approx(0.5 * (0.3 - 0.7))


# Returns ---------------------------------------------------------------------------------------------------------------


def frames(steps=6, batch=40, seed=3):
    """Time steps with endings of both kinds, switches, bonuses and values."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.full((steps, batch), int(MID), dtype=torch.int32)
    ends = torch.rand(steps, batch, generator=generator) < 0.2
    kinds[ends] = int(LAST)
    kinds[1:][ends[:-1]] = int(FIRST)
    discount = torch.where((kinds == LAST) & (torch.rand(steps, batch, generator=generator) < 0.5), 0.0, 1.0)
    reward, value, bonus = (torch.randn(steps, batch, generator=generator) for _ in range(3))
    switch = torch.rand(steps, batch, generator=generator) < 0.4
    time_step = TimeStep(kinds, reward, discount, (), torch.zeros(steps, batch, 1), kinds)
    return time_step, value, switch, bonus


LOSSES = {"one step": OneStepTDLoss, "n steps": TDLoss, "compare-through": TAACTDLoss}


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_a_return_is_reward_and_discounted_value_of_one_frame(name, soft):
    loss, (time_step, value, switch, bonus) = LOSSES[name](gamma=0.9), frames()
    bonus = bonus if soft else None
    stop = loss.stops(time_step, switch)
    found = value_ops.bootstraps(time_step.reward, time_step.step_type, loss.discount(time_step), stop, bonus)
    expected = loss.returns(time_step, value, switch, bonus)
    torch.testing.assert_close(found.reward + found.discount * value.take_along_dim(found.frame, 0), expected)
    if name == "compare-through":  # some reach through, some stop at once
        reached = found.frame - torch.arange(1, 6).unsqueeze(1)
        assert int(reached.min()) == 0 and int(reached.max()) == 4


@pytest.mark.parametrize("name", LOSSES)
def test_certain_values_give_the_scalar_return(name):
    """A distribution on one point is TAAC with a number."""
    loss, (time_step, value, switch, bonus) = LOSSES[name](gamma=0.9), frames()
    certain = ValueDistribution(value.unsqueeze(-1), torch.ones_like(value).unsqueeze(-1))
    found = loss.targets(time_step, certain, switch, bonus)
    torch.testing.assert_close(found.points.squeeze(-1), loss.returns(time_step, value, switch, bonus))


def test_the_distribution_of_one_frames_return_is_the_step_of_c51():
    (time_step, _, switch, _), value = frames(steps=2), drawn(2, 40, 5)
    loss = OneStepTDLoss(gamma=0.9)
    found = project(loss.targets(time_step, value, switch), SUPPORT)
    for b in range(40):
        r, d = float(time_step.reward[1, b]), 0.9 * float(time_step.discount[1, b])
        expected = c51([r + d * x for x in value.points[1, b].tolist()], value.probs[1, b].tolist(), SUPPORT)
        assert found[0, b].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_return_of_several_frames_is_projected_once():
    """Projecting at each step would widen it."""
    time_step, _, _, _ = frames(steps=4, batch=1, seed=0)
    kinds, ones = torch.full((4, 1), int(MID)), torch.ones(4, 1)
    time_step = time_step._replace(step_type=kinds, discount=ones, reward=0.3 * ones)
    value = ValueDistribution(torch.full((4, 1, 1), 1.0), torch.ones(4, 1, 1))
    never = torch.zeros(4, 1, dtype=torch.bool)
    found = project(TAACTDLoss(gamma=1.0).targets(time_step, value, never), SUPPORT.float())[0, 0]
    at = 0.3 * 3 + 1.0  # 1.9 lies between the atoms 1.5 and 2
    assert found.tolist() == pytest.approx([*[0.0] * 7, (2 - at) / 0.5, (at - 1.5) / 0.5, 0.0, 0.0], abs=1e-6)


def test_a_loss_without_one_frame_to_bootstrap_from_uses_the_mean():
    class Half(OneStepTDLoss):
        def stops(self, time_step, switch):
            return None

    time_step, _, switch, _ = frames()
    value = drawn(6, 40, 3)._replace(points=drawn(6, 40, 3).points.float(), probs=drawn(6, 40, 3).probs.float())
    torch.testing.assert_close(
        Half().targets(time_step, value, switch), Half().returns(time_step, value_distributions.mean_of(value), switch)
    )
