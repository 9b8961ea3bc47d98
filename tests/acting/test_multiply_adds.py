"""Multiply-adds of acting: against a count by hooks on the layers, and where they are not needed."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn as nn

from taac.acting.evaluation import evaluate
from taac.acting.multiply_adds import MultiplyAdds
from taac.acting.rollout import Rollout
from taac.algorithms.memories import Memories
from taac.networks.layers import EnsembleLinear
from taac.playing.conditions import Holding
from tests.algorithms.test_own_encoders import LinearEncoder  # noqa: F401, gin's by its import
from tests.methods import REPRESENTATIVES, fitting
from tests.training.runs import build


def by_hooks(agent, act):
    """The multiply-adds of the layers that `act` calls: each number that goes out costs as many as go in."""
    total, handles = 0, []

    def add(layer, given, out):
        nonlocal total
        if isinstance(layer, nn.RNNCellBase):  # gates of what comes in, and of what is remembered
            total += given[0].shape[0] * layer.hidden_size * (layer.input_size + layer.hidden_size) * 3
        else:
            total += out.numel() * given[0].shape[-1]

    idle = set(agent.algorithm.encoder.modules()) if isinstance(agent.algorithm, Memories) else set()  # of the critics
    for module in set(agent.algorithm.modules()) - idle:
        if isinstance(module, (nn.Linear, EnsembleLinear, nn.GRUCell)):
            handles.append(module.register_forward_hook(add))
    try:
        return act(), total
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("method", [*REPRESENTATIVES, "td3", "sdar", "sac_krep"])
def test_against_a_count_by_hooks(method):
    """Each decides anew at the first step."""
    trainer = build("num_envs = 3", *fitting(method), method=method)
    agent, environment = trainer.agent, trainer.collector.environment
    rollout, counts = Rollout(environment, agent), MultiplyAdds(agent)
    rollout.reset(0)
    found = []

    def act(time_step, state):
        (step, cost), expected = by_hooks(agent, lambda: counts.count(lambda: agent.predict_step(time_step, state)))
        found.append((cost, expected))
        return step

    for _ in range(2):
        rollout.step(act)
    cost, expected = found[0]
    assert expected > 0
    assert cost.tolist() == [expected / 3] * 3
    assert (found[1][0] <= cost).all()


def test_none_where_an_action_is_held():
    trainer = build("TempoRLAlgorithm.max_skip = 3", "Trainer.segment_length = 4", method="temporl")
    agent = trainer.agent
    episode, *_ = evaluate(agent, trainer.collector.environment, 2, seed=0)
    counts = MultiplyAdds(agent)
    one = counts.count(lambda: agent.predict_step(trainer.collector.environment.reset(0), agent.initial_state(1)))[1]
    assert 0 < episode.decisions < episode.length
    assert episode.multiply_adds == episode.decisions * one[0]


def test_the_memory_of_the_critics_is_not_the_actors():
    trainer = build(method="sac_recurrent")
    agent, first = trainer.agent, trainer.collector.environment.reset(0)
    cost = MultiplyAdds(agent).count(lambda: agent.predict_step(first, agent.initial_state(1)))[1]
    needed = (agent.algorithm.actor_encoder, agent.algorithm.actor)
    assert 0 < cost[0] <= sum(p.numel() for module in needed for p in module.parameters())


def test_the_encoder_of_the_critics_is_not_the_actors():
    """SAC-Hybrid's switch is a policy, so that only the actor's own encoder is needed."""
    encoders = [f"ActorCriticAlgorithm.{name} = @LinearEncoder" for name in ("encoder_ctor", "actor_encoder_ctor")]
    trainer = build(*encoders, method="sac_hybrid")
    agent, first = trainer.agent, trainer.collector.environment.reset(0)
    of = agent.algorithm
    cost = MultiplyAdds(agent).count(lambda: agent.predict_step(first, agent.initial_state(1)))[1]
    used = (of.actor_encoder, of.actor, of.tau_embedding, of.switch_network)
    assert cost[0] == sum(p.numel() for module in used for name, p in module.named_parameters() if name.endswith("weight"))


def test_of_two_policies_only_those_that_are_asked():
    """TLA: the slow policy and the gate where a window begins, the fast policy where it is open."""
    trainer = build("TlaAlgorithm.slow_steps = 4", "Trainer.segment_length = 9", "TlaAlgorithm.gate_epsilon = 1.0", method="tla")
    agent, environment, steps = trainer.agent, trainer.collector.environment, []
    # Epsilon 1 draws each gate by a coin.
    (episode,) = evaluate(agent, environment, 1, seed=0, epsilon=1.0, on_step=lambda _, step: steps.append(step.info))
    begins, opened = (sum(bool(getattr(info, name)) for info in steps[:-1]) for name in ("begins", "open"))  # not at LAST
    of = agent.algorithm
    policies = (of.actor, of.slow.actor, of.gate_critic)
    fast, slow, gate = (sum(p.numel() for n, p in module.named_parameters() if n.endswith("weight")) for module in policies)
    assert 0 < opened < len(steps) and begins == episode.length // 4
    assert episode.multiply_adds == begins * (slow + gate) + opened * fast


@pytest.mark.parametrize("hold, decisions", [(1, 200), (3, 67)])
def test_of_an_agent_that_is_asked_less(hold, decisions):
    trainer = build(method="sac")
    agent, environment = trainer.agent, trainer.collector.environment
    one = MultiplyAdds(agent).count(lambda: agent.predict_step(environment.reset(0), agent.initial_state(1)))[1]
    asked = agent if hold == 1 else Holding(agent, hold)
    for episode in evaluate(asked, environment, 2, seed=0):
        assert (episode.length, episode.decisions) == (200, decisions)
        assert np.isclose(episode.multiply_adds, decisions * one[0])


def test_a_module_that_half_of_the_agents_need_counts_half():
    decided = torch.ones(2, 2, dtype=torch.bool)
    agent = SimpleNamespace(needed_modules=lambda step: {"actor": torch.tensor([[True, False], [True, True]])})
    counts = MultiplyAdds(agent)
    counts._counts = {"actor": 100, "encoder": 10}
    _, total = counts.count(lambda: SimpleNamespace(decided=decided))
    assert total.tolist() == [60.0, 110.0]
