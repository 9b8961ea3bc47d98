"""Runs that start from parts of others."""

from __future__ import annotations

import json

import pytest
import torch

from taac import configuration
from taac.data_structures import FIRST, LAST
from taac.errors import TaacError
from taac.runs.run_folder import RunFolder
from tests.training.runs import assert_same_parameters, build, run

SHORT = ("num_env_steps = 360", "initial_collect_steps = 300", "create_agent.normalize_observations = True")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "a"
    return folder, run(folder, *SHORT).agent


def started(*load_from, method="taac", more=()):
    trainer = build(
        *SHORT, *more, f"create_experiment.load_from = {load_from}", "create_experiment.seed = 7", method=method
    )
    before = {name: value.clone() for name, value in trainer.agent.state_dict().items()}
    try:
        records = trainer.begin()
    finally:
        trainer.close()
    after = trainer.agent.state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    return records, after, changed


@pytest.mark.parametrize(
    "name, full", [("actor", "algorithm.actor"), ("observation_normalizer", "observation_normalizer"),
                   ("actor.hidden", "algorithm.actor.hidden")]
)  # fmt: skip
def test_a_module_is_taken_over_and_nothing_else(source, name, full):
    folder, agent = source
    records, after, changed = started(f"{folder}:{name}")
    assert records == [{"run": str(folder), "module": full, "env_steps": 360}]
    held = agent.state_dict()
    for key, value in after.items():
        if key.startswith(f"{full}."):
            assert torch.equal(value, held[key]), key
        else:
            assert key not in changed, key
    assert any(key.startswith(f"{full}.") for key in changed)


def test_moments_and_frames_are_taken_over_and_then_learnt_from(source, tmp_path):
    folder, _ = source
    state = RunFolder(folder).checkpoints.newest().part("learner")["optimizer"]
    whole = build(*SHORT)
    whole.resume(RunFolder(folder))
    whole.close()
    taken = f"create_experiment.load_from = ('{folder}:optimizer', '{folder}:replay')"
    trainer = build(*SHORT, taken, "Learner.learning_rate = 0.0625", "create_experiment.seed = 7")
    names = [record["module"] for record in trainer.begin()]
    held = trainer.learner.optimizer.state_dict()
    assert names == ["optimizer", "replay"] and trainer.env_steps == trainer.learner.num_updates == 0
    assert {group["lr"] for group in held["param_groups"]} == {0.0625}
    counts, expected = ([group["num_steps"] for group in of["param_groups"]] for of in (held, state))
    assert counts == expected and min(counts) > 0
    for number, moments in state["state"].items():
        assert moments and all(torch.equal(value, held["state"][number][name]) for name, value in moments.items())
    size = whole.replay_buffer.size
    expected, found = whole.replay_buffer.frames(0, size), trainer.replay_buffer.frames(0, size)
    assert trainer.replay_buffer.size == size > 300
    kinds = found.pop("frames/time_step/step_type")
    assert kinds[-1] == LAST and torch.equal(kinds[:-1], expected["frames/time_step/step_type"][:-1])
    assert all(torch.equal(value, expected[name]) for name, value in found.items())
    trainer.train(folder := begun(tmp_path / "run", trainer))
    trainer.close()
    assert trainer.replay_buffer.size == 2 * size and trainer.learner.num_updates == 60
    after = trainer.replay_buffer.frames(size, size + 1)["frames/time_step/step_type"]
    assert after == FIRST and folder.checkpoints.newest().env_steps == 360


@pytest.mark.slow
def test_moments_of_an_optimizer_for_each_group(tmp_path):
    own = ("Learner.optimizer_ctor = {'critic': @critic/AdamW}", "critic/AdamW.betas = (0.5, 0.75)")
    held = run(tmp_path / "source", *SHORT, *own).learner.optimizer.state_dict()["by_group"]
    load_from = f"create_experiment.load_from = '{tmp_path / 'source'}:optimizer'"
    trainer = build(*SHORT, load_from, own[0], "critic/AdamW.betas = (0.25, 0.5)")
    trainer.begin()
    trainer.close()
    for one, its in zip(held, trainer.learner.optimizer.state_dict()["by_group"], strict=True):
        for number, moments in one["state"].items():
            assert moments and all(torch.equal(value, its["state"][number][name]) for name, value in moments.items())
    assert trainer.learner.optimizer.param_groups[1]["betas"] == (0.25, 0.5)
    with pytest.raises(TaacError, match="is of other groups of parameters than actor, "):
        started(f"{tmp_path / 'source'}:optimizer")


def begun(path, trainer):
    folder = RunFolder(path)
    folder.begin(configuration.operative_config(), {"seed": trainer.seed})
    return folder


@pytest.mark.parametrize(
    "load_from, more, message",
    [
        ("{}/best:optimizer", (), "holds no 'optimizer': give the folder of a run"),
        ("{}:optimizer", ("hidden_layers = (8, 8)",), "optimizer cannot be taken: it holds the state of another .*'exp_avg"),
        ("{}:optimizer", ("Learner.optimizer_ctor = @Adam",), "optimizer cannot be taken: it holds the state of another"),
        ("{}:optimizer", ("create_agent.reward_signals = (@RND,)",), "is of other groups of parameters than actor, "),
        ("{}/best:replay", (), "holds no 'replay'"),
        ("{}:replay", ("replay_length = 500",), "replay cannot be taken: the saved replay buffer has another shape: length 1000"),
        ("{}:replay", ("num_envs = 2",), "replay cannot be taken: .* holds frames of another shape"),
        ("{}:replay", ("create_environment.env_name = 'MountainCarContinuous-v0'",), "cannot be taken: its actions are .*-2.0"),
        ("{}:replay", ("create_environment.action_repeat = 3",), "take up to 1 environment steps, and those here 3 to 3"),
    ],
)
def test_moments_and_frames_that_do_not_fit_are_refused(source, load_from, more, message):
    with pytest.raises(TaacError, match=message):
        started(load_from.format(source[0]), more=more)


def test_rewards_of_frames_count_for_the_scale_of_rewards(source):
    """As if the run had collected them."""
    folder, statistics = source[0], []
    for names in (["actor"], ["replay"]):
        _, after, _ = started(*(f"{folder}:{name}" for name in names), more=("create_agent.normalize_rewards = 'scale'",))
        statistics.append((after["reward_normalizer.count"].item(), after["reward_normalizer.mean"].item()))
    (none, _), (found, mean) = statistics
    whole = build(*SHORT)
    whole.resume(RunFolder(folder))
    whole.close()
    stored, returns, total = whole.replay_buffer.stored().time_step, [], 0.0
    for kind, reward in zip(stored.step_type[:, 0], stored.reward[:, 0]):
        total = 0.0 if kind == FIRST else 0.99 * total + reward.item()
        returns += [] if kind == FIRST else [total]
    assert none == 0 and found == len(returns) and mean == pytest.approx(sum(returns) / found, rel=1e-5)


def test_frames_of_a_ring_that_has_wrapped_are_taken_over_in_their_order(tmp_path):
    """The newest becomes the LAST of its episode, and statistics of rewards follow episodes from the oldest frame on."""
    small = ("replay_length = 200", "create_agent.normalize_rewards = 'scale'")
    source = run(tmp_path / "a", *SHORT, *small)
    taken = build(*SHORT, *small, f"create_experiment.load_from = '{tmp_path / 'a'}:replay'", "create_experiment.seed = 7")
    taken.begin()
    taken.close()
    after = taken.agent.state_dict()
    ring, held = taken.replay_buffer, source.replay_buffer
    order = [frame % ring.length for frame in range(ring.oldest, ring.added)]
    assert order[0] != 0 and ring.size == 200
    kinds, before = (buffer.stored().time_step.step_type[order, 0].tolist() for buffer in (ring, held))
    assert kinds[-1] == LAST and kinds[:-1] == before[:-1]
    count = mean = total = 0.0
    for kind, reward in zip(kinds, ring.stored().time_step.reward[order, 0].tolist()):
        total = 0.0 if kind == FIRST else 0.99 * total + reward
        if kind != FIRST:
            count, mean = count + 1, mean + total
    assert after["reward_normalizer.count"] == count
    assert after["reward_normalizer.mean"].item() == pytest.approx(mean / count, rel=1e-5)


def test_rewards_of_frames_that_are_taken_over_are_checked_anew(tmp_path):
    """Of hindsight: the environment here may pay otherwise than `compute_reward` says."""
    task = ("create_environment.env_name = 'tests.toy_tasks:taac-test/Reach-v0'", *SHORT[:2], "replay_length = 500")
    source = run(tmp_path / "a", *task, files=["gin/her.gin"])
    taken = build(*task, f"create_experiment.load_from = '{tmp_path / 'a'}:replay'", files=["gin/her.gin"])
    taken.begin()
    taken.close()
    assert source.replay_buffer._batches > 10 and taken.replay_buffer.size > 0 and taken.replay_buffer._batches == 0


def test_frames_of_repeated_actions(tmp_path):
    """They fit repeats of the same kind alone; and statistics of rewards that are taken over have counted them."""
    repeats = ("num_envs = 2", "create_environment.action_repeat = 2", "create_agent.normalize_rewards = 'scale'")
    folder = tmp_path / "a"
    held = run(folder, *SHORT, *repeats).agent.state_dict()
    _, after, _ = started(f"{folder}:reward_normalizer", f"{folder}:replay", more=repeats)
    assert after["reward_normalizer.count"] == held["reward_normalizer.count"] > 0
    _, counted, _ = started(f"{folder}:replay", more=repeats)
    assert counted["reward_normalizer.count"] == held["reward_normalizer.count"]
    with pytest.raises(TaacError, match="the rewards of a repeat were added up otherwise"):
        started(f"{folder}:replay", more=(*repeats, "create_environment.action_repeat_plain_sum = True"))


def test_frames_of_durations_as_actions(tmp_path):
    """The last number of an action says how long it is held: of other durations if the longest is another."""
    durations = (
        "create_environment.action_repeat_chosen = @DurationCoordinate", "num_env_steps = 700", "initial_collect_steps = 690"
    )  # fmt: skip
    run(tmp_path / "a", *SHORT, *durations, "create_environment.action_repeat = 2")
    started(f"{tmp_path / 'a'}:replay", more=(*durations, "create_environment.action_repeat = 2"))
    with pytest.raises(TaacError, match="their last numbers mean other durations here"):
        started(f"{tmp_path / 'a'}:replay", more=(*durations, "create_environment.action_repeat = 4"))


@pytest.mark.parametrize("part, tensor", [("", "last.weight"), (".hidden", "hidden.0.weight")])
def test_targets_start_as_copies_unless_they_are_named_too(source, part, tensor):
    """Of the critics, or of a part of them, which goes to the same part of their slow copy."""
    folder, agent = source
    held = agent.state_dict()
    _, after, changed = started(f"{folder}:critics{part}")
    whole = "critics" + part
    assert changed and all(key.startswith((f"algorithm.{whole}.", f"algorithm.target_{whole}.")) for key in changed)
    for key in (key for key in after if key.startswith(f"algorithm.{whole}.")):
        assert torch.equal(after[key], held[key])
        assert torch.equal(after[key.replace("critics", "target_critics")], held[key])
    key = f"algorithm.target_critics.{tensor}"
    for target in {"target_critics", f"target_{whole}"}:  # which is named, before and after it
        for names in ((whole, target), (target, whole)):
            _, after, _ = started(*(f"{folder}:{name}" for name in names))
            assert torch.equal(after[key], held[key]) and not torch.equal(after[key], after[key.replace("target_", "")])


def test_the_whole_algorithm(source):
    folder, agent = source
    _, after, _ = started(f"{folder}:algorithm")
    assert all(torch.equal(after[key], v) for key, v in agent.state_dict().items() if key.startswith("algorithm."))


def test_another_method_can_take_over_what_fits(source):
    folder, agent = source
    _, after, changed = started(f"{folder}:critics", method="sac")
    assert torch.equal(after["algorithm.critics.last.weight"], agent.state_dict()["algorithm.critics.last.weight"])
    assert not any("actor" in key for key in changed)


@pytest.mark.slow
def test_a_run_goes_on_without_its_source(source, tmp_path):
    """The source is read when the run begins, and is not asked for when a killed run goes on."""
    import shutil

    copy = tmp_path / "source"
    shutil.copytree(source[0], copy)
    params = (*SHORT[1:], "num_env_steps = 320", "Intervals.checkpoint_interval = 50", "evaluation_episodes = 1",
              f"create_experiment.load_from = '{copy}:critics'")  # fmt: skip
    whole = run(tmp_path / "whole", *params)
    run(tmp_path / "killed", *params, until=310)
    shutil.rmtree(copy)
    assert_same_parameters(whole, run(tmp_path / "killed", *params))
    fresh = run(tmp_path / "fresh", *params[:-1])
    with pytest.raises(AssertionError):
        assert_same_parameters(whole, fresh)


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["log", "direct", "fixed"])
@pytest.mark.parametrize("name", ["action_temperature", "algorithm"])
def test_a_temperature_keeps_its_alpha_however_it_is_tuned(source, name, tuning):
    folder, agent = source
    trainer = build(
        *SHORT, f"Temperature.tuning = '{tuning}'", "Temperature.initial_value = 0.3",
        f"create_experiment.load_from = '{folder}:{name}'",
    )  # fmt: skip
    trainer.begin()
    trainer.close()
    alpha = agent.algorithm.action_temperature.alpha().item()
    assert abs(alpha - 1.0) > 1e-4 and trainer.agent.algorithm.action_temperature.alpha().item() == pytest.approx(alpha)


@pytest.mark.parametrize(
    "text, words",
    [
        ("actor", "'FOLDER_OF_A_RUN:MODULE', got 'actor'"),
        (":actor", "'FOLDER_OF_A_RUN:MODULE'"),
        ("{}:", "'FOLDER_OF_A_RUN:MODULE'"),
        ("{}:actr", "no module 'actr'; did you mean 'actor'.; it has: .*critics"),
        ("{}/no:actor", "there is no checkpoint in"),
        ("{}:reward_normalizer", "no module 'reward_normalizer'"),
    ],
)
def test_bad_names_are_refused(source, text, words):
    with pytest.raises(TaacError, match=words):
        started(text.format(source[0]), more=("normalize_rewards = False",))


def test_a_module_that_the_other_run_does_not_have(source):
    with pytest.raises(TaacError, match=r"holds no 'algorithm.choice_temperature'; it holds: .*algorithm\.actor"):
        started(f"{source[0]}:choice_temperature", method="sac_krep")


def test_another_shape_is_refused_with_both(source):
    with pytest.raises(
        TaacError, match=r"(?s)algorithm\.actor holds another network.*head\.weight.*\[2, 32\].*\[2, 16\]"
    ):
        started(f"{source[0]}:actor", more=("hidden_layers = (32, 16)",))


@pytest.mark.slow
def test_run_json_tells_where_from_and_check_does_too(source, tmp_path):
    from tests.commands.test_commands import taac

    files = ["--gin_file", "gin/tasks/simple_control.gin", "--gin_file", "gin/methods/taac.gin"]
    params = [
        "create_environment.env_name = 'Pendulum-v1'", "hidden_layers = (32, 32)", "batch_size = 8", "num_env_steps = 310",
        "initial_collect_steps = 300", "evaluation_episodes = 1", "create_experiment.evaluation_envs = 1",
        f"create_experiment.load_from = '{source[0]}:actor'",
    ]  # fmt: skip
    params = [word for param in params for word in ("--gin_param", param)]
    checked = taac("check", *files, *params, cwd=tmp_path)
    assert f"algorithm.actor from {source[0]}, at 360 environment steps" in checked.stdout, checked.stderr
    trained = taac("train", "--root_dir", "run", *files, *params, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["load_from"] == [{"run": str(source[0]), "module": "algorithm.actor", "env_steps": 360}]
    assert RunFolder(tmp_path / "run").read_run()["status"] == "finished"
