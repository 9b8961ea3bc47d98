"""Time steps against tables derived by hand from scripted environments."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from taac import nest
from taac.data_structures import StepType, TimeStep
from taac.environments.create import create_environment
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError
from taac.machine.processes import INTERRUPTIONS
from tests.environments.toys import Counter, Offset, env_id

FIRST, MID, LAST = (int(t) for t in StepType)


def counter(*scripts: tuple[str, ...], **kwargs: Any) -> VectorEnvironment:
    """One environment for each script."""
    return create_environment(env_id("Counter"), len(scripts), env_kwargs={"scripts": scripts}, **kwargs)


def action_at(step: int, num_envs: int = 1) -> torch.Tensor:
    """Actions that differ everywhere, none of them zero. Each value identifies its step."""
    row = torch.arange(num_envs)[:, None]
    return torch.cat([step / 100 + 0.01 + row / 10, -step / 100 - 0.01 - row / 10], 1)


def play(environment: VectorEnvironment, steps: int, seed: int = 0) -> list[TimeStep]:
    """`steps + 1` frames. They and the actions are looked at only at the end, so none may be overwritten meanwhile."""
    frames = [environment.reset(seed)]
    actions = [action_at(step, environment.num_envs) for step in range(steps)]
    frames += [environment.step(action) for action in actions]
    for step, action in enumerate(actions):  # where an episode begins, the frame's previous action alone is zero
        assert torch.equal(action, action_at(step, environment.num_envs))
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
    assert_table(frames, 0, [
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
    ])  # fmt: skip


def test_environments_with_episodes_of_different_lengths():
    frames = play(counter(("1t",), ("2u",), ("9n",)), 5)
    assert_table(frames, 0, [
        (FIRST, 0, 1, 0, 0, None),
        (LAST, 1, 0, 0, 1, 0),
        (FIRST, 0, 1, 1, 0, None),
        (LAST, 11, 0, 1, 1, 2),
        (FIRST, 0, 1, 2, 0, None),
        (LAST, 21, 0, 2, 1, 4),
    ])  # fmt: skip
    assert_table(frames, 1, [
        (FIRST, 0, 1, 0, 0, None),
        (MID, 1, 1, 0, 1, 0),
        (LAST, 2, 1, 0, 2, 1),
        (FIRST, 0, 1, 1, 0, None),
        (MID, 11, 1, 1, 1, 3),
        (LAST, 12, 1, 1, 2, 4),
    ])  # fmt: skip
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
    repeat = {"action_repeat": 2, "action_repeat_gamma": 0.5}
    environment = create_environment(env_id("Pair"), 1, asynchronous=True, env_kwargs={"scripts": (("3t",),)}, **repeat)
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
    with pytest.raises(TaacError, match=r"number 1 of 2, seed 1, .*\) returned a reward that is not finite at step 2"):
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
