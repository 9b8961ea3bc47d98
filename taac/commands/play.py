"""`taac play`: loads a run and plays greedy episodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags as absl_flags

from taac.commands import flags
from taac.errors import TaacError

if TYPE_CHECKING:
    from taac.data_structures import AlgStep, TimeStep
    from taac.environments.vector_environment import VectorEnvironment


def define_flags() -> None:
    flags.define_root_dir("The folder of the run.")
    absl_flags.DEFINE_integer("num_episodes", 10, "Episodes to play.", lower_bound=1)
    absl_flags.DEFINE_integer("seed", 0, "Seed of the environment.", lower_bound=0)
    absl_flags.DEFINE_float(
        "epsilon_greedy", 0.0, "Probability with which each choice is sampled.", lower_bound=0.0, upper_bound=1.0
    )
    absl_flags.DEFINE_string("record_file", None, "A new .gif or .mp4 file for a video.")
    absl_flags.DEFINE_integer("record_episodes", 1, "Episodes in the video.", lower_bound=1)


def run() -> None:
    given = flags.FLAGS
    record_file = _check_record_file(given.record_file)

    from taac.environments.vector_environment import create_environment
    from taac.training import checkpoint, config, experiment
    from taac.training.evaluation import evaluate
    from taac.training.metrics import summarize
    from taac.training.run_folder import RunFolder

    folder = RunFolder(flags.root_dir())
    if not folder.config.exists():
        raise TaacError(
            f"{folder.path} holds no run: there is no {folder.config.name}; give --root_dir of `taac train`"
        )
    state = checkpoint.load(folder.checkpoint, lazily=True)
    config.load([str(folder.config.resolve())])
    render = {"render_mode": "rgb_array"} if record_file else {}
    environment = config.build(lambda: create_environment(num_envs=1, asynchronous=False, **render))
    try:
        agent = config.build(lambda: experiment.create_agent(environment, experiment.choose_device("cpu")))
        checkpoint.load_into(agent, state["agent"], folder.checkpoint)
        video = Video(record_file, environment, given.record_episodes) if record_file else None
        try:
            episodes = evaluate(agent, environment, given.num_episodes, given.seed, given.epsilon_greedy, video)
        finally:
            if video:
                video.close()
    finally:
        environment.close()
    for number, episode in enumerate(episodes, 1):
        total = float(episode.ret.sum())
        print(
            f"episode {number}: return {total:.2f}, length {episode.length}, repeated {episode.repeated / episode.length:.0%}"
        )
    summary = summarize(episodes)
    print(
        f"{summary.episodes} episodes of {environment.name}: return {summary.return_mean:.2f} +- {summary.return_std:.2f}, "
        f"length {summary.length:.1f}, fraction repeated {summary.fraction_repeated:.3f}"
    )
    if record_file:
        print(record_file)


def _check_record_file(name: str | None) -> Path | None:
    if name is None:
        return None
    path = Path(name)
    if path.suffix not in (".gif", ".mp4"):
        raise TaacError(f"--record_file must end in .gif or .mp4, got '{name}'")
    if path.exists():
        raise TaacError(f"--record_file {name} exists; give a new name")
    if not path.parent.is_dir():
        raise TaacError(f"--record_file {name}: there is no folder {path.parent}")
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        # Without a screen, draw off screen; both must be set before the simulators are imported.
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    return path


class Video:
    """Writes what the first episodes look like, a frame a step."""

    def __init__(self, path: Path, environment: VectorEnvironment, num_episodes: int):
        import imageio

        self._environment, self._left = environment, num_episodes
        fps = environment.render_fps
        options = {"duration": 1000 / fps, "loop": 0} if path.suffix == ".gif" else {"fps": fps, "macro_block_size": 2}
        self._writer = imageio.get_writer(path, **options)

    def __call__(self, time_step: TimeStep, alg_step: AlgStep) -> None:
        # Called after the environment has moved on, so the frame shows where the step led; a reset shows the start.
        if self._left and bool(time_step.is_last()[0]):
            self._left -= 1
        if self._left:
            frames = self._environment.render()
            if not frames or frames[0] is None:
                raise TaacError(f"environment '{self._environment.name}' cannot render 'rgb_array' frames: no video")
            self._writer.append_data(frames[0])

    def close(self) -> None:
        self._writer.close()
