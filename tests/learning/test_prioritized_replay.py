"""Prioritised replay in the training loop: every method by one line, its errors and weights, and the same run resumed."""

from __future__ import annotations

import pytest
import torch

from taac.algorithms import SacAlgorithm, SacValueAlgorithm
from taac.algorithms.agent import Agent
from taac.data_structures import Experience, LossInfo, StepType, TimeStep
from taac.errors import TaacError
from taac.learning.learner import Learner
from taac.specs import bounded
from tests.algorithms.test_own_encoders import LinearEncoder
from tests.methods import REPRESENTATIVES, fitting
from tests.test_learning import countdown
from tests.training.runs import assert_resumes_exactly, build, trained

PRIORITIZED = "create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer"


@pytest.mark.parametrize("method", REPRESENTATIVES)
def test_every_method_by_one_line(method):
    trainer = build(PRIORITIZED, "num_envs = 2", "initial_collect_steps = 60", *fitting(method), method=method)
    learnt, update = [], trainer.replay_buffer.update_priorities
    trainer.replay_buffer.update_priorities = lambda *given: learnt.append(given) or update(*given)
    trained(trainer, 6)
    (_, weights, drawn, *_), error = learnt[-1]
    assert weights.shape == error.shape == (32,)
    assert weights.max() == 1 and 0 < weights.min() < 1
    assert not error.requires_grad and error.min() >= 0 and error.std() > 0
    # The tree has the last errors.
    priority = (error.double() + trainer.replay_buffer.epsilon) ** trainer.replay_buffer.alpha
    for item, expected in zip(drawn, priority):
        assert trainer.replay_buffer._tree.masses[item] >= expected
    assert {"replay/weight", "replay/segment_error"} <= set(trainer.learner.losses)


@pytest.mark.slow
def test_a_killed_run_ends_as_the_run_that_was_never_killed(tmp_path):
    params = (
        PRIORITIZED,
        "num_envs = 3",
        "num_env_steps = 330",
        "initial_collect_steps = 120",
        "replay_length = 120",  # the ring wraps, and is saved in the middle
        "Intervals.checkpoint_interval = 100",
        "evaluation_interval = 150",
        "create_environment.max_episode_steps = 70",
    )
    whole, resumed = assert_resumes_exactly(tmp_path, *params, until=[260])
    assert torch.equal(whole.replay_buffer._tree.masses, resumed.replay_buffer._tree.masses)


def test_beta_is_1_at_the_end_of_the_run():
    trainer = build(PRIORITIZED, "num_env_steps = 140", "initial_collect_steps = 100")
    told = []
    weights = trainer.replay_buffer.importance_weights
    trainer.replay_buffer.importance_weights = lambda indices, p: told.append(p) or weights(indices, p)
    while trainer.env_steps < 140:
        trainer.collect()
        trainer.learn()
    trainer.close()
    assert told == [pytest.approx(steps / 140) for steps in range(101, 141)]


# The loss ------------------------------------------------------------------------------------------------------------


def sac(**options):
    torch.manual_seed(0)
    return SacAlgorithm(bounded((3,), -1, 1), bounded((2,), -1, 1), **options)


def experience(step_types, seed=0):
    """Frames `[T, B]` of these step types."""
    torch.manual_seed(seed)
    step_type = torch.tensor(step_types, dtype=torch.uint8)
    shape = step_type.shape
    return Experience(
        TimeStep(
            step_type, torch.randn(shape), (step_type != StepType.LAST).float(), torch.randn(*shape, 3),
            torch.rand(*shape, 2) * 2 - 1, torch.ones(shape, dtype=torch.int16),
        ),
        (),
    )  # fmt: skip


def test_the_error_of_a_segment_by_hand():
    """Two critics over T = 4, B = 3: LAST has no error, the segment's last frame has none either."""
    q = torch.tensor([[[1.0, 0, 0], [2, 0, 5], [3, 0, 7]], [[3.0, 0, 0], [0, 0, 5], [1, 4, 7]]])
    target = torch.tensor([[0.0, 0, 9], [1, 0, 9], [0, 1, 9]])
    # |Q - G|, mean over critics: segment 0: 2, 1, 2; segment 1: 0, 0, 2; segment 2: 9, 4, 2.
    last = [[1, 0, 2], [1, 1, 2], [2, 1, 2], [0, 1, 2]]
    error = sac().segment_error(experience(last), q, target)
    # Segment 0: the third is LAST: (2 + 1) / 2. Segment 1: (0 + 0 + 2) / 3. Segment 2: nothing to learn.
    torch.testing.assert_close(error, torch.tensor([1.5, 2 / 3, 0.0]))
    both, targets = torch.stack([q, 3 * q], -1), torch.stack([target, 3 * target], -1)
    several = sac(reward_dim=2).segment_error(experience(last), both, targets)
    torch.testing.assert_close(several, 2 * error)


def gradient(algorithm):
    return torch.cat([p.grad.flatten() for p in algorithm.parameters() if p.grad is not None])


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (1.0, 0.0, 0.0), (0.5, 0.25, 1.0)])
def test_weights_multiply_the_whole_loss_of_a_segment(weights):
    """Gradients of actor, critics and temperature are the weighted sum of those of each segment alone."""
    sampled = experience([[1, 0, 2], [1, 1, 0], [2, 1, 1]])
    learner = Learner(Agent(sac()), matmul="plain")
    torch.manual_seed(5)
    told = learner.update(sampled, torch.tensor(weights))
    found = gradient(learner.agent.algorithm)

    algorithm = sac()
    torch.manual_seed(5)
    loss = algorithm.calc_loss(sampled, algorithm.train_step(sampled)).loss
    total = sum(w * loss[:, b].sum() for b, w in enumerate(weights)) / loss.numel()
    total.backward()
    torch.testing.assert_close(found, gradient(algorithm))
    torch.testing.assert_close(told.extra["loss/total"], total.detach())
    torch.testing.assert_close(told.loss, loss.detach())


def sac_value():
    torch.manual_seed(0)
    return SacValueAlgorithm(bounded((3,), -1, 1), bounded((2,), -1, 1), value_encoder_ctor=LinearEncoder)


@pytest.mark.parametrize("make, more", [(sac, ("temperature", "plain")), (sac_value, ("value_encoder", "all"))])
def test_weights_of_the_critics_alone(make, more):
    """Gradients of critics and their encoder are those of the weighted loss; those of the others, of the plain one."""
    sampled, weights = experience([[1, 0, 2], [1, 1, 0], [2, 1, 1]]), torch.tensor([0.5, 0.25, 1.0])
    found = {}
    for name, given, on in (("plain", None, "all"), ("all", weights, "all"), ("critics", weights, "critics")):
        learner = Learner(Agent(make()), matmul="plain", importance_weights=on)
        torch.manual_seed(5)
        told = learner.update(sampled, given)
        groups = learner.agent.algorithm.parameter_groups()
        found[name] = {g: torch.cat([p.grad.flatten() for p in parameters]) for g, parameters in groups.items() if parameters}
        found[name]["loss"] = told.extra["loss/total"]
    assert {"replay/weight", "replay/segment_error"} <= set(told.extra)
    for group, expected in (("critic", "all"), ("actor", "plain"), ("loss", "plain"), more):
        torch.testing.assert_close(found["critics"][group], found[expected][group])
        assert not torch.allclose(found["all"][group], found["plain"][group], rtol=1e-3)


@pytest.mark.parametrize("method", [*REPRESENTATIVES, "sac_value"])
def test_critics_learn_from_no_other_loss(method):
    """With weights of 0 the critics' parameters stand still, whatever actor and temperatures learn."""
    critics = "Learner.importance_weights = 'critics'"
    trainer = build(PRIORITIZED, critics, "initial_collect_steps = 60", *fitting(method), method=method)
    trainer.replay_buffer.importance_weights = lambda indices, progress: torch.zeros(32)
    critics = trainer.agent.algorithm.parameter_groups()["critic"]
    before = [p.clone() for p in critics]
    actor = [p.clone() for p in trainer.agent.algorithm.parameter_groups()["actor"]]
    trained(trainer, 2)
    assert all(torch.equal(p, b) for p, b in zip(critics, before))
    assert not all(torch.equal(p, b) for p, b in zip(trainer.agent.algorithm.parameter_groups()["actor"], actor))


def test_what_weights_multiply_is_checked():
    with pytest.raises(TaacError, match=r"importance_weights must be 'all' or 'critics', got 'critic'"):
        Learner(Agent(sac()), importance_weights="critic")


def test_an_algorithm_without_errors_is_refused():
    class Silent(SacAlgorithm):
        def calc_loss(self, experience, info):
            return LossInfo(*super().calc_loss(experience, info)[:2])

    learner = Learner(Agent(Silent(bounded((3,), -1, 1), bounded((2,), -1, 1))))
    learner.update(experience([[0], [1]]))
    with pytest.raises(TaacError, match="which Silent does not report"):
        learner.update(experience([[0], [1]]), torch.ones(1))


# Learning ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_values_are_those_of_uniform_replay():
    """Reward 1 for k more steps: Q = 1 + gamma + ... + gamma^(k-1), however unequally often segments are drawn."""
    gamma, left, q = countdown("taac", 4, False, False, "segment_length = 4", PRIORITIZED, "PrioritizedReplayBuffer.alpha = 1.0")
    for steps in (1, 2, 3, 4):
        assert q[left == steps].mean() == pytest.approx(sum(gamma**i for i in range(steps)), rel=0.04)
