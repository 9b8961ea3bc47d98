"""What earns updates where an action lasts several environment steps: those steps, or the transition that it is."""

from __future__ import annotations

import itertools

import pytest

from taac.data_structures import LAST
from taac.runs.run_folder import RunFolder
from tests.training.runs import assert_resumes_exactly, assert_same_parameters, build, run

TRANSITIONS = "UpdateRatio.update_clock = 'transitions'"
# Episodes of 7 steps under a repeat of 3 are transitions of 3, 3 and 1 steps, and a reset.
SHORT = ("create_environment.max_episode_steps = 7", "initial_collect_steps = 20", "num_env_steps = 400")


@pytest.mark.parametrize("method", ["sac_nrep", "sac_krep"])
@pytest.mark.parametrize("num_envs, unroll, updates", [(1, 1, 1), (2, 3, 4)])
def test_a_repeated_action_earns_as_any_transition(method, num_envs, unroll, updates):
    params = (f"num_envs = {num_envs}", f"unroll_length = {unroll}", f"updates_per_iteration = {updates}")
    trainer = build(*SHORT, *params, TRANSITIONS, method=method)
    step, collected, earning = trainer.collector.rollout.step, 0, 0

    def counted(act):
        nonlocal collected, earning
        taken = step(act)
        acted = taken.arrays.step_type != LAST
        earning += int(acted.sum()) if collected >= 20 else 0
        collected += int(taken.duration[acted].sum())
        return taken

    trainer.collector.rollout.step = counted
    while trainer.env_steps < 150:
        trainer.collect()
        trainer.learn()
        assert trainer.learner.num_updates == earning * updates // (unroll * num_envs)
    trainer.close()
    assert trainer.env_steps == collected
    assert earning < 0.8 * (collected - 20), "fewer transitions than environment steps"


@pytest.mark.slow
def test_of_actions_of_one_step_both_clocks_are_one():
    trainers = []
    for params in ((), (TRANSITIONS,)):
        trainer = build(*SHORT, *params, method="taac")
        while trainer.env_steps < 150:
            trainer.collect()
            trainer.learn()
        trainer.close()
        trainers.append(trainer)
    assert [trainer.learner.num_updates for trainer in trainers] == [130, 130]
    assert_same_parameters(*trainers)


@pytest.mark.slow
def test_transitions_are_held_over_a_resume(tmp_path):
    params = (TRANSITIONS, "Intervals.checkpoint_interval = 70", "updates_per_iteration = 2", "unroll_length = 3",
              "num_env_steps = 450", "evaluation_episodes = 1")  # fmt: skip
    whole, resumed = assert_resumes_exactly(tmp_path, *params, method="sac_nrep", until=[333, 404])
    earned = [trainer.update_ratio.state_dict()["transitions"] for trainer in (whole, resumed)]
    assert earned[0] == earned[1] > 45
    assert resumed.learner.num_updates == whole.learner.num_updates == earned[0] * 2 // 3


def test_frames_that_last_several_steps_take_less_memory():
    trainer = build("num_env_steps = 1000", "action_repeat = 10", "replay_length = 5000", method="sac_nrep")
    assert trainer.replay_buffer.reserved == 100 * 11 // 10
    trainer.close()


def test_owed_updates_wait_until_the_buffer_is_filled_again():
    """As where an iteration broke off after it had earned them: the buffer that is filled anew holds nothing yet."""
    trainer = build(TRANSITIONS, "num_env_steps = 400", "initial_collect_steps = 100", method="sac_nrep")
    while not trainer.update_ratio.updates_earned(trainer.env_steps):
        trainer.collect()
    trainer.update_ratio.refill(trainer.env_steps)
    trainer.learn()
    assert trainer.learner.num_updates == 0
    until = trainer.env_steps + 100
    while trainer.env_steps < until:
        trainer.collect()
    trainer.learn()
    assert trainer.learner.num_updates > 0
    trainer.close()


@pytest.mark.slow
def test_without_the_replay_buffer_transitions_earn_when_it_is_filled_again(tmp_path):
    params = (TRANSITIONS, "checkpoint_interval = 100", "Saving.save_replay = False", "num_env_steps = 400",
              "initial_collect_steps = 100")  # fmt: skip
    run(tmp_path / "run", *params, method="sac_nrep", until=260)
    trainer = build(*params, method="sac_nrep")
    trainer.resume(RunFolder(tmp_path / "run"))
    begun, learnt, updates = trainer.env_steps, trainer.learner.num_updates, []
    trainer.train(RunFolder(tmp_path / "run"), lambda env_steps, number, *_: updates.append((env_steps, number)))
    trainer.close()
    assert begun >= 200 and learnt > 20
    assert {number for env_steps, number in updates if env_steps < begun + 100} == {learnt}
    (filled,) = [
        env_steps for (env_steps, number), (_, after) in itertools.pairwise(updates) if number == learnt != after
    ]
    assert begun + 100 <= filled < begun + 103
    assert max(after - number for (_, number), (_, after) in itertools.pairwise(updates)) == 1, "no burst"
