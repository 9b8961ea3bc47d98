"""Drawing on frames whether the agent acts or repeats. Pure functions of arrays, but for the recent past that is drawn."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from taac.pictures.steps import Shown

ACT, REPEAT = (232, 119, 34), (62, 122, 178)  # orange, blue
_BACKGROUND, _TEXT = (24, 26, 30), (240, 240, 240)
NARROWEST = 240  # pixels; a narrower frame is enlarged a whole number of times before it is drawn on
_TAPE = 60  # steps of the recent past


class Overlay:
    """Adds a band below each frame of an episode; nothing of the frame is hidden.

    The band says whether the agent acts or repeats (of P dimensions that decide alone, how many act), for how many steps
    the present action has run (the longest, of several), beta_1, step and return; below it, a tape of the last steps: a
    column a step, a row for each dimension that decides alone, orange where a new action was chosen.
    """

    def __init__(self) -> None:
        self._past: deque[np.ndarray] = deque(maxlen=_TAPE)

    def __call__(self, shown: Shown) -> np.ndarray | None:
        """The frame with its band, `[H', W', 3]` uint8; None where the step was not filmed. To be called at every step."""
        if shown.number == 1:
            self._past.clear()
        self._past.append(shown.decided)
        if shown.frame is None:
            return None
        frame = enlarge(shown.frame, -(-NARROWEST // shown.frame.shape[1]))
        return np.concatenate([frame, _band(shown, list(self._past), frame.shape[1])])


def enlarge(frame: np.ndarray, times: int) -> np.ndarray:
    """Every pixel of `[H, W, 3]` as a square of `times` x `times`."""
    return frame if times <= 1 else frame.repeat(times, 0).repeat(times, 1)


def words(shown: Shown) -> tuple[str, str, str, str]:
    """What the band says: act or repeat; for how long; beta; step and return."""
    acting, parts = int(shown.decided.sum()), len(shown.decided)
    doing = "REPEAT" if not acting else "ACT" if parts == 1 else f"ACT {acting}/{parts}"
    beta = "" if shown.switch_probability is None else f"beta {shown.switch_probability.mean():.2f}"
    ran = int(shown.run.max())
    return doing, f"{ran} step{'s' * (ran > 1)}", beta, f"step {shown.number}   return {shown.ret:.1f}"


def _band(shown: Shown, past: list[np.ndarray], width: int) -> np.ndarray:
    """`[h, width, 3]`, h a function of the width and of the number of parts alone."""
    from PIL import Image, ImageDraw, ImageFont

    size = max(12, min(28, width // 20))
    font, margin = ImageFont.load_default(size), size // 2
    line, row = round(1.5 * size), max(3, min(size // 2, 6 * size // len(shown.decided)))
    height = 2 * margin + 2 * line + row * len(shown.decided)
    image = Image.new("RGB", (width, height + height % 2), _BACKGROUND)
    draw = ImageDraw.Draw(image)
    doing, ran, beta, where = words(shown)
    chip = draw.textlength("REPEAT" if len(shown.decided) == 1 else "ACT 88/88", font) + size
    color, middle = ACT if shown.decided.any() else REPEAT, margin // 2 + line // 2
    draw.rounded_rectangle((margin, margin // 2, margin + chip, margin // 2 + line), size // 3, fill=color)
    draw.text((margin + chip / 2, middle), doing, _TEXT, font, anchor="mm")
    draw.text((2 * margin + chip, middle), ran, _TEXT, font, anchor="lm")
    draw.text((width - margin, middle), beta, _TEXT, font, anchor="rm")
    draw.text((margin, margin + line + line // 2), where, _TEXT, font, anchor="lm")
    _tape(draw, past, (margin, margin + 2 * line), (width - 2 * margin) / _TAPE, row)
    return np.asarray(image)


def _tape(draw: Any, past: list[np.ndarray], corner: tuple[int, int], column: float, row: int) -> None:
    """The last steps, the newest on the right."""
    for i, decided in enumerate(past, _TAPE - len(past)):
        for j, acts in enumerate(decided.tolist()):
            left, top = corner[0] + i * column, corner[1] + j * row
            gap = 1 if acts and column >= 3 else 0  # a decision is set off from what came before
            draw.rectangle((left + gap, top, left + column - 1, top + row - 2), fill=ACT if acts else REPEAT)
