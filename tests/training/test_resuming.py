"""A run ends the same whether it was interrupted or not."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from taac import configuration
from taac.acting.evaluation import evaluate
from taac.data_structures import StepType
from taac.runs.run_folder import RunFolder
from tests.environments.toys import env_id
from tests.replay.saved import held
from tests.training.runs import Killed, assert_same_parameters, build, curves, rows, run


@pytest.mark.slow
def test_same_seed_same_bits(tmp_path):
    params = ("num_envs = 3", "num_env_steps = 330", "evaluation_episodes = 1")
    first, second = (run(tmp_path / name, *params) for name in "ab")
    assert_same_parameters(first, second)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    other = run(tmp_path / "c", *params, "create_experiment.seed = 1")
    with pytest.raises(AssertionError):
        assert_same_parameters(first, other)


@pytest.mark.parametrize(
    "num_envs, method",
    [
        (1, "taac"), pytest.param(2, "sac", marks=pytest.mark.slow), pytest.param(3, "taac_q", marks=pytest.mark.slow),
        pytest.param(1, "sac_ez", marks=pytest.mark.slow), pytest.param(2, "sac_nrep", marks=pytest.mark.slow),
        pytest.param(2, "sac_chunk", marks=pytest.mark.slow), pytest.param(1, "taac_chunk", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_killed_run_ends_as_the_run_that_was_never_killed(tmp_path, num_envs, method):
    params = (
        f"num_envs = {num_envs}",
        "num_env_steps = 300",
        "initial_collect_steps = 210",
        "replay_length = 110",  # the ring wraps, and is saved in the middle
        "Intervals.checkpoint_interval = 60",
        "evaluation_interval = 70",
        "evaluation_episodes = 1",
        "create_environment.max_episode_steps = 70",
        "create_agent.normalize_observations = True",
        f"normalize_rewards = {num_envs == 1 or 'scale'!r}",  # by returns, each of which goes on after a kill
    )
    whole = run(tmp_path / "whole", *params, method=method)
    for moment in (90, 285):  # after an evaluation that the last checkpoint does not know of
        killed = run(tmp_path / "killed", *params, method=method, until=moment)
        assert moment <= killed.env_steps < 300
    resumed = run(tmp_path / "killed", *params, method=method)
    assert_same_parameters(whole, resumed)
    assert rows(tmp_path / "whole") == rows(tmp_path / "killed")
    assert resumed.learner.num_updates == whole.learner.num_updates
    assert resumed.env_steps == whole.env_steps


@pytest.mark.parametrize(
    "num_envs, method, env_name",
    [
        (1, "taac", "Pendulum-v1"),
        pytest.param(2, "sac_ez", "Hopper-v5", marks=pytest.mark.slow),
        pytest.param(2, "taac_q", "BipedalWalker-v3", marks=pytest.mark.slow),  # whose simulator remembers earlier episodes
    ],
)
def test_a_run_that_was_told_to_stop_ends_as_the_run_that_was_not(tmp_path, num_envs, method, env_name):
    """At any iteration: the episodes under way go on where they were, which no schedule has cut."""
    params = (
        f"num_envs = {num_envs}", f"create_environment.env_name = '{env_name}'", "num_env_steps = 350",
        "replay_length = 150", "checkpoint_interval = 150", "evaluation_interval = 200", "evaluation_episodes = 1",
        "create_environment.max_episode_steps = 70", "create_agent.normalize_observations = True",
    )  # fmt: skip
    whole = run(tmp_path / "whole", *params, method=method)
    for moment in (170, 175, 340):
        stopped = run(tmp_path / "stopped", *params, method=method, stop=moment)
        assert moment <= stopped.env_steps < moment + 10
        found = RunFolder(tmp_path / "stopped").checkpoints.newest()
        assert found.env_steps == stopped.env_steps
        assert len(RunFolder(tmp_path / "stopped").checkpoints.saved()) <= 2  # as promised, wherever it was stopped
    resumed = run(tmp_path / "stopped", *params, method=method)
    assert_same_parameters(whole, resumed)
    assert rows(tmp_path / "whole") == rows(tmp_path / "stopped")
    assert whole.collector.episodes == resumed.collector.episodes and whole.collector.decisions == resumed.collector.decisions
    assert curves(tmp_path / "whole") == curves(tmp_path / "stopped")
    frames = [held(trainer.replay_buffer) for trainer in (whole, resumed)]
    assert all(torch.equal(value, frames[1][name]) for name, value in frames[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("num_envs, asynchronous", [(1, False), (2, True)])
def test_an_environment_that_draws_from_numpys_own_numbers_comes_back(tmp_path, capsys, num_envs, asynchronous):
    """Stopped in different episodes, which end after 5 steps on average, often in the same one, and after an evaluation in it."""
    params = (f"create_environment.env_name = '{env_id('GlobalNoise')}'", f"num_envs = {num_envs}",
              f"create_environment.asynchronous = {asynchronous}", "num_env_steps = 330",
              "evaluation_interval = 320")  # fmt: skip
    whole = run(tmp_path / "whole", *params)
    for moment in (311, 324) if asynchronous else (311, 318, 319, 322):
        np.random.seed(7)
        random.seed(7)
        run(tmp_path / "stopped", *params, stop=moment)
    resumed = run(tmp_path / "stopped", *params)
    assert_same_parameters(whole, resumed)
    assert rows(tmp_path / "whole") == rows(tmp_path / "stopped")
    assert "reached another state" not in capsys.readouterr().err


def test_an_evaluation_leaves_all_random_numbers_as_they_were():
    trainer = build(f"create_environment.env_name = '{env_id('GlobalNoise')}'", "create_experiment.evaluation_envs = 1")
    np.random.seed(3)
    random.seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    evaluate(trainer.agent, trainer.evaluation_environment, 2, seed=0, epsilon=0.5)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    trainer.close()


def test_several_that_draw_from_one_row_of_random_numbers_cannot_come_back(tmp_path, capsys):
    params = (f"create_environment.env_name = '{env_id('GlobalNoise')}'", "num_envs = 2", "num_env_steps = 340")
    run(tmp_path / "run", *params, stop=311)
    assert run(tmp_path / "run", *params).collector.num_restarts == 1
    assert "reached another state" in capsys.readouterr().err


# Before and after the first checkpoint that is due
@pytest.mark.parametrize("stop", [70, pytest.param(170, marks=pytest.mark.slow)])
def test_an_environment_that_does_not_come_back_costs_the_rest_of_its_episode(tmp_path, capsys, stop):
    params = ("checkpoint_interval = 100", "num_env_steps = 330", "evaluation_episodes = 1")
    stopped = run(tmp_path / "run", *params, stop=stop)
    trainer, folder = build(*params), RunFolder(tmp_path / "run")
    replay = trainer.environment.replay
    trainer.environment.replay = lambda *given: (t := replay(*given))._replace(observation=t.observation + 1e-7)
    trainer.resume(folder)
    said = capsys.readouterr().err
    assert f"at {stop} environment steps: 'Pendulum-v1' reached another state" in said and "not deterministic" in said
    assert stopped.env_steps == trainer.env_steps == stop and trainer.collector.num_restarts == 1
    assert_same_parameters(stopped, trainer)
    # The frame at which it was stopped is the LAST of its episode, which bootstraps; then another begins.
    size = stopped.replay_buffer.size
    before, after = stopped.replay_buffer.frames(0, size), trainer.replay_buffer.frames(0, size + 1)
    assert all(torch.equal(v, after[name][:size]) for name, v in before.items())
    last = stopped.collector.rollout.time_step
    assert after["frames/time_step/step_type"][-1].tolist() == [int(StepType.LAST)]
    assert torch.equal(after["frames/time_step/observation"][-1], last.observation)
    assert after["frames/time_step/discount"][-1].tolist() == [1.0] and trainer.collector.rollout.time_step.is_first().all()
    trainer.train(folder)
    assert trainer.env_steps == trainer.num_env_steps
    trainer.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_environment_that_fails_on_the_way_back_costs_the_rest_of_its_episode(tmp_path, capsys, asynchronous):
    """As one that is not deterministic does, if an action is not allowed where it now is."""
    log, params = tmp_path / "log", [
        f"create_environment.env_name = '{env_id('Fragile')}'", f"create_environment.asynchronous = {asynchronous}",
        "create_environment.max_episode_steps = 30", "evaluation_interval = 1000", "num_env_steps = 330",
    ]  # fmt: skip
    log.write_text("x")  # it has failed as often as it does
    settings = f"create_environment.env_kwargs = {{'log': '{log}', 'at': 9, 'times': 1}}"
    run(tmp_path / "run", *params, settings, stop=320)
    log.write_text("")  # once more, at step 9 of the 20 that are taken again
    trainer, folder = build(*params, settings), RunFolder(tmp_path / "run")
    trainer.resume(folder)
    said = capsys.readouterr().err
    assert "at 320 environment steps" in said and "RuntimeError: 50% of the simulator" in said and "truncated there" in said
    assert trainer.env_steps == 320 and trainer.collector.num_restarts == 1
    assert trainer.collector.rollout.time_step.is_first().all()
    trainer.train(folder, stop=lambda: trainer.env_steps >= 325)
    assert trainer.env_steps == 325
    trainer.close()


@pytest.mark.slow
@pytest.mark.parametrize("stop", [0, 100])
def test_a_run_saved_before_its_first_step_or_between_two_goes_on(tmp_path, stop):
    params = ("num_env_steps = 320", "evaluation_episodes = 1")
    whole = run(tmp_path / "whole", *params)
    trainer, folder = build(*params), RunFolder(tmp_path / "run")
    folder.begin(configuration.operative_config(), {})
    if stop:
        trainer.train(folder, stop=lambda: trainer.env_steps >= stop)
    trainer.save(folder)
    trainer.close()
    resumed = run(tmp_path / "run", *params)
    assert_same_parameters(whole, resumed)


def test_a_signal_after_the_last_look_of_an_iteration_is_seen_in_the_next_which_saves(tmp_path):
    """While a part of the buffer is written, for example. Stopping there would lose what was done since the last checkpoint."""
    trainer, folder, told = build("Evaluator.initial_evaluation = False"), RunFolder(tmp_path / "run"), []
    folder.begin(configuration.operative_config(), {})
    trainer.saver.write_full_chunks = lambda folder: told.append(trainer.env_steps) if trainer.env_steps == 20 else None
    trainer.train(folder, stop=lambda: bool(told))
    trainer.close()
    assert trainer.interrupted and told == [20] and folder.checkpoints.saved() == [trainer.env_steps] == [21]


@pytest.mark.slow
def test_without_the_replay_buffer_it_is_filled_again_before_updates_go_on(tmp_path):
    params = ("checkpoint_interval = 100", "Saving.save_replay = False", "num_env_steps = 330", "initial_collect_steps = 100")
    run(tmp_path / "run", *params, until=220)
    folder = RunFolder(tmp_path / "run")
    assert not list(folder.checkpoints.path.glob("frames-*")) and "replay" not in folder.checkpoints.newest().state
    trainer = build(*params)
    trainer.resume(folder)
    assert (trainer.env_steps, trainer.learner.num_updates, trainer.replay_buffer.size) == (200, 100, 0)
    updates = []
    trainer.train(folder, lambda env_steps, number, *_: updates.append((env_steps, number)))
    trainer.close()
    # 100 steps of collection as at the beginning; then one update a step, and no burst of what was missed.
    assert {(300, 100), (301, 101)} <= set(updates) and updates[-1] == (330, 130)


@pytest.mark.slow
@pytest.mark.parametrize("num_envs, method", [(1, "sac"), (3, "taac_l")])
def test_the_bits_of_a_run_do_not_depend_on_its_checkpoints(tmp_path, num_envs, method):
    """Also where checkpoints come more often than episodes end: every 30 steps of 3 environments, with a limit of 70."""
    params = (f"num_envs = {num_envs}", "create_environment.max_episode_steps = 70", "evaluation_interval = 300",
              f"num_env_steps = {380 if num_envs == 1 else 450}", "evaluation_episodes = 1")  # fmt: skip
    never = run(tmp_path / "never", *params, "checkpoint_interval = 100000", method=method)
    often = run(tmp_path / "often", *params, "checkpoint_interval = 30", method=method)
    assert_same_parameters(never, often)
    assert rows(tmp_path / "never") == rows(tmp_path / "often") and never.collector.episodes == often.collector.episodes >= 5
    frames = [held(trainer.replay_buffer) for trainer in (never, often)]
    assert all(torch.equal(value, frames[1][name]) for name, value in frames[0].items())
    step_type = frames[1]["frames/time_step/step_type"]
    for column in step_type.T.tolist():  # episodes of 70 transitions, and none other
        text = "".join("FML"[kind] for kind in column)
        assert text.startswith(("F" + 69 * "M" + "L") * 2)


def test_a_run_killed_while_its_folder_was_made_can_begin(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path / "run")
    write = RunFolder._write

    def dies_at_the_second_file(path, text):
        if path.name == "config.gin":
            raise Killed
        write(path, text)

    monkeypatch.setattr(RunFolder, "_write", staticmethod(dies_at_the_second_file))
    with pytest.raises(Killed):
        folder.begin("a configuration", {})
    assert folder.open("a configuration") == "new"
