"""Recurrent SAC: the memory against a slow reference, SAC as the case of no memory, what is stored, burn-in, refusals."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms import RecurrentSacAlgorithm, SacAlgorithm
from taac.algorithms.algorithm import reset_where_first
from taac.data_structures import Experience, StepType, TimeStep
from taac.errors import TaacError
from taac.networks import ActorNetwork, CriticEnsemble, GRUMemory, LSTMMemory, RecurrentEncoder
from taac.specs import bounded

F, M, L = (int(t) for t in StepType)
OBSERVATION, ACTION = bounded((3,), -1, 1), bounded((2,), -1.0, 1.0)
# Rows: an episode's middle; one that ends and begins again; one that begins with the segment; FIRST at the last frame.
STEP_TYPE = torch.tensor([[M, M, M, M, M, M], [M, M, L, F, M, M], [F, M, M, M, M, L], [M, M, M, M, L, F]]).T
T, B = STEP_TYPE.shape
SIZE = 4


class NoMemory(nn.Module):
    """Hands on what it is given."""

    def __init__(self, input_size):
        super().__init__()
        self.output_size = input_size

    def initial_state(self, batch_size):
        return ()

    def forward(self, x, state):
        return x, ()


def frames(dtype=torch.float32):
    first = STEP_TYPE == F
    action = torch.rand(T, B, 2, dtype=dtype) * 2 - 1
    reward = torch.randn(T, B, dtype=dtype)
    return TimeStep(
        step_type=STEP_TYPE.to(torch.uint8),
        reward=torch.where(first, 0.0, reward),
        discount=torch.where(STEP_TYPE == L, 0.0, 1.0).to(dtype),
        observation=torch.randn(T, B, 3, dtype=dtype),
        prev_action=torch.where(first.unsqueeze(-1), 0.0, action),
        duration=(~first).to(torch.int16),
    )


class Double(nn.Module):
    """The observation as it is, in its own precision."""

    def __init__(self, spec):
        super().__init__()
        self.output_size = spec.numel

    def forward(self, observation):
        return observation


def recurrent(memory=GRUMemory, **arguments):
    memory_ctor = functools.partial(
        RecurrentEncoder, encoder_ctor=Double, memory_ctor=functools.partial(memory, output_size=SIZE)
    )
    return RecurrentSacAlgorithm(OBSERVATION, ACTION, memory_ctor=memory_ctor, **arguments, **NETWORKS)


NETWORKS = {
    "actor_ctor": functools.partial(ActorNetwork, hidden_layers=(8,)),
    "critic_ctor": functools.partial(CriticEnsemble, hidden_layers=(8,), last_init_range=0.5),
}


def reference_step(cell, x, state):
    """One row's step, by the equations: of a GRU, `h`, or of an LSTM, `(h, c)`."""
    gates = cell.weight_ih @ x + cell.bias_ih
    if isinstance(cell, nn.GRUCell):
        (h,) = state
        inner = cell.weight_hh @ h + cell.bias_hh
        reset, update = (
            torch.sigmoid(gates[i * SIZE : (i + 1) * SIZE] + inner[i * SIZE : (i + 1) * SIZE]) for i in (0, 1)
        )
        new = torch.tanh(gates[2 * SIZE :] + reset * inner[2 * SIZE :])
        return ((1 - update) * new + update * h,)
    h, c = state
    gates = gates + cell.weight_hh @ h + cell.bias_hh
    take, keep, new, give = gates.split(SIZE)
    c = torch.sigmoid(keep) * c + torch.sigmoid(take) * torch.tanh(new)
    return torch.sigmoid(give) * torch.tanh(c), c


def reference_unroll(encoder, time_step, start, burn_in):
    """Row by row and frame by frame: `[T - burn_in, B, SIZE]`."""
    rows = []
    for b in range(B):
        state, outputs = tuple(leaf[b] for leaf in nest.flatten(start)), []
        for t in range(T):
            if t > 0 and STEP_TYPE[t, b] == F:
                state = tuple(torch.zeros_like(leaf) for leaf in state)
            if t == burn_in:
                state = tuple(leaf.detach() for leaf in state)
            x = torch.cat([time_step.observation[t, b], time_step.prev_action[t, b]])
            state = reference_step(encoder.memory, x, state)
            outputs.append(state[0])
        rows.append(torch.stack(outputs[burn_in:]))
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize("memory", [GRUMemory, LSTMMemory])
@pytest.mark.parametrize("burn_in", [0, 1, 3, 4])
def test_the_unrolled_memory_and_its_gradient_against_the_reference(memory, burn_in):
    torch.manual_seed(0)
    encoder = recurrent(memory).double().encoder
    time_step = frames(torch.float64)
    start = nest.map_structure(lambda s: torch.randn_like(s), encoder.initial_state(B))
    weight = torch.randn(T - burn_in, B, SIZE, dtype=torch.float64)
    results = []
    for features in (encoder.unroll(time_step, start, burn_in), reference_unroll(encoder, time_step, start, burn_in)):
        gradient = torch.autograd.grad((features * weight).sum(), tuple(encoder.memory.parameters()))
        results.append((features, *gradient))
    assert results[0][0].shape == (T - burn_in, B, SIZE)
    for given, expected in zip(*results):
        torch.testing.assert_close(given, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("last", [True, False])
def test_without_a_memory_it_is_sac_bit_for_bit(last):
    memoryless = functools.partial(RecurrentEncoder, memory_ctor=NoMemory, sees_action=False)
    torch.manual_seed(0)
    plain = SacAlgorithm(OBSERVATION, ACTION, actor_on_last_frame=last, **NETWORKS)
    torch.manual_seed(0)
    other = RecurrentSacAlgorithm(OBSERVATION, ACTION, memory_ctor=memoryless, actor_on_last_frame=last, **NETWORKS)
    time_step = frames()
    losses = []
    for algorithm in (plain, other):
        torch.manual_seed(1)
        frame = nest.index(time_step, 0)
        step = algorithm.rollout_step(frame, algorithm.initial_state(B))
        greedy = algorithm.predict_step(frame, algorithm.initial_state(B), epsilon=0.5)
        info = nest.map_structure(lambda x: x.expand(T, *x.shape), step.info)
        experience = Experience(time_step, info)
        loss = algorithm.calc_loss(experience, algorithm.train_step(experience))
        loss.loss.mean().backward()
        gradients = {name: p.grad for name, p in algorithm.named_parameters() if p.grad is not None}
        losses.append({"act": step.output, "greedy": greedy.output, "loss": loss.loss, **loss.extra, **gradients})
    assert losses[0].keys() == losses[1].keys() and len(losses[0]) > 15
    assert all(torch.equal(losses[0][name], losses[1][name]) for name in losses[0])


@torch.no_grad()  # what is stored was made in inference mode
@pytest.mark.parametrize("memory", [GRUMemory, LSTMMemory])
def test_what_the_rollout_stored_replays_to_the_features_it_acted_on(memory):
    """Acting frame by frame, with the reset at FIRST, and unrolling from the stored states agree, wherever one starts."""
    torch.manual_seed(0)
    algorithm = recurrent(memory)
    time_step, state, initial = frames(), algorithm.initial_state(B), algorithm.initial_state(B)
    infos, features = [], []
    for t in range(T):
        frame = nest.index(time_step, t)
        state = reset_where_first(state, initial, frame)
        features.append(algorithm.actor_encoder(frame, state.actor)[0].detach())
        step = (algorithm.random_step, algorithm.rollout_step, algorithm.predict_step)[t % 3](frame, state)
        assert nest.flatten(step.info)[0] is nest.flatten(state)[0], "the memory before the frame"
        infos.append(step.info)
        state = step.state
    for t in range(T - 1):
        later = nest.index(time_step, slice(t, None))
        unrolled = algorithm.actor_encoder.unroll(later, infos[t].actor)
        torch.testing.assert_close(unrolled, torch.stack(features[t:]))
        critic = algorithm.encoder.unroll(later, infos[t].critic)
        torch.testing.assert_close(
            critic[1:], algorithm.encoder.unroll(nest.index(later, slice(1, None)), infos[t + 1].critic)
        )


def experience_of(algorithm, time_step):
    torch.manual_seed(2)
    states = nest.map_structure(
        lambda s: torch.randn(T, *s.shape, dtype=time_step.reward.dtype), algorithm.initial_state(B)
    )
    return Experience(time_step, states)


def loss_of(algorithm, experience):
    torch.manual_seed(3)
    return algorithm.calc_loss(experience, algorithm.train_step(experience))


def test_each_network_gets_the_features_that_are_its_own():
    """The loss is SAC's on the reference's features: the actor's memory, the critics', and the target critics'."""
    torch.manual_seed(0)
    burn_in = 2
    algorithm = recurrent(burn_in=burn_in).double()
    with torch.no_grad():
        for p in algorithm.target_encoder.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    time_step = frames(torch.float64)
    experience = experience_of(algorithm, time_step)
    start = nest.index(experience.rollout_info, 0)
    loss = loss_of(algorithm, experience)
    seen = reference_unroll(algorithm.actor_encoder, time_step, start.actor, burn_in)
    features = reference_unroll(algorithm.encoder, time_step, start.critic, burn_in)
    target = reference_unroll(algorithm.target_encoder, time_step, start.critic, 0)[burn_in + 1 :].detach()
    learnt = Experience(nest.index(time_step, slice(burn_in, None)), ())
    torch.manual_seed(3)
    expected = SacAlgorithm.calc_loss(algorithm, learnt, algorithm.learn_from_features(learnt.time_step, seen, features, target))
    assert loss.loss.shape == (T - burn_in, B)
    torch.testing.assert_close(loss.loss, expected.loss)
    gradients = [
        torch.autograd.grad(x.loss.mean(), tuple(algorithm.actor_encoder.parameters())) for x in (loss, expected)
    ]
    torch.testing.assert_close(*gradients)
    assert max(g.abs().max() for g in gradients[0]) > 1e-4


@pytest.mark.parametrize("last", [True, False])
def test_the_actor_sees_its_own_memory_wherever_it_acts(last):
    torch.manual_seed(0)
    algorithm = recurrent(actor_on_last_frame=last)
    inputs = []
    algorithm.actor.register_forward_pre_hook(lambda module, args: inputs.append(args[0].detach()))
    time_step = frames()
    experience = experience_of(algorithm, time_step)
    algorithm.train_step(experience)
    seen = algorithm.actor_encoder.unroll(time_step, nest.index(experience.rollout_info, 0).actor)
    assert len(inputs) == (1 if last else 2)
    torch.testing.assert_close(inputs[0], seen if last else seen[:-1])
    torch.testing.assert_close(inputs[-1], seen if last else seen[1:])


def test_critics_train_their_memory_and_the_actor_its_own():
    torch.manual_seed(0)
    algorithm = recurrent()
    experience = experience_of(algorithm, frames())
    info = algorithm.train_step(experience)
    info.actor_loss.mean().backward(retain_graph=True)
    assert all(p.grad is None for p in [*algorithm.encoder.parameters(), *algorithm.critics.parameters()])
    assert all(p.grad.abs().max() > 0 for p in algorithm.actor_encoder.parameters())
    algorithm.zero_grad()
    info.q.mean().backward()
    assert all(p.grad is None for p in [*algorithm.actor_encoder.parameters(), *algorithm.actor.parameters()])
    assert all(p.grad.abs().max() > 0 for p in algorithm.encoder.parameters())


def test_the_burn_in_is_not_learnt_from_and_the_later_states_are_not_read():
    torch.manual_seed(0)
    algorithm = recurrent(burn_in=2)
    time_step = frames()
    experience = experience_of(algorithm, time_step)
    loss = loss_of(algorithm, experience).loss

    def changed(**fields):
        return loss_of(algorithm, Experience(time_step._replace(**fields), experience.rollout_info)).loss

    bump = torch.zeros(T, B)
    bump[:3] = 5.0  # reward and discount on arriving at the first learnt frame belong to the burn-in
    assert torch.equal(changed(reward=time_step.reward + bump, discount=time_step.discount + bump), loss)
    bump[3] = 5.0
    assert not torch.allclose(changed(reward=time_step.reward + bump), loss)
    earlier = time_step.observation.clone()
    earlier[0] += 1.0  # remembered, though not learnt from
    assert not torch.allclose(changed(observation=earlier), loss)
    states = nest.map_structure(lambda s: torch.cat([s[:1], s[1:] + 1.0]), experience.rollout_info)
    assert torch.equal(loss_of(algorithm, Experience(time_step, states)).loss, loss)


def test_targets_follow_the_memory_and_every_parameter_has_its_group():
    algorithm = recurrent()
    groups = algorithm.parameter_groups()
    assert {id(p) for g in groups.values() for p in g} == {id(p) for p in algorithm.parameters() if p.requires_grad}
    assert set(map(id, algorithm.actor_encoder.parameters())) <= set(map(id, groups["actor"]))
    before = [p.clone() for p in algorithm.target_encoder.parameters()]
    with torch.no_grad():
        for p in algorithm.encoder.parameters():
            p.add_(1.0)
    algorithm.after_update(1)
    for old, new in zip(before, algorithm.target_encoder.parameters()):
        torch.testing.assert_close(new, old + 0.005)


def test_what_is_refused():
    with pytest.raises(TaacError, match="burn_in must be 0 or more, got -1"):
        recurrent(burn_in=-1)
    with pytest.raises(TaacError, match="RecurrentSacAlgorithm"):
        RecurrentSacAlgorithm(OBSERVATION, bounded((), 0, 3, torch.int64))
    assert recurrent(burn_in=3).min_segment_length == 5
