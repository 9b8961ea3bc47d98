"""The rollout loop, with an algorithm whose state counts the steps since the episode began."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn as nn

from taac.acting.rollout import Rollout
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import Algorithm, reset_where_first
from taac.data_structures import AlgStep, Nest, StepType, TimeStep
from taac.environments.create import create_environment
from tests.environments.toys import env_id

FIRST, MID, LAST = (int(t) for t in StepType)
START = 5  # of the count: not zero, or an initial state that is ignored would go unnoticed


class CountingAlgorithm(Algorithm):
    """Acts by how long it has been stepped, which its state alone knows. Keeps what it was called with in `calls`."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(()))
        self.calls: list[tuple[TimeStep, Nest]] = []

    def initial_state(self, batch_size: int) -> Nest:
        return {"count": torch.full((batch_size,), START), "parts": (torch.full((batch_size, 2), -1.0), ())}

    def rollout_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        self.calls.append((time_step, state))
        count = state["count"]
        output = torch.stack([count / 100, torch.arange(len(count)) / 10 + 0.05], 1)
        new_state = {"count": count + 1, "parts": (state["parts"][0] - time_step.observation[:, :2], ())}
        return AlgStep(output, new_state, {"seen": time_step.observation * 2}, torch.ones_like(count, dtype=torch.bool))


def make(*scripts: tuple[str, ...]) -> tuple[Rollout, CountingAlgorithm]:
    environment = create_environment(env_id("Counter"), len(scripts), env_kwargs={"scripts": scripts})
    algorithm = CountingAlgorithm()
    rollout = Rollout(environment, Agent(algorithm))
    rollout.reset(0)
    return rollout, algorithm


def test_state_is_reset_at_first_and_nowhere_else():
    """Episodes of 1, 3 and 2 transitions: the count is the frame's place in its episode, LAST included."""
    rollout, algorithm = make(("1t",), ("3u",), ("2b",))
    for _ in range(12):
        rollout.step(rollout.agent.rollout_step)
    for frame, state in algorithm.calls:
        place = frame.observation[:, 1]
        assert torch.equal(state["count"], START + place.long())
    # Against the tables too, lest frame and state were wrong together.
    counts = torch.stack([state["count"] for _, state in algorithm.calls]) - START
    assert counts[:, 0].tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]
    assert counts[:, 1].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]
    assert counts[:, 2].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]


def test_a_step_gives_the_frame_that_was_acted_at_and_what_was_done_there():
    rollout, algorithm = make(("2t",), ("3u",))
    before = rollout.time_step
    for number in range(10):
        step = rollout.step(rollout.agent.rollout_step)
        frame, alg_step = step.time_step, step.alg_step
        assert frame is before
        seen, state = algorithm.calls[number]
        assert seen is frame
        assert torch.equal(alg_step.info["seen"], frame.observation * 2)
        assert torch.equal(alg_step.state["count"], state["count"] + 1)
        # And moves on: the next frame is the result of this action, unless this one was LAST.
        after = rollout.time_step
        last = (frame.step_type == LAST)[:, None]
        assert torch.equal(after.prev_action, torch.where(last, torch.zeros(2), alg_step.output))
        assert torch.equal(after.step_type == FIRST, last[:, 0])
        before = after


def test_raw_rewards_are_of_the_frame_and_durations_of_the_action_taken_there():
    """Actions repeated by 2 with gamma 1/2: episodes of 3 steps are decisions of 2 and 1 steps, and LAST takes none."""
    environment = create_environment(
        env_id("Counter"), env_kwargs={"scripts": (("3t",),)}, action_repeat=2, action_repeat_gamma=0.5
    )
    rollout = Rollout(environment, Agent(CountingAlgorithm()))
    rollout.reset(0)
    rows = []
    for _ in range(6):
        step = rollout.step(rollout.agent.rollout_step)
        frame = step.time_step
        rows.append((int(frame.step_type), float(frame.reward), float(step.raw_reward[0]), int(step.duration[0])))
    assert rows == [
        # type, reward, raw reward on arriving, steps taken there
        (FIRST, 0, 0, 2),
        (MID, 1 + 2 / 2, 1 + 2, 1),
        (LAST, 3, 3, 0),
        (FIRST, 0, 0, 2),
        (MID, 11 + 12 / 2, 11 + 12, 1),
        (LAST, 13, 13, 0),
    ]
    rollout.reset(0)
    step = rollout.step(rollout.agent.rollout_step)
    assert step.raw_reward.tolist() == [0] and step.duration.tolist() == [2]


def test_the_policy_may_change_from_step_to_step():
    rollout, algorithm = make(("5n",))
    rollout.step(rollout.agent.rollout_step)

    def other(time_step: TimeStep, state: Nest) -> AlgStep:
        step = algorithm.rollout_step(time_step, state)
        return step._replace(output=-step.output, state={**step.state, "count": step.state["count"] + 20})

    frame = rollout.step(other).time_step
    torch.testing.assert_close(frame.prev_action, torch.tensor([[0.05, 0.05]]))
    frame = rollout.step(rollout.agent.rollout_step).time_step
    torch.testing.assert_close(frame.prev_action, -torch.tensor([[0.06, 0.05]]))
    assert int(algorithm.calls[-1][1]["count"]) == START + 22, "the state goes from one policy to the next"


def test_acting_without_doing_changes_nothing():
    rollout, _ = make(("2t",))
    rollout.step(rollout.agent.rollout_step)
    frame = rollout.time_step
    first, second = rollout.act(rollout.agent.rollout_step), rollout.act(rollout.agent.rollout_step)
    assert rollout.time_step is frame
    assert torch.equal(first.output, second.output) and int(first.state["count"]) == START + 2
    alg_step = rollout.step(rollout.agent.rollout_step).alg_step
    assert torch.equal(alg_step.output, first.output), "the step after does what acting said"


def test_acting_at_first_begins_with_the_initial_state():
    rollout, algorithm = make(("1t",))
    for _ in range(2):
        rollout.step(rollout.agent.rollout_step)
    assert int(rollout.time_step.step_type) == FIRST
    rollout.act(rollout.agent.rollout_step)
    assert int(algorithm.calls[-1][1]["count"]) == START


def test_reset_begins_with_the_initial_state():
    rollout, algorithm = make(("9n",), ("9n",))
    for _ in range(3):
        rollout.step(rollout.agent.rollout_step)
    rollout.reset(0)
    assert rollout.time_step.step_type.tolist() == [FIRST, FIRST]
    rollout.step(rollout.agent.rollout_step)
    assert algorithm.calls[-1][1]["count"].tolist() == [START, START]


@pytest.mark.parametrize("steps, discounts", [(0, [1, 1, 1]), (1, [0, 1, 1]), (2, [1, 1, 0]), (3, [0, 1, 1])])
def test_truncating_makes_frames_last_and_keeps_their_discount(steps, discounts):
    rollout, _ = make(("1t",), ("1u",), ("2t",))
    for _ in range(steps):
        rollout.step(rollout.agent.rollout_step)
    frame = rollout.time_step
    step_type = frame.step_type.clone()
    last = rollout.truncate()
    assert last.step_type.tolist() == [LAST] * 3 and last.step_type.dtype == torch.uint8
    assert last.discount.tolist() == discounts, "only what really terminated has discount 0"
    for name in ("reward", "discount", "observation", "prev_action"):
        assert torch.equal(getattr(last, name), getattr(frame, name))
    assert rollout.time_step is frame and torch.equal(frame.step_type, step_type), "the frame at hand stays as it was"


def test_resetting_rows_where_first():
    step_type = torch.tensor([FIRST, MID, LAST], dtype=torch.uint8)
    time_step = TimeStep(step_type, torch.zeros(3), torch.ones(3), torch.zeros(3, 1), torch.zeros(3, 1), torch.ones(3))
    state: Any = {"a": torch.tensor([7, 8, 9]), "b": (torch.arange(12.0).reshape(3, 2, 2), ())}
    initial = {"a": torch.tensor([1, 2, 3]), "b": (-torch.ones(3, 2, 2), ())}
    reset = reset_where_first(state, initial, time_step)
    assert reset["a"].tolist() == [1, 8, 9] and reset["a"].dtype == torch.int64
    assert reset["b"][0].tolist() == [[[-1, -1], [-1, -1]], [[4, 5], [6, 7]], [[8, 9], [10, 11]]]
    assert reset["b"][1] == () and state["a"].tolist() == [7, 8, 9]


class Told(gymnasium.Env):
    """An episode of as many steps as it is asked for, whose last info tells them."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    lengths = itertools.cycle((2, 3))

    def __init__(self):
        self.length = next(self.lengths)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 0.0, self.t == self.length, False, {"told": float(self.length)}


def test_the_info_of_an_episode_is_that_of_its_last_frame():
    """Also of one that ends a step after the episode beside it."""
    environment = create_environment(f"{__name__}:Told", 2, info=("told",), max_episode_steps=9)
    random = SimpleNamespace(initial_state=lambda n: (), device=torch.device("cpu"))
    rollout, seen = Rollout(environment, random), [[], []]
    rollout.reset(0)
    for _ in range(24):
        step = rollout.step(lambda time_step, state: AlgStep(torch.zeros(2, 1), (), (), torch.ones(2, dtype=torch.bool)))
        for i in np.flatnonzero(np.asarray(step.arrays.step_type) == LAST):
            seen[i].append(float(step.episode_info[i, 0]))
    environment.close()
    assert sorted({*map(tuple, seen)}) == [(2.0,) * 8, (3.0,) * 6]
