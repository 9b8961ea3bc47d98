"""Time steps against tables derived by hand from scripted environments."""

from __future__ import annotations

import copy
import functools
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from taac import nest
from taac.data_structures import StepType, TimeStep
from taac.environments.create import create_environment
from taac.environments.step_recorder import StepRecorder
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import DivergedError, EnvironmentFailed, TaacError
from taac.machine.processes import INTERRUPTIONS
from tests.environments import toys
from tests.environments.toys import Counter, Faulty, Offset, Probe, env_id

FIRST, MID, LAST = (int(t) for t in StepType)


def counter(*scripts: tuple[str, ...], **kwargs: Any) -> VectorEnvironment:
    """One environment for each script."""
    return create_environment(env_id("Counter"), len(scripts), env_kwargs={"scripts": scripts}, **kwargs)


def action_at(step: int, num_envs: int = 1) -> torch.Tensor:
    """Actions that differ everywhere, none of them zero. Each value identifies its step."""
    row = torch.arange(num_envs)[:, None]
    return torch.cat([step / 100 + 0.01 + row / 10, -step / 100 - 0.01 - row / 10], 1)


def play(environment: VectorEnvironment, steps: int, seed: int = 0) -> list[TimeStep]:
    """`steps + 1` frames; all are looked at only at the end, so none may be overwritten meanwhile."""
    frames = [environment.reset(seed)]
    for step in range(steps):
        frames.append(environment.step(action_at(step, environment.num_envs)))
    return frames


def assert_table(frames: list[TimeStep], env: int, table: list[tuple]) -> None:
    """Rows of (step type, reward, discount, episode, step, number of the action that led here or None)."""
    assert len(frames) == len(table)
    for t, (frame, (step_type, reward, discount, episode, step, action)) in enumerate(zip(frames, table)):
        assert frame.step_type[env] == step_type, t
        assert frame.reward[env] == reward, t
        assert frame.discount[env] == discount, t
        expected = torch.zeros(2) if action is None else action_at(action, env + 1)[env]
        assert torch.equal(frame.prev_action[env], expected), t
        # The environment saw the same action, and none at all on the step that began its episode.
        assert torch.equal(frame.observation[env], torch.tensor([episode, step, *expected.tolist()])), t


# Time -----------------------------------------------------------------------------------------------------------------



def test_the_arrays_of_a_step_are_the_memory_of_its_tensors():
    environment = counter(("2t",), ("3u",))
    for frame in (lambda: environment.reset(0), *([lambda: environment.step(action_at(1, 2))] * 4)):
        tensors = frame()
        assert isinstance(environment.arrays, TimeStep)
        for tensor, array in zip(nest.flatten(tensors), nest.flatten(environment.arrays), strict=True):
            assert isinstance(array, np.ndarray) and array.ctypes.data == tensor.data_ptr()
            assert torch.equal(torch.from_numpy(array), tensor)


def test_frames_over_a_termination_a_truncation_and_both_at_once():
    frames = play(counter(("2t", "3u", "1b")), 10)
    assert_table(
        frames,
        0,
        [
            # type, reward, discount, episode, step, action
            (FIRST, 0, 1, 0, 0, None),
            (MID, 1, 1, 0, 1, 0),
            (LAST, 2, 0, 0, 2, 1),  # terminated
            (FIRST, 0, 1, 1, 0, None),  # action 2, taken at LAST, went nowhere
            (MID, 11, 1, 1, 1, 3),
            (MID, 12, 1, 1, 2, 4),
            (LAST, 13, 1, 1, 3, 5),  # truncated: it still bootstraps
            (FIRST, 0, 1, 2, 0, None),
            (LAST, 21, 0, 2, 1, 7),  # both: a termination. An episode of one transition has no MID
            (FIRST, 0, 1, 3, 0, None),
            (MID, 31, 1, 3, 1, 9),
        ],
    )


def test_environments_with_episodes_of_different_lengths():
    frames = play(counter(("1t",), ("2u",), ("9n",)), 5)
    assert_table(
        frames,
        0,
        [
            (FIRST, 0, 1, 0, 0, None),
            (LAST, 1, 0, 0, 1, 0),
            (FIRST, 0, 1, 1, 0, None),
            (LAST, 11, 0, 1, 1, 2),
            (FIRST, 0, 1, 2, 0, None),
            (LAST, 21, 0, 2, 1, 4),
        ],
    )
    assert_table(
        frames,
        1,
        [
            (FIRST, 0, 1, 0, 0, None),
            (MID, 1, 1, 0, 1, 0),
            (LAST, 2, 1, 0, 2, 1),
            (FIRST, 0, 1, 1, 0, None),
            (MID, 11, 1, 1, 1, 3),
            (LAST, 12, 1, 1, 2, 4),
        ],
    )
    assert_table(frames, 2, [(FIRST, 0, 1, 0, 0, None), *((MID, k, 1, 0, k, k - 1) for k in range(1, 6))])


def test_shapes_and_dtypes():
    for frame in play(counter(("1t",), ("2u",)), 3):
        assert frame.step_type.shape == frame.reward.shape == frame.discount.shape == (2,)
        assert frame.step_type.dtype == torch.uint8
        assert frame.reward.dtype == frame.discount.dtype == torch.float32
        assert frame.observation.dtype == frame.prev_action.dtype == torch.float32  # the space's is float64
        assert frame.observation.shape == (2, 4) and frame.prev_action.shape == (2, 2)


def test_a_time_limit_truncates_and_at_a_termination_it_does_not_count():
    frames = play(counter(("5t",), ("3t",), max_episode_steps=3), 4)
    assert [int(f.step_type[0]) for f in frames] == [FIRST, MID, MID, LAST, FIRST]
    assert [int(f.step_type[1]) for f in frames] == [FIRST, MID, MID, LAST, FIRST]
    assert frames[3].discount.tolist() == [1, 0]
    assert frames[4].discount.tolist() == [1, 1]


def test_the_reward_at_first_is_zero_whatever_the_vector_environment_says():
    class Restless(SyncVectorEnv):
        sevens = np.full(1, 7.0)  # its own, which it gives again

        def step(self, actions):
            observation, _, *rest = super().step(actions)
            return observation, self.sevens, *rest

    env = Restless([lambda: Counter((("1t",),))], autoreset_mode=AutoresetMode.NEXT_STEP)
    assert [float(f.reward) for f in play(VectorEnvironment(env, "restless"), 3)] == [0, 7, 0, 7]


def test_reset_begins_new_episodes_in_the_middle_and_right_after_an_end():
    environment = counter(("1t",), ("3t",))
    play(environment, 1)  # environment 0 stands at LAST, environment 1 at MID
    frames = play(environment, 1)
    assert frames[0].step_type.tolist() == [FIRST, FIRST]
    assert frames[0].observation.tolist() == [[0, 0, 0, 0], [0, 0, 0, 0]]
    assert frames[0].prev_action.tolist() == [[0, 0], [0, 0]]
    # The step after is of the new episode: it is no FIRST, and its action counts.
    assert_table(frames, 0, [(FIRST, 0, 1, 0, 0, None), (LAST, 1, 0, 0, 1, 0)])
    assert_table(frames, 1, [(FIRST, 0, 1, 0, 0, None), (MID, 1, 1, 0, 1, 0)])


# Rewards of several parts ---------------------------------------------------------------------------------------------


def test_vector_rewards_by_hand():
    """Rewards (10 e + k, -k); at frame 2 environment 0 alone begins a new episode, at frame 6 both do."""
    environment = create_environment(env_id("Pair"), 2, env_kwargs={"scripts": (("1t",), ("5u",))})
    assert environment.reward_dim == 2
    frames = [environment.reset(0)]
    raw = [environment.raw_reward.tolist()]
    for step in range(6):
        frames.append(environment.step(action_at(step, 2)))
        raw.append(environment.raw_reward.tolist())
    rewards = [frame.reward.tolist() for frame in frames]
    assert [r[0] for r in rewards] == [[0, 0], [1, -1], [0, 0], [11, -1], [0, 0], [21, -1], [0, 0]]
    assert [r[1] for r in rewards] == [[0, 0], [1, -1], [2, -2], [3, -3], [4, -4], [5, -5], [0, 0]]
    assert raw == rewards
    assert [frame.discount.tolist() for frame in frames] == [[1, 1], [0, 1], [1, 1], [0, 1], [1, 1], [0, 1], [1, 1]]
    assert all(frame.reward.dtype == torch.float32 for frame in frames)


def test_vector_rewards_of_asynchronous_environments():
    """And a repeat of 2 within, with gamma 1/2: (1 + 2/2, -1 - 2/2), then (3, -3) to the end of the episode."""
    environment = create_environment(
        env_id("Pair"),
        1,
        asynchronous=True,
        env_kwargs={"scripts": (("3t",),)},
        action_repeat=2,
        action_repeat_gamma=0.5,
    )
    try:
        frames = play(environment, 3)
    finally:
        environment.close()
    assert environment.reward_dim == 2
    assert [frame.reward.tolist() for frame in frames] == [[[0, 0]], [[2, -2]], [[3, -3]], [[0, 0]]]
    assert [float(frame.discount) for frame in frames] == [1, 0.5, 0, 1]


def test_one_part_of_a_vector_reward_that_is_not_finite_is_refused():
    class Spoilt(Offset):
        def step(self, action):
            observation, reward, *rest = self.env.step(action)
            spoilt = np.array([reward[0], np.nan]) if observation[1] == 2 else reward
            return observation, spoilt, *rest

    kwargs = {"scripts": (("1t",), ("9t",))}  # environment 1 alone comes to a second step
    environment = create_environment(env_id("Pair"), 2, env_kwargs=kwargs, wrappers=(Spoilt,))
    environment.reset(0)
    environment.step(action_at(0, 2))
    with pytest.raises(TaacError, match=r"number 1 of 2\) returned a reward that is not finite at step 2"):
        environment.step(action_at(1, 2))


def test_what_an_environment_says_in_its_info_is_its_own():
    """A vector environment fills in zeros for those that say nothing: a discount of 0 would be a termination."""

    class Talkative(Offset):
        def step(self, action):
            observation, reward, terminated, truncated, _ = self.env.step(action)
            info = {"discount": 0.5, "duration": 7, "raw_reward": 9.0, "vector_reward": np.ones(2)}
            return observation, reward, terminated, truncated, info if observation[1] == 2 else {}

    environment = counter(("1u",), ("9n",), wrappers=(Talkative,))
    environment.reset(0)
    rows = []
    for step in range(3):
        frame = environment.step(action_at(step, 2))
        rows.append((frame.discount.tolist(), frame.reward.tolist(), frame.duration.tolist()))
        assert environment.raw_reward.tolist() == frame.reward.tolist()
    assert rows == [([1, 1], [1, 1], [1, 1]), ([1, 1], [0, 2], [0, 1]), ([1, 1], [11, 3], [1, 1])]


def test_infos_that_nobody_reads_are_not_gathered():
    """Which also lets an environment report now a number and now a text under one name."""
    calls = []

    class Chatty(Offset):
        def step(self, action):
            observation, reward, terminated, truncated, _ = self.env.step(action)
            calls.append(action)
            info = {"said": "text" if len(calls) == 3 else 1, 7: object(), "taac_duration": 2, "taac_discount": 0.5}
            return observation, reward, terminated, truncated, info

    environment = counter(("4n",), ("9n",), wrappers=(Chatty,))
    environment.reset(0)
    for step in range(3):
        assert environment.step(action_at(step, 2)).duration.tolist() == [2, 2]
    gathered = environment._env.step(np.zeros((2, 2), np.float32))[-1]
    assert {*gathered} == {"taac_duration", "_taac_duration", "taac_discount", "_taac_discount"}


def test_scalar_rewards_have_no_dimension():
    assert counter(("1t",)).reward_dim is None


# Seeds ----------------------------------------------------------------------------------------------------------------


def noise(frames: list[TimeStep]) -> torch.Tensor:
    return torch.stack([torch.stack([f.observation[:, 0], f.reward, f.step_type, f.discount], 1) for f in frames])


def play_noise(environment: VectorEnvironment, seed: int, steps: int = 25) -> list[TimeStep]:
    frames = [environment.reset(seed)]
    for step in range(steps):
        frames.append(environment.step(torch.full((environment.num_envs, 1), step / 50)))
    return frames


def test_environment_i_is_seeded_with_the_seed_plus_i():
    first = create_environment(env_id("Noise"), 3).reset(40).observation
    expected = [[np.float32(np.random.default_rng(seed).random())] for seed in (40, 41, 42)]
    np.testing.assert_array_equal(first, expected)


def test_the_same_seed_yields_the_same_time_steps():
    environment = create_environment(env_id("Noise"), 3)
    first = noise(play_noise(environment, 40))
    assert (first[:, :, 2] == LAST).sum() > 5, "several episodes ended"
    assert torch.equal(noise(play_noise(environment, 40)), first), "and episodes after the first are seeded with it"
    assert torch.equal(noise(play_noise(create_environment(env_id("Noise"), 3), 40)), first)
    assert not torch.equal(noise(play_noise(environment, 43)), first)


def test_asynchronous_environments_give_the_same_time_steps():
    environment = create_environment(env_id("Noise"), 2, asynchronous=True)
    try:
        frames = play_noise(environment, 7)
    finally:
        environment.close()
    expected = play_noise(create_environment(env_id("Noise"), 2), 7)
    assert (noise(expected)[:, :, 2] == LAST).sum() > 2, "several episodes ended"
    for frame, other in zip(frames, expected, strict=True):
        for leaf, other_leaf in zip(frame, other, strict=True):
            assert leaf.dtype == other_leaf.dtype and torch.equal(leaf, other_leaf)


def test_signals_stay_with_the_process_that_makes_asynchronous_environments():
    before = [signal.getsignal(number) for number in INTERRUPTIONS]
    env = create_environment("Pendulum-v1", num_envs=1, asynchronous=True)
    assert [signal.getsignal(number) for number in INTERRUPTIONS] == before and signal.SIG_IGN not in before
    ignored = Path(f"/proc/{env.process_ids[0]}/status")
    env.reset(0)  # it is made by now
    if ignored.exists():  # Linux
        (mask,) = [line for line in ignored.read_text().splitlines() if line.startswith("SigIgn")]
        assert all(int(mask.split()[1], 16) & 1 << number - 1 for number in INTERRUPTIONS)
    env.close()


# Spaces ---------------------------------------------------------------------------------------------------------------


def probes(num_envs: int, **spaces_: spaces.Space) -> tuple[VectorEnvironment, list[Probe]]:
    envs = [Probe(**spaces_) for _ in range(num_envs)]
    vector = SyncVectorEnv([functools.partial(lambda env: env, env) for env in envs], copy=False)
    return VectorEnvironment(vector, "probe"), envs


def test_actions_are_rescaled_on_the_way_and_kept_as_they_were_given():
    box = spaces.Box(np.array([-1.0, 0.0]), np.array([3.0, 10.0]), dtype=np.float64)
    environment, envs = probes(2, action_space=box)
    environment.reset(0)
    action = torch.tensor([[-1.0, 1.0], [0.5, 0.0]])
    frame = environment.step(action)
    assert torch.equal(frame.prev_action, action)
    assert envs[0].received[0].tolist() == [-1, 10] and envs[1].received[0].tolist() == [2, 5]
    assert envs[0].received[0].dtype == np.float64
    assert environment.action_spec.shape == (2,)
    assert (environment.action_spec.minimum == -1).all() and (environment.action_spec.maximum == 1).all()


def test_discrete_actions_count_from_zero_and_arrive_from_the_start():
    environment, envs = probes(2, action_space=spaces.Discrete(3, start=5))
    assert environment.action_spec.is_categorical and environment.action_spec.num_choices == 3
    frame = environment.reset(0)
    assert frame.prev_action.dtype == torch.int64 and frame.prev_action.tolist() == [0, 0]
    frame = environment.step(torch.tensor([0, 2]))
    assert [int(env.received[0]) for env in envs] == [5, 7]
    assert frame.prev_action.tolist() == [0, 2]


def test_discrete_previous_actions_are_zero_at_first():
    class Short(Probe):
        def step(self, action):
            observation, reward, *_ = super().step(action)
            return observation, reward, True, False, {}

    env = Short(action_space=spaces.Discrete(3))
    environment = VectorEnvironment(SyncVectorEnv([lambda: env]), "short")
    environment.reset(0)
    frames = [environment.step(torch.tensor([2])) for _ in range(3)]
    assert [int(f.prev_action) for f in frames] == [2, 0, 2]
    assert len(env.received) == 2


def test_nested_actions_arrive_part_by_part_and_are_zero_at_first():
    """A choice counted from its start and a rescaled box, in environments whose episodes end at different times."""

    class Nested(Counter):
        def __init__(self, scripts):
            super().__init__(scripts)
            self.action_space = spaces.Dict({"k": spaces.Discrete(4, start=2), "a": spaces.Box(0.0, 10.0, (1,))})

        def _observe(self, action):
            return super()._observe([action["k"], action["a"][0]] if isinstance(action, dict) else action)

    make = [functools.partial(Nested, (script,)) for script in (("2t",), ("9n",))]
    environment = VectorEnvironment(SyncVectorEnv(make, copy=False), "nested")
    assert list(environment.action_spec) == ["a", "k"]
    frame = environment.reset(0)
    assert frame.prev_action["k"].tolist() == [0, 0] and frame.prev_action["k"].dtype == torch.int64
    assert frame.prev_action["a"].tolist() == [[0], [0]]
    rows = []
    for step in range(4):
        k, a = torch.tensor([step % 4, (step + 1) % 4]), torch.tensor([[0.0], [0.5]]) + step / 10
        frame = environment.step({"a": a, "k": k})
        rows.append((frame.prev_action["k"].tolist(), frame.observation[:, 2].tolist(), frame.step_type.tolist()))
        not_first = frame.step_type != FIRST
        assert torch.equal(frame.prev_action["a"], a * not_first[:, None])
        sent = torch.where(not_first, (a[:, 0] + 1) * 5, 0.0)  # [-1, 1] to [0, 10]
        torch.testing.assert_close(frame.observation[:, 3], sent)
    # Environment 0 ends at step 2 and begins again at 3, where its action is ignored.
    assert rows == [
        ([0, 1], [2, 3], [MID, MID]), ([1, 2], [3, 4], [LAST, MID]), ([0, 3], [0, 5], [FIRST, MID]),
        ([3, 0], [5, 2], [MID, MID]),
    ]  # fmt: skip


def test_a_fault_after_a_nested_action_reports_every_part_of_it():
    class Pair(Faulty):
        def __init__(self):
            super().__init__(seed=1)
            self.action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,))))

    environment = VectorEnvironment(SyncVectorEnv([Pair, Pair], copy=False), "nested")
    environment.reset(0)
    with pytest.raises(TaacError, match=r"number 1 of 2.*was \(2, \[0\.25, -0\.5\]\)"):
        environment.step((torch.tensor([0, 2]), torch.tensor([[0.0, 0.0], [0.25, -0.5]])))


def test_nested_observations_of_every_kind():
    space = spaces.Dict(
        {
            "a": spaces.Tuple((spaces.Dict({"z": spaces.Discrete(4, start=-2)}), spaces.MultiDiscrete([3, 4]))),
            "image": spaces.Box(0, 255, (3, 4, 3), np.uint8),
            "flags": spaces.MultiBinary(3),
            "cells": spaces.Box(-5, 5, (2,), np.int64),
            "x": spaces.Box(-1, 1, (2,), np.float64),
        }
    )
    environment, _ = probes(2, observation_space=space)
    frames = [environment.reset(11)] + [environment.step(torch.zeros(2, 1)) for _ in range(2)]
    for i in range(2):
        twin = copy.deepcopy(space)
        twin.seed(11 + i)
        for frame in frames:
            sample, seen = twin.sample(), frame.observation
            assert seen["a"][0]["z"].dtype == torch.int64 and seen["a"][0]["z"][i] == sample["a"][0]["z"]
            assert seen["a"][1].dtype == torch.int64 and seen["a"][1][i].tolist() == sample["a"][1].tolist()
            assert seen["image"].dtype == torch.uint8
            np.testing.assert_array_equal(seen["image"][i], sample["image"])
            assert seen["flags"].dtype == torch.float32 and seen["flags"][i].tolist() == sample["flags"].tolist()
            assert seen["cells"].dtype == torch.float32 and seen["cells"][i].tolist() == sample["cells"].tolist()
            np.testing.assert_array_equal(seen["x"][i], sample["x"].astype(np.float32))


def test_the_spec_is_that_of_the_observations():
    space = spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple((spaces.Box(-1, 1, (2, 3)),))})
    environment, _ = probes(3, observation_space=space)
    frame = environment.reset(0)
    nest.map_structure(
        lambda spec, leaf: np.testing.assert_equal((3, *spec.shape), tuple(leaf.shape)),
        environment.observation_spec,
        frame.observation,
    )


@pytest.mark.parametrize(
    "spaces_, message",
    [
        ({"observation_space": spaces.Dict({"words": spaces.Text(5)})}, "at '/words' is Text"),
        ({"observation_space": spaces.Dict({})}, r"observation space at '/' is Dict\(\), which holds no numbers"),
        ({"observation_space": spaces.Tuple(())}, "holds no numbers"),
        ({"observation_space": spaces.Box(-1, 1, (0,))}, "holds no numbers"),
        (
            {"observation_space": spaces.Dict({"a": spaces.Box(-1, 1, (2, 0)), "b": spaces.Discrete(2)})},
            "at '/a' is Box",
        ),
        ({"observation_space": spaces.Dict({"a": spaces.Dict({}), "b": spaces.Discrete(2)})}, "at '/a' is Dict"),
        ({"action_space": spaces.Box(-1, 1, (0,))}, "the action space at '/' is Box.*holds no number"),
        ({"action_space": spaces.Tuple(())}, "holds no number"),
        ({"action_space": spaces.Dict({"a": spaces.Dict({}), "b": spaces.Discrete(2)})}, "holds no number"),
        ({"action_space": spaces.Box(-np.inf, np.inf, (1,))}, "unbounded"),
        ({"action_space": spaces.Box(1.0, 1.0, (1,))}, "empty range"),
        ({"action_space": spaces.MultiBinary(2)}, "not supported"),
    ],
)
def test_spaces_that_cannot_be_used_are_refused(spaces_, message):
    with pytest.raises(TaacError, match=message):
        create_environment(env_id("Probe"), env_kwargs=spaces_)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_other_autoreset_modes_are_refused(mode):
    with pytest.raises(TaacError, match=rf"'it' has autoreset mode {mode}.*NEXT_STEP"):
        VectorEnvironment(SyncVectorEnv([Probe], autoreset_mode=mode), "it")


def test_an_environment_without_an_autoreset_mode_is_refused():
    env = SyncVectorEnv([Probe])
    del env.metadata["autoreset_mode"]
    with pytest.raises(TaacError, match="autoreset mode None"):
        VectorEnvironment(env, "it")


# What is not finite ---------------------------------------------------------------------------------------------------


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
        "(number 2 of 4)",
        f"returned {name} that is not finite",
        "at step 3 after reset",
        shown,
        "[0.75]",
        "Faulty",
    ):
        assert part in message, part


@pytest.mark.parametrize("action, diverged", [(float("nan"), True), (float("inf"), True), (0.5, False)])
def test_after_an_action_that_is_not_finite_training_has_diverged(action, diverged):
    environment = create_environment(env_id("Faulty"), 2, env_kwargs={"where": "reward", "seed": 21, "step": 1})
    environment.reset(20)
    with pytest.raises(TaacError, match="has diverged" if diverged else "fix the environment") as error:
        environment.step(torch.tensor([[0.0], [action]]))
    assert isinstance(error.value, DivergedError) == diverged


def test_an_observation_that_is_not_finite_at_reset_is_refused():
    kwargs = {"where": "observation", "seed": 20, "step": 0}
    environment = create_environment(env_id("Faulty"), 2, env_kwargs=kwargs)
    with pytest.raises(TaacError, match=r"number 1 of 2\) returned an observation 'parts/1' .* at step 0 after reset"):
        environment.reset(19)


def test_steps_are_counted_from_the_last_reset():
    environment = create_environment(env_id("Faulty"), 1, env_kwargs={"seed": 1, "step": 2})
    environment.reset(0)
    for _ in range(5):
        environment.step(torch.zeros(1, 1))
    environment.reset(1)
    environment.step(torch.zeros(1, 1))
    with pytest.raises(TaacError, match="at step 2 after reset"):
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


@pytest.mark.parametrize("value", [1e39, -1e39])
def test_a_reward_too_large_for_float32_is_refused(value):
    kwargs = {"where": "reward", "value": value, "seed": 20, "step": 1}
    environment = create_environment(env_id("Faulty"), 2, env_kwargs=kwargs)
    environment.reset(19)
    with pytest.raises(
        TaacError, match=r"number 1 of 2\) returned a reward that is not finite at step 1 .*1e\+39 \(too large"
    ):
        environment.step(torch.zeros(2, 1))


def test_a_reward_of_several_numbers_from_a_worker_is_refused():
    """In this process Gymnasium refuses it; a worker sends it as it is."""
    kwargs = {"where": "reward", "value": np.ones(3), "seed": 7, "step": 2}
    environment = create_environment(env_id("Faulty"), 1, env_kwargs=kwargs, asynchronous=True)
    environment.reset(7)
    environment.step(torch.zeros(1, 1))
    with pytest.raises(
        EnvironmentFailed, match=r"Faulty-v0' returned rewards of shape \[1, 3\] at step 2 after reset, expected \[1\]"
    ):
        environment.step(torch.zeros(1, 1))
    environment.close()


def test_a_faulty_environment_is_fine_before_its_fault():
    """So that the tests above refuse for the reason they give."""
    environment = create_environment(env_id("Faulty"), 2, env_kwargs={"seed": 0, "step": 4})
    environment.reset(0)
    for _ in range(3):
        assert environment.step(torch.zeros(2, 1)).step_type.tolist() == [MID, MID]
    assert isinstance(Faulty().reset()[0], dict)


# Making environments --------------------------------------------------------------------------------------------------


def test_an_id_is_found_with_and_without_its_module():
    assert create_environment("taac-test/Counter-v0").reset(0).observation.shape == (1, 4)
    assert create_environment(f"{toys.MODULE}:taac-test/Counter-v0").num_envs == 1


def test_an_unknown_environment_is_refused():
    with pytest.raises(TaacError, match=r"'Nowhere-v0'.* doesn't exist.*a registered id, 'module:id'"):
        create_environment("Nowhere-v0")


@pytest.mark.parametrize(
    "name, suggestion",
    [("CartPol-v1", "CartPole"), ("taac-test/Countr-v0", "Counter"), ("MountainCarContinous-v0", "Continuous")],
)
def test_a_near_miss_names_what_was_meant(name, suggestion):
    with pytest.raises(TaacError, match=rf"{name}.*Did you mean.*{suggestion}"):
        create_environment(name)


def test_an_unknown_version_names_those_there_are():
    with pytest.raises(TaacError, match=r"'taac-test/Counter-v9'.*`v0`"):
        create_environment("taac-test/Counter-v9")


def test_arguments_that_the_environment_does_not_take_are_refused():
    with pytest.raises(TaacError, match=r"with arguments \{'bogus': 3\}: .*bogus.*env_kwargs gives it arguments"):
        create_environment(env_id("Counter"), env_kwargs={"bogus": 3})


def test_a_missing_module_is_refused():
    with pytest.raises(TaacError, match=r"no_such_module_of_ours.*'module:id'"):
        create_environment("no_such_module_of_ours:Thing-v0")


@pytest.mark.parametrize("num_envs", [0, -1])
def test_no_environments_are_refused(num_envs):
    with pytest.raises(TaacError, match=rf"num_envs must be 1 or more, got {num_envs}"):
        create_environment(env_id("Counter"), num_envs)


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
