"""The ring buffer, checked on frames that carry their environment's number and their own."""

from __future__ import annotations

from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from taac import nest
from taac.data_structures import Experience, StepType, TimeStep
from taac.errors import TaacError
from taac.replay import ReplayBuffer, replay_buffer
from taac.specs import TensorSpec, time_step_spec, zeros
from tests.replay.saved import held, restore

SETTINGS = settings(max_examples=20, deadline=None, database=None)
# 99.99th percentiles of chi-square by degrees of freedom: with the seeds below the tests are deterministic.
CHI_SQUARE = {2: 18.42, 3: 21.11, 4: 23.51, 6: 27.86}


class Info(NamedTuple):
    part: torch.Tensor
    nothing: tuple
    nested: Any


SPEC = Experience(
    TimeStep(
        step_type=TensorSpec((), torch.uint8),
        reward=TensorSpec(()),
        discount=TensorSpec(()),
        observation={
            "who": TensorSpec((2,), torch.int64),  # environment, number of the frame
            "camera": ({"image": TensorSpec((2, 3, 1), torch.uint8)}, TensorSpec((3,))),
        },
        prev_action=TensorSpec((2,)),
        duration=TensorSpec((), torch.int16),
    ),
    Info(TensorSpec((), torch.bool), (), {"state": (TensorSpec((1,)), ())}),
)


def frames_of(environment: torch.Tensor, number: torch.Tensor, lengths: list[int]) -> Experience:
    """The frames with these numbers, as anyone may compute them; episodes of environment i have `lengths[i]` frames."""
    e, n = environment.double(), number.double()
    length = torch.tensor(lengths)[environment]
    place = (number + environment) % length
    step_type = torch.full_like(number, int(StepType.MID))
    step_type[place == 0] = int(StepType.FIRST)
    step_type[place == length - 1] = int(StepType.LAST)
    values = torch.stack([n, -n, e + 0.5], -1)
    return Experience(
        TimeStep(
            step_type=step_type.to(torch.uint8),
            reward=(n + 1000 * e).float(),
            discount=(n % 3 != 0).float(),
            observation={
                "who": torch.stack([environment, number], -1),
                "camera": (
                    {"image": ((n + e)[..., None, None, None] + torch.arange(6).reshape(2, 3, 1)).to(torch.uint8)},
                    values.float(),
                ),
            },
            prev_action=values[..., :2].float() / 7,
            duration=(n % 4).to(torch.int16),
        ),
        Info((number + environment) % 2 == 0, (), {"state": ((3 * n - e)[..., None].float(), ())}),
    )


def filled(num_envs: int, length: int, added: int, lengths: list[int] | None = None) -> ReplayBuffer:
    """A buffer to which frames 0 to `added - 1` were added."""
    buffer = ReplayBuffer(SPEC, num_envs, length)
    add(buffer, 0, added, lengths)
    return buffer


def add(buffer: ReplayBuffer, begin: int, end: int, lengths: list[int] | None = None) -> None:
    for number in range(begin, end):
        everyone = torch.arange(buffer.num_envs)
        buffer.add(frames_of(everyone, torch.full_like(everyone, number), lengths or [5] * buffer.num_envs))


def who(sample: Experience) -> tuple[torch.Tensor, torch.Tensor]:
    """Environments and numbers of sampled frames, each [T, B]."""
    return sample.time_step.observation["who"].unbind(-1)


def assert_equal(left: Any, right: Any) -> None:
    def same(a: torch.Tensor, b: torch.Tensor) -> None:
        assert a.dtype == b.dtype and torch.equal(a, b), (a, b)

    nest.map_structure(same, left, right)


@st.composite
def situations(draw) -> dict[str, Any]:
    length = draw(st.integers(2, 12))
    added = draw(st.integers(1, 4 * length + 3))
    num_envs = draw(st.integers(1, 4))
    return {
        "length": length,
        "added": added,
        "num_envs": num_envs,
        "lengths": draw(st.lists(st.integers(2, 7), min_size=num_envs, max_size=num_envs)),
        "segment": draw(st.integers(1, min(added, length))),
        "batch": draw(st.integers(1, 30)),
        "seed": draw(st.integers(0, 2**31)),
    }


@SETTINGS
@given(situations())
def test_segments_are_consecutive_frames_that_are_held(s):
    buffer = filled(s["num_envs"], s["length"], s["added"], s["lengths"])
    assert buffer.size == min(s["added"], s["length"])
    torch.manual_seed(s["seed"])
    sample = buffer.sample(s["batch"], s["segment"])
    environment, number = who(sample)
    assert environment.shape == (s["segment"], s["batch"])
    assert (environment == environment[0]).all(), "a segment is of one environment"
    assert (number == number[0] + torch.arange(s["segment"])[:, None]).all(), ("consecutive: not across the write pointer")
    assert number.min() >= s["added"] - buffer.size and number.max() < s["added"], "only frames still held"
    # All else about each frame is what was added with it: step types across LAST and FIRST too.
    assert_equal(sample, frames_of(environment, number, s["lengths"]))


@SETTINGS
@given(situations())
def test_what_numpy_does_on_the_cpu_torch_does_elsewhere(s):
    ours, elsewhere = (ReplayBuffer(SPEC, s["num_envs"], s["length"]) for _ in range(2))
    elsewhere._rows = []  # as on a GPU
    samples = []
    for buffer in (ours, elsewhere):
        add(buffer, 0, s["added"], s["lengths"])
        torch.manual_seed(s["seed"])
        samples.append([buffer.sample(batch, s["segment"]) for batch in (s["batch"], 3, s["batch"])])
    assert_equal(*samples)
    assert [who(sample)[0].shape[1] for sample in samples[0]] == [s["batch"], 3, s["batch"]]


@SETTINGS
@given(situations())
def test_one_segment_starts_in_each_part_of_an_environments_frames(s):
    buffer = filled(s["num_envs"], s["length"], s["added"])
    torch.manual_seed(s["seed"])
    environment, number = who(buffer.sample(s["batch"], s["segment"]))
    starts = buffer.size - s["segment"] + 1
    for i in range(s["num_envs"]):
        age = np.sort((number[0, environment[0] == i] - (s["added"] - buffer.size)).numpy())
        part = np.arange(len(age)) * starts
        assert (age >= np.floor(part / max(1, len(age)))).all()
        assert (age <= np.ceil((part + starts) / max(1, len(age))) - 1).all()


@SETTINGS
@given(situations(), st.integers(1, 4))
def test_with_as_many_parts_as_starts_every_start_is_drawn_equally_often(s, times):
    """When each start is `times` parts wide, chance has no say in it: which starts there are is exact."""
    buffer = filled(s["num_envs"], s["length"], s["added"])
    torch.manual_seed(s["seed"])
    starts = buffer.size - s["segment"] + 1
    environment, number = who(buffer.sample(s["num_envs"] * starts * times, s["segment"]))
    drawn = sorted(zip(environment[0].tolist(), number[0].tolist()))
    oldest = s["added"] - buffer.size
    expected = [(i, oldest + k) for i in range(s["num_envs"]) for k in range(starts) for _ in range(times)]
    assert drawn == expected


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2).sum() / expected)


@pytest.mark.parametrize("batch, segments_an_environment", [(1, None), (2, 1), (10, 5)])
def test_starts_are_uniform(batch, segments_an_environment):
    """7 starts, which no number of parts here divides: a part's edge falls within a start."""
    buffer, calls = filled(2, 9, 13), 2000
    numbers = np.concatenate([who(buffer.sample(batch, 3))[1][0].numpy() for _ in range(calls)])
    counts = np.bincount(numbers - 4, minlength=7)
    assert counts.size == 7 and counts.min() > 0
    assert chi_square(counts) < CHI_SQUARE[6]
    if segments_an_environment:  # stratified counts vary less than independent ones, and this is what it is for
        rows = numbers.reshape(calls, batch)
        means = np.array([row.mean() for row in rows])
        independent = np.var(np.arange(7)) / batch
        assert means.var() < 1.3 * independent / segments_an_environment


@pytest.mark.parametrize("burn_in", [0, 1])
def test_transitions_are_uniform_over_those_where_an_action_was_taken(burn_in):
    """16 starts, of episodes of 5 frames, three or four of which learn from LAST alone; those are drawn with 0.25^5 < 0.001."""
    buffer = filled(1, 17 + burn_in, 30, [5])
    buffer.burn_in, buffer.learns_on_last_frame = burn_in, False
    batches = [buffer.sample(8, 2 + burn_in) for _ in range(1000)]
    numbers = np.concatenate([who(batch)[1][burn_in].numpy() for batch in batches])
    idle = numbers % 5 == 4
    assert idle.mean() < 0.003
    assert np.array_equal(np.concatenate([batch.time_step.is_last()[burn_in].numpy() for batch in batches]), idle)
    counts = np.bincount(numbers[~idle])[np.unique(numbers[~idle])]
    assert counts.size in (12, 13) and chi_square(counts) < 37.4  # 99.99% of 11 degrees of freedom


@pytest.mark.parametrize("length, learns_on_last_frame", [(2, True), (3, False)])
def test_segments_with_more_frames_to_learn_from_may_begin_at_last(length, learns_on_last_frame):
    buffer = filled(1, 14 + length, 30, [5])
    buffer.learns_on_last_frame = learns_on_last_frame
    share = np.mean([buffer.sample(8, length).time_step.is_last()[0].float().mean() for _ in range(500)])
    assert share == pytest.approx(0.2, abs=0.02)  # three of 15 starts


def test_a_buffer_of_nothing_but_an_end_gives_what_it_has():
    buffer = filled(1, 2, 15, [7])  # frames 13 (LAST) and 14 (FIRST)
    buffer.learns_on_last_frame = False
    assert who(buffer.sample(3, 2))[1].tolist() == [[13] * 3, [14] * 3]


def test_starts_are_uniform_where_single_precision_ends():
    """Above 2^24 float32 knows even numbers alone. A frame here says whether its own number is odd."""
    length = 2**25
    buffer = ReplayBuffer(TensorSpec((), torch.uint8), 1, length)
    odd = torch.tensor([[0], [1]], dtype=torch.uint8).repeat(length // 2, 1)
    restore(buffer, {"frames/": odd, "position": torch.tensor([0, length, length, length])})
    assert buffer.sample(2000, 1).float().mean() == pytest.approx(0.5, abs=0.06)


def test_the_greatest_random_number_draws_the_last_start(monkeypatch):
    """1 - 2^-53, to which the second stratum's number cannot be added without rounding."""
    buffer = ReplayBuffer(SPEC, 1, length=20)
    add(buffer, 0, 10)
    monkeypatch.setattr(torch, "rand", lambda *shape, **kind: torch.full(shape, 1 - 2**-53, dtype=torch.float64))
    _, number = who(buffer.sample(2, 3))
    assert number.T.tolist() == [[3, 4, 5], [7, 8, 9]]


def test_what_does_not_divide_goes_to_every_environment_in_turn():
    buffer = filled(5, 4, 4)
    extra = np.zeros(5)
    for _ in range(600):
        counts = torch.bincount(who(buffer.sample(12, 2))[0][0], minlength=5).numpy()
        assert sorted(counts) == [2, 2, 2, 3, 3]
        extra += counts - 2
    assert chi_square(extra) < CHI_SQUARE[4]


@pytest.mark.parametrize("form", [torch.Tensor.clone, nest.array])
def test_samples_and_added_frames_are_not_shared_with_the_buffer(form):
    buffer = ReplayBuffer(SPEC, 1, 4)
    frame = frames_of(torch.tensor([0]), torch.tensor([0]), [5])
    expected = nest.map_structure(lambda x: x.clone()[None], frame)
    frame = nest.map_structure(form, frame)
    buffer.add(frame)
    frame.time_step.observation["who"][:] = 99
    sample = buffer.sample(1, 1)
    assert_equal(sample, expected)
    sample.time_step.reward[:] = 99
    assert_equal(buffer.sample(1, 1), expected)


@pytest.mark.parametrize("added, segment", [(0, 1), (1, 2), (3, 4), (20, 7)])
def test_too_few_frames_are_refused_with_both_numbers(added, segment):
    buffer = filled(2, 6, added)
    with pytest.raises(TaacError, match=rf"segments of {segment} frames.* holds {buffer.size} "):
        buffer.sample(4, segment)


@pytest.mark.parametrize("length", [1, 0, -3])
def test_a_length_without_a_transition_is_refused(length):
    with pytest.raises(TaacError, match=rf"ReplayBuffer.length .*got {length}\b"):
        ReplayBuffer(SPEC, 1, length)


def test_the_state_of_a_buffer_of_another_length_is_refused_and_nothing_is_changed():
    """A ring that has wrapped would come back in the wrong order."""
    state = filled(2, 4, 6).state_dict()
    other = filled(2, 5, 3, [5, 5, 5])
    with pytest.raises(TaacError, match="another shape: length 4"):
        other.load_state_dict(state)
    with pytest.raises(TaacError, match="another shape: length 5, with -1 frames"):  # a position of a ring, all the same
        other.load_state_dict({"position": torch.tensor([4, -1, 5, -1])})
    assert other.size == 3
    sample = other.sample(2, 3)
    assert_equal(sample, frames_of(*who(sample), [5, 5, 5]))


@pytest.mark.parametrize("form", [torch.Tensor.clone, nest.array])
def test_numbers_that_would_be_cut_are_refused(form):
    """An own algorithm's `random_step`, from which the buffer is made, may return -1 where its `rollout_step` returns -0.7."""
    kinds = (TensorSpec((), torch.int64), TensorSpec((), torch.float32))
    spec = Experience(time_step_spec(TensorSpec((2,)), TensorSpec((1,)), None), kinds)
    buffer, frame = ReplayBuffer(spec, 2, length=5), zeros(spec, 2)
    fits = frame._replace(rollout_info=(torch.tensor([1, 2]), torch.tensor([0.5, 1.5], dtype=torch.float64)))
    buffer.add(nest.map_structure(form, fits))
    with pytest.raises(TaacError, match=r"torch.float32 where the buffer holds torch.int64, which would cut .*random_step"):
        buffer.add(nest.map_structure(form, frame._replace(rollout_info=(torch.tensor([-0.7, 1.5]), torch.zeros(2)))))
    assert buffer.size == 1 and buffer.sample(1, 1).rollout_info[1].item() in (0.5, 1.5)


@pytest.mark.parametrize("form", [torch.Tensor.clone, nest.array])
def test_a_frame_that_does_not_fit_is_refused(form):
    buffer = filled(2, 4, 1)
    frame = nest.map_structure(form, nest.index(buffer.sample(2, 1), 0))
    with pytest.raises(TaacError, match=r"shape \[1\] does not fit .*\[2\]"):
        buffer.add(frame._replace(time_step=frame.time_step._replace(reward=frame.time_step.reward[:1])))
    with pytest.raises(TaacError, match="nests differ"):
        buffer.add(frame._replace(rollout_info=()))


@SETTINGS
@given(st.integers(2, 7), st.integers(1, 3), st.integers(0, 30), st.integers(0, 20))
def test_a_restored_buffer_continues_identically(length, num_envs, before, after):
    buffer, restored = filled(num_envs, length, before), ReplayBuffer(SPEC, num_envs, length)
    restore(restored, held(buffer))
    assert restored.size == buffer.size
    for number in range(before, before + after + 1):
        if buffer.size:
            torch.manual_seed(number)
            expected = buffer.sample(9, min(2, buffer.size))
            torch.manual_seed(number)
            assert_equal(restored.sample(9, min(2, buffer.size)), expected)
        add(buffer, number, number + 1)
        add(restored, number, number + 1)
    sample = restored.sample(num_envs, restored.size)
    assert_equal(sample, frames_of(*who(sample), [5] * num_envs))


def test_frames_are_named_by_their_paths():
    frames = filled(2, 6, 4).frames(1, 4)
    assert set(frames) == {
        "frames/time_step/step_type",
        "frames/time_step/reward",
        "frames/time_step/discount",
        "frames/time_step/observation/who",
        "frames/time_step/observation/camera/0/image",
        "frames/time_step/observation/camera/1",
        "frames/time_step/prev_action",
        "frames/time_step/duration",
        "frames/rollout_info/part",
        "frames/rollout_info/nested/state/0",
    }
    assert all(value.shape[:2] == (3, 2) for value in frames.values())
    assert frames["frames/time_step/reward"][:, 0].tolist() == [1, 2, 3]


# One frame of SPEC: step type 1, reward 4, discount 4, who 16, image 6, floats 12, previous action 8, duration 2, part 1,
# state 4.
FRAME_BYTES = 58


def test_bytes_are_counted_as_allocated(monkeypatch):
    monkeypatch.setattr(replay_buffer, "available_bytes", lambda device: 3 * 10 * FRAME_BYTES)  # it just fits
    buffer = ReplayBuffer(SPEC, 3, 10)
    assert buffer.num_bytes == 0 and buffer.frame_bytes == 3 * FRAME_BYTES
    buffer.reserve(11)
    assert buffer.num_bytes == 3 * 10 * FRAME_BYTES
    add(buffer, 0, 10)
    assert sum(leaf.nbytes for leaf in buffer.frames(0, 10).values()) == buffer.num_bytes


@pytest.mark.parametrize("reserved", [0, pytest.param(1500, marks=pytest.mark.slow)])
def test_what_is_drawn_and_saved_does_not_depend_on_the_memory_taken(reserved):
    whole, grown = ReplayBuffer(SPEC, 2, 3000), ReplayBuffer(SPEC, 2, 3000)
    whole.reserve(3000)
    grown.reserve(reserved)
    for start, stop in ((0, 1), (1, 999), (999, 1001), (1001, 2500), (2500, 3001), (3001, 3500)):
        add(whole, start, stop)
        add(grown, start, stop)
        assert grown.size <= grown.reserved <= 3000
        if stop > 2:
            drawn = []
            for buffer in (whole, grown):
                torch.manual_seed(stop)
                drawn.append(buffer.sample(7, 3))
            assert_equal(*drawn)
    assert all(torch.equal(v, grown.frames(0, 3000)[name]) for name, v in whole.frames(0, 3000).items())


def test_frames_that_come_after_what_was_reserved_must_fit(monkeypatch):
    buffer = ReplayBuffer(SPEC, 1, 10_000)
    monkeypatch.setattr(replay_buffer, "available_bytes", lambda device: 1000 * FRAME_BYTES)
    add(buffer, 0, 1000)
    monkeypatch.setattr(replay_buffer, "available_bytes", lambda device: 999 * FRAME_BYTES)  # 1,000 are copied
    with pytest.raises(TaacError, match="1250 frames x 1 environments"):
        add(buffer, 1000, 1001)
    monkeypatch.setattr(replay_buffer, "available_bytes", lambda device: 1000 * FRAME_BYTES)
    add(buffer, 1000, 1001)
    assert buffer.size == 1001


def test_a_buffer_that_cannot_fit_is_refused_with_the_numbers(monkeypatch):
    asked = []
    monkeypatch.setattr(replay_buffer, "available_bytes", lambda device: asked.append(device) or 173_999)
    with pytest.raises(TaacError) as error:
        ReplayBuffer(SPEC, 3, 1000).reserve(5000)
    message = str(error.value)
    for part in ("174.0 kB", "1000 frames", "3 environments", "58 B a frame", "174.0 kB is free on cpu"):
        assert part in message
    assert "ReplayBuffer.length" in message and "'cpu'" not in message
    assert asked == [torch.device("cpu")]


def test_on_a_gpu_the_other_place_is_named(monkeypatch):
    monkeypatch.setattr(replay_buffer, "available_bytes", lambda device: 0)
    buffer = ReplayBuffer(SPEC, 1, 10)
    buffer.device = torch.device("cuda")
    with pytest.raises(TaacError, match=r"free on cuda; .*create_experiment.replay_device = 'cpu'"):
        buffer.reserve(10)


# Pictures that are stacked when they are sampled ------------------------------------------------------------------------


@pytest.mark.parametrize("beyond", [1, 2, 3])
@pytest.mark.parametrize("kinds", [[1] * 40, [1, 2] * 20])
def test_no_segment_begins_with_a_stack_that_has_lost_frames(beyond, kinds):
    """The ring has been written over by `beyond` frames, so the first two after them have lost some that they show."""
    torch.manual_seed(0)
    spec = Experience(time_step_spec(TensorSpec((1, 1, 3), torch.uint8), TensorSpec((1,)), None), ())
    replay = ReplayBuffer(spec, 1, 10, frame_stack=3)
    for kind in [0, *kinds[: 9 + beyond]]:
        frame = zeros(spec, 1)
        picture = torch.zeros(1, 1, 1, 3, dtype=torch.uint8)
        step = frame.time_step._replace(step_type=torch.tensor([kind], dtype=torch.uint8), observation=picture)
        replay.add(frame._replace(time_step=step))
    for _ in range(50):
        assert (replay.sample_batch(16, 2).first >= beyond + 2).all()


@pytest.mark.parametrize("learns_on_last_frame", [True, False])
def test_a_buffer_may_begin_inside_an_episode(learns_on_last_frame):
    """Demonstrations are cut into as many parts as there are environments; a resumed run may have forgotten its frames."""
    torch.manual_seed(0)
    spec = Experience(time_step_spec(TensorSpec((1, 1, 3), torch.uint8), TensorSpec((1,)), None), ())
    replay = ReplayBuffer(spec, 2, 20, frame_stack=3, learns_on_last_frame=learns_on_last_frame)
    for number in range(12):
        frame = zeros(spec, 2)
        picture = torch.arange(number - 2, number + 1).clamp(min=0).to(torch.uint8).expand(2, 1, 1, 3)
        kinds = torch.tensor([min(number, 1), 2 - number % 2], dtype=torch.uint8)  # the second has no FIRST, and ends everywhere
        replay.add(frame._replace(time_step=frame.time_step._replace(step_type=kinds, observation=picture)))
    assert {first for _ in range(50) for first in replay.sample_batch(16, 2).first.tolist()} == {*range(2, 11)}
    tight = ReplayBuffer(spec, 2, 20, frame_stack=3)
    for _ in range(2):
        frame = zeros(spec, 2)
        tight.add(frame._replace(time_step=frame.time_step._replace(step_type=torch.ones(2, dtype=torch.uint8))))
    assert (tight.sample_batch(4, 2).first == 0).all()  # it has no others
