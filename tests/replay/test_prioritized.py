"""Prioritised replay on frames that carry their environment's number and their own."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from taac.errors import TaacError
from taac.replay import PrioritizedReplayBuffer, ReplayBuffer
from tests.replay.saved import held, restore
from tests.replay.test_replay_buffer import SPEC, add, assert_equal, frames_of, situations, who
from tests.training.runs import build

# 99.99th percentiles of chi-square by degrees of freedom: with the seeds below the tests are deterministic.
CHI_SQUARE = {6: 27.86, 13: 42.01}


ENDLESS = [1_000]  # frames of an episode: none is LAST


def filled(num_envs, length, added, lengths=None, **options):
    buffer = PrioritizedReplayBuffer(SPEC, num_envs, length=length, **options)
    add(buffer, 0, added, lengths)
    return buffer


def items(sample):
    """Environment and number of each segment's first frame."""
    environment, number = who(sample)
    return list(zip(environment[0].tolist(), number[0].tolist()))


def teach(buffer, segment, error_of, times=40):
    """Draws until every segment has the error that it should have."""
    for _ in range(times):
        batch = buffer.sample_batch(32, segment)
        errors = [error_of(*item) for item in items(batch.experience)]
        buffer.update_priorities(batch, torch.tensor(errors, dtype=torch.float64))


def masses(buffer):
    """`p^alpha` by environment and number of the frame, where it is above 0; the newest frame has number `newest`."""
    found = buffer._tree.masses.view(buffer.num_envs, buffer.length)
    place = {n % buffer.length: n for n in range(buffer.newest - buffer.size + 1, buffer.newest + 1)}
    return {(e, place[p]): found[e, p].item() for e, p in found.nonzero().tolist()}


def chi_square(drawn, probabilities):
    """Of draws against probabilities by item; an item that should not be there counts as infinitely far."""
    if set(drawn) - set(probabilities):
        return float("inf")
    expected = np.array(list(probabilities.values())) * len(drawn)
    counts = np.array([drawn.count(item) for item in probabilities])
    return float(((counts - expected) ** 2 / expected).sum())


# Equal priorities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 14])
@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 0.6}], ids=["alpha=0", "equal errors"])
def test_equal_priorities_are_uniform_replay(options, batch):
    """2 environments with 7 segments each, in a ring that has wrapped: as `test_starts_are_uniform` of `ReplayBuffer`."""
    buffer = filled(2, 9, 13, **options)
    teach(buffer, 3, lambda e, n: 0.7 if options["alpha"] else float(n))
    drawn = []
    for _ in range(1400 // batch):
        found, weights, _ = buffer.sample_batch(batch, 3, 0.5)[:3]
        drawn += items(found)
        assert weights.dtype == torch.float32 and weights.tolist() == [1.0] * batch
    uniform = {(e, n): 1 / 14 for e in range(2) for n in range(4, 11)}
    assert chi_square(drawn, uniform) < CHI_SQUARE[13]


@settings(max_examples=20)
@given(situations())
def test_with_equal_priorities_environments_give_equally_many_segments(s):
    """As in `ReplayBuffer` if their number divides the batch. Each part of an environment's ring contributes one."""
    buffer = filled(s["num_envs"], s["length"], s["added"], ENDLESS * s["num_envs"])
    torch.manual_seed(s["seed"])
    environment, _ = who(buffer.sample_batch(s["num_envs"] * s["batch"], s["segment"]).experience)
    assert torch.bincount(environment[0], minlength=s["num_envs"]).tolist() == [s["batch"]] * s["num_envs"]
    starts = buffer.size - s["segment"] + 1
    drawn = items(buffer.sample_batch(s["num_envs"] * starts, s["segment"]).experience)
    assert sorted(drawn) == sorted(masses_of_all(s, starts))


def masses_of_all(s, starts):
    oldest = s["added"] - min(s["added"], s["length"])
    return [(e, oldest + k) for e in range(s["num_envs"]) for k in range(starts)]


# Unequal ones --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_segments_are_drawn_in_proportion_to_their_priorities(alpha):
    """By hand: errors 0, 1, 2, ..., 6 and epsilon 1/4 are priorities 0.25, 1.25, ..., 6.25, to the power alpha."""
    buffer = filled(1, 9, 13, alpha=alpha, epsilon=0.25)
    teach(buffer, 3, lambda e, n: n - 4)
    powers = np.array([0.25, 1.25, 2.25, 3.25, 4.25, 5.25, 6.25]) ** alpha
    probabilities = {(0, 4 + k): p for k, p in enumerate(powers / powers.sum())}
    drawn = [item for _ in range(1000) for item in items(buffer.sample_batch(1, 3).experience)]
    assert chi_square(drawn, probabilities) < CHI_SQUARE[6]
    # Drawn from equal parts, counts are as good as exact.
    drawn = [item for _ in range(150) for item in items(buffer.sample_batch(100, 3).experience)]
    for item, p in probabilities.items():
        assert drawn.count(item) / len(drawn) == pytest.approx(p, abs=2e-3)


def test_weights_by_hand():
    """P = 1/8, 2/8, 5/8 of N = 3 segments: (N P)^-1 = 8/3, 4/3, 8/15; over the greatest: 1, 1/2, 1/5."""
    buffer = filled(1, 4, 4, alpha=1.0, beta=0.0, epsilon=0.5)
    teach(buffer, 2, lambda e, n: [0.5, 1.5, 4.5][n])
    found, _, indices = buffer.sample_batch(64, 2)[:3]
    numbers = [n for _, n in items(found)]
    assert set(numbers) == {0, 1, 2}
    table = torch.tensor([1.0, 1 / 2, 1 / 5])
    for progress in (0.0, 0.5, 1.0):  # beta = 0: none
        assert buffer.importance_weights(indices, progress).tolist() == [1.0] * 64
    buffer.beta = 0.4  # at progress p it is 0.4 + p (1 - 0.4)
    for progress, power in [(0.0, 0.4), (0.25, 0.55), (0.5, 0.7), (1.0, 1.0), (1.5, 1.0)]:
        torch.testing.assert_close(buffer.importance_weights(indices, progress), table[numbers] ** power)
    # The greatest weight is that of the batch.
    while 0 in numbers:
        found, weights, _ = buffer.sample_batch(3, 2, 1.0)[:3]
        numbers = [n for _, n in items(found)]
    torch.testing.assert_close(weights, table[numbers] * (2 if 1 in numbers else 5))


def test_the_weighted_mean_is_that_of_uniform_replay():
    """With beta = 1. Priorities grow with what is averaged, so that the plain mean is far off."""
    buffer, values = filled(1, 9, 13, alpha=0.8, epsilon=4.0), np.arange(7.0) ** 2
    teach(buffer, 3, lambda e, n: values[n - 4])
    plain, weighted, weight = [], [], []
    for _ in range(200):
        batch = buffer.sample_batch(64, 3, 1.0)
        value = values[[n - 4 for _, n in items(batch.experience)]]
        assert 0 in value, "the least likely is in every batch: all have the same greatest weight, so one scale"
        weights = batch.weights.double().numpy()
        plain.append(value.mean())
        weighted.append((weights * value).mean())
        weight.append(weights.mean())
    assert np.mean(plain) > 1.5 * values.mean()
    assert np.mean(weighted) / np.mean(weight) == pytest.approx(values.mean(), rel=0.02)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_new_segments_get_the_greatest_priority_seen(alpha):
    buffer = filled(1, 6, 3, alpha=alpha, epsilon=0.5)
    buffer.newest = 2
    buffer.sample_batch(1, 2)
    assert masses(buffer) == {(0, 0): 1.0, (0, 1): 1.0}, "1 before anything is known"
    teach(buffer, 2, lambda e, n: 4.0 if n == 0 else 0.0)
    teach(buffer, 2, lambda e, n: 0.0)
    add(buffer, 3, 4)
    buffer.newest = 3
    buffer.sample_batch(1, 2)
    assert masses(buffer) == pytest.approx({(0, 0): 0.5**alpha, (0, 1): 0.5**alpha, (0, 2): 4.5**alpha})


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_error_that_is_no_number_counts_as_the_greatest(bad):
    """A diverging run then continues as with uniform replay."""
    buffer = filled(1, 6, 3, alpha=1.0, epsilon=0.5)
    buffer.newest = 2
    teach(buffer, 2, lambda e, n: [2.0, bad][n])
    assert masses(buffer) == {(0, 0): 2.5, (0, 1): 2.5}
    assert set(items(buffer.sample_batch(8, 2).experience)) == {(0, 0), (0, 1)}


# Segments without a frame to learn from --------------------------------------------------------------------------------


def test_segments_that_begin_at_last_are_never_drawn():
    """T = 2, episodes of 5 frames: frames 4 and 9 are LAST. Nobody's weight depends on the segments there."""
    buffer = filled(1, 12, 12, alpha=1.0, beta=1.0, epsilon=0.25)
    assert {n for _, n in items(buffer.sample_batch(200, 2).experience)} == {0, 1, 2, 3, 5, 6, 7, 8, 10}
    teach(buffer, 2, lambda e, n: 0.25 if n == 0 else 0.75)  # masses 0.5 and eight times 1
    found, weights, _ = buffer.sample_batch(850, 2, 1.0)[:3]
    numbers = [n for _, n in items(found)]
    assert numbers.count(0) == pytest.approx(50, abs=1), "1/17 of all"
    expected = [1.0 if n == 0 else 0.5 for n in numbers]
    assert weights.tolist() == expected


@pytest.mark.parametrize(
    "need, segment, burn_in, without",
    [("any", 2, 0, {2, 3, 6}), ("any", 3, 0, {2}), ("any", 4, 0, set()), ("any", 3, 1, {1, 2, 5}), ("any", 4, 2, {0, 1, 4}),
     ("any", 4, 1, {1}), ("any", 5, 1, set()), ("first", 4, 0, {2, 3, 6}), ("all", 3, 0, {1, 2, 3, 5, 6})],
)  # fmt: skip
def test_only_segments_whose_learnt_frames_are_all_last_go(need, segment, burn_in, without):
    """FIRST MID LAST LAST MID MID LAST FIRST MID MID: an episode cut off at its FIRST leaves two LAST in a row."""
    kinds = [0, 1, 2, 2, 1, 1, 2, 0, 1, 1]
    buffer = PrioritizedReplayBuffer(SPEC, 1, length=20, critics_need=need)
    buffer.burn_in = burn_in
    for number, kind in enumerate(kinds):
        frame = frames_of(torch.tensor([0]), torch.tensor([number]), ENDLESS)
        step_type = torch.tensor([kind], dtype=torch.uint8)
        buffer.add(frame._replace(time_step=frame.time_step._replace(step_type=step_type)))
    drawn = {n for _, n in items(buffer.sample_batch(300, segment).experience)}
    assert drawn == set(range(10 - segment + 1)) - without


def test_a_run_tells_its_buffer_which_frames_only_warm_up_memories():
    params = ["create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer", "RecurrentSacAlgorithm.burn_in = 3"]
    trainer = build(*params, method="sac_recurrent")
    trainer.close()
    assert trainer.replay_buffer.burn_in == 3


@pytest.mark.parametrize("method, more, need", [
    ("sac", [], "any"), ("sac_chunk", [], "first"), ("sac_chunk", ["SacChunkAlgorithm.keep_cut_windows = False"], "all"),
])  # fmt: skip
def test_a_run_tells_its_buffer_which_frames_critics_need(method, more, need):
    trainer = build("create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer", *more, method=method)
    trainer.close()
    assert trainer.replay_buffer._critics_need == need


def test_with_nothing_to_learn_from_nothing_can_be_drawn():
    with pytest.raises(TaacError, match="none of the 1 stored segments has a frame to learn from"):
        filled(1, 2, 6).sample_batch(3, 2)  # frames 4, which is LAST, and 5


# The ring ------------------------------------------------------------------------------------------------------------


class SlowPriorities:
    """What each segment's priority should be, frame by frame."""

    def __init__(self, num_envs, length, epsilon, lengths):
        self.num_envs, self.length, self.epsilon, self.lengths = num_envs, length, epsilon, lengths
        self.added, self.greatest, self.priority = 0, 1.0, {}

    def add(self):
        self.added += 1

    def sample(self, segment):
        oldest = max(0, self.added - self.length)
        whole = {(e, n) for e in range(self.num_envs) for n in range(oldest, self.added - segment + 1)}
        fresh = {item: self.greatest if self.learns(*item, segment) else 0.0 for item in whole}
        self.priority = {item: self.priority.get(item, fresh[item]) for item in whole}

    def learns(self, environment, number, segment):
        """Whether one of the first T-1 frames is not the last of its episode (`frames_of`); of a single frame, that one."""
        ends = self.lengths[environment]
        return any((number + environment + k) % ends != ends - 1 for k in range(max(1, segment - 1)))

    def update(self, drawn, errors):
        for item in set(drawn):
            self.priority[item] = max(e for i, e in zip(drawn, errors) if i == item) + self.epsilon
        self.greatest = max(self.greatest, *(error + self.epsilon for error in errors))


@settings(max_examples=30)
@given(situations(), st.integers(1, 6), st.booleans())
def test_priorities_are_those_of_the_segments_that_are_held(s, rounds, lengths_vary):
    """Whatever is added between draws, across LAST and the write pointer, and whatever T is asked for."""
    random = np.random.default_rng(s["seed"])
    torch.manual_seed(s["seed"])
    buffer = filled(s["num_envs"], s["length"], s["added"], s["lengths"], alpha=1.0, epsilon=0.25)
    slow = SlowPriorities(s["num_envs"], s["length"], 0.25, s["lengths"])
    for _ in range(s["added"]):
        slow.add()
    for _ in range(rounds):
        segment = int(random.integers(1, buffer.size + 1)) if lengths_vary else s["segment"]
        slow.sample(segment)
        if not any(slow.priority.values()):
            with pytest.raises(TaacError, match="has a frame to learn from"):
                buffer.sample_batch(s["batch"], segment)
            return
        batch = buffer.sample_batch(s["batch"], segment)
        sample = batch.experience
        environment, number = who(sample)
        assert (environment == environment[0]).all()
        assert (number == number[0] + torch.arange(segment)[:, None]).all(), "consecutive: not across the write pointer"
        assert number.min() >= slow.added - buffer.size and number.max() < slow.added, "only frames still held"
        assert_equal(sample, frames_of(environment, number, s["lengths"]))
        buffer.newest = slow.added - 1
        assert masses(buffer) == {item: p for item, p in slow.priority.items() if p > 0}
        drawn, errors = items(sample), random.integers(0, 30, size=s["batch"]) / 8
        for _ in range(int(random.integers(0, 4))):  # the errors may come late
            add(buffer, slow.added, slow.added + 1, s["lengths"])
            slow.add()
        buffer.update_priorities(batch, torch.from_numpy(errors))
        slow.update(drawn, errors.tolist())
        for _ in range(int(random.integers(0, 2 * s["length"])) if random.random() < 0.3 else 0):
            add(buffer, slow.added, slow.added + 1, s["lengths"])
            slow.add()


# Saving, limits ------------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(situations(), st.integers(0, 8))
def test_a_restored_buffer_continues_identically(s, between):
    lengths = ENDLESS * s["num_envs"]
    buffer = filled(s["num_envs"], s["length"], s["added"], lengths)
    teach(buffer, s["segment"], lambda e, n: (3 * n + e) % 7 / 3, times=5)
    add(buffer, s["added"], s["added"] + between, lengths)  # not drawn from since
    restored = filled(s["num_envs"], s["length"], 3)
    teach(restored, 2, lambda e, n: 9.0, times=2)
    restore(restored, held(buffer))
    for number in range(s["added"] + between, s["added"] + between + 5):
        samples, weights = [], []
        for each in (buffer, restored):
            torch.manual_seed(number)
            batch = each.sample_batch(9, s["segment"], 0.3)
            samples.append(batch.experience)
            weights.append(batch.weights)
            each.update_priorities(batch, torch.rand(9))
            add(each, number, number + 1, lengths)
        assert_equal(*samples)
        assert torch.equal(*weights)
    assert torch.equal(buffer._tree.masses, restored._tree.masses)


def test_state_beside_the_frames():
    buffer = filled(2, 6, 4)
    plain = ReplayBuffer(SPEC, 2, 6).state_dict()
    state = buffer.state_dict()
    assert set(state) - set(plain) == {"priorities/masses", "priorities/greatest", "priorities/unopened"}
    assert state["priorities/masses"].shape == (4, 2), "no more than the frames that are held"
    with pytest.raises(TaacError, match="has no priorities"):
        buffer.load_state_dict(plain)


@pytest.mark.parametrize("errors", [None, torch.ones(1), torch.ones(3, 2)])
def test_errors_of_another_batch_are_refused(errors):
    buffer = filled(1, 6, 4)
    batch = buffer.sample_batch(3, 2)
    with pytest.raises(TaacError, match="each of the 3 segments"):
        buffer.update_priorities(batch, errors)
    with pytest.raises(TaacError, match="the batch has no indices: draw it by sample_batch"):
        buffer.update_priorities(ReplayBuffer.sample_batch(buffer, 3, 2), torch.ones(3))


def test_bytes_include_the_tree(monkeypatch):
    buffer = filled(3, 1000, 0)
    buffer.reserve(1000)
    assert buffer.num_bytes - 1000 * buffer.frame_bytes == 8 * 128 * (24 + 1)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"alpha": -0.1}, "alpha must be in"),
        ({"alpha": 1.5}, "alpha must be in"),
        ({"beta": 2.0}, "beta must be in"),
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"epsilon": float("nan")}, "epsilon must be above 0"),
        ({"length": 1}, "ReplayBuffer.length"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(TaacError, match=message):
        PrioritizedReplayBuffer(SPEC, 1, **{"length": 4, **options})


# Batches for something else ------------------------------------------------------------------------------------------


def test_sample_is_uniform_and_leaves_batches_alone():
    """2 environments with 7 segments each, one of which has nearly all of the priority."""
    buffer = filled(2, 9, 13, ENDLESS * 2, epsilon=1e-6)
    teach(buffer, 3, lambda e, n: 1e6 if (e, n) == (1, 5) else 0.0)
    torch.manual_seed(0)
    batch = buffer.sample_batch(14, 3)
    last = items(batch.experience)
    assert last.count((1, 5)) > 7
    aside = [item for _ in range(300) for item in items(buffer.sample(10, 3))]
    assert chi_square(aside, {(e, n): 1 / 14 for e in range(2) for n in range(4, 11)}) < CHI_SQUARE[13]
    errors = torch.tensor([8.0 if item == (1, 5) else 2.0 for item in last], dtype=torch.float64)
    buffer.update_priorities(batch, errors)
    found = buffer._tree.masses.view(2, 9)
    for e, n in last:
        assert found[e, n % 9].item() == pytest.approx((8.0 if (e, n) == (1, 5) else 2.0) ** 0.6, rel=1e-5)


def test_each_batch_knows_its_own_segments():
    """Of two batches drawn in turn, the errors of the first move its segments, not those of the second."""
    buffer = filled(1, 9, 13, ENDLESS, alpha=1.0, epsilon=0.5)
    torch.manual_seed(0)
    first, second = buffer.sample_batch(1, 3), buffer.sample_batch(1, 3)
    assert first.indices != second.indices
    buffer.update_priorities(first, torch.tensor([7.0]))
    assert buffer._tree.masses[first.indices] == 7.5 and buffer._tree.masses[second.indices] == 1.0


@pytest.mark.parametrize("reserved", [10, 11, 12])
def test_segments_open_at_the_end_of_the_memory_taken_as_elsewhere(reserved):
    """The newest frames begin segments that are not complete: what they would read may lie beyond that end."""
    drawn = []
    for frames in (reserved, 1000):
        buffer = PrioritizedReplayBuffer(SPEC, 1, length=1000)
        buffer.reserve(frames)
        add(buffer, 0, 10)
        assert buffer.reserved == frames
        torch.manual_seed(0)
        drawn.append(buffer.sample_batch(8, 4))
    assert torch.equal(drawn[0].indices, drawn[1].indices) and drawn[0].indices.max() <= 6
