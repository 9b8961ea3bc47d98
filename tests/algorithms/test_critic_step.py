"""One forward of executed and next actions, and what uses running statistics."""

from __future__ import annotations

import copy

import pytest
import torch

from taac import nest
from taac.algorithms.trajectories import Tau
from taac.networks.batch_statistics import batch_statistics
from taac.networks.bodies import projections
from taac.ops import losses
from tests.algorithms.test_backbones import with_backbone
from tests.training.runs import build, learn_until

PLAIN_BN = (
    "CriticEnsemble.body = @MlpBody", "MlpBody.norm = @BatchNorm", "MlpBody.hidden_layers = (16,)", "MlpBody.norm_input = True",
)  # fmt: skip


@pytest.fixture
def joint():
    """A TAAC whose critics have batch statistics, a batch, and the halves of its update."""
    trainer = build(*PLAIN_BN)
    learn_until(trainer, 2)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    tau = batch.rollout_info.tau_prev.a
    features = algorithm.encoder(batch.time_step.observation)
    yield algorithm, batch.time_step, features, tau[1:]
    trainer.close()


def critics_in_batch(critics, rows, weights):
    """The critics' predictions in one batch, and how it moves their statistics."""
    copied = copy.deepcopy(critics)
    with batch_statistics(weights):
        found = copied(*rows)
    return found, dict(copied.named_buffers())


def test_halves_share_their_statistics_and_a_candidate_counts_with_its_probability(joint):
    algorithm, time_step, features, tau = joint
    candidates, acted = torch.rand(2, *tau.shape), ~time_step.is_last()[:-1]
    beta_1 = torch.rand_like(acted.float())
    weights = torch.stack([1 - beta_1, beta_1])
    step = algorithm.critic_step(time_step, features, tau)
    rows = [features[:-1], features[1:], features[1:]]
    everything = [torch.cat([x.flatten(0, 1) for x in rows]), torch.cat([x.flatten(0, 1) for x in (tau, *candidates)])]
    counted = torch.cat([acted.flatten().float(), (acted * weights).flatten()])
    online, moved = critics_in_batch(algorithm.critics, everything, counted)
    target, _ = critics_in_batch(algorithm.target_critics, everything, counted)
    kept = {name: buffer.clone() for name, buffer in algorithm.target_critics.named_buffers()}
    value = step.bootstrap(features[1:].expand(2, *features[1:].shape), candidates, weights=weights)
    count = acted.numel()
    torch.testing.assert_close(value, target[:, count:].amin(0).unflatten(0, candidates.shape[:3]))
    torch.testing.assert_close(step.prediction(), online[:, :count].unflatten(1, acted.shape))
    for name, buffer in algorithm.critics.named_buffers():
        torch.testing.assert_close(buffer, moved[name])
    assert all(torch.equal(buffer, kept[name]) for name, buffer in algorithm.target_critics.named_buffers())


@pytest.mark.parametrize("chosen", [0, 1])
def test_a_certain_switch_is_a_stack_of_the_chosen_candidate_alone(joint, chosen):
    algorithm, time_step, features, tau = joint
    candidates, acted = torch.rand(2, *tau.shape), ~time_step.is_last()[:-1]
    weights = torch.zeros(2, *acted.shape)
    weights[chosen] = 1.0
    both, alone = (algorithm.critic_step(time_step, features, tau) for _ in range(2))
    state = copy.deepcopy(algorithm.critics.state_dict())
    of_both = both.bootstrap(features[1:].expand(2, *features[1:].shape), candidates, weights=weights)[chosen]
    predicted = both.prediction()
    algorithm.critics.load_state_dict(state)
    torch.testing.assert_close(of_both, alone.bootstrap(features[1:], candidates[chosen]))
    torch.testing.assert_close(predicted, alone.prediction())


def test_taac_weights_its_candidates_by_beta(joint):
    algorithm, time_step, features, tau = joint
    observation, candidates = nest.index(time_step.observation, slice(1, None)), torch.rand(2, *tau.shape)
    taus = [Tau(candidate, (), ()) for candidate in candidates]
    beta_1 = torch.rand(tau.shape[:2])
    weights = torch.stack([1 - beta_1, beta_1])

    def fresh():
        return algorithm.critic_step(time_step, features, tau)

    expected = (weights * fresh().bootstrap(features[1:].expand(2, *features[1:].shape), candidates, weights=weights)).sum(0)
    torch.testing.assert_close(algorithm.next_value(fresh(), observation, *taus, weights.movedim(0, -1)), expected)
    # Two candidates alike, at one half each, are one
    half = torch.full((*tau.shape[:2], 2), 0.5)
    alone = fresh().bootstrap(features[1:], candidates[0])
    torch.testing.assert_close(algorithm.next_value(fresh(), observation, taus[0], taus[0], half), alone)


@pytest.mark.parametrize("method", ["sac", "td3"])
def test_an_actor_asks_critics_that_have_running_statistics(method, monkeypatch):
    trainer = with_backbone(method, "flash")
    learn_until(trainer, 4)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    of_actor, gradient_loss, critics = [], losses.action_gradient_loss, copy.deepcopy(algorithm.critics)
    monkeypatch.setattr(losses, "action_gradient_loss", lambda *pair: of_actor.append(pair) or gradient_loss(*pair))
    algorithm.train_step(batch)
    [(action, found)] = of_actor
    action = action.detach().requires_grad_()
    each = algorithm.value_of(critics, critics(algorithm.encoder(batch.time_step.observation)[: len(action)], action))
    q = each[0] if method == "td3" and algorithm.combine_critics == "min" else algorithm.over_critics(each)
    torch.testing.assert_close(found, torch.autograd.grad(q.sum(), action)[0], rtol=1e-3, atol=1e-6)
    trainer.close()


def test_targets_that_are_copies_need_one_forward(joint, monkeypatch):
    algorithm, time_step, features, tau = joint
    algorithm.target_critics.load_state_dict(algorithm.critics.state_dict())
    slow = algorithm.critic_step(time_step, features, tau)
    state, candidate = copy.deepcopy(algorithm.critics.state_dict()), torch.rand(tau.shape)
    with torch.no_grad():
        expected = slow.bootstrap(features[1:], candidate)
    predicted = slow.prediction()
    moved = copy.deepcopy(algorithm.critics.state_dict())
    algorithm.critics.load_state_dict(state)
    monkeypatch.setattr(algorithm.target_update, "tau", 1.0)
    monkeypatch.setattr(algorithm.target_critics, "forward", None)  # is not asked
    copied = algorithm.critic_step(time_step, features, tau)
    with torch.no_grad():
        found = copied.bootstrap(features[1:], candidate)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(copied.prediction(), predicted)
    assert not found.requires_grad and copied.prediction().requires_grad
    torch.testing.assert_close(algorithm.critics.state_dict(), moved)


def test_frames_at_the_end_of_an_episode_count_for_no_statistics(joint):
    algorithm, time_step, features, tau = joint
    last = time_step._replace(step_type=time_step.step_type.clone())
    last.step_type[0, 0] = 2
    other = features.clone()
    other[0, 0] += 100.0
    found = []
    for seen in (features, other):
        state = copy.deepcopy(algorithm.critics.state_dict())
        step = algorithm.critic_step(last, seen, tau)
        step.bootstrap(features[1:], tau)
        step.prediction()
        found.append(copy.deepcopy(algorithm.critics.state_dict()))
        algorithm.critics.load_state_dict(state)
    torch.testing.assert_close(*found)


def test_what_acts_and_what_compares_uses_running_statistics():
    """An actor's gradient, beta and greedy steps do not depend on who else is in the batch."""
    trainer = with_backbone("taac", "flash")
    learn_until(trainer, 4)
    agent, batch = trainer.agent, trainer.replay_buffer.sample(8, trainer.segment_length)
    time_step = nest.index(batch.time_step, 0)
    state = agent.initial_state(8)
    buffers = {name: b.clone() for name, b in agent.algorithm.named_buffers()}
    together = agent.predict_step(time_step, state)
    one = agent.predict_step(nest.index(time_step, slice(1)), agent.initial_state(1))
    torch.testing.assert_close(one.output, together.output[:1])
    torch.testing.assert_close(one.switch_probability, together.switch_probability[:1])
    agent.algorithm.rollout_step(time_step, state)
    assert all(torch.equal(b, buffers[name]) for name, b in agent.algorithm.named_buffers())
    trainer.close()


@pytest.mark.parametrize("method", ["sac", "taac"])
def test_targets_are_those_of_an_actor_that_acts(method):
    """Not those of the action that its gradient step sees, whose statistics are the batch's."""
    trainer = with_backbone(method, "flash")
    learn_until(trainer, 4)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    seen, called = [], algorithm.actor.forward
    algorithm.actor.forward = lambda x: seen.append(called(x)) or seen[-1]
    algorithm.train_step(batch)
    assert len(seen) == 2 and not torch.allclose(seen[0][0][-1], seen[1][0][-1]) and not seen[1][0].requires_grad
    trainer.close()


def test_the_gradient_of_an_actor_counts_with_the_beta_of_the_action_that_it_moves(monkeypatch):
    """Not with that of the action which is compared, another one if the actor has batch statistics."""
    trainer = with_backbone("taac", "flash")
    learn_until(trainer, 4)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    of_actor, gradient_loss, critics = [], losses.action_gradient_loss, copy.deepcopy(algorithm.critics)
    monkeypatch.setattr(losses, "action_gradient_loss", lambda *pair: of_actor.append(pair) or gradient_loss(*pair))
    info = algorithm.train_step(batch)
    [(a_hat, weighted)] = of_actor
    a_hat = a_hat.detach().requires_grad_()
    tau_prev = batch.rollout_info.tau_prev
    features, algorithm.critics = algorithm.encoder(batch.time_step.observation), critics  # as they compared
    q = [
        algorithm._min_q(features, tau)
        for tau in (algorithm.trajectory.advance(tau_prev), algorithm.trajectory.start(a_hat, tau_prev))
    ]
    (gradient,) = torch.autograd.grad(q[1].sum(), a_hat)
    beta = algorithm.switch_distribution(q[0].detach(), q[1].detach())
    torch.testing.assert_close(weighted, beta[..., 1:] * gradient, rtol=1e-3, atol=1e-6)
    assert not torch.allclose(info.beta, beta)
    trainer.close()


@pytest.mark.parametrize("method", ["taac", "sac_krep"])
def test_candidates_are_compared_without_dropout(method):
    trainer = with_backbone(method, "droq", "critic/MlpBody.dropout = 0.5")
    learn_until(trainer, 2)
    algorithm, batch = trainer.agent.algorithm, trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))
    found, forward = [], algorithm.critics.forward
    algorithm.critics.forward = lambda *x: found.append((x, forward(*x))) or found[-1][1]
    with trainer.agent.learning():
        algorithm.train_step(batch)
    for inputs, prediction in found[:-1]:
        torch.testing.assert_close(forward(*inputs), prediction)  # both in evaluation mode
    inputs, prediction = found[-1]  # of the critics' loss
    assert not torch.allclose(forward(*inputs), prediction)
    trainer.close()


@pytest.mark.parametrize("method", ["sac", "taac", "td3"])
def test_the_actors_statistics_move_where_the_actor_does(method):
    trainer = with_backbone(method, "crossq", "ActorCriticAlgorithm.policy_delay = 2")
    actor, moves = trainer.agent.algorithm.actor, []
    for updates in range(1, 5):
        learn_until(trainer, updates)
        moves.append(next(b.item() for name, b in actor.named_buffers() if name.endswith("moves")))
    assert moves == [0, 1, 1, 2]
    trainer.close()


def test_weights_and_scales_keep_their_norms():
    trainer = with_backbone("sac", "flash")
    learn_until(trainer, 4)
    algorithm = trainer.agent.algorithm
    for network in (algorithm.critics, algorithm.actor):
        for part in projections(network):
            if hasattr(part, "weight"):
                norms = torch.linalg.vector_norm(part.weight, dim=1)
                torch.testing.assert_close(norms, torch.ones_like(norms))
            else:
                both = torch.cat([part.scale, part.bias] if hasattr(part, "bias") else [part.scale], -1)
                norm = torch.linalg.vector_norm(both, dim=-1)
                torch.testing.assert_close(norm, torch.full_like(norm, part.scale.shape[-1] ** 0.5))
    assert len(projections(algorithm.critics)) == 1 + 1 + 2 * 4 + 1 + 1  # input, embedding, blocks, RMSNorm, head
    trainer.close()


def test_targets_have_the_running_statistics_of_their_networks():
    """Which TD3's target actor and TLA's gate use."""
    trainer = with_backbone("td3", "flash_small")
    learn_until(trainer, 6)
    trainer.agent.algorithm.after_update(6)
    pairs = trainer.agent.algorithm.target_networks()
    trainer.close()
    buffers = [(slow, buffer) for target, network in pairs for slow, buffer in zip(target.buffers(), network.buffers())]
    assert buffers and all(torch.equal(slow, buffer) for slow, buffer in buffers)
