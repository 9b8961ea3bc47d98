"""Numbers that are not finite are refused where they arise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from taac.data_structures import StepType
from taac.environments.create import create_environment
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import DivergedError, EnvironmentFailed, TaacError
from tests.environments.toys import Probe, env_id

FIRST, MID, LAST = (int(t) for t in StepType)


@pytest.mark.parametrize("value, shown", [(float("nan"), "nan"), (float("inf"), "inf"), (float("-inf"), "-inf")])
@pytest.mark.parametrize("where, name", [("reward", "a reward"), ("observation", "an observation 'parts/1'")])
def test_numbers_that_are_not_finite_are_refused_with_environment_and_step(where, name, value, shown):
    kwargs = {"where": where, "value": value, "seed": 22, "step": 3}
    environment = create_environment(env_id("Faulty"), 4, env_kwargs=kwargs)
    environment.reset(20)  # so number 2 is at fault
    actions = [torch.tensor([[0.0], [0.1], [0.25 * k], [0.3]]) for k in range(1, 4)]
    environment.step(actions[0])
    environment.step(actions[1])
    with pytest.raises(TaacError) as error:
        environment.step(actions[2])
    message = str(error.value)
    for part in (
        "(number 2 of 4, seed 22, episode 1 since it was seeded)",
        f"returned {name} that is not finite",
        "at step 3 after the reset",
        shown,
        "[0.75]",
        "Faulty",
    ):
        assert part in message, part


def test_the_environment_at_fault_is_named_as_it_is_called_now():
    """An evaluation's is given its name after it is made: its NaN was blamed on the environment of training."""
    environment = create_environment(env_id("Faulty"), env_kwargs={"seed": 20})
    environment.name += " (evaluation)"
    environment.reset(20)
    with pytest.raises(TaacError, match=r"Faulty-v0 \(evaluation\)' \(number 0 of 1, seed 20, .*returned a reward"):
        environment.step(torch.zeros(1, 1))


@pytest.mark.parametrize("action, diverged", [(float("nan"), True), (float("inf"), True), (0.5, False)])
def test_after_an_action_that_is_not_finite_training_has_diverged(action, diverged):
    environment = create_environment(env_id("Faulty"), 2, env_kwargs={"where": "reward", "seed": 21, "step": 1})
    environment.reset(20)
    with pytest.raises(TaacError, match="has diverged" if diverged else "fix the environment") as error:
        environment.step(torch.tensor([[0.0], [action]]))
    assert isinstance(error.value, DivergedError) == diverged


def test_steps_are_counted_from_the_last_reset():
    environment = create_environment(env_id("Faulty"), 1, env_kwargs={"seed": 1, "step": 2})
    environment.reset(0)
    for _ in range(5):
        environment.step(torch.zeros(1, 1))
    environment.reset(1)
    environment.step(torch.zeros(1, 1))
    with pytest.raises(TaacError, match="at step 2 after the reset"):
        environment.step(torch.zeros(1, 1))


def test_of_a_later_episode_its_number_is_told():
    """Of two steps, of which the first one ends its episode: the third call of `step` begins the next one."""

    class Ends(Probe):
        reward = 0.0

        def reset(self, **more):
            self.reward += 1.0
            return super().reset(**more)

        def step(self, action):
            return np.zeros(1, np.float32), self.reward if self.reward < 3 else np.nan, True, False, {}

    environment = VectorEnvironment(SyncVectorEnv([Ends], autoreset_mode=AutoresetMode.NEXT_STEP), "ends")
    environment.reset(7)
    with pytest.raises(TaacError, match=r"seed 7, episode 3 since it was seeded\) .* at step 5 after the first reset: nan"):
        for _ in range(5):
            environment.step(torch.zeros(1, 1))


def test_an_observation_too_large_for_float32_is_refused():
    class Large(Probe):
        def step(self, action):
            return np.full(1, 1e300), 0.0, False, False, {}

    env = Large(observation_space=spaces.Box(-np.inf, np.inf, (1,), np.float64))
    environment = VectorEnvironment(SyncVectorEnv([lambda: env]), "large")
    environment.reset(0)
    with pytest.raises(TaacError, match="observation that is not finite at step 1"):
        environment.step(torch.zeros(1, 1))


@pytest.mark.parametrize(
    "value, where, step, message",
    [
        (1e39, "reward", 1, r"a reward that is not finite at step 1 .*1e\+39 \(too large"),
        (-1e39, "reward", 1, r"a reward that is not finite at step 1 .*-1e\+39 \(too large"),
        (None, "reward", 1, r"a reward that .* at step 1 after the reset: nan \(or None\);"),  # of which numpy makes NaN
        (float("nan"), "observation", 0, "an observation 'parts/1' .* at step 0 after the reset"),
    ],
)
def test_what_else_is_refused_is_named(value, where, step, message):
    kwargs = {"where": where, "value": value, "seed": 20, "step": step}
    environment = create_environment(env_id("Faulty"), 2, env_kwargs=kwargs)
    with pytest.raises(TaacError, match=rf"number 1 of 2, seed 20, episode 1 since it was seeded\) returned {message}"):
        environment.reset(19)
        environment.step(torch.zeros(2, 1))


@pytest.mark.parametrize(
    "value, shape", [(np.ones(3), r"\[3\], array\("), (np.ones(1), r"\[1\], array\("), ([2.0], r"\[1\], \[2")]
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_reward_that_is_no_number_is_refused(value, shape, asynchronous):
    kwargs = {"where": "reward", "value": value, "seed": 7, "step": 2}
    environment = create_environment(env_id("Faulty"), 1, env_kwargs=kwargs, asynchronous=asynchronous)
    environment.reset(7)
    environment.step(torch.zeros(1, 1))
    expected = rf"seed 7, .*\) failed at step 2: it returned a reward of shape {shape}.*, expected a number: return float"
    with pytest.raises(EnvironmentFailed, match=expected):
        environment.step(torch.zeros(1, 1))
    environment.close()


@pytest.mark.parametrize("value", [np.float32(2), np.array(2.0), 2, True])
def test_a_reward_may_be_any_number(value):
    environment = create_environment(env_id("Faulty"), 1, env_kwargs={"value": value, "seed": 7})
    environment.reset(7)
    assert environment.step(torch.zeros(1, 1)).reward.tolist() == [float(value)]
