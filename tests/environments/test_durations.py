"""Durations as actions: rewards, discounts and prices by hand, what is observed, and whole runs."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from taac.acting.evaluation import evaluate
from taac.acting.metrics import high_frequency
from taac.data_structures import AlgStep, StepType
from taac.environments.create import create_environment
from taac.environments.durations import DurationCoordinate
from taac.environments.single import ChosenRepeat
from taac.errors import TaacError
from tests.environments.test_action_repeat import DURATIONS, SCRIPT, table
from tests.environments.toys import Probe, env_id
from tests.training.runs import SMALL, assert_resumes_exactly, assert_same_parameters, built, learn_until, rows, run

FIRST, MID, LAST = (int(t) for t in StepType)
CHOSEN = "create_environment.action_repeat_chosen = @DurationCoordinate"
FILES = ["gin/tasks/simple_control.gin", "gin/methods/sac.gin", "gin/durations.gin"]


def coordinate(k, most=3):
    """The middle of the part of [-1, 1] that stands for k of `most` steps."""
    return (2 * k - 1) / most - 1


def play(scripts, durations, *, actions=None, async_=False, most=3, **prices):
    """The frames of scripted environments, whose reward at step k of episode e is 10 e + k, with durations by step, `[B]`."""
    chosen = functools.partial(DurationCoordinate, **prices)
    environment = create_environment(
        env_id("Counter"), len(scripts), env_kwargs={"scripts": scripts}, asynchronous=async_, action_repeat=most,
        action_repeat_gamma=0.5, action_repeat_chosen=chosen, max_episode_steps=10,
    )  # fmt: skip
    try:
        frames = [(environment.reset(0), environment.raw_reward.tolist())]
        for t, ks in enumerate(durations):
            a = 0.1 * (t % 9) if actions is None else actions[t]
            frame = environment.step(torch.tensor([[a, a, coordinate(k, most)] for k in ks]))
            frames.append((frame, environment.raw_reward.tolist()))
    finally:
        environment.close()
    return frames


def test_rewards_discounts_durations_and_prices_by_hand():
    """k = 2: 1 + 2/2 = 2;  k = 1: 3;  k = 3: 4 + 5/2 + 6/4 = 8;  k = 3: 7, terminated after 1 step;  at LAST nothing is done.
    k = 3: 11 + 12/2 + 13/4 = 20.25;  k = 3: 14 + 15/2 = 21.5, cut off after 2: the next value counts;  nothing.  k = 2: 32.
    A decision costs 1/2. The raw rewards, of which returns are sums, contain neither price nor discount.
    """
    expected = [
        (FIRST, 0, 1, 0, 0), (MID, 1.5, 0.5, 2, 3), (MID, 2.5, 1, 1, 3), (MID, 7.5, 0.25, 3, 15), (LAST, 6.5, 0, 1, 7),
        (FIRST, 0, 1, 0, 0), (MID, 19.75, 0.25, 3, 36), (LAST, 21, 0.5, 2, 29), (FIRST, 0, 1, 0, 0), (LAST, 31.5, 0, 2, 43),
    ]  # fmt: skip
    assert table(play((SCRIPT,), DURATIONS, decision_price=0.5)) == expected
    free = play((SCRIPT,), DURATIONS)
    assert table(free) == [(kind, reward + 0.5 * (kind != FIRST), *rest) for kind, reward, *rest in expected]
    for frame, _ in free:  # the action that arrives is the one before the duration
        assert torch.equal(frame.observation[:, 2:], frame.prev_action[:, :2])


def test_a_change_of_the_action_costs_its_price():
    """The first action of an episode changes nothing; the one at LAST is not done; another duration is no change."""
    actions = [0.1, 0.1, 0.2, 0.2, 0.3, 0.2, 0.1]
    frames = play((("7t", "5u"),), DURATIONS[:7], actions=actions, change_price=1.0)
    free = play((("7t", "5u"),), DURATIONS[:7], actions=actions)
    paid = [a[1] - b[1] for a, b in zip(table(free), table(frames))]
    assert paid == [0, 0, 0, 1, 0, 0, 0, 1]
    assert [a[4] for a in table(free)] == [b[4] for b in table(frames)]


def test_environments_choose_for_themselves_in_processes_too():
    scripts, ks = (("4t",), ("9u",), ("2u", "50n")), [[3, 1, 2], [3, 2, 1], [1, 3, 1], [2, 3, 3], [3, 1, 2]]
    together = play(scripts, ks, decision_price=0.5)
    for i, script in enumerate(scripts):
        assert table(together, i) == table(play((script,), [[row[i]] for row in ks], decision_price=0.5))
    assert [table(play(scripts, ks, async_=True, decision_price=0.5), i) for i in range(3)] == [
        table(together, i) for i in range(3)
    ]


@pytest.mark.parametrize("most", [1, 2, 7])
def test_parts_of_the_interval_are_equal_and_what_is_no_number_lasts_a_step(most):
    env = DurationCoordinate(Probe(), most, 0.9)
    env.reset(seed=0)
    tried = [env.step(np.array([0.0, x]))[-1]["taac_duration"] for x in np.linspace(-1, 1, 20 * most + 1)] if most > 1 else [1]
    counts = [tried.count(k) for k in range(1, most + 1)]
    assert counts == ([20] * (most - 1) + [21] if most > 1 else [1])
    if most > 1:
        assert [env.step(np.array([0.0, x]))[-1]["taac_duration"] for x in (np.nan, -1.1, 1.1)] == [1, 1, most]


def test_it_is_a_chosen_repeat():
    one, other = DurationCoordinate(Probe(), 4, 0.9), ChosenRepeat(Probe(), 4, 0.9)
    one.reset(seed=0), other.reset(seed=0)
    for k in (1, 4, 2, 3):
        a, b = one.step(np.array([0.3, coordinate(k, 4)])), other.step((np.int64(k), np.array([0.3])))
        assert a[1] == b[1] and a[2:] == b[2:]
    assert [x.tolist() for x in one.env.received] == [x.tolist() for x in other.env.received] == [[0.3]] * 10


def test_time_left_is_observed_where_there_is_a_time_limit():
    frames = play((("7t", "20n"),), [[3], [1], [3], [3], [3], [3], [3], [3], [3]], observe_time_left=True)
    left = [float(frame.observation["time_left"]) for frame, _ in frames]
    np.testing.assert_allclose(left, [1, 0.7, 0.6, 0.3, 1, 0.7, 0.4, 0.1, 0, 1], atol=1e-6)
    assert frames[0][0].observation["observation"].shape == (1, 4)


def test_a_dict_of_observations_gets_one_part_more():
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,))})
    limited = gymnasium.wrappers.TimeLimit(Probe(observation_space=space), 5)
    env = DurationCoordinate(limited, 2, 0.9, observe_time_left=True)
    assert env.observation_space == spaces.Dict({**space.spaces, "time_left": spaces.Box(0.0, 1.0, (1,))})
    assert DurationCoordinate(Probe(), 2, 0.9, observe_time_left=True).observation_space == Probe().observation_space


@pytest.mark.parametrize("price", [-0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["decision_price", "change_price"])
def test_prices_out_of_range_are_refused(name, price):
    with pytest.raises(TaacError, match=rf"DurationCoordinate\.{name} must be 0 or more, and finite, got"):
        DurationCoordinate(Probe(), 2, 0.9, **{name: price})


def test_spaces_and_rewards_that_do_not_fit_are_refused():
    for space in (spaces.Discrete(2), spaces.Box(-1, 1, (2, 3)), spaces.Box(0, 5, (2,), np.int64)):
        with pytest.raises(TaacError, match=r"DurationCoordinate needs a Box of floats, of rank 1, as action space, got"):
            DurationCoordinate(Probe(action_space=space), 2, 0.9)
    pair = {"action_repeat": 3, "env_kwargs": {"scripts": (("4u",),)}}
    with pytest.raises(TaacError, match=r"decision_price = 0\.1 needs a number as reward, and this one is a vector"):
        create_environment(env_id("Pair"), action_repeat_chosen=functools.partial(DurationCoordinate, decision_price=0.1), **pair)
    environment = create_environment(env_id("Pair"), action_repeat_chosen=DurationCoordinate, **pair)
    environment.reset(0)
    assert environment.step(torch.tensor([[0.0, 0.0, 1.0]])).reward.shape == (1, 2)


# --- Runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_with_one_step_and_no_price_it_is_the_method_alone(tmp_path):
    short = ("num_env_steps = 330",)
    plain = run(tmp_path / "plain", *short)
    wrapped = run(tmp_path / "wrapped", *short, CHOSEN, "create_environment.action_repeat_gamma = %gamma")
    assert_same_parameters(plain, wrapped)
    assert rows(tmp_path / "plain") == rows(tmp_path / "wrapped")


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path):
    params = ("num_env_steps = 360", CHOSEN, "create_environment.action_repeat = 4", "DurationCoordinate.decision_price = 0.2",
              "DurationCoordinate.change_price = 0.1", "DurationCoordinate.observe_time_left = True")  # fmt: skip
    assert_resumes_exactly(tmp_path, *params, stop=[320])


def test_what_is_reported_counts_environment_steps_and_no_price():
    """Episodes of 7 steps, held for 2, 3 and 3 of which 2 are left: 3 decisions, return 1 + ... + 7."""
    trainer = built(
        FILES,
        [*SMALL[1:], f"create_environment.env_name = '{env_id('Counter')}'", "create_experiment.evaluation_envs = 1",
         "create_environment.env_kwargs = {'scripts': (('7t',),)}", "DurationCoordinate.decision_price = 5.0"],
    )  # fmt: skip
    frames, moves = iter(range(100)), [0.0, 0.5, -0.5]

    def act(time_step, state, epsilon):
        t = next(frames) % 4  # of which the fourth is LAST
        x = coordinate([2, 3, 3, 1][t])
        return AlgStep(torch.tensor([[moves[t % 3], moves[t % 3], x]]), (), (), torch.ones(1, dtype=torch.bool))

    trainer.agent.predict_step = act
    (episode,) = evaluate(trainer.agent, trainer.evaluation_environment, 1, seed=0)
    trainer.close()
    assert (float(episode.ret), episode.length, episode.decisions, episode.longest_run) == (28.0, 7, 3, 3)
    assert episode.repeated == 4 == episode.same  # the duration is no part of the motion
    # Of 0 0 .5 .5 .5 -.5 -.5 the second differences are .5 -.5 0 -1 1.
    assert episode.jerk == pytest.approx((0.25 + 0.25 + 0 + 1 + 1) / 5)
    moved = np.array([[0.0, 0.0]] * 2 + [[0.5, 0.5]] * 3 + [[-0.5, -0.5]] * 2)
    assert episode.high_frequency == pytest.approx(high_frequency(moved))


@pytest.mark.parametrize("method", ["td3", "taac", "taac_l", "temporl", "sac_ntd", "sac_recurrent", "sac_value"])
def test_other_methods_learn_with_it(method):
    small = [*SMALL, "num_env_steps = 320", "num_envs = 2", "create_environment.action_repeat = 4"]
    trainer = built(["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin", "gin/durations.gin"], small)
    learn_until(trainer, 3)
    stored = trainer.replay_buffer.sample(20, 2).time_step
    trainer.close()
    inside = stored.step_type == MID
    x = stored.prev_action[..., 1]
    k = torch.clamp(1 + torch.floor(4 * (x + 1) / 2), max=4).to(torch.int16)
    assert inside.any() and torch.equal(stored.duration[inside], k[inside])
    torch.testing.assert_close(
        trainer.agent.algorithm.td_loss.discount(stored)[inside].squeeze(-1), 0.99 ** k[inside].float(), check_dtype=False
    )


def test_the_first_action_of_a_later_episode_is_no_change():
    """Episodes of 2 steps with actions 0.1, 0.1 | (LAST) | 0.2, 0.2: no price at all."""
    actions = [0.1, 0.1, 0.3, 0.2, 0.2]
    args = ((("2t", "2t"),), [[1]] * 5)
    free, paid = (play(*args, actions=actions, change_price=c) for c in (0.0, 1.0))
    assert table(free) == table(paid)


def test_the_time_left_at_an_early_end():
    frames = play((("4t", "20n"),), [[3], [3]], observe_time_left=True)
    left = [float(frame.observation["time_left"]) for frame, _ in frames]
    np.testing.assert_allclose(left, [1, 0.7, 0.6], atol=1e-6)
