"""Two ranks, each with half of a batch, learn what one learns from the whole."""

from __future__ import annotations

import pytest
import torch

from taac import nest
from taac.data_structures import Experience
from taac.errors import DivergedError
from taac.networks import ObservationNormalizer
from taac.specs import bounded
from tests.learning.test_guard import make_batch, make_learner
from tests.learning.test_learner import first_batch
from tests.ranks import together


def half(experience: Experience, number: int) -> Experience:
    def columns(x):
        return x[:, number * x.shape[1] // 2 :][:, : x.shape[1] // 2]

    return nest.map_structure(columns, experience)


def one_update(ranks, trainer, experience):
    """The gradients and parameters after an update, without noise that would depend on the size of a batch."""
    torch.randn_like, torch.rand_like = (lambda x: torch.full_like(x, 0.3)), (lambda x: torch.full_like(x, 0.4))
    learner = trainer.learner
    if ranks is not None:
        learner.ranks = ranks
        learner.agent.join(ranks)
    info = learner.update(experience if ranks is None else half(experience, ranks.number))
    named = dict(learner.agent.named_parameters())
    gradients = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
    return gradients, learner.agent.state_dict(), {tag: float(v) for tag, v in info.extra.items()}


@pytest.mark.parametrize("method", ["taac"])
def test_two_halves_of_a_batch_give_the_gradient_of_the_whole(method, monkeypatch):
    more = ["create_agent.normalize_observations = True", "normalize_rewards = True", "Learner.max_grad_norm = 0.1"]
    trainer, experience = first_batch(method, *more, "Learner.diagnostics = 'scalars'")
    first, second = together(one_update, trainer, experience)
    monkeypatch.setattr(torch, "randn_like", torch.randn_like)  # restored after the next line
    monkeypatch.setattr(torch, "rand_like", torch.rand_like)
    gradients, state, extra = one_update(None, trainer, experience)
    assert gradients.keys() == first[0].keys() and len(gradients) > 6
    assert any(gradient.abs().max() > 1e-4 for gradient in gradients.values())
    for name, gradient in gradients.items():
        torch.testing.assert_close(first[0][name], gradient, rtol=1e-4, atol=1e-6, msg=name)
    assert first[2] == second[2] and first[2] == pytest.approx(extra, rel=1e-4, abs=1e-5)
    for name, tensor in state.items():
        assert torch.equal(first[1][name], second[1][name]), name
        torch.testing.assert_close(first[1][name], tensor, rtol=1e-4, atol=2e-6, msg=name)


def observe(ranks, batches, spec):
    normalizer = ObservationNormalizer(spec)
    normalizer.wait_for_merge()
    for step in batches:
        if len(step[ranks.number]["x"]):
            normalizer.update(step[ranks.number])
        normalizer.merge(ranks)
    return normalizer.state_dict()


def test_merged_statistics_are_those_of_all_observations():
    """Of ranks that see different numbers of observations, none of them included."""
    spec = {"x": bounded((3,), -1, 1), "y": bounded((2,), -1, 1)}
    torch.manual_seed(0)
    sizes = [(4, 4), (1, 7), (0, 3), (5, 0)]
    batches = [[{"x": 5 + 2 * torch.randn(n, 3).double(), "y": torch.randn(n, 2)} for n in step] for step in sizes]
    found = together(observe, batches, spec)
    alone = ObservationNormalizer(spec)
    alone.update({name: torch.cat([b[name] for step in batches for b in step]) for name in spec})
    assert found[0].keys() == alone.state_dict().keys() and alone.count == 24
    for name, tensor in alone.state_dict().items():
        assert torch.equal(found[0][name], found[1][name])
        torch.testing.assert_close(found[0][name], tensor, rtol=1e-12, atol=1e-12)


def diverge(ranks):
    learner = make_learner()
    learner.ranks = ranks
    learner.agent.join(ranks)
    learner.update(make_batch())
    before = [p.detach().clone() for p in learner.agent.parameters()]
    batch = make_batch()
    if ranks.number == 1:
        batch.time_step.reward[1, 2] = float("nan")
    with pytest.raises(DivergedError, match="update 2 was not taken") as error:
        learner.update(batch)
    assert all(torch.equal(p, then) for p, then in zip(learner.agent.parameters(), before))
    return str(error.value)


def test_what_is_not_finite_in_one_rank_is_learnt_by_none():
    first, second = together(diverge)
    assert "the loss" in first and "the loss" in second
    assert "the first [t, b] = [0, 2]" in second and "[t, b]" not in first
