"""What critics predict in place of a number."""

from __future__ import annotations

import pytest
import torch

from taac.errors import TaacError
from taac.networks import CategoricalReturns, CriticEnsemble, QuantileReturns
from taac.ops.value_distributions import ValueDistribution, hl_gauss


def test_the_least_of_two_critics_is_the_whole_distribution_of_the_one_with_the_lower_mean():
    head = CategoricalReturns(num_atoms=3, low=-1.0, high=1.0)
    probs = torch.tensor([[[0.6, 0.0, 0.4]], [[0.1, 0.8, 0.1]]]) + 1e-9  # means -0.2 and 0
    found = head.distribution(probs.log(), "min")
    torch.testing.assert_close(found.probs, torch.tensor([[0.6, 0.0, 0.4]]))
    torch.testing.assert_close(head.distribution(probs.log(), "mean").probs, torch.tensor([[0.35, 0.4, 0.25]]))
    torch.testing.assert_close(head.value(probs.log()), torch.tensor([[-0.2], [0.0]]))


def test_truncated_quantiles_are_the_lowest_of_all_critics():
    quantiles = torch.tensor([[[3.0, 1.0, 9.0]], [[2.0, 8.0, 7.0]]])
    found = QuantileReturns(num_quantiles=3, dropped=1).distribution(quantiles, "min")
    assert found.points.tolist() == [[1.0, 2.0, 3.0, 7.0]] and found.probs.tolist() == [[0.25] * 4]


@pytest.mark.parametrize("head", [*(CategoricalReturns(sigma=sigma) for sigma in (None, 0.0, 0.75)), QuantileReturns()])
def test_what_is_learnt_has_the_targets_mean(head):
    """By gradient steps on one prediction."""
    prediction = torch.zeros(2, 1, 1, head.size, requires_grad=True)
    target = ValueDistribution(torch.tensor([[[-1.0, 1.6]]]), torch.tensor([[[0.25, 0.75]]]))
    for of, mean in ((target, 0.95), (torch.tensor([[0.55]]), 0.55)):
        optimizer = torch.optim.Adam([prediction], 0.05)
        for _ in range(600):
            optimizer.zero_grad()
            head.loss(prediction, of).sum().backward()
            optimizer.step()
        # A median that leans to the mean: the quantile loss is a Huber loss
        within = 0.25 if isinstance(head, QuantileReturns) and isinstance(of, ValueDistribution) else 0.02
        assert head.value(prediction).flatten().tolist() == pytest.approx([mean] * 2, abs=within)


def test_targets_are_distributions_two_hot_or_normals():
    """Of -0.5 and 1 with 1/4 and 3/4, whose mean is 0.625, on the atoms -0.5, 0, 0.5, 1; sigma is 0.75 of their distance."""
    target = ValueDistribution(torch.tensor([[[-0.5, 1.0]]]), torch.tensor([[[0.25, 0.75]]]))
    normal = hl_gauss(torch.tensor([0.625]), torch.tensor([-0.5, 0.0, 0.5, 1.0]), 0.375)[0].tolist()
    for sigma, expected in ((None, [0.25, 0.0, 0.0, 0.75]), (0.0, [0.0, 0.0, 0.75, 0.25]), (0.75, normal)):
        head = CategoricalReturns(num_atoms=4, low=-0.5, high=1.0, sigma=sigma)
        logits = torch.zeros(1, 1, 1, 4, requires_grad=True)
        head.loss(logits, target).sum().backward()
        assert (0.25 - logits.grad).flatten().tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("head", [CategoricalReturns(num_atoms=3), QuantileReturns(num_quantiles=3, dropped=0)])
def test_losses_are_summed_over_critics(head):
    prediction, target = torch.randn(2, 4, 5, 3), torch.randn(4, 5)
    apart = [head.loss(one.unsqueeze(0), target) for one in prediction]
    torch.testing.assert_close(head.loss(prediction, target), apart[0] + apart[1])


def test_a_vector_reward_is_refused():
    with pytest.raises(TaacError, match=r"CategoricalReturns predicts the distribution of one return, .* is a vector of 2"):
        CriticEnsemble(3, reward_dim=2, returns=CategoricalReturns())


@pytest.mark.parametrize(
    "make, told",
    [
        (lambda: CategoricalReturns(num_atoms=1), "2 atoms or more.*num_atoms = 1"),
        (lambda: CategoricalReturns(low=1.0, high=1.0), "low < high"),
        (lambda: CategoricalReturns(sigma=-1.0), "sigma >= 0"),
        (lambda: QuantileReturns(dropped=25), r"dropped must be in \[0, num_quantiles = 25\), got 25"),
    ],
)
def test_settings_out_of_range(make, told):
    with pytest.raises(TaacError, match=told):
        make()


def test_what_is_beyond_is_beyond_either_end():
    head = CategoricalReturns(5, -2.0, 2.0)
    assert head.beyond(torch.tensor([[-3.0, -2.0, 0.0, 2.0, 3.0]])).tolist() == [[1.0, 0.0, 0.0, 0.0, 1.0]]
