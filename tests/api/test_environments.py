"""Environments that a program gives as objects and functions: their names, their copies, and where they are known."""

from __future__ import annotations

import pickle
import re
import threading

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import taac
from taac.api import environments
from taac.api.environments import Named, named
from taac.environments import single
from taac.errors import TaacError
from tests.api.small import SMALL
from tests.environments.toys import Counter, env_id


def make_pendulum(**arguments):
    return gymnasium.make("Pendulum-v1", **arguments)


class Uncopied(Counter):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    "environment, expected",
    [
        (None, Named(None, {})),
        ("Hopper-v5", Named("Hopper-v5", {})),
        (Counter, Named("tests.environments.toys:Counter", {})),
        (make_pendulum, Named(f"{__name__}:make_pendulum", {})),
        (gymnasium.make("Pendulum-v1"), Named("Pendulum-v1", {})),
        (gymnasium.make("Pendulum-v1", render_mode="rgb_array"), Named("Pendulum-v1", {})),
        (
            gymnasium.make("Pendulum-v1", g=5.0, max_episode_steps=30),
            Named("Pendulum-v1", {"create_environment.env_kwargs": {"g": 5.0}, "create_environment.max_episode_steps": 30}),
        ),
    ],
)  # fmt: skip
def test_what_other_processes_can_make_is_named_so(environment, expected):
    assert named(environment) == expected


def _changed_gravity(environment):
    environment.unwrapped.model.opt.gravity[2] = -1.0


def _replaced_step(environment):
    environment.unwrapped.step = lambda action: (np.zeros(3, np.float32), 5.0, False, False, {})


def _shorter_limit(environment):
    environment._max_episode_steps = 7


@pytest.mark.parametrize(
    "name, change, kept",
    [
        ("Hopper-v5", _changed_gravity, lambda made: made.unwrapped.model.opt.gravity[2] == -1.0),
        ("Pendulum-v1", _replaced_step, lambda made: made.unwrapped.step(0)[1] == 5.0),
        ("Pendulum-v1", _shorter_limit, lambda made: made.env._max_episode_steps == 7),
        ("Pendulum-v1", lambda e: setattr(e.unwrapped, "mine", {"a": [1]}), lambda made: made.unwrapped.mine == {"a": [1]}),
        ("Pendulum-v1", lambda e: e.reset(seed=0), lambda made: made.unwrapped.state is not None),
    ],
)  # fmt: skip
def test_an_object_that_was_changed_or_reset_is_copied_as_it_is(name, change, kept):
    """Also where its class makes copies from the arguments of its constructor, as MuJoCo's do."""
    environment = gymnasium.make(name)
    assert named(environment) == Named(name, {})
    change(environment)
    place = named(environment)
    assert place.name == f"python/{type(environment.unwrapped).__name__}" and place.settings == {}
    with single.given(place.name, place.make):
        made = single.make_single(single.find_spec(place.name), {}, (), None)
    assert kept(made) and made.unwrapped is not environment.unwrapped
    made.reset(seed=0)
    made.close()
    elsewhere = pickle.loads(cloudpickle.dumps(place.make))()  # as environments with a process of their own are made
    assert kept(gymnasium.Wrapper(elsewhere))
    elsewhere.close()


def test_an_object_that_cannot_be_compared_is_refused_rather_than_guessed():
    environment = gymnasium.make("LunarLander-v3")
    with pytest.raises(TaacError, match=r"cannot be copied.*Give its id, 'LunarLander-v3', if it is as gymnasium makes it, or"):
        named(environment)


def test_an_object_without_the_registered_time_limit_is_copied():
    place = named(gymnasium.make("Pendulum-v1", max_episode_steps=-1))
    assert place.name == "python/PendulumEnv"
    with single.given(place.name, place.make):
        made = single.make_single(single.find_spec(place.name), {}, (), None)
    made.reset(seed=0)
    assert not any(made.step(np.zeros(1, np.float32))[3] for _ in range(300))


def test_a_run_is_not_played_on_an_environment_that_is_not_its_own(tmp_path):
    made = gymnasium.make("Pendulum-v1", g=5.0, max_episode_steps=30)
    small = {name: value for name, value in SMALL.items() if name != "max_episode_steps"}
    run = taac.train(made, "sac", root_dir=tmp_path / "run", **small)
    for right in (None, "Pendulum-v1", made, gymnasium.make("Pendulum-v1", max_episode_steps=30, g=5.0)):
        assert taac.Run(run.root_dir, environment=right).evaluate(1).lengths.tolist() == [30]
        assert taac.load(run.root_dir, environment=right).method == "sac"
    for other, about in (
        ("MountainCarContinuous-v0", "env_name = 'Pendulum-v1', and plays on that, but environment has 'MountainCar"),
        (Counter, "but environment has 'tests.environments.toys:Counter': leave environment out"),
        (gymnasium.make("Pendulum-v1", max_episode_steps=30), r"env_kwargs = {'g': 5.0}.*but environment has None"),
        (gymnasium.make("Pendulum-v1", g=5.0), "max_episode_steps = 30.*but environment has None"),
    ):
        for use in (taac.Run, taac.load):
            with pytest.raises(TaacError, match=about):
                use(run.root_dir, environment=other)


class Arm(Counter):
    """A Counter of 20 steps with one arm, whose reach and first position belong to the class."""

    reach, start, drawn = 2.0, 0, False

    def __init__(self):
        super().__init__([["20u"]])
        reach = np.random.uniform(1.0, 2.0) if self.drawn else self.reach
        self.observation_space = spaces.Dict({"arm": self.observation_space, "place": spaces.Discrete(3, start=self.start)})
        self.action_space = spaces.Box(-reach, reach, (2,))

    def _observe(self, action):
        return {"arm": super()._observe(action), "place": self.start}


def test_a_run_refuses_an_environment_whose_spaces_have_changed_under_its_name(tmp_path, monkeypatch):
    """The agent acts in [-1, 1], and places count from the lowest: all would go on with another meaning."""
    given = {**SMALL, "root_dir": tmp_path / "run", "num_env_steps": 60, "initial_collect_steps": 30,
             "evaluation_interval": 20, "checkpoint_interval": 40}  # fmt: skip
    del given["max_episode_steps"]
    taac.train(Arm, "sac", **given)
    for name, value, where in (("reach", 1.0, "action_space"), ("start", 1, "observation_space/place")):
        with monkeypatch.context() as changed:
            changed.setattr(Arm, name, value)
            for use in (
                lambda: taac.load(tmp_path / "run"),
                lambda: taac.load(tmp_path / "run", best=True),
                lambda: taac.train(Arm, "sac", **{**given, "num_env_steps": 80}, extend=True),
            ):
                with pytest.raises(TaacError, match=rf"environment '{__name__}:Arm' has {where} = .* was .* in training"):
                    use()
    assert taac.train(Arm, "sac", **{**given, "num_env_steps": 80}, extend=True).about["status"] == "finished"


def test_an_environment_that_draws_its_spaces_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Arm, "drawn", True)
    with pytest.raises(TaacError, match=r"Arm \(evaluation\)' has action_space = .* in training"):
        taac.train(Arm, "sac", root_dir=tmp_path / "run", num_env_steps=400, initial_collect_steps=300, evaluation_envs=1)


def test_an_id_that_an_imported_module_has_registered_is_known_to_this_program_only(tmp_path, capsys):
    name = env_id("Counter").partition(":")[2]
    advice = f"'{name}' is known to this program only.*give the module, too, such as 'tests.environments.toys:{name}'"
    assert re.search(advice, environments.unknown_elsewhere(name))
    gymnasium.register("taac-test/Here-v0", Counter)
    why = environments.unknown_elsewhere("taac-test/Here-v0")
    assert why.endswith("put that into a module and give 'module:taac-test/Here-v0'")
    gymnasium.register("taac-test/Here-v1", "__main__:Counter")
    assert environments.unknown_elsewhere("taac-test/Here-v1").endswith("give 'module:taac-test/Here-v1'")
    assert environments.unknown_elsewhere(name, {"tests.environments"}) is None  # by a gin file, in every process
    for known in (None, "Pendulum-v1", "Hopper-v5", env_id("Counter"), "python/Counter", "Missing-v0"):
        assert environments.unknown_elsewhere(known) is None
    with pytest.raises(TaacError, match=f"each run of a comparison has a process of its own: the environment {advice}"):
        taac.compare("sac", name, root_dir=tmp_path / "compared", num_env_steps=100)
    assert not (tmp_path / "compared").exists()
    with pytest.raises(TaacError, match="learning_rate"):
        taac.train(name, "sac", root_dir=tmp_path / "trained", settings={"learning_rate": -1.0})
    assert re.search(advice, capsys.readouterr().err)
    (tmp_path / "own.gin").write_text("import tests.environments.toys\n")
    for make in (taac.compare, taac.train):
        arguments = ("sac", name) if make is taac.compare else (name, "sac")
        with pytest.raises(TaacError, match="learning_rate"):
            make(*arguments, root_dir=tmp_path / "own", gin_files=[tmp_path / "own.gin"], settings={"learning_rate": -1.0})
    assert "known to this program only" not in capsys.readouterr().err


def test_what_only_this_program_can_make_gets_a_name_of_its_own():
    class Inner(Counter):
        pass

    found = [named(e) for e in (Inner, lambda: Counter(), Counter(), gymnasium.wrappers.ClipAction(make_pendulum()))]
    assert [f.name for f in found] == ["python/Inner", "python/lambda", "python/Counter", "python/PendulumEnv"]
    with pytest.raises(TaacError, match=r"'python/Inner' was given by a Python program.*taac.train\(environment"):
        single.find_spec("python/Inner")
    with single.given(found[0].name, found[0].make):
        made = single.make_single(single.find_spec("python/Inner"), {}, (), None)
        assert isinstance(made.unwrapped, Inner)
        with single.given(found[0].name, found[0].make):
            pass
        assert single.find_spec("python/Inner").id == "python/Inner"
    with pytest.raises(TaacError):
        single.find_spec("python/Inner")


def test_an_object_is_copied_and_never_stepped():
    given = gymnasium.wrappers.TimeLimit(Counter((("3t",),)), 2)
    place = named(given)
    with single.given(place.name, place.make):
        first, second = (single.make_single(single.find_spec(place.name), {}, (), None) for _ in range(2))
    first.reset(seed=0)
    _, reward, _, truncated, _ = first.step(np.zeros(2, np.float32))
    assert not truncated and first.step(np.zeros(2, np.float32))[3]  # with its own wrapper
    second.reset(seed=0)
    assert second.step(np.zeros(2, np.float32))[1] == reward == 1.0
    assert given.unwrapped._episode == -1  # as it was
    with pytest.raises(TaacError, match=r"cannot be copied.*Give a function"):
        named(Uncopied())


def test_arguments_reach_a_function_that_takes_them():
    def fixed():
        return Counter(render_mode="rgb_array")

    def free(render_mode=None):
        return Counter(render_mode=render_mode)

    def without():
        return Counter()

    makers = {f: environments._maker(f) for f in (fixed, free, without)}
    assert makers[free](render_mode="rgb_array").render_mode == "rgb_array"
    assert makers[fixed](render_mode="rgb_array").render_mode == "rgb_array"
    with pytest.raises(TaacError, match="takes no argument render_mode='rgb_array'"):
        makers[without](render_mode="rgb_array")
    with pytest.raises(TaacError, match="takes no argument size=3"):
        makers[free](size=3)


def test_a_run_of_an_object_is_trained_resumed_and_played_by_giving_it_again(tmp_path, capsys):
    class Easy(Counter):
        pass

    settings = {**SMALL, "num_env_steps": 302, "max_episode_steps": None}
    run = taac.train(Easy, "sac", root_dir=tmp_path / "run", **settings)
    assert "create_environment.env_name = 'python/Easy'" in run.config and run.about["environment"] == "python/Easy"
    assert run.evaluate(2).returns.tolist() == [6.0, 36.0]  # 1 + 2 + 3, and 10 more a step in the second episode
    assert run.agent.action_space.shape == (2,)
    with pytest.raises(TaacError, match=r"load\(root_dir, environment=environment\)"):
        taac.load(tmp_path / "run")
    assert taac.load(tmp_path / "run", environment=Easy).env_steps == 302
    assert taac.Run(tmp_path / "run", environment=Easy).evaluate(1).return_mean == 6.0
    capsys.readouterr()
    assert taac.train(Easy, "sac", root_dir=tmp_path / "run", **settings).status == "finished"
    assert "if python/Easy, of which only the name is kept, is the same environment" in capsys.readouterr().err
