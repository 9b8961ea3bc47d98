"""SAC-Hybrid: the switch does not see the sampled action, and is learnt from the two values."""

from __future__ import annotations

import pytest
import torch

from taac.algorithms import SacHybridAlgorithm
from taac.algorithms.taac import TaacInfo
from taac.algorithms.trajectories import Tau
from taac.data_structures import AlgStep, Experience, StepType, TimeStep
from taac.errors import TaacError
from taac.networks import ActorNetwork, CriticEnsemble, ObservationEncoder
from taac.specs import bounded

A = 2


def algorithm(**settings):
    return SacHybridAlgorithm(
        bounded((3,), -1, 1), bounded((A,), -1, 1), switch_hidden_layers=(8,),
        actor_ctor=lambda i, a: ActorNetwork(i, a, (8,)),
        critic_ctor=lambda i, r: CriticEnsemble(i, r, 2, (8,), 1.0), **settings,
    )  # fmt: skip


def frames(*batch):
    return TimeStep(
        torch.full(batch, int(StepType.MID), dtype=torch.uint8), torch.randn(batch), torch.ones(batch),
        torch.randn(*batch, 3), torch.zeros(*batch, A), torch.ones(*batch),
    )  # fmt: skip


def set_logit(tested, value):
    with torch.no_grad():
        tested.switch_network.head.weight.zero_()
        tested.switch_network.head.bias.fill_(value)


def test_the_switch_is_independent_of_the_sampled_action():
    """At one state and previous trajectory, switches and actions are uncorrelated, and switch at sigmoid(logit)."""
    tested, count = algorithm(), 20_000
    set_logit(tested, 0.4)
    time_step = TimeStep(*[x[:1].expand(count, *x.shape[1:]) for x in frames(1)])
    state = tested.initial_state(count)
    state = state._replace(tau=Tau(torch.full((count, A), 5.0), (), ()))  # an old action that no new one can be
    sampled = []
    execute = tested.follow_chosen
    tested.follow_chosen = lambda s, a_hat, switch: sampled.append(a_hat) or execute(s, a_hat, switch)
    step = tested.rollout_step(time_step, state)
    switch = step.info.switch.double()
    assert switch.mean().item() == pytest.approx(torch.sigmoid(torch.tensor(0.4)).item(), abs=0.02)
    for i in range(A):
        correlation = torch.corrcoef(torch.stack([switch, sampled[0][:, i].double()]))[0, 1]
        assert abs(correlation) < 0.03
    torch.testing.assert_close(step.output[step.info.switch], sampled[0][step.info.switch])
    assert (step.output[~step.info.switch] == 5.0).all()


def test_greedy_switch_is_the_mode_and_a_tie_repeats():
    tested = algorithm()
    for logit, expected in ((0.1, True), (-0.1, False), (0.0, False)):
        set_logit(tested, logit)
        assert (tested.predict_step(frames(4), tested.initial_state(4)).decided == expected).all()


def test_the_loss_of_the_switch_is_the_expectation_over_both_choices():
    tested = algorithm()
    tested.action_temperature.set_alpha(0.1)  # has no part in it
    tested.beta_temperature.set_alpha(0.5)
    embedded = torch.randn(5, tested.tau_embedding.output_size)
    q_0, q_1 = torch.randn(5), torch.randn(5)
    beta, loss = tested.learn_switch(embedded, q_0, q_1)
    logit = tested.switch_network(embedded).squeeze(-1)
    p = 1 / (1 + torch.exp(-logit))
    expected = p * (0.5 * torch.log(p) - q_1) + (1 - p) * (0.5 * torch.log(1 - p) - q_0)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(beta, torch.stack([1 - p, p], -1))
    # d/dp (1/2 (p log p + (1-p) log(1-p)) - p Q1 - (1-p) Q0) = logit/2 - (Q1 - Q0); dp/dlogit = p (1 - p)
    (gradient,) = torch.autograd.grad(loss.sum(), tested.switch_network.head.bias)
    torch.testing.assert_close(gradient.squeeze(), (p * (1 - p) * (0.5 * logit - (q_1 - q_0))).sum())


def test_the_switch_learns_and_nothing_flows_into_critics_from_it():
    tested = algorithm()
    time_step = frames(3, 4)
    experience = Experience(time_step, TaacInfo(Tau(torch.zeros(3, 4, A), (), ()), torch.ones(3, 4, dtype=torch.bool)))
    info = tested.train_step(experience)
    info.actor_loss.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in tested.switch_network.parameters())
    assert all(p.grad is None for p in tested.critics.parameters())
    groups = tested.parameter_groups()
    assert {id(p) for p in tested.switch_network.parameters()} <= {id(p) for p in groups["actor"]}


def test_advantage_clipping_is_refused():
    with pytest.raises(TaacError, match="no effect"):
        SacHybridAlgorithm(bounded((3,), -1, 1), bounded((A,), -1, 1), b1_advantage_clipping=(0, None))


def test_the_switch_trains_what_embeds_the_trajectory():
    tested = algorithm()
    embedded = torch.randn(5, tested.tau_embedding.output_size, requires_grad=True)
    _, loss = tested.learn_switch(embedded, torch.randn(5), torch.randn(5))
    (gradient,) = torch.autograd.grad(loss.sum(), embedded)
    assert gradient.abs().sum() > 0


def test_a_price_is_paid_by_the_switch_and_in_the_value_of_the_next_state():
    """The switch is learnt, so the price changes neither beta nor Q: only what the switch is worth, and what a state is."""
    torch.manual_seed(0)
    free, price = algorithm(), 0.3
    torch.manual_seed(0)
    priced = algorithm(decision_price=price)
    switch = torch.rand(3, 4) < 0.5
    experience = Experience(frames(3, 4), TaacInfo(Tau(torch.zeros(3, 4, A), (), ()), switch))
    found, losses = [], []
    for tested in (free, priced):
        torch.manual_seed(1)
        found.append(tested.train_step(experience))
        q_0, q_1 = torch.linspace(-1, 1, 5), torch.linspace(2, -2, 5)
        embedded = torch.ones(5, tested.tau_embedding.output_size)
        losses.append(tested.learn_switch(embedded, q_0, tested.net_of_price(q_1)))
    beta_1 = found[0].beta[..., 1]
    torch.testing.assert_close(found[1].beta[..., 1], beta_1)
    torch.testing.assert_close(found[1].value[1:], (found[0].value - price * beta_1)[1:])
    torch.testing.assert_close(found[1].bonus[1:], -price * switch[1:].float())
    torch.testing.assert_close(losses[1][1] - losses[0][1], price * losses[0][0][:, 1])
    torch.testing.assert_close(found[1].actor_loss - found[0].actor_loss, price * beta_1)


def test_the_actor_is_asked_where_the_switch_acts():
    decided = torch.tensor([True, False])
    for own, asked in ((None, {"actor"}), (ObservationEncoder, {"actor", "encoder"})):
        needed = algorithm(actor_encoder_ctor=own).needed_modules(AlgStep((), (), (), decided))
        assert set(needed) == asked and torch.equal(needed["actor"], decided)
        assert not needed.get("encoder", torch.zeros(2)).any()
