"""Configurations of strangers: the environments and arguments that `taac play` builds without `--trust`."""

from __future__ import annotations

import os
import subprocess
import sys

import gymnasium
import pytest

from taac import configuration
from taac.environments.create import create_environment
from taac.errors import NotTrusted, TaacError
from taac.runs.provenance import ROOT
from tests.optional_packages import skip_without_package

BY_DICTIONARY = "{'config': {'other_vehicles_type': 'elsewhere.Vehicle'}}"


def load(tmp_path, *lines):
    path = tmp_path / "config.gin"
    path.write_text("\n".join(lines))
    return configuration.load_untrusted(configuration.ReadFile(path, path.read_text()))


@pytest.mark.parametrize(
    "name, kwargs",
    [
        ("'Pendulum-v1'", "{'g': 9.8}"),
        ("'FrozenLake-v1'", "{'desc': ['SF', 'FG'], 'is_slippery': False}"),
        ("%name", "{}"),
        ("'Pendulum-v1'", "None"),
    ],
)
def test_plain_environments_are_built(tmp_path, name, kwargs):
    load(
        tmp_path,
        "name = 'Pendulum-v1'",
        f"create_environment.env_name = {name}",
        f"create_environment.env_kwargs = {kwargs}",
    )
    configuration.build(create_environment).close()


@pytest.mark.parametrize("package", ["racetrack-v0", "FetchReach-v4"])
def test_packages_on_the_list_are_imported(tmp_path, package):
    skip_without_package(package)
    load(tmp_path, f"create_environment.env_name = '{package}'")


@pytest.mark.parametrize(
    "kwargs",
    [
        BY_DICTIONARY,
        "{'config': [{'other_vehicles_type': 'elsewhere.Vehicle'}]}",
        "{'config': %kwargs}",
        "%kwargs",
        "{'config': @create_environment}",
        "@create_environment()",
        "{'a': {@SacAlgorithm(): 1}}",
        "{'xml_file': '/tmp/pipe'}",
        "{'xml_file': '../../../../../../tmp/pipe'}",
        "{'xml_file': ['~/secret.xml']}",
        "{'xml_file': '.hidden'}",
    ],
)
@pytest.mark.parametrize("scope", ["", "evaluation/"])
def test_arguments_that_may_name_modules_are_refused(tmp_path, scope, kwargs):
    with pytest.raises(TaacError, match=r"env_kwargs.*expected numbers, words that|create_environment.* is not a network"):
        load(
            tmp_path,
            f"kwargs = {BY_DICTIONARY}",
            "create_environment.env_name = 'racetrack-v0'",
            f"{scope}create_environment.env_kwargs = {kwargs}",
        )


@pytest.mark.parametrize("entry_point", ["elsewhere:Environment", test_packages_on_the_list_are_imported])
@pytest.mark.parametrize("name", ["'evil:Pendulum-v1'", "%name", "@create_environment()", "'Elsewhere-v0'"])
def test_environments_of_other_packages_are_refused(tmp_path, monkeypatch, name, entry_point):
    spec = gymnasium.envs.registration.EnvSpec("Elsewhere-v0", entry_point=entry_point)
    monkeypatch.setitem(gymnasium.registry, "Elsewhere-v0", spec)
    with pytest.raises(NotTrusted, match=r"before the colon|not a network|another package than gymnasium, taac, .*highway_env"):
        load(tmp_path, "name = 'evil:Pendulum-v1'", f"create_environment.env_name = {name}")


@pytest.mark.parametrize("name", ["Hopper-v5", "FetchReach-v4"])
def test_simulators_start_nothing_that_lies_in_the_working_directory(tmp_path, name):
    """glfw, with which MuJoCo draws, starts a `python -c` that imports ctypes, and Python looks for it there first."""
    skip_without_package(name)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "ctypes.py").write_text("open('ran', 'w')")
    (tmp_path / "make.py").write_text(
        f"from taac.environments import single\nsingle.make_single(single.find_spec({name!r}), {{}}, (), None).close()"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "../make.py"], cwd=tmp_path / "folder", check=True, env=environment)
    assert not (tmp_path / "folder" / "ran").exists()


@pytest.mark.parametrize("kind", ["file", "pipe", "link", "folder"])
def test_a_word_that_names_what_lies_in_the_working_directory_is_refused(tmp_path, monkeypatch, kind):
    """AntMaze opens it, and waits for a pipe."""
    place = tmp_path / "here" / "agent"
    place.parent.mkdir()
    make = {"file": place.touch, "pipe": lambda: os.mkfifo(place), "link": lambda: place.symlink_to("/x"), "folder": place.mkdir}
    make[kind]()
    lines = ("create_environment.env_name = 'Ant-v5'", "create_environment.env_kwargs = {'xml_file': ['agent']}")
    load(tmp_path, *lines)
    monkeypatch.chdir(place.parent)
    with pytest.raises(NotTrusted, match="expected numbers, words that name nothing in the working directory"):
        load(tmp_path, *lines)
