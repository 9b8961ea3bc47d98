"""Rendering on machines without a screen."""

from __future__ import annotations

import os
import subprocess
import sys

from gymnasium.envs.registration import EnvSpec

from taac.errors import TaacError

_BACKENDS = ("egl", "osmesa")  # MuJoCo's, in the order in which they are tried
_MUJOCO = ("mujoco", "gymnasium_robotics", "dm_control")  # parts of the entry points of environments that MuJoCo renders
INSTALL = (
    "without a screen, MuJoCo renders with EGL or OSMesa; on Debian or Ubuntu: apt-get install libegl1 libgl1, "
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
    """Enables rendering to arrays on a machine without a screen.

    Sets the environment variables that libraries read when they are imported or first render, unless they are set:
    `SDL_VIDEODRIVER` for pygame, and for MuJoCo `MUJOCO_GL`, the first of EGL and OSMesa that renders in a trial process. Raises
    TaacError if the environment is one of MuJoCo's, and neither backend, or not the one that is set, can render.
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
        f"environment '{spec.id}' cannot be rendered: {INSTALL}. {'MUJOCO_GL is set. ' if chosen else ''}What "
        "went wrong: " + "; ".join(f"{backend}: {failure}" for backend, failure in failures.items())
    )


def headless() -> bool:
    """Returns whether this is a Linux machine without a screen. Other systems can render without one."""
    return sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def try_mujoco(backend: str) -> str:
    """Renders an empty scene with MuJoCo in a new process. Returns the last line of the error, or ''."""
    environment = {k: v for k, v in os.environ.items() if k != "PYOPENGL_PLATFORM"} | {"MUJOCO_GL": backend}
    command = [sys.executable, "-c", _TRIAL]
    elsewhere = os.path.dirname(__file__)  # python -c looks for modules in the working directory, which may be a stranger's
    try:
        trial = subprocess.run(command, env=environment, cwd=elsewhere, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return "no answer within 60 s"
    if trial.returncode == 0:
        return ""
    return (trial.stderr.strip().splitlines() or [f"exit code {trial.returncode}"])[-1]
