"""`actor_on_last_frame`: which frames the actor learns on, and that nothing else follows from it."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch

from taac.algorithms import MixedSacAlgorithm, SacAlgorithm, SacNtdAlgorithm, SdarAlgorithm, TempoRLAlgorithm
from taac.algorithms.temporl import TempoRLInfo
from taac.data_structures import Experience, StepType, TimeStep
from taac.errors import TaacError
from taac.networks import ObservationEncoder
from taac.ops import distributions
from taac.specs import TensorSpec, bounded
from tests.training.runs import build

T, B, A = 4, 6, 2
OBSERVATION, ACTION = bounded((3,), -1, 1), bounded((A,), -1, 1)


def replayed(info=()):
    torch.manual_seed(1)
    step_type = torch.full((T, B), int(StepType.MID), dtype=torch.uint8)
    time_step = TimeStep(
        step_type, torch.randn(T, B), torch.ones(T, B), torch.randn(T, B, 3), torch.rand(T, B, A) * 2 - 1,
        torch.ones(T, B, dtype=torch.int16),
    )  # fmt: skip
    return Experience(time_step, info)


def make(last, algorithm=SacAlgorithm, **more):
    torch.manual_seed(0)
    return algorithm(OBSERVATION, ACTION, actor_on_last_frame=last, **more)


def gradients(algorithm, experience):
    """Of actor and temperatures."""
    torch.manual_seed(2)
    algorithm.calc_loss(experience, algorithm.train_step(experience)).loss.sum().backward()
    groups = algorithm.parameter_groups()
    found = [p.grad.clone() for name in ("actor", "temperature") for p in groups[name]]
    algorithm.zero_grad()
    return torch.cat([g.reshape(-1) for g in found])


@pytest.mark.parametrize("ctor", [SacAlgorithm, SdarAlgorithm])
@pytest.mark.parametrize("last", [True, False])
def test_the_actor_learns_on_the_last_frame_or_not(last, ctor):
    algorithm, experience = make(last, ctor), replayed()
    observation = experience.time_step.observation.clone()
    observation[-1] += 1.0
    other = experience._replace(time_step=experience.time_step._replace(observation=observation))
    same = torch.equal(gradients(algorithm, experience), gradients(algorithm, other))
    assert same is not last


@pytest.mark.parametrize("last", [False, "statistics"])
def test_the_actors_loss_is_that_of_the_frames_before(last):
    """Of the same noise, frames 0..T-2 have the loss that they have when all frames are learnt on."""
    experience = replayed()
    torch.manual_seed(2)
    some = make(last).train_step(experience)  # draws for T-1 frames, then for targets
    shorter = experience._replace(time_step=TimeStep(*[x[:-1] for x in experience.time_step]))
    torch.manual_seed(2)
    whole = make(True).train_step(shorter)
    torch.testing.assert_close(some.actor_loss, whole.actor_loss)
    torch.testing.assert_close(some.log_pi, whole.log_pi)
    assert some.actor_loss.shape == (T - 1, B)


def test_what_is_neither_is_refused():
    with pytest.raises(TaacError, match=r"actor_on_last_frame must be True, False or 'statistics', got 'normalisation'"):
        make("normalisation")


def mixed(last):
    torch.manual_seed(0)
    choice = TensorSpec((), torch.int64, np.asarray(0), np.asarray(2))
    return MixedSacAlgorithm(OBSERVATION, (choice, ACTION), actor_on_last_frame=last)


@pytest.mark.parametrize("ctor", [lambda last: make(last, SdarAlgorithm), mixed], ids=["sdar", "mixed"])
def test_where_targets_need_all_actions_the_last_frame_is_left_out_alone(ctor):
    experience, found = replayed(), {}
    if ctor is mixed:
        action = torch.randint(3, (T, B)), experience.time_step.prev_action
        experience = experience._replace(time_step=experience.time_step._replace(prev_action=action))
    for last in (True, False, "statistics"):
        algorithm = ctor(last)
        torch.manual_seed(2)
        info = algorithm.train_step(experience)
        found[last] = info, algorithm.calc_loss(experience, info)
    assert torch.equal(found[False][1].loss, found["statistics"][1].loss)  # of an actor without batch normalisation
    (whole, loss_of_all), (some, loss) = found[True], found[False]
    for name in ("actor_loss", "log_pi", "mean", "log_std"):
        assert torch.equal(getattr(some, name), getattr(whole, name)[:-1]), name
    assert torch.equal(some.value, whole.value) and torch.equal(some.prediction, whole.prediction)
    assert torch.equal(loss.loss[:-1], loss_of_all.loss[:-1]) and not loss.loss[-1].any() and loss_of_all.loss[-1].all()


def test_targets_draw_actions_of_their_own():
    algorithm, experience = make(False), replayed()
    torch.manual_seed(2)
    info = algorithm.train_step(experience)
    torch.manual_seed(2)
    torch.randn(T - 1, B, A)  # the actor's
    after = experience.time_step.observation[1:]
    with torch.no_grad():
        action, log_pi = distributions.squashed_normal_sample(*algorithm.actor(after))
        expected = algorithm.target_critics(after, action).min(0).values - log_pi  # alpha is 1
    torch.testing.assert_close(info.value[1:], expected)


def test_retrace_corrects_the_same_actions_either_way():
    steps = {}
    for last in (True, False):
        algorithm = make(last, SacNtdAlgorithm)
        torch.manual_seed(3)
        info = algorithm.rollout_step(TimeStep(*[x.flatten(0, 1) for x in replayed().time_step]), ()).info
        experience = replayed(type(info)(*[x.unflatten(0, (T, B)).clone() for x in info]))
        train_info = algorithm.train_step(experience)
        # The values differ by their noise: with those of one, both must give one target.
        steps[last] = (algorithm, experience, train_info)
    value, target_q = steps[True][2].value, steps[True][2].own
    targets = [a.targets(e, i._replace(value=value, own=target_q)) for a, e, i in steps.values()]
    torch.testing.assert_close(*targets)


@pytest.mark.parametrize("last", [True, False])
def test_temporl_encodes_what_it_sees_once(last, monkeypatch):
    calls = []
    forward = ObservationEncoder.forward
    monkeypatch.setattr(ObservationEncoder, "forward", lambda self, x: calls.append(self) or forward(self, x))
    algorithm = make(last, TempoRLAlgorithm)
    experience = replayed(TempoRLInfo(torch.rand(T, B) < 0.5))
    algorithm.calc_loss(experience, algorithm.train_step(experience))
    assert calls.count(algorithm.encoder) == 1


@pytest.mark.parametrize("last", [True, False])
def test_the_replay_buffer_knows_whether_a_transition_that_begins_at_last_teaches_anything(last):
    episodes = ("create_environment.max_episode_steps = 3", "Trainer.segment_length = 2")
    with contextlib.closing(build(f"SacAlgorithm.actor_on_last_frame = {last}", *episodes, method="sac")) as trainer:
        for _ in range(100):
            trainer.collect()
        begins = trainer.replay_buffer.sample(200, 2).time_step.is_last()[0].float().mean()
    assert begins == pytest.approx(0.25, abs=0.1) if last else begins < 0.02  # 1 of 4 frames; of 200, 0.2 after four more draws
