"""Draws on frames whether the agent acts or repeats."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from taac.pictures.steps import EpisodeStep

ACT, REPEAT = (232, 119, 34), (62, 122, 178)  # orange, blue
_BACKGROUND, _TEXT = (24, 26, 30), (240, 240, 240)
NARROWEST = 240  # pixels; a narrower frame is enlarged by an integer factor before it is drawn on
_TAPE = 60  # number of recent steps drawn


class Overlay:
    """Adds a band below each frame of an episode, without hiding any part of the frame.

    The band shows whether the agent acts or repeats, for how many steps the current action has run, beta_1, the step and the
    return. If P dimensions decide separately, it shows how many act and the longest run. A tape below shows the last steps,
    one column each, with one row for each dimension that decides separately; orange marks a newly chosen action.
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
    """The frame `[H, W, 3]` with every pixel repeated as a square of `times` x `times`."""
    return frame if times <= 1 else frame.repeat(times, 0).repeat(times, 1)


def band_texts(step: EpisodeStep) -> tuple[str, str, str, str]:
    """The texts of the band: act or repeat, for how long, beta, and step and return."""
    acting, parts = int(step.decided.sum()), len(step.decided)
    doing = "REPEAT" if not acting else "ACT" if parts == 1 else f"ACT {acting}/{parts}"
    beta = "" if step.switch_probability is None else f"beta {step.switch_probability.mean():.2f}"
    ran = int(step.run.max())
    return doing, f"{ran} step{'s' * (ran > 1)}", beta, f"step {step.number}   return {step.ret:.1f}"


def _band(step: EpisodeStep, past: list[np.ndarray], width: int) -> np.ndarray:
    """The band `[h, width, 3]`. Its height depends only on the width and the number of parts."""
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
