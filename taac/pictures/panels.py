"""Figures of matplotlib that belong to nobody else: pyplot's state and the caller's backend stay, and text stays text."""

from __future__ import annotations

import contextlib
import io
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np


def panels(
    rows: int, columns: int, size: tuple[float, float], height_ratios: Any = None, **options: Any
) -> tuple[Any, np.ndarray]:
    """Returns a new figure of `size` inches and its panels `[rows, columns]`. `options` are those of `Figure.subplots`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, height_ratios=height_ratios, **options)


def image(figure: Any, **options: Any) -> bytes:
    """Returns a figure as the content of a file, PNG by default. `options` are those of `Figure.savefig`."""
    file = io.BytesIO()
    figure.savefig(file, **{"format": "png", **options})
    return file.getvalue()


@contextlib.contextmanager
def literal_text() -> Iterator[None]:
    """Makes matplotlib draw `$` as it is, instead of reading it as the start of a formula. Also usable as a decorator.

    A name with an unmatched `$` could otherwise not be drawn at all, and one of many brackets would exceed Python's recursion.
    """
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False, "text.usetex": False}):
        yield


def caption(figure: Any, text: str, **look: Any) -> None:
    """Writes a text above a figure, in lines as wide as that. matplotlib's own `wrap` reads `$` as a formula when it measures."""
    letters = 16 if look.get("fontsize") == "small" else 11  # an inch
    width = max(20, int(letters * figure.get_figwidth()))
    # From the left: a legend may stand to the right, by which the figure was widened.
    figure.suptitle("\n".join(textwrap.fill(line, width) for line in text.split("\n")), x=0.01, ha="left", **look)
