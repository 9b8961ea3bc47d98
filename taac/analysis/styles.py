"""Colours, dashes and markers of methods: the same in every picture and on the page of a report.

A method is drawn by its number in the list of methods. Colours repeat after 8 methods and markers after 7; dashes shift each time
the colours repeat. So up to 32 methods differ. All colours stay apart for readers who cannot
tell red from green or blue from yellow, and stand out from the paper, in light and in dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

Marker = tuple[tuple[float, float], ...]  # corners (x, y) in [-1, 1], y upwards


class Style(NamedTuple):
    """How a method is drawn."""

    color: str  # on light paper
    dark: str  # on dark paper
    dash: tuple[float, ...]  # lengths of strokes and gaps in line widths; empty for a solid line
    marker: Marker


COLORS = ("#238fe5", "#c5680c", "#086103", "#cb4140", "#634aaa", "#a74295", "#228981", "#483930")
DARK_COLORS = ("#5882ae", "#e28c28", "#98e494", "#f35f61", "#af93ee", "#e49bd0", "#02e1f9", "#c0af99")
DASHES: tuple[tuple[float, ...], ...] = ((), (4.0, 1.6), (1.2, 1.2), (5.0, 1.4, 1.2, 1.4))
_ARM = 0.36  # half the width of a cross
_PLUS = (
    (-_ARM, 1.0), (_ARM, 1.0), (_ARM, _ARM), (1.0, _ARM), (1.0, -_ARM), (_ARM, -_ARM), (_ARM, -1.0), (-_ARM, -1.0),
    (-_ARM, -_ARM), (-1.0, -_ARM), (-1.0, _ARM), (-_ARM, _ARM),
)  # fmt: skip
MARKERS: tuple[Marker, ...] = (
    tuple((0.9 * math.cos(math.pi * i / 8), 0.9 * math.sin(math.pi * i / 8)) for i in range(16)),  # a disc
    ((-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)),  # a square
    ((-1.0, -0.8), (1.0, -0.8), (0.0, 1.0)),  # a triangle
    ((0.0, -1.0), (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)),  # a diamond
    _PLUS,
    ((-1.0, 0.8), (1.0, 0.8), (0.0, -1.0)),  # a triangle that points down
    tuple(((x - y) * math.sqrt(0.5), (x + y) * math.sqrt(0.5)) for x, y in _PLUS),  # a cross
)
LINE_WIDTH = 2.0  # on the page, in pixels
MOST_MARKERS = 10  # on one curve
MOST_NAMES = 60  # in a legend, because the size of a figure is limited


def style(number: int) -> Style:
    """Returns the style of the method with this number, counted from 0."""
    color = number % len(COLORS)
    dash = (number + number // len(COLORS)) % len(DASHES)  # another one when colours begin again
    return Style(COLORS[color], DARK_COLORS[color], DASHES[dash], MARKERS[number % len(MARKERS)])


def marked(number: int, points: int) -> slice:
    """Returns which points of a curve have a marker: all of a few, else about `MOST_MARKERS`, at other places by method."""
    every = max(1, -(-points // MOST_MARKERS))
    return slice(number % every, None, every)


def css(methods: int) -> str:
    """Returns the style sheet of so many methods, classes `m0`, `m1` ...: the variable `--color`, and the dashes of `.line`."""
    light = "".join(f" --c{i}: {color};" for i, color in enumerate(COLORS))
    dark = "".join(f" --c{i}: {color};" for i, color in enumerate(DARK_COLORS))
    rules = [f":root {{{light} }}", f"@media screen and (prefers-color-scheme: dark) {{ :root {{{dark} }} }}"]
    for number in range(methods):
        rules.append(f".m{number} {{ --color: var(--c{COLORS.index(style(number).color)}); }}")
        if dash := style(number).dash:
            lengths = " ".join(f"{LINE_WIDTH * length:g}" for length in dash)
            rules.append(f".m{number} .line {{ stroke-dasharray: {lengths}; }}")
    return "\n".join(rules)


def svg_markers(methods: int) -> list[dict[str, str]]:
    """Returns the marker of each method as the path of an SVG, in [-1, 1], y upwards."""
    corners = [" L".join(f"{x:.3g} {y:.3g}" for x, y in style(number).marker) for number in range(methods)]
    return [{"marker": f"M{path} Z"} for path in corners]


def line(number: int, points: int) -> dict[str, Any]:
    """Returns the keywords of `plot` for a method's curve of so many points."""
    of = style(number)
    return {
        "color": of.color,
        "linewidth": 1.4,
        "linestyle": (0, of.dash) if of.dash else "-",
        "marker": [*of.marker, of.marker[0]],
        "markersize": 5 * max(abs(at) for corner in of.marker for at in corner),  # a marker's reach is scaled to 1
        "markeredgewidth": 0,
        "markevery": marked(number, points),
    }


def faint(methods: int) -> tuple[float, float]:
    """Returns the opacities of the bands and of the single runs of so many methods in one picture."""
    return (0.18, 0.35) if methods <= 6 else (0.07, 0.2)


def draw_methods(axis: Any, methods: Sequence[tuple[int, Sequence[Any], Sequence[Sequence[Any]]]]) -> None:
    """Draws methods in a panel: a line with a band, and single runs, faint, if there are several. Ends the panel as in `limit`.

    Each method is its number, its curve (x, the line and the ends of the band, `[n]` each), and x and values of every run.
    """
    for number, curve, each in methods:
        x, mean, low, high = (np.asarray(column, dtype=np.float64) for column in curve)
        drawn, (band, run) = line(number, x.size), faint(len(methods))
        for points in each if len(each) > 1 else ():
            faint_x, values = (np.asarray(column, dtype=np.float64) for column in points)
            axis.plot(faint_x, values, color=drawn["color"], linewidth=0.6, alpha=run)
        axis.fill_between(x, low, high, color=drawn["color"], alpha=band, linewidth=0)
        axis.plot(x, mean, **drawn)
    lines = [values for _, curve, each in methods for values in (curve[1], *(points[1] for points in each))]
    limit(axis, lines, [end for _, curve, _ in methods for end in curve[2:]])
    axis.grid(alpha=0.3)


def span(counts: Sequence[int]) -> str:
    """Returns the range of some numbers, such as `3 to 5`, or the number if they are equal."""
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low} to {high}"


def limit(axis: Any, lines: Sequence[Any], bands: Sequence[Any], along: Literal["x", "y"] = "y") -> None:
    """Ends the panel where a band leaves the lines by more than half their range, so that a band of few runs hides no line.

    With 2 runs the band is nine standard deviations wide to either side.
    """

    def ends(columns: Sequence[Any]) -> tuple[float, float]:
        values = np.concatenate([np.zeros(0), *(np.asarray(column, dtype=np.float64).ravel() for column in columns)])
        values = values[np.isfinite(values)]
        return (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)

    low, high = ends(lines)
    room = (high - low) / 2
    bottom, top = ends([*bands, *lines])
    if room > 0 and (bottom < low - room or top > high + room):
        bottom, top = max(bottom, low - room), min(top, high + room)
        margin = 0.05 * (top - bottom)
        axis.set(**{f"{along}lim": (bottom - margin, top + margin)})


def add_legend(figure: Any, labels: Mapping[int, str], title: str) -> None:
    """Adds a legend of methods, by number, to the right of all panels, and widens the figure by as much as it needs.

    Of more than `MOST_NAMES` methods the first are named, and how many more there are.
    """
    from matplotlib.lines import Line2D

    if not labels:
        return
    width, height = figure.get_size_inches()
    names = {number: shortened(label) for number, label in list(labels.items())[:MOST_NAMES]}
    if len(labels) > len(names):
        title = f"{title}, {len(names)} of {len(labels)}"
    columns = -(-len(names) // max(4, int((height - 0.6) / 0.2)))
    handles = [Line2D([], [], label=name, **line(number, 1)) for number, name in names.items()]
    legend = figure.legend(
        handles=handles, loc="outside right upper", ncols=columns, title=title, fontsize="small", title_fontsize="small",
        handlelength=3.2, frameon=False,
    )  # fmt: skip
    figure.set_size_inches(width + legend.get_window_extent().width / figure.dpi, height)


def shortened(name: str, most: int = 40) -> str:
    """Returns a name of at most so many characters, with its middle left out if it is longer."""
    half = (most - 1) // 2
    return name if len(name) <= most else f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[-half:]}"
