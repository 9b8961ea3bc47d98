import gymnasium
import numpy as np
import pytest

from experiments import random_rewards


class Counting(gymnasium.Env):
    """Episodes of three steps; a reward is the seed of its episode."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        self.seed, self.steps = seed, 0

    def step(self, action):
        self.steps += 1
        return None, float(self.seed), False, self.steps == 3, {}


def test_rewards_go_on_through_episodes(monkeypatch):
    monkeypatch.setattr(gymnasium, "make", lambda _: Counting())
    assert random_rewards.random_rewards("any", 7).tolist() == [0, 0, 0, 1, 1, 1, 2]


@pytest.mark.parametrize("reward, expected", [(1.0, 0.0), (4.0, 1.5), (-1.0, -1.0), (100.0, 5.0), (-100.0, -5.0)])
def test_a_reward_is_normalised_and_clipped(reward, expected):
    assert random_rewards.normalised(reward, np.array([-1.0, 3.0])) == pytest.approx(expected)
