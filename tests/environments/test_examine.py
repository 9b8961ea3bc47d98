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
UNIT = spaces.Box(-1.0, 1.0, (1,))


class Sound(gymnasium.Env):
    """Nothing is wrong with it: random observations, terminates at random after 5 to 15 steps."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), UNIT
    reward = 1.0

    def observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(5, 16))
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), self.reward, self.t >= self.length, False, {}


def part(change):
    """A Dict whose second part's second part is changed."""
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple([Sound.observation_space] * 2))
    return {"observation_space": space, "observe": lambda self: {"a": 0, "b": ((good := Sound.observe(self)), change(good))}}


def images(*shape):
    space = spaces.Box(0, 255, shape, np.uint8)
    return {"observation_space": space, "observe": lambda self: self.np_random.integers(0, 256, shape, np.uint8)}


def observes(value, **more):
    return {"observe": lambda self: value, **more}


def no_bool(self, action):
    observation, reward, terminated, truncated, info = Sound.step(self, action)
    return observation, reward, int(terminated), truncated, info


def old_random(self):
    return np.random.default_rng().uniform(-1, 1, 2).astype(np.float32)


def not_made(self):
    raise AttributeError("no simulator")


def fixed_end(self, **arguments):
    found = Sound.reset(self, **arguments)
    self.length = 7
    return found


class Remembers(Sound):
    """What follows a seed depends on how often it was reset before."""

    resets = 0

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self.resets += 1
        return found

    def observe(self):
        return super().observe() * np.float32(0.9**self.resets)


class ResetsItself(gymnasium.wrappers.Autoreset):
    def __init__(self):
        super().__init__(Sound())


class OnlyOne(Sound):
    there = 0

    def __init__(self):
        type(self).there += 1
        if type(self).there > 1:
            raise RuntimeError("the port is taken")

    def close(self):
        type(self).there -= 1


def found_in(monkeypatch, of):
    """The findings about a class, or about Sound with other attributes."""
    cls = of if isinstance(of, type) else type("Changed", (Sound,), of)
    name = "taac-test/Examined-v0"
    monkeypatch.setitem(gymnasium.registry, name, gymnasium.envs.registration.EnvSpec(name, entry_point=cls))
    return examine(name)


TWO, BOX = spaces.Discrete(2), UNIT


@pytest.mark.parametrize(
    "of, about, advice",
    [
        (observes(np.float32([3, 0])), "the observation at reset is not in its space Box.*its values are", "widen the space's"),
        (observes(np.zeros(3, np.float32)), r"its shape is \(3,\)", "return the shape of the space"),
        ({"observation_space": None, "action_space": None}, "it has no observation_space and no action_space", "set both in"),
        (observes(np.zeros(2)), "its dtype is float64", r"return observation.astype\(np.float32\)"),
        (observes(np.full(2, np.nan, np.float32)), "the observation at reset is not finite", "fix it"),
        (observes(np.full(2, np.inf, np.float32), observation_space=spaces.Box(-np.inf, np.inf, (2,))), "not finite", "fix it"),
        (observes([0.5, 0.5]), r"the observation at reset is not in.*: it is a list.*\[0.5, 0.5\]", r"np.array\(.*float32\)"),
        ({"observation_space": spaces.Dict(a=BOX)}, "the observation at reset is not in its space Dict", "correct the space"),
        (part(np.float64), r"the observation 'b/1' at reset is not in its space Box.*: its dtype is", r"astype\(np.float32\)"),
        (part(lambda good: good * np.float32(np.nan)), "the observation 'b/1' at reset is not finite", "fix it"),
        ({"reset": lambda self, **a: Sound.reset(self, **a)[0]}, "reset returned array", r"a pair \(observation, info\)"),
        ({"reset": lambda self: None}, "reset failed: TypeError", "seed=None"),
        ({"reward": np.array([1.0, 2.0])}, r"the reward at step 1 of episode 1 has shape \(2,\)", "reward_space"),
        ({"reward": "much"}, "is not a number: 'much'", "return a float"),
        ({"reward": [1.0, [2.0]]}, r"is not a number: \[1.0, \[2.0\]\]", "return a float"),
        ({"reward": float("nan")}, "the reward at step 1 of episode 1 is nan", "clip it in a wrapper"),
        ({"step": no_bool}, "'terminated' at step 1 of episode 1 is 0", "return a bool"),
        ({"step": lambda self, a: Sound.step(self, a)[:4]}, "step 1 of episode 1 failed: ValueError", r"\(observation, reward,"),
        ({"observe": old_random}, "the same seed and actions lead to different results at step 0", r"reset\(seed=seed\)"),
        ({"step": lambda self, a: (*Sound.step(self, a)[:2], False, False, {})}, "no time limit; no ep", "max_episode_steps"),
        ({"action_space": spaces.Box(-np.inf, np.inf, (1,))}, "action space", "unbounded"),
        ({"action_space": spaces.Box(-1.0, 1.0, ())}, "hardly any method learns", r"give the Box the shape \(1,\)"),
        ({"action_space": spaces.Tuple([BOX, BOX])}, "hardly any method learns", "put the Boxes together into one"),
        ({"action_space": spaces.Tuple([TWO, TWO])}, "hardly any method learns", "into a MultiDiscrete"),
        ({"action_space": spaces.Tuple([TWO, TWO, BOX])}, "hardly any method learns", "into one Discrete"),
        ({"observation_space": spaces.Text(5)}, "observation space", "add a wrapper"),
        (images(4, 8, 8, 1), "cannot read its observations", "stack of frames"),
        (images(16, 16, 3), "cannot read its observations", "too small for ImageEncoder.*bind fewer or .*channels$"),
        (ResetsItself, "it resets itself", "leave out the wrapper Autoreset"),
    ],
)
def test_a_fault_is_reported_with_advice(monkeypatch, of, about, advice):
    (fault,) = [finding for finding in found_in(monkeypatch, of) if not finding.ok]
    for text, pattern in ((fault.about, about), (fault.advice, advice)):
        with pytest.raises(AssertionError, match=pattern):
            raise AssertionError(text)


def test_failure_with_several_environments_is_reported(monkeypatch):
    faults = [finding for finding in found_in(monkeypatch, OnlyOne) if not finding.ok]
    assert [finding.about.partition(":")[0] for finding in faults] == ["seeding", "two in parallel, as in training"]
    assert all("RuntimeError: the port is taken" in finding.about + finding.advice for finding in faults)


def test_choices_of_agents_with_branches_are_sampled_among_the_valid():
    space = spaces.MultiDiscrete(np.array([[2, 3], [2, 3]]))
    mask = np.array([[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]], np.int8)
    for _ in range(5):
        assert examine_module._sampled(space, {"action_mask": mask}).tolist() == [[1, 0], [0, 2]]


def test_a_sound_environment_has_no_faults(monkeypatch):
    found = found_in(monkeypatch, Sound)
    assert all(finding.ok and not finding.advice for finding in found) and len(found) == 7
    assert "20 of 20 episodes terminated" in found[3].about and found[3].about.endswith("after 7 to 15 steps")
    assert "the same seed and actions repeat the episode" in found[4].about
    mixed = spaces.Dict(go=BOX, gear=TWO, aim=spaces.Box(-1.0, 1.0, (2,)))
    assert all(finding.ok for finding in found_in(monkeypatch, {"action_space": mixed}))


def test_a_possible_fault_is_a_hint(monkeypatch):
    (hint,) = [finding for finding in found_in(monkeypatch, {"reset": fixed_end}) if finding.advice]
    assert hint.ok and "All episodes have the same length" in hint.about and "truncated=True instead" in hint.advice
    (hint,) = [finding for finding in found_in(monkeypatch, Remembers) if finding.advice]
    assert hint.ok and "not in one that was used before" in hint.about
    assert "create_environment.remake = True" in hint.advice


@pytest.mark.parametrize("steps, hinted", [(14, False), (21, True)])
def test_two_episodes_of_one_length_say_nothing(monkeypatch, steps, hinted):
    monkeypatch.setattr(examine_module, "STEPS", steps)  # episodes have 7
    found = found_in(monkeypatch, {"reset": fixed_end})
    assert any("All episodes have the same length" in finding.about for finding in found) == hinted


@pytest.mark.parametrize("name", ["Goal", "Noise", "Masked", "TwoOfThree", "Ledger"])
def test_environments_of_every_kind_are_examined_to_the_end(name):
    assert "a step takes" in examine(env_id(name))[-1].about


def test_an_environment_that_cannot_be_created_is_an_error(monkeypatch):
    with pytest.raises(TaacError, match=r"Examined-v0.*AttributeError: no simulator"):
        found_in(monkeypatch, {"__init__": not_made})
    with pytest.raises(TaacError, match=r"Pendulun-v1.*doesn't exist"):
        examine("Pendulun-v1")


@pytest.mark.parametrize("agents", [False, True])
def test_branches_that_a_mask_forbids_are_not_tried(monkeypatch, agents):
    """As bools for each choice, branch after branch; for several agents, `[agents, choices]`."""
    counts = [3, 3] if agents else [2, 3]

    def step(self, action):
        assert all(part[choice] for part, choice in zip(self.allowed, action, strict=True))
        return Sound.step(self, action)

    def observe(self):
        self.allowed = [(self.np_random.permutation(n) < n - 1).astype(np.int8) for n in counts]
        return {"seen": Sound.observe(self), "action_mask": np.stack(self.allowed) if agents else np.concatenate(self.allowed)}

    mask = spaces.MultiBinary([2, 3] if agents else 5)
    masked = spaces.Dict({"seen": Sound.observation_space, "action_mask": mask})
    changes = {"step": step, "observe": observe, "observation_space": masked, "action_space": spaces.MultiDiscrete(counts)}
    assert all(finding.ok for finding in found_in(monkeypatch, changes))


def test_a_space_of_actions_that_each_reset_creates_is_seeded_after_it(monkeypatch):
    def reset(self, *, seed=None, options=None):
        self.action_space = spaces.Box(-1.0, 1.0, (1,))
        return Sound.reset(self, seed=seed)

    def step(self, action):
        return np.array([action[0], 0.0], np.float32), *Sound.step(self, action)[1:]

    assert all(finding.ok for finding in found_in(monkeypatch, {"reset": reset, "step": step}))


@pytest.mark.parametrize("start", [0, 1])
def test_choices_that_a_mask_forbids_are_not_tried(monkeypatch, start):
    def step(self, action):
        assert self.allowed[action - start]
        return Sound.step(self, action)

    def observe(self):
        self.allowed = (self.np_random.permutation(3) < 2).astype(np.int8)
        return {"seen": Sound.observe(self), "action_mask": self.allowed}

    masked = {"seen": Sound.observation_space, "action_mask": spaces.MultiBinary(3)}
    changes = {"step": step, "observe": observe, "observation_space": spaces.Dict(masked)}
    changes |= {"action_space": spaces.Discrete(3, start=start)}
    assert all(finding.ok for finding in found_in(monkeypatch, changes))
