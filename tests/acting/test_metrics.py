"""Counting what happens in episodes: tables by hand, and a slow reference that looks at whole episodes at once."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from taac.acting.metrics import Episode, EpisodeRecorder, Traces, high_frequency, summarize
from taac.data_structures import AlgStep, StepType, TimeStep

FIRST, MID, LAST = (int(t) for t in StepType)
F, M, L = FIRST, MID, LAST
SETTINGS = settings(max_examples=30, deadline=None, database=None)

Row = tuple[int, object, bool, object]  # step type, reward, decided, action


def frame(step_types, reward=None) -> TimeStep:
    """A frame of each environment, whose observation and previous action nobody reads."""
    zeros = torch.zeros(len(step_types))
    reward = zeros if reward is None else torch.tensor(reward, dtype=torch.float32)
    return TimeStep(torch.tensor(step_types, dtype=torch.uint8), reward, zeros + 1, (), (), (zeros + 1).to(torch.int16))


def record(*streams: list[Row]) -> list[list[Episode]]:
    """The episodes of each environment, fed frame by frame, one stream of frames an environment."""
    recorder = EpisodeRecorder(len(streams))
    episodes: list[list[Episode]] = [[] for _ in streams]
    for rows in zip(*streams, strict=True):
        step_types, rewards, decided, actions = zip(*rows)
        action = torch.tensor(actions, dtype=torch.float32).reshape(len(rows), -1)
        ended = recorder.add(frame(step_types, rewards), AlgStep(action, (), (), torch.tensor(decided)))
        for env, episode in ended:
            assert step_types[env] == LAST
            episodes[env].append(episode)
        assert [env for env, _ in ended] == [i for i, t in enumerate(step_types) if t == LAST]
    return episodes


def one(rows: list[Row]) -> Episode:
    ((episode,),) = record(rows)
    return episode


# Tables by hand -------------------------------------------------------------------------------------------------------


def test_an_episode_by_hand():
    """Five transitions, at the frames before LAST: act, repeat, repeat, act, repeat."""
    episode = one(
        [
            # type, reward on arriving, decided there, action
            (F, 100.0, True, 0.0),  # the reward at FIRST is of no transition of this episode
            (M, 1.0, False, 0.0),
            (M, 2.0, False, 0.0),
            (M, 4.0, True, 1.0),
            (M, 8.0, False, 1.0),
            (L, 16.0, True, 9.0),  # what is done at LAST is ignored
        ]
    )
    assert episode.ret == 31.0
    assert episode.length == 5
    assert (episode.repeated, episode.decisions) == (3, 2)
    assert (episode.runs, episode.longest_run) == (2, 3)
    # Actions 0 0 0 1 1: first differences 0, 0, 1, 0, second differences 0, 1, -1
    assert episode.jerk == pytest.approx(2 / 3)
    assert (episode.change, episode.effort) == (1 / 4, 2 / 5)


@pytest.mark.parametrize(
    "decided, repeated, runs, longest",
    [
        ([True], 0, 1, 1),
        ([False], 1, 1, 1),  # an episode that begins with a repeat begins a run
        ([True, True, True], 0, 3, 1),
        ([False, False, False], 3, 1, 3),
        ([False, True], 1, 2, 1),
        ([False, False, True, False, True], 3, 3, 2),
        ([True, False, True, False, False, False], 4, 2, 4),  # the longest run is the last
        ([True, False, False, True, True, False], 3, 3, 3),  # ... is the first
    ],
)
def test_runs(decided, repeated, runs, longest):
    rows = [(F if i == 0 else M, 0.0, d, 0.0) for i, d in enumerate(decided)]
    episode = one([*rows, (L, 0.0, True, 0.0)])
    assert episode.length == len(decided)
    assert (episode.repeated, episode.decisions) == (repeated, len(decided) - repeated)
    assert (episode.runs, episode.longest_run) == (runs, longest)


@pytest.mark.parametrize(
    "actions, jerk",
    [
        ([5.0], 0.0),
        ([5.0, -5.0], 0.0),  # no second difference
        ([1.0, 2.0, 3.0, 4.0], 0.0),  # a straight line
        ([0.0, 0.0, 1.0], 1.0),
        ([0.0, 1.0, 0.0, 1.0], 4.0),  # -2, 2
        ([[0.0, 0.0], [0.0, 1.0], [2.0, 1.0]], 2.5),  # (2, -1): mean of 4 and 1
    ],
)
def test_jerk(actions, jerk):
    rows = [(F if i == 0 else M, 0.0, True, a) for i, a in enumerate(actions)]
    assert one([*rows, (L, 0.0, True, np.full(np.shape(actions[0]), 50.0).tolist())]).jerk == jerk


def test_episodes_follow_each_other_without_a_trace():
    rows = [
        (F, 0.0, True, 3.0),
        (M, 1.0, False, -3.0),
        (M, 1.0, False, 7.0),
        (L, 1.0, False, 0.0),
        (F, 5.0, False, 0.0),
        (M, 2.0, True, 0.5),
        (M, 2.0, True, 1.0),
        (L, 2.0, True, 0.0),
    ]
    ((first, second),) = record(rows)
    assert first == Episode(
        ret=np.float64(3.0), length=3, repeated=2, decisions=1, runs=1, longest_run=3, jerk=256.0, same=0.0, change=8.0,
        effort=67 / 3,
    )  # fmt: skip
    assert second == Episode(
        ret=np.float64(6.0), length=3, repeated=1, decisions=2, runs=3, longest_run=1, jerk=0.0, same=0.0, change=0.5,
        effort=1.25 / 3,
    )  # fmt: skip


def test_vector_rewards_keep_their_parts():
    rows = [(F, [9.0, 9.0], True, 0.0), (M, [1.0, -2.0], True, 0.0), (L, [0.5, 3.0], True, 0.0)]
    episode = one(rows)
    assert episode.ret.tolist() == [1.5, 1.0]
    assert episode.length == 2


def test_actions_repeated_inside_the_environment():
    """Decisions that last 3, 2 and 1 steps, the second a repeat of the first: 1 0 0 | 0 0 | 1, of 6 transitions."""
    recorder = EpisodeRecorder(2)
    frames = [
        # type, reward, raw reward, decided, action, steps taken there
        (F, 0.0, 0.0, True, 0.0, 3),
        (M, 1.5, 3.0, False, 0.0, 2),
        (M, 1.5, 2.0, True, 1.0, 1),
        (L, 1.0, 1.0, True, 9.0, 0),
    ]
    ended = []
    for step_type, reward, raw, decided, action, steps in frames:
        alg_step = AlgStep(torch.tensor([[5.0], [action]]), (), (), torch.tensor([True, decided]))
        ended += recorder.add(frame([M, step_type], [0.0, reward]), alg_step, np.array([100.0, raw]), torch.tensor([1, steps]))
    ((environment, episode),) = ended
    assert environment == 1
    assert episode.ret == 6.0, "of raw rewards"
    assert (episode.length, episode.decisions, episode.repeated) == (6, 2, 4)
    assert (episode.runs, episode.longest_run) == (2, 5)
    assert episode.jerk == 0.25  # 0 0 0 0 0 1: one second difference of four is not 0


def test_steps_and_decisions_of_a_frame():
    recorder = EpisodeRecorder(3)
    given = frame([F, M, L])._replace(duration=torch.tensor([0, 1, 1], dtype=torch.int16))
    step = AlgStep(torch.zeros(3, 2), (), (), torch.tensor([[False, False], [True, False], [True, True]]))
    recorder.add(given, step)
    assert recorder.last.tolist() == [False, False, True]
    assert (recorder.steps, recorder.decisions) == (2, 1)  # nothing is done at LAST; one dimension is enough
    recorder.add(given, step, duration=torch.tensor([3, 2, 0], dtype=torch.int16))
    assert (recorder.steps, recorder.decisions) == (5, 1)


def test_returns_are_summed_in_double_precision():
    """A million and a tenth, a hundred times, is beyond float32's seven digits."""
    rows = [(F, 0.0, True, 0.0), *[(M, 1_000_000.125, True, 0.0)] * 100, (L, 0.0, True, 0.0)]
    assert one(rows).ret == 100_000_012.5


# A slow reference -----------------------------------------------------------------------------------------------------


@st.composite
def episodes_of_rows(draw, dims: int) -> list[list[Row]]:
    """Whole episodes, in order."""
    number = st.integers(-8, 8).map(lambda k: k / 4)
    episodes = []
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(1, 7))
        types = [F, *[M] * (length - 1), L]
        episodes.append([(t, draw(number), draw(st.booleans()), [draw(number) for _ in range(dims)]) for t in types])
    return episodes


def reference(rows: list[Row]) -> Episode:
    """From a whole episode: everything about actions leaves out the frame at LAST."""
    rewards = np.array([r for _, r, _, _ in rows])
    decided = np.array([d for _, _, d, _ in rows[:-1]])
    actions = np.array([a for _, _, _, a in rows[:-1]])
    starts = np.flatnonzero(decided | (np.arange(len(decided)) == 0))
    run_lengths = np.diff([*starts, len(decided)])
    jerk = float(np.mean(np.diff(actions, n=2, axis=0) ** 2)) if len(actions) > 2 else 0.0
    return Episode(
        ret=rewards[1:].sum(), length=len(decided), repeated=int((~decided).sum()), decisions=int(decided.sum()),
        runs=len(starts), longest_run=int(run_lengths.max()), jerk=jerk,
        same=float((np.diff(actions, axis=0) == 0).mean(1).sum()),
        change=float(np.abs(np.diff(actions, axis=0)).mean()) if len(actions) > 1 else 0.0, effort=float((actions**2).mean()),
    )  # fmt: skip


@SETTINGS
@given(st.data(), st.integers(1, 3), st.integers(1, 3))
def test_any_episodes_against_the_reference(data, num_envs, dims):
    streams = [data.draw(episodes_of_rows(dims)) for _ in range(num_envs)]
    frames = [[row for episode in stream for row in episode] for stream in streams]
    # The shorter streams go on with an episode that never ends.
    longest = max(map(len, frames))
    padding: Row = (M, 1.0, False, [0.0] * dims)
    padded = [f + [(F, 1.0, True, [0.5] * dims), *[padding] * longest][: longest - len(f)] for f in frames]
    for episodes, stream in zip(record(*padded), streams, strict=True):
        for episode, rows in zip(episodes, stream, strict=True):
            expected = reference(rows)
            assert episode[1:6] == expected[1:6]
            assert episode.same == pytest.approx(expected.same)
            assert episode.ret == pytest.approx(expected.ret)
            assert episode.jerk == pytest.approx(expected.jerk, abs=1e-6)
            assert (episode.change, episode.effort) == pytest.approx((expected.change, expected.effort))
            assert episode.repeated + episode.decisions == episode.length


def test_dimensions_that_decide_alone():
    """Two dimensions over four transitions: the first decides at 0 and 2, the second at 0 alone."""
    recorder = EpisodeRecorder(1)
    decided = [[True, True], [False, False], [True, False], [False, False], [True, True]]
    actions = [[0.1, 0.5], [0.1, 0.5], [0.2, 0.5], [0.2, 0.5], [9.0, 9.0]]
    ended = []
    for step_type, new, action in zip([F, M, M, M, L], decided, actions, strict=True):
        ended += recorder.add(frame([step_type]), AlgStep(torch.tensor([action]), (), (), torch.tensor([new])))
    ((_, episode),) = ended
    assert episode.length == 4 and episode.decisions == 2
    assert episode.repeated == 0 + 1 + 0.5 + 1
    assert episode.runs == 1 + 0.5
    assert episode.longest_run == 4, "of the second dimension"
    assert episode.same == 0 + 1 + 0.5 + 1


def test_of_a_nested_action_its_continuous_parts_are_followed():
    recorder = EpisodeRecorder(1)
    ended = []
    for step_type, choice, value in [(F, 0, 0.0), (M, 3, 0.0), (M, 3, 1.0), (L, 0, 0.0)]:
        action = (torch.tensor([choice]), {"arm": torch.full((1, 2), value), "leg": torch.tensor([[0.5]])})
        ended += recorder.add(frame([step_type]), AlgStep(action, (), (), torch.tensor([True])))
    ((_, episode),) = ended
    assert episode.same == pytest.approx(1 + 1 / 3)
    assert episode.jerk == pytest.approx((1 + 1 + 0) / 3)


# Whole episodes of an evaluation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "actions, expected",
    [
        ([[1.0]], 0.0),
        ([[3.0], [3.0], [3.0], [3.0]], 0.0),  # constant
        ([[1.0], [-1.0], [1.0], [-1.0]], 1.0),  # f = 1/4, 1/2 with amplitudes 0 and 2: 2/2 (2 * 1/2)
        ([[0.0], [1.0], [0.0], [-1.0]], 0.25),  # one period of amplitude 1: 2/2 * 1/4
        ([[0.0, 3.0], [1.0, 3.0], [0.0, 3.0], [-1.0, 3.0]], 0.125),  # mean over dimensions
    ],
)
def test_high_frequency(actions, expected):
    assert high_frequency(np.array(actions)) == pytest.approx(expected)


def test_traces_are_those_of_the_episode_that_ended():
    """Of two environments; the first action of the second episode lasts two steps."""
    traces, zero = Traces(2), np.zeros(1)
    done = Episode(zero, 2, 0, 2, 2, 1, 0.0, 0.0, 0.0, 0.0)
    for kinds, first, second, durations, costs in [
        ((F, M), 1.0, 5.0, (1, 1), (10, 1)),
        ((M, L), -1.0, 5.0, (1, 0), (20, 99)),
        ((L, F), 7.0, 0.0, (0, 2), (99, 3)),  # nothing is done at LAST
        ((F, M), 0.0, 1.0, (1, 1), (40, 4)),
    ]:
        action = [np.array([[first], [second]])]
        traces.add(np.array(kinds), action, np.array(durations), np.array(costs))
        if kinds[0] == L:
            ended = traces.complete(0, done)
    assert (ended.high_frequency, ended.multiply_adds) == (high_frequency(np.array([[1.0], [-1.0]])), 30)
    running = traces.complete(1, done)
    assert (running.high_frequency, running.multiply_adds) == (high_frequency(np.array([[0.0], [0.0], [1.0]])), 7)
    assert traces.complete(0, done).multiply_adds == 40


# Averages -------------------------------------------------------------------------------------------------------------

SHORT = Episode(np.float64(1.0), 2, 0, 2, 2, 1, jerk=1.0, same=1.0, change=1.0, effort=0.25, high_frequency=3.0, multiply_adds=6)
LONG = Episode(np.float64(4.0), 8, 6, 2, 3, 5, jerk=0.5, same=2.0, change=0.5, effort=0.25, high_frequency=0.0, multiply_adds=9)
OTHER = Episode(np.float64(-2.0), 5, 3, 2, 2, 3, jerk=0.0, same=4.5, change=0.0, effort=1.0, high_frequency=0.0, multiply_adds=0)


def test_averages_by_hand():
    summary = summarize([SHORT, LONG, OTHER])
    assert summary.episodes == 3
    assert summary.return_mean == 1.0
    assert summary.return_std == pytest.approx(np.sqrt((0 + 9 + 9) / 3))
    assert summary.length == 5.0
    assert summary.fraction_repeated == 9 / 15, "of all transitions, not the mean of 0, 3/4 and 3/5"
    assert summary.mean_run == 15 / 7, "all transitions by all runs, not the mean of 1, 8/3 and 5/2"
    assert summary.max_run == 5
    assert summary.decisions == 2.0
    assert summary.jerk == 0.5
    assert summary.fraction_same == 7.5 / 15
    assert (summary.action_change, summary.effort, summary.high_frequency, summary.multiply_adds) == (0.5, 0.5, 1.0, 5.0)
    assert all(isinstance(value, (int, float)) and not isinstance(value, np.generic) for value in summary[:-1])
    assert summary.info == {}


def test_what_the_environment_reports_is_a_mean_over_the_episodes_of_which_it_does():
    told = [SHORT._replace(info={"success": 1.0, "cost": -2.0}), LONG, OTHER._replace(info={"success": 0.0, "cost": 5.0})]
    assert summarize(told).info == {"success": 0.5, "cost": 1.5}
    assert summarize([SHORT]).info == {}


def test_a_vector_return_is_summed_over_its_parts():
    episodes = [SHORT._replace(ret=np.array([1.0, 2.0])), SHORT._replace(ret=np.array([5.0, -3.0]))]
    summary = summarize(episodes)
    assert (summary.return_mean, summary.return_std) == (2.5, 0.5)


def test_a_state_taken_up_leaves_nothing_of_before():
    def add(recorder, action):
        recorder.add(frame([M]), AlgStep(torch.tensor([[action]]), (), (), torch.tensor([True])))

    saved, other = EpisodeRecorder(1), EpisodeRecorder(1)
    add(saved, 1.0)
    for action in (3.0, 4.0):
        add(other, action)
    other.load_state_dict(saved.state_dict())
    found = other.state_dict()
    assert all(torch.equal(found[name], value) for name, value in saved.state_dict().items())
    other.load_state_dict(None)
    assert other.state_dict() is None
