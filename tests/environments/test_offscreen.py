"""Rendering without a screen: which backend is chosen, when nothing is, and what is said when none draws."""

from __future__ import annotations

import os

import gymnasium
import numpy as np
import pytest
import torch

from taac.environments import offscreen
from taac.environments.create import create_environment
from taac.errors import TaacError

CHEETAH, PENDULUM = (gymnasium.spec(name) for name in ("HalfCheetah-v5", "Pendulum-v1"))


@pytest.fixture
def variables(monkeypatch):
    """Environment variables of a Linux machine without a screen, undone afterwards."""
    monkeypatch.setattr(offscreen.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "SDL_VIDEODRIVER"):
        monkeypatch.setenv(name, "")  # so that it is restored, whatever the test does
        monkeypatch.delenv(name)
    return os.environ


def trying(monkeypatch, *working):
    tried = []

    def try_mujoco(backend):
        tried.append(backend)
        return "" if backend in working else f"no {backend} here"

    monkeypatch.setattr(offscreen, "try_mujoco", try_mujoco)
    return tried


@pytest.mark.parametrize(
    "spec, working, screen, tried, gl, sdl",
    [
        (CHEETAH, ("egl", "osmesa"), None, ["egl"], "egl", "dummy"),
        (CHEETAH, ("osmesa",), None, ["egl", "osmesa"], "osmesa", "dummy"),
        (PENDULUM, ("egl",), None, [], None, "dummy"),
        (CHEETAH, ("egl",), "DISPLAY", [], None, None),
        (CHEETAH, ("egl",), "WAYLAND_DISPLAY", [], None, None),
    ],
)
def test_the_first_backend_that_draws_is_chosen_where_there_is_no_screen(
    monkeypatch, variables, spec, working, screen, tried, gl, sdl
):
    found = trying(monkeypatch, *working)
    if screen is not None:
        variables[screen] = ":0"
    offscreen.prepare(spec)
    assert (found, variables.get("MUJOCO_GL"), variables.get("SDL_VIDEODRIVER")) == (tried, gl, sdl)


def test_neither_draws(monkeypatch, variables):
    trying(monkeypatch)
    with pytest.raises(TaacError, match=r"HalfCheetah-v5.*libegl1.*libosmesa6.*egl: no egl here; osmesa: no osmesa"):
        offscreen.prepare(CHEETAH)
    assert "MUJOCO_GL" not in variables


def test_variables_that_are_set_are_kept(monkeypatch, variables):
    tried = trying(monkeypatch, "egl", "osmesa")
    variables["MUJOCO_GL"], variables["SDL_VIDEODRIVER"] = "osmesa", "x11"
    offscreen.prepare(CHEETAH)
    assert (variables["MUJOCO_GL"], variables["SDL_VIDEODRIVER"], tried) == ("osmesa", "x11", ["osmesa"])
    variables["MUJOCO_GL"] = "glx"
    with pytest.raises(TaacError, match=r"MUJOCO_GL is set.*glx: no glx here"):
        offscreen.prepare(CHEETAH)


def test_an_environment_to_be_drawn_is_prepared_for_it_and_others_are_not(monkeypatch):
    prepared = []
    monkeypatch.setattr("taac.environments.create.offscreen.prepare", lambda spec: prepared.append(spec.id))
    create_environment("Pendulum-v1").close()
    create_environment("Pendulum-v1", render_mode="rgb_array").close()
    assert prepared == ["Pendulum-v1"]


def test_a_backend_that_does_not_exist_fails_with_a_reason():
    assert "nonsense" in offscreen.try_mujoco("nonsense")


def test_the_trial_imports_nothing_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "mujoco.py").write_text("raise SystemExit('a stranger ran this')")
    monkeypatch.chdir(tmp_path)
    assert "stranger" not in offscreen.try_mujoco("nonsense")


@pytest.mark.parametrize("name", ["Pendulum-v1", "MountainCarContinuous-v0", "LunarLanderContinuous-v3"])
def test_pygame_draws(variables, name):
    frame = first_frame(name)
    assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.std() > 0


def test_mujoco_draws(variables):
    """With whatever this machine has; skipped only where the package says that it has nothing."""
    try:
        frame = first_frame("HalfCheetah-v5")
    except TaacError as error:
        if offscreen.INSTALL not in str(error):
            raise
        pytest.skip(str(error))
    assert frame.dtype == np.uint8 and frame.shape == (480, 480, 3) and frame.std() > 0


def first_frame(name):
    environment = create_environment(name, render_mode="rgb_array", recorded=True)
    try:
        environment.reset(0)
        environment.film(1)
        environment.step(torch.zeros(1, *environment.action_spec.shape))
        return environment.pop_steps()[0].frame
    finally:
        environment.close()
