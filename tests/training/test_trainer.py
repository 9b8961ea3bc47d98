"""The loop: what counts as a step, when updates are due, and the same run whether it was interrupted or not."""

from __future__ import annotations

import csv
import random
import shutil

import numpy as np
import pytest
import torch

from taac import configuration
from taac.acting.evaluation import evaluate
from taac.acting.random_numbers import derived_seed
from taac.analysis.readers import events
from taac.data_structures import StepType
from taac.errors import TaacError
from taac.runs.checkpoint import Checkpoint
from taac.runs.files import Damaged
from taac.runs.manifest import make_manifest, read_manifest
from taac.runs.run_folder import RunFolder
from taac.training import experiment
from taac.training.summaries import known_tags
from tests.environments.toys import env_id

TASK = "gin/tasks/simple_control.gin"
SMALL = [
    "create_environment.env_name = 'Pendulum-v1'",
    "num_env_steps = 600",
    "initial_collect_steps = 300",
    "hidden_layers = (32, 32)",
    "batch_size = 32",
    "replay_length = 1000",
    "evaluation_interval = 300",
    "evaluation_episodes = 2",
    "Trainer.summary_interval = 100",
]


def build(*params, method="taac"):
    loaded = configuration.load([TASK, f"gin/methods/{method}.gin"], [*SMALL, *params])
    trainer = configuration.build(experiment.create_experiment)
    loaded.check_used()
    return trainer


class Killed(Exception):
    pass


def run(path, *params, method="taac", until=None, stop=None):
    """Trains in a folder from wherever it stands; with `until`, dies there as if killed; with `stop`, stops as told to."""
    trainer, folder = build(*params, method=method), RunFolder(path)
    if folder.has_checkpoints():
        trainer.resume(folder)
    else:
        folder.begin(configuration.operative_config(), {"seed": trainer.seed, "environment": trainer.environment.name})

    def progress(env_steps, *_):
        if until is not None and env_steps >= until:
            raise Killed

    try:
        trainer.train(folder, progress, stop=lambda: stop is not None and trainer.env_steps >= stop)
    except Killed:
        pass
    finally:
        trainer.close()
    return trainer


def rows(path):
    with open(RunFolder(path).evaluations) as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def curves(path):
    """All summaries but those of time."""
    scalars = events.read(path).scalars
    return {t: (s.env_steps.tolist(), s.value.tolist()) for t, s in scalars.items() if not t.startswith("time/")}


def assert_same_parameters(first, second):
    first, second = first.agent.state_dict(), second.agent.state_dict()
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("num_envs", [1, 3])
def test_same_seed_same_bits(tmp_path, num_envs):
    first = run(tmp_path / "a", f"num_envs = {num_envs}")
    second = run(tmp_path / "b", f"num_envs = {num_envs}")
    assert_same_parameters(first, second)
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    other = run(tmp_path / "c", f"num_envs = {num_envs}", "create_experiment.seed = 1")
    with pytest.raises(AssertionError):
        assert_same_parameters(first, other)


@pytest.mark.parametrize("num_envs, method", [(1, "taac"), (3, "taac_q"), (2, "sac"), (1, "sac_ez"), (2, "sac_nrep")])
def test_a_killed_run_ends_as_the_run_that_was_never_killed(tmp_path, num_envs, method):
    params = (
        f"num_envs = {num_envs}",
        "replay_length = 150",  # the ring wraps, and is saved in the middle
        "Trainer.checkpoint_interval = 100",
        "evaluation_interval = 150",
        "create_agent.normalize_observations = True",
    )
    whole = run(tmp_path / "whole", *params, method=method)
    for moment in (50, 160, 410, 560):  # 160 and 560: after an evaluation that the last checkpoint does not know of
        killed = run(tmp_path / "killed", *params, method=method, until=moment)
        assert moment <= killed.env_steps < 600
    resumed = run(tmp_path / "killed", *params, method=method)
    assert_same_parameters(whole, resumed)
    assert rows(tmp_path / "whole") == rows(tmp_path / "killed")
    assert resumed.learner.num_updates == whole.learner.num_updates
    assert resumed.env_steps == whole.env_steps


@pytest.mark.parametrize(
    "num_envs, method, env_name",
    [
        (1, "taac", "Pendulum-v1"),
        (2, "taac_q", "BipedalWalker-v3"),  # whose simulator remembers earlier episodes
        (1, "sac_ez", "Hopper-v5"),
    ],
)
def test_a_run_that_was_told_to_stop_ends_as_the_run_that_was_not(tmp_path, num_envs, method, env_name):
    """At any iteration: the episodes under way go on where they were, which no schedule has cut."""
    params = (
        f"num_envs = {num_envs}", f"create_environment.env_name = '{env_name}'", "num_env_steps = 400",
        "replay_length = 150", "checkpoint_interval = 150", "evaluation_interval = 200", "evaluation_episodes = 1",
        "create_environment.max_episode_steps = 70", "create_agent.normalize_observations = True",
    )  # fmt: skip
    whole = run(tmp_path / "whole", *params, method=method)
    for moment in (40, 170, 175):
        stopped = run(tmp_path / "stopped", *params, method=method, stop=moment)
        assert moment <= stopped.env_steps < moment + 10
        found = RunFolder(tmp_path / "stopped").checkpoints.newest()
        assert found.env_steps == stopped.env_steps and not found.scheduled
    resumed = run(tmp_path / "stopped", *params, method=method)
    assert_same_parameters(whole, resumed)
    assert rows(tmp_path / "whole") == rows(tmp_path / "stopped")
    assert whole.collector.episodes == resumed.collector.episodes and whole.collector.decisions == resumed.collector.decisions
    assert curves(tmp_path / "whole") == curves(tmp_path / "stopped")
    assert all(
        torch.equal(a, b)
        for a, b in zip(whole.replay_buffer.state_dict().values(), resumed.replay_buffer.state_dict().values())
    )


@pytest.mark.parametrize("num_envs, asynchronous", [(1, False), (2, True)])
def test_an_environment_that_draws_from_numpys_own_numbers_comes_back(tmp_path, capsys, num_envs, asynchronous):
    """Stopped in different episodes, which end after 5 steps on average, often in the same one, and after an evaluation in it."""
    params = (f"create_environment.env_name = '{env_id('GlobalNoise')}'", f"num_envs = {num_envs}",
              f"create_environment.asynchronous = {asynchronous}", "num_env_steps = 330",
              "evaluation_interval = 320")  # fmt: skip
    whole = run(tmp_path / "whole", *params)
    for moment in (311, 324) if asynchronous else (311, *range(318, 324)):
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


@pytest.mark.parametrize("stop", [70, 170])  # before and after the first scheduled checkpoint
def test_an_environment_that_does_not_come_back_costs_the_rest_of_its_episode(tmp_path, capsys, stop):
    params = ("checkpoint_interval = 100",)
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


def _running(state):
    """What a checkpoint holds of the running episodes."""
    return state["collector"]["running"]


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda state: state["random"]["numpy"].update(pos=10**6), "no state of numpy's generator"),
        (lambda state: state["random"]["numpy"].update(pos=-1), "no state of numpy's generator"),
        (lambda state: state["random"]["numpy"].update(key=torch.zeros(5)), "no state of numpy's generator"),
        (lambda state: _running(state).update(policy=[v.double() for v in _running(state)["policy"]]), "of another kind"),
        (lambda state: _running(state).update(policy=_running(state)["policy"][1:]), "of another kind"),
        (lambda state: _running(state).update(time_step=_running(state)["time_step"][1:]), "of another kind"),
        (lambda state: _running(state).update(numbers=[-1]), "no numbers of 1 episodes"),
        (lambda state: state["collector"].update(env_steps=-(10**12)), "it counts -1000000000000 env_steps"),
    ],
)
def test_a_checkpoint_with_a_part_of_another_kind_is_damaged(tmp_path, change, message):
    """One of them would make numpy read outside of its memory."""
    stopped = run(tmp_path / "run", stop=70)
    state = {name: part.state_dict() for name, part in stopped.saver.parts.items()}
    change(state)
    trainer = build("Trainer.save_replay = False")
    with pytest.raises(Damaged, match=message):
        trainer.saver.load(Checkpoint(tmp_path / "70.json", 70, True, state, []))
    trainer.close()


def test_a_run_of_a_version_whose_checkpoints_ended_episodes_is_refused_as_such(tmp_path):
    """Its configuration differs too, by what has been added: that is not what is to be said."""
    run(tmp_path / "run", stop=70)
    folder, trainer = RunFolder(tmp_path / "run"), build()
    path = folder.checkpoints.path / "70.json"
    content = read_manifest(path)
    content["state"]["counters"] = {"num_checkpoints": 1}
    path.write_bytes(make_manifest(content))
    operative = configuration.operative_config()
    for held in (operative, operative.replace("Trainer.keep_checkpoints = 2\n", "")):
        folder.config.write_text(held)
        with pytest.raises(TaacError, match=r"earlier version.*resume this run with that version\. taac play"):
            folder.open(operative)
            trainer.resume(folder)
    trainer.close()


@pytest.mark.parametrize("stop", [0, 100])
def test_a_run_saved_before_its_first_step_or_between_two_goes_on(tmp_path, stop):
    whole = run(tmp_path / "whole")
    trainer, folder = build(), RunFolder(tmp_path / "run")
    folder.begin(configuration.operative_config(), {})
    if stop:
        trainer.train(folder, stop=lambda: trainer.env_steps >= stop)
    trainer.save(folder)
    trainer.close()
    resumed = run(tmp_path / "run")
    assert_same_parameters(whole, resumed)


@pytest.mark.parametrize("kind", ["frames", "safetensors", "json"])
def test_a_damaged_checkpoint_costs_steps_and_no_bits(tmp_path, capsys, kind):
    params = ("checkpoint_interval = 100", "evaluation_interval = 100")
    whole = run(tmp_path / "whole", *params)
    run(tmp_path / "run", *params, until=450)
    folder = RunFolder(tmp_path / "run")
    pattern = {"frames": "frames-*-401.safetensors", "safetensors": "400.safetensors", "json": "400.json"}[kind]
    (file,) = folder.checkpoints.path.glob(pattern)
    file.write_bytes(file.read_bytes()[:-9])
    trainer = build(*params)
    trainer.resume(folder)
    trainer.close()
    assert folder.checkpoints.saved() == [300] and trainer.env_steps == 300
    resumed = run(tmp_path / "run", *params)
    said = capsys.readouterr().err
    assert "400.json" in said and "looking for the one before it" in said
    assert_same_parameters(whole, resumed)
    assert rows(tmp_path / "whole") == rows(tmp_path / "run")


@pytest.mark.parametrize("name", ["evaluations.csv", "run.json"])
@pytest.mark.parametrize("kind", ["changed", "cut", "gone"])
def test_records_that_were_altered_are_said_and_restored(tmp_path, capsys, name, kind):
    run(tmp_path / "run", "checkpoint_interval = 100", "evaluation_interval = 100", until=350)
    folder = RunFolder(tmp_path / "run")
    expected, about = rows(folder.path)[:4], folder.read_run()
    file = folder.path / name
    text = file.read_text()
    if kind == "gone":
        file.unlink()
    else:
        file.write_text(
            text.replace("300", "301").replace('"seed": 0', '"seed": 1') if kind == "changed" else text[:50]
        )
    trainer = build("checkpoint_interval = 100", "evaluation_interval = 100")
    trainer.resume(folder)
    trainer.close()
    assert rows(folder.path) == expected and folder.read_run() == about
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("part, name, count", [("learner", "num_updates", -(10**12)), ("update_ratio", "transitions", 10**12)])
def test_updates_that_no_run_owes_are_refused(tmp_path, part, name, count):
    """They would be taken at once, without end."""
    clock = "Trainer.update_clock = 'transitions'"
    run(tmp_path / "run", clock, stop=70)
    path = tmp_path / "run" / "checkpoints" / "70.json"
    content = read_manifest(path)
    content["state"][part][name] = count
    path.write_bytes(make_manifest(content))
    trainer = build(clock)
    with pytest.raises(TaacError, match="no run writes that"):
        trainer.resume(RunFolder(tmp_path / "run"))
    trainer.close()


@pytest.mark.parametrize("name", ["config.gin", "evaluations.csv"])
@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b"\xff\n"), lambda path: path.unlink()])
def test_a_file_that_is_changed_while_the_run_writes_its_checkpoints_is_named(tmp_path, name, change):
    stopped = run(tmp_path / "run", stop=70)
    folder = RunFolder(tmp_path / "run")
    change(folder.path / name)
    with pytest.raises(TaacError, match=f"{name} has changed since this run wrote it"):
        stopped.saver.save(folder, 70)


@pytest.mark.parametrize("events", [{"events.out\0": [1, ""]}, {"events.out": [float("inf"), ""]}])
def test_event_files_that_a_strangers_checkpoint_names(tmp_path, events):
    """Their names may be none, and their sizes no numbers: told or refused."""
    run(tmp_path / "run", stop=70)
    folder = RunFolder(tmp_path / "run")
    try:
        assert "has been changed" in folder.restore({**folder.records(), "events": events})[-1]
    except TaacError as error:
        assert "lacks its copies of the run's other files" in str(error)


def test_what_a_run_itself_changes_in_its_records_is_not_taken_for_damage(tmp_path, capsys):
    run(tmp_path / "run", "checkpoint_interval = 100", "evaluation_interval = 100", until=350)
    folder = RunFolder(tmp_path / "run")
    changes = {"status": "interrupted", "end": "then", "resumed": [{"env_steps": 7}], "diverged": {"env_steps": 340}}
    folder.update_run(**changes)
    capsys.readouterr()
    trainer = build("checkpoint_interval = 100", "evaluation_interval = 100")
    trainer.resume(folder)
    trainer.close()
    assert not capsys.readouterr().err and changes.items() <= folder.read_run().items()


def test_without_the_replay_buffer_it_is_filled_again_before_updates_go_on(tmp_path):
    params = ("checkpoint_interval = 100", "Trainer.save_replay = False", "num_env_steps = 1000")
    run(tmp_path / "run", *params, until=420)
    folder = RunFolder(tmp_path / "run")
    assert not list(folder.checkpoints.path.glob("frames-*")) and "replay" not in folder.checkpoints.newest().state
    trainer = build(*params)
    trainer.resume(folder)
    assert (trainer.env_steps, trainer.learner.num_updates, trainer.replay_buffer.size) == (400, 100, 0)
    updates = []
    trainer.train(folder, lambda env_steps, number, *_: updates.append((env_steps, number)))
    trainer.close()
    # 300 steps of collection as at the beginning; then one update a step, and no burst of what was missed.
    assert {(700, 100), (701, 101)} <= set(updates) and updates[-1] == (1000, 400)


def test_a_run_begun_again_keeps_its_matrix_products():
    """Which are measured for "auto", and may be measured otherwise the second time."""
    trainer = build()
    for kept in ("plain", "onednn"):
        trainer.learner.keep_products(kept)
        assert trainer.learner.products in (kept, "plain")  # oneDNN is not everywhere
    trainer.learner.keep_products(None)
    trainer.close()


def test_whatever_a_strangers_checkpoint_holds_is_taken_or_refused(tmp_path):
    """Any plain value in any place of it, its checksums right: no exception but `TaacError`."""
    import random

    from taac.runs import manifest

    params = ("checkpoint_interval = 100", "num_env_steps = 350")
    run(tmp_path / "run", *params, stop=330)
    trainer, folder = build(*params), RunFolder(tmp_path / "run")
    for steps in folder.checkpoints.saved()[1:]:
        (folder.checkpoints.path / f"{steps}.json").unlink()
    path = folder.checkpoints.path / "330.json"
    whole, rng, taken = path.read_bytes(), random.Random(0), 0

    def places(content, way=()):
        for key in content if isinstance(content, dict) else range(len(content)):
            yield (*way, key)
            if isinstance(content[key], (dict, list)) and content[key]:
                yield from places(content[key], (*way, key))

    found = list(places(manifest.read_manifest(path)["state"]))
    for way in rng.sample(found, 80):
        content = manifest.read_manifest(path)
        inner = content["state"]
        for key in way[:-1]:
            inner = inner[key]
        inner[way[-1]] = rng.choice(
            [None, -1, 10**30, 0.5, float("nan"), "x", [], {}, [1, "y"], {"$tensor": "random/cpu"}]
        )
        path.write_bytes(manifest.make_manifest(content))
        try:
            trainer.resume(folder)
            taken += 1
        except TaacError:
            pass
        path.write_bytes(whole)
    trainer.close()
    assert 0 < taken < 60


def test_an_optimizer_of_other_shapes_is_refused(tmp_path):
    """torch does not look, and would read past the end of what is too short."""
    from taac.runs import manifest

    run(tmp_path / "run", "checkpoint_interval = 100", "num_env_steps = 310")
    trainer, folder = build("checkpoint_interval = 100", "num_env_steps = 310"), RunFolder(tmp_path / "run")
    path = folder.checkpoints.path / "310.json"
    content = manifest.read_manifest(path)
    moments = dict(content["state"]["learner"]["optimizer"]["state"]["$items"])[0]
    moments["exp_avg"], moments["step"] = moments["step"], moments["exp_avg"]
    path.write_bytes(manifest.make_manifest(content))
    with pytest.raises(TaacError, match=r"of another optimizer: '(step|exp_avg)' of parameter 0 is .* expected"):
        trainer.resume(folder)
    trainer.close()


def test_counting_transitions_and_updates():
    """Resets are no environment steps and earn no updates; the ratio is held exactly."""
    trainer = build("num_envs = 3", "create_environment.max_episode_steps = 7", "updates_per_iteration = 2",
                    "unroll_length = 5", "initial_collect_steps = 30")  # fmt: skip
    transitions = 0
    step = trainer.environment.step

    def counted(action):
        nonlocal transitions
        time_step = step(action)
        transitions += int((time_step.step_type != StepType.FIRST).sum())
        return time_step

    trainer.environment.step = counted
    for _ in range(20):
        trainer.collect()
        trainer.learn()
        assert trainer.env_steps == transitions
        assert trainer.learner.num_updates == max(0, transitions - 30) * 2 // 15
    trainer.close()
    # 100 vector steps of 3 environments; episodes of 7 transitions are 8 frames, so 12 resets an environment.
    assert transitions == 3 * (100 - 12)
    assert trainer.collector.episodes == 3 * 12


def test_fewer_updates_than_steps():
    trainer = build("num_envs = 2", "unroll_length = 4", "initial_collect_steps = 8")
    for _ in range(10):
        trainer.collect()
        trainer.learn()
    trainer.close()
    assert trainer.env_steps == 80
    assert trainer.learner.num_updates == (80 - 8) // 8


@pytest.mark.parametrize("ratio, exact", [("0.29", (29, 100)), ("0.1", (1, 10)), ("3", (3, 1)), ("2.5", (5, 2))])
def test_updates_per_environment_step_as_a_number(ratio, exact):
    """Held exactly: in floats, 100 steps times 0.29 would be 28.999999999999996 updates."""
    trainer = build(
        "num_envs = 2", "unroll_length = 3", "updates_per_iteration = 7", "initial_collect_steps = 12",
        f"Trainer.updates_per_env_step = {ratio}", "create_environment.max_episode_steps = 20",
    )  # fmt: skip
    exactly = []
    for _ in range(60):
        trainer.collect()
        trainer.learn()
        earned = max(0, trainer.env_steps - 12) * exact[0]
        assert trainer.learner.num_updates == earned // exact[1]
        exactly.append(earned > 0 and earned % exact[1] == 0)
    trainer.close()
    assert any(exactly), "whole numbers of updates, where rounding would show"
    assert trainer.update_ratio.ratio.as_integer_ratio() == exact


def test_an_update_ratio_below_1_is_held_over_a_resume_and_logged(tmp_path):
    params = (
        "Trainer.updates_per_env_step = 0.3", "Trainer.checkpoint_interval = 70", "Trainer.summary_interval = 60",
    )  # fmt: skip
    whole = run(tmp_path / "whole", *params)
    learnt = []
    for moment in (333, 404, None):
        resumed = run(tmp_path / "killed", *params, until=moment)
        learnt.append((resumed.env_steps, resumed.learner.num_updates))
    assert learnt == [(333, 33 * 3 // 10), (404, 104 * 3 // 10), (600, 90)]
    assert_same_parameters(whole, resumed)
    logged = events.read(tmp_path / "whole").scalars["count/update_ratio"]
    assert logged.env_steps[-5:].tolist() == [360, 420, 480, 540, 600]
    assert logged.value[-5:] == pytest.approx(0.3)


@pytest.mark.parametrize("method, name", [("taac", "TaacAlgorithm"), ("sac_value", "SacAlgorithm")])
def test_targets_move_by_environment_steps(method, name):
    """Every 20 steps, with an update every 8: with updates 3, 5, 8 and 10, at steps 24, 40, 64 and 80."""
    trainer = build(
        "initial_collect_steps = 20", "hidden_layers = (4,)", "Trainer.updates_per_env_step = 0.125", "target_tau = 1.0",
        f"{name}.target_update_env_steps = 20", method=method,
    )  # fmt: skip
    algorithm, moved = trainer.agent.algorithm, []
    slow, followed = algorithm.target_networks()[1]
    while trainer.env_steps < 20 + 85:
        trainer.collect()
        before = trainer.learner.num_updates
        trainer.learn()
        if trainer.learner.num_updates > before and all(map(torch.equal, slow.parameters(), followed.parameters())):
            moved.append((trainer.learner.num_updates, trainer.env_steps - 20))
    trainer.close()
    assert moved == [(3, 24), (5, 40), (8, 64), (10, 80)]


@pytest.mark.parametrize(
    "param",
    ["Trainer.update_clock = 'transitions'", "Trainer.updates_per_env_step = @LinearSchedule()"],
)
def test_environment_steps_of_the_targets_need_a_ratio_that_stays(param):
    schedule = ["LinearSchedule.start = 1.0", "LinearSchedule.end = 0.5", "LinearSchedule.env_steps = 100"]
    with pytest.raises(TaacError, match="target_update_env_steps needs a constant ratio"):
        build("TaacAlgorithm.target_update_env_steps = 20", param, *(schedule if "@" in param else []))


def test_every_option_of_the_sac_family_at_once_by_gin():
    trainer = build(
        "CriticEnsemble.num_critics = 1", "CriticEnsemble.last_init_range = 0.01", "ActorNetwork.head_init_range = 0.02",
        "Temperature.tuning = 'direct'", "Temperature.initial_value = 0.001", "Learner.temperature_learning_rate = 0.5",
        "Learner.actor_learning_rate = 0.002", "Learner.critic_learning_rate = 0.003", "OneStepTDLoss.ignore_done = True",
        "SacAlgorithm.entropy_in_target = False", "SacAlgorithm.dqda_clipping = 0.1",
        "SacAlgorithm.target_entropy = -3.0", "create_agent.normalize_observations = True",
        "create_experiment.replay_buffer_ctor = @PrioritizedReplayBuffer", "Trainer.updates_per_env_step = 0.5",
        method="sac",
    )  # fmt: skip
    algorithm = trainer.agent.algorithm
    assert algorithm.critics.last.weight.shape[0] == 1 and algorithm.critics.last.weight.abs().max() <= 0.01
    assert algorithm.actor.head.weight.abs().max() <= 0.02
    rates = {group["lr"] for group in trainer.learner.optimizer.param_groups}
    assert rates == {0.002, 0.003, 0.5}
    for _ in range(330):
        trainer.collect()
        trainer.learn()
    trainer.close()
    assert trainer.learner.num_updates == (trainer.env_steps - 300) // 2
    # The entropy is above its target, and steps of 0.5 would have taken alpha below 0.
    assert algorithm.temperature.alpha() == 0.0
    assert torch.isfinite(torch.cat([p.flatten() for p in algorithm.parameters()])).all()


def test_observations_are_counted_in_rollouts_alone(tmp_path):
    trainer = build("num_envs = 2", "create_agent.normalize_observations = True", "initial_collect_steps = 20")
    folder = RunFolder(tmp_path)
    folder.begin("", {})
    for _ in range(15):
        trainer.collect()
        trainer.learn()
    assert trainer.learner.num_updates > 0
    assert trainer.agent.observation_normalizer.count == 2 * 15
    evaluate(trainer.agent, trainer.evaluation_environment, 1, seed=0)
    trainer.save(folder)
    trainer.close()
    assert trainer.agent.observation_normalizer.count == 2 * 15


def test_uniform_collection_ends_with_the_initial_steps(monkeypatch):
    trainer = build("initial_collect_steps = 10")
    kinds = []
    monkeypatch.setattr(type(trainer.agent), "random_step", _spy(type(trainer.agent).random_step, kinds, "random"))
    monkeypatch.setattr(type(trainer.agent), "rollout_step", _spy(type(trainer.agent).rollout_step, kinds, "policy"))
    for _ in range(15):
        trainer.collect()
    trainer.close()
    assert kinds == ["random"] * 10 + ["policy"] * 5


def test_collecting_with_the_untrained_policy(monkeypatch):
    trainer = build("initial_collect_steps = 10", "Trainer.uniform_initial_collect = False")
    kinds = []
    monkeypatch.setattr(type(trainer.agent), "rollout_step", _spy(type(trainer.agent).rollout_step, kinds, "policy"))
    for _ in range(5):
        trainer.collect()
    trainer.close()
    assert kinds == ["policy"] * 5


def _spy(fn, kinds, kind):
    def called(self, time_step, state):
        kinds.append(kind)
        return fn(self, time_step, state)

    return called


@pytest.mark.parametrize("num_envs, method", [(1, "sac"), (3, "taac_l")])
def test_the_bits_of_a_run_do_not_depend_on_its_checkpoints(tmp_path, num_envs, method):
    """Also where checkpoints come more often than episodes end: every 30 steps of 3 environments, with a limit of 70."""
    params = (f"num_envs = {num_envs}", "create_environment.max_episode_steps = 70", "evaluation_interval = 300")
    never = run(tmp_path / "never", *params, "checkpoint_interval = 100000", method=method)
    often = run(tmp_path / "often", *params, "checkpoint_interval = 30", method=method)
    assert_same_parameters(never, often)
    assert rows(tmp_path / "never") == rows(tmp_path / "often") and never.collector.episodes == often.collector.episodes >= 6
    held = [trainer.replay_buffer.state_dict() for trainer in (never, often)]
    assert all(torch.equal(value, held[1][name]) for name, value in held[0].items())
    step_type = held[1]["frames/time_step/step_type"]
    for column in step_type.T.tolist():  # episodes of 70 transitions, and none other
        text = "".join("FML"[kind] for kind in column)
        assert text.startswith(("F" + 69 * "M" + "L") * 2)


def test_what_a_run_leaves_behind(tmp_path):
    trainer = run(tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert [int(r["env_steps"]) for r in rows(folder.path)] == [0, 300, 600]
    assert [int(r["updates"]) for r in rows(folder.path)] == [0, 0, 300]
    assert all(float(r["length"]) == 200 and int(r["episodes"]) == 2 for r in rows(folder.path))
    found = folder.checkpoints.newest()
    counters = found.part("collector")
    assert counters["env_steps"] == 600 and found.num_updates == trainer.learner.num_updates == 300

    scalars = events.read(folder.path).scalars
    assert set(scalars) <= set(known_tags())
    assert set(scalars) >= {"evaluation/return", "rollout/return", "loss/critic", "beta/alpha", "count/decisions"}
    assert scalars["count/update_ratio"].value[-1] == 1.0
    assert scalars["count/decisions"].env_steps.tolist() == [100, 200, 300, 400, 500, 600]
    told = [int(r["training_decisions"]) for r in rows(folder.path)]
    assert told == [0, *scalars["count/decisions"].value[[2, 5]].tolist()] and told[2] == counters["decisions"]
    assert scalars["evaluation/return"].value[-1] == pytest.approx(float(rows(folder.path)[-1]["return_mean"]))


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    run(tmp_path / "a", "Trainer.checkpoint_interval = 100", until=250)
    run(tmp_path / "b", "Trainer.checkpoint_interval = 100", "create_experiment.seed = 1", until=250)
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    shutil.copytree(tmp_path / "b" / "checkpoints", tmp_path / "a" / "checkpoints")
    with pytest.raises(TaacError, match="to a run with another configuration"):
        run(tmp_path / "a", "Trainer.checkpoint_interval = 100")


def test_a_resumed_run_reports_what_the_whole_run_reports(tmp_path):
    """Summaries and checkpoints at intervals that do not divide each other, with episodes that end in between."""
    params = ("Trainer.checkpoint_interval = 170", "create_environment.max_episode_steps = 20")
    run(tmp_path / "whole", *params)
    run(tmp_path / "killed", *params, until=390)
    run(tmp_path / "killed", *params)
    whole, killed = (events.read(tmp_path / name).scalars for name in ("whole", "killed"))
    for tag in ("rollout/return", "loss/critic"):
        assert killed[tag].env_steps.tolist() == whole[tag].env_steps.tolist()
        assert killed[tag].value.tolist() == whole[tag].value.tolist()


def test_both_global_random_streams_go_on_where_they_were(tmp_path):
    """Some environments draw from numpy's."""
    trainer, folder = build(), RunFolder(tmp_path / "run")
    folder.begin("", {})
    trainer.collect()
    np.random.randn()  # leaves half a pair of normals behind
    trainer.save(folder)
    expected = np.random.randn(3).tolist(), torch.rand(3).tolist()
    np.random.seed(9), torch.manual_seed(9)
    trainer.resume(folder)
    assert (np.random.randn(3).tolist(), torch.rand(3).tolist()) == expected
    trainer.close()


def test_only_one_process_trains_in_a_folder(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.lock(), pytest.raises(TaacError, match="another process"), second.lock():
        pass
    with second.lock():
        pass
    assert first.open("") == "new"  # the lock alone is no run


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


@pytest.mark.parametrize("name, text", [("config.gin", "gamma = 0.9"), ("run.json", '{"mine": 1}')])
def test_a_file_of_the_users_own_is_not_taken_for_a_run(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(TaacError, match="holds no run of taac"):
        RunFolder(tmp_path).open("a configuration")


def test_an_evaluation_without_an_end_stops_the_run():
    trainer = build("Trainer.max_evaluation_steps = 50", "evaluation_episodes = 1")
    with pytest.raises(TaacError, match=r"after 50 steps .*max_episode_steps"):
        evaluate(trainer.agent, trainer.evaluation_environment, 1, 0, max_steps=trainer.evaluator.max_steps)
    trainer.close()


@pytest.mark.parametrize("method", ["sac", "taac_l"])
def test_nested_observations_with_an_image(tmp_path, method):
    """A dict of a picture and a tuple of floats and a category, normalised, through an encoder chosen in gin; resumed."""
    params = (
        "create_environment.env_name = 'tests.toy_tasks:taac-test/Camera-v0'", "num_envs = 2", "num_env_steps = 200",
        "initial_collect_steps = 100", "evaluation_interval = 100", "hidden_layers = (16,)", "batch_size = 8",
        "create_agent.normalize_observations = True", "Trainer.checkpoint_interval = 60",
        "ImageEncoder.channels = (4, 8)", "ImageEncoder.kernels = (3, 3)", "ImageEncoder.strides = (2, 1)",
        "ImageEncoder.output_size = 16",
    )  # fmt: skip
    before = build(*params, method=method).agent.state_dict()
    whole = run(tmp_path / "whole", *params, method=method)
    run(tmp_path / "killed", *params, method=method, until=150)
    assert_same_parameters(whole, run(tmp_path / "killed", *params, method=method))
    kept = whole.replay_buffer._storage.time_step
    assert kept.observation["camera"].dtype == torch.uint8 and kept.observation["rest"][1].dtype == torch.int64
    assert kept.observation["rest"][0].dtype == torch.float32 and kept.prev_action.abs().max() <= 1
    convolution = "algorithm.encoder.images.0.convolutions.0.weight"
    assert not torch.equal(before[convolution], whole.agent.state_dict()[convolution])
    assert "taac-test/Camera-v0" in whole.environment.name


def test_derived_seeds_differ():
    seeds = {derived_seed(s, stream, n) for s in range(4) for stream in range(2) for n in range(10)}
    assert len(seeds) == 80 and all(0 <= s < 2**31 for s in seeds)
