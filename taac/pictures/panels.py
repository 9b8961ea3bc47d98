"""Figures of matplotlib that belong to nobody else: pyplot's state and the caller's backend stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np


def panels(
    rows: int, columns: int, size: tuple[float, float], height_ratios: Any = None, **options: Any
) -> tuple[Any, np.ndarray]:
    """Returns a new figure and its panels `[rows, columns]`.

    Args:
        size: width and height in inches.
        height_ratios: relative heights of the rows.
        options: of `Figure.subplots`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, height_ratios=height_ratios, **options)
