"""How environments are made, and what is refused."""

from __future__ import annotations

import functools
import multiprocessing
import re
import warnings

import gymnasium
import numpy as np
import pytest
import torch

from taac.data_structures import StepType
from taac.environments import single
from taac.environments.create import create_environment
from taac.environments.delays import ActionDelay
from taac.environments.single import StepRecorder
from taac.errors import TaacError
from tests.environments import toys
from tests.environments.toys import Counter, Offset, env_id

FIRST, MID, LAST = (int(t) for t in StepType)


def test_an_id_is_found_with_and_without_its_module():
    assert create_environment("taac-test/Counter-v0").reset(0).observation.shape == (1, 4)
    assert create_environment(f"{toys.MODULE}:taac-test/Counter-v0").num_envs == 1


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("Nowhere-v0", {}, "'Nowhere-v0'.* doesn't exist.*a registered id, 'module:id'"),
        ("CartPol-v1", {}, "CartPol-v1.*Did you mean.*CartPole"),
        ("MountainCarContinous-v0", {}, "MountainCarContinous-v0.*Did you mean.*Continuous"),
        ("taac-test/Countr-v0", {}, "taac-test/Countr-v0.*Did you mean.*Counter"),
        ("taac-test/Counter-v9", {}, "'taac-test/Counter-v9'.*`v0`"),
        (f"Pendulum-v{'9' * 5000}", {}, "cannot create environment 'Pendulum-v9"),
        ("no_such_module_of_ours:Thing-v0", {}, "no_such_module_of_ours.*'module:id'"),
        (env_id("Counter"), {"env_kwargs": {"bogus": 3}}, r"with arguments \{.bogus.: 3\}: .*bogus.*env_kwargs gives it"),
        (env_id("Counter"), {"num_envs": 0}, "num_envs must be 1 or more, got 0"),
        (env_id("Counter"), {"step_timeout": 0.0}, "step_timeout must be above 0 seconds, or None, got 0.0"),
        (env_id("Counter"), {"max_restarts": -1}, "max_restarts must be 0 or more, got -1"),
        (env_id("Counter"), {"action_repeat": 0}, "action_repeat must be 1 to 32767, got 0"),
        (env_id("Counter"), {"action_repeat": 2**15}, "action_repeat must be 1 to 32767, got 32768"),  # frames hold int16
    ],
)
def test_what_cannot_be_made_is_refused(name, settings, message):
    with pytest.raises(TaacError, match=message):
        create_environment(name, **settings)


def test_the_first_wrapper_is_the_innermost():
    wrappers = (functools.partial(Offset, times=2.0), functools.partial(Offset, plus=3.0))
    environment = create_environment(env_id("Counter"), wrappers=wrappers)
    assert environment.reset(0).observation.tolist() == [[3, 3, 3, 3]]
    assert environment.step(torch.zeros(1, 2)).observation.tolist() == [[3, 5, 3, 3]]  # 2 x 1 + 3


def test_arguments_are_passed_on_and_left_alone():
    kwargs = {"scripts": (("1u",),)}
    environment = create_environment(env_id("Counter"), env_kwargs=kwargs, render_mode="rgb_array")
    assert kwargs == {"scripts": (("1u",),)}
    environment.reset(0)
    assert environment.step(torch.zeros(1, 2)).step_type.tolist() == [LAST]


def test_steps_of_the_first_environment_are_recorded_and_filmed():
    """Rewards are 1, 2, ... and a frame holds the number of its step; each step is given once, resets are none."""
    environment = create_environment(
        env_id("Counter"), 2, env_kwargs={"scripts": (("3t",), ("9t",))}, render_mode="rgb_array", recorded=True
    )
    assert environment.render_fps == 12
    taken = []

    def go(steps):
        for _ in range(steps):
            environment.step(torch.zeros(2, 2))
            taken.append([(s.reward, None if s.frame is None else s.frame.tolist()) for s in environment.pop_steps()])

    def frame(k):
        return np.full((2, 3, 3), k).tolist()

    environment.reset(0)
    go(1)
    environment.film(1)
    go(2)
    environment.film(2)  # of the next episode's steps, the first and the third
    go(4)
    environment.film(0)
    go(1)
    assert taken == [
        [(1, None)],
        [(2, frame(2))],
        [(3, frame(3))],
        [],
        [(11, frame(1))],
        [(12, None)],
        [(13, frame(3))],
        [],
    ]
    assert create_environment(env_id("Noise")).render_fps == 30


def test_a_frame_stays_when_the_environment_renders_into_it_again():
    class Canvas(Counter):
        canvas = np.zeros((2, 3, 3), np.uint8)

        def render(self):
            self.canvas.fill(self._step)
            return self.canvas

    recorder = StepRecorder(Canvas((("9t",),)))
    recorder.film_every = 1
    recorder.reset(seed=0)
    for _ in range(2):
        recorder.step(np.zeros(2, np.float32))
    assert [step.frame[0, 0, 0] for step in recorder.pop_steps()] == [1, 2]


def filmed(frame):
    """The frame that is recorded where an environment renders `frame`."""

    class Canvas(Counter):
        def render(self):
            return frame

    recorder = StepRecorder(Canvas((("9t",),)))
    recorder.film_every = 1
    recorder.reset(seed=0)
    recorder.step(np.zeros(2, np.float32))
    return recorder.pop_steps()[0].frame


def test_a_frame_with_alpha_is_recorded_without():
    frame = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(filmed(frame), frame[..., :3])


@pytest.mark.parametrize(
    "frame, got",
    [
        (np.zeros((2, 3, 4), np.int64), "an array of int64 with shape [2, 3, 4]"),
        (np.zeros((2, 3), np.uint8), "an array of uint8 with shape [2, 3]"),
        (np.zeros((2, 3, 1), np.uint8), "an array of uint8 with shape [2, 3, 1]"),
        (np.zeros((0, 0, 3), np.uint8), "an array of uint8 with shape [0, 0, 3]"),
        (None, "a NoneType"),
    ],
)
def test_what_is_no_frame_is_refused(frame, got):
    with pytest.raises(RuntimeError, match=re.escape(f"it cannot be rendered: render() returned {got}, expected an")):
        filmed(frame)


def test_a_recorder_stands_inside_the_action_repeat():
    """An action of four steps, in an episode of six: 1 + 2 + 3 + 4, then 5 + 6; each with a frame of its own."""
    environment = create_environment(
        env_id("Counter"), env_kwargs={"scripts": (("6t",),)}, render_mode="rgb_array", recorded=True, action_repeat=4
    )
    environment.reset(0)
    environment.film(1)
    for expected in ([1, 2, 3, 4], [5, 6], []):
        environment.step(torch.zeros(1, 2))
        steps = environment.pop_steps()
        assert [s.reward for s in steps] == expected
        assert [int(s.frame[0, 0, 0]) for s in steps] == expected


@pytest.mark.parametrize("env_name", ["BipedalWalker-v3", "LunarLanderContinuous-v3", "Hopper-v5"])
def test_what_follows_a_seed_does_not_depend_on_what_was_before(env_name):
    """The world of BipedalWalker, only reset, goes another way after an episode than before any."""

    def frames(before):
        env = create_environment(env_name)
        generator = torch.Generator().manual_seed(0)
        if before:
            env.reset(1)
            for _ in range(40):
                env.step(torch.ones(1, *env.action_spec.shape))
        found = [env.reset(5).observation]
        for _ in range(120):
            found.append(env.step(2 * torch.rand(1, *env.action_spec.shape, generator=generator) - 1).observation)
        env.close()
        return torch.stack(found)

    assert torch.equal(frames(False), frames(True))


def test_what_was_set_from_outside_outlives_a_seed():
    env = create_environment("Pendulum-v1", num_envs=2, recorded=True, render_mode="rgb_array")
    env.film(1)
    for seed in (0, 1):
        env.reset(seed)
        env.step(torch.zeros(2, 1))
        (step,) = env.pop_steps()
        assert step.frame is not None
    env.close()


def limited(limit=None):
    """Pendulum-v1 with a time limit, 200 if none is given, below another wrapper."""
    return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("Pendulum-v1", max_episode_steps=limit))


def ends_after(env_name, max_episode_steps, **settings):
    environment = create_environment(env_name, max_episode_steps=max_episode_steps, **settings)
    environment.reset(0)
    for step in range(1, 400):
        if environment.step(torch.zeros(1, 1)).is_last().all():
            return step
    return None


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("inner, kwargs", [(200, {}), (10, {"limit": 10})])
def test_a_time_limit_beyond_the_one_inside_is_refused(inner, kwargs, asynchronous):
    expected = (
        rf"max_episode_steps = 300 has no effect on environment '{__name__}:limited', which is made with a TimeLimit of {inner} "
        "steps inside: make it with the limit 300 there, or leave max_episode_steps out"
    )
    with pytest.raises(TaacError, match=expected):
        create_environment(f"{__name__}:limited", max_episode_steps=300, env_kwargs=kwargs, asynchronous=asynchronous)


def test_a_time_limit_beyond_that_of_an_object_is_refused():
    with single.given("python/Limited", lambda: limited(10)):
        with pytest.raises(TaacError, match=r"max_episode_steps = 11 has no effect on environment 'python/Limited'.* 10 steps"):
            create_environment("python/Limited", max_episode_steps=11)
        assert ends_after("python/Limited", 10) == ends_after("python/Limited", None) == 10


def test_time_limits_that_have_an_effect():
    assert ends_after(f"{__name__}:limited", 7) == 7
    assert ends_after("Pendulum-v1", 300) == 300  # instead of the registered one
    earlier = functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=5)
    assert ends_after("Pendulum-v1", 300, wrappers=(earlier,)) == 5  # which was asked for, too


class NoSpaces(Counter):
    """A Counter that has not set the spaces of `missing`."""

    def __init__(self, missing=("observation_space",)):
        super().__init__()
        for name in missing:
            setattr(self, name, None)


class Unset(gymnasium.Env):
    """Has set no space at all."""


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "name, kwargs, message",
    [
        ("NoSpaces", {}, "no observation_space: set it in the class or in __init__"),
        ("NoSpaces", {"missing": ("action_space",)}, "no action_space: set it in"),
        ("Unset", {}, "no observation_space and no action_space: set both in the class or in __init__"),
    ],
)
def test_an_environment_without_a_space_is_refused(name, kwargs, message, asynchronous):
    with pytest.raises(TaacError, match=f"environment '{__name__}:{name}' has {message}"):
        create_environment(f"{__name__}:{name}", env_kwargs=kwargs, asynchronous=asynchronous)


class Written(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Text(5), gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_space_that_cannot_be_used_is_refused_before_workers_start(asynchronous):
    with pytest.raises(TaacError, match="Text"):
        create_environment(f"{__name__}:Written", 2, asynchronous=asynchronous)
    assert not multiprocessing.active_children()


class Summed(gymnasium.RewardWrapper):
    """Makes a vector reward a number, and says so."""

    reward_space = None

    def reward(self, reward):
        return float(reward.sum())


def test_a_wrapper_may_make_a_vector_reward_a_number():
    environment = create_environment(env_id("Pair"), env_kwargs={"scripts": (("3t",),)}, wrappers=(Summed,))
    assert environment.reward_dim is None
    environment.reset(0)
    assert environment.step(torch.zeros(1, 2)).reward.shape == (1,)


class Warns(gymnasium.Env):
    def __init__(self):
        warnings.warn("of its own", UserWarning, stacklevel=2)


def test_a_warning_of_the_environments_own_says_nothing_of_rendering():
    with pytest.raises(UserWarning, match="of its own"):
        create_environment(f"{__name__}:Warns")


class Charges(gymnasium.Wrapper):
    """The reward is minus the action that it was given."""

    def step(self, action):
        observation, _, *rest = self.env.step(action)
        return observation, -float(action[0]), *rest


def test_conditions_of_evaluations_are_outside_of_the_wrappers_of_the_run():
    late = functools.partial(ActionDelay, steps=2)
    environment = create_environment(
        env_id("Counter"), env_kwargs={"scripts": (("9n",),)}, wrappers=(Charges,), outer_wrappers=(late,)
    )
    environment.reset(0)
    assert [float(environment.step(torch.ones(1, 2)).reward) for _ in range(3)] == [0.0, 0.0, -1.0]
