"""What is read of a stranger's configuration: constructors that only compute, with plain values, of a text that is read once."""

from __future__ import annotations

import math
import shutil
import sys

import pytest
import torch

from taac import configuration
from taac.configuration import gin_state, untrusted
from taac.errors import NotTrusted, TaacError
from taac.playing.saved_agent import load_saved
from taac.runs import own_runs
from taac.runs.run_folder import RunFolder
from taac.training import experiment
from tests import methods
from tests.training.runs import built, run

SMALL = ("replay_length = 500", "hidden_layers = (8,)", "batch_size = 4", "initial_collect_steps = 20")
EVIL = "import taac_test_evil\n"
ACTING = "create_environment.env_name = 'Pendulum-v1'\ncreate_agent.algorithm_ctor = @SacAlgorithm\n"


def untrusted_config(text):
    return configuration.load_untrusted(configuration.ReadFile("config.gin", text))


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that can be imported and must not be."""
    (tmp_path / "taac_test_evil.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    assert "taac_test_evil" not in sys.modules


BUILDS = ("@x/create_experiment()", "@create_experiment", "@x/Trainer()", "@RemoteCollector", "@make/gin.singleton()", "@Learner")
LINES = (
    "create_environment.max_episode_steps = {}", "create_environment.wrappers = [1, ({},)]",
    "create_environment.env_kwargs = {{{}: 1}}", "create_environment.env_kwargs = {{'a': {{(1, {}): 2}}}}",
    "create_agent.algorithm_ctor = {}", "create_agent.normalize_rewards = {}", "x/create_agent.reward_clip = {}",
    "create_agent.reward_clip = %a\na = [%b]\nb = {}", "a/b = {}\nOneStepTDLoss.gamma = @a/b/gin.macro()",
    "create_environment.env_kwargs = {{%a: 1}}\na = {}", "y/ActorNetwork.hidden_layers = ({},)", "LinearSchedule.end = {}",
    "create_agent:\n    reward_clip = {}\n", "m/gin.macro.value = {}\nGELU.approximate = %m",
)  # fmt: skip


@pytest.mark.parametrize(
    "line, value", [*((line, BUILDS[0]) for line in LINES), *((LINES[0], value) for value in BUILDS[1:])]
)
def test_what_builds_an_experiment_or_a_part_of_training_is_refused_wherever_it_is(line, value):
    with pytest.raises(NotTrusted, match=r"is not a network, algorithm, loss"):
        untrusted_config(ACTING + line.format(value) + "\n")


def test_every_wrapper_of_this_package_may_be_named():
    names = ("ActionDelay", "ObservationDelay", "Pictures", "SuccessEndsEpisode")
    loaded = untrusted_config(f"{ACTING}create_environment.wrappers = ({', '.join(f'@{name}' for name in names)},)\n")
    assert len(loaded.bound("create_environment.wrappers")) == len(names)


@pytest.mark.parametrize("text", ["a" + " " * 3000 + "'''x\n'''", "a = " + "1" * 100_000 + "!"])
def test_a_long_statement_that_is_none_is_refused_at_once(text):
    """What could be meant is asked of short lines alone: patterns take time that rises with a power of the length."""
    with pytest.raises(TaacError, match=r"parse|syntax|statement"):
        untrusted_config(ACTING + text + "\n")


def test_what_acting_does_not_need_is_dropped():
    """Also what another process would be started for, or a host contacted."""
    loaded = untrusted_config(
        ACTING + "Trainer.hooks = {'after_evaluation': @x/create_experiment()}\nrate = @x/create_experiment()\n"
        "Learner.learning_rate = %rate\nRemoteCollector.ray_address = 'taac_test_evil://x'\nimport taac.commands.main\n"
        "create_experiment.load_from = ('/etc/passwd:actor',)\nwidth = 8\nActorNetwork.hidden_layers = (%width,)\n"
        "gin.singleton.constructor = @create_experiment\n"
    )
    assert {b.parameter for b in loaded.bindings.values()} == {
        "create_environment.env_name", "create_agent.algorithm_ctor", "ActorNetwork.hidden_layers", "width",
    }  # fmt: skip
    assert set(gin_state.bound()) == {(b.scope, b.selector) for b in loaded.bindings.values()}


@pytest.mark.parametrize("name", methods.every_method())
def test_every_method_acts_by_what_is_read_of_its_configuration(name):
    task = "simple_control"
    trainer = built([f"gin/tasks/{task}.gin", f"gin/methods/{name}.gin"], [*SMALL, *methods.fitting(name)])
    text, state = configuration.operative_config(), trainer.agent.state_dict()
    trainer.close()
    untrusted_config(text)
    environment = configuration.build(lambda: experiment.create_environment(num_envs=1, asynchronous=False))
    agent = configuration.build(lambda: experiment.create_agent(environment, experiment.choose_device("cpu"), role="act"))
    environment.close()
    kept = agent.own_state(state)
    assert {key: value.shape for key, value in agent.state_dict().items()} == {key: kept[key].shape for key in agent.state_dict()}
    used = {selector for _, selector in gin_state.used()} - {gin_state.MACRO}
    assert all(selector.startswith((*untrusted.CALLED, *untrusted.PURE)) for selector in used)


@pytest.mark.parametrize("statement", [EVIL, "from taac_test_evil import x\n", "include 'more.gin'\n"])
def test_imports_and_includes_are_refused(evil, statement):
    with pytest.raises(NotTrusted, match=r"config\.gin:3: (imports|includes)"):
        untrusted_config(ACTING + statement)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    run(path, method="sac", stop=300)
    return path


@pytest.mark.parametrize("part, value", [
    ("agent", []), ("agent", None), ("agent", {"x": "y"}), ("environment", {"a": torch.zeros(2)}), ("learner", "x"),
    ("learner", {}), ("learner", {"num_updates": math.nan}), ("learner", {"num_updates": "9" * 5000}),
    ("learner", {"num_updates": torch.zeros(2)}),
    ("learner", {"num_updates": 10**400}), ("agent", {1: torch.zeros(2)}), ("attributes", [1]),
])  # fmt: skip
def test_a_checkpoint_of_other_things_says_so(tmp_path, trained, part, value):
    folder = RunFolder(shutil.copytree(trained, tmp_path / "run"))
    with folder.config.open("a") as file:  # a schedule asks for the updates
        file.write("SacAlgorithm.target_entropy = @LinearSchedule()\nLinearSchedule.start = -1.0\nLinearSchedule.end = -2.0\n")
        file.write("LinearSchedule.updates = 9\n")
    saved = folder.checkpoints.newest()
    folder.checkpoints.save(saved.env_steps, {**saved.state, part: value})
    wrong = r"checkpoint .* (holds no|holds another|does not count|.*cannot be restored)|its spaces have changed"
    with pytest.raises(TaacError, match=wrong):
        load_saved(folder.path)


def exchanges(monkeypatch, owner, name, path):
    """Has a function of the file's text, or of what was found in it, exchange the file first."""
    original, text = getattr(owner, name), path.read_text()

    def exchanging(given, *rest, **more):
        if not isinstance(given, str) or given == text:
            path.write_text(EVIL + text)
        return original(given, *rest, **more)

    monkeypatch.setattr(owner, name, exchanging)


@pytest.mark.parametrize("mine", [False, True])
def test_a_file_that_is_exchanged_between_check_and_use_imports_nothing(tmp_path, trained, monkeypatch, evil, mine):
    """The text that was checked is parsed, and the file is not opened again."""
    folder = RunFolder(shutil.copytree(trained, tmp_path / "run"))
    if mine:
        own_runs.note(folder.path, folder.config.read_text(), [])
    exchanges(monkeypatch, *((own_runs, "allow_imports") if mine else (gin_state, "statements")), folder.config)
    load_saved(folder.path).environment.close()


def test_what_is_compared_is_not_bound(evil):
    configuration.load([], ["create_experiment.seed = 3"])
    held = configuration.read_held(
        configuration.ReadFile("config.gin", EVIL + "create_experiment.seed = @create_experiment()\n"), ["taac_test_evil"]
    )
    assert held.imports == {"taac_test_evil"} and list(gin_state.bound().values()) == [{"seed": 3}]
