"""Pictures of an episode: which frames are where, and that what is left out is said."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from taac.pictures import figures
from taac.pictures.figures import ACT, REPEAT, Column, _caption, columns, film_strip, timeline
from taac.pictures.panels import panels


def table(text):
    """`[T]` decisions from a string of a (act) and r (repeat)."""
    return np.array([c == "a" for c in text])


EITHER = np.array([[True, True], [False, False], [False, True], [True, False]])  # of two dimensions


@pytest.mark.parametrize(
    "decided, most, expected",
    [
        (table("arraarr"), {}, [Column(1, 0, 3, [0, 1, 2]), Column(2, 3, 1, [3]), Column(3, 4, 3, [4, 5, 6])]),
        (table("rra"), {}, [Column(1, 0, 2, [0, 1]), Column(2, 2, 1, [2])]),  # what runs before the first decision
        (EITHER, {}, [Column(1, 0, 2, [0, 1]), Column(2, 2, 1, [2]), Column(3, 3, 1, [3])]),
        (table("a" * 11), {"most_columns": 3}, [Column(1, 0, 1, [0]), Column(6, 5, 1, [5]), Column(11, 10, 1, [10])]),
        (table("a" + "r" * 20), {"most_rows": 3}, [Column(1, 0, 21, [0, 10, 20])]),
    ],
)
def test_columns_are_actions(decided, most, expected):
    assert columns(decided, **most) == expected


@pytest.mark.parametrize("text", ["$\\frac$", "$" + "{" * 3000 + "}" * 3000 + "$", "$"])
def test_names_in_a_timeline_are_no_formulas(tmp_path, text):
    ones = np.ones((3, 1))
    file = timeline(tmp_path / "t.png", ones, [text[:40]], [None], ones > 0, ones, ones[:, 0], f"Pendulum-v1, {text[:200]}")
    with Image.open(file) as picture:
        assert picture.width > 1000


@pytest.mark.parametrize("steps, most", [(1, 1), (5, 5), (1000, 60), (61, 60)])
def test_no_column_is_drawn_twice_or_more_often_than_allowed(steps, most):
    starts = [c.start for c in columns(np.ones(steps, bool), most_columns=most)]
    assert len(starts) == min(steps, most) == len(set(starts)) and starts == sorted(starts)


def test_the_caption_names_what_is_left_out():
    short = table("arra")
    assert len(_caption(short, columns(short))) == 1
    assert "4 steps in 2 actions; each column is one action" in _caption(short, columns(short))[0]
    long = np.ones(100, bool)
    assert "only 60 of 100 actions are drawn" in _caption(long, columns(long))[1]
    run = table("a" + "r" * 6)
    assert "6 frames are drawn" in _caption(run, columns(run))[1] and "only" not in _caption(run, columns(run))[1]
    several = np.ones((3, 2), bool)
    assert "any of 2 dimensions" in _caption(several, columns(several))[0]


def test_a_film_strip_holds_the_frames_column_by_column(tmp_path):
    """Each frame has a colour of its own; found again, one column an action, going down, with the border of its kind."""
    decided, wide, high = table("arraarr"), 80, 40
    frames = [np.full((high, wide, 3), (10 + 30 * i, 255 - 30 * i, 90), np.uint8) for i in range(7)]
    path = film_strip(tmp_path / "strip.png", frames, decided, "a title")
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)
    corners = []
    for i, frame in enumerate(frames):
        ys, xs = np.nonzero((picture == frame[0, 0]).all(-1))
        assert len(ys) > 0.8 * high * wide  # but for its number
        corners.append((xs.max(), ys.max()))
        border = ACT if decided[i] else REPEAT
        assert tuple(picture[ys.max() + 1, xs.max()]) == border
    x, y = zip(*corners)
    assert x[0] == x[1] == x[2] < x[3] < x[4] == x[5] == x[6]
    assert y[0] < y[1] < y[2] and y[0] == y[3] == y[4] < y[5] < y[6]


def test_columns_wrap(tmp_path):
    """40 columns of 120 pixels are more than fit beside each other."""
    frames = [np.full((50, 120, 3), 5 * i, np.uint8) for i in range(40)]
    with Image.open(film_strip(tmp_path / "strip.png", frames, np.ones(40, bool), "t")) as picture:
        assert picture.width < 1700 and picture.height > 4 * 90


@pytest.fixture
def figure(monkeypatch):
    """Keeps the figure that is drawn."""
    kept = []

    def keep(*args, **options):
        drawn, axes = panels(*args, **options)
        kept.append(drawn)
        return drawn, axes

    monkeypatch.setattr(figures, "panels", keep)
    return kept


def draw(path, decided, beta, actions=None, choices=(None, 3)):
    steps = len(decided)
    if actions is None:
        actions = np.stack([np.linspace(-1, 1, steps), np.arange(steps) % 3], 1)
    return timeline(path, actions, ["a", "b"], choices, decided, beta, np.arange(steps) * 0.5, "title")


def dots(axis):
    return [tuple(np.round(xy, 6)) for xy in axis.collections[0].get_offsets().tolist()]


def test_a_timeline_draws_all_dimensions_switches_beta_and_reward(tmp_path, figure):
    decided = np.array([[True], [False], [True], [False], [False]])
    beta = np.array([[0.9], [0.1], [0.7], [np.nan], [0.2]])
    assert draw(tmp_path / "t.png", decided, beta).stat().st_size > 5000
    first, second, switch, reward = figure[0].axes
    assert first.lines[0].get_ydata().tolist() == [-1, -0.5, 0, 0.5, 1]
    assert first.lines[0].get_xdata().tolist() == [1, 2, 3, 4, 5]
    assert dots(first) == [(1, -1), (3, 0)] and dots(second) == [(1, 0), (3, 2)]
    assert second.get_yticks().tolist() == [0, 1, 2]
    assert switch.lines[0].get_xdata().tolist() == [1, 2, 3, 5]  # where the method looked
    assert switch.lines[0].get_ydata().tolist() == [0.9, 0.1, 0.7, 0.2]
    assert reward.lines[0].get_ydata().tolist() == [0, 0.5, 1, 1.5, 2]
    assert [a.get_ylabel() for a in figure[0].axes] == ["a", "b", "beta (act)", "reward"]


def test_agents_have_switches_by_their_own_names(tmp_path, figure):
    names, decided = [f"action[{i}]" for i in range(4)], np.array([[True, False], [False, True]]).repeat(2, 1)
    actions, beta = np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8]]), np.tile([[0.3, 0.6]], (2, 1))
    timeline(tmp_path / "t.png", actions, names, [None] * 4, decided, beta, np.zeros(2), "title")
    *parts, switch, _ = figure[0].axes
    assert [dots(axis) for axis in parts] == [[(1, 0.1)], [(1, 0.2)], [(2, 0.7)], [(2, 0.8)]]
    assert [line.get_label() for line in switch.lines] == ["agent 0", "agent 1"]


def test_dimensions_that_decide_alone_have_switches_of_their_own(tmp_path, figure):
    decided = np.array([[True, True], [False, True], [True, False]])
    actions = np.array([[0.1, 0.2], [0.1, 0.4], [0.5, 0.4]])
    draw(tmp_path / "t.png", decided, np.tile([[0.3, 0.6]], (3, 1)), actions, (None, None))
    first, second, switch, _ = figure[0].axes
    assert dots(first) == [(1, 0.1), (3, 0.5)] and dots(second) == [(1, 0.2), (2, 0.4)]
    assert [line.get_ydata()[0] for line in switch.lines[:2]] == [0.3, 0.6]


def test_a_method_without_beta_has_no_panel_for_it(tmp_path, figure):
    draw(tmp_path / "t.png", np.ones((4, 1), bool), None)
    assert [a.get_ylabel() for a in figure[0].axes] == ["a", "b", "reward"]
