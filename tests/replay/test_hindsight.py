"""Goals chosen in hindsight, against a slow reference that looks at one frame at a time."""

from __future__ import annotations

from unittest import mock

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from taac import nest
from taac.data_structures import Experience, StepType, TimeStep
from taac.errors import TaacError
from taac.ops.value_ops import compare_through_return
from taac.replay import HindsightReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from taac.replay.episode_index import EpisodeIndex
from taac.specs import TensorSpec
from tests.replay.saved import held, restore

FIRST, MID, LAST = (int(kind) for kind in StepType)
SPEC = Experience(
    TimeStep(
        TensorSpec((), torch.uint8), TensorSpec(()), TensorSpec(()),
        {"observation": TensorSpec((2,)), "achieved_goal": TensorSpec((1,)), "desired_goal": TensorSpec((1,))},
        TensorSpec((1,)), TensorSpec((), torch.int16),
    ),
    {"b": TensorSpec((), torch.bool)},
)  # fmt: skip


def reward_of(achieved, desired, info):
    """-1, or 0 where the goal is reached. All goals here are whole numbers."""
    assert achieved.shape == desired.shape and len(info) == len(achieved)
    return -(np.abs(achieved - desired)[..., 0] > 0.5).astype(np.float32)


def reached(achieved, desired, info):
    return reward_of(achieved, desired, info) == 0


def buffer(num_envs=1, length=200, ctor=HindsightReplayBuffer, **more):
    given = {} if ctor is not HindsightReplayBuffer else {"compute_reward": reward_of}
    return ctor(SPEC, num_envs, length=length, **{**given, **more})


def frame(kinds, numbers, goals, discount=1.0, achieved=None):
    """Frames `[B]` of these kinds; the observation holds environment and number, the goal achieved is the number by default."""
    count = len(kinds)
    kind, number = torch.tensor(kinds, dtype=torch.uint8), torch.tensor(numbers, dtype=torch.float32)
    got = number if achieved is None else torch.tensor(achieved, dtype=torch.float32)
    goal = torch.tensor(goals, dtype=torch.float32)
    reward = torch.from_numpy(reward_of(got.numpy()[:, None], goal.numpy()[:, None], [{}] * count)) * (kind != FIRST)
    seen = {
        "observation": torch.stack([torch.arange(count).float(), number], -1),
        "achieved_goal": got.unsqueeze(-1), "desired_goal": goal.unsqueeze(-1),
    }  # fmt: skip
    step = TimeStep(kind, reward, torch.full((count,), discount), seen, number.unsqueeze(-1) / 7, torch.ones(count).short())
    return Experience(step, {"b": number % 2 == 0})


def chains(into, lengths, steps, goal=-1.0):
    """Adds `steps` frames: environment i has episodes of `lengths[i]` frames."""
    for n in range(steps):
        places = [n % length for length in lengths]
        kinds = [FIRST if p == 0 else LAST if p == length - 1 else MID for p, length in zip(places, lengths)]
        into.add(frame(kinds, [n] * len(lengths), [goal] * len(lengths)))
    return into


# Where episodes begin and end -------------------------------------------------------------------------------------------------


def slow_bounds(kinds, n):
    first = last = n
    while first > 0 and kinds[first] != FIRST and kinds[first - 1] != LAST:
        first -= 1
    while last + 1 < len(kinds) and kinds[last + 1] != FIRST and kinds[last] != LAST:
        last += 1
    return first, last


@settings(max_examples=30, deadline=None, database=None)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=3),
    st.integers(2, 30), st.integers(0, 2**16),
)  # fmt: skip
def test_bounds_are_those_found_by_looking(lengths, ring, seed):
    """An episode of one frame is a LAST, as after a failure."""
    draw = np.random.default_rng(seed)
    each = [[k for n in of for k in ([LAST] if n == 1 else [FIRST, *[MID] * (n - 2), LAST])] for of in lengths]
    total = min(map(len, each))
    step_type = torch.zeros(ring, len(lengths), dtype=torch.uint8)
    index = EpisodeIndex(len(lengths), ring, torch.device("cpu"))
    for added in range(1, total + 1):
        step_type[(added - 1) % ring] = torch.tensor([kinds[added - 1] for kinds in each])
        if draw.random() < 0.5 and added < total:
            continue  # nobody asked
        index.update(step_type, added)
        oldest = max(0, added - ring)
        for e, kinds in enumerate(each):
            frames = torch.arange(oldest, added)
            first, last = index.bounds(torch.full_like(frames, e), frames)
            expected = [slow_bounds(kinds[:added], n) for n in range(oldest, added)]
            assert first.clamp(min=oldest).tolist() == [max(oldest, a) for a, _ in expected]
            assert last.tolist() == [b for _, b in expected]


def test_bounds_are_those_of_any_buffer():
    replay = chains(buffer(2, 20, ReplayBuffer), [4, 7], 33)
    first, last = replay.episode_bounds(torch.tensor([0, 0, 1, 1]), torch.tensor([13, 32, 15, 30]))
    assert first.tolist() == [13, 32, 14, 28]  # of 12..15, the frame 12 has left the ring of 13..32
    assert last.tolist() == [15, 32, 20, 32]
    read = replay.read(torch.tensor([1, 0]), torch.tensor([30, 14]))
    assert read.time_step.observation["observation"].tolist() == [[1, 30], [0, 14]]


@pytest.mark.parametrize("ctor", [ReplayBuffer, PrioritizedReplayBuffer])
def test_a_batch_says_where_its_segments_lie(ctor):
    torch.manual_seed(0)
    replay = chains(buffer(2, 20, ctor), [4, 7], 33)
    batch = replay.sample_batch(16, 3)
    seen = batch.experience.time_step.observation["observation"]
    assert torch.equal(seen[0, :, 0], batch.environment.float())
    assert torch.equal(seen[:, :, 1], batch.first + torch.arange(3.0).unsqueeze(1))


# Relabelled segments ----------------------------------------------------------------------------------------------------------


def test_without_new_goals_batches_are_those_of_the_plain_buffer():
    batches = []
    for ctor, more in (ReplayBuffer, {}), (HindsightReplayBuffer, {"probability": 0.0}):
        replay = chains(buffer(2, 50, ctor, **more), [5, 8], 70)
        torch.manual_seed(3)
        batches.append(nest.flatten([replay.sample_batch(32, 4).experience for _ in range(3)]))
    assert all(torch.equal(a, b) for a, b in zip(*batches))


@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
@pytest.mark.parametrize("length", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_new_goal_was_achieved_in_the_episode(strategy, length):
    torch.manual_seed(0)
    lengths = [5, 8]
    plain = chains(buffer(2, 50, ReplayBuffer), lengths, 71)
    replay = chains(buffer(2, 50, strategy=strategy, probability=1.0), lengths, 71)
    seen = {first: set() for first in range(71)}
    for _ in range(40):
        batch = replay.sample_batch(32, length)
        step, info = batch.experience
        for i, (e, first) in enumerate(zip(batch.environment.tolist(), batch.first.tolist())):
            begin = first - first % lengths[e]
            end = min(begin + lengths[e] - 1, 70)
            begin = max(begin, 71 - 50)
            goals = {"future": range(first + 1, end + 1), "final": [end], "episode": range(begin + 1, end + 1)}[strategy]
            goal = step.observation["desired_goal"][0, i].item()
            seen[first].add(goal) if e == 1 else None
            assert goal in goals if first < end else goal == -1
            for t in range(length):
                n = first + t
                stored = nest.index(plain.read(torch.tensor([e]), torch.tensor([n])), 0)
                own = n <= end and first < end  # later frames are of the next episode, which keeps its goal
                expected = 0.0 if n % lengths[e] == 0 else -float(n != goal) if own else stored.time_step.reward.item()
                assert step.reward[t, i] == expected
                assert step.observation["desired_goal"][t, i] == (goal if own else -1)
                got = nest.index(step, (t, i))
                for name in ("step_type", "discount", "prev_action", "duration"):
                    assert torch.equal(getattr(got, name), getattr(stored.time_step, name))
                assert torch.equal(got.observation["observation"], stored.time_step.observation["observation"])
                assert step.observation["achieved_goal"][t, i] == n and info["b"][t, i] == (n % 2 == 0)
    if strategy != "final":  # every goal that can be drawn is
        assert seen[64] == {65.0, 66.0, 67.0, 68.0, 69.0, 70.0}


def test_future_goals_are_uniform_and_as_many_as_asked_for():
    torch.manual_seed(0)
    replay = chains(buffer(1, 12, probability=0.8), [6], 12)
    goals = []
    for _ in range(300):
        batch = replay.sample_batch(30, 2)
        goals += batch.experience.time_step.observation["desired_goal"][0, batch.first == 0].flatten().tolist()
    counts = np.array([goals.count(g) for g in (-1.0, 1.0, 2.0, 3.0, 4.0, 5.0)]) / len(goals)
    assert len(goals) > 700
    np.testing.assert_allclose(counts, [0.2, *[0.16] * 5], atol=0.05)


def test_on_a_chain_the_return_that_always_goes_on_is_the_monte_carlo_return():
    """From frame t to the goal at g costs 1 a step: the sum of gamma^k for k < g - t - 1, whatever the values are."""
    torch.manual_seed(0)
    gamma = 0.9
    replay = chains(buffer(1, 60, compute_terminated=reached, probability=1.0), [10], 60)
    checked = 0
    for _ in range(20):
        batch = replay.sample_batch(20, 10)
        step = batch.experience.time_step
        value = torch.full_like(step.reward, 1e6)  # wherever it is bootstrapped from, the return is wrong
        go_on = torch.zeros_like(step.reward, dtype=torch.bool)
        returns = compare_through_return(step.reward, value, step.step_type, gamma * step.discount, go_on)
        for i, first in enumerate(batch.first.tolist()):
            goal = step.observation["desired_goal"][0, i].item()
            if goal < 0:  # the segment begins at LAST
                continue
            for t in range(int(goal) - first):
                expected = -sum(gamma**k for k in range(int(goal) - first - t - 1))
                assert returns[t, i] == pytest.approx(expected, abs=1e-5)
                checked += 1
    assert checked > 800


def test_an_end_by_the_old_goal_becomes_a_truncation_and_others_stay():
    """Frames 0 to 3: the goal 3 ended the episode. Frames 4 to 7: it failed at goal 9. Segments that begin at a FIRST."""
    replay = buffer(1, 8, compute_terminated=reached, probability=1.0, max_steps=None)
    for n in range(4):
        replay.add(frame([(FIRST, MID, MID, LAST)[n]], [n], [3.0], discount=float(n != 3)))
    for n in range(4, 8):
        replay.add(frame([(FIRST, MID, MID, LAST)[n - 4]], [n], [9.0], discount=float(n != 7)))
    torch.manual_seed(1)
    seen = set()
    for _ in range(60):
        batch = replay.sample_batch(5, 4)
        step = batch.experience.time_step
        for i, first in enumerate(batch.first.tolist()):
            if first in (0, 4):
                goal = int(step.observation["desired_goal"][0, i])
                seen.add(goal)
                kinds, discounts = step.step_type[:, i].tolist(), step.discount[:, i].tolist()
                at = goal - first
                assert kinds == [FIRST, *[MID] * (at - 1), *[LAST] * (4 - at)]
                # At the goal 0. The old goal's end at frame 3 is none for the new one; the failure at frame 7 is.
                assert discounts == [0.0 if n == at or (first == 4 and n == 3) else 1.0 for n in range(4)]
    assert seen == {1, 2, 3, 5, 6, 7}


def test_a_goal_achieved_before_the_segments_first_step_ends_nothing_there():
    """All frames achieve the same goal: each arrival ends the episode, and the first frame, where nothing arrives, does not."""
    replay = buffer(1, 12, compute_terminated=reached, probability=1.0)
    for n in range(12):
        kind = (FIRST, MID, MID, MID, MID, LAST)[n % 6]
        replay.add(frame([kind], [n], [5.0], achieved=[2.0]))
    torch.manual_seed(0)
    batch = replay.sample_batch(50, 3)
    inside = batch.first % 6 < 4
    step = nest.map_structure(lambda x: x[:, inside], batch.experience.time_step)
    assert set(step.step_type[0].tolist()) == {FIRST, MID} and (step.discount[0] == 1).all()
    assert (step.step_type[1:] == LAST).all() and (step.discount[1] == 0).all() and (step.reward[1] == 0).all()


def test_a_function_that_knows_no_batches_says_row_by_row_what_ends():
    calls = []

    def one(achieved, desired, info):
        calls.append(achieved.shape)
        return bool(np.abs(achieved - desired).max() < 0.5)

    batches = []
    for function in (reached, one):
        replay = chains(buffer(1, 60, compute_terminated=function), [7], 60)
        torch.manual_seed(0)
        batches.append(nest.flatten(replay.sample_batch(40, 4).experience))
    assert all(torch.equal(a, b) for a, b in zip(*batches))
    assert (1,) in calls


def test_longer_segments_are_cut_where_the_goal_is_new():
    replay = chains(buffer(1, 60, probability=0.5, max_steps=2), [20], 60)
    torch.manual_seed(0)
    batch = replay.sample_batch(200, 5)
    step = batch.experience.time_step
    inside = batch.first % 20 < 15
    new = step.observation["desired_goal"][0, :, 0] >= 0
    assert (step.step_type[2:, inside & new] == LAST).all() and (step.step_type[1, inside & new] == MID).all()
    assert (step.step_type[1:, inside & ~new] == MID).all() and bool((inside & ~new).any())
    assert (step.discount == 1).all()
    begins = (batch.first % 20 == 16) & new  # the next episode does, 4 frames after
    assert begins.any() and (step.step_type[4, begins] == FIRST).all() and (step.step_type[2:4, begins] == LAST).all()


def test_functions_are_given_what_was_achieved_before_what_was_desired():
    """The reward is by how much the goal is passed, which ends the episode."""

    def passed(achieved, desired, info):
        return (achieved - desired)[..., 0]

    replay = buffer(1, 60, compute_reward=passed, compute_terminated=lambda a, d, i: passed(a, d, i) >= 0, probability=1.0)
    for n in range(60):
        one = frame([FIRST if n % 20 == 0 else LAST if n % 20 == 19 else MID], [n], [100.0])
        one.time_step.reward[:] = 0.0 if n % 20 == 0 else n - 100.0
        replay.add(one)
    torch.manual_seed(0)
    batch = replay.sample_batch(200, 4)
    step, whole = batch.experience.time_step, batch.first % 20 < 16
    over = (batch.first + torch.arange(4).unsqueeze(1) - step.observation["desired_goal"][0, :, 0])[:, whole]
    assert torch.equal(step.reward[1:, whole], over[1:]) and (over < 0).any() and (over > 0).any()
    assert torch.equal(step.discount[1:, whole] == 0, over[1:] >= 0)


@pytest.mark.parametrize("more", [{"max_steps": 2}, {"compute_terminated": reached}])
def test_what_a_memory_is_warmed_up_with_is_no_part_of_what_is_learnt(more):
    """With a burn-in of 3, cuts, goals and ends are counted from frame 3 of a segment on."""
    replay = chains(buffer(1, 60, burn_in=3, probability=1.0, **more), [20], 60)
    torch.manual_seed(0)
    batch = replay.sample_batch(300, 8)
    step = batch.experience.time_step
    goal, first = step.observation["desired_goal"][0, :, 0], batch.first
    ahead = first % 20 + 3 < 19  # later frames of the episode are left
    assert torch.equal(goal >= 0, ahead) and (goal[ahead] > first[ahead] + 3).all()
    crossed = first % 20 > 16  # the episode that is learnt from begins within the burn-in
    assert crossed.any() and (step.observation["desired_goal"][3, crossed, 0] > first[crossed] + 3).all()
    whole = first % 20 < 12
    assert whole.any() and (step.step_type[1:4, whole] == MID).all() and (step.discount[:4, whole] == 1).all()
    if "max_steps" in more:
        assert (step.step_type[4, whole] == MID).all() and (step.step_type[5:, whole] == LAST).all()
    else:
        at = (goal - first).long()  # where the goal is reached
        for i in torch.nonzero(whole & (at < 8)).flatten().tolist():
            assert step.discount[at[i], i] == 0 and step.step_type[at[i], i] == LAST


def test_an_episode_that_was_cut_off_at_its_first_frame_is_not_compared():
    """An environment crashed there: LAST with a reward of 0, which no function of goals gave."""
    replay = buffer(length=200)
    for n in range(200):
        one = frame([LAST if n % 4 == 0 else FIRST if n % 4 == 1 else LAST if n % 4 == 3 else MID], [n], [-1.0])
        if n % 4 == 0:
            one.time_step.reward[:] = 0.0
        replay.add(one)
    for _ in range(20):
        replay.sample_batch(16, 2)


def test_a_resumed_buffer_draws_what_it_would_have_drawn():
    replay = chains(buffer(2, 30), [4, 7], 44)
    replay.sample_batch(4, 3)  # its index of episodes was in use
    other = chains(buffer(2, 30), [3, 9], 44)
    other.sample_batch(4, 3)  # other episodes, which must be forgotten
    restore(other, held(replay))
    for each in (replay, other):
        for n in range(44, 50):
            each.add(frame([MID, MID], [n, n], [-1.0, -1.0]))
    batches = []
    for each in (replay, other):
        torch.manual_seed(0)
        batches.append(nest.flatten([each.sample_batch(32, 4).experience for _ in range(3)]))
    assert all(torch.equal(a, b) for a, b in zip(*batches))


def test_uniform_samples_for_other_losses_are_as_stored():
    replay = chains(buffer(1, 60, probability=1.0), [7], 60)
    assert (replay.sample(50, 3).time_step.observation["desired_goal"] == -1).all()


# Errors -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more, said",
    [
        ({"compute_reward": None}, "achieved_goal and desired_goal"), ({"strategy": "past"}, "future, final, episode.*'past'"),
        ({"probability": 1.5}, r"\[0, 1\].*1.5"), ({"max_steps": 0}, "1 or more.*0"), ({"length": 1}, "ReplayBuffer.length"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(more, said):
    with pytest.raises(TaacError, match=said):
        buffer(**more)


def test_rewards_other_than_the_environments_are_refused():
    replay = chains(buffer(compute_reward=lambda a, d, i: reward_of(a, d, i) + 1), [7], 60)
    with pytest.raises(TaacError, match=r"gives 0 where the environment gave the reward -1.*wrapper"):
        replay.sample_batch(20, 2)


@pytest.mark.parametrize(
    "function, said",
    [
        (lambda a, d, i: -1.0, r"shape \[\] for 2 goals.*axis=-1"),
        (lambda a, d, i: [one["distance"] for one in i], r"goals \[2, 1\] and empty infos.*KeyError\('distance'\)"),
    ],
)
def test_a_reward_that_is_not_of_batches_of_goals_is_refused(function, said):
    with pytest.raises(TaacError, match=said):
        buffer(compute_reward=function)


def test_a_refusal_names_a_frame_that_differs():
    """Too many have differed in earlier batches, and none of this one does: the next that does is named."""
    replay = chains(buffer(1, 200), [10], 200)
    replay._seldom, replay._seldom_wrong = 100, 50
    replay.sample_batch(64, 2)


def test_a_resumed_buffer_checks_no_further_than_it_would_have():
    replay, other = (chains(buffer(1, 200), [10], 200) for _ in range(2))
    for _ in range(20):
        replay.sample_batch(64, 2)
    for each in (replay, other):  # as of goals that are at the threshold by then
        each._compute_reward = lambda a, d, i: reward_of(a, d, i) + 1
    replay._seldom = 200.0
    replay.sample_batch(64, 2)
    restore(other, held(replay))
    other.sample_batch(64, 2)
    state = {name: value for name, value in replay.state_dict().items() if name != "checks"}  # of earlier code
    other = chains(buffer(1, 200), [10], 200)
    other.load_state_dict(state)
    assert other._batches == 0


def test_rewards_of_success_are_compared_however_seldom_they_are():
    """In 2 of 1,000 frames the environment gives 10, and `compute_reward` 0."""
    replay = buffer(length=1000)
    for n in range(1000):
        kind = FIRST if n % 500 == 0 else LAST if n % 500 == 499 else MID
        one = frame([kind], [n], [-1.0 if kind != LAST else n])
        if kind == LAST:
            one.time_step.reward[:] = 10.0
        replay.add(one)
    with pytest.raises(TaacError, match="gives 0 where the environment gave the reward 10"):
        for _ in range(2000):
            replay.sample_batch(64, 2)


def test_ends_by_the_goal_that_no_function_knows_are_refused():
    def replayed(**more):
        replay = buffer(length=400, **more)
        for n in range(400):
            kind = FIRST if n % 10 == 0 else LAST if n % 10 == 9 else MID
            replay.add(frame([kind], [n], [n // 10 * 10 + 9.0], discount=0.0 if kind == LAST else 1.0))
        for _ in range(50):
            replay.sample_batch(64, 2)

    for more in ({}, {"compute_terminated": lambda a, d, i: np.zeros(len(a), bool)}):
        with pytest.raises(TaacError, match=r"^\d+ of \d+ sampled .*as if the goal ended them.*compute_terminated.*Define it"):
            replayed(**more)
    replayed(compute_terminated=reached)
    replayed(compute_terminated=lambda a, d, i: reached(a, d, i) & (a[:, 0] // 10 % 3 > 0))  # most of them, but for rounding


def test_ends_by_the_goal_are_known_by_dense_rewards_too():
    """Episodes come nearer to the goal and end there, or end anywhere."""

    def distance(achieved, desired, info):
        return -np.abs(achieved - desired)[..., 0]

    def replayed(ends, **more):
        replay = buffer(length=400, compute_reward=distance, **more)
        for n in range(400):
            kind = FIRST if n % 10 == 0 else LAST if n % 10 == 9 else MID
            one = frame([kind], [n], [n // 10 * 10 + ends], discount=0.0 if kind == LAST else 1.0)
            one.time_step.reward[:] = 0.0 if kind == FIRST else -abs(n % 10 - ends)
            replay.add(one)
        for _ in range(50):
            replay.sample_batch(64, 2)

    with pytest.raises(TaacError, match=r"a reward above the usual, or one of the highest, as if the goal ended them"):
        replayed(9.0)
    replayed(9.0, compute_terminated=reached)
    replayed(5.0)


def test_failures_with_a_reward_of_their_own_are_none_of_the_goals_ends():
    """Lava at 5 of each 10 places, which ends an episode with -1, under any goal. The goal is never reached."""

    def lava(achieved, desired, info):
        burnt = achieved[..., 0] % 10 == 5
        return np.where(burnt, -1.0, (achieved == desired)[..., 0])

    replay = buffer(length=400, compute_reward=lava, compute_terminated=reached)
    for n in range(400):
        place = n % 10
        kind = FIRST if place in (0, 6) else LAST if place == 5 else MID
        one = frame([kind], [n], [n // 10 * 10 + 200.0], discount=0.0 if kind == LAST else 1.0)
        one.time_step.reward[:] = -1.0 if place == 5 else 0.0
        replay.add(one)
    for _ in range(20):
        replay.sample_batch(64, 2)


def test_failures_that_are_as_frequent_far_from_the_goal_are_none_of_its_ends():
    draw = np.random.default_rng(0)
    replay = buffer(1, 2000, compute_reward=lambda a, d, i: -np.abs(a - d)[..., 0])
    begins = True
    for n in range(2000):
        fails = not begins and draw.random() < 0.3
        at = draw.integers(100)
        one = frame([FIRST if begins else LAST if fails else MID], [n], [0.0], discount=1.0 - fails, achieved=[at])
        one.time_step.reward[:] = 0.0 if begins else -float(at)
        replay.add(one)
        begins = fails
    torch.manual_seed(0)
    for _ in range(10):
        replay.sample_batch(64, 2)
    assert replay._ends > 20


def test_the_next_episode_of_a_segment_is_learnt_from():
    """Episodes of 4 frames: a goal reached in the first does not end the second, which begins in the same segment."""
    torch.manual_seed(0)
    replay = chains(buffer(1, 400, compute_terminated=reached, strategy="final", probability=1.0), [4], 400)
    batch = replay.sample_batch(64, 6)
    step_type, number = batch.experience.time_step.step_type, batch.experience.time_step.observation["observation"][..., 1]
    _, end = replay.episode_bounds(batch.environment, batch.first)
    other = number > end
    place = number.long() % 4
    kinds = torch.where(place == 0, FIRST, torch.where(place == 3, LAST, MID))
    assert other.any() and torch.equal(step_type[other].long(), kinds[other])


def test_the_newest_episode_that_has_ended():
    replay = chains(buffer(1, 20, ReplayBuffer), [4], 8)
    found = replay.newest_episode(0)
    assert found is not None and found.time_step.observation["observation"][:, 0, 1].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("goal, said", [(TensorSpec((4, 4)), r"float32\[4, 4\]"), ({"kettle": TensorSpec((4,))}, "{'kettle'")])
def test_goals_that_are_no_vectors_are_refused(goal, said):
    step = SPEC.time_step
    spec = SPEC._replace(time_step=step._replace(observation={**step.observation, "desired_goal": goal}))
    with pytest.raises(TaacError, match="needs goals that are vectors of one size; desired_goal is " + said):
        HindsightReplayBuffer(spec, 1, compute_reward=reward_of, length=20)


def test_goals_of_two_sizes_are_refused():
    step = SPEC.time_step
    spec = SPEC._replace(time_step=step._replace(observation={**step.observation, "achieved_goal": TensorSpec((3,))}))
    with pytest.raises(TaacError, match=r"vectors of one size; desired_goal is float32\[1\], achieved_goal float32\[3\]"):
        HindsightReplayBuffer(spec, 1, compute_reward=reward_of, length=20)


def test_a_function_of_ends_that_is_not_written_is_none():
    """That of gymnasium-robotics' `GoalEnv` raises NotImplementedError. One that needs the info is refused at once."""
    def unwritten(achieved, desired, info):
        raise NotImplementedError

    assert chains(buffer(1, 60, compute_terminated=unwritten), [7], 60).sample_batch(8, 3)
    with pytest.raises(TaacError, match=r"compute_terminated cannot be called with goals \[1\] and empty infos.*KeyError\('at'"):
        buffer(1, 60, compute_terminated=lambda achieved, desired, info: info["at"] == 3)


def test_what_a_wrapper_refuses_it_says_itself_and_before_any_step():
    """As `SuccessEndsEpisode` of a dense task does."""
    def sparse(achieved, desired, info):
        if (achieved != desired).any():
            raise TaacError("dense")
        return np.zeros(len(achieved))

    with pytest.raises(TaacError, match=r"^dense"):
        buffer(compute_reward=sparse)


def test_functions_of_one_goal_are_called_row_by_row():
    """Also one that reads a number which a batch of two goals lacks, and one that asks the info."""
    for function in (
        lambda achieved, desired, info: achieved[0] == desired[0] and not info.get("failed"),
        lambda achieved, desired, info: [None, None, None][2 if achieved.ndim == 1 else 7] is None,
    ):
        assert chains(buffer(1, 60, compute_terminated=function), [7], 60).sample_batch(8, 3)
    with pytest.raises(TaacError, match=r"compute_reward cannot be called.*NotImplementedError"):
        buffer(compute_reward=mock.Mock(side_effect=NotImplementedError))


def test_rewards_are_asked_for_where_there_are_goals_alone():
    def stacked(achieved, desired, infos):
        return np.stack([-float(abs(a - d).sum() > 0.5) for a, d in zip(achieved, desired)])  # fails with none

    replay = chains(buffer(1, 60, compute_reward=stacked, probability=1e-9), [7], 60)
    replay.sample_batch(1, 1)


@pytest.mark.parametrize("moved, skip", [(10, False), (10, True), (1000, True)])
def test_goals_that_were_achieved_when_an_episode_began_are_skipped(moved, skip):
    """Every tenth episode moves what is achieved from 0 to 1 at frame 3 of 6, or none does. Others are drawn in their place."""
    replay = buffer(2, 600, strategy="final", skip_achieved=skip)
    for n in range(600):
        place, moves = n % 6, n // 6 % moved == moved - 1
        kind = FIRST if place == 0 else LAST if place == 5 else MID
        replay.add(frame([kind] * 2, [n] * 2, [-1.0] * 2, achieved=[float(moves and place >= 3)] * 2))
    torch.manual_seed(0)
    batch = replay.sample_batch(3000, 3)
    step = batch.experience.time_step
    number, goal = step.observation["observation"][0, :, 1].long(), step.observation["desired_goal"][..., 0]
    new, moves, place = goal[0] != -1.0, number // 6 % moved == moved - 1, number % 6
    assert not new[place == 5].any()
    if moved > 100:
        assert not new.any() and set(place.tolist()) == {*range(6)}
        return
    assert {*place[new & moves].tolist()} == {*range(5)}, "also after the move"
    share = new.float().mean().item()
    if not skip:
        assert share == pytest.approx(0.8 * 5 / 6, abs=0.03) and moves[new].float().mean().item() == pytest.approx(0.1, abs=0.03)
        return
    # One of 10 * 6 / 5 = 12 draws is of such a goal, and there are 32, after the first.
    assert moves[new].all() and share == pytest.approx(0.8 * 5 / 6 * (1 - 0.9 * (11 / 12) ** 32), abs=0.02)
    assert number[new].float().mean().item() == pytest.approx(number[moves].float().mean().item(), abs=15), "of any age"
    assert moves[~new].float().mean().item() == pytest.approx(0.1, abs=0.05)
    assert (goal[0, new] == 1.0).all() and torch.equal(step.reward[1, new] == 0.0, place[new] >= 2)


def test_goals_are_those_that_the_same_environment_achieved():
    """Environment 1 achieves numbers of 1000 and more."""
    replay = buffer(2, 60, probability=1.0)
    for n in range(60):
        kind = FIRST if n % 6 == 0 else LAST if n % 6 == 5 else MID
        replay.add(frame([kind] * 2, [n] * 2, [-1.0] * 2, achieved=[n, 1000.0 + n]))
    batch = replay.sample_batch(64, 2)
    goal = batch.experience.time_step.observation["desired_goal"][0, :, 0]
    new = goal >= 0
    assert new.any() and torch.equal(goal[new] >= 1000, batch.environment[new] == 1)


def test_whether_a_goal_was_achieved_at_the_beginning_is_asked_of_its_own_episode():
    """Only environment 1 ever moves what it achieves; its episodes begin elsewhere."""
    replay = buffer(2, 600, strategy="final", skip_achieved=True)
    for n in range(600):
        place, moves = n % 6, n // 6 % 10 == 9
        kind = FIRST if place == 0 else LAST if place == 5 else MID
        replay.add(frame([kind] * 2, [n] * 2, [-1.0] * 2, achieved=[0.0, 1.0 if moves and place >= 3 else 5.0]))
    torch.manual_seed(0)
    batch = replay.sample_batch(1000, 3)
    goal = batch.experience.time_step.observation["desired_goal"][0, :, 0]
    new = goal != -1.0
    assert new.any() and (batch.environment[new] == 1).all() and (goal[new] == 1.0).all()
