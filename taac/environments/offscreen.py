"""Rendering on machines without a screen."""

from __future__ import annotations

import os
import subprocess
import sys

from gymnasium.envs.registration import EnvSpec

from taac.errors import TaacError

_BACKENDS = ("egl", "osmesa")  # of MuJoCo, in the order in which they are tried
_MUJOCO = ("mujoco", "gymnasium_robotics", "dm_control")  # in the entry points of environments that it draws
INSTALL = (
    "without a screen, MuJoCo draws with EGL or OSMesa; on Debian or Ubuntu: apt-get install libegl1 libgl1, "
    "or: apt-get install libosmesa6"
)
_TRIAL = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco/>")
with mujoco.Renderer(model, 8, 8) as renderer:
    renderer.update_scene(mujoco.MjData(model))
    assert renderer.render().shape == (8, 8, 3)
"""


def prepare(spec: EnvSpec) -> None:
    """Makes rendering an environment to arrays work without a screen, where there is none.

    pygame gets a driver without a window. For MuJoCo, the first of EGL and OSMesa that draws in a process of its own is
    chosen. Both are environment variables, `SDL_VIDEODRIVER` and `MUJOCO_GL`, which those libraries read when they are
    imported or draw first; where one is set already, it stays.

    Raises:
        TaacError: the environment is one of MuJoCo's, and neither draws, or not the one that is set.
    """
    if not headless():
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if not any(name in str(spec.entry_point).lower() for name in _MUJOCO):
        return
    failures, chosen = {}, os.environ.get("MUJOCO_GL")
    for backend in (chosen,) if chosen else _BACKENDS:
        failures[backend] = try_mujoco(backend)
        if not failures[backend]:
            os.environ["MUJOCO_GL"] = backend
            return
    raise TaacError(
        f"environment '{spec.id}' cannot be drawn: {INSTALL}. {'MUJOCO_GL is set. ' if chosen else ''}What "
        "went wrong: " + "; ".join(f"{backend}: {failure}" for backend, failure in failures.items())
    )


def headless() -> bool:
    """Whether this is a Linux machine without a screen; other systems need none to draw."""
    return sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def try_mujoco(backend: str) -> str:
    """Draws an empty scene with MuJoCo in a new process; gives the last line of what went wrong, or ''."""
    environment = {k: v for k, v in os.environ.items() if k != "PYOPENGL_PLATFORM"} | {"MUJOCO_GL": backend}
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRIAL], env=environment, capture_output=True, text=True, timeout=60
        )
    except subprocess.TimeoutExpired:
        return "no answer within 60 s"
    if tried.returncode == 0:
        return ""
    return (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]
