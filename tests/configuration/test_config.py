"""The gin front: composition, and every kind of mistake with its message."""

from __future__ import annotations

import re
from pathlib import Path

import gin
import numpy as np
import pytest

from taac import configuration
from taac.configuration import values
from taac.errors import TaacError
from taac.runs.run_folder import RunFolder
from tests import methods
from tests.optional_packages import skip_without_package
from tests.training.runs import built, learn_until

ROOT = Path(__file__).resolve().parents[2]
TASKS = sorted((ROOT / "gin" / "tasks").glob("*.gin"))
METHODS = [ROOT / "gin" / "methods" / f"{name}.gin" for name in methods.METHODS]
EXPERIMENTS = sorted(  # the others are for `taac compare`
    path for path in (ROOT / "experiments").glob("*.gin") if "Comparison." not in path.read_text()
)
PUBLISHED = sorted(path for path in (ROOT / "gin").glob("*/*-v*.gin"))
TASK, METHOD = "gin/tasks/simple_control.gin", "gin/methods/taac.gin"
# A buffer and networks small enough to build in no time.
SMALL = ["replay_length = 500", "hidden_layers = (8,)", "batch_size = 4", "initial_collect_steps = 20"]


def build(files, params=()):
    return built([str(f) for f in files], params)


def refused(params, *words, files=(TASK, METHOD)):
    """Loading and building is refused, and the message holds every one of the words."""
    with pytest.raises(TaacError) as caught:
        build(files, [*SMALL, *params]).close()
    message = str(caught.value)
    for word in words:
        assert any(w in message for w in word.split("|")), f"'{word}' is not in: {message}"
    return message


def step(trainer):
    """Collects past the initial phase and takes two updates."""
    learn_until(trainer, 2)


ENVIRONMENTS = {  # the first is the default
    "default": ["Pendulum-v1"],
    "discrete_control": ["CartPole-v1", "LunarLander-v3", "Acrobot-v1"],
    "simple_control": ["MountainCarContinuous-v0", "LunarLanderContinuous-v3", "InvertedDoublePendulum-v5"],
    "locomotion": ["HalfCheetah-v5", "Hopper-v5", "Ant-v5", "Walker2d-v5"],
    "sac_reference": ["HalfCheetah-v5", "InvertedDoublePendulum-v5", "Reacher-v5"],
    "terrain": ["BipedalWalker-v3", "BipedalWalkerHardcore-v3"],
    "manipulation": ["FetchReach-v4", "FetchPush-v4", "FetchSlide-v4", "FetchPickAndPlace-v4"],
    "driving": ["CarRacing-v3", "racetrack-v0"],
    "goals": ["FetchReach-v4", "PointMaze_UMaze-v3", "PointMaze_Medium-v3"],
}


EVERY = [
    pytest.param(task, name, marks=() if name == names[0] else pytest.mark.slow)
    for task, names in ENVIRONMENTS.items() for name in names
]  # fmt: skip
DISCRETE_TASKS = {"discrete_control"}


@pytest.mark.parametrize("method", METHODS, ids=lambda p: p.stem)
def test_every_method_is_built_and_stepped(method):
    """With one task. A task file defines all macros that a method may name, so any two compose."""
    more = ["num_envs = 2", "initial_collect_steps = 40", "create_experiment.evaluation_envs = 1"]
    discrete = method.stem in methods.DISCRETE_METHODS
    trainer = build(["gin/tasks/discrete_control.gin" if discrete else TASK, method], [*SMALL, *more])
    step(trainer)
    trainer.close()
    assert gin.query_parameter("create_experiment.method") == method.stem


@pytest.mark.parametrize(
    "task, method, told",
    [
        ("discrete_control", "taac", "sac_discrete"), ("simple_control", "sac_discrete", "sac, taac"),
    ],
)  # fmt: skip
def test_a_task_of_other_actions_is_refused_with_what_fits(task, method, told):
    refused([], told, files=(f"gin/tasks/{task}.gin", f"gin/methods/{method}.gin"))


def test_every_task_file_has_its_environments_here():
    assert set(ENVIRONMENTS) == {t.stem for t in TASKS}
    for task in TASKS:  # sac_reference names its default alone, so that no environment gets its settings by itself
        named = ENVIRONMENTS[task.stem][: 1 if task.stem == "sac_reference" else None]
        assert all(name in task.read_text() for name in named)


@pytest.mark.parametrize("task, env_name", EVERY)
def test_every_environment_of_every_task(task, env_name):
    skip_without_package(env_name)
    more = [f"create_environment.env_name = '{env_name}'", "num_envs = 1", "create_experiment.evaluation_envs = 1"]
    method = "gin/methods/sac_discrete.gin" if task in DISCRETE_TASKS else METHOD
    trainer = build([f"gin/tasks/{task}.gin", method], [*SMALL, *more])
    step(trainer)
    trainer.close()


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_every_published_setting_of_a_method_for_a_task(path):
    """A file is named like its environment, and is added after the method file that its folder is named like."""
    more = [f"create_environment.env_name = '{path.stem}'", "num_envs = 1", "create_experiment.evaluation_envs = 1"]
    more.append("initial_collect_steps = 40")
    trainer = build(["gin/tasks/default.gin", f"gin/methods/{path.parent.name}.gin", path], [*SMALL, *more])
    step(trainer)
    trainer.close()


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda p: p.stem)
def test_every_experiment_is_built_and_stepped(path):
    trainer = build([path], SMALL)
    step(trainer)
    trainer.close()


SEVERAL_REWARDS = {
    "two_rewards": (["experiments/two_rewards.gin"], "HalfCheetah-v5", []),
    "two_discounts": (["experiments/two_rewards.gin"], "HalfCheetah-v5", ["gamma = (0.99, 0.9)"]),
    "mo_gymnasium": (
        ["gin/tasks/locomotion.gin", METHOD],
        "mo-hopper-v5",  # speed, height, cost of control
        ["TaacAlgorithm.reward_weights = (1.0, 0.5, 1.0)", "gamma = (0.99, 0.9, 0.5)"],
    ),
}


@pytest.mark.parametrize("name", SEVERAL_REWARDS)
def test_several_rewards_train_evaluate_and_save(name, tmp_path):
    files, env_name, params = SEVERAL_REWARDS[name]
    skip_without_package(env_name)
    short = ["num_env_steps = 40", "evaluation_interval = 20", "evaluation_episodes = 1", "checkpoint_interval = 30"]
    more = [*short, "create_experiment.evaluation_envs = 1", f"create_environment.env_name = '{env_name}'"]
    trainer = build(files, [*SMALL, *params, *more, "create_environment.max_episode_steps = 15"])
    folder = RunFolder(tmp_path / "run")
    folder.begin(configuration.operative_config(), {"seed": 0, "environment": env_name})
    trainer.train(folder)
    trainer.close()
    dim = len(trainer.agent.algorithm.reward_weights)
    frames = trainer.replay_buffer.sample(8, 4)
    assert frames.time_step.reward.shape == (4, 8, dim) and bool(frames.time_step.reward.any(1).any(0).all())
    assert trainer.learner.num_updates == 20
    assert trainer.evaluation.length == 15 and np.isfinite(trainer.evaluation.return_mean)


@pytest.mark.parametrize("task", TASKS, ids=lambda p: p.stem)
def test_a_task_file_defines_every_macro_of_the_table(task):
    loaded = configuration.load([str(task)])
    assert {b.scope for b in loaded.bindings.values() if b.selector == "gin.macro"} == set(configuration.TASK_MACROS)


def test_order_of_task_and_method_does_not_matter():
    build([TASK, METHOD], SMALL).close()
    first = configuration.operative_config()
    build([METHOD, TASK], SMALL).close()
    assert configuration.operative_config() == first


def test_later_bindings_win():
    trainer = build([TASK, METHOD], [*SMALL, "batch_size = 7", "batch_size = 9"])
    trainer.close()
    assert trainer.batch_size == 9


def test_the_operative_configuration_builds_the_same_experiment(tmp_path):
    build(["experiments/smoke.gin"], SMALL).close()
    first = configuration.operative_config()
    (tmp_path / "config.gin").write_text(first)
    build([tmp_path / "config.gin"]).close()
    assert configuration.operative_config() == first


def test_files_are_found_from_any_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build([TASK, METHOD], SMALL).close()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "part.gin").write_text("gamma = 0.5\n")
    (tmp_path / "mine" / "all.gin").write_text(f"include '{TASK}'\ninclude '{METHOD}'\ninclude 'part.gin'\n")
    (tmp_path / "mine" / "gin" / "tasks").mkdir(parents=True)
    (tmp_path / "mine" / TASK).write_text("what is shipped is included before what is beside")
    trainer = build(["mine/all.gin"], SMALL)
    trainer.close()
    assert trainer.agent.algorithm.td_loss.gamma == 0.5


@pytest.mark.parametrize("more", [0, 1])
def test_gin_files_have_at_most_a_mebibyte(tmp_path, more):
    long = tmp_path / "long.gin"
    long.write_text("gamma = 0.5\n# ".ljust((1 << 20) - 1 + more, "x") + "\n")
    if more:
        refused([], "long.gin has 1048577 bytes, expected at most 1048576 of a gin file", files=[TASK, METHOD, long])
    else:
        build([TASK, METHOD, long], SMALL).close()


def test_settings_arrive_where_they_belong():
    trainer = build([TASK, METHOD], [*SMALL, "gamma = 0.5", "action_min_prob = 0.2", "target_tau = 0.25"])
    trainer.close()
    algorithm = trainer.agent.algorithm
    assert algorithm.td_loss.gamma == 0.5
    assert algorithm.action_temperature.target_entropy == pytest.approx(-0.916291)  # log(2 * 0.2)
    assert algorithm.target_update.tau == 0.25
    assert trainer.agent.reward_normalizer.clip == 5.0


# Mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params, words",
    [
        (["Trainr.batch_size = 3"], ["--gin_param", "Trainr", "did you mean 'Trainer'"]),
        (["Trainer.batchsize = 3"], ["--gin_param", "batchsize", "did you mean 'batch_size'"]),
        (["create_agent.algorithm_ctor = @TaacAlgoritm"], ["TaacAlgoritm", "did you mean 'TaacAlgorithm'"]),
        (["gama = 0.9"], ["--gin_param", "gama", "nothing uses", "did you mean 'gamma'"]),
        (["Trainer.batch_size = %batchsize"], ["batchsize", "did you mean 'batch_size'"]),
        (["SacAlgorithm.action_min_prob = 0.2"], ["--gin_param", "SacAlgorithm.action_min_prob", "TaacAlgorithm"]),
        (["ActorNetwork.input_size = 3"], ["this binding: what builds ActorNetwork gives it input_size itself; in use"]),
        (["gamma = %lam", "lam = %gamma"], ["is defined by itself", "gamma", "lam"]),
        (["batch_size = 'many'"], ["Trainer.batch_size", "wrong type", "int", "'many'"]),
        (["batch_size = 2.5"], ["Trainer.batch_size", "wrong type", "int", "2.5"]),
        (["batch_size = True"], ["Trainer.batch_size", "wrong type", "bool"]),
        (["hidden_layers = (256, 'wide')"], ["hidden_layers", "wrong type"]),
        (["create_agent.algorithm_ctor = 'TaacAlgorithm'"], ["algorithm_ctor", "wrong type"]),
        (["Temperature.tuning = 'always'"], ["Temperature.tuning", "'always'"]),
        (["reward_clip = True"], ["reward_clip", "wrong type", "bool"]),
        (["create_environment.env_name = 3"], ["env_name", "wrong type", "str"]),
        (["Trainer.batch_size 3"], ["--gin_param", "syntax"]),
        (["Trainer.batch_size = (1, "], ["--gin_param", "syntax"]),
        (["Trainer.batch_size = three"], ["--gin_param", "syntax"]),
        (["import no_such_module_anywhere"], ["--gin_param", "no_such_module_anywhere"]),
        (["gamma = 0x" + "f" * 4000], ["--gin_param", "gamma", "4300 digits"]),
    ],
)
def test_what_is_misspelt_unused_or_malformed(params, words):
    refused(params, *words)


def test_bad_syntax_is_told_with_its_line_in_a_file_and_without_one_of_a_parameter(tmp_path):
    (tmp_path / "bad.gin").write_text("gamma = 0.9\nlearning_rate 3\n")
    assert "bad.gin:2: bad gin syntax" in refused([], "syntax", files=(TASK, METHOD, str(tmp_path / "bad.gin")))
    assert "--gin_param: bad gin syntax" in refused(["Trainer.batch_size 3"], "syntax")


@pytest.mark.parametrize(
    "files, words",
    [
        ((TASK,), "algorithm_ctor"), ((METHOD,), "no value (a task file defines it"),
        ((TASK, "gin/methods/sac_ntd.gin"), "did you mean 'action_min_prob'"),
    ],
)  # fmt: skip
def test_what_a_file_lacks_or_has_from_another(files, words):
    refused(["SacNtdAlgorithm.acton_min_prob = 0.3"] if "ntd" in files[-1] else [], words, files=files)


def test_an_argument_of_a_function_that_building_does_not_call(tmp_path):
    """A hook may be a function, but `config.gin` would not hold what is bound to it."""
    hook = "Trainer.hooks = {'after_update': @tests.config.noted}"
    refused([hook, "tests.config.noted.name = 'x'"], "noted.name", "does not call the function noted", "a class")
    refused(["tests.config.noted.name = 'x'"], "nothing in this experiment uses this binding")


@gin.configurable(module="tests.config")
def noted(trainer, name="nobody"):
    """A hook with an argument."""


def test_unused_binding_in_a_file_names_file_and_line(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text("# a comment\nSacAlgorithm.entropy_in_target = False\n")
    refused([], f"{path}:2", "SacAlgorithm.entropy_in_target", files=(TASK, METHOD, path))
    path.write_text("\n\nLerner.learning_rate = 1e-3\n")
    refused([], f"{path}:3", "did you mean 'Learner'", files=(TASK, METHOD, path))


def test_macros_that_stand_for_more_than_can_be_made():
    """Each line of thirty doubles the value; without the bound, reading takes hours."""
    params = ["m0 = 1", *(f"m{i + 1} = [%m{i}, %m{i}]" for i in range(30))]
    refused([*params], "m15 = ", "its macros stand for more than 100000 values")
    refused([f"m0 = {list(range(400))}", "m1 = [" + "%m0," * 300 + "]"], "m1 = ", "more than 100000 values")
    configuration.load([TASK, METHOD], [*SMALL, *params[:11]])


def test_macros_inside_of_dicts_are_replaced():
    params = ["shared = 'gamma = 0.9'", "Comparison.task_params = {'T': (%shared,)}"]
    loaded = configuration.load([TASK, METHOD], [*params, "create_environment.env_kwargs = {'g': [%gamma]}"])
    assert loaded.bound("Comparison.task_params") == {"T": ("gamma = 0.9",)}
    assert loaded.bound("create_environment.env_kwargs") == {"g": [loaded.macros["gamma"]]}
    refused(["shared = 5", "Comparison.task_params = {'T': (%shared,)}"], "'T': (%shared,)", "has the wrong type")


@pytest.mark.parametrize("value", ["1e999", "(1, -1e999)", "{'a': [1e999]}"])
def test_infinite_values_are_refused_as_no_file_can_hold_them(value):
    refused([f"create_environment.env_kwargs = {value}"], "env_kwargs cannot be written as text: it is infinite")
    refused([f"reward_clip = {value}"], "reward_clip cannot be written as text: it is infinite")


def test_a_value_of_the_wrong_type_is_blamed_where_it_is_given(tmp_path):
    message = refused(["learning_rate = 'fast'"], "wrong type for Learner.learning_rate")
    assert message.startswith("--gin_param: learning_rate = 'fast'") and "common.gin" not in message
    path = tmp_path / "mine.gin"
    path.write_text("rate = 'fast'\nlearning_rate = %rate\n")
    message = refused([], "wrong type for Learner.learning_rate", files=(TASK, METHOD, path))
    assert message.startswith(f"{path}:1: rate = 'fast'")


@pytest.mark.parametrize("param", ["num_env_steps = 1e5", "Intervals.num_env_steps = 1e5", "num_env_steps = %steps"])
def test_whole_floats_are_ints_where_ints_are_wanted(param):
    loaded = configuration.load([TASK, METHOD], ["steps = 1e5", param, "hidden_layers = (1e2, 64)", "gamma = 1.0"])
    (steps,) = [b for b in loaded.bindings.values() if b.parameter == "Intervals.num_env_steps"]
    for name, value in (("steps", 100_000), ("hidden", (100, 64)), ("gamma", 1.0)):
        asked = {"steps": steps.value, "hidden": loaded.macros["hidden_layers"], "gamma": loaded.macros["gamma"]}[name]
        assert repr(loaded.resolve(asked)[1]) == repr(value)  # repr tells 1 from 1.0
    assert repr(configuration.load([TASK, METHOD], ["hidden_layers = [1e2, 64]"]).macros["hidden_layers"]) == "[100, 64]"


def test_floats_that_are_not_whole_stay_refused():
    refused(["num_env_steps = 1e5", "batch_size = 2.5"], "batch_size = 2.5", "wrong type for Trainer.batch_size")


def test_missing_file_names_the_nearest():
    with pytest.raises(TaacError, match=r"did you mean 'gin/methods/taac.gin'"):
        configuration.load(["gin/methods/tac.gin"])


def test_missing_include_names_its_place(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text("gamma = 0.9\ninclude 'gin/tasks/simple_controll.gin'\n")
    with pytest.raises(TaacError, match=r"mine.gin:2.*did you mean 'gin/tasks/simple_control.gin'"):
        configuration.load([str(path)])


def test_a_file_that_includes_itself(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_text(f"include '{path}'\n")
    with pytest.raises(TaacError, match="includes itself"):
        configuration.load([str(path)])


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "mine.gin"
    path.write_bytes(b"\xff\xfe\x00gamma")
    with pytest.raises(TaacError, match=r"mine.gin cannot be read"):
        configuration.load([str(path)])


@pytest.mark.parametrize(
    "param, words",
    [
        ("num_env_steps = 0", ["num_env_steps"]),
        ("initial_collect_steps = 2", ["initial_collect_steps", "4"]),
        ("segment_length = 1", ["segment_length"]),
        ("replay_length = 1", ["ReplayBuffer.length"]),
        ("TaacAlgorithm.max_repeat_steps = 0", ["max_repeat_steps"]),
        ("TaacAlgorithm.reward_weights = (1.0, 2.0)", ["reward_weights", "scalar"]),
        ("create_experiment.device = 'tpu9'", ["device", "tpu9"]),
        ("create_experiment.seed = -1", ["seed", "-1"]),
        ("create_experiment.num_threads = 0", ["num_threads"]),
        ("UpdateRatio.updates_per_env_step = 0.00001", ["no update", "environment steps after the initial collection"]),
        ("num_env_steps = 20", ["num_env_steps 20", "initial_collect_steps 20", "no update"]),
        ("Learner.max_grad_norm = -1.0", ["max_grad_norm", "-1"]),
        ("Learner.epsilon = -1.0", ["epsilon", "-1"]),
        ("create_experiment.replay_device = 'gpu'", ["device", "gpu"]),
        ("create_agent.algorithm_ctor = @SacAlgorithm()", ["cannot build the experiment"]),
        (
            "TaacAlgorithm.td_loss = @RetraceTDLoss()",
            ["RetraceTDLoss needs the rollout's probabilities", "TaacAlgorithm"],
        ),
        ("create_environment.max_episode_steps = 0", ["max_episode_steps"]),
        ("create_environment.env_name = ':Foo-v0'", ["Foo"]),
    ],
)
def test_values_out_of_range(param, words):
    refused([param], *words)


def test_settings_of_a_schedule_that_a_number_took_the_place_of_are_no_mistake():
    files = (TASK, "gin/methods/sac_ez.gin")
    trainer = build(files, [*SMALL, "ZetaExplorer.epsilon = 0.3"])
    assert trainer.collector.explorer.epsilon == 0.3 and not trainer.schedules.values
    trainer.close()
    refused(["ZetaExplorer.epsilon = 0.3", "explore/LinearSchedule.end = 0.1"], "explore/LinearSchedule.end", files=files)
    refused(["exploration/LinearSchedule.ending = 0.1"], "ending", files=files)
    refused(["explor/LinearSchedule.end = 0.1"], "explor/LinearSchedule.end", files=files)
    refused(["create_collector.explorer = None", "ZetaExplorer.epsilon = 0.3"], "ZetaExplorer.epsilon", files=files)
    for method, task in (("sac_ez", TASK), ("sac_discrete", "gin/tasks/discrete_control.gin")):  # their settings go with them
        trainer = build((task, f"gin/methods/{method}.gin"), [*SMALL, "create_collector.explorer = None"])
        assert not trainer.schedules.values
        trainer.close()


@pytest.mark.parametrize(
    "backbone, param",
    [
        ("flash", "Learner.learning_rate = 1e-3"), ("flash", "learning_rate = 1e-3"), ("simba", "Learner.optimizer_ctor = None"),
    ],
)  # fmt: skip
def test_what_a_shipped_file_sets_of_something_replaced_is_left_out(backbone, param, tmp_path):
    """The replaced reference may stand behind a macro: flash.gin's learning rate is a schedule with settings of its own.

    A comparison that is called again sees no difference there.
    """
    files, params = [TASK, METHOD, f"gin/backbones/{backbone}.gin"], [*SMALL, param]
    trainer = build(files, params)
    trainer.close()
    operative = configuration.operative_config()
    assert not trainer.schedules.values and "AdamW." not in operative
    held = configuration.read_held(configuration.ReadFile(tmp_path / "config.gin", operative), ())
    assert configuration.load(files, params).differences(held) == []
    assert configuration.load(files, [*SMALL]).differences(held) != []


def test_a_macro_whose_user_a_flag_replaced_is_no_mistake(tmp_path):
    (tmp_path / "mine.gin").write_text("budget = 400\nsteps = %budget\nnum_env_steps = %steps\n")
    trainer = build([TASK, METHOD, tmp_path / "mine.gin"], [*SMALL, "num_env_steps = 300"])
    trainer.close()
    assert trainer.num_env_steps == 300
    refused(["budget = 300", "num_env_steps = 300"], "budget", files=(TASK, METHOD, tmp_path / "mine.gin"))


def test_only_ties_to_macros_of_tasks_and_settings_of_algorithms_may_be_unused_in_a_shipped_file():
    expected = {
        "BaseTDLoss.gamma = %gamma": True, "SacAlgorithm.entropy_in_target = False": True, "Learner.epsilon = %mine": False,
        "create_collector.explorer = @ZetaExplorer()": False, "Learner.max_grad_norm = 1.0": False,
    }  # fmt: skip
    loaded = configuration.load([], ["gamma = 0.9", "mine = 1e-3", *expected])
    bindings = [b for b in loaded.bindings.values() if not b.is_macro]
    assert [b._replace(shipped=True).may_be_unused for b in bindings] == list(expected.values())
    assert not any(b.may_be_unused for b in bindings)


@pytest.mark.parametrize(
    "held, asked, told",
    [
        ("a/LinearSchedule.end = 0.5", ["LinearSchedule.end = 0.5"], []),
        ("a/LinearSchedule.end = 0.5", ["LinearSchedule.end = 0.3", "a/LinearSchedule.end = 0.5"], []),
        ("a/LinearSchedule.end = 0.5", ["LinearSchedule.end = 0.5", "a/LinearSchedule.end = 0.3"], ["a/.*end = 0.5, not 0.3"]),
        ("a/LinearSchedule.end = 0.5", ["b/LinearSchedule.end = 0.5"], ["a/.*end = 0.5, not .*", "no b/.*end = 0.5"]),
        ("SacNtdAlgorithm.entropy_in_target = False", ["SacAlgorithm.entropy_in_target = False"], []),
    ],
)
def test_what_is_bound_in_an_outer_scope_or_for_a_base_class_is_no_difference(held, asked, told):
    operative = configuration.load([], [held])
    found = configuration.load([], asked).differences(operative)
    assert len(found) == len(told) and all(map(re.fullmatch, told, found)), found


def test_of_an_argument_that_is_passed_on_the_nearest_annotation_and_default_count():
    class Base:
        def __init__(self, width: int = 1, depth: int = 2):
            pass

    class Derived(Base):
        def __init__(self, width: str = "x", **more):
            pass

    assert values.type_hints(Derived) == {"width": str, "depth": int}
    assert [values.default(Derived, name) for name in ("width", "depth")] == ["x", 2]


def test_a_setting_that_is_gone_is_left_out_of_runs_of_earlier_code():
    loaded = configuration.load([], ["RemoteCollector.replacement_window = 3600.0", "RemoteCollector.timeout = 5.0"])
    assert loaded.bound("RemoteCollector.timeout") == 5.0 and "replacement_window" not in str(loaded)


def test_a_setting_that_has_moved_is_read_where_runs_of_earlier_code_have_it():
    loaded = configuration.load([], ["create_experiment.evaluation_wrappers = ()"])
    assert loaded.bound("create_environment.evaluation_wrappers") == ()
