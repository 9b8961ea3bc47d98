"""Experiments in short flags: which files and bindings they stand for, and what is refused."""

from __future__ import annotations

import re

import gin
import gymnasium
import pytest

from taac import configuration, registry
from taac.campaigns.comparison import Comparison
from taac.configuration import RunRequest, gin_state, plain_words, shipped
from taac.configuration.plain_words import Setting
from taac.errors import TaacError
from taac.training import experiment

TASK, METHOD = "gin/tasks/simple_control.gin", "gin/methods/taac.gin"


def values(config):
    return {b.parameter: b.value for b in config.bindings.values()}


def plainly(config):
    """The bindings as text, in which references can be compared."""
    return {name: repr(value) for name, value in values(config).items()}


def refused(asked):
    with pytest.raises(TaacError) as caught:
        asked.load()
    return str(caught.value)


def test_short_flags_are_exactly_the_bindings_that_they_stand_for():
    settings = ("learning_rate=1e-3", "hidden_layers=128,128", "Learner.epsilon=1e-5", "max_repeat_steps=7")
    short = RunRequest("Pendulum-v1", "taac", settings=settings, num_env_steps="2e4", seed=3).load()
    long = [
        "create_environment.env_name = 'Pendulum-v1'", "num_env_steps = 20000", "create_experiment.seed = 3",
        "learning_rate = 1e-3", "hidden_layers = (128, 128)", "Learner.epsilon = 1e-5", "TaacAlgorithm.max_repeat_steps = 7",
    ]  # fmt: skip
    assert plainly(short) == plainly(configuration.load(["gin/tasks/default.gin", METHOD], long))
    assert gin.query_parameter("%learning_rate") == 1e-3


@pytest.mark.parametrize(
    "text, value",
    [
        ("1e-3", 1e-3), ("20000", 20000), ("-3", -3), ("007", 7), ("2.", 2.0), ("128,128", (128, 128)), ("128,", (128,)),
        ("128, 64", (128, 64)), ("true", True), ("False", False), ("none", None), ("0,none", (0, None)), ("cpu", "cpu"),
        ("Pendulum-v1", "Pendulum-v1"), ("a b", "a b"), ("runs/a:actor,runs/b:critics", ("runs/a:actor", "runs/b:critics")),
        ("it's", "it's"), ("'1'", "1"), ("(0, None)", (0, None)), ("{'critic': 1e-4}", {"critic": 1e-4}), ("nan", "nan"),
        ("a=b", "a=b"), ("1e999", "1e999"), ("x\ny = 3", "x\ny = 3"),
    ],
)  # fmt: skip
def test_values_in_plain_words(text, value):
    loaded = configuration.load([], ["mine = 0"], settings=[Setting("--set", f"mine={text}")])
    assert repr(loaded.macros["mine"]) == repr(value)  # repr tells True from 1 from 1.0


@pytest.mark.parametrize("text, names", [("@AdamW", ["AdamW"]), ("@ICM, @RND", ["ICM", "RND"])])
def test_references_in_plain_words(text, names):
    loaded = configuration.load([], [f"mine = {plain_words.value_of(text)}"])
    found = gin_state.references(loaded.macros["mine"])
    assert [r.configurable.selector.rsplit(".", 1)[-1] for r in found] == names


@pytest.mark.parametrize(
    "text, words",
    [
        ("layer_norm=True", ["no macro and no parameter", "add it to the method's name: --method METHOD+layer_norm"]),
        ("learning_rte=1", ["--set learning_rte=1", "no macro and no parameter", "did you mean 'learning_rate'"]),
        ("epsilon=1e-5", ["several constructors have 'epsilon'", "Learner.epsilon", "ZetaExplorer.epsilon"]),
        ("learning_rate", ["--set learning_rate:", "NAME=VALUE"]),
        ("gamma=", ["NAME=VALUE"]),
        ("ga mma=1", ["'ga mma' is not a name"]),
        ("gamma\nbatch_size=1", ["is not a name"]),
        ("hidden_layers=(64,)\ngamma=0.5", ["must be one setting", "NAME=VALUE"]),
        ("Lerner.epsilon=1", ["--set", "did you mean 'Learner'"]),
        ("Learner.epsilom=1", ["--set", "did you mean 'epsilon'"]),
        ("environment=1", ["no parameter named 'environment'"]),  # the caller supplies it
        ("batch_size=many", ["--set: batch_size = 'many'", "wrong type for Trainer.batch_size", "; str is none of these"]),
        ("hidden_layers=256", ["--set: hidden_layers = 256", "a list of one is written (256,)"]),
        ("reward_signals=@ICM", ["expected Sequence[Callable[..., RewardSignal]]", "a list of one is written (@ICM,)"]),
        ("explorer=@MyExplorer()", ["--set: there is nothing configurable named 'MyExplorer'; ", "needs @gin.configurable, and"]),
        ("gamma=(1", ["--set", "syntax", "in 'gamma = (1'"]),
    ],
)
def test_settings_that_are_refused(text, words):
    message = refused(RunRequest("Pendulum-v1", "taac", settings=(text,)))
    assert all(word in message for word in words), message


def test_an_unknown_reference_in_a_file_is_named_with_its_line(tmp_path):
    (tmp_path / "mine.gin").write_text("gamma = 0.9\nTrainer.hooks = {'after_update': @my_hook}\n")
    message = refused(RunRequest("Pendulum-v1", "taac", gin_files=(str(tmp_path / "mine.gin"),)))
    assert "mine.gin:2: there is nothing configurable named 'my_hook'" in message, message


def test_what_the_experiment_gives_itself_is_no_setting():
    registry.register()
    assert plain_words.owners()["device"] == ["create_experiment.device"]


def test_settings_win_over_files_and_parameters(tmp_path):
    file = tmp_path / "mine.gin"
    text = "gamma = 0.1\nbatch_size = 1\ncreate_collector.explorer = @ZetaExplorer()\nwidth = 5\nhidden_layers = (%width,)\n"
    file.write_text(text)
    params = ("batch_size = 2", "learning_rate = 0.2", "create_environment.env_name = 'CartPole-v1'")
    params = (*params, "create_experiment.seed = 5")
    asked = RunRequest("Pendulum-v1", "taac", (str(file),), params, ("learning_rate=0.3", "width=6"), seed=0)
    found = values(asked.load())
    assert [found[name] for name in ("gamma", "batch_size", "learning_rate", "width")] == [0.1, 2, 0.3, 6]
    assert found["create_environment.env_name"] == "Pendulum-v1" and found["create_experiment.seed"] == 0


def test_the_words_of_a_command_line_are_all_that_was_asked_for():
    asked = RunRequest("Pendulum-v1", "taac", ("a.gin", "b.gin"), ("x = 1",), ("y=2",), "2e4", seed=0)
    assert asked.words() == [
        "--task", "Pendulum-v1", "--method", "taac", "--gin_file", "a.gin", "--gin_file", "b.gin", "--gin_param", "x = 1",
        "--set", "y=2", "--num_env_steps", "2e4", "--seed", "0",
    ]  # fmt: skip
    assert RunRequest().words() == []


@pytest.mark.parametrize(
    "more, words",
    [
        ({"settings": ("gamma=0.9", "gamma=0.8")}, ["--set gamma=0.9 and --set gamma=0.8", "give one"]),
        ({"settings": ("seed=3",), "seed": 3}, ["--set seed=3 and --seed", "create_experiment.seed"]),
        ({"settings": ("num_env_steps=3",), "num_env_steps": "3"}, ["--num_env_steps"]),
        ({"settings": ("env_name=X",)}, ["--set env_name=X and --task"]),
    ],
)
def test_two_flags_for_the_same_are_refused(more, words):
    message = refused(RunRequest("Pendulum-v1", "taac", **more))
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "asked, words",
    [
        (RunRequest("Pendulum-v1", "mine/tac.gin"), ["--method mine/tac.gin: there is no file"]),
        (RunRequest("Pendulum-v1", "sac_krep_flash"), ["there is no method", "did you mean 'sac_krep+flash'?"]),
        (RunRequest(gin_files=(TASK,)), ["there is no method", "--method taac", "taac list"]),
        (RunRequest(gin_files=(METHOD,)), ["no value (a task file defines it"]),
        (RunRequest(gin_files=("experiments/quick_compare.gin",)), ["there is no task", "for `taac compare`"]),
        (RunRequest(method="sac", gin_files=("experiments/demo.gin",)), ["--method sac", "another", "gin/taac_base.gin:"]),
    ],
)
def test_what_is_missing_or_unknown(asked, words):
    message = refused(asked)
    assert all(word in message for word in words), message


def test_flags_and_files_combine(tmp_path):
    """A task with a method's file, a whole experiment with other settings, and a method with a file that changes it."""
    assert values(RunRequest("Hopper-v5", gin_files=(METHOD,)).load())["num_env_steps"] == 3_000_000
    assert values(RunRequest(gin_files=("experiments/demo.gin",), settings=("gamma=0.5",)).load())["gamma"] == 0.5
    file = tmp_path / "mine.gin"
    file.write_text("create_agent.algorithm_ctor = @SdarAlgorithm\n")
    found = values(RunRequest("Hopper-v5", "taac", (str(file),)).load())["create_agent.algorithm_ctor"]
    assert found.configurable.selector.endswith(".SdarAlgorithm")
    assert RunRequest("Hopper-v5", "taac", (METHOD,)).load()  # the same method twice


def test_task_and_method_files_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "reach.gin").write_text(f"include '{TASK}'\ncreate_environment.env_name = 'Reacher-v5'\n")
    (tmp_path / "mine" / "slow.gin").write_text(f"include '{METHOD}'\nTaacAlgorithm.max_repeat_steps = 9\n")
    asked = RunRequest("mine/reach.gin", "mine/slow.gin", seed=1)
    found = values(asked.load())
    assert found["create_environment.env_name"] == "Reacher-v5" and found["TaacAlgorithm.max_repeat_steps"] == 9
    assert (asked.task_name, asked.method_name) == ("reach", "slow")


def test_backbones_come_after_the_method_and_are_part_of_its_name(tmp_path):
    asked = RunRequest("Pendulum-v1", "taac+flash_small+held_noise", settings=("batch_size=64",))
    assert asked.files()[1:] == [METHOD, "gin/backbones/flash_small.gin", "gin/backbones/held_noise.gin"]
    found = values(asked.load())
    assert found["create_experiment.method"] == asked.method_name == "taac+flash_small+held_noise"
    assert found["ActorCriticAlgorithm.policy_delay"] == 2 and found["batch_size"] == 64  # the command line wins
    assert RunRequest("Pendulum-v1", "taac+her").files()[1:] == [METHOD, "gin/her.gin"]
    file = tmp_path / "mine.gin"
    file.write_text(f"include '{METHOD}'\ncreate_experiment.method = 'own'\n")
    assert values(RunRequest("Pendulum-v1", f"{file}+tqc").load())["create_experiment.method"] == "mine+tqc"
    named = RunRequest("Pendulum-v1", "sac+tqc", gin_params=("create_experiment.method = 'x'",))
    assert values(named.load())["create_experiment.method"] == "x"
    with pytest.raises(TaacError, match=r"there is no file 'flsh' to add; did you mean 'flash'.*There are: categorical, "):
        RunRequest("Pendulum-v1", "taac+flsh").load()
    with pytest.raises(TaacError, match="there is no method 'tac'"):
        RunRequest("Pendulum-v1", "tac+flash").load()


def test_a_setting_in_the_name_of_a_method_is_that_setting_in_plain_words():
    asked = RunRequest("Pendulum-v1", "taac+decision_price=0.01+her", settings=("gamma=0.9",))
    assert asked.files() == RunRequest("Pendulum-v1", "taac+her").files()
    loaded = asked.load()
    plain = RunRequest("Pendulum-v1", "taac+her", settings=("decision_price=0.01", "gamma=0.9")).load()
    assert values(loaded)["create_experiment.method"] == asked.method_name == "taac+decision_price=0.01+her"
    assert plainly(loaded) == {**plainly(plain), "create_experiment.method": "'taac+decision_price=0.01+her'"}
    assert "TaacAlgorithm.decision_price = 0.01" in "\n".join(asked.describe(loaded))
    nested = RunRequest("Pendulum-v1", "sac+hidden_layers=64,32", gin_params=("hidden_layers = (8,)",)).load()
    assert nested.macros["hidden_layers"] == (64, 32)  # wins over parameters, as --set does


@pytest.mark.parametrize(
    "method, settings, words",
    [
        ("taac+gama=0.9", (), "--method gama=0.9: there is no macro and no parameter named 'gama'; did you mean 'gamma'"),
        ("taac+gamma=", (), "--method gamma=: expected NAME=VALUE"),
        ("taac+gamma=0.9", ("gamma=0.8",), "--method gamma=0.9 and --set gamma=0.8 set the same"),
        ("taac+gamma=0.9+gamma=0.8", (), "--method gamma=0.9 and --method gamma=0.8 set the same"),
        ("gamma=0.9", (), "there is no method 'gamma=0.9'"),
    ],
)
def test_settings_in_the_name_of_a_method_that_are_refused(method, settings, words):
    assert words in refused(RunRequest("Pendulum-v1", method, settings=settings))


def test_a_parameter_of_an_imported_module_is_known(tmp_path, monkeypatch):
    (tmp_path / "taac_test_asked.py").write_text(
        "import gin\n@gin.configurable\nclass Mine:\n    def __init__(self, own_width: int = 3):\n        pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.gin").write_text("import taac_test_asked\n")
    asked = RunRequest("Pendulum-v1", "taac", (str(tmp_path / "mine.gin"),), settings=("own_width=4",))
    assert values(asked.load())["Mine.own_width"] == 4


@pytest.mark.parametrize(
    "task, file, told",
    [
        ("Hopper-v5", "locomotion", ""),
        ("my_module:Ant-v4", "locomotion", ""),
        ("racetrack-v0", "driving", ""),
        ("LunarLander-v3", "discrete_control", ""),
        ("LunarLanderContinuous-v3", "simple_control", ""),
        ("terrain", "terrain", ""),
        (TASK, "simple_control", ""),
        ("Pendulum-v1", "default", "no task file names Pendulum-v1, so it has the settings of default"),
        ("my_module:MyEnv", "default", "no task file names my_module:MyEnv"),
    ],
)
def test_the_description_tells_whose_settings_a_task_has(task, file, told):
    asked = RunRequest(task, "taac", settings=("gamma=0.9",), seed=4)
    first, *lines = asked.describe(asked.load())
    assert first.startswith(f"--task {task}: gin/tasks/{file}.gin") and told in first and bool(told) == ("(" in first)
    assert lines[0] == f"--method taac: {METHOD}"
    assert {"--set: gamma = 0.9", "--seed: create_experiment.seed = 4"} <= set(lines)
    assert (f"--task: create_environment.env_name = '{task}'" in lines) == (task not in (TASK, "terrain"))


def test_a_default_task_keeps_its_environment():
    assert values(RunRequest("terrain", "taac").load())["create_environment.env_name"] == "BipedalWalker-v3"


def test_shipped_files_introduce_themselves():
    assert {"sac", "taac", "sdar"} <= set(shipped.files("methods")) and "driving" in shipped.files("tasks")
    for files in (shipped.files("methods"), shipped.files("tasks"), shipped.additions()):
        for path in files.values():
            assert shipped.about(path).endswith("."), f"{path}: the first line is a sentence, which `taac list` prints"


def test_every_task_file_names_its_environment_and_no_two_name_the_same():
    named = [name for task in shipped.files("tasks") for name in shipped.environments(task)]
    assert len(named) == len(set(named)) > 15
    unnamed = {"sac_reference", shipped.DEFAULT_TASK}  # whose settings are asked for, or are those of all others
    assert all(shipped.environments(task) == () for task in unnamed)
    for task in {*shipped.files("tasks")} - unnamed - {"goals"}:  # whose default has the paper's settings by its name
        default = values(configuration.load([f"gin/tasks/{task}.gin"]))["create_environment.env_name"]
        assert shipped.task_of(default) == task


def test_settings_of_macros_that_a_method_does_not_use_are_told():
    settings = ("beta_min_prob=0.1", "gamma=0.9", "hidden_layers=8,", "replay_length=99")
    loaded = RunRequest("Pendulum-v1", "sac", settings=settings).load()
    configuration.build(experiment.create_experiment).close()
    loaded.check_used()
    assert loaded.without_effect() == ["--set: beta_min_prob = 0.1 has no effect: this method does not use beta_min_prob"]
    assert [loaded.task_macros()[name] for name in ("beta_min_prob", "gamma", "hidden_layers")] == [None, 0.9, (8,)]


@pytest.mark.parametrize(
    "method, owner",
    [("taac", "TaacAlgorithm"), ("taac_l", "TaacAlgorithm"), ("tla", "TlaAlgorithm"), ("sdar", "SdarAlgorithm"),
     ("tacos", "DurationCoordinate")],
)  # fmt: skip
def test_of_several_constructors_the_algorithm_is_meant_or_else_what_is_no_algorithm(method, owner):
    loaded = RunRequest("Pendulum-v1", method, settings=("decision_price=0.1",)).load()
    assert values(loaded)[f"{owner}.decision_price"] == 0.1


def test_a_parameter_of_other_algorithms_is_refused():
    message = refused(RunRequest("Pendulum-v1", "td3", settings=("target_decision_rate=0.3",)))
    assert "Td3Algorithm has no 'target_decision_rate'; these have it: " in message and "TlaAlgorithm.target_dec" in message


@gin.configurable
class Scaled(gymnasium.Wrapper):
    def __init__(self, env, factor):
        super().__init__(env)
        self.factor = factor


def test_what_is_bound_of_a_class_need_not_come_from_its_caller():
    def load(*params):
        return RunRequest("Pendulum-v1", "sac", gin_params=("num_env_steps = 2000", *params)).load()

    with pytest.raises(TaacError, match=r"too many mandatory.*not give, Scaled\.factor"):
        load("create_environment.wrappers = (@Scaled,)")
    with pytest.raises(TaacError, match=r"@Scaled \(which is <class.*a list of one is written \(@Scaled,\)"):
        load("create_environment.wrappers = @Scaled", "Scaled.factor = 0.5")
    load("create_environment.wrappers = (@Scaled,)", "Scaled.factor = 0.5")
    trainer = configuration.build(experiment.create_experiment)
    assert trainer.environment._env.envs[0].get_wrapper_attr("factor") == 0.5
    trainer.close()


def test_an_algorithm_may_be_a_macro():
    params = ("mine = @TaacAlgorithm", "create_agent.algorithm_ctor = %mine")
    loaded = RunRequest("Pendulum-v1", "taac", gin_params=params, settings=("gamma=0.9",)).load()
    assert values(loaded)["gamma"] == 0.9


def built_with(method, *settings, params=()):
    settings = (*settings, "num_env_steps=3000", "replay_length=99")
    loaded = RunRequest("Pendulum-v1", method, settings=settings, gin_params=params).load()
    configuration.build(experiment.create_experiment).close()
    loaded.check_used()
    return loaded.without_effect()


def test_updates_an_iteration_beside_a_ratio_are_told():
    told = "--set: updates_per_iteration = 4 has no effect: updates_per_env_step decides the number of updates"
    for method, expected in (("sac+redq", [told]), ("sac", [])):
        loaded = RunRequest("Pendulum-v1", method, settings=("updates_per_iteration=4",)).load()
        configuration.build(experiment.create_experiment).close()
        assert loaded.without_effect() == expected


WIDTHS = "--set: {} = (8,) has no effect on {}; --set {} has (gin/backbones/{}: {} = {})"


@pytest.mark.parametrize(
    "method, setting, told",
    [
        ("taac+flash_small", "hidden_layers", [
            ("CriticEnsemble", "critic/FlashBody.width", "flash.gin:8", 256),
            ("ActorNetwork", "actor/FlashBody.width", "flash.gin:13", 128),
        ]),
        ("sac+tqc", "hidden_layers", [("CriticEnsemble", "CriticEnsemble.hidden_layers", "tqc.gin:8", (512, 512, 512))]),
        ("sac+xqc", "CriticEnsemble.hidden_layers",
         [("CriticEnsemble", "critic/MlpBody.hidden_layers", "xqc.gin:5", (512, 512, 512, 512))]),
        ("sac+layer_norm", "hidden_layers", []), ("sac+xqc", "critic/MlpBody.hidden_layers", []),
        ("sac+tqc", "CriticEnsemble.hidden_layers", []),
    ],
)  # fmt: skip
def test_widths_that_do_not_reach_a_network_are_told(method, setting, told):
    expected = [WIDTHS.format(setting, network, own, where, own, width) for network, own, where, width in told]
    assert sorted(built_with(method, f"{setting}=8,")) == sorted(expected)


def test_widths_reach_a_network_by_way_of_macros():
    params = (
        "body = @critic/MlpBody", "CriticEnsemble.body = %body", "wide = %hidden_layers", "actor/MlpBody.hidden_layers = %wide"
    )  # fmt: skip
    assert built_with("sac+xqc", "hidden_layers=8,", params=params) == []


def test_a_setting_that_every_scope_replaces_is_refused():
    instead = "critic/FlashBody.width (gin/backbones/flash.gin:8), actor/FlashBody.width (gin/backbones/flash.gin:13)"
    with pytest.raises(TaacError, match=re.escape(f"each FlashBody has a setting of its own: {instead}")):
        built_with("sac+flash_small", "FlashBody.width=32")
    assert built_with("sac+flash_small", "BatchNorm.epsilon=1e-4", "critic/FlashBody.width=32") == []


@pytest.mark.parametrize(
    "task, method, file, instead",
    [
        ("Pendulum-v1", "sac+caps+l2c2", "gin/caps.gin", "ActorCriticAlgorithm.actor_regularizers = ()"),
        ("manipulation", "sac+action_delay", "gin/tasks/manipulation.gin", "create_environment.wrappers = ()"),
        ("Pendulum-v1", "sac+half_demonstrations+cloning", "gin/half_demonstrations.gin",
         "create_experiment.demonstrations_ctor = @kept_apart"),
        ("Pendulum-v1", "sac+pink_noise+gsde", "gin/pink_noise.gin", "create_collector.explorer = None"),
    ],
)
def test_a_part_that_would_replace_the_tasks_or_another_is_refused(task, method, file, instead):
    told = refused(RunRequest(task, method))
    assert told.startswith(file) and " would be replaced by gin/" in told and f"--gin_param '{instead.split()[0]} = ..'" in told
    RunRequest(task, method, gin_params=(instead,)).load()


def test_a_file_of_ones_own_may_have_a_plus_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine+new.gin").write_text("include 'gin/methods/sac.gin'\n")
    asked = RunRequest("Pendulum-v1", "mine+new.gin")
    assert asked.files()[-1] == "mine+new.gin" and asked.load().bound("create_experiment.method") == "mine+new"


def test_a_plus_inside_of_a_value_ends_nothing():
    request = RunRequest("Pendulum-v1", "sac+learning_rate=1e+2+caps+load_from=runs/taac+her/seed_0:actor")
    assert request.method_name == request.method
    loaded = request.load()
    assert loaded.bound("Learner.learning_rate") == 100.0
    assert loaded.bound("create_experiment.load_from") == "runs/taac+her/seed_0:actor"


def test_a_short_name_is_of_the_algorithm_that_another_setting_names():
    for name in ("algorithm_ctor", "create_agent.algorithm_ctor"):
        settings = (f"{name}=@SdarAlgorithm", "target_decision_rate=0.2")
        assert RunRequest("Pendulum-v1", "taac", settings=settings).load().bound("SdarAlgorithm.target_decision_rate") == 0.2


def test_a_backbone_that_another_one_replaces_is_told():
    (told,) = built_with("sac+crossq+flash_small")
    assert re.search(r"crossq.gin:5: CriticEnsemble.body = .*critic/MlpBody has no effect: .*flash.gin:7: .* replaces it", told)
    told = "; ".join(built_with("sac+redq+droq"))
    assert re.search(r"redq.gin:\d+: CriticEnsemble.num_critics = 10 has no effect: .*droq.gin:\d+: .* = 2 replaces it", told)
    loaded = RunRequest("Pendulum-v1", "sac+crossq+layer_norm").load()
    (told,) = [told for told in loaded.without_effect() if "crossq.gin" in told]
    assert re.search(r"layer_norm.gin:\d+: CriticEnsemble.body = .* has settings of .*crossq.gin, too, with the same body", told)
    assert not RunRequest("Pendulum-v1", "sac+xqc+categorical").load().without_effect()


def test_settings_of_a_schedule_that_another_value_replaced_are_refused_if_somebody_gives_them():
    with pytest.raises(TaacError, match=r"flash/CosineSchedule.start = 0.003: nothing in this experiment uses this binding"):
        built_with("sac+flash_small", "learning_rate=1e-4", params=("flash/CosineSchedule.start = 3e-3",))


@pytest.mark.parametrize(
    "task, given, told",
    [
        ("Hopper-v5", {"settings": ("reward_clip=3",)}, ["--set: reward_clip = 3"]),
        ("Hopper-v5", {"gin_params": ("create_agent.reward_clip = 3.0",)}, ["--gin_param: create_agent.reward_clip = 3.0"]),
        ("Hopper-v5", {"settings": ("reward_clip=3", "normalize_rewards=true")}, []),
        ("Hopper-v5", {"settings": ("reward_clip=none",)}, []),
        ("Pendulum-v1", {"settings": ("normalize_rewards=false",)}, []),  # whose task file clips
    ],
)
def test_a_clip_of_rewards_that_are_not_normalised_is_told(task, given, told):
    loaded = RunRequest(task, "sac", **given).load()
    why = " has no effect: it clips normalised rewards, and normalize_rewards is False"
    assert [note for note in loaded.without_effect() if why in note] == [line + why for line in told]


def test_a_clip_in_a_file_is_told_if_it_is_no_setting_of_a_task(tmp_path):
    """A task file of one's own holds what the task has where rewards are normalised, and config.gin what a run has."""
    task, more, config = (tmp_path / name for name in ("task.gin", "more.gin", "config.gin"))
    task.write_text("include 'gin/tasks/locomotion.gin'\nnormalize_rewards = True\nreward_clip = 5.0\n")
    more.write_text("create_agent.reward_clip = 3.0\n")
    of_task = RunRequest(str(task), "sqil_sac").load()
    lines = [b.line for b in of_task.bindings.values() if b.name in ("reward_clip", "normalize_rewards") or b.is_macro]
    config.write_text("\n".join(lines))
    of_run, of_own = configuration.load([config]), RunRequest(str(task), "sqil_sac", gin_files=(str(more),)).load()
    told = [[n for n in loaded.without_effect() if "it clips" in n] for loaded in (of_task, of_run, of_own)]
    assert told[:2] == [[], []] and len(told[2]) == 1 and told[2][0].startswith(f"{more}:1: create_agent.reward_clip = 3.0")


@pytest.mark.parametrize("binding", ["Comparison.seeds = 3", "SlurmArray.partition = 'gpu'", "Sweep.trials = 9"])
def test_settings_of_a_comparison_are_refused_where_nothing_would_read_them(tmp_path, binding):
    name, _, value = binding.partition(" = ")
    for given in ({"gin_params": (binding,)}, {"settings": (f"{name}={value}",)}):
        with pytest.raises(TaacError, match=rf"--\w+: {re.escape(binding)}: no run reads this.*--gin_file"):
            RunRequest("Pendulum-v1", "sac", **given).load()
    (tmp_path / "mine.gin").write_text(f"{binding}\n")
    RunRequest("Pendulum-v1", "sac", (str(tmp_path / "mine.gin"),)).load()


def test_a_comparison_is_read_without_what_its_runs_bind(tmp_path):
    """The runs' bindings may name macros of task files, which a comparison has none of."""
    mine = tmp_path / "mine.gin"
    mine.write_text(
        "own = (%hidden_layers,)\nActorNetwork.hidden_layers = %hidden_layers\nfew = 1\nfew = 2\nmany = (%few, 5)\n"
        "Comparison.seeds = %many\nComparison.tasks = ('Pendulum-v1',)\nComparison.methods = ('sac',)\n"
    )
    configuration.load([str(mine)], of_compare=True)
    comparison = configuration.build(Comparison)
    assert comparison.seeds == (2, 5) and comparison.tasks == ("Pendulum-v1",)
    mine.write_text("Comparison.seeds = %many\n")
    with pytest.raises(TaacError, match="the macro 'many' has no value"):
        configuration.load([str(mine)], of_compare=True)
    mine.write_text("Comparison.seeds = 'many'\n")
    with pytest.raises(TaacError, match="wrong type"):
        configuration.load([str(mine)], of_compare=True)


def test_short_names_of_a_constructor_that_comes_from_a_mixin():
    """TempoRL's belongs to `Skips`, which is no configurable."""
    owners = plain_words.owners()
    assert owners["max_skip"] == ["TempoRLAlgorithm.max_skip", "TempoRLTd3Algorithm.max_skip"]
    assert "TempoRLAlgorithm.decision_price" in owners["decision_price"]
