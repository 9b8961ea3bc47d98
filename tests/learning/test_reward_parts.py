"""What is learnt of a reward of several parts: nothing of a part of weight 0, and of each other one by networks of its own."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import tests.toy_tasks  # noqa: F401
from taac import nest
from taac.algorithms import OneStepTDLoss, SacAlgorithm, SacValueAlgorithm, TaacAlgorithm, TAACTDLoss
from taac.data_structures import Experience
from taac.errors import TaacError
from taac.learning.guard import GrowthWatch
from taac.networks import CriticEnsemble
from taac.ops.schedules import LinearSchedule
from taac.runs import checkpoint
from tests.algorithms.reference import ACTION_SPEC, IS_FIRST, VECTOR_SPEC, networks, replayed
from tests.algorithms.taac_reference import TAAC, experience_of
from tests.demonstrations.test_imitation import build
from tests.methods import REPRESENTATIVES, fitting
from tests.training.runs import run

RND = "create_agent.reward_signals = (@RND,)"
TWO = "create_environment.env_name = 'taac-test/TwoRewards-v0'"


def filled(*params, method):
    """A trainer that has collected and learnt nothing yet."""
    trainer = build(*params, "initial_collect_steps = 100", method=method)
    while trainer.env_steps < 100:
        trainer.collect()
    trainer.close()
    return trainer


def updated(trainer, scale):
    """The algorithm's parameters after an update on rewards of which some part was scaled, and what it told; all put back."""
    before = {name: value.clone() for name, value in trainer.agent.state_dict().items()}
    optimizer = copy.deepcopy(trainer.learner.optimizer.state_dict())
    torch.manual_seed(3)
    experience = trainer.replay_buffer.sample(16, trainer.segment_length)
    reward = experience.time_step.reward * torch.tensor(scale)
    time_step = experience.time_step._replace(reward=reward)
    info = trainer.learner.update(experience._replace(time_step=time_step))
    after = {name: value.clone() for name, value in trainer.agent.algorithm.state_dict().items()}
    trainer.agent.load_state_dict(before)
    trainer.learner.optimizer.load_state_dict(optimizer)
    return after, info


def assert_same(first, second):
    for one, other in zip(nest.flatten(first), nest.flatten(second), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


# Scheduled weights -----------------------------------------------------------------------------------------------------


def test_the_least_value_follows_a_weight_that_becomes_negative():
    algorithm = SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, reward_dim=2, reward_weights=(1.0, LinearSchedule(1.0, -1.0, updates=2)))
    q = torch.tensor([[3.0, 5.0], [4.0, 6.0]])
    assert algorithm.least(q).tolist() == [3.0, 5.0]
    algorithm.scheduled[0].set(-1.0)
    assert algorithm.least(q).tolist() == [3.0, 6.0]


def test_a_schedule_after_a_part_of_weight_0_moves_its_own_weight():
    weights = (0.0, LinearSchedule(1.0, 3.0, updates=2), 5.0)
    algorithm = SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, reward_dim=3, reward_weights=weights)
    algorithm.scheduled[0].set(3.0)
    assert algorithm.weights.tolist() == [3.0, 5.0]


# A part of weight 0 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", REPRESENTATIVES)
def test_no_method_learns_anything_of_a_task_that_does_not_count(method):
    """Networks, losses, summaries and errors are the same whatever the task's reward is."""
    trainer = filled(
        *fitting(method), RND, "RND.strength = 2.0", "RND.gamma = 0.8", "gamma = 0.9", "create_agent.task_strength = 0.0",
        method=method,
    )  # fmt: skip
    algorithm = trainer.agent.algorithm
    assert algorithm.reward_weights == (2.0,) and algorithm.td_loss.gamma.tolist() == pytest.approx([0.8])
    if trainer.learner.num_updates == 0:
        trainer.learner.update(trainer.replay_buffer.sample(16, trainer.segment_length))
    (plain, info), (other, also) = updated(trainer, 1.0), updated(trainer, -1000.0)
    assert_same(plain, other)
    assert_same(info, also)
    sampled = trainer.replay_buffer.sample(16, trainer.segment_length)
    assert sampled.time_step.reward.shape == (trainer.segment_length, 16) and sampled.time_step.reward.any()
    signal = trainer.agent.prepare(sampled).time_step.reward
    assert signal.shape == (trainer.segment_length, 16, 1) and signal[1:].any()


@pytest.mark.parametrize(
    "method, algorithm, td_loss",
    [("sac", "SacAlgorithm", "OneStepTDLoss"), ("taac", "TaacAlgorithm", "TAACTDLoss"),
     ("sac_value", "SacAlgorithm", "OneStepTDLoss")],
)  # fmt: skip
def test_weights_that_the_user_gives(method, algorithm, td_loss):
    """The whole reward is stored, and normalised by part."""
    trainer = filled(
        TWO, f"{algorithm}.reward_weights = (0.0, -2.0)", f"{td_loss}.gamma = (0.95, 0.5)", "normalize_rewards = True",
        method=method,
    )  # fmt: skip
    tested = trainer.agent.algorithm
    assert tested.reward_weights == (-2.0,) and tested.td_loss.gamma.tolist() == [0.5]
    plain, _ = updated(trainer, (1.0, 1.0))
    assert_same(plain, updated(trainer, (1000.0, 1.0))[0])
    with pytest.raises(AssertionError):
        assert_same(plain, updated(trainer, (1.0, -1.0))[0])
    sampled = trainer.replay_buffer.sample(16, trainer.segment_length)
    assert sampled.time_step.reward.shape[2:] == (2,) == trainer.agent.reward_normalizer.mean.shape
    assert trainer.agent.prepare(sampled).time_step.reward.shape[2:] == (1,)


def test_a_bonus_that_no_part_can_carry_is_left_out():
    """Weights of schedules may be 0 between two knots, all at once: 0 / 0 would end the run."""
    trainer = build(
        TWO, "SacAlgorithm.reward_weights = (@up/LinearSchedule(), @down/LinearSchedule())", "up/LinearSchedule.start = -1.0",
        "up/LinearSchedule.end = 1.0", "down/LinearSchedule.start = 1.0", "down/LinearSchedule.end = -1.0",
        "LinearSchedule.env_steps = 1000",
    )  # fmt: skip
    trainer.close()
    shares = []
    for step in (0, 250, 500):
        trainer.schedules.move(step, 0)
        shares.append(trainer.agent.algorithm.share_out(torch.tensor([3.0])).tolist())
    assert shares == [[[-1.5, 1.5]], [[-3.0, 3.0]], [[0.0, 0.0]]]


@pytest.mark.parametrize("strengths, share", [((1.0, 0.0), 1.0), ((0.1, 0.0), 10.0), ((0.5, -0.5), 1.0), ((1.0, 3.0), 0.2)])
def test_how_much_of_an_entropy_bonus_a_part_learns(strengths, share):
    """The mean of |w_k| / sum of w_j^2 over the parts that are learnt."""
    trainer = build(TWO, f"SacAlgorithm.reward_weights = {strengths}")
    trainer.close()
    assert trainer.agent.algorithm.bonus_share == pytest.approx(share)


def test_what_warns_of_growing_values_is_told_of_it(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(GrowthWatch, "warnings", lambda self, losses, share: told.append(share) or [])
    short = ("initial_collect_steps = 60", "num_env_steps = 80", "Intervals.summary_interval = 10", "evaluation_episodes = 1")
    run(tmp_path / "run", RND, "create_agent.task_strength = 0.0", "RND.strength = 0.1", *short, method="sac")
    assert told == pytest.approx([10.0] * len(told)) and told


def test_signals_gammas_beside_a_part_that_is_left_out():
    trainer = build(TWO, RND, "create_agent.task_strength = (0.0, 0.5)", "RND.gamma = 0.25", "gamma = (0.9, 0.8, 0.7)")
    trainer.close()
    assert trainer.agent.algorithm.reward_weights == pytest.approx((0.5, 0.1))
    assert trainer.agent.algorithm.td_loss.gamma.tolist() == pytest.approx([0.8, 0.25])


@pytest.mark.parametrize("kind", [SacAlgorithm, SacValueAlgorithm, TaacAlgorithm])
def test_it_is_as_if_the_reward_had_no_such_part(kind):
    td_loss = TAACTDLoss if kind is TaacAlgorithm else OneStepTDLoss
    whole = experience_of(TAAC | {"reward_weights": (1.0, 0.0, -2.0)})
    if kind is not TaacAlgorithm:
        whole = Experience(replayed(VECTOR_SPEC, 3), ())
    results, gammas = [], td_loss((0.875, 0.25, 0.5))
    for weights, loss in (((1.0, 0.0, -2.0), gammas), ((1.0, -2.0), td_loss((0.875, 0.5)))):
        torch.manual_seed(3)
        algorithm = kind(
            VECTOR_SPEC, ACTION_SPEC, reward_dim=len(weights), reward_weights=weights, td_loss=loss, **networks()
        ).double()  # fmt: skip
        reward = whole.time_step.reward if len(weights) == 3 else whole.time_step.reward[..., [0, 2]]
        learnt = algorithm.learnt_reward(reward)
        assert learnt.shape[-1] == 2
        experience = whole._replace(time_step=whole.time_step._replace(reward=learnt))
        torch.manual_seed(4)
        info = algorithm.calc_loss(experience, algorithm.train_step(experience))
        info.loss.mean().backward()
        gradients = [p.grad for p in algorithm.parameters() if p.grad is not None]
        results.append((info.loss, info.extra, info.segment_error, gradients))
    assert_same(*results)
    assert gammas.gamma.tolist() == [0.875, 0.25, 0.5]  # what was given is as it was
    assert IS_FIRST.any() and results[0][0].any()


@pytest.mark.parametrize("weights", [(0.0,), (0.0, -0.0, 0.0)])
def test_weights_of_0_alone_are_refused(weights):
    with pytest.raises(TaacError, match="at least one must differ from 0"):
        SacAlgorithm(VECTOR_SPEC, ACTION_SPEC, reward_dim=len(weights), reward_weights=weights)


# Networks of their own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("method", ["taac", "sac_krep"])
def test_the_tasks_errors_do_not_shape_the_values_of_a_signal(method, share):
    """Nor where there are choices; with hidden layers that the parts share, they do."""
    more = [f"CriticEnsemble.share_hidden_layers = {share}", "create_agent.normalize_rewards = False"]
    trainer = filled(*fitting(method), RND, *more, method=method)
    for critics in (trainer.agent.algorithm.critics, trainer.agent.algorithm.target_critics):
        critics.last.weight.data.uniform_(-0.3, 0.3)
    trainer.learner.update(trainer.replay_buffer.sample(16, trainer.segment_length))
    (plain, _), (other, _) = updated(trainer, 1.0), updated(trainer, -1000.0)
    name = "critics.hidden.0.weight"
    if share:
        assert len(plain[name]) == 2 and not torch.equal(plain[name], other[name])
        return
    assert len(plain[name]) == 4
    for number, (one, another) in enumerate(zip(plain[name], other[name])):  # of each critic, the task's and novelty's
        assert torch.equal(one, another) == (number % 2 == 1), number


# Checkpoints of shared hidden layers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_choices", [None, 3])
def test_what_is_said_of_a_state_that_does_not_fit(num_choices):
    def state(reward_dim, share=False, choices=num_choices):
        return CriticEnsemble(4, reward_dim, num_choices=choices, share_hidden_layers=share)

    for given, own, message in [
        (state(3, share=True), state(3), "parts of the reward share.*bind CriticEnsemble.share_hidden_layers"),
        (state(2, share=True), state(1), "values of 2 parts of a reward, and this agent learns 1 .*train again"),
        (state(None), state(2), "values of 1 parts of a reward, and this agent learns 2"),
    ]:
        with pytest.raises(TaacError, match=message):
            checkpoint.load_into(own, given.state_dict(), Path("x"))
    with pytest.raises(TaacError) as found:  # other choices: nothing of the kind
        checkpoint.load_into(state(2), state(2, choices=5).state_dict(), Path("x"))
    assert "parts of" not in str(found.value)
    for share in (False, True):
        checkpoint.load_into(state(3, share), state(3, share).state_dict(), Path("x"))
