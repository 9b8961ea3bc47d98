from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import taac
from experiments import upside_down
from experiments.goal_odds import explore
from tests.experiments.test_goal_odds import Line


class Turning(Line):
    """Episodes of four steps. The torso turns by a right angle and a bit at each, seed 1's not at all."""

    def step(self, action):
        self.taken[-1].append(tuple(action))
        steps = len(self.taken[-1])
        angle = 0.0 if self.seed == 1 else steps * (np.pi / 2 + 0.01)
        return np.array([0.5, angle]), 0.0, False, steps == 4, {}


@pytest.mark.parametrize("repeat, different", [(0.0, 4), (1.0, 1)])
def test_steps_on_its_back_by_hand(monkeypatch, repeat, different):
    """After 1 to 4 turns its cosine is below 0, below 0, just above 0, above 0."""
    environment = Turning()
    monkeypatch.setattr(gymnasium, "make", lambda _: environment)
    assert upside_down.on_its_back(2, explore(upside_down.TASK, 2, repeat)).tolist() == [0.5, 0.0]
    assert [len(set(taken)) for taken in environment.taken] == [different] * 2


def test_steps_of_a_trained_agent_by_hand(monkeypatch):
    """Its state goes from step to step and begins anew with each episode."""
    agent = SimpleNamespace(initial_state=lambda: 0, act=lambda observation, state: (np.full(1, state, np.float32), state + 1))
    environment = Turning()
    environment.reset = lambda seed: (Line.reset(environment, seed), {})
    monkeypatch.setattr(gymnasium, "make", lambda _: environment)
    monkeypatch.setattr(taac, "load", {"runs/a": agent}.__getitem__)
    assert upside_down.on_its_back(2, upside_down.greedy("runs/a", 2)).tolist() == [0.5, 0.0]
    assert environment.taken == [[(0.0,), (1.0,), (2.0,), (3.0,)]] * 2
