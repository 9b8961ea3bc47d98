"""Figures of one episode: a strip of frames grouped by decision, and actions against time. Pure functions of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.pictures.panels import caption, literal_text, panels
from taac.pictures.video import ACT, REPEAT

MOST_COLUMNS, MOST_ROWS = 60, 6  # the most actions drawn, and frames of each
_WIDTH, _GAP = 1680, 6  # pixels
_WHITE, _BLACK, _GREY = (255, 255, 255), (20, 20, 20), (110, 110, 110)


class Column(NamedTuple):
    """One action of an episode."""

    number: int  # from 1
    start: int  # its first step, from 0
    length: int  # number of steps that it ran
    drawn: list[int]  # the steps whose frames are drawn


def columns(decided: np.ndarray, most_columns: int = MOST_COLUMNS, most_rows: int = MOST_ROWS) -> list[Column]:
    """Returns the actions of an episode. Of more than `most_columns` actions, or `most_rows` frames of one, evenly spaced ones.

    `decided` `[T]` or `[T, P]`: whether a new action was chosen at a step, in any of P dimensions. What runs before the first
    decision counts as an action.
    """
    steps = len(decided)
    acts = np.asarray(decided.reshape(steps, -1).any(axis=1)) | (np.arange(steps) == 0)
    starts = np.flatnonzero(acts)
    lengths = np.diff(np.append(starts, steps))
    found = []
    for number in _spread(len(starts), most_columns):
        start, length = int(starts[number]), int(lengths[number])
        found.append(Column(number + 1, start, length, [start + i for i in _spread(length, most_rows)]))
    return found


def _spread(n: int, most: int) -> list[int]:
    """Returns 0..n-1, or `most` of them evenly spaced, including the first and the last."""
    return np.linspace(0, n - 1, min(n, most)).round().astype(int).tolist()


def film_strip(path: Path, frames: Sequence[np.ndarray], decided: np.ndarray, title: str) -> Path:
    """Draws an episode as columns, one for each action, with frames stacked downwards (as in figure 1 of arXiv:2104.06521).

    Columns are wrapped. Of many actions and frames only those of `columns` are drawn, and the picture, a PNG file, says so. The
    T frames `[H, W, 3]` uint8 have one size, and are rendered after their steps.
    """
    from PIL import Image, ImageDraw, ImageFont

    drawn = columns(decided)
    high, wide = frames[0].shape[:2]
    per_band = min(len(drawn), max(1, (_WIDTH - _GAP) // (wide + _GAP)))
    bands = [drawn[i : i + per_band] for i in range(0, len(drawn), per_band)]
    header = 40
    heights = [header + max(len(c.drawn) for c in band) * (high + _GAP) + 3 * _GAP for band in bands]
    font, small = ImageFont.load_default(20), ImageFont.load_default(14)
    lines = [title, *_caption(decided, drawn)]
    widest = max(font.getlength(title), *map(small.getlength, lines[1:]))
    width = max(per_band * (wide + _GAP) + _GAP, round(widest) + 4 * _GAP)
    top = 34 + 20 * (len(lines) - 1) + _GAP
    image = Image.new("RGB", (width, top + sum(heights)), _WHITE)
    draw = ImageDraw.Draw(image)
    draw.text((2 * _GAP, _GAP), title, _BLACK, font)
    for i, line in enumerate(lines[1:]):
        draw.text((2 * _GAP, 34 + 20 * i), line, _GREY, small)
    for band, height in zip(bands, heights):
        for i, column in enumerate(band):
            _draw_column(image, draw, (_GAP + i * (wide + _GAP), top), column, frames, header)
        top += height
    image.save(path)
    return path


def _caption(decided: np.ndarray, drawn: Sequence[Column]) -> list[str]:
    parts = decided.reshape(len(decided), -1)
    actions = len(columns(decided, len(decided), 1))
    each = "each column is one action, with its frames downwards"
    if parts.shape[1] > 1:
        each = f"a column begins where any of {parts.shape[1]} dimensions acts, with its frames downwards"
    lines = [f"{len(decided)} steps in {actions} actions; {each}; the number on a frame is the step that led there"]
    left_out = []
    if len(drawn) < actions:
        left_out.append(f"only {len(drawn)} of {actions} actions are drawn, evenly spaced")
    if any(len(c.drawn) < c.length for c in drawn):
        left_out.append(f"{MOST_ROWS} frames are drawn of an action that ran longer than {MOST_ROWS} steps")
    return lines + (["Not everything is shown: " + "; ".join(left_out)] if left_out else [])


def _draw_column(
    image: Any, draw: Any, corner: tuple[int, int], column: Column, frames: Sequence[np.ndarray], header: int
) -> None:
    from PIL import Image, ImageFont

    left, top = corner
    high, wide = frames[0].shape[:2]
    small, tiny = ImageFont.load_default(14), ImageFont.load_default(12)
    draw.text((left, top), f"action {column.number}", _BLACK, small)
    draw.text((left, top + 17), f"{column.length} step{'s' * (column.length > 1)}", _GREY, small)
    for row, step in enumerate(column.drawn):
        y = top + header + row * (high + _GAP)
        color = ACT if step == column.start else REPEAT
        draw.rectangle((left - 2, y - 2, left + wide + 1, y + high + 1), fill=color)
        image.paste(Image.fromarray(frames[step]), (left, y))
        label = str(step + 1)
        draw.rectangle((left, y, left + tiny.getlength(label) + 6, y + 15), fill=color)
        draw.text((left + 3, y + 1), label, _WHITE, tiny)


@literal_text()
def timeline(
    path: Path,
    actions: np.ndarray,
    names: Sequence[str],
    choices: Sequence[int | None],
    decided: np.ndarray,
    switch_probability: np.ndarray | None,
    reward: np.ndarray,
    title: str,
) -> Path:
    """Draws every part of the action against time and marks the steps at which it was newly chosen, with beta_1 and reward.

    Args:
        path: a PNG file, which is returned.
        actions: `[T, A]`; boxes in [-1, 1].
        names: A labels.
        choices: A entries; the number of choices (counted from 0) where a part is a choice, None where it is a quantity.
        decided: `[T, P]` bool; P is A if each dimension decides separately.
        switch_probability: `[T, P]`, NaN at steps where the method does not decide; P is 1, A, or the number of agents. None if
            it has none.
        reward: `[T]`.
    """
    steps, size = np.arange(1, len(actions) + 1), actions.shape[1]
    decided = decided if decided.shape[1] == size else np.repeat(decided.any(1, keepdims=True), size, axis=1)
    extra = 1 + (switch_probability is not None)
    heights = [1.0] * size + [1.3] * extra
    figure, axes = panels(size + extra, 1, (13, 1.2 + 1.05 * sum(heights)), heights, sharex=True)
    caption(figure, title)
    for i, axis in enumerate(axes[:size, 0]):
        _draw_action(axis, steps, actions[:, i], decided[:, i], choices[i])
        axis.set_ylabel(names[i], rotation=0, ha="right", va="center")
    if size:
        axes[0, 0].legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize="small", frameon=False,
                          scatteryoffsets=[0.5]).legend_handles[1].set_sizes([28])  # fmt: skip
    if switch_probability is not None:
        parts = switch_probability.shape[1]
        _draw_switch_probability(
            axes[size, 0], steps, switch_probability, names if parts == size else [f"agent {i}" for i in range(parts)]
        )
    axes[-1, 0].plot(steps, reward, color="0.25", linewidth=1, drawstyle="steps-mid")
    axes[-1, 0].set_ylabel("reward", rotation=0, ha="right", va="center")
    axes[-1, 0].set(xlabel="environment steps", xlim=(0, len(steps) + 1))
    for axis in axes[:, 0]:
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    return path


def _draw_action(axis: Any, steps: np.ndarray, action: np.ndarray, acts: np.ndarray, choices: int | None) -> None:
    act, repeat = (tuple(c / 255 for c in color) for color in (ACT, REPEAT))
    size = float(np.clip(2500 / len(steps), 3, 28))  # points; smaller if there are many steps
    axis.plot(steps, action, color=repeat, linewidth=1.2, drawstyle="steps-mid", label="executed action")
    axis.scatter(steps[acts], action[acts], s=size, color=act, zorder=3, linewidths=0, label="a new action was chosen")
    if choices is not None:
        axis.set(ylim=(-0.5, choices - 0.5), yticks=range(choices))
    else:
        axis.set(ylim=(-1.15, 1.15), yticks=(-1, 0, 1))


def _draw_switch_probability(axis: Any, steps: np.ndarray, probability: np.ndarray, names: Sequence[str]) -> None:
    several = probability.shape[1] > 1
    for i in range(probability.shape[1]):
        known = np.isfinite(probability[:, i])
        axis.plot(steps[known], probability[known, i], linewidth=0.9, color=f"C{i % 10}" if several else "C2",
                  alpha=0.8, label=names[i] if several else None)  # fmt: skip
    axis.set(ylim=(-0.05, 1.05), yticks=(0, 0.5, 1))
    axis.set_ylabel("beta (act)", rotation=0, ha="right", va="center")
    if several:
        axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="x-small", frameon=False, ncols=1 + len(names) // 8)
