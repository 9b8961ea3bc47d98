"""Normalizers of rewards and observations, against plain numpy."""

import functools

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taac.data_structures import StepType, TimeStep
from taac.environments.single import ActionRepeat
from taac.errors import TaacError
from taac.networks import ObservationNormalizer, RewardNormalizer, RewardScaler
from taac.specs import TensorSpec, bounded

FIRST, MID, LAST = map(int, (StepType.FIRST, StepType.MID, StepType.LAST))

# --- Rewards ----------------------------------------------------------------------------------------------------------


def reward_reference(batches, clip):
    """docs/equations.md#rewards: at call k the mean and second moment move by 8/(8+k); then (r - mean)/sqrt(var + 1e-10)."""
    mean = second = 0.0
    for k, batch in enumerate(batches):
        rate = 8 / (8 + k)
        mean = mean + rate * (batch.mean((0, 1)) - mean)
        second = second + rate * ((batch**2).mean((0, 1)) - second)
        normalized = (batch - mean) / np.sqrt(second - mean**2 + 1e-10)
        yield normalized if clip is None else np.clip(normalized, -clip, clip)


@pytest.mark.parametrize("reward_dim", [None, 1, 3])
@pytest.mark.parametrize("clip", [None, 1.0, 5.0])
def test_rewards_against_the_recursion(reward_dim, clip):
    parts = [reward_dim] if reward_dim else []
    scale = 10.0 ** np.arange(reward_dim) if reward_dim else 3.0
    shift = np.arange(reward_dim) if reward_dim else -2.0
    generator = np.random.default_rng(0)
    # batches drift, so that how fast the statistics move shows
    batches = [generator.normal(size=(4, 16, *parts)) * scale * (1 + 0.3 * k) + shift * k for k in range(40)]
    normalizer = RewardNormalizer(reward_dim, clip)
    for batch, expected in zip(batches, reward_reference(batches, clip)):
        reward = torch.tensor(batch, dtype=torch.float32)
        normalizer.update(reward)
        normalized = normalizer(reward)
        assert normalized.dtype == torch.float32 and normalized.shape == reward.shape
        np.testing.assert_allclose(normalized.numpy(), expected, rtol=1e-3, atol=1e-3)
        assert np.abs(expected).max() > 0.99  # and the clip, where there is one, does clip


def test_the_statistics_move_by_8_of_9_then_by_8_of_10():
    normalizer = RewardNormalizer()
    for value in (0.0, 9.0, 0.0):
        normalizer.update(torch.tensor([[value - 1, value + 1]]))
    # mean: 0, 0 + 8/9*9 = 8, 8 - 8/10*8 = 1.6; second moment: 1, 1 + 8/9*(82 - 1) = 73, 73 - 8/10*(73 - 1) = 15.4
    expected = (3.0 - 1.6) / (15.4 - 1.6**2) ** 0.5
    assert normalizer(torch.tensor([[3.0]])).item() == pytest.approx(expected, rel=1e-5)


def test_normalising_does_not_move_the_statistics():
    normalizer = RewardNormalizer()
    normalizer.update(torch.randn(3, 4))
    state = {name: x.clone() for name, x in normalizer.state_dict().items()}
    assert torch.equal(normalizer(torch.full((3, 4), 7.0)), normalizer(torch.full((3, 4), 7.0)))
    assert all(torch.equal(x, state[name]) for name, x in normalizer.state_dict().items())


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0, 1000.0, 1e6])
@pytest.mark.parametrize("reward_dim", [None, 2])
@pytest.mark.parametrize("steps", [None, 3, 7])
def test_a_constant_reward_becomes_0(value, reward_dim, steps):
    """Also a part of a vector that is constant while actions are repeated: `1000 / 3` is no float."""
    normalizer = RewardNormalizer(reward_dim, clip=5.0)
    reward = torch.full((4, 8, reward_dim) if reward_dim else (4, 8), value)
    duration = None if steps is None else torch.full((4, 8), steps, dtype=torch.int16)
    for _ in range(10):
        normalizer.update(reward, duration)
        assert normalizer(reward, duration).abs().max() < 0.01


@pytest.mark.parametrize("clip", [0.0, -1.0])
def test_a_clip_must_be_above_0(clip):
    for make in (RewardNormalizer, functools.partial(ObservationNormalizer, TensorSpec((1,)))):
        with pytest.raises(TaacError, match="clip"):
            make(clip=clip)


def test_a_number_that_never_varied_is_divided_by_the_root_of_epsilon():
    normalizer = ObservationNormalizer(TensorSpec((1,)), epsilon=1e-4)
    normalizer.update(torch.full((9, 1), 0.4))
    torch.testing.assert_close(normalizer(torch.tensor([[0.4], [0.41], [7.0]])), torch.tensor([[0.0], [1.0], [10.0]]))
    with pytest.raises(TaacError, match="epsilon must be above 0, got 0"):
        ObservationNormalizer(TensorSpec((1,)), epsilon=0.0)


def returns_reference(frames, gamma, repeat_gamma):
    """The returns of each environment, frame by frame: docs/equations.md#rewards."""
    running, found = {}, []
    for step_types, rewards, durations in frames:
        for env, (step_type, reward, k) in enumerate(zip(step_types, rewards, durations)):
            if step_type == FIRST:
                running[env] = 0.0 * np.asarray(reward)
                continue
            running[env] = gamma * repeat_gamma ** (k - 1) * running[env] + np.asarray(reward)
            found.append(running[env])
    return np.array(found)


def in_rollouts(step_types, rewards, durations):
    """One frame of each environment."""
    step_type, duration = torch.tensor(step_types, dtype=torch.uint8), torch.tensor(durations, dtype=torch.int16)
    return TimeStep(step_type, torch.tensor(rewards, dtype=torch.float32), torch.ones(len(step_types)), (), (), duration)


def test_the_scale_of_rewards_by_hand():
    """Two environments, gamma 1/2. Returns 4, 4/2 + 2 = 4 at LAST, then anew 8; and 0, 0, 2: variance of (4, 0, 4, 0, 8, 2)."""
    scaler = RewardScaler(2, 0.5)
    for step_types, rewards in [
        ((FIRST, FIRST), (0.0, 0.0)), ((MID, MID), (4.0, 0.0)), ((LAST, MID), (2.0, 0.0)), ((FIRST, LAST), (0.0, 2.0)),
        ((MID, FIRST), (8.0, 0.0)),
    ]:  # fmt: skip
        scaler.observe(in_rollouts(step_types, rewards, (1, 1)))
    reward = torch.tensor([[-3.0, 0.0, 5.0]])
    torch.testing.assert_close(scaler(reward), reward / np.var([4, 0, 4, 0, 2, 8]) ** 0.5)
    assert scaler.count == 6 and scaler.mean == 3.0


@pytest.mark.parametrize("parts, clip, repeat_gamma", [(None, None, 0.9), (3, None, 1.0), (3, 0.5, 0.9), (None, 0.5, 1.0)])
def test_the_scale_of_rewards_against_the_recursion(parts, clip, repeat_gamma):
    generator, num_envs = np.random.default_rng(0), 4
    scaler, frames, position = RewardScaler(num_envs, 0.9, repeat_gamma, parts, clip), [], np.zeros(num_envs, dtype=int)
    shape = (num_envs, parts) if parts else (num_envs,)
    for _ in range(300):
        step_types = [FIRST if p == 0 else LAST if p == 3 + env else MID for env, p in enumerate(position)]
        position = np.where([s == LAST for s in step_types], 0, position + 1)
        first = np.array([s == FIRST for s in step_types]).reshape(-1, *[1] * (len(shape) - 1))
        rewards = np.where(first, 0.0, generator.normal(2.0, 3.0, shape)).astype(np.float32)
        frames.append((step_types, rewards, [0 if s == FIRST else 1 + env for env, s in enumerate(step_types)]))
        scaler.observe(in_rollouts(*frames[-1]))
    std = returns_reference(frames, 0.9, repeat_gamma).std(0)
    reward, duration = torch.tensor(generator.normal(size=(5, *shape)) * 9).float(), torch.tensor([[1, 2, 3, 4]] * 5)
    limit = np.inf if clip is None else clip * duration.numpy().reshape(5, num_envs, *[1] * (len(shape) - 1))
    np.testing.assert_allclose(scaler(reward, duration).numpy(), np.clip(reward.numpy() / std, -limit, limit), rtol=1e-5)


@pytest.mark.parametrize("reward", [0.0, -5.0])
def test_returns_that_do_not_vary_scale_nothing(reward):
    """Episodes of one step: all have the same return."""
    scaler = RewardScaler(3, 0.99)
    for _ in range(300):
        scaler.observe(in_rollouts([FIRST] * 3, [0.0] * 3, [0] * 3))
        scaler.observe(in_rollouts([LAST] * 3, [reward] * 3, [1] * 3))
    assert torch.equal(scaler(torch.full((2, 3), reward)), torch.full((2, 3), reward))


# --- Rewards of several steps ------------------------------------------------------------------------------------------


# Per step: FIRST 0, 8/2 = 4, 0/3 = 0, 4/1 = 4: mean 2, second moment (16 + 16)/4 = 8, variance 4, standard deviation 2.
SEVERAL = torch.tensor([[0.0, 8.0], [0.0, 4.0]])
DURATION = torch.tensor([[0, 2], [3, 1]], dtype=torch.int16)


@pytest.mark.parametrize(
    "clip, expected",
    [
        # duration times (r / duration - 2) / 2; FIRST counts as one step of reward 0
        (None, [[-1.0, 2.0], [-3.0, 1.0]]),
        (1.0, [[-1.0, 2.0], [-3.0, 1.0]]),  # a clip of 1 a step allows 2 in two steps and -3 in three
        (0.5, [[-0.5, 1.0], [-1.5, 0.5]]),
    ],
)
def test_rewards_of_several_steps_by_hand(clip, expected):
    normalizer = RewardNormalizer(clip=clip)
    normalizer.update(SEVERAL, DURATION)
    assert normalizer.mean == 2 and normalizer.second_moment == 8
    normalized = normalizer(SEVERAL, DURATION)
    assert normalized.dtype == torch.float32
    torch.testing.assert_close(normalized, torch.tensor(expected))


def test_a_vector_reward_of_several_steps():
    """Each part has statistics of its own; the second part is three times the first, so normalised it is the same."""
    normalizer = RewardNormalizer(2, clip=0.5)
    reward = torch.stack([SEVERAL, 3 * SEVERAL], -1)
    normalizer.update(reward, DURATION)
    assert normalizer.mean.tolist() == [2, 6] and normalizer.second_moment.tolist() == [8, 72]
    expected = torch.tensor([[-0.5, 1.0], [-1.5, 0.5]]).unsqueeze(-1).expand(2, 2, 2)
    torch.testing.assert_close(normalizer(reward, DURATION), expected)


@pytest.mark.parametrize("reward_dim", [None, 2])
@pytest.mark.parametrize("first", [0, 1])
def test_durations_of_one_are_none(reward_dim, first):
    """Bit by bit, over several batches; and FIRST, whose duration is 0, is no other than 1."""
    with_durations, without = RewardNormalizer(reward_dim, 1.0), RewardNormalizer(reward_dim, 1.0)
    duration = torch.ones(3, 4, dtype=torch.int16)
    duration[1, 2] = first
    for _ in range(3):
        reward = torch.randn(3, 4, *([reward_dim] if reward_dim else [])) * 4 + 1
        with_durations.update(reward, duration)
        without.update(reward)
        assert torch.equal(with_durations(reward, duration), without(reward))
    assert all(torch.equal(x, y) for x, y in zip(with_durations.buffers(), without.buffers()))


def test_the_sum_of_steps_is_normalised_as_the_sum_of_normalised_steps():
    """A constant reward a step, repeated or not: k steps of normalised r are k times it, and the statistics are r's."""
    normalizer = RewardNormalizer()
    normalizer.update(torch.tensor([[1.0, 3.0]]))
    one = normalizer(torch.tensor([[1.0, 3.0, 2.5]]))
    for k in (2, 5):
        duration = torch.full((1, 3), k, dtype=torch.int16)
        torch.testing.assert_close(normalizer(torch.tensor([[1.0, 3.0, 2.5]]) * k, duration), one * k)


class Scripted(gymnasium.Env):
    """Gives these rewards, one a step, and ends with the last."""

    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, rewards):
        self.rewards = list(rewards)

    def step(self, action):
        return np.zeros(1), self.rewards.pop(0), not self.rewards, False, {}


def repeated(rewards, num_steps, gamma=1.0):
    """Rewards and durations `[1, decisions]` of an action repeat."""
    env, taken = ActionRepeat(Scripted(rewards), num_steps, gamma), []
    while not taken or not taken[-1][2]:
        taken.append(env.step(np.zeros(1)))
    reward = torch.tensor([[float(step[1]) for step in taken]], dtype=torch.float64)
    return reward, torch.tensor([[step[4]["taac_duration"] for step in taken]])


def test_moments_of_repeated_actions_are_those_of_the_mean_within_a_repeat():
    """The law of total variance: what single steps vary by within a repeat is missing, and nothing else."""
    steps = np.random.default_rng(0).normal(2.0, 3.0, (50, 4)).cumsum(1)
    normalizer = RewardNormalizer()
    normalizer.update(*repeated(steps.flatten(), 4))
    variance = float(normalizer.second_moment - normalizer.mean**2)
    assert float(normalizer.mean) == pytest.approx(steps.mean())
    assert variance == pytest.approx(steps.var() - steps.var(1).mean())
    assert variance < 0.8 * steps.var()


def test_moments_of_discounted_repeats_and_of_one_that_is_cut_short():
    """By hand, gamma 1/2: (1 + 3/2 + 5/4) / 3 = 5/4, and (4 + 2/2) / 2 = 5/2 of the two steps left, which count as much."""
    reward, duration = repeated([1.0, 3.0, 5.0, 4.0, 2.0], 3, gamma=0.5)
    assert duration.tolist() == [[3, 2]]
    normalizer = RewardNormalizer()
    normalizer.update(reward, duration)
    assert normalizer.mean == (1.25 + 2.5) / 2 and normalizer.second_moment == (1.25**2 + 2.5**2) / 2
    # m = 15/8, deviation 5/8: 3 (5/4 - 15/8) / (5/8) = -3, and 2 (5/2 - 15/8) / (5/8) = 2.
    torch.testing.assert_close(normalizer(reward, duration), torch.tensor([[-3.0, 2.0]], dtype=torch.float64))


# --- Observations -----------------------------------------------------------------------------------------------------

SPEC = {
    "vector": TensorSpec((3,)),
    "image": bounded((2, 2, 1), 0, 255, torch.uint8),
    "pair": (TensorSpec((2, 2)), bounded((), 0, 3, torch.int64)),
}


def observed(generator, batch):
    return {
        "vector": torch.tensor(generator.normal([1e3, 0.0, -5.0], [1.0, 1e-3, 50.0], (batch, 3)), dtype=torch.float32),
        "image": torch.tensor(generator.integers(0, 256, (batch, 2, 2, 1)), dtype=torch.uint8),
        "pair": (
            torch.tensor(generator.normal(size=(batch, 2, 2)), dtype=torch.float32),
            torch.tensor(generator.integers(0, 4, batch)),
        ),
    }


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 2), st.integers(0, 9))
def test_observations_are_normalised_by_all_that_was_seen(sizes, seed):
    """However it came in batches."""
    generator = np.random.default_rng(seed)
    normalizer = ObservationNormalizer(SPEC, clip=None)
    seen = [observed(generator, size) for size in sizes]
    for batch in seen:
        normalizer.update(batch)
    everything = {
        "vector": np.concatenate([x["vector"].double().numpy() for x in seen]),
        "pair": np.concatenate([x["pair"][0].double().numpy() for x in seen]),
    }
    x = observed(generator, 5)
    out = normalizer(x)
    for name, value, got in [("vector", x["vector"], out["vector"]), ("pair", x["pair"][0], out["pair"][0])]:
        mean, variance = everything[name].mean(0), everything[name].var(0)
        expected = (value.double().numpy() - mean) / np.sqrt(variance + 1e-8)
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-3, atol=2e-3)
        assert got.dtype == torch.float32
    assert out["image"] is x["image"] and out["pair"][1] is x["pair"][1]


def test_observations_of_any_batch():
    normalizer = ObservationNormalizer(TensorSpec((2,)), clip=None)
    normalizer.update(torch.tensor([[0.0, 10.0], [2.0, 30.0]]))  # mean 1 and 20, variance 1 and 100
    x = torch.tensor([[[3.0, 0.0], [1.0, 40.0]], [[0.0, 20.0], [2.0, 30.0]]])
    torch.testing.assert_close(normalizer(x), torch.tensor([[[2.0, -2.0], [0.0, 2.0]], [[-1.0, 0.0], [1.0, 1.0]]]))
    torch.testing.assert_close(normalizer(x[0]), normalizer(x)[0])


@pytest.mark.parametrize("clip, expected", [(10.0, [10.0, -10.0]), (0.5, [0.5, -0.5]), (None, [99.0, -101.0])])
def test_observations_are_clipped(clip, expected):
    normalizer = ObservationNormalizer(TensorSpec(()), clip)
    normalizer.update(torch.tensor([0.0, 2.0]))
    assert normalizer(torch.tensor([100.0, -100.0])).tolist() == pytest.approx(expected)


def test_one_observation_does_not_blow_up():
    """One has no variance: the next ones are told from it at their own scale."""
    normalizer = ObservationNormalizer(TensorSpec((2,)))
    normalizer.update(torch.tensor([[3.0, -4.0]]))
    assert normalizer(torch.tensor([[3.0, -4.0]])).tolist() == [[0.0, 0.0]]
    torch.testing.assert_close(normalizer(torch.tensor([[3.5, -6.0]])), torch.tensor([[0.5, -2.0]]))


def test_before_the_first_observation_nothing_changes():
    normalizer = ObservationNormalizer(SPEC)
    x = observed(np.random.default_rng(0), 4)
    x["vector"] = torch.tensor([[0.5, -3.0, 100.0]])  # which is not clipped either
    torch.testing.assert_close(normalizer(x)["vector"], x["vector"])


def test_normalising_observations_does_not_move_the_statistics():
    normalizer = ObservationNormalizer(SPEC)
    generator = np.random.default_rng(0)
    normalizer.update(observed(generator, 6))
    state = {name: x.clone() for name, x in normalizer.state_dict().items()}
    normalizer(observed(generator, 6))
    assert all(torch.equal(x, state[name]) for name, x in normalizer.state_dict().items())
    other = ObservationNormalizer(SPEC)
    other.load_state_dict(state)
    x = observed(generator, 6)
    assert torch.equal(other(x)["vector"], normalizer(x)["vector"])


def test_nothing_here_is_trained():
    for normalizer in (RewardNormalizer(), ObservationNormalizer(SPEC)):
        assert list(normalizer.parameters()) == []


def test_a_long_run_loses_no_precision():
    """100000 observations far from 0: a sum of squares in float32 would have lost the variance."""
    generator = np.random.default_rng(0)
    normalizer = ObservationNormalizer(TensorSpec(()), clip=None)
    seen = (1e4 + generator.normal(size=(100, 1000))).astype(np.float32)
    for batch in seen:
        normalizer.update(torch.tensor(batch))
    x = np.float32(1e4 + 2)
    expected = (float(x) - seen.astype(np.float64).mean()) / seen.astype(np.float64).std()
    assert normalizer(torch.tensor([x])).item() == pytest.approx(expected, rel=1e-3)


def test_a_recording_counts_as_a_rollout_and_leaves_running_episodes_alone():
    """By hand: returns of rewards 4, 2 with gamma 1/2 are 4, 4 in one row, and those of the rollout go on from 3."""
    scaler = RewardScaler(1, 0.5, bound=5.0)

    def frame(kind, reward):
        ones = torch.ones(1, dtype=torch.int16)
        return TimeStep(torch.tensor([int(kind)], dtype=torch.uint8), torch.tensor([reward]), torch.ones(1), (), (), ones)

    for kind, reward in ((StepType.FIRST, 0.0), (StepType.MID, 3.0)):
        scaler.observe(frame(kind, reward))
    scaler.observe_recorded([frame(StepType.FIRST, 9.0), frame(StepType.MID, 4.0), frame(StepType.LAST, 2.0)], 1)
    assert (float(scaler.count), float(scaler.mean), float(scaler.largest)) == (3, pytest.approx(11 / 3), 4)
    scaler.observe(frame(StepType.MID, 1.0))
    assert scaler.returns.tolist() == [2.5] and float(scaler.count) == 4


def test_a_bound_keeps_the_largest_return_so_far_inside():
    """By hand: returns of rewards 1, 1, -30 with gamma 1/2 are 1, 1.5, -29.25."""
    scaler, plain = RewardScaler(1, 0.5, bound=5.0), RewardScaler(1, 0.5)
    kinds = torch.tensor([[StepType.FIRST], [StepType.MID], [StepType.MID], [StepType.MID]], dtype=torch.uint8)
    for reward, kind in zip((9.0, 1.0, 1.0, -30.0), kinds):
        frame = TimeStep(kind, torch.tensor([reward]), torch.ones(1), (), (), torch.ones(1, dtype=torch.int16))
        scaler.observe(frame)
        plain.observe(frame)
    assert float(scaler.largest) == 29.25
    std = float((plain.squares / plain.count).sqrt())
    assert std > 29.25 / 5  # of three returns, one far away: the standard deviation is larger
    reward = torch.tensor([[std]])
    torch.testing.assert_close(scaler(reward), plain(reward))
    scaler.largest.fill_(100.0)
    torch.testing.assert_close(scaler(torch.tensor([[100.0]])), torch.tensor([[5.0]]))
    with pytest.raises(TaacError, match=r"RewardScaler.bound must be above 0, got 0"):
        RewardScaler(1, 0.5, bound=0.0)


def test_the_largest_return_is_that_of_any_environment():
    scaler = RewardScaler(3, 0.5, bound=5.0)
    scaler.observe(in_rollouts([FIRST] * 3, [0.0] * 3, [0] * 3))
    scaler.observe(in_rollouts([MID] * 3, [1.0, -30.0, 2.0], [1] * 3))
    assert float(scaler.largest) == 30.0
