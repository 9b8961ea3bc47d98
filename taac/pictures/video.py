"""Watchers that record the frames of an episode: a video file, a GIF for TensorBoard, a list of steps."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError
from taac.pictures.overlay import Overlay, enlarge
from taac.pictures.steps import EpisodeStep, Recorder


class VideoFile:
    """A watcher that writes each frame to a new .gif or .mp4 file, with or without an overlay.

    Raises:
        TaacError: a frame has another size than the first. Then there is no file.
    """

    def __init__(self, path: Path, fps: float, overlay: bool = True):
        import imageio

        self._path, self._draw = path, Overlay() if overlay else None
        self._size: tuple[int, ...] | None = None  # height and width of what the environment renders
        options = {"duration": 1000 / fps, "loop": 0} if path.suffix == ".gif" else {"fps": fps, "macro_block_size": 2}
        self._writer = imageio.get_writer(path, **options)

    def __call__(self, step: EpisodeStep) -> None:
        frame = step.frame if self._draw is None else self._draw(step)
        if step.frame is None or frame is None:
            return
        size = step.frame.shape[:2]
        self._size = self._size or size
        if size != self._size:
            self.close()
            self._path.unlink(missing_ok=True)
            raise TaacError(
                f"{self._path}: the environment's frames change their size, from {_pixels(self._size)} to {_pixels(size)} at "
                f"step {step.number} of an episode, and a video has one size: make render() return frames of one size"
            )
        self._writer.append_data(frame)

    def close(self) -> None:
        self._writer.close()


def _pixels(size: tuple[int, ...]) -> str:
    return f"{size[1]} x {size[0]} pixels"


class EpisodeVideo:
    """Records the first episode of an evaluation as a small GIF with an overlay.

    It stores at most `MOST` frames, at most `SIDE` pixels high and wide without the overlay. For a long episode it stores
    every second, fourth... frame and displays each for correspondingly longer.

    Args:
        environment: as in `Recorder`.
    """

    MOST, SIDE = 200, 240

    def __init__(self, environment: VectorEnvironment):
        self._environment, self._overlay = environment, Overlay()
        self._every, self._frames = 1, list[np.ndarray]()
        self.on_step = Recorder(environment, [self._watch], film_every=1)

    def _watch(self, step: EpisodeStep) -> None:
        small = None if step.frame is None else shrink(step.frame, self.SIDE)
        drawn = self._overlay(step._replace(frame=small))
        if drawn is None:
            return
        self._frames.append(drawn)
        if len(self._frames) == self.MOST:
            self._frames, self._every = self._frames[::2], 2 * self._every
            self._environment.film(self._every)

    def gif(self) -> tuple[bytes, tuple[int, int]]:
        """Returns the GIF's content, and its height and width."""
        from PIL import Image

        first, *rest = (Image.fromarray(frame) for frame in self._frames)
        file = io.BytesIO()
        duration = max(20, round(1000 * self._every / self._environment.render_fps))  # ms; viewers slow down below 20
        first.save(file, format="GIF", save_all=True, append_images=rest, duration=duration, loop=0)
        return file.getvalue(), (first.height, first.width)


class Film:
    """A watcher that stores the steps of the first episode, with frames scaled to at most `side` pixels high and wide."""

    def __init__(self, side: int = 120):
        self._side, self._episodes, self.steps = side, 0, list[EpisodeStep]()

    def __call__(self, step: EpisodeStep) -> None:
        self._episodes += step.number == 1
        if self._episodes == 1:
            frame = None if step.frame is None else shrink(step.frame, self._side)
            self.steps.append(step._replace(frame=frame))


def shrink(frame: np.ndarray, side: int) -> np.ndarray:
    """Scales the frame `[H, W, 3]` so that no side is longer than `side`. A small frame is enlarged by an integer factor."""
    from PIL import Image

    height, width = frame.shape[:2]
    if max(height, width) <= side:
        return enlarge(frame, side // max(height, width))
    scale = side / max(height, width)
    image = Image.fromarray(frame).resize((max(1, round(width * scale)), max(1, round(height * scale))))
    return np.asarray(image)
