import gymnasium
import numpy as np
import pytest

from experiments import goal_odds


class Line:
    """Episodes of six steps; the goal of the episode with seed 1 is reached at the third."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self):
        self.taken = []

    def reset(self, seed):
        self.seed = seed
        self.taken.append([])

    def step(self, action):
        self.taken[-1].append(float(action[0]))
        steps = len(self.taken[-1])
        return None, 0.0, self.seed == 1 and steps == 3, steps == 6, {}

    def close(self):
        pass


@pytest.mark.parametrize(
    "way, runs",
    [({}, [1, 1, 1, 1, 1, 1]), ({"hold": 3}, [3, 3]), ({"hold": 4}, [4, 2]), ({"repeat": 1.0}, [6])],
)
def test_actions_are_held_as_asked(monkeypatch, way, runs):
    environment = Line()
    monkeypatch.setattr(gymnasium, "make", lambda _: environment)
    assert goal_odds.reaches_goal(3, **way).tolist() == [False, True, False]
    assert [len(taken) for taken in environment.taken] == [6, 3, 6]
    first, _, last = environment.taken
    changes = np.flatnonzero(np.diff(first)) + 1
    assert np.diff([0, *changes, 6]).tolist() == runs
    assert first[0] != last[0] and min(first) >= -1 and max(first) <= 1


def test_costs_are_those_of_many_uniform_actions():
    rewards = -0.1 * np.random.default_rng(0).uniform(-1, 1, 400_000) ** 2
    full, none = goal_odds.normalised_costs()
    assert full == pytest.approx((-0.1 - rewards.mean()) / rewards.std(), abs=0.02)
    assert none == pytest.approx(-rewards.mean() / rewards.std(), abs=0.02)
