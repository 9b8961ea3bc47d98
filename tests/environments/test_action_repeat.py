"""A fixed frame skip as a semi-Markov process: reward, discount, duration, and what each part counts."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from taac import configuration
from taac.acting.evaluation import evaluate
from taac.algorithms import SacAlgorithm
from taac.algorithms.agent import Agent
from taac.data_structures import AlgStep, Experience, StepType, TimeStep
from taac.environments.create import create_environment
from taac.environments.single import ActionRepeat, ChosenRepeat
from taac.environments.vector_environment import VectorEnvironment
from taac.networks import RewardNormalizer
from taac.specs import bounded
from taac.training import experiment
from tests.environments.toys import Probe, env_id

FIRST, MID, LAST = (int(t) for t in StepType)


def play(scripts, steps, **options):
    """The frames of a scripted environment, whose reward on arriving at step k of episode e is 10 e + k."""
    environment = create_environment(env_id("Counter"), len(scripts), env_kwargs={"scripts": scripts}, **options)
    frames = [(environment.reset(0), environment.raw_reward.tolist())]
    for _ in range(steps):
        time_step = environment.step(torch.full((len(scripts), 2), 0.5))
        frames.append((time_step, environment.raw_reward.tolist()))
    return frames


def table(frames, env=0):
    return [
        (int(t.step_type[env]), float(t.reward[env]), float(t.discount[env]), int(t.duration[env]), raw[env])
        for t, raw in frames
    ]


def test_reward_discount_and_duration_by_hand():
    """gamma = 1/2, N = 3. An episode of 7 steps that terminates, then one of 4 that is cut off.

    Steps 1-3: 1 + 2/2 + 3/4 = 2.75;  4-6: 4 + 5/2 + 6/4 = 8;  7: 7, terminated inside the repeat, after 1 step.
    Second episode, steps 1-3: 11 + 12/2 + 13/4 = 20.25;  4: 14, cut off after 1 step: the next value counts, by gamma^1.
    The discount is gamma^(k-1): the learner's own gamma makes it gamma^k.
    """
    frames = play((("7t", "4u"),), 6, action_repeat=3, action_repeat_gamma=0.5)
    assert table(frames) == [
        (FIRST, 0, 1, 0, 0),
        (MID, 2.75, 0.25, 3, 6),
        (MID, 8, 0.25, 3, 15),
        (LAST, 7, 0, 1, 7),
        (FIRST, 0, 1, 0, 0),
        (MID, 20.25, 0.25, 3, 36),
        (LAST, 14, 1, 1, 14),
    ]


def test_the_published_form_sums_plainly_and_discounts_a_decision_once():
    frames = play((("7t", "4u"),), 6, action_repeat=3, action_repeat_gamma=0.5, action_repeat_plain_sum=True)
    assert [row[1:4] for row in table(frames)] == [
        (0, 1, 0), (6, 1, 3), (15, 1, 3), (7, 0, 1), (0, 1, 0), (36, 1, 3), (14, 1, 1),
    ]  # fmt: skip


def build(*params):
    configuration.load(
        ["gin/tasks/simple_control.gin", "gin/methods/sac_nrep.gin"],
        ["create_environment.env_name = 'Pendulum-v1'", "initial_collect_steps = 60", "replay_length = 500",
         "hidden_layers = (8,)", "batch_size = 4", "create_experiment.evaluation_envs = 1", *params],
    )  # fmt: skip
    return configuration.build(experiment.create_experiment)


def _count(env, taken, i):
    step = env.step

    def counted(action):
        taken[i] += 1
        return step(action)

    env.step = counted


def test_evaluation_reports_primitive_steps_and_plain_returns():
    trainer = build()
    rewards = []
    env = trainer.evaluation_environment._env.envs[0].unwrapped
    step = env.step
    env.step = lambda action: rewards.append(result := step(action)) or result
    (episode,) = evaluate(trainer.agent, trainer.evaluation_environment, 1, seed=0)
    trainer.close()
    assert episode.length == 200 and episode.decisions == 67 and episode.repeated == 133
    assert episode.longest_run == 3
    # The loop acts once more, on LAST, which begins the next episode without a step.
    assert float(episode.ret) == pytest.approx(np.sum([r[1] for r in rewards[:200]]), rel=1e-6)


@pytest.mark.parametrize("plain_sum, expected", [(False, 0.9**2), (True, 0.9)])
def test_a_termination_that_is_ignored_is_discounted_by_gamma_to_the_duration(plain_sum, expected):
    """Episodes of 8 = 3 + 3 + 2 steps."""
    trainer = build(
        "gamma = 0.9", f"create_environment.env_name = '{env_id('Counter')}'", "OneStepTDLoss.ignore_done = True",
        "create_environment.env_kwargs = {'scripts': [['8t']]}",
        f"create_environment.action_repeat_plain_sum = {plain_sum}",
    )  # fmt: skip
    while trainer.env_steps < 60:
        trainer.collect()
    trainer.close()
    time_step = trainer.replay_buffer.sample(50, 2).time_step
    discount = trainer.agent.algorithm.td_loss.discount(time_step)
    np.testing.assert_allclose(discount[1][time_step.step_type[1] == LAST], expected, rtol=1e-6)
    np.testing.assert_allclose(discount[1][time_step.step_type[1] == MID], 0.9 if plain_sum else 0.9**3, rtol=1e-6)


# --- Chosen repeats ---------------------------------------------------------------------------------------------------


def chosen(k, action):
    """The pair that algorithms send: durations are numbered from 0."""
    return torch.tensor(k) - 1, action


def play_chosen(scripts, durations, **options):
    """As `play`, with the durations of each step a row `[B]`."""
    environment = create_environment(
        env_id("Counter"), len(scripts), env_kwargs={"scripts": scripts}, action_repeat_chosen=True, **options
    )
    try:
        frames = [(environment.reset(0), environment.raw_reward.tolist())]
        for step, k in enumerate(durations):
            action = torch.full((len(scripts), 2), 0.1 * (step % 9)) + torch.arange(len(scripts))[:, None] / 100
            frames.append((environment.step(chosen(k, action)), environment.raw_reward.tolist()))
    finally:
        environment.close()
    return frames


# An episode of 7 steps that terminates, one of 5 that is cut off, one of 2. gamma = 1/2, K = 3.
SCRIPT = ("7t", "5u", "2t")
DURATIONS = [[2], [1], [3], [3], [2], [3], [3], [1], [2]]


def test_chosen_durations_by_hand():
    """k = 2: 1 + 2/2 = 2;  k = 1: 3;  k = 3: 4 + 5/2 + 6/4 = 8;  k = 3: 7, terminated after 1 step;  k = 2: the action at
    LAST goes nowhere.  k = 3: 11 + 12/2 + 13/4 = 20.25;  k = 3: 14 + 15/2 = 21.5, cut off after 2: the next value counts, by
    gamma * 1/2.  Nowhere.  k = 2: 21 + 22/2 = 32, terminated at the last step of the repeat.
    """
    frames = play_chosen((SCRIPT,), DURATIONS, action_repeat=3, action_repeat_gamma=0.5)
    assert table(frames) == [
        (FIRST, 0, 1, 0, 0),
        (MID, 2, 0.5, 2, 3),
        (MID, 3, 1, 1, 3),
        (MID, 8, 0.25, 3, 15),
        (LAST, 7, 0, 1, 7),
        (FIRST, 0, 1, 0, 0),
        (MID, 20.25, 0.25, 3, 36),
        (LAST, 21.5, 0.5, 2, 29),
        (FIRST, 0, 1, 0, 0),
        (LAST, 32, 0, 2, 43),
    ]
    for t, (frame, _) in enumerate(frames):
        # (episode, step, the action that reached the environment): after k steps, k further
        k, action = frame.prev_action
        if frame.step_type == FIRST:
            assert k.item() == 0 and not action.any() and frame.observation[0, 1] == 0
        else:
            assert k.item() == DURATIONS[t - 1][0] - 1
            assert torch.equal(frame.observation[:, 2:], action) and action[0, 0] == torch.tensor(0.1 * ((t - 1) % 9))
    steps = [int(frame.observation[0, 1]) for frame, _ in frames]
    assert steps == [0, 2, 3, 6, 7, 0, 3, 5, 0, 2]


SEVERAL = (("4t",), ("9u",), ("2u", "50n"))
DIFFERENT = [[3, 1, 2], [3, 2, 1], [1, 3, 1], [2, 3, 3], [3, 1, 2], [1, 2, 1]]


def test_environments_choose_different_durations():
    frames = play_chosen(SEVERAL, DIFFERENT, action_repeat=3, action_repeat_gamma=0.5)
    # Environment 0, episodes of 4: k = 3, then 3 (1 is left), FIRST, 2, 3 (2 are left: 13 + 14/2), FIRST
    assert table(frames, 0) == [
        (FIRST, 0, 1, 0, 0), (MID, 2.75, 0.25, 3, 6), (LAST, 4, 0, 1, 4), (FIRST, 0, 1, 0, 0), (MID, 17, 0.5, 2, 23),
        (LAST, 20, 0, 2, 27), (FIRST, 0, 1, 0, 0),
    ]  # fmt: skip
    # Environment 1, an episode of 9: k = 1, 2 (2 + 3/2), 3 (4 + 5/2 + 6/4), 3 (7 + 8/2 + 9/4, cut off), FIRST, 2
    assert table(frames, 1) == [
        (FIRST, 0, 1, 0, 0), (MID, 1, 1, 1, 1), (MID, 3.5, 0.5, 2, 5), (MID, 8, 0.25, 3, 15),
        (LAST, 13.25, 0.25, 3, 24), (FIRST, 0, 1, 0, 0), (MID, 17, 0.5, 2, 23),
    ]  # fmt: skip
    # Environment 2, an episode of 2 that is cut off: k = 2, FIRST, then 1, 3, 2, 1
    assert table(frames, 2) == [
        (FIRST, 0, 1, 0, 0), (LAST, 2, 0.5, 2, 3), (FIRST, 0, 1, 0, 0), (MID, 11, 1, 1, 11),
        (MID, 12 + 13 / 2 + 14 / 4, 0.25, 3, 39), (MID, 15 + 16 / 2, 0.5, 2, 31), (MID, 17, 1, 1, 17),
    ]  # fmt: skip


def test_asynchronous_environments_choose_different_durations():
    options = {"action_repeat": 3, "action_repeat_gamma": 0.5}
    frames = play_chosen(SEVERAL, DIFFERENT, asynchronous=True, **options)
    expected = play_chosen(SEVERAL, DIFFERENT, **options)
    for i in range(3):
        assert table(frames, i) == table(expected, i)
    for (frame, _), (other, _) in zip(frames, expected, strict=True):
        assert torch.equal(frame.observation, other.observation)
        for leaf, other_leaf in zip(frame.prev_action, other.prev_action, strict=True):
            assert torch.equal(leaf, other_leaf)


def test_an_environment_that_writes_into_its_action_gets_the_same_one_at_each_repeat():
    class Writes(Probe):
        def step(self, action):
            action *= 2
            return super().step(action)

    env = ChosenRepeat(Writes(), 3, 0.9)
    env.reset(seed=0)
    env.step((3, np.array([0.5], np.float32)))
    assert [x.tolist() for x in env.unwrapped.received] == [[1.0]] * 3


def test_the_action_reaches_the_environment_k_times():
    """Rescaled as the inner space asks, and the choice itself never reaches it."""
    import gymnasium

    space = gymnasium.spaces.Box(np.array([0.0, -4.0], np.float32), np.array([2.0, 4.0], np.float32))
    envs = [Probe(action_space=space) for _ in range(2)]
    repeats = [ChosenRepeat(env, 4, 0.9) for env in envs]
    assert repeats[0].action_space == gymnasium.spaces.Tuple((gymnasium.spaces.Discrete(4, start=1), space))
    vector = VectorEnvironment(SyncVectorEnv([functools.partial(lambda e: e, e) for e in repeats], copy=False), "x")
    choice_spec, action_spec = vector.action_spec
    assert choice_spec.num_choices == 4 and choice_spec.minimum == 0 and action_spec.shape == (2,)
    vector.reset(0)
    vector.step(chosen([3, 1], torch.tensor([[0.0, 1.0], [-1.0, 0.5]])))
    vector.step(chosen([1, 4], torch.tensor([[1.0, -1.0], [0.5, 0.0]])))
    assert [x.tolist() for x in envs[0].received] == [[1, 4]] * 3 + [[2, -4]]
    assert [x.tolist() for x in envs[1].received] == [[0, 2]] + [[1.5, 0]] * 4


@pytest.mark.parametrize("plain_sum", [False, True])
def test_choosing_always_the_same_duration_is_a_fixed_frame_skip(plain_sum):
    options = {"action_repeat": 3, "action_repeat_gamma": 0.5, "action_repeat_plain_sum": plain_sum}
    fixed = play((("7t", "5u", "3b"),), 9, **options)
    assert table(play_chosen((("7t", "5u", "3b"),), [[3]] * 9, **options)) == table(fixed)


def test_a_vector_reward_of_a_chosen_repeat():
    """(1 + 2/2 + 3/4, minus the same), then one step."""
    environment = create_environment(
        env_id("Pair"), 1, env_kwargs={"scripts": (("4u",),)},
        action_repeat=3, action_repeat_gamma=0.5, action_repeat_chosen=True,
    )  # fmt: skip
    environment.reset(0)
    rows = []
    for k in (3, 2):
        frame = environment.step(chosen([k], torch.zeros(1, 2)))
        rows.append((frame.reward.tolist(), environment.raw_reward.tolist(), frame.discount.item()))
    assert rows == [([[2.75, -2.75]], [[6, -6]], 0.25), ([[4, -4]], [[4, -4]], 1)]


def test_gamma_is_of_primitive_steps_whoever_repeats():
    """A repeat is its primitive steps: the return of decisions, discounted by gamma times `discount`, is that of steps."""
    rewards = np.random.default_rng(0).normal(size=12)

    class Scripted(Probe):
        def step(self, action):
            observation, _, terminated, truncated, info = super().step(action)
            return observation, float(rewards[len(self.received) - 1]), terminated, truncated, info

    gamma, returns = 0.9, []
    for durations in ([1] * 12, [3, 1, 2, 4, 2], [4, 4, 4]):
        env, factor, total = ChosenRepeat(Scripted(), 4, gamma), 1.0, 0.0
        for k in durations:
            _, reward, *_, info = env.step((np.int64(k), np.zeros(1)))
            total += factor * reward
            factor *= gamma * info["taac_discount"]
        returns.append(total)
        assert factor == pytest.approx(gamma**12)
    assert returns == pytest.approx([np.sum(gamma ** np.arange(12) * rewards)] * 3)
    assert isinstance(ChosenRepeat(Scripted(), 4, gamma), ActionRepeat)


def test_the_trainer_counts_what_chosen_durations_take():
    """Two environments, episodes of 7 and 5 steps; frame by frame durations are 1, 2, 3, 1... in one, 3, 2, 1... in the other."""
    configuration.load(
        ["gin/tasks/simple_control.gin", "gin/methods/sac_krep.gin"],
        [f"create_environment.env_name = '{env_id('Counter')}'", "segment_length = 4",
         "create_environment.env_kwargs = {'scripts': (('7t', '5u'), ('7t', '5u'))}", "num_envs = 2",
         "initial_collect_steps = 10000", "replay_length = 500", "hidden_layers = (8,)", "batch_size = 4"],
    )  # fmt: skip
    trainer = configuration.build(experiment.create_experiment)
    taken = [0, 0]
    for i, env in enumerate(trainer.environment._env.envs):
        assert env.action_space[0].n == 3  # K is the segment length less one
        _count(env.unwrapped, taken, i)
    frames = iter(range(10_000))

    def durations(time_step, state):
        t = next(frames)
        k = torch.tensor([1 + t % 3, 3 - t % 3])
        action = torch.stack([torch.full((2,), (t % 50) / 50), torch.full((2,), -(t % 50) / 50 - 0.01)])
        return AlgStep((k - 1, action), (), (), torch.ones(2, dtype=torch.bool))

    trainer.agent.random_step = durations
    for _ in range(40):
        trainer.collect()
        assert trainer.env_steps == sum(taken)
    trainer.close()
    # 1: 1,2,3,1 (of 1) | at LAST | 3,1,1 (of 2) | at LAST | 1,2,3,1 ...   in groups of 9 frames, 12 steps: 4 + 3 decisions
    # 2: 3,2,1,1 (of 3) | at LAST | 1,3,1 (of 2) | at LAST | 3,2,1,1 ...
    assert [(e.length, e.decisions, e.repeated, e.runs, e.longest_run) for e in trainer.collector.ended[:4]] == [
        (7, 4, 3, 4, 3), (7, 4, 3, 4, 3), (5, 3, 2, 3, 3), (5, 3, 2, 3, 3),
    ]  # fmt: skip
    # 40 frames are 4 groups of 9 and 4 frames more: 4 * (4 + 3) + 4 decisions, 4 * 12 + 7 steps, each
    assert trainer.collector.decisions == 2 * 32 and trainer.env_steps == 2 * 55
    stored = trainer.replay_buffer.sample(60, 2).time_step
    k, _ = stored.prev_action
    inside = stored.step_type == MID  # nothing cuts these repeats short
    assert inside.any() and torch.equal(stored.duration[inside], k[inside].to(torch.int16) + 1)
    torch.testing.assert_close(stored.discount[inside], 0.99 ** k[inside].float())


def test_sampled_rewards_are_normalised_by_what_each_frame_took():
    """With gamma 1 inside repeats and a reward of 1 or 3 a step: mean 2, standard deviation 1; k steps of 3 are k."""
    algorithm = SacAlgorithm(bounded((1,), -1, 1), bounded((1,), -1, 1))
    agent = Agent(algorithm, reward_normalizer=RewardNormalizer(clip=10.0))
    duration = torch.tensor([[1, 3], [2, 5]], dtype=torch.int16)
    reward = torch.tensor([[1.0, 3.0], [3.0, 1.0]]) * duration
    zero = torch.zeros(2, 2)
    time_step = TimeStep(zero.to(torch.uint8), reward, zero + 1, torch.zeros(2, 2, 1), torch.zeros(2, 2, 1), duration)
    prepared = agent.prepare(Experience(time_step, ())).time_step
    torch.testing.assert_close(prepared.reward, torch.tensor([[-1.0, 3.0], [2.0, -5.0]]))
    assert prepared.duration is duration and time_step.reward is reward  # raw rewards stay as they are
