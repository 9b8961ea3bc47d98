"""What an agent does to observations and rewards on their way to its algorithm."""

from __future__ import annotations

import pytest
import torch

import tests.toy_tasks  # noqa: F401
from taac.algorithms import SacAlgorithm
from taac.algorithms.agent import Agent
from taac.data_structures import Experience, StepType, TimeStep
from taac.networks import ObservationNormalizer, RewardNormalizer, RewardScaler
from tests.algorithms.reference import ACTION_SPEC, VECTOR_SPEC, frame
from tests.environments.team import TEAM
from tests.training.runs import build, trained


def prepared_rewards(reward, duration):
    """The rewards of a first batch of one frame, as the algorithm gets them."""
    agent = Agent(SacAlgorithm(VECTOR_SPEC, ACTION_SPEC), reward_normalizer=RewardNormalizer())
    frames = frame(len(reward))._replace(reward=reward, duration=duration)
    return agent.prepare(Experience(TimeStep(*(leaf.unsqueeze(0) for leaf in frames)), ())).time_step.reward[0]


def test_a_first_batch_is_normalised_by_its_own_moments():
    """Mean 3, variance 3.5."""
    reward = torch.tensor([1.0, 2.0, 3.0, 6.0])
    torch.testing.assert_close(prepared_rewards(reward, torch.ones(4)), (reward - 3) / 3.5**0.5)


def test_rewards_of_repeated_actions_are_normalised_by_the_moments_of_a_step():
    per_step, steps = torch.tensor([1.0, 2.0, 3.0, 6.0]), torch.tensor([3.0, 1.0, 2.0, 3.0])
    torch.testing.assert_close(prepared_rewards(steps * per_step, steps), steps * (per_step - 3) / 3.5**0.5)


def test_greedy_steps_count_no_observations():
    normalizer = ObservationNormalizer(VECTOR_SPEC)
    agent = Agent(SacAlgorithm(VECTOR_SPEC, ACTION_SPEC), observation_normalizer=normalizer)
    agent.predict_step(frame(4), ())
    assert normalizer.count == 0
    agent.rollout_step(frame(4), ())
    assert normalizer.count == 4


def test_only_rollouts_count_returns_and_batches_are_scaled_with_their_mean():
    """Two environments whose returns are 0 and 2: their standard deviation is 1, and nothing is subtracted."""
    agent = Agent(SacAlgorithm(VECTOR_SPEC, ACTION_SPEC), reward_normalizer=RewardScaler(2, 0.99))
    frames = frame(2)._replace(step_type=torch.full((2,), int(StepType.MID), dtype=torch.uint8), reward=torch.tensor([0.0, 2.0]))
    batch = Experience(TimeStep(*(leaf.unsqueeze(0) for leaf in frames._replace(reward=torch.tensor([-5.0, 3.0])))), ())
    agent.predict_step(frames, ())
    agent.unobserved_random_step(frames, ())
    assert agent.prepare(batch).time_step.reward.tolist() == [[-5.0, 3.0]] and agent.reward_normalizer.count == 0
    agent.rollout_step(frames._replace(reward=torch.tensor([0.0, 4.0])), ())
    assert agent.prepare(batch).time_step.reward.tolist() == [[-2.5, 1.5]] and agent.reward_normalizer.count == 2
    agent.random_step(frames, ())
    assert agent.reward_normalizer.count == 4 and agent.reward_normalizer.returns.tolist() == [0.0, 4 * 0.99 + 2.0]


@pytest.mark.parametrize("method", ["sac", "sac_value"])
def test_a_scale_of_rewards_is_that_of_the_environments_of_a_run(method):
    """Of each part of a vector reward, and with the discount of the critics; an algorithm's own scale is not applied too."""
    two = ["create_environment.env_name = 'taac-test/TwoRewards-v0'", "num_envs = 3", "reward_clip = 0.375", "gamma = 0.9"]
    trainer = build(*two, "normalize_rewards = 'scale'", method=method)
    trained(trainer, 3)
    scaler = trainer.agent.reward_normalizer
    assert scaler.returns.shape == (3, 2) and scaler.gamma == pytest.approx(0.9) and trainer.agent.algorithm.reward_scale == 1.0
    raw = trainer.replay_buffer.sample(16, 2)
    reward = trainer.agent.prepare(raw).time_step.reward
    expected = raw.time_step.reward / (scaler.squares / scaler.count).sqrt().float()
    assert expected.abs().min() < 0.375 < expected.abs().max()
    torch.testing.assert_close(reward, expected.clamp(-0.375, 0.375))


def test_agents_that_share_a_policy_have_returns_each_of_its_own():
    trainer = build(
        f"create_environment.env_name = '{TEAM}'", "create_agent.shared_policy = True", "num_envs = 2",
        "normalize_rewards = 'scale'", method="sac",
    )  # fmt: skip
    trained(trainer, 2)
    assert trainer.agent.reward_normalizer.returns.shape == (2 * trainer.agent.agents.count,)
    assert trainer.agent.reward_normalizer.count > 100


def test_the_scale_of_rewards_discounts_inside_repeats_as_the_environment_does():
    repeats = ("create_environment.action_repeat = 3", "create_environment.action_repeat_gamma = 0.9", "gamma = 0.9")
    trainer = build(*repeats, "create_agent.normalize_rewards = 'scale'", method="sac_nrep")
    trainer.close()
    assert trainer.agent.reward_normalizer.repeat_gamma == trainer.environment.repeat_gamma == 0.9


def test_the_scale_of_rewards_has_the_longest_horizon_of_their_parts():
    two = "create_environment.env_name = 'taac-test/TwoRewards-v0'"
    trainer = build(two, "gamma = (0.5, 0.9)", "create_agent.normalize_rewards = 'scale'", method="sac")
    trainer.close()
    assert trainer.agent.reward_normalizer.gamma == pytest.approx(0.9)
