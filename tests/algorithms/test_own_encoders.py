"""An encoder of the actor's own, and of the value network's own: what sees which, what trains which."""

from __future__ import annotations

import gin
import pytest
import torch

from taac import configuration, nest
from taac.algorithms.algorithm import policy_held
from taac.errors import TaacError
from taac.learning.learner import Learner
from taac.ops.schedules import LinearSchedule
from taac.training import experiment
from tests.methods import DISCRETE_METHODS, fitting
from tests.training.runs import SMALL, build

CPU = torch.device("cpu")
OWN = ["sac", "taac_q", "sac_discrete", "temporl", "sac_krep", "sdar"]  # memories have encoders of their own


@gin.configurable
class LinearEncoder(torch.nn.Linear):
    """Something to learn, whatever is observed."""

    def __init__(self, observation_spec, output_size=5):
        super().__init__(nest.flatten(observation_spec)[0].numel, output_size)
        self.output_size = output_size


def of(method):
    if method in DISCRETE_METHODS:
        return "DiscreteSacAlgorithm"
    return "TaacAlgorithm" if method.startswith("taac") else "SacAlgorithm"


def with_encoders(method, *params):
    encoders = [f"{of(method)}.encoder_ctor = @LinearEncoder", f"{of(method)}.actor_encoder_ctor = @LinearEncoder"]
    small = ["num_envs = 2", "hidden_layers = (8,)", "initial_collect_steps = 40"]
    return build(*small, *encoders, *fitting(method), *params, method=method)


def experience_of(trainer):
    while not trainer.update_ratio.updates_earned(trainer.env_steps):
        trainer.collect()
    return trainer.agent.prepare(trainer.replay_buffer.sample(8, trainer.segment_length))


def outcome(trainer, experience):
    """What the algorithm does and learns from one seed: its steps, its losses, and the gradient of the critics' encoder."""
    torch.manual_seed(0)
    algorithm, found = trainer.agent.algorithm, []
    for step in (algorithm.rollout_step, algorithm.predict_step, lambda *given: algorithm.predict_step(*given, 0.5)):
        found += nest.flatten(tuple(step(trainer.collector.rollout.time_step, trainer.collector.rollout.state)))
    info = algorithm.calc_loss(experience, algorithm.train_step(experience))
    gradients = torch.autograd.grad(info.loss.mean(), list(algorithm.encoder.parameters()))
    return [*found, info.loss.detach(), *info.extra.values(), algorithm.cloning_loss(experience).detach(), *gradients]


@pytest.mark.parametrize("method", OWN)
def test_an_encoder_that_is_a_copy_of_the_critics_changes_nothing(method):
    """And one that is not changes what is done; the critics' encoder learns from neither."""
    trainer = with_encoders(method)
    experience, algorithm = experience_of(trainer), trainer.agent.algorithm
    own = algorithm.actor_encoder
    different = outcome(trainer, experience)
    own.load_state_dict(algorithm.encoder.state_dict())
    copied = outcome(trainer, experience)
    algorithm.actor_encoder = None
    shared = outcome(trainer, experience)
    trainer.close()
    assert len(copied) == len(shared) and all(map(torch.equal, copied, shared))
    assert not all(map(torch.equal, different[:-2], shared[:-2]))


@pytest.mark.parametrize("method", OWN)
def test_the_actors_loss_trains_it_and_nothing_else_does(method):
    trainer = with_encoders(method, "Learner.actor_encoder_learning_rate = 0.5", "Learner.actor_learning_rate = 0.25")
    experience, algorithm = experience_of(trainer), trainer.agent.algorithm
    own = list(algorithm.actor_encoder.parameters())
    info = algorithm.train_step(experience)
    inner = getattr(info, "sac", info)
    values = [x for x in (inner.q, getattr(info, "v", None), getattr(info, "skip_q", None)) if x is not None]
    for value in values:
        assert torch.autograd.grad(value.sum(), own, retain_graph=True, allow_unused=True) == (None, None)
    gradient = torch.autograd.grad(inner.actor_loss.sum(), own, retain_graph=True)
    assert all(bool(g.any()) for g in gradient)
    shared = list(algorithm.encoder.parameters())
    cloning = algorithm.cloning_loss(experience).sum()
    assert all(bool(g.any()) for g in torch.autograd.grad(cloning, own, retain_graph=True))
    with torch.no_grad():
        kept = [p.clone() for p in shared]
        torch._foreach_add_(shared, 1.0)
        assert algorithm.cloning_loss(experience).sum() == cloning.detach(), "the critics' encoder is not looked at"
        torch._foreach_copy_(shared, kept)
    assert torch.autograd.grad(inner.actor_loss.sum(), shared, retain_graph=True, allow_unused=True) == (None, None)
    rates = {id(p): group["lr"] for group in trainer.learner.optimizer.param_groups for p in group["params"]}
    assert {rates[id(p)] for p in own} == {0.5} and {rates[id(p)] for p in algorithm.actor.parameters()} == {0.25}
    before = [p.detach().clone() for p in (*own, *shared)]
    trainer.learn()
    trainer.close()
    assert not any(map(torch.equal, before, (*own, *shared)))
    trainable = {id(p) for p in algorithm.parameters() if p.requires_grad}
    groups = [id(p) for group in algorithm.parameter_groups().values() for p in group]
    assert sorted(groups) == sorted(trainable)


@pytest.mark.parametrize("method, needs_critics", [("sac", False), ("taac_q", True), ("sac_krep", True), ("temporl", True)])
def test_a_role_holds_the_encoders_that_acting_needs(method, needs_critics):
    encoders = [f"{of(method)}.encoder_ctor = @LinearEncoder", f"{of(method)}.actor_encoder_ctor = @LinearEncoder"]
    configuration.load(
        ["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"],
        [*SMALL, *encoders, *fitting(method), "hidden_layers = (8,)"],
    )
    environment = configuration.build(experiment.create_environment)
    agents = []
    for role in ("learn", "act"):
        torch.manual_seed(0)
        agents.append(configuration.build(lambda role=role: experiment.create_agent(environment, CPU, role=role)))
    time_step = environment.reset(1)
    environment.close()
    found = [nest.flatten(tuple(agent.predict_step(time_step, agent.initial_state(1)))) for agent in agents]
    assert all(map(torch.equal, *found))
    held = {name for name, _ in agents[1].algorithm.named_children()}
    assert "actor_encoder" in held and ("encoder" in held) == needs_critics


@pytest.mark.parametrize("method", OWN)
def test_the_actor_may_train_the_critics_encoder(method):
    """By the gradient that an encoder of its own with the same weights gets; all else is computed as without it."""
    trainer = with_encoders(method)
    experience, algorithm = experience_of(trainer), trainer.agent.algorithm
    algorithm.actor_encoder.load_state_dict(algorithm.encoder.state_dict())
    own, shared = list(algorithm.actor_encoder.parameters()), list(algorithm.encoder.parameters())

    def losses():
        torch.manual_seed(0)
        info = algorithm.calc_loss(experience, algorithm.train_step(experience))
        return info.loss.mean(), algorithm.cloning_loss(experience).mean()

    loss, cloning = losses()
    of_own, of_critics = torch.autograd.grad(loss, own, retain_graph=True), torch.autograd.grad(loss, shared)
    cloned = torch.autograd.grad(cloning, own)
    algorithm.actor_encoder, algorithm.actor_trains_encoder = None, True
    same, cloning = losses()
    trainer.close()
    assert torch.equal(loss, same)
    for ours, theirs, both in zip(of_own, of_critics, torch.autograd.grad(same, shared)):
        assert ours.any() and theirs.any()
        torch.testing.assert_close(both, ours + theirs)
    assert all(map(torch.equal, cloned, torch.autograd.grad(cloning, shared)))


@pytest.mark.parametrize("method", ["sac", "sdar", "sac_value", "sac_discrete"])
def test_an_actor_that_is_held_trains_no_encoder(method):
    """Of the critics' loss alone is the encoder's gradient then, and the actor's loss has none on it."""
    encoders = [f"{of(method)}.encoder_ctor = @LinearEncoder", f"{of(method)}.actor_trains_encoder = True"]
    small = ["num_envs = 2", "hidden_layers = (8,)", "initial_collect_steps = 40"]
    trainer = build(*small, *encoders, *fitting(method), method=method)
    experience, algorithm = experience_of(trainer), trainer.agent.algorithm
    with policy_held():
        info = algorithm.train_step(experience)
    trainer.close()
    shared = list(algorithm.encoder.parameters())
    loss = info.actor_loss.mean()
    assert not loss.requires_grad or torch.autograd.grad(loss, shared, allow_unused=True) == (None,) * len(shared)


@pytest.mark.parametrize(
    "method, params, why",
    [
        ("sac", ["SacAlgorithm.actor_encoder_ctor = @LinearEncoder"], "the actor has an encoder of its own"),
        ("sac", [], "its encoder has no parameters"),
        ("sac_recurrent", [], "remove it"),
    ],
)
def test_an_encoder_that_the_actor_cannot_train_is_refused(method, params, why):
    with pytest.raises(TaacError, match=r"remove actor_encoder_ctor"):  # a recurrent actor has a memory of its own anyway
        build("SacAlgorithm.actor_encoder_ctor = @LinearEncoder", method="sac_recurrent")
    with pytest.raises(TaacError, match=f"actor_trains_encoder.* has no effect.*{why}"):
        build("SacAlgorithm.actor_trains_encoder = True", *params, method=method)


# The value network's -------------------------------------------------------------------------------------------------

VALUE = "SacValueAlgorithm.value_encoder_ctor = @LinearEncoder"


def test_the_value_network_has_an_encoder_and_a_slow_copy_of_it():
    trainer = with_encoders("sac_value", VALUE, "Learner.value_encoder_learning_rate = 0.5", "target_tau = 0.25")
    experience, algorithm = experience_of(trainer), trainer.agent.algorithm
    rates = {id(p): group["lr"] for group in trainer.learner.optimizer.param_groups for p in group["params"]}
    own, slow = algorithm.value_encoder, algorithm.target_value_encoder
    assert {rates[id(p)] for p in own.parameters()} == {0.5} and not hasattr(algorithm, "target_encoder")

    # V(s) = value(own(s)), and the target of Q is V' of the slow copies.
    observation = experience.time_step.observation
    own.weight.data.normal_(), slow.weight.data.normal_()
    info = algorithm.train_step(experience)
    torch.testing.assert_close(info.own, algorithm.value(own(observation)))
    expected = algorithm.target_value(slow(observation[1:]))[0]
    torch.testing.assert_close(info.value[1:], expected)
    for other in (algorithm.encoder, algorithm.actor_encoder):
        reached = torch.autograd.grad(info.own.sum(), list(other.parameters()), retain_graph=True, allow_unused=True)
        assert reached == (None, None)
    gradient = torch.autograd.grad(info.own.sum(), list(own.parameters()), retain_graph=True)
    assert all(bool(g.any()) for g in gradient)

    before, now = slow.weight.clone(), own.weight.detach().clone()
    algorithm.after_update(1)
    torch.testing.assert_close(slow.weight, 0.75 * before + 0.25 * now)
    trainable = {id(p) for p in algorithm.parameters() if p.requires_grad}
    assert sorted(id(p) for group in algorithm.parameter_groups().values() for p in group) == sorted(trainable)
    trainer.learn()
    trainer.close()
    assert not torch.equal(own.weight, now)


@pytest.mark.parametrize("given, used", [((0.5, 0.25), 0.25), ((0.5, None), 0.5), ((None, None), 1.0)])
def test_rates_by_schedule(given, used):
    """An encoder follows its own schedule, or that of what it serves, or the learner's."""
    names = ("actor_learning_rate", "actor_encoder_learning_rate")
    bound = {name: LinearSchedule(2 * rate, rate, updates=2) for name, rate in zip(names, given) if rate is not None}
    trainer = with_encoders("sac")
    trainer.close()
    learner = Learner(trainer.agent, LinearSchedule(2.0, 1.0, updates=2), **bound)
    weight = trainer.agent.algorithm.actor_encoder.weight
    group = next(g for g in learner.optimizer.param_groups if g["params"][0] is weight)
    assert group["lr"] == 2 * used
    for scheduled in learner.scheduled:
        scheduled.set(scheduled.schedule(2))
    assert group["lr"] == used


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["actor_encoder", "value_encoder"])
def test_a_rate_of_an_encoder_that_is_not_there_is_refused(name):
    from tests.learning.test_learner import make_agent

    with pytest.raises(TaacError, match=f"{name}_learning_rate has no effect: the algorithm has no {name}"):
        Learner(make_agent(), **{f"{name}_learning_rate": 0.1})
    with pytest.raises(TaacError, match="above 0"):
        Learner(make_agent(), **{f"{name}_learning_rate": 0.0})


def test_a_rate_of_temperatures_that_are_fixed_is_refused():
    from tests.learning.test_learner import make_agent

    agent = make_agent()
    for temperature in agent.algorithm.temperatures().values():
        temperature.value.requires_grad_(False)
    with pytest.raises(TaacError, match="temperature_learning_rate has no effect: the algorithm has no temperature to train"):
        Learner(agent, temperature_learning_rate=0.1)
