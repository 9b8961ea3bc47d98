"""Behaviour cloning's loss of every algorithm against slow references, one frame at a time, and what it moves."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch

from taac import nest
from taac.algorithms import DiscreteSacAlgorithm, SacHybridAlgorithm, SacValueAlgorithm
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import Algorithm
from taac.algorithms.shared_policy import AgentBatch
from taac.data_structures import Experience, StepType
from taac.errors import TaacError
from taac.networks import CategoricalActorNetwork, CriticEnsemble
from taac.specs import bounded
from tests.algorithms import reference, taac_reference, test_sac_discrete, test_sac_mixed, test_sac_recurrent, test_sdar
from tests.algorithms.reference import ACTION_SPEC, BATCH, IMAGE_SPEC, IS_LAST, NUM_ACTIONS, STEPS, VECTOR_SPEC

AT_MEAN = torch.zeros(NUM_ACTIONS, dtype=torch.float64)


def check(algorithm, experience, of_frame, names, steps=STEPS, is_last=IS_LAST):
    """Loss and gradients are those of `of_frame(w, t, b)` at frames but LAST and the segment's last; only `names` move."""
    weights = reference.weights_of(algorithm)
    expected = [
        [of_frame(weights, t, b) if t < steps - 1 and not is_last[t, b] else 0.0 for b in range(len(is_last[0]))]
        for t in range(steps)
    ]
    loss = algorithm.cloning_loss(experience)
    assert loss.shape == (steps, len(is_last[0]))
    values = torch.tensor(
        [[x if isinstance(x, float) else x.item() for x in row] for row in expected], dtype=torch.float64
    )
    torch.testing.assert_close(loss.detach().double(), values, rtol=1e-6, atol=1e-7)
    moved = {n: p for n, p in algorithm.named_parameters() if n.startswith(names)}
    total = sum(sum(row) for row in expected)
    slow = torch.autograd.grad(total, [weights[name] for name in moved], allow_unused=True)
    reference.check_actor_alone(algorithm, loss, names)
    for (name, parameter), gradient in zip(moved.items(), slow):
        assert gradient is not None, name
        torch.testing.assert_close(parameter.grad.double(), gradient, rtol=1e-5, atol=1e-8)


def demonstrated(spec=VECTOR_SPEC):
    """Frames whose rewards are never read."""
    time_step = reference.replayed(spec)
    return time_step._replace(reward=torch.full_like(time_step.reward, reference.NAN))


def squared(w, features, action):
    mode, _ = reference.act(w, features, AT_MEAN)
    return ((mode - action) ** 2).sum()


@pytest.mark.parametrize("spec", [VECTOR_SPEC, IMAGE_SPEC], ids=["vector", "image"])
def test_of_sac(spec):
    algorithm, time_step = reference.sac(reference.SAC | {"spec": spec}), demonstrated(spec)

    def of_frame(w, t, b):
        return squared(w, reference.encode(w, "encoder", time_step.observation, t, b).detach(), time_step.prev_action[t + 1, b])

    check(algorithm, Experience(time_step, ()), of_frame, ("actor.",))


def test_of_sac_by_hand():
    """A policy that does nothing, of one dimension: at frame t the squared action of t+1; 0 at LAST and at the end."""
    algorithm = reference.sac(reference.SAC)
    with torch.no_grad():
        algorithm.actor.head.weight.zero_()
        algorithm.actor.head.bias.zero_()
    time_step = demonstrated()
    time_step = nest.index(time_step, (slice(None), slice(2, 3)))  # M l F M L F
    actions = torch.tensor([9.0, 0.1, 0.0, 0.2, 0.3, 0.0], dtype=torch.float64)
    time_step = time_step._replace(prev_action=actions.reshape(6, 1, 1).expand(6, 1, NUM_ACTIONS) / math.sqrt(2))
    loss = algorithm.cloning_loss(Experience(time_step, ()))[:, 0]
    torch.testing.assert_close(loss, torch.tensor([0.01, 0.0, 0.04, 0.09, 0.0, 0.0], dtype=torch.float64))


def test_of_sac_with_a_value_network():
    algorithm = reference.scrambled(SacValueAlgorithm(VECTOR_SPEC, ACTION_SPEC, **reference.networks()))
    time_step = demonstrated()

    def of_frame(w, t, b):
        return squared(w, time_step.observation[t, b].double(), time_step.prev_action[t + 1, b])

    check(algorithm, Experience(time_step, ()), of_frame, ("actor.",))


def test_of_mixed_sac():
    """Of the continuous parts; which choice was demonstrated makes no difference."""
    algorithm = test_sac_mixed.mixed(test_sac_mixed.MIXED)
    time_step, choice, vector = test_sac_mixed.replayed_mixed()

    def of_frame(w, t, b):
        return squared(w, reference.encode(w, "encoder", time_step.observation, t, b).detach(), vector[t + 1, b])

    check(algorithm, Experience(time_step, ()), of_frame, ("actor.",))
    other = time_step._replace(prev_action=test_sac_mixed.nested(torch.zeros_like(choice), vector))
    losses = [algorithm.cloning_loss(Experience(x, ())) for x in (time_step, other)]
    assert torch.equal(*losses)


@pytest.mark.parametrize("masked", [False, True])
def test_of_discrete_sac(masked):
    settings = test_sac_discrete.DISCRETE | {"masked": masked}
    algorithm = test_sac_discrete.discrete(settings)
    mask = reference.random_mask(STEPS, BATCH, counts=(test_sac_discrete.CHOICES,)) if masked else None
    time_step, choice, valid = test_sac_discrete.replayed_discrete(mask=mask)
    if masked:  # nothing is valid any more where the task ended
        time_step.observation["action_mask"][IS_LAST] = False
    choice[reference.IS_FIRST] = 0  # as stored
    choice[0] = 99  # never read
    observation = time_step.observation["observation"] if masked else time_step.observation

    def of_frame(w, t, b):
        features = observation[t, b].double()
        return -test_sac_discrete.policy(w, features, valid[t, b])[int(choice[t + 1, b])].log()

    check(algorithm, Experience(time_step, ()), of_frame, ("actor.",))


def test_a_demonstrated_choice_that_the_mask_forbids_teaches_nothing():
    algorithm = test_sac_discrete.discrete(test_sac_discrete.DISCRETE | {"masked": True})
    mask = torch.ones(STEPS, BATCH, test_sac_discrete.CHOICES, dtype=torch.bool)
    mask[..., 0] = False
    time_step, choice, _ = test_sac_discrete.replayed_discrete(mask=mask)
    choice[:] = 0
    loss = algorithm.cloning_loss(Experience(time_step, ()))
    loss.sum().backward()
    assert not loss.any()
    assert all(p.grad is None or not p.grad.any() for p in algorithm.parameters())


def test_of_agents_that_share_a_policy():
    """Each agent is a row, with a choice and a loss of its own."""
    agents, choices = 3, 4
    batch = AgentBatch(bounded((agents, 2), -1, 1), bounded((agents,), 0, choices - 1, torch.int64), None)
    algorithm = DiscreteSacAlgorithm(
        batch.observation,
        batch.action,
        actor_ctor=functools.partial(CategoricalActorNetwork, hidden_layers=()),
        critic_ctor=functools.partial(CriticEnsemble, hidden_layers=(6,)),
    )
    time_step = demonstrated()._replace(
        observation=torch.randn(STEPS, BATCH, agents, 2), prev_action=torch.randint(choices, (STEPS, BATCH, agents))
    )
    agent = Agent(algorithm, agents=batch)
    cloned = algorithm.cloning_loss(agent.prepare_observations(Experience(time_step, ())))
    assert cloned.shape == (STEPS, BATCH * agents)
    for t, b, g in itertools.product(range(STEPS - 1), range(BATCH), range(agents)):
        logits = algorithm.actor(time_step.observation[t, b, g]).detach()
        expected = 0.0 if IS_LAST[t, b] else -logits.log_softmax(-1)[time_step.prev_action[t + 1, b, g]]
        assert cloned[t, b * agents + g].detach().item() == pytest.approx(float(expected), rel=1e-5, abs=1e-6)


def a_hat_of(kind, action, a_old):
    """What `start` turns into the action; by hand from its equations."""
    return {"linear-direct": (action - a_old) / 2, "quadratic-direct": (action - a_old) / 4}.get(kind, action)


def taac_frames(kind):
    """Demonstrations whose switch differs from frame to frame; trajectories follow nothing in particular."""
    experience = taac_reference.experience_of(taac_reference.TAAC | {"kind": kind})
    action = torch.rand(STEPS, BATCH, NUM_ACTIONS, dtype=torch.float64) * 2 - 1
    action[0] = reference.NAN
    return experience._replace(time_step=experience.time_step._replace(prev_action=action))


def embedded(w, features, parts):
    layers = [
        w[f"tau_embedding.parts.{i}.weight"] @ p + w[f"tau_embedding.parts.{i}.bias"] for i, p in enumerate(parts)
    ]
    return torch.cat([features, *layers])


@pytest.mark.parametrize("kind", taac_reference.TRAJECTORIES)
def test_of_taac(kind):
    algorithm, experience = taac_reference.taac(taac_reference.TAAC | {"kind": kind}), taac_frames(kind)
    time_step, info = experience
    parts = [x for x in info.tau_prev if not isinstance(x, tuple)]

    def of_frame(w, t, b):
        before = [x[t, b] for x in parts]
        x = embedded(w, reference.encode(w, "encoder", time_step.observation, t, b).detach(), before)
        a_hat = a_hat_of(kind, time_step.prev_action[t + 1, b], before[0])
        return squared(w, x, a_hat) * float(info.switch[t, b])

    assert 0 < info.switch[:-1].float().mean() < 1
    check(algorithm, experience, of_frame, taac_reference.ACTORS)


def test_of_sac_hybrid_the_switch_is_cloned_too():
    """Its switch is a policy: cross-entropy at every frame, whether it switched or not."""
    algorithm = reference.scrambled(
        SacHybridAlgorithm(VECTOR_SPEC, ACTION_SPEC, switch_hidden_layers=(5,), **reference.networks())
    )
    experience = taac_frames("constant")
    time_step, info = experience

    def of_frame(w, t, b):
        x = embedded(w, time_step.observation[t, b].double(), [info.tau_prev.a[t, b]])
        hidden = torch.relu(w["switch_network.hidden.0.weight"] @ x + w["switch_network.hidden.0.bias"])
        logit = (w["switch_network.head.weight"] @ hidden + w["switch_network.head.bias"])[0]
        p = 1 / (1 + torch.exp(-logit))
        if not info.switch[t, b]:
            return -torch.log(1 - p)
        return -torch.log(p) + squared(w, x, time_step.prev_action[t + 1, b])

    check(algorithm, experience, of_frame, ("actor.", "tau_embedding.", "switch_network."))


def test_of_sdar():
    """Which dimensions repeat is seen in the actions: cross-entropy of beta, and squared distance where they act."""
    algorithm, time_step = test_sdar.sdar(test_sdar.SDAR), test_sdar.replayed_all()
    kept = torch.rand(STEPS, BATCH, NUM_ACTIONS) < 0.5
    for t in range(1, STEPS):  # the action of frame t-1, seen at t, repeats that of t-2, seen at t-1
        repeats = kept[t] & ~torch.as_tensor(reference.IS_FIRST[t]).unsqueeze(-1)  # at FIRST it acts
        time_step.prev_action[t] = torch.where(repeats, time_step.prev_action[t - 1], time_step.prev_action[t])

    def of_frame(w, t, b):
        observation, before = time_step.observation[t, b].double(), time_step.prev_action[t, b]
        executed = time_step.prev_action[t + 1, b]
        acts = [bool(reference.IS_FIRST[t, b]) or bool(x != y) for x, y in zip(executed, before)]
        total = torch.zeros((), dtype=torch.float64)
        if not reference.IS_FIRST[t, b]:
            p = test_sdar.selection_probability(w, observation, before)
            total = total - sum(torch.log(q if a else 1 - q) for q, a in zip(p, acts))
        mean, _ = test_sdar.propose(w, observation, before, [float(a) for a in acts])
        return total + sum((torch.tanh(m) - x) ** 2 for m, x, a in zip(mean, executed, acts) if a)

    check(algorithm, Experience(time_step, ()), of_frame, test_sdar.POLICY)


@pytest.mark.parametrize("burn_in", [0, 2])
def test_of_recurrent_sac(burn_in):
    """The memory runs from what was stored at the segment's first frame; the burn-in is not learnt from."""
    algorithm = test_sac_recurrent.recurrent(burn_in=burn_in).double()
    time_step = test_sac_recurrent.frames(torch.float64)
    length, batch = time_step.step_type.shape
    states = [nest.map_structure(torch.randn_like, algorithm.initial_state(batch)) for _ in range(length)]
    experience = Experience(time_step, nest.map_structure(lambda *leaves: torch.stack(leaves), *states))
    features = test_sac_recurrent.reference_unroll(algorithm.actor_encoder, time_step, states[0].actor, burn_in)
    expected, total = torch.zeros(length - burn_in, batch, dtype=torch.float64), 0.0
    for t in range(length - 1 - burn_in):
        for b in range(batch):
            if time_step.step_type[burn_in + t, b] != StepType.LAST:
                mean = algorithm.actor(features[t, b])[0]
                distance = ((torch.tanh(mean) - time_step.prev_action[burn_in + t + 1, b]) ** 2).sum()
                expected[t, b], total = distance.detach(), total + distance
    own = {n: p for n, p in algorithm.named_parameters() if n.startswith(("actor.", "actor_encoder."))}
    slow = torch.autograd.grad(total, list(own.values()))
    loss = algorithm.cloning_loss(experience)
    torch.testing.assert_close(loss.detach(), expected)
    reference.check_actor_alone(algorithm, loss, ("actor.", "actor_encoder."))
    for (name, parameter), gradient in zip(own.items(), slow):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-10, msg=name)


def test_an_algorithm_that_has_none_says_so():
    with pytest.raises(TaacError, match="Algorithm does not support behaviour cloning"):
        Algorithm().cloning_loss(None)
