"""Python values as the text of settings: what is kept, what becomes a reference, and what no file could repeat."""

from __future__ import annotations

import gin
import numpy as np
import pytest
import torch

from taac import configuration
from taac.api.environments import Named
from taac.api.session import in_python
from taac.api.settings import make_request, written
from taac.configuration import gin_state
from taac.environments.create import create_environment
from taac.environments.wrappers import SuccessEndsEpisode
from taac.errors import TaacError
from tests.environments.toys import Counter


@gin.configurable(module="tests.api")
def of_a_module():
    """Something of the user's own."""


@pytest.mark.parametrize(
    "value, text",
    [
        (1e-8, "1e-08"), (20_000, "20000"), (True, "True"), (None, "None"), ("auto", "'auto'"), ("1e-3", "'1e-3'"),
        ("SAC, 20 trials", "'SAC, 20 trials'"), ((128, 128), "(128, 128)"), ([64], "[64]"), ((), "()"), ([], "[]"),
        (b"\0a", r"b'\x00a'"),
        (np.float32(0.5), "0.5"), (np.int64(3), "3"), (np.array([1, 2]), "[1, 2]"), (range(2), "(0, 1)"),
        ({"a": (2, None)}, "{'a': (2, None)}"),
        (np.str_("auto"), "'auto'"), (np.array("auto"), "'auto'"), (np.array(["a", "b"])[0], "'a'"), (np.bool_(True), "True"),
        (np.array(0.5), "0.5"), (torch.tensor(0.5), "0.5"), (torch.tensor([1, 2]), "[1, 2]"), ([torch.tensor(3)], "[3]"),
        ("@LinearTrajectory()", "@LinearTrajectory()"), (("@ICM", "@RND"), "(@ICM, @RND)"), ("%gamma", "%gamma"),
        (torch.nn.ELU, "@torch.nn.ELU"), ((SuccessEndsEpisode,), "(@taac.environments.wrappers.SuccessEndsEpisode,)"),
    ],
)  # fmt: skip
def test_values(value, text):
    assert written({"x": value}) == ((f"x={text}",), ())


def test_what_a_module_defines_is_imported():
    assert written({"x": of_a_module}) == (("x=@tests.api.of_a_module",), (f"import {__name__}",))


@pytest.mark.parametrize("text", ["@of_a_module", "@tests.api.of_a_module()", "@some/scope/of_a_module()"])
def test_what_text_refers_to_is_imported_too(text):
    assert written({"x": {"a": (text,)}}) == ((f"x={{'a': ({text},)}}",), (f"import {__name__}",))


def test_text_that_refers_to_nothing_known_is_left_to_the_reader_of_gin_files():
    assert written({"x": ("@NoSuchClass()", "@", "@/")}) == (("x=(@NoSuchClass(), @, @/)",), ())


def test_a_value_means_in_a_run_what_it_is():
    """Through gin and back: numbers, text that looks like numbers, references."""
    found = make_request(
        Named(np.str_("Pendulum-v1"), {"ReplayBuffer.length": 5}), np.str_("taac"), torch.tensor(2e4), torch.tensor(7), (),
        {"TaacAlgorithm.trajectory": "@QuadraticTrajectory()", "create_experiment.tuning": "1e3", "ReplayBuffer.length": 1e3},
        {"learning_rate": np.float64(2e-3), "hidden_layers": [8, 8]},
    ).load()  # fmt: skip
    assert found.bound("Intervals.num_env_steps") == 20_000 and found.macros["learning_rate"] == 2e-3
    assert found.bound("create_experiment.tuning") == "1e3" and found.bound("ReplayBuffer.length") == 1000
    assert found.bound("create_experiment.seed") == 7 and found.macros["hidden_layers"] == [8, 8]
    assert configuration.Config is type(found)


class Told(Counter):
    """Keeps what it was made with."""

    told: dict = {}  # noqa: RUF012, of all

    def __init__(self, **arguments):
        super().__init__()
        Told.told = arguments


def test_arguments_of_an_environment_arrive_as_they_were_given(tmp_path):
    """Also from the configuration of the run, where long values take several lines."""
    given = {"goals": [1, (2, [3])], "map": ["SFF", "FHG"], "model": bytes(range(100)), "none": [], "options": {"a": [None]}}
    make_request(Named(f"{__name__}:Told", {}), "sac", None, None, (), {"env_kwargs": given}, {}).load()
    configuration.build(create_environment).close()
    assert repr(Told.told) == repr(given)
    (tmp_path / "config.gin").write_text(configuration.operative_config())
    Told.told = {}
    configuration.load([str(tmp_path / "config.gin")])
    configuration.build(create_environment).close()
    assert repr(Told.told) == repr(given)


@pytest.mark.parametrize(
    "value, message",
    [
        (object(), r"x = <object.*cannot be kept in config.gin.*'@ItsClass\(\)'"),
        (float("inf"), "x = inf cannot be kept"),
        (lambda trainer: None, "@gin.configurable in a module of your own; callbacks are on_iteration=, on_evaluation= and on"),
        ({"a": object()}, "x = <object"), ({64, 32}, "cannot be kept in config.gin"),
    ],
)
def test_what_no_file_could_repeat_is_refused(value, message):
    with pytest.raises(TaacError, match=message):
        written({"x": value})


def test_what_a_notebook_defines_is_refused():
    gin_state.clear()  # which unlocks gin
    namespace = {"__name__": "__main__"}
    exec("import gin\n@gin.configurable(module='notebook')\ndef of_a_notebook(): pass", namespace)
    for value in (namespace["of_a_notebook"], "@of_a_notebook", "@notebook.of_a_notebook()"):
        with pytest.raises(TaacError, match="put it in a module of its own"):
            written({"x": value})


@pytest.mark.parametrize(
    "command, python",
    [
        ("--set gamma=2: wrong", "gamma=2: wrong"),
        ("--set: gamma = 'x' has", "settings: gamma = 'x' has"),
        ("give --task, or a --gin_file of gin/tasks", "give environment, or a gin_files of gin/tasks"),
        ("leave out --best to use", "leave out best=True to use"),
        ("--root_dir runs/a is a file", "root_dir runs/a is a file"),
        ("a - b -- c ---d x--y", "a - b -- c ---d x--y"),
        ("inspect it: taac check --batch r/d.json", "inspect it: taac check --batch r/d.json"),
        ("--task A,B: use `taac compare --tasks A,B`, --task", "environment A,B: use `taac compare --tasks A,B`, environment"),
        ("taac play --record_file x.gif --best; --best", "taac play --record_file x.gif --best; best=True"),
    ],
)
def test_messages_name_arguments(command, python):
    assert in_python(command) == python
