"""Recurrent discrete SAC: discrete SAC as the case of no memory, what is stored, masks, branches; the rest is `Memories`'."""

from __future__ import annotations

import functools

import pytest
import torch

from taac import nest
from taac.algorithms import DiscreteSacAlgorithm, RecurrentDiscreteSacAlgorithm
from taac.algorithms.algorithm import reset_where_first
from taac.data_structures import Experience
from taac.errors import TaacError
from taac.networks import CategoricalActorNetwork, CriticEnsemble, GRUMemory, RecurrentEncoder
from taac.specs import ACTION_MASK, bounded
from tests.algorithms.reference import random_mask
from tests.algorithms.test_sac_branches import COUNTS, SPEC, TOTAL
from tests.algorithms.test_sac_recurrent import OBSERVATION, B, NoMemory, T, frames

NETWORKS = {
    "actor_ctor": functools.partial(CategoricalActorNetwork, hidden_layers=(8,)),
    "critic_ctor": functools.partial(CriticEnsemble, hidden_layers=(8,), last_init_range=0.5),
}
MASKED = {"observation": OBSERVATION, ACTION_MASK: bounded((TOTAL,), 0, 1, torch.bool)}
CHOICE = bounded((), 0, 3, torch.int64)
MEMORY = functools.partial(RecurrentEncoder, memory_ctor=functools.partial(GRUMemory, output_size=4))


def recurrent(action_spec=SPEC, spec=MASKED, **arguments):
    torch.manual_seed(0)
    return RecurrentDiscreteSacAlgorithm(spec, action_spec, **{"memory_ctor": MEMORY} | NETWORKS | arguments)


def choices(action_spec=SPEC, masked=True):
    """Frames with choices for actions, 0 at FIRST, and a mask."""
    time_step = frames()
    first = time_step.is_first()
    if action_spec is CHOICE:
        action = torch.randint(4, (T, B)).masked_fill(first, 0)
    else:
        action = torch.stack([torch.randint(n, (T, B)).masked_fill(first, 0) for n in COUNTS], -1)
    if not masked:
        return time_step._replace(prev_action=action)
    observation = {"observation": time_step.observation, ACTION_MASK: random_mask(T, B, counts=COUNTS)}
    return time_step._replace(prev_action=action, observation=observation)


@pytest.mark.parametrize(
    "action_spec, spec", [(CHOICE, OBSERVATION), (SPEC, MASKED)], ids=["one choice", "branches, masked"]
)
def test_without_a_memory_it_is_discrete_sac_bit_for_bit(action_spec, spec):
    memoryless = functools.partial(RecurrentEncoder, memory_ctor=NoMemory, sees_action=False)
    torch.manual_seed(0)
    plain = DiscreteSacAlgorithm(spec, action_spec, **NETWORKS)
    other = recurrent(action_spec, spec, memory_ctor=memoryless)
    time_step = choices(action_spec, spec is MASKED)
    results = []
    for algorithm in (plain, other):
        torch.manual_seed(1)
        frame = nest.index(time_step, 0)
        acted = [
            step(frame, algorithm.initial_state(B))
            for step in (
                algorithm.rollout_step,
                algorithm.random_step,
                functools.partial(algorithm.predict_step, epsilon=0.5),
            )
        ]
        info = nest.map_structure(lambda x: x.expand(T, *x.shape), acted[0].info)
        experience = Experience(time_step, info)
        loss = algorithm.calc_loss(experience, algorithm.train_step(experience))
        cloned = algorithm.cloning_loss(experience)
        (loss.loss.mean() + cloned.mean()).backward()
        gradients = {name: p.grad for name, p in algorithm.named_parameters() if p.grad is not None}
        outputs = {f"acted {i}": step.output for i, step in enumerate(acted)}
        results.append({**outputs, "loss": loss.loss, "cloned": cloned, **loss.extra, **gradients})
    assert results[0].keys() == results[1].keys() and len(results[0]) > 15
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


@torch.no_grad()  # what is stored was made in inference mode
def test_what_the_rollout_stored_replays_to_the_features_it_acted_on():
    algorithm, time_step = recurrent(), choices()
    state, initial = algorithm.initial_state(B), algorithm.initial_state(B)
    infos, features = [], []
    for t in range(T):
        frame = nest.index(time_step, t)
        state = reset_where_first(state, initial, frame)
        features.append(algorithm.remember(frame, state)[0])
        step = (algorithm.random_step, algorithm.rollout_step, algorithm.predict_step)[t % 3](frame, state)
        assert nest.flatten(step.info)[0] is nest.flatten(state)[0], "the memory before the frame"
        valid = frame.observation[ACTION_MASK].split(COUNTS, -1)
        assert all(v.gather(-1, a.unsqueeze(-1)).all() for v, a in zip(valid, step.output.T))
        infos.append(step.info)
        state = step.state
    for t in range(T - 1):
        later = algorithm.memorable(nest.index(time_step, slice(t, None)))
        torch.testing.assert_close(algorithm.actor_encoder.unroll(later, infos[t].actor), torch.stack(features[t:]))


def test_a_memory_takes_choices_as_one_hot_and_no_mask():
    algorithm, time_step = recurrent(), choices()
    memorable = algorithm.memorable(time_step)
    assert memorable.prev_action.shape == (T, B, TOTAL) and (memorable.prev_action.sum(-1) == len(COUNTS)).all()
    for part, chosen in zip(memorable.prev_action.split(COUNTS, -1), time_step.prev_action.movedim(-1, 0)):
        assert torch.equal(part.argmax(-1), chosen)
    assert memorable.observation.keys() == {"observation"}
    other = nest.map_structure(torch.clone, time_step)
    other.observation[ACTION_MASK][:] = True
    other = algorithm.remember(nest.index(other, 0), algorithm.initial_state(B))
    same = algorithm.remember(nest.index(time_step, 0), algorithm.initial_state(B))
    assert all(torch.equal(x, y) for x, y in zip(nest.flatten(other), nest.flatten(same), strict=True))


def test_the_burn_in_is_remembered_and_not_learnt_from():
    algorithm, time_step = recurrent(burn_in=2), choices()
    info = nest.map_structure(lambda x: torch.randn(T, *x.shape), algorithm.initial_state(B))

    def loss_of(**fields):
        experience = Experience(time_step._replace(**fields), info)
        return algorithm.calc_loss(experience, algorithm.train_step(experience)).loss

    loss = loss_of()
    assert loss.shape == (T - 2, B) and algorithm.min_segment_length == 4
    reward = time_step.reward.clone()
    reward[:3] += 5.0
    assert torch.equal(loss_of(reward=reward), loss)
    action = time_step.prev_action.clone()
    action[1] = (action[1] + 1) % 2
    assert not torch.allclose(loss_of(prev_action=action), loss)
    groups = algorithm.parameter_groups()
    assert {id(p) for g in groups.values() for p in g} == {id(p) for p in algorithm.parameters() if p.requires_grad}
    assert set(map(id, algorithm.actor_encoder.parameters())) <= set(map(id, groups["actor"]))


def test_what_is_refused():
    with pytest.raises(TaacError, match=r"RecurrentDiscreteSacAlgorithm\.burn_in must be 0 or more, got -1"):
        recurrent(burn_in=-1)
    with pytest.raises(TaacError, match="RecurrentDiscreteSacAlgorithm needs discrete actions"):
        recurrent(bounded((2,), -1.0, 1.0))
