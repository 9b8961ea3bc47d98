"""`taac check --env_name`: each fault that an environment can have, and the advice to fix it."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from taac.environments import examine as examine_module
from taac.errors import TaacError
from taac.networks import ObservationEncoder
from tests.environments.toys import env_id

examine = functools.partial(examine_module.examine, encoder_ctor=ObservationEncoder)


class Sound(gymnasium.Env):
    """Nothing is wrong with it: random observations, terminates at random after 5 to 15 steps."""

    def __init__(self):
        self.observation_space = spaces.Box(-1.0, 1.0, (2,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,))

    def observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(5, 16))
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), self.reward(), self.t >= self.length, False, {}

    def reward(self):
        return 1.0


class Wide(Sound):
    def observe(self):
        return 3 * super().observe()


class Stacked(Sound):
    shape = (4, 8, 8, 1)

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 255, self.shape, np.uint8)

    def observe(self):
        return self.np_random.integers(0, 256, self.shape, np.uint8)


class Tiny(Stacked):
    shape = (16, 16, 3)


class WrongShape(Sound):
    def observe(self):
        return np.zeros(3, np.float32)


class NoSpaces(Sound):
    def __init__(self):
        self.action_spaces = spaces.Box(-1.0, 1.0, (1,))


class WrongType(Sound):
    def observe(self):
        return np.zeros(2, np.float64)


class NotANumber(Sound):
    def observe(self):
        return np.full(2, np.nan, np.float32)


class Infinite(Sound):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,))

    def observe(self):
        return np.full(2, np.inf, np.float32)


class AList(Sound):
    def observe(self):
        return [0.5, 0.5]


class ADict(Sound):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict(a=self.observation_space)


class WrongPart(Sound):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([self.observation_space] * 2))

    def observe(self):
        good = super().observe()
        return {"a": 0, "b": (good, self.second(good))}

    def second(self, good):
        return good.astype(np.float64)


class NanPart(WrongPart):
    def second(self, good):
        return good * np.float32(np.nan)


class NoPair(Sound):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class NoSeed(Sound):
    def reset(self):
        return super().reset()


class WrongReward(Sound):
    def reward(self):
        return np.array([1.0, 2.0])


class NoReward(Sound):
    def reward(self):
        return "much"


class NanReward(Sound):
    def reward(self):
        return float("nan")


class NoBool(Sound):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, int(terminated), truncated, info


class FourValues(Sound):
    def step(self, action):
        return super().step(action)[:4]


class OldRandom(Sound):
    def observe(self):
        return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


class Remembers(Sound):
    """What follows a seed depends on how often it was reset before."""

    resets = 0

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self.resets += 1
        return found

    def observe(self):
        return super().observe() * np.float32(0.9**self.resets)


class Endless(Sound):
    def step(self, action):
        return (*super().step(action)[:2], False, False, {})


class FixedEnd(Sound):
    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self.length = 7
        return found


class Unbounded(Sound):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-np.inf, np.inf, (1,))


class NoRank(Sound):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Box(-1.0, 1.0, ())


class TwoBoxes(Sound):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Tuple([spaces.Box(-1.0, 1.0, (1,))] * 2)


class TwoChoices(Sound):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Tuple([spaces.Discrete(2)] * 2)


class TwoChoicesAndABox(Sound):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2), spaces.Box(-1.0, 1.0, (1,))])


class Mixed(Sound):
    def __init__(self):
        super().__init__()
        self.action_space = spaces.Dict(go=spaces.Box(-1.0, 1.0, (1,)), gear=spaces.Discrete(2), aim=spaces.Box(-1.0, 1.0, (2,)))


class Words(Sound):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Text(5)


class ResetsItself(gymnasium.wrappers.Autoreset):
    def __init__(self):
        super().__init__(Sound())


class NotMade(Sound):
    def __init__(self):
        raise AttributeError("no simulator")


class OnlyOne(Sound):
    there = 0

    def __init__(self):
        type(self).there += 1
        if type(self).there > 1:
            raise RuntimeError("the port is taken")
        super().__init__()

    def close(self):
        type(self).there -= 1


def named(cls, **more):
    name = f"taac-test/Examined{cls.__name__}-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, cls, **more)
    return name


@pytest.mark.parametrize(
    "cls, about, advice",
    [
        (Wide, "the observation at reset is not in its space Box.*its values are", "widen the space's bounds"),
        (WrongShape, r"its shape is \(3,\)", "return the shape of the space"),
        (NoSpaces, "it has no observation_space and no action_space", "set both in the class or in __init__"),
        (WrongType, "its dtype is float64", r"return observation.astype\(np.float32\)"),
        (NotANumber, "the observation at reset is not finite", "fix it"),
        (Infinite, "the observation at reset is not finite", "fix it"),
        (AList, r"the observation at reset is not in its space Box.*: it is a list.*\[0.5, 0.5\]", r"np.array\(.*float32\)"),
        (ADict, r"the observation at reset is not in its space Dict", "correct the space"),
        (WrongPart, r"the observation 'b/1' at reset is not in its space Box.*: its dtype is float64", r"astype\(np.float32\)"),
        (NanPart, r"the observation 'b/1' at reset is not finite", "fix it"),
        (NoPair, "reset returned array", r"must return a pair \(observation, info\)"),
        (NoSeed, "reset failed: TypeError", "seed=None"),
        (WrongReward, r"the reward at step 1 of episode 1 has shape \(2,\)", "reward_space"),
        (NoReward, "is not a number: 'much'", "return a float"),
        (NanReward, "the reward at step 1 of episode 1 is nan", "clip it in a wrapper"),
        (NoBool, "'terminated' at step 1 of episode 1 is 0", "return a bool"),
        (FourValues, "step 1 of episode 1 failed: ValueError", r"\(observation, reward, terminated, truncated, info\)"),
        (OldRandom, "the same seed and actions lead to different results at step 0", r"super\(\).reset\(seed=seed\)"),
        (Endless, "declares no time limit, and no episode ended", "max_episode_steps"),
        (Unbounded, "action space", "unbounded"),
        (NoRank, "hardly any method learns", r"give the Box the shape \(1,\)"),
        (TwoBoxes, "hardly any method learns", "put the Boxes together into one"),
        (TwoChoices, "hardly any method learns", "into a MultiDiscrete"),
        (TwoChoicesAndABox, "hardly any method learns", "into one Discrete"),
        (Words, "observation space", "add a wrapper"),
        (Stacked, "cannot read its observations", "stack of frames"),
        (Tiny, "cannot read its observations", "too small for ImageEncoder.*bind fewer or .* ImageEncoder.channels$"),
        (ResetsItself, "it resets itself", "leave out the wrapper Autoreset"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_fault_is_reported_with_advice(cls, about, advice):
    faults = [finding for finding in examine(named(cls)) if not finding.ok]
    assert len(faults) == 1
    with pytest.raises(AssertionError, match=about):
        raise AssertionError(faults[0].about)
    with pytest.raises(AssertionError, match=advice):
        raise AssertionError(faults[0].advice)


def test_failure_with_several_environments_is_reported():
    faults = [finding for finding in examine(named(OnlyOne)) if not finding.ok]
    assert [finding.about.partition(":")[0] for finding in faults] == ["seeding", "two in parallel, as in training"]
    assert all("RuntimeError: the port is taken" in finding.about + finding.advice for finding in faults)


def test_a_sound_environment_has_no_faults():
    found = examine(named(Sound))
    assert all(finding.ok and not finding.advice for finding in found) and len(found) == 7
    assert "20 of 20 episodes terminated" in found[3].about and found[3].about.endswith("after 7 to 15 steps")
    assert "the same seed and actions repeat the episode" in found[4].about


def test_actions_of_one_choice_and_boxes_can_be_learnt():
    assert all(finding.ok for finding in examine(named(Mixed)))


def test_a_possible_fault_is_a_hint():
    (hint,) = [finding for finding in examine(named(FixedEnd)) if finding.advice]
    assert hint.ok and "All episodes have the same length" in hint.about and "truncated=True instead" in hint.advice
    (hint,) = [finding for finding in examine(named(Remembers)) if finding.advice]
    assert hint.ok and "not in one that was used before" in hint.about
    assert "create_environment.remake = True" in hint.advice


@pytest.mark.parametrize("steps, told", [(14, False), (21, True)])
def test_two_episodes_of_one_length_tell_nothing(monkeypatch, steps, told):
    monkeypatch.setattr(examine_module, "STEPS", steps)  # episodes have 7
    assert any("All episodes have the same length" in finding.about for finding in examine(named(FixedEnd))) == told


@pytest.mark.parametrize("name", ["Goal", "Noise", "Masked", "TwoOfThree", "Ledger"])
def test_environments_of_every_kind_are_examined_to_the_end(name):
    found = examine(env_id(name))
    assert "a step takes" in found[-1].about


def test_an_environment_that_cannot_be_created_is_an_error():
    with pytest.raises(TaacError, match=r"ExaminedNotMade-v0.*AttributeError: no simulator"):
        examine(named(NotMade))


def test_an_unknown_environment_is_an_error():
    with pytest.raises(TaacError, match=r"Pendulun-v1.*doesn't exist"):
        examine("Pendulun-v1")
