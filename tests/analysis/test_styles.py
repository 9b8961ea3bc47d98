"""Styles of methods: apart for every reader, the same in pictures and on the page."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from taac.analysis import styles
from taac.pictures.panels import panels

# What dichromats see, in linear RGB. Source: Machado, Oliveira and Fernandes, A physiologically-based model for simulation
# of color vision deficiency, IEEE TVCG 2009, severity 1.0.
VISION = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# sRGB with white D65. Source: IEC 61966-2-1.
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])
APART = 12  # in CIELAB, where 2.3 is just noticeable side by side
MANY = 24  # methods


def linear(color):
    c = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(color, vision="usual"):
    """CIELAB of what a reader sees."""
    t = XYZ @ np.clip(np.array(VISION[vision]) @ linear(color), 0, 1) / XYZ.sum(1)
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(a, b, vision="usual"):
    return float(np.linalg.norm(lab(a, vision) - lab(b, vision)))


def contrast(a, b):
    """Source: WCAG 2.2, contrast ratio."""
    low, high = sorted(float(XYZ[1] @ linear(c)) for c in (a, b))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("scheme", ["color", "dark"])
def test_methods_that_share_a_dash_or_a_marker_have_colours_that_stay_apart(scheme, vision):
    shared = 0
    for a, b in itertools.combinations(map(styles.style, range(MANY)), 2):
        if a.dash == b.dash or a.marker == b.marker:
            shared += 1
            assert distance(getattr(a, scheme), getattr(b, scheme), vision) >= APART, (a, b)
    assert shared > MANY


def test_no_two_methods_look_alike():
    all_ = [styles.style(i) for i in range(32)]
    assert len(set(all_)) == 32
    assert len({(s.color, s.dash) for s in all_}) == 32  # even where markers cannot be seen
    assert all(a.color != b.color for a, b in itertools.pairwise(all_))


@pytest.mark.parametrize(
    "colors, papers", [(styles.COLORS, ("#ffffff", "#f6f7f9")), (styles.DARK_COLORS, ("#14171b", "#1d2126"))]
)
def test_lines_stand_out_from_the_paper(colors, papers):
    assert min(contrast(color, paper) for color in colors for paper in papers) >= 3


def test_the_page_and_pictures_draw_the_same():
    css, markers = styles.css(MANY), styles.svg_markers(MANY)
    light, dark = (re.findall(r"--c\d: (#\w+);", part) for part in css.split("\n")[:2])
    assert tuple(light) == styles.COLORS and tuple(dark) == styles.DARK_COLORS
    for number in range(MANY):
        drawn = styles.line(number, points=5)
        (color,) = re.findall(rf"\.m{number} {{ --color: var\(--c(\d)\); }}", css)
        assert light[int(color)] == drawn["color"]
        dash = re.findall(rf"\.m{number} \.line {{ stroke-dasharray: ([\d. ]+); }}", css)
        lengths = [float(x) / 2 for x in dash[0].split()] if dash else []
        assert lengths == pytest.approx(list(drawn["linestyle"][1]) if drawn["linestyle"] != "-" else [])
        corners = [float(x) for x in re.findall(r"-?[\d.]+(?:e-?\d+)?", markers[number]["marker"])]
        assert corners == pytest.approx([x for corner in drawn["marker"][:-1] for x in corner], abs=1e-2)


def test_markers_are_few_and_shifted():
    assert [list(range(8))[styles.marked(i, 8)] for i in (0, 3)] == [list(range(8))] * 2
    first, second = (list(range(200))[styles.marked(i, 200)] for i in (0, 1))
    assert len(first) == len(second) == 10 and not set(first) & set(second)


def test_long_names_lose_their_middle():
    assert styles.shortened("taac", 40) == "taac"
    short = styles.shortened("begin" + "x" * 100 + "end", 20)
    assert len(short) <= 20 and short.startswith("begin") and short.endswith("end")


@pytest.mark.parametrize("names", [["sac (5)", "_hidden (5)"], [f"method_{i} (5)" for i in range(13)], ["m" * 200] * 2000])
def test_a_legend_lies_beside_all_panels_and_names_every_method(names):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
    for axis in axes:
        axis.plot([0, 1], [0, 1])
    styles.add_legend(figure, dict(enumerate(names)), "method (seeds)")
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert all(not box.overlaps(axis.get_tightbbox()) and axis.get_window_extent().width > 150 for axis in axes)
    assert min(box.x0, box.y0) >= 0 and box.x1 <= figure.bbox.width + 1 and box.y1 <= figure.bbox.height + 1
    assert [text.get_text() for text in legend.get_texts()] == [styles.shortened(name) for name in names[:60]]
    assert legend.get_title().get_text() == "method (seeds)" + (f", 60 of {len(names)}" if len(names) > 60 else "")
    pyplot.close(figure)


@pytest.mark.parametrize(
    "lines, low, high, expected",
    [
        ([0.0, 47.0, math.nan, 100.0], -900.0, 900.0, (-60.0, 160.0)),  # half of 100 beyond the lines, and a twentieth of 200
        ([0.0, 47.0, math.nan, 100.0], -900.0, 60.0, (-57.5, 107.5)),
        ([0.0, 47.0, math.nan, 100.0], -40.0, 140.0, None),  # the whole band
        ([5.0, 5.0], -1.0, 9.0, None),
        ([], -1.0, 9.0, None),
    ],
)
def test_a_band_of_few_runs_does_not_press_the_lines_flat(lines, low, high, expected):
    _, ((axis,),) = panels(1, 1, (3, 2))
    for along, ends in (("y", axis.get_ylim), ("x", axis.get_xlim)):
        before = ends()
        styles.limit(axis, [lines], [[low, math.nan], [high, math.nan]], along=along)
        assert ends() == pytest.approx(before if expected is None else expected)
