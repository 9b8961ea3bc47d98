"""Following an episode for people to look at: what was decided, for how long it has run, and a frame of each step."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taac import nest
from taac.data_structures import AlgStep, StepType, TimeStep
from taac.environments.vector_environment import VectorEnvironment
from taac.pictures.overlay import Overlay, enlarge


class Shown(NamedTuple):
    """One environment step of an episode. P is 1, or A where dimensions decide alone."""

    number: int  # environment steps so far in the episode, this one included
    action: np.ndarray  # [A], every part of it one after another; boxes in [-1, 1], choices from 0
    decided: np.ndarray  # [P] bool, whether a new action was chosen here
    run: np.ndarray  # [P] int, steps that the present action has run, this one included
    switch_probability: np.ndarray | None  # [P]; None: the method has none, or did not look here (repeats inside)
    reward: float  # of this step, undiscounted, the sum over a vector's parts
    ret: float  # sum of the rewards so far
    frame: np.ndarray | None  # [H, W, 3] uint8, where the step led; None: not filmed


class Recorder:
    """Follows the first environment of an evaluation (`evaluate`'s `on_step`) through its first episodes.

    Args:
        environment: made with `recorded=True`, and with `render_mode='rgb_array'` to be filmed.
        watchers: called with every step in order; an episode begins where `number` is 1.
        num_episodes: so many are followed.
        film_every: see `VectorEnvironment.film`; filming stops after the last of these episodes.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        watchers: Sequence[Callable[[Shown], None]],
        num_episodes: int = 1,
        film_every: int = 0,
    ):
        self._environment, self._watchers, self._left = environment, watchers, num_episodes
        environment.film(film_every)

    def __call__(self, time_step: TimeStep, alg_step: AlgStep) -> None:
        """Takes the frame that was acted at, after the environment has moved on."""
        if not self._left:
            return
        steps = self._environment.take_steps()
        if time_step.step_type[0] == StepType.LAST:  # the action was ignored: a new episode began
            self._left -= 1
            if not self._left:
                self._environment.film(0)
            return
        if time_step.step_type[0] == StepType.FIRST:
            self._number, self._return, self._run = 0, 0.0, np.zeros(1, dtype=np.int64)
        decided = alg_step.decided[0].cpu().numpy().reshape(-1)
        action = np.concatenate([leaf[0].cpu().numpy().reshape(-1) for leaf in nest.flatten(alg_step.output)])
        beta = alg_step.switch_probability
        looked = None if isinstance(beta, tuple) else beta[0].cpu().numpy().reshape(-1)
        for step in steps:  # several where the environment repeats the action
            self._number, self._return = self._number + 1, self._return + step.reward
            self._run = np.where(decided, 1, self._run + 1)
            shown = Shown(self._number, action, decided, self._run, looked, step.reward, self._return, step.frame)
            for watcher in self._watchers:
                watcher(shown)
            decided, looked = np.zeros_like(decided), None


class VideoFile:
    """A watcher that writes each frame to a new .gif or .mp4 file, with or without an overlay."""

    def __init__(self, path: Path, fps: float, overlay: bool = True):
        import imageio

        self._draw = Overlay() if overlay else None
        options = {"duration": 1000 / fps, "loop": 0} if path.suffix == ".gif" else {"fps": fps, "macro_block_size": 2}
        self._writer = imageio.get_writer(path, **options)

    def __call__(self, shown: Shown) -> None:
        frame = shown.frame if self._draw is None else self._draw(shown)
        if frame is not None:
            self._writer.append_data(frame)

    def close(self) -> None:
        self._writer.close()


class EpisodeVideo:
    """Records the first episode of an evaluation as a small GIF with an overlay.

    At most `MOST` frames are kept, at most `SIDE` pixels high and wide, overlay aside: of a long episode, every second,
    fourth... is, and each is shown for as much longer.

    Args:
        environment: as `Recorder`'s.
    """

    MOST, SIDE = 200, 240

    def __init__(self, environment: VectorEnvironment):
        self._environment, self._overlay = environment, Overlay()
        self._every, self._frames = 1, list[np.ndarray]()
        self.on_step = Recorder(environment, [self._watch], film_every=1)

    def _watch(self, shown: Shown) -> None:
        small = None if shown.frame is None else shrink(shown.frame, self.SIDE)
        drawn = self._overlay(shown._replace(frame=small))
        if drawn is None:
            return
        self._frames.append(drawn)
        if len(self._frames) == self.MOST:
            self._frames, self._every = self._frames[::2], 2 * self._every
            self._environment.film(self._every)

    def gif(self) -> tuple[bytes, tuple[int, int]]:
        """The file's content, and its height and width."""
        from PIL import Image

        first, *rest = (Image.fromarray(frame) for frame in self._frames)
        file = io.BytesIO()
        duration = max(20, round(1000 * self._every / self._environment.render_fps))  # ms; viewers slow down below 20
        first.save(file, format="GIF", save_all=True, append_images=rest, duration=duration, loop=0)
        return file.getvalue(), (first.height, first.width)


class Film:
    """A watcher that keeps the first episode: every step, with its frame shrunk to at most `side` pixels high and wide."""

    def __init__(self, side: int = 120):
        self._side, self._episodes, self.steps = side, 0, list[Shown]()

    def __call__(self, shown: Shown) -> None:
        self._episodes += shown.number == 1
        if self._episodes == 1:
            frame = None if shown.frame is None else shrink(shown.frame, self._side)
            self.steps.append(shown._replace(frame=frame))


def shrink(frame: np.ndarray, side: int) -> np.ndarray:
    """The frame `[H, W, 3]`, no side longer than `side`; a small one is enlarged a whole number of times."""
    from PIL import Image

    height, width = frame.shape[:2]
    if max(height, width) <= side:
        return enlarge(frame, side // max(height, width))
    scale = side / max(height, width)
    image = Image.fromarray(frame).resize((max(1, round(width * scale)), max(1, round(height * scale))))
    return np.asarray(image)
