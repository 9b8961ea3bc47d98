"""What an agent does to observations and rewards on their way to its algorithm."""

from __future__ import annotations

import torch

from taac.algorithms import SacAlgorithm
from taac.algorithms.agent import Agent
from taac.data_structures import Experience, TimeStep
from taac.networks import ObservationNormalizer, RewardNormalizer
from tests.algorithms.reference import ACTION_SPEC, VECTOR_SPEC, frame


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
