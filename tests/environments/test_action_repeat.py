"""A fixed frame skip as a semi-Markov process: reward, discount, duration, and who counts what."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taac.data_structures import StepType
from taac.environments.vector_environment import create_environment
from taac.errors import TaacError
from taac.training import config, experiment
from taac.training.evaluation import evaluate
from tests.environments.toys import env_id

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


def test_environments_that_begin_and_repeat_at_different_times():
    frames = play((("4t",), ("9t",)), 3, action_repeat=3, action_repeat_gamma=0.5)
    assert table(frames, 0) == [(FIRST, 0, 1, 0, 0), (MID, 2.75, 0.25, 3, 6), (LAST, 4, 0, 1, 4), (FIRST, 0, 1, 0, 0)]
    # 7 + 8/2 + 9/4, terminated at the third step of the repeat
    assert table(frames, 1)[1:] == [(MID, 2.75, 0.25, 3, 6), (MID, 8, 0.25, 3, 15), (LAST, 13.25, 0, 3, 24)]


def test_without_repeats_every_step_lasts_one():
    assert [(r[1], r[2], r[3], r[4]) for r in table(play((("2t", "2u"),), 5))] == [
        (0, 1, 0, 0), (1, 1, 1, 1), (2, 0, 1, 2), (0, 1, 0, 0), (11, 1, 1, 11), (12, 1, 1, 12),
    ]  # fmt: skip


def test_a_repeat_below_one_is_refused():
    with pytest.raises(TaacError, match="action_repeat"):
        create_environment(env_id("Counter"), action_repeat=0)


def build(*params):
    config.load(
        ["gin/tasks/simple_control.gin", "gin/methods/sac_nrep.gin"],
        ["create_environment.env_name = 'Pendulum-v1'", "initial_collect_steps = 60", "replay_length = 500",
         "hidden_layers = (8,)", "batch_size = 4", "create_experiment.evaluation_envs = 1", *params],
    )  # fmt: skip
    return config.build(experiment.create_experiment)


def test_the_trainer_counts_what_the_environment_counts():
    """Pendulum's own clock, over episodes of 200 = 66 * 3 + 2 primitive steps."""
    trainer = build("num_envs = 2")
    taken = [0, 0]
    for i, env in enumerate(trainer.environment._env.envs):
        _count(env.unwrapped, taken, i)
    for _ in range(150):
        trainer.collect()
        trainer.learn()
        assert trainer.env_steps == sum(taken)
    # Decisions: 67 an episode, and a reset between episodes takes none.
    assert trainer.decisions == 2 * (150 - 2)
    assert trainer.learner.num_updates == (trainer.env_steps - 60) // 2
    trainer.close()


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


def test_the_learner_discounts_the_next_value_by_gamma_to_the_duration():
    trainer = build("gamma = 0.9")
    while trainer.env_steps < 60:
        trainer.collect()
    trainer.close()
    time_step = trainer.replay_buffer.sample(50, 2).time_step
    discount = trainer.agent.algorithm.td_loss.discount(time_step)
    mid = time_step.step_type[1] == MID
    np.testing.assert_allclose(discount[1][mid], 0.9**3, rtol=1e-6)
