"""The loop around FlashSAC's published code, which is stood in for."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import gymnasium
import numpy as np
import pytest

from experiments import flash_control


class Counts(gymnasium.Env):
    """Observes ten times the number of the episode plus that of the step; gymnasium cuts episodes off after 3 steps."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1, 1, (1,))
    episode = -1

    def observe(self):
        return np.array([10.0 * self.episode + self.steps])

    def reset(self, *, seed=None, options=None):
        self.episode, self.steps = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        return self.observe(), float(action[0]), self.episode == 1 and self.steps == 2, False, {}


class Agent:
    def __init__(self, observation_space, action_space, info, config):
        self.minimum, self.transitions, self.updates_at, self.acted = config.buffer_min_length, [], [], []

    def can_start_training(self):
        return len(self.transitions) >= self.minimum

    def sample_actions(self, step, transition, training):
        self.acted.append((float(transition["next_observation"][0, 0]), training))
        return np.full((1, 1), 0.5 if training else 0.25, np.float32)

    def process_transition(self, transition):
        self.transitions.append({key: np.array(value)[0] for key, value in transition.items()})

    def update(self):
        self.updates_at.append(len(self.transitions))


@pytest.fixture
def model(monkeypatch):
    gymnasium.register("Counts-v0", Counts, max_episode_steps=3)
    module = ModuleType("flash_rl.agents.flashSAC.agent")
    module.FlashSACAgent, module.FlashSACConfig, module.optim = Agent, SimpleNamespace, SimpleNamespace()
    package = ModuleType("flash_rl.agents.flashSAC")
    package.agent = module
    monkeypatch.setattr(flash_control, "published", lambda code: None)
    for name in ("flash_rl", "flash_rl.agents"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    yield flash_control.Published(None, "Counts-v0", seed=3, initial_collect_steps=4)
    del gymnasium.registry["Counts-v0"]


def test_transitions_end_at_the_last_observation_of_their_episode(model):
    model.learn(6, reset_num_timesteps=True)
    model.learn(3, reset_num_timesteps=False)
    seen = [(t["observation"][0], t["next_observation"][0], t["terminated"], t["truncated"]) for t in model.agent.transitions]
    assert seen == [
        (0, 1, False, False), (1, 2, False, False), (2, 3, False, True), (10, 11, False, False), (11, 12, True, False),
        (20, 21, False, False), (21, 22, False, False), (22, 23, False, True), (30, 31, False, False),
    ]  # fmt: skip
    assert [float(t["reward"]) for t in model.agent.transitions[4:]] == [0.5] * 5, "the agent's actions were executed"


def test_the_agent_acts_and_learns_once_there_are_enough_transitions(model):
    model.learn(6)
    assert model.agent.acted == [(11.0, True), (20.0, True)] and model.agent.updates_at == [4, 5, 6]
    assert (model.num_timesteps, model._n_updates) == (6, 3)
    action, _ = model.predict(np.array([7.0]), deterministic=True)
    assert action.tolist() == [0.25] and model.agent.acted[-1] == (7.0, False)
