"""Wrappers against tables derived by hand, in this process and in workers; packages that need not be installed."""

from __future__ import annotations

import importlib
import subprocess
import sys

import gin
import gymnasium
import numpy as np
import pytest
import torch

from taac import configuration
from taac.data_structures import StepType
from taac.environments.create import create_environment
from taac.environments.single import OPTIONAL_PACKAGES, find_spec
from taac.environments.wrappers import SplitReward, SuccessEndsEpisode
from taac.errors import TaacError
from taac.runs import provenance
from tests.environments.toys import env_id
from tests.optional_packages import skip_without_package

FIRST, MID, LAST = (int(t) for t in StepType)


def table(steps, **options):
    """Rows of (step type, reward, discount)."""
    environment = create_environment(env_id("Goal"), **options)
    try:
        frames = [environment.reset(0)] + [environment.step(torch.zeros(1, 2)) for _ in range(steps)]
    finally:
        environment.close()
    return [(int(f.step_type), f.reward[0].tolist(), float(f.discount)) for f in frames]


# Success --------------------------------------------------------------------------------------------------------------


def success(steps, script, successes, **options):
    kwargs = {"scripts": ((script,),), "successes": successes}
    return table(steps, env_kwargs=kwargs, wrappers=(SuccessEndsEpisode,), **options)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_success_terminates_with_reward_1_and_a_new_episode_begins(asynchronous):
    episode = [(FIRST, 0, 1), (MID, 0, 1), (LAST, 1, 0)]  # the environment itself would have gone on
    assert success(5, "9n", (2, 3), asynchronous=asynchronous) == [*episode, *episode]


@pytest.mark.parametrize(
    "script, successes, limit, rows",
    [
        ("9n", (4,), 3, [(FIRST, 0, 1), (MID, 0, 1), (MID, 0, 1), (LAST, 0, 1), (FIRST, 0, 1)]),  # the time limit truncates
        ("9n", (3,), 3, [(FIRST, 0, 1), (MID, 0, 1), (MID, 0, 1), (LAST, 1, 0)]),  # success at the limit terminates
        ("9n", (2,), 3, [(FIRST, 0, 1), (MID, 0, 1), (LAST, 1, 0)] * 2 + [(FIRST, 0, 1)]),  # and restarts it
        ("1t", (), None, [(FIRST, 0, 1), (LAST, 0, 0)]),
    ],
)
def test_success_and_time_limits(script, successes, limit, rows):
    assert success(len(rows) - 1, script, successes, max_episode_steps=limit) == rows


def test_an_environment_that_does_not_report_success_is_refused():
    environment = create_environment(env_id("Counter"), wrappers=(SuccessEndsEpisode,))
    environment.reset(0)
    with pytest.raises(TaacError, match=r"needs info\['is_success'\].*the info has nothing"):
        environment.step(torch.zeros(1, 2))


# Parts of a reward ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_reward_is_split_as_gin_says_in_workers_too(asynchronous):
    gin_params = ["create_environment.wrappers = (@SplitReward,)", "SplitReward.keys = ('cost', 'near')"]
    loaded = configuration.load([], gin_params)
    rows = table(3, env_kwargs={"scripts": (("2u",),)}, asynchronous=asynchronous)
    loaded.check_used()
    assert rows == [(FIRST, [0, 0], 1), (MID, [-0.5, 1], 1), (LAST, [-0.5, 2], 1), (FIRST, [0, 0], 1)]


class WithAVector(gymnasium.Wrapper):
    def step(self, action):
        *rest, info = self.env.step(action)
        return *rest, {**info, "costs": np.zeros(2)}


@pytest.mark.parametrize(
    "keys, message",
    [
        (("near",), r"'near': 1.0.* add up to 1, but the reward is 0.5.*all parts.*cost, costs, is_success, near"),
        (("near", "cost", "cost"), "add up to 0, but the reward is 0.5"),
        (("near", "const"), "the info has no const; it has cost, costs, is_success, near"),
        ((), "one or more keys"),
        ("near", "sequence of one or more keys"),
        (("near", "costs"), r"SplitReward.keys: info\['costs'\] has shape \[2\], expected a number.*reward_space"),
    ],
)
def test_parts_that_do_not_make_the_reward_are_refused(keys, message):
    with pytest.raises(TaacError, match=message):
        env = SplitReward(WithAVector(gymnasium.make(env_id("Goal"), disable_env_checker=True)), keys)
        env.reset(seed=0)
        env.step(np.zeros(2, np.float32))


# Packages that need not be installed ----------------------------------------------------------------------------------


@pytest.mark.parametrize("package", OPTIONAL_PACKAGES, ids=lambda p: p.module)
@pytest.mark.parametrize("with_module", [False, True])
def test_a_missing_package_is_named_with_the_command_that_installs_it(package, with_module, monkeypatch):
    real, env_name = importlib.import_module, f"{package.prefixes[0]}Thing-v0"
    if with_module:
        env_name = f"{package.module}:{env_name}"

    def import_module(name):
        if name == package.module:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(TaacError) as error:
        find_spec(env_name)
    expected = f"environment '{env_name}' needs {package.module}, which is not installed: {package.install}"
    assert str(error.value) == expected and "pip install " in expected
    assert package.module.replace("_", "-") in provenance.PACKAGES, "results depend on its version"


@pytest.mark.slow
@pytest.mark.parametrize("env_name", ["FetchPush-v4", "PointMaze_UMaze-v3", "racetrack-v0", "parking-v0", "mo-hopper-v5"])
def test_ids_of_optional_packages_need_no_module(env_name):
    """In a process of its own, in which no other test has imported the package; another environment imports none."""
    skip_without_package(env_name)
    code = (
        "import sys; from taac.environments.single import OPTIONAL_PACKAGES, find_spec\n"
        "find_spec('Pendulum-v1'); assert not {p.module for p in OPTIONAL_PACKAGES} & set(sys.modules)\n"
        f"assert find_spec('{env_name}').id == '{env_name}'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "env_name, wrappers, shape",
    [("FetchPush-v4", (SuccessEndsEpisode,), (2,)), ("racetrack-v0", (), (2,)), ("mo-hopper-v5", (), (2, 3))],
)
def test_optional_packages_in_worker_processes(env_name, wrappers, shape):
    skip_without_package(env_name)
    environment = create_environment(env_name, 2, asynchronous=True, wrappers=wrappers)
    try:
        environment.reset(0)
        frame = environment.step(torch.zeros(2, *environment.action_spec.shape))
    finally:
        environment.close()
    assert frame.reward.shape == shape


OWN_MODULE = """
import gin
import gymnasium
from tests.toy_tasks import PointMass

gymnasium.register(id="{name}-v0", entry_point="{name}_later:Later")

@gin.configurable
class {name}(PointMass): ...
"""


@pytest.mark.parametrize("env_name", ["{name}:{name}", "{name}:{name}-v0"])
def test_a_module_of_environments_may_also_define_what_gin_configures(tmp_path, monkeypatch, env_name):
    """It is imported when the environment is created, while gin is locked; and so is that of a registered entry point."""
    name = f"of_ones_own_{len(env_name)}"
    (tmp_path / f"{name}.py").write_text(OWN_MODULE.format(name=name))
    later = f"import gin\nfrom {name} import {name}\n@gin.configurable\nclass Later({name}): ...\n"
    (tmp_path / f"{name}_later.py").write_text(later)
    monkeypatch.syspath_prepend(tmp_path)
    configuration.load([], [f"create_environment.env_name = '{env_name.format(name=name)}'"])
    configuration.build(create_environment).close()
    assert gin.config_is_locked()


CONFIGURED = """
import gin
import gymnasium
from tests.environments.toys import Counter

@gin.configurable
def {name}_bonus(amount=0.0):
    return amount

@gin.configurable
class {name}_Scale(gymnasium.Wrapper):
    def __init__(self, env, factor=1.0, bonus=lambda: 0.0):
        super().__init__(env)
        self._factor, self._bonus = factor, bonus()

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        return observation, reward * self._factor + self._bonus, *rest

@gin.configurable
class {name}(Counter):
    def __init__(self, pay=1.0, render_mode=None):
        super().__init__()
        self._pay = pay

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward * self._pay, *rest
"""


@pytest.mark.parametrize("asynchronous", [False, True])
def test_environments_and_wrappers_are_configured_in_workers_too(tmp_path, monkeypatch, asynchronous):
    """In scopes, in what a wrapper calls, and in the environment itself. Training would differ from evaluation."""
    name = f"configured_{asynchronous}"
    (tmp_path / f"{name}.py").write_text(CONFIGURED.format(name=name))
    monkeypatch.syspath_prepend(tmp_path)
    with gin.unlock_config():
        importlib.import_module(name)
    loaded = configuration.load(
        [],
        [
            f"create_environment.env_name = '{name}:{name}'", f"create_environment.asynchronous = {asynchronous}",
            "create_environment.num_envs = 2", f"{name}.pay = 5.0",
            f"create_environment.wrappers = (@double/{name}_Scale, @less/{name}_Scale, @{name}_Scale)",
            f"{name}_Scale.factor = 3.0", f"{name}_Scale.bonus = @{name}_bonus",
            f"{name}_bonus.amount = %extra", "extra = 20.0",
            f"double/{name}_Scale.factor = 2.0",
            f"less/{name}_Scale.factor = 0.5", f"less/{name}_Scale.bonus = @less/{name}_bonus",
            f"less/{name}_bonus.amount = 15.0",
        ],
    )  # fmt: skip
    environment = configuration.build(create_environment)
    try:
        loaded.check_used()
        environment.reset(0)
        rewards = [environment.step(torch.zeros(2, 2)).reward.tolist() for _ in range(2)]
    finally:
        environment.close()
    assert rewards == [[((5.0 * step * 2.0 + 20.0) * 0.5 + 15.0) * 3.0 + 20.0] * 2 for step in (1, 2)]


def test_a_class_needs_no_registration():
    environment = create_environment("tests.toy_tasks:PointMass", num_envs=2, asynchronous=True)
    environment.close()
    assert environment.name == "tests.toy_tasks:PointMass"
    with pytest.raises(TaacError, match=r"is not a gymnasium\.Env"):
        find_spec("collections:OrderedDict")
    with pytest.raises(TaacError, match="doesn't exist"):
        find_spec("tests.toy_tasks:PointMas")
