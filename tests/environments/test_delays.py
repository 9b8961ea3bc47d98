"""Delays of actions and observations: who sees and does what when, tables by hand, and whole runs."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

import taac
from taac.environments.delays import ActionDelay, ObservationDelay
from taac.environments.durations import DurationCoordinate
from taac.errors import TaacError
from tests.environments.toys import env_id
from tests.training.runs import assert_resumes_exactly, assert_same_parameters, build, rows, run


class Counting(gymnasium.Env):
    """Observes the number of steps, and tells in info what was done; ends after 6 steps."""

    observation_space = spaces.Box(0, 9, (1,))
    action_space = spaces.Box(np.array([0.0]), np.array([4.0]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._time = np.zeros(1, np.float32)
        return self._time, {}

    def step(self, action):
        self._time += 1  # in place: what was returned before changes with it
        return self._time, float(self._time[0]), bool(self._time[0] == 6), False, {"done": float(action[0])}


def play(env, seed=0):
    """What is observed, done and earned in an episode whose action at step t is t / 2, and the last step's flags."""
    observation, _ = env.reset(seed=seed)
    seen, done, earned = [observation], [], []
    for t in range(6):
        observation, reward, terminated, _, info = env.step(np.array([t / 2]))
        seen.append(observation)
        done.append(info["done"])
        earned.append(reward)
    assert terminated
    return seen, done, earned


def test_two_wrappers_draw_independent_delays():
    env = ActionDelay(ObservationDelay(Counting(), (0, 1)), (0, 1), observe_pending=True)
    drawn = set()
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        drawn.add((float(observation["action_delay"][0]), env.env._steps))
    assert drawn == {(0, 0), (0, 1), (1, 0), (1, 1)}


@pytest.mark.parametrize("delay", [0, 1, 2])
def test_actions_arrive_later_and_the_middle_of_the_space_before(delay):
    _, done, earned = play(ActionDelay(Counting(), delay))
    assert done == ([2.0] * delay + [0.0, 0.5, 1.0, 1.5, 2.0, 2.5])[:6]
    assert earned == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("delay, expected", [(0, [0, 1, 2, 3, 4, 5, 6]), (2, [0, 0, 0, 1, 2, 3, 4])])
def test_observations_arrive_later_and_rewards_do_not(delay, expected):
    seen, done, earned = play(ObservationDelay(Counting(), delay))
    assert [float(x[0]) for x in seen] == expected
    assert done == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5] and earned == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("wrapper, part", [(ActionDelay, "pending_actions"), (ObservationDelay, "unseen_actions")])
def test_pending_actions_are_those_that_are_not_done_or_not_seen(wrapper, part):
    env = wrapper(Counting(), 2, observe_pending=True)
    seen, *_ = play(env)
    assert [x[part][:, 0].tolist() for x in seen[:4]] == [[2, 2], [2, 0], [0, 0.5], [0.5, 1]]
    assert all(env.observation_space.contains({**x, "observation": np.array(x["observation"])}) for x in seen)


def test_two_delays_show_all_actions_since_the_state_that_is_seen():
    """At step t the state of t - 2 is seen, and 3 + 2 actions will have changed it before that of t + 3 is there."""
    env = ActionDelay(ObservationDelay(Counting(), 2, observe_pending=True), 3, observe_pending=True)
    seen, done, _ = play(env)
    assert done == [2.0, 2.0, 2.0, 0.0, 0.5, 1.0]
    at = seen[5]
    assert at["observation"].tolist() == [3] and at["unseen_actions"][:, 0].tolist() == [0.0, 0.5] == done[3:5]
    assert at["pending_actions"][:, 0].tolist() == [1.0, 1.5, 2.0]
    assert set(env.observation_space.spaces) == set(at) == {"observation", "unseen_actions", "pending_actions"}


def test_pending_actions_are_shown_in_time_and_once():
    late = ActionDelay(Counting(), 1, observe_pending=True)
    with pytest.raises(TaacError, match=r"name it first, create_environment\.wrappers = \(@ObservationDelay, @ActionDelay\)"):
        ObservationDelay(late)
    with pytest.raises(TaacError, match="already have a part 'pending_actions'"):
        ActionDelay(late, 1, observe_pending=True)
    env = ActionDelay(late, 1)
    env.reset(seed=0)
    observation, *_, info = env.step(np.array([0.5]))
    assert observation["pending_actions"].tolist() == [[2.0]] and info["done"] == 2.0, "the inner delay's own"


def test_each_episode_draws_its_delay_and_a_seed_repeats_it():
    env = ActionDelay(Counting(), (0, 2), observe_pending=True)

    def delays(seed):
        found = []
        for number in range(30):
            _, done, _ = play(env, seed if number == 0 else None)
            found.append(next(i for i, action in enumerate([*done, 0.0]) if action == 0.0))
        return found

    first = delays(3)
    assert set(first) == {0, 1, 2} and delays(3) == first != delays(4)
    observation, _ = env.reset(seed=3)
    assert observation["action_delay"].tolist() == [first[0]] and env.observation_space["action_delay"].high == 2
    if first[0] < 2:  # what it does not wait for is the middle of the space, first
        assert env.step(np.array([1.0]))[0]["pending_actions"][0, 0] == 2


@pytest.mark.parametrize("steps", [-1, 1.5, True, (2, 1), (1, 2, 3), "2"])
def test_bad_steps_are_refused(steps):
    with pytest.raises(TaacError, match=r"ActionDelay\.steps must be an integer, 0 or more, or \(least, most\), got"):
        ActionDelay(Counting(), steps)


def test_a_space_without_bounds_has_a_middle():
    class Unbounded(Counting):
        action_space = spaces.Box(np.float32([0, -np.inf, 1, -np.inf, -2]), np.float32([np.inf, np.inf, np.inf, -3, 1]))

    env = ActionDelay(Unbounded(), 1)
    assert env._rest.tolist() == [0.0, 0.0, 1.0, -3.0, -0.5] and env._rest.dtype == np.float32


def test_gymnasium_finds_no_fault_with_the_wrappers():
    for wrap in (
        lambda env: ActionDelay(env, (1, 2), observe_pending=True), lambda env: ObservationDelay(env, 2),
        lambda env: DurationCoordinate(env, 3, 0.99, observe_time_left=True),
    ):  # fmt: skip
        env = wrap(gymnasium.make("Pendulum-v1"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an action space in [-2, 2], and of a wrapper that is checked
            check_env(env, skip_render_check=True)
        assert env.spec.id == "Pendulum-v1"


def test_actions_that_are_not_done_yet_are_not_shown_as_done():
    with pytest.raises(TaacError, match=r"or its own before they are done: name it first"):
        ObservationDelay(ActionDelay(Counting(), 2), 2, observe_pending=True)
    ObservationDelay(ActionDelay(Counting(), 2), 2)


def test_choices_are_refused():
    with pytest.raises(TaacError, match=r"ObservationDelay needs a Box of actions.*got Discrete\(2\)"):
        ObservationDelay(gymnasium.make("CartPole-v1"))


def test_agents_that_join_and_leave_are_not_shown_late():
    class Team(Counting):
        observation_space = spaces.Dict({"own": spaces.Box(-1, 1, (2, 1)), "agent_mask": spaces.MultiBinary(2)})

    with pytest.raises(TaacError, match="would show late which agents are present"):
        ObservationDelay(Team())


@pytest.mark.slow
def test_a_delay_of_0_changes_no_bit(tmp_path):
    short = ("num_env_steps = 320",)
    plain = run(tmp_path / "plain", *short)
    delayed = run(tmp_path / "delayed", *short, "create_environment.wrappers = (@ActionDelay, @ObservationDelay)",
                  "ActionDelay.steps = 0", "ObservationDelay.steps = 0", "ObservationDelay.observe_pending = True")  # fmt: skip
    assert_same_parameters(plain, delayed)
    assert rows(tmp_path / "plain") == rows(tmp_path / "delayed")


@pytest.mark.slow
def test_a_run_with_delays_that_was_stopped_ends_as_one_that_was_not(tmp_path):
    params = ("num_env_steps = 340", "create_environment.wrappers = (@ObservationDelay, @ActionDelay)",
              "ActionDelay.steps = (0, 3)", "ObservationDelay.steps = (1, 2)", "ActionDelay.observe_pending = True")  # fmt: skip
    whole, _ = assert_resumes_exactly(tmp_path, *params, stop=[315])
    assert whole.environment.observation_spec.keys() == {"observation", "pending_actions", "action_delay"}


@pytest.mark.parametrize(
    "params, training, evaluation",
    [
        (["create_environment.evaluation_wrappers = (@ActionDelay,)", "ActionDelay.steps = 2"], 0, 2),
        (["create_environment.wrappers = (@ActionDelay,)", "create_environment.evaluation_wrappers = ()"], 1, 0),
        (
            ["create_environment.wrappers = (@ActionDelay,)", "ActionDelay.steps = 3", "evaluation/ActionDelay.steps = 4",
             "create_environment.evaluation_wrappers = (@evaluation/ActionDelay,)"],
            3, 4,
        ),
        (["create_environment.wrappers = (@ActionDelay,)"], 1, 1),
    ],
)  # fmt: skip
def test_evaluations_may_have_other_delays_than_training(params, training, evaluation):
    scripted = (f"create_environment.env_name = '{env_id('Counter')}'", "create_environment.env_kwargs = {'scripts': (('9n',),)}")
    trainer = build(*scripted, "create_environment.max_episode_steps = 9", *params)
    for environment, delay in ((trainer.environment, training), (trainer.evaluation_environment, evaluation)):
        environment.reset(0)
        action = torch.ones(environment.num_envs, 2)
        done = [bool(environment.step(action).observation[0, 2]) for _ in range(6)]  # the action that arrived, 0 before the first
        assert done == [False] * delay + [True] * (6 - delay)
    trainer.close()


def test_wrappers_of_evaluations_that_change_a_space_are_refused():
    with pytest.raises(TaacError, match=r"\(evaluation\)' has observation_space.* in training.*also in evaluations"):
        build("create_environment.evaluation_wrappers = (@ActionDelay,)", "ActionDelay.observe_pending = True")


def test_wrappers_of_evaluations_that_change_the_reward_are_refused():
    """Critics of saved agents, which are made with the wrappers of evaluations, would not fit."""
    split = ("create_environment.wrappers = (@SplitReward,)", "SplitReward.keys = ('reward_forward', 'reward_ctrl')")
    with pytest.raises(TaacError, match="the reward of evaluations is a number, that of training a vector of 2; name"):
        build("create_environment.env_name = 'HalfCheetah-v5'", *split, "create_environment.evaluation_wrappers = ()")


def test_what_is_pending_of_a_delay_shorter_than_the_longest():
    env = ActionDelay(Counting(), (0, 2), observe_pending=True)
    for seed in range(20):
        env.reset(seed=seed)
        if env._steps == 1:
            break
    observation, *_ = env.step(np.array([0.5]))
    assert observation["pending_actions"][:, 0].tolist() == [2.0, 0.5]


@pytest.mark.parametrize("delay", [ActionDelay, ObservationDelay])
def test_an_action_is_copied(delay):
    env, action = delay(Counting(), 1, observe_pending=True), np.array([0.5])
    env.reset(seed=0)
    env.step(action)
    action[:] = 3.0
    if delay is ActionDelay:
        assert env.step(action)[-1]["done"] == 0.5
    else:
        assert env.step(np.array([1.0]))[0]["unseen_actions"].tolist() == [[1.0]]


def test_actions_before_the_first_are_copies_of_their_own():
    class Writes(Counting):
        def step(self, action):
            result = super().step(action)
            action += 1.0
            return result

    env = ActionDelay(Writes(), 2)
    env.reset(seed=0)
    assert [env.step(np.array([0.5]))[-1]["done"] for _ in range(2)] == [2.0, 2.0]


@pytest.mark.slow
def test_a_finished_agent_is_evaluated_as_its_run_was(tmp_path):
    """With the wrappers of evaluations; `--delay` comes on top of the run's. 200 steps late, all agents do the same: nothing."""
    short = ("num_env_steps = 310", "initial_collect_steps = 305")
    run(tmp_path / "late", *short, "create_environment.evaluation_wrappers = (@ActionDelay,)", "ActionDelay.steps = 200")
    shown = ("create_environment.wrappers = (@ActionDelay,)", "ActionDelay.steps = 1", "ActionDelay.observe_pending = True")
    run(tmp_path / "shown", *short, *shown)
    points = taac.evaluate(tmp_path / "shown", num_episodes=2, delay=[0, 2, 199]).points
    idle = points[2].summary.return_mean
    assert [point.condition.delay for point in points] == [0, 2, 199] and idle != points[1].summary.return_mean
    assert taac.evaluate(tmp_path / "late", num_episodes=2).points[0].summary.return_mean == idle
    assert taac.Run(tmp_path / "late").evaluate(2).return_mean == pytest.approx(idle)
