"""When an environment fails while training: episodes are cut where they were last seen, and a stop leaves a checkpoint."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from taac.data_structures import StepType
from taac.errors import EnvironmentFailed
from taac.runs.run_folder import RunFolder
from tests.environments.toys import env_id
from tests.training.runs import assert_same_parameters, build, rows, run

SHORT = ("num_env_steps = 80", "initial_collect_steps = 40", "batch_size = 4", "evaluation_episodes = 1",
         "evaluation_interval = 80", "hidden_layers = (8,)", "create_experiment.evaluation_envs = 1",
         "UpdateRatio.unroll_length = 3", "Evaluator.initial_evaluation = False")  # fmt: skip


def fragile(tmp_path, how, at, times, asynchronous=True, **more):
    kwargs = {"how": how, "at": at, "log": str(tmp_path / "log"), "times": times}
    settings = {"env_kwargs": kwargs, "env_name": env_id("Fragile"), "asynchronous": asynchronous, **more}
    bound = [f"create_environment.{name} = {value!r}" for name, value in settings.items()]
    return (*SHORT, "num_envs = 2", "create_environment.max_episode_steps = 10", *bound)


def frames(trainer):
    held = trainer.replay_buffer.frames(0, trainer.replay_buffer.size)
    return {name.removeprefix("frames/time_step/"): value.numpy() for name, value in held.items()}


def test_an_episode_ends_with_the_last_frame_that_was_seen(tmp_path):
    trainer = run(tmp_path / "run", *fragile(tmp_path, "die", at=6, times=1), method="sac")
    assert trainer.env_steps >= 80 and trainer.collector.num_restarts == 1
    held = frames(trainer)
    step_type, seed, step = held["step_type"], held["observation"][..., 0], held["observation"][..., 1]
    # Each episode has a seed of its own: that which was cut off, then episodes of 10 transitions.
    assert np.flatnonzero((np.diff(seed, axis=0) != 0).all(1)).tolist() == [5, 16, 27, 38]
    # Steps 0 to 5 were seen; the action at 5 led nowhere. Nothing is known of its transition, and nothing is made up.
    assert step[:6].T.tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]] * 2 and (step[6] == 0).all()
    assert step_type[:7].T.tolist() == [[StepType.FIRST, *[StepType.MID] * 4, StepType.LAST, StepType.FIRST]] * 2
    assert (held["discount"] == 1).all()  # a truncation: the value of the last frame is bootstrapped
    assert held["reward"][:7].T.tolist() == [[0, 1, 1, 1, 1, 1, 0]] * 2
    assert held["prev_action"][6].tolist() == [[0.0], [0.0]] and (held["prev_action"][1:6] != 0).all()
    # Every frame but those at LAST is a step that was taken and counted; the last frame is still to be acted at.
    taken = int((step_type != StepType.LAST).sum())
    assert taken == trainer.env_steps


def test_a_stop_leaves_a_checkpoint_with_new_episodes_to_go_on_with(tmp_path):
    settings = fragile(tmp_path, "raise", at=9, times=3, max_restarts=1)
    with pytest.raises(EnvironmentFailed) as error:
        run(tmp_path / "run", *settings, method="sac")
    assert "restarted 1 times" in str(error.value) and "A checkpoint was written at 32 environment steps" in str(
        error.value
    )
    found = RunFolder(tmp_path / "run").checkpoints.newest()
    assert found.env_steps == 32 and found.part("collector")["num_restarts"] == 2
    (tmp_path / "log").write_text("xxx")  # mended
    trainer = run(tmp_path / "run", *settings, method="sac")
    assert trainer.env_steps >= 80 and trainer.collector.num_restarts == 2
    held = frames(trainer)
    cut = np.flatnonzero(held["step_type"][:-1, 0] == StepType.LAST)[:2]
    assert held["observation"][cut, 0, 1].tolist() == [8.0, 8.0]
    # Seeds: of two episodes that were cut off, and of the three that the remaining steps take.
    assert [len(np.unique(held["observation"][:, i, 0])) for i in range(2)] == [5, 5]


def test_environments_of_this_process_stop_the_run_with_a_checkpoint(tmp_path):
    settings = fragile(tmp_path, "raise", at=9, times=1, asynchronous=False)
    with pytest.raises(EnvironmentFailed, match=r"\(number 0 of 2, seed \d+, .* failed at step 9.* written at 16 env"):
        run(tmp_path / "run", *settings, method="sac")
    assert run(tmp_path / "run", *settings, method="sac").env_steps >= 80


@pytest.mark.parametrize(
    "length, ends",
    [
        (40, [44]),  # the environments fail at step 45, in the iteration 31 to 62, which had reached the end of the run
        (100, [44, 106]),  # and one that had reached an evaluation, due at 40
    ],
)
def test_what_an_iteration_that_broke_off_still_owed_is_done_when_the_run_goes_on(tmp_path, length, ends):
    settings = (
        *fragile(tmp_path, "raise", at=45, times=1, asynchronous=False), "num_envs = 1", "UpdateRatio.unroll_length = 31",
        "create_environment.max_episode_steps = 100", f"num_env_steps = {length}", "initial_collect_steps = 10",
        "evaluation_interval = 40", "UpdateRatio.updates_per_env_step = 1.0",
    )  # fmt: skip
    with pytest.raises(EnvironmentFailed, match="written at 44 env"):
        run(tmp_path / "run", *settings, method="sac")
    assert not rows(tmp_path / "run")
    trainer = run(tmp_path / "run", *settings, method="sac")
    assert [int(row["env_steps"]) for row in rows(tmp_path / "run")] == ends
    assert [int(row["updates"]) for row in rows(tmp_path / "run")] == [end - 10 for end in ends]
    last = RunFolder(tmp_path / "run").checkpoints.newest()
    assert not trainer.interrupted and last.env_steps == ends[-1] and last.part("learner")["num_updates"] == ends[-1] - 10


def test_an_evaluation_that_fails_leaves_a_checkpoint(tmp_path):
    settings = fragile(tmp_path, "raise", at=7, times=0, asynchronous=False)
    trainer = build(*settings, method="sac")
    folder = RunFolder(tmp_path / "run")
    folder.begin("x", {})
    log = tmp_path / "log"
    trainer.evaluation_environment._env.envs[0].unwrapped._times = 1
    with pytest.raises(EnvironmentFailed, match=r"\(evaluation\)' \(number 0 of 1,.*A checkpoint was written"):
        trainer.train(folder)
    assert log.exists() and folder.checkpoints.saved() and trainer.env_steps >= 80  # it was the last
    trainer.close()
    again = build(*settings, method="sac")
    again.resume(folder)
    again.train(folder)
    assert again.evaluation is not None and again.env_steps == trainer.env_steps
    assert [int(row["env_steps"]) for row in rows(folder.path)] == [trainer.env_steps]
    again.close()


def test_an_evaluation_that_was_done_before_a_failure_is_not_done_again(tmp_path):
    """A hook fails between the evaluation and the checkpoint of the last step."""

    def fails(trainer):
        if trainer.env_steps >= 80:
            raise EnvironmentFailed("gone")

    settings = fragile(tmp_path, "raise", at=7, times=0, asynchronous=False)
    trainer = build(*settings, method="sac")
    folder = RunFolder(tmp_path / "run")
    folder.begin("x", {})
    trainer.hooks.add("after_evaluation", fails)
    with pytest.raises(EnvironmentFailed, match="A checkpoint was written at 82"):
        trainer.train(folder)
    trainer.close()
    again = build(*settings, method="sac")
    again.resume(folder)
    again.train(folder)
    again.close()
    assert [int(row["env_steps"]) for row in rows(folder.path)] == [82]


def test_episodes_that_cannot_begin_after_a_restart_are_begun_again(tmp_path):
    trainer = build(*fragile(tmp_path, "raise", at=9, times=1), method="sac")
    folder, reset, calls = RunFolder(tmp_path / "run"), trainer.environment.reset, []
    folder.begin("x", {})

    def fails_once(seed):
        calls.append(seed)
        if len(calls) == 1:
            raise EnvironmentFailed("not yet")
        return reset(seed)

    trainer.environment.reset = fails_once
    trainer.train(folder)
    assert trainer.env_steps >= 80 and trainer.collector.num_restarts == trainer.environment.restarts == 2
    assert len(calls) == 2 and len(set(calls)) == 2
    trainer.close()


def test_nothing_is_restarted_after_a_signal(tmp_path):
    """It may be the signal that ended the processes."""
    trainer = build(*fragile(tmp_path, "raise", at=9, times=0), method="sac")
    with pytest.raises(EnvironmentFailed, match=r"^it$"):
        trainer.collector.restart(EnvironmentFailed("it"), stopping=lambda: True)
    assert trainer.collector.num_restarts == trainer.environment.restarts == 0
    trainer.close()


@pytest.mark.slow
def test_a_run_stopped_after_a_restart_goes_on_with_the_same_bits(tmp_path):
    """Where its environments are is known from the seed of the restart and the actions since."""

    def once(name, **settings):
        (tmp_path / name).mkdir()
        return run(tmp_path / name / "run", *fragile(tmp_path / name, "raise", at=9, times=1), method="sac", **settings)

    whole = once("whole")
    once("stopped", stop=50)
    stopped = run(tmp_path / "stopped" / "run", *fragile(tmp_path / "stopped", "raise", at=9, times=1), method="sac")
    assert whole.collector.num_restarts == stopped.collector.num_restarts == 1
    assert_same_parameters(whole, stopped)
    assert torch.equal(whole.replay_buffer.frames(0, 40)["frames/time_step/observation"],
                       stopped.replay_buffer.frames(0, 40)["frames/time_step/observation"])  # fmt: skip
