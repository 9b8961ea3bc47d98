"""A file of `taac export` acts as the live agent does: same choices, same actions, same next state."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from taac import configuration, nest, registry
from taac.acting.bare import bare_time_step
from taac.commands.export import environment_settings
from taac.data_structures import AlgStep
from taac.deployment import policy_files
from taac.deployment.exported_policy import ExportedPolicy, _to_environment
from taac.environments.create import create_environment
from taac.environments.spaces import action_adapter
from taac.errors import TaacError
from taac.playing.saved_agent import load_saved
from taac.training import experiment
from tests import forked
from tests.environments.team import TEAM
from tests.learning.test_optimizers import CAMERA
from tests.methods import thinned

PT2_AND_SLOWLY_ONNX = [
    ending if ending == ".pt2" else pytest.param(ending, marks=pytest.mark.slow) for ending in policy_files.FORMATS
]
# Greedy policies with every kind of state, action and observation.
AGENTS = {
    "taac_q": ("taac_q", "simple_control", "LunarLanderContinuous-v3", "create_agent.normalize_observations = True"),
    "recurrent": ("sac_recurrent", "simple_control", "Pendulum-v1"),
    "discrete": ("sac_discrete", "discrete_control", "CartPole-v1"),
    "temporl": ("temporl", "simple_control", "Pendulum-v1"),
    "chunk": ("sac_chunk", "simple_control", "Pendulum-v1"),  # the rest of the chunk is the state
    "taac on chunks": ("taac_chunk", "simple_control", "Pendulum-v1", "ActorCriticAlgorithm.critic_ctor = @PrefixCritics",
                       "PrefixCritics.hidden_layers = (16,)"),
    "normalised": ("taac", "simple_control", "Pendulum-v1", "CriticEnsemble.body = @FlashBody", "ActorNetwork.body = @FlashBody",
                   "FlashBody.width = 8", "CriticEnsemble.returns = @CategoricalReturns()"),
    "team of slow and fast": ("tla", "simple_control", TEAM, "create_agent.shared_policy = True",
                              "create_environment.env_kwargs = {'comes_and_goes': True}"),
    "tla": ("tla", "simple_control", "Pendulum-v1"),  # two policies, an encoder each
    "sdar": ("sdar", "simple_control", "Pendulum-v1"),  # decides for each dimension, on the action before
    "krep": ("sac_krep", "simple_control", "Pendulum-v1"),  # a Tuple of actions
    "asymmetric": (
        "sac", "simple_control", "tests.toy_tasks:taac-test/Asymmetric-v0", "create_agent.normalize_observations = True",
        "SacAlgorithm.actor_encoder_ctor = @LocalEncoder",
    ),
    "team": ("taac", "simple_control", TEAM, "create_agent.shared_policy = True",
             "create_environment.env_kwargs = {'comes_and_goes': True}"),
    "team of branches": ("sac_discrete", "discrete_control", TEAM, "create_agent.shared_policy = True",
                         "create_environment.env_kwargs = {'comes_and_goes': True, 'kind': 'branches'}"),
    "images": ("taac", "simple_control", "tests.toy_tasks:taac-test/Camera-v0", *CAMERA[1:]),  # and choices that begin at 5
}


@pytest.fixture(autouse=True)
def closes():
    """Closes the environments that a test has made."""
    yield
    while _OPENED:
        _OPENED.pop().close()


_OPENED = []


def built(method, task, env_name, *params):
    """An agent with random networks, and its environment."""
    registry.register()
    small = ["create_environment.num_envs = 1", f"create_environment.env_name = '{env_name}'", "hidden_layers = (16, 16)"]
    configuration.load([f"gin/tasks/{task}.gin", f"gin/methods/{method}.gin"], [*small, *params])
    environment = configuration.build(lambda: create_environment(num_envs=1, asynchronous=False))
    _OPENED.append(environment)
    torch.manual_seed(0)
    agent = configuration.build(lambda: experiment.create_agent(environment, experiment.choose_device("cpu"), role="act"))
    with torch.no_grad():  # larger actions and clear choices, as after training
        for parameter in agent.algorithm.parameters():
            parameter.mul_(3 if parameter.dim() > 1 else 1)
        if hasattr(agent.algorithm, "beta_temperature"):
            agent.algorithm.beta_temperature.value.fill_(-7.0)
    if agent.observation_normalizer is not None:
        agent.observation_normalizer.update(
            nest.map_structure(lambda spec: torch.randn(64, *spec.shape) * 3 + 1, environment.observation_spec)
        )
    return agent, environment


@pytest.fixture(params=thinned(AGENTS, ("taac_q", "recurrent", "temporl", "normalised", "krep", "asymmetric")))
def pair(request):
    return built(*AGENTS[request.param])


def plain(policy):
    """The policy as `policy_files.load` would return it, without a file."""

    def step(arrays):
        with torch.inference_mode():
            return [out.numpy() for out in policy(*(torch.from_numpy(a) for a in arrays))]

    return step


def test_the_function_acts_as_the_agent_does(pair):
    agent, environment = pair
    policy = ExportedPolicy(agent, environment)
    parity = policy_files.check(plain(policy), policy, environment, steps=150, seed=3)
    assert parity.largest_difference < 1e-6 and parity.steps == 150
    assert 1 < parity.microseconds < 1e6 and 1 < parity.live_microseconds < 1e6


def test_ends_of_episodes_are_counted():
    """Episodes of 5 steps: the LAST of the first is the sixth time step, that of the second the twelfth."""
    agent, environment = built(*AGENTS["recurrent"], "create_environment.max_episode_steps = 5")
    policy = ExportedPolicy(agent, environment)
    found = [policy_files.check(plain(policy), policy, environment, steps, seed=0).episodes for steps in (5, 6, 11, 12)]
    assert found == [0, 1, 1, 2]


def test_any_state_may_be_passed_in_where_an_episode_begins(pair):
    agent, environment = pair
    policy = ExportedPolicy(agent, environment)
    first, *leaves = policy.example(3)
    count = len(nest.flatten(policy.observation_spec))
    wrong = [leaf + 1 if leaf.dtype != torch.bool else ~leaf for leaf in leaves[count:]]
    for expected, found in zip(policy(first, *leaves), policy(first, *leaves[:count], *wrong), strict=True):
        assert torch.equal(expected, found)


@pytest.mark.slow
@pytest.mark.parametrize("ending", policy_files.FORMATS)
@pytest.mark.parametrize("name", AGENTS)
def test_a_file_acts_as_the_agent_does(tmp_path, name, ending):
    if ending == ".onnx":
        pytest.importorskip("onnxruntime", reason="pip install 'taac[onnx]'")
    agent, environment = built(*AGENTS[name])
    policy = ExportedPolicy(agent, environment)
    path = tmp_path / f"policy{ending}"
    policy_files.write(policy, path, policy_files.metadata(policy, environment, {"method": name}))
    step = policy_files.load(path)
    parity = policy_files.check(step, policy, environment, steps=1000, seed=1)
    assert parity.episodes >= 1 and parity.largest_difference < policy_files.TOLERANCE
    assert parity.ties <= 3 or name != "taac_q"  # random networks of normalised or constant input have many
    for batch in (1, 5):  # any batch size
        inputs = [leaf.numpy() for leaf in policy.example(batch)]
        for output, expected, found in zip(policy.names.outputs, plain(policy)(inputs), step(inputs), strict=True):
            if (name, output) != ("normalised", "switch"):  # both candidates of this example are the action 0
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "output, change, message",
    [
        ("switch", lambda x: ~x, "'switch' of the file is .* where the live agent's is .*, at step 0"),
        ("action", lambda x: x + 2e-5, "'action' of the file differs from the live agent's by 2e-05"),
        ("action", lambda x: x.astype(np.float64), "expected float32"),
        ("next_state.tau.v", lambda x: x * np.float32(np.nan), "'next_state.tau.v' of the file differs .* by nan"),
    ],
)
def test_a_file_that_acts_differently_is_found(output, change, message):
    agent, environment = built(*AGENTS["taac_q"])
    policy = ExportedPolicy(agent, environment)

    def step(arrays):
        outputs = plain(policy)(arrays)
        i = policy.names.outputs.index(output)
        outputs[i] = change(outputs[i])
        return outputs

    with pytest.raises(TaacError, match=message):
        policy_files.check(step, policy, environment, steps=5, seed=0)


def test_the_file_goes_on_from_the_live_agents_state():
    """So that what it rounds at each step does not add up."""
    agent, environment = built(*AGENTS["recurrent"])
    policy = ExportedPolicy(agent, environment)

    def states(error):
        given = []

        def step(arrays):
            given.append(arrays[-1])
            *outputs, last = plain(policy)(arrays)
            return [*outputs, last + np.float32(error)]

        policy_files.check(step, policy, environment, 5, seed=0)
        return np.stack(given)

    assert np.array_equal(states(0.0), states(4e-6))


@pytest.mark.parametrize("distance, tie", [(0.0, True), (0.1, False)])
def test_a_choice_that_rounding_decides_is_counted_and_others_are_refused(monkeypatch, distance, tie):
    agent, environment = built(*AGENTS["taac_q"])
    policy = ExportedPolicy(agent, environment)
    original, threshold = agent.predict_step, []

    def barely(time_step, state):  # switches where the observation's sum exceeds what it was at the first call
        total = time_step.observation.sum(-1)
        threshold.append(total + distance)
        return original(time_step, state)._replace(decided=total > threshold[0])

    monkeypatch.setattr(agent, "predict_step", barely)
    if tie:
        assert policy_files.check(lambda arrays: flipped(plain(policy)(arrays), 1), policy, environment, 1, seed=0).ties == 1
    else:
        with pytest.raises(TaacError, match="'switch' of the file is"):
            policy_files.check(lambda arrays: flipped(plain(policy)(arrays), 1), policy, environment, 1, seed=0)


def flipped(outputs, index):
    return [~out if i == index else out for i, out in enumerate(outputs)]


def test_actions_are_in_the_environments_scale():
    agent, environment = built(*AGENTS["temporl"])  # Pendulum's torque is in [-2, 2]
    policy = ExportedPolicy(agent, environment)
    inputs = policy.example(4)
    with torch.inference_mode():
        action, _, unit, *_ = policy(*inputs)
    np.testing.assert_array_equal(action.numpy(), action_adapter(environment.action_space)[1](unit))
    torch.testing.assert_close(action, 2 * unit)


SPACES = {
    "uneven box": spaces.Box(np.float32([-1000.0, 2.0]), np.float32([1000.0, 2.5])),
    "box that rounding leaves": spaces.Box(-3.0, 1.2, (1,), np.float64),
    "unit box": spaces.Box(-1.0, 1.0, (2,), np.float64),
    "choice": spaces.Discrete(4, start=3),
    "choice of bytes": spaces.Discrete(4, start=3, dtype=np.uint8),
    "choices": spaces.MultiDiscrete([4, 3], start=[-2, 5]),
    "parts": spaces.Dict(a=spaces.Tuple((spaces.Discrete(3, start=1), spaces.Box(-400.0, 400.0, (2,)))), b=spaces.Discrete(2)),
}


@pytest.mark.parametrize("name", SPACES)
def test_actions_of_every_space_are_those_of_the_environment_bit_for_bit(name):
    def unit(spec):
        if spec.is_categorical:
            return torch.stack([torch.zeros(spec.shape, dtype=torch.int64), torch.as_tensor(spec.maximum)])
        some = torch.randn(50, *spec.shape).tanh()
        return torch.cat([torch.ones(1, *spec.shape), some, torch.full((1, *spec.shape), 1e-30)])

    spec, to_environment = action_adapter(SPACES[name])
    action = nest.map_structure(unit, spec)
    found, expected = nest.flatten(_to_environment(SPACES[name], action)), nest.flatten(to_environment(action))
    for one, other in zip(found, expected, strict=True):
        assert one.numpy().dtype == other.dtype and np.array_equal(one.numpy(), other)


class Strong(gymnasium.Env):
    """Forces of up to 1000 N."""

    observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-1000.0, 1000.0, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_a_small_action_is_rounded_as_a_large_one_is():
    """1e-7 of the policy's own scale are 1e-4 of the environment's, where the action is 0.3."""
    agent, environment = built("sac", "simple_control", "tests.deployment.test_export:Strong")
    with torch.no_grad():
        for parameter in agent.algorithm.parameters():
            parameter.zero_()
    policy = ExportedPolicy(agent, environment)
    for error, allowed in ((1e-6, True), (2e-5, False)):

        def step(arrays, error=error):
            action, *others = plain(policy)(arrays)
            return [action + np.float32(1000 * error), *others]

        with contextlib.nullcontext() if allowed else pytest.raises(TaacError, match="'action' of the file differs"):
            policy_files.check(step, policy, environment, 3, seed=0)


def test_where_an_episode_begins_the_state_before_is_no_reason_for_a_tie():
    class Chooses(torch.nn.Module):
        def predict_step(self, time_step, state):
            return AlgStep(torch.as_tensor(state > 0).long(), state, None, decided=torch.ones(1, dtype=torch.bool))

        def initial_state(self, batch_size):
            return torch.full((batch_size,), -1.0)

    agent, first = Chooses(), bare_time_step(torch.ones(1, dtype=torch.bool), torch.zeros(1, 2), torch.zeros(1, 1), None)
    live = agent.predict_step(first, agent.initial_state(1))
    assert not policy_files._is_tie(SimpleNamespace(agent=agent, time_step=first, state=torch.ones(1)), live)


def test_a_choice_that_only_the_state_tells_may_be_a_tie():
    class Chooses(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.values = torch.nn.Parameter(torch.tensor([1.0, 1.0]))

        def predict_step(self, time_step, state):
            kept = self.values.argmax().reshape(1)
            return AlgStep(torch.zeros(1), kept, None, decided=torch.ones(1, dtype=torch.bool))

        def initial_state(self, batch_size):
            return torch.zeros(batch_size, dtype=torch.int64)

    agent, first = Chooses(), bare_time_step(torch.ones(1, dtype=torch.bool), torch.zeros(1, 2), torch.zeros(1, 1), None)
    rollout = SimpleNamespace(agent=agent, time_step=first, state=agent.initial_state(1))
    assert policy_files._is_tie(rollout, agent.predict_step(first, rollout.state))
    agent.values.data[1] = 2.0
    assert not policy_files._is_tie(rollout, agent.predict_step(first, rollout.state))


def test_agents_that_are_there_show_whether_a_policy_draws(monkeypatch):
    """A blank mask has all agents absent, whose actions are 0."""
    agent, environment = built(*AGENTS["team"])
    greedy = agent.algorithm.predict_step

    def drawn(*given, **named):
        return (step := greedy(*given, **named))._replace(output=step.output + torch.rand(1))

    monkeypatch.setattr(agent.algorithm, "predict_step", drawn)
    with pytest.raises(TaacError, match="draws random numbers even when it acts greedily"):
        ExportedPolicy(agent, environment)


def test_a_policy_that_draws_random_numbers_is_refused(monkeypatch):
    agent, environment = built(*AGENTS["temporl"])
    greedy = agent.predict_step
    monkeypatch.setattr(agent, "predict_step", lambda t, s: (x := greedy(t, s))._replace(output=x.output * torch.rand(1)))
    with pytest.raises(TaacError, match="draws random numbers even when it acts greedily"):
        ExportedPolicy(agent, environment)


def test_what_cannot_be_traced_is_refused_with_the_reason(tmp_path, monkeypatch):
    agent, environment = built(*AGENTS["temporl"])
    policy = ExportedPolicy(agent, environment)
    original = agent.predict_step

    def branching(time_step, state):
        step = original(time_step, state)
        return step if step.output.sum().item() > 0 else step._replace(output=-step.output)

    monkeypatch.setattr(agent, "predict_step", branching)
    with pytest.raises(TaacError, match=r"this policy cannot be exported to \.pt2: "):
        policy_files.write(policy, tmp_path / "policy.pt2", {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_asks_for_what_acting_reads():
    """Not for what critics alone see."""
    agent, environment = built(*AGENTS["asymmetric"])
    about = policy_files.metadata(ExportedPolicy(agent, environment), environment, {})
    assert list(about["inputs"]) == ["first", "observation.x", "prev_action"]


def test_the_settings_of_wrappers_are_told():
    bound = {
        "create_environment.wrappers": "(@ActionDelay, @late/ActionRepeat)", "create_environment.num_envs": "1",
        "ActionDelay.steps": "2", "late/ActionRepeat.num_steps": "3", "Learner.epsilon": "0.1",
    }  # fmt: skip
    assert environment_settings(bound) == {
        "wrappers": bound["create_environment.wrappers"], "num_envs": "1", "ActionDelay.steps": "2",
        "late/ActionRepeat.num_steps": "3",
    }  # fmt: skip


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(policy_files.importlib.util, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(TaacError, match=r"\.onnx files need onnxscript: pip install 'taac\[onnx\]'"):
        policy_files.check_packages(tmp_path / "a.onnx")
    policy_files.check_packages(tmp_path / "a.pt2")


@pytest.mark.parametrize("ending", PT2_AND_SLOWLY_ONNX)
def test_the_command_and_the_example_that_needs_no_taac(tmp_path, ending):
    run = tmp_path / "run"
    small = ["num_env_steps = 60", "initial_collect_steps = 40", "evaluation_interval = 60", "evaluation_episodes = 1",
             "batch_size = 4", "hidden_layers = (16, 16)", "create_environment.env_name = 'Pendulum-v1'"]  # fmt: skip
    command(["train", f"--root_dir={run}", "--gin_file=gin/tasks/simple_control.gin", "--gin_file=gin/methods/taac.gin",
             *(f"--gin_param={binding}" for binding in small)])  # fmt: skip
    path = tmp_path / f"policy{ending}"
    patient = ["--switch_threshold=0.9999"] if ending == ".pt2" else []
    printed = command(["export", f"--root_dir={run}", f"--output={path}", "--check_steps=300", *patient])
    assert "checked over 300 steps" in printed and "-> action, switch" in printed
    if ending == ".pt2":
        saved = load_saved(run)
        _OPENED.append(saved.environment)
        policy = ExportedPolicy(saved.agent, saved.environment)
        first, *leaves = (leaf.numpy() for leaf in policy.example(64))
        inputs, at = [np.zeros_like(first), *leaves], policy.names.outputs.index("switch")
        live = policy(torch.zeros_like(policy.example(64)[0]), *policy.example(64)[1:])
        assert live[at].any() and not policy_files.load(path)(inputs)[at].any()
        assert not any(p.requires_grad for p in torch.export.load(path).module().parameters())
        return
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'taac[onnx]'")
    played = command(["play", f"--root_dir={run}", "--num_episodes=1", "--seed=0"])
    alone = subprocess.run(
        [sys.executable, "-c", "import runpy, sys; sys.modules['taac'] = sys.modules['torch'] = None; "
         "sys.argv = ['onnx_policy.py', sys.argv[1]]; runpy.run_path('experiments/onnx_policy.py')", str(path)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "length 200" in alone and "return -" in alone and "return -" in played
    kept = onnxruntime.InferenceSession(str(path)).get_modelmeta().custom_metadata_map["taac"]
    about = json.loads(kept)
    assert about["environment"] == "Pendulum-v1" and about["method"] == "taac" and about["env_steps"] == 60
    assert about["inputs"]["observation"] == {"dtype": "float32", "shape": ["batch", 3]}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tests.toy_tasks:taac-test/Camera-v0", "tests.toy_tasks:Camera"])
def test_the_example_plays_a_module_s_environment_whose_observations_are_a_dict(tmp_path, name):
    pytest.importorskip("onnxruntime", reason="pip install 'taac[onnx]'")
    agent, environment = built("taac", "simple_control", name, *CAMERA[1:])
    policy, path = ExportedPolicy(agent, environment), tmp_path / "policy.onnx"
    policy_files.write(policy, path, policy_files.metadata(policy, environment, {}))
    code = "import runpy, sys; sys.modules['taac'] = sys.modules['torch'] = None; sys.argv.insert(0, 'onnx_policy.py')\n"
    words = [sys.executable, "-c", code + "sys.argv.pop(1); runpy.run_path('experiments/onnx_policy.py')", str(path)]
    alone = subprocess.run(words, capture_output=True, text=True)
    assert alone.returncode == 0 and "length 30" in alone.stdout, alone.stderr


def test_metadata_name_an_environment_as_gymnasium_knows_it():
    pytest.importorskip("gymnasium_robotics", reason="pip install 'taac[manipulation]'")
    agent, environment = built("sac", "simple_control", "PointMaze_UMaze-v3")
    name = policy_files.metadata(ExportedPolicy(agent, environment), environment, {})["environment"]
    with contextlib.closing(gymnasium.make(name)) as made:
        assert name == "gymnasium_robotics:PointMaze_UMaze-v3" and made.spec.id.endswith(environment.name)


def command(arguments):
    """What a command prints; it must end with status 0."""
    done = forked.run(arguments, cwd=Path())
    assert done.returncode == 0, done.stderr
    return done.stdout
