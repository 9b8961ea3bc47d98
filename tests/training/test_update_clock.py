"""What earns updates where an action lasts several environment steps: those steps, or the transition that it is."""

from __future__ import annotations

import pytest

from taac.data_structures import LAST
from tests.training.runs import assert_resumes_exactly, build

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
