"""Quantities that cannot lie outside a range. Intervals of their means end where the range does.

An interval that is cut to the range covers as often as before, because no mean lies in what is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_FRACTION, _ONE_OR_MORE, _NOT_NEGATIVE = (0.0, 1.0), (1.0, math.inf), (0.0, math.inf)
BOUNDS: Mapping[str, tuple[float, float]] = {
    "fraction_repeated": _FRACTION,
    "fraction_same": _FRACTION,
    "actor_calls_saved": _FRACTION,
    "mean_run": _ONE_OR_MORE,
    "max_run": _ONE_OR_MORE,
    "decisions": _ONE_OR_MORE,
    "length": _ONE_OR_MORE,
    "jerk": _NOT_NEGATIVE,
    "optimality_gap": _NOT_NEGATIVE,
}


Range = tuple[float, float]


def cut(
    name: str, estimate: ArrayLike, low: ArrayLike, high: ArrayLike, limits: Range | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of intervals `[...]`, cut to the range of a quantity. NaN stays NaN.

    Args:
        name: of the quantity, also as the last part of a tag, such as `rollout/jerk`. Others are not cut.
        estimate, low, high: `[...]`. Where the estimate itself is out of range (in a stranger's files), nothing is cut.
        limits: the range, if it is known otherwise, such as that of a task's returns.
    """
    least, most = limits or BOUNDS.get(name.rpartition("/")[2], (-math.inf, math.inf))
    inside = (np.asarray(estimate) >= least) & (np.asarray(estimate) <= most)
    return np.where(inside, np.clip(low, least, most), low), np.where(inside, np.clip(high, least, most), high)


def cut_interval(name: str, found: dict[str, Any] | None, limits: Range | None = None) -> dict[str, Any] | None:
    """Cuts an interval as in `cut`, given by its `estimate`, `low` and `high`. If it was cut, its `method` says so."""
    limits = limits or BOUNDS.get(name)
    if found is None or limits is None:
        return found
    low, high = (float(end) for end in cut(name, found["estimate"], found["low"], found["high"], limits))
    if (low, high) == (found["low"], found["high"]) or math.isnan(low):
        return found
    least, most = limits
    within = f"[{least:g}, {most:g}]" if math.isfinite(most) else f"{least:g} or more"
    return {**found, "low": low, "high": high, "method": f"{found['method']}, cut to {within}"}
