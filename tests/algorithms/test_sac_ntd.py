"""SAC-Ntd: what the rollout stores, and the targets it learns from."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn as nn

from taac.algorithms import OneStepTDLoss, RetraceTDLoss, SacNtdAlgorithm
from taac.data_structures import Experience, StepType, TimeStep
from taac.errors import TaacError
from taac.networks import ActorNetwork, CriticEnsemble
from taac.ops.value_ops import retrace_return
from taac.specs import bounded

STEPS, BATCH, A = 4, 6, 2


def algorithm(**options):
    return SacNtdAlgorithm(
        bounded((3,), -1, 1), bounded((A,), -1, 1),
        actor_ctor=lambda i, a: ActorNetwork(i, a, (8,), head_init_range=0.5),
        critic_ctor=lambda i, r: CriticEnsemble(i, r, 2, (8,), 0.5), **options,
    )  # fmt: skip


def frame():
    return TimeStep(
        torch.full((BATCH,), int(StepType.MID), dtype=torch.uint8), torch.randn(BATCH), torch.ones(BATCH),
        torch.randn(BATCH, 3), torch.zeros(BATCH, A), torch.ones(BATCH),
    )  # fmt: skip


def roll_out(step):
    frames, infos, action = [], [], torch.zeros(BATCH, A)
    for _ in range(STEPS):
        frames.append(frame()._replace(prev_action=action))
        alg_step = step(frames[-1], ())
        infos.append(alg_step.info)
        action = alg_step.output
    stack = lambda records: [torch.stack(parts) for parts in zip(*records)]  # noqa: E731
    return Experience(TimeStep(*stack(frames)), type(infos[0])(*stack(infos)))


def density(tested, time_step, action):
    """log pi of an action by inverting tanh, in float64: exact enough away from the bounds."""
    mean, log_std = (x.double() for x in tested.actor(time_step.observation))
    x = torch.atanh(action.double())
    normal = -0.5 * ((x - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
    return (normal - torch.log(1 - action.double() ** 2)).sum(-1)


def test_the_rollout_stores_its_own_probability():
    tested = algorithm()
    time_step = frame()
    step = tested.rollout_step(time_step, ())
    torch.testing.assert_close(torch.tanh(step.info.pre_tanh), step.output)
    torch.testing.assert_close(step.info.log_mu.double(), density(tested, time_step, step.output), atol=1e-4, rtol=1e-4)


def test_uniform_collection_stores_the_uniform_density():
    step = algorithm().random_step(frame(), ())
    assert step.info.log_mu.tolist() == pytest.approx([-A * math.log(2)] * BATCH)
    torch.testing.assert_close(torch.tanh(step.info.pre_tanh), step.output, atol=1e-6, rtol=0)
    assert step.info.pre_tanh.isfinite().all()


@pytest.mark.parametrize("bound", [-1.0, 1.0])
def test_an_action_at_its_bound_is_stored_as_a_finite_number(bound, monkeypatch):
    """Uniform numbers in [-1, 1) can be -1, whose atanh is infinite."""
    tested, time_step = algorithm(), frame()
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda x, low, high: x.fill_(bound))
    step = tested.random_step(time_step, ())
    assert (step.output == bound).all() and step.info.pre_tanh.isfinite().all()
    torch.testing.assert_close(torch.tanh(step.info.pre_tanh), step.output)


def targets(tested, experience):
    """What the critics regress on, by catching the error's arguments."""
    caught = {}
    tested.td_loss.error = lambda q, target: (
        caught.setdefault("target", target).sum() + RetraceTDLoss().error(q, target)
    )
    info = tested.train_step(experience)
    tested.calc_loss(experience, info)
    return caught["target"], info


@pytest.mark.parametrize("lambda_", [1.0, 0.5, 0.0])
def test_targets_use_the_ratio_of_present_to_rollout_policy(lambda_):
    tested = algorithm(td_loss=RetraceTDLoss(gamma=0.9, lambda_=lambda_))
    experience = roll_out(tested.rollout_step)
    with torch.no_grad():
        for parameter in tested.actor.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # the policy has moved on since
    target, info = targets(tested, experience)
    time_step = experience.time_step
    executed = time_step.prev_action[1:]
    log_pi = density(tested, TimeStep(*[x[:-1] for x in time_step]), executed)
    trace = lambda_ * torch.exp(log_pi - experience.rollout_info.log_mu[:-1]).clamp(max=1)
    with torch.no_grad():
        q = tested.target_critics(time_step.observation[:-1], executed).min(0).values
    expected = retrace_return(
        time_step.reward, info.value, time_step.step_type, 0.9 * time_step.discount, q, trace.float()
    )
    torch.testing.assert_close(target, expected, atol=1e-3, rtol=1e-3)
    assert (trace < lambda_).any() or lambda_ == 0


def test_settings_are_refused():
    with pytest.raises(TaacError, match="RetraceTDLoss"):
        algorithm(td_loss=OneStepTDLoss())
    with pytest.raises(TaacError, match="lambda_"):
        RetraceTDLoss(lambda_=1.5)
    with pytest.raises(TaacError, match="gamma has 2 numbers"):
        algorithm(td_loss=RetraceTDLoss(gamma=(0.9, 0.8)))


class LinearEncoder(nn.Linear):
    output_size = 4

    def __init__(self, spec):
        super().__init__(3, 4)


def test_retrace_corrects_by_the_target_networks():
    tested = algorithm(encoder_ctor=LinearEncoder)
    with torch.no_grad():
        for parameter in (*tested.target_critics.parameters(), *tested.target_encoder.parameters()):
            parameter.add_(0.3 * torch.randn_like(parameter))
    experience = roll_out(tested.rollout_step)
    frames = experience.time_step
    with torch.no_grad():
        features = tested.target_encoder(frames.observation[:-1])
        expected = tested.target_critics(features, frames.prev_action[1:]).amin(0)
    torch.testing.assert_close(tested.train_step(experience).own, expected)
