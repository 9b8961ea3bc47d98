"""Watchers that record the frames of an episode: a video file, a GIF for TensorBoard, a list of steps. Draws on frames."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac import nest
from taac.data_structures import AlgStep, StepType, TimeStep
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError

ACT, REPEAT = (232, 119, 34), (62, 122, 178)  # orange, blue
_BACKGROUND, _TEXT = (24, 26, 30), (240, 240, 240)
NARROWEST = 240  # pixels; a narrower frame is enlarged by an integer factor before it is drawn on
_TAPE = 60  # number of recent steps drawn


class EpisodeStep(NamedTuple):
    """One environment step of an episode. P is 1, or A if each dimension decides separately."""

    number: int  # environment steps so far in the episode, including this one
    action: np.ndarray  # [A], all parts of the action in one vector; boxes in [-1, 1], choices from 0
    decided: np.ndarray  # [P] bool, whether a new action was chosen here
    run: np.ndarray  # [P] int, number of steps that the current action has run, including this one
    switch_probability: np.ndarray | None  # [P]; None if the method has none, or for repeats inside the environment
    reward: float  # of this step, undiscounted; the sum of a vector reward's parts
    ret: float  # sum of the rewards so far
    frame: np.ndarray | None  # [H, W, 3] uint8, rendered after the step; None if not filmed


class Recorder:
    """Follows the first environment of an evaluation (`evaluate`'s `on_step`) through its first episodes.

    Args:
        environment: created with `recorded=True`, and with `render_mode='rgb_array'` for filming.
        watchers: called with every step in order. An episode begins where `number` is 1.
        film_every: see `VectorEnvironment.film`. Filming stops after the last of these episodes.
    """

    def __init__(
        self,
        environment: VectorEnvironment,
        watchers: Sequence[Callable[[EpisodeStep], None]],
        num_episodes: int = 1,
        film_every: int = 0,
    ):
        self._environment, self._watchers, self._left = environment, watchers, num_episodes
        environment.film(film_every)

    def __call__(self, time_step: TimeStep, alg_step: AlgStep) -> None:
        """Records the steps that `alg_step` led to. `time_step` is the frame before the action. Call it after each step."""
        if not self._left:
            return
        steps = self._environment.pop_steps()
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
        probability = None if isinstance(beta, tuple) else beta[0].cpu().numpy().reshape(-1)
        for step in steps:  # several if the environment repeats the action
            self._number, self._return = self._number + 1, self._return + step.reward
            self._run = np.where(decided, 1, self._run + 1)
            shown = EpisodeStep(self._number, action, decided, self._run, probability, step.reward, self._return, step.frame)
            for watcher in self._watchers:
                watcher(shown)
            decided, probability = np.zeros_like(decided), None


class Overlay:
    """Adds a band below each frame of an episode, without hiding any part of the frame.

    The band shows whether the agent acts or repeats, for how many steps the current action has run, beta_1, the step and the
    return. If P dimensions decide separately, it shows how many act and the longest run. A tape below shows the last steps,
    a column each, with a row for each dimension that decides separately; orange marks a newly chosen action.
    """

    def __init__(self) -> None:
        self._past: deque[np.ndarray] = deque(maxlen=_TAPE)

    def __call__(self, step: EpisodeStep) -> np.ndarray | None:
        """Returns the frame with its band, `[H', W', 3]` uint8, or None if the step was not filmed. Call it at every step."""
        if step.number == 1:
            self._past.clear()
        self._past.append(step.decided)
        if step.frame is None:
            return None
        frame = enlarge(step.frame, -(-NARROWEST // step.frame.shape[1]))
        return np.concatenate([frame, _band(step, list(self._past), frame.shape[1])])


def enlarge(frame: np.ndarray, times: int) -> np.ndarray:
    """Returns the frame `[H, W, 3]` with every pixel repeated as a square of `times` x `times`."""
    return frame if times <= 1 else frame.repeat(times, 0).repeat(times, 1)


def shrink(frame: np.ndarray, side: int) -> np.ndarray:
    """Scales the frame `[H, W, 3]` so that no side is longer than `side`. A small frame is enlarged by an integer factor."""
    from PIL import Image

    height, width = frame.shape[:2]
    if max(height, width) <= side:
        return enlarge(frame, side // max(height, width))
    scale = side / max(height, width)
    image = Image.fromarray(frame).resize((max(1, round(width * scale)), max(1, round(height * scale))))
    return np.asarray(image)


def band_texts(step: EpisodeStep) -> tuple[str, str, str, str]:
    """Returns the texts of the band: act or repeat, for how long, beta, and step and return."""
    acting, parts = int(step.decided.sum()), len(step.decided)
    doing = "REPEAT" if not acting else "ACT" if parts == 1 else f"ACT {acting}/{parts}"
    beta = "" if step.switch_probability is None else f"beta {step.switch_probability.mean():.2f}"
    ran = int(step.run.max())
    return doing, f"{ran} step{'s' * (ran > 1)}", beta, f"step {step.number}   return {step.ret:.1f}"


def _band(step: EpisodeStep, past: list[np.ndarray], width: int) -> np.ndarray:
    """Returns the band `[h, width, 3]`. Its height depends only on the width and the number of parts."""
    from PIL import Image, ImageDraw, ImageFont

    size = max(12, min(28, width // 20))
    font, margin = ImageFont.load_default(size), size // 2
    line, row = round(1.5 * size), max(3, min(size // 2, 6 * size // len(step.decided)))
    height = 2 * margin + 2 * line + row * len(step.decided)
    image = Image.new("RGB", (width, height + height % 2), _BACKGROUND)
    draw = ImageDraw.Draw(image)
    doing, ran, beta, where = band_texts(step)
    chip = draw.textlength("REPEAT" if len(step.decided) == 1 else "ACT 88/88", font) + size
    color, middle = ACT if step.decided.any() else REPEAT, margin // 2 + line // 2
    draw.rounded_rectangle((margin, margin // 2, margin + chip, margin // 2 + line), size // 3, fill=color)
    draw.text((margin + chip / 2, middle), doing, _TEXT, font, anchor="mm")
    draw.text((2 * margin + chip, middle), ran, _TEXT, font, anchor="lm")
    draw.text((width - margin, middle), beta, _TEXT, font, anchor="rm")
    draw.text((margin, margin + line + line // 2), where, _TEXT, font, anchor="lm")
    _tape(draw, past, (margin, margin + 2 * line), (width - 2 * margin) / _TAPE, row)
    return np.asarray(image)


def _tape(draw: Any, past: list[np.ndarray], corner: tuple[int, int], column: float, row: int) -> None:
    """Draws the last steps, the newest on the right."""
    for i, decided in enumerate(past, _TAPE - len(past)):
        for j, acts in enumerate(decided.tolist()):
            left, top = corner[0] + i * column, corner[1] + j * row
            gap = 1 if acts and column >= 3 else 0  # separates a decision from the step before
            draw.rectangle((left + gap, top, left + column - 1, top + row - 2), fill=ACT if acts else REPEAT)


class VideoFile:
    """A watcher that writes each frame to a new .gif or .mp4 file, with or without an overlay.

    Raises TaacError if a frame has another size than the first. Then there is no file.
    """

    def __init__(self, path: Path, fps: float, overlay: bool = True):
        import imageio

        self._path, self._draw = path, Overlay() if overlay else None
        self._size: tuple[int, ...] | None = None  # height and width of what the environment renders
        options = {"duration": max(20, 1000 / fps), "loop": 0} if path.suffix == ".gif" else {"fps": fps, "macro_block_size": 2}
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
            (high, wide), (before_high, before_wide) = size, self._size
            raise TaacError(
                f"{self._path}: the environment's frames change their size, from {before_wide} x {before_high} pixels to "
                f"{wide} x {high} pixels at step {step.number} of an episode: make render() return frames of one size"
            )
        self._writer.append_data(frame)

    def close(self) -> None:
        self._writer.close()


class EpisodeVideo:
    """Records the first episode of an evaluation as a small GIF with an overlay.

    It stores at most `MOST` frames, shrunk to at most `SIDE` pixels high and wide; below the overlay narrow ones are enlarged
    again. Of a long episode it stores every second, fourth... frame and displays each for correspondingly longer.
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
