"""Quantiles of Student's t and the interval of a proportion, both from the regularised incomplete beta function."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

CONFIDENCE = 0.95  # of the intervals of a report, unless they are corrected for several comparisons
_TINY = 1e-300


def incomplete_beta(a: float, b: float, x: float) -> float:
    """`I_x(a, b)`, the distribution function of Beta(a, b) at `x` in [0, 1]; a, b > 0.

    Source: DLMF 8.17.22 (continued fraction, by Lentz's method) and 8.17.4 (`I_x(a, b) = 1 - I_{1-x}(b, a)`).
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction of the mirrored argument converges faster here
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    return front / a / _continued_fraction(a, b, x)


def _continued_fraction(a: float, b: float, x: float) -> float:
    """`1 + d1 / (1 + d2 / (1 + ...))` of DLMF 8.17.22."""
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, 100_000):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / ((1 + term * d) or _TINY)
        c = (1 + term / c) or _TINY
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def student_p_value(t: float, df: float) -> float:
    """`P(|T| >= |t|)` of Student's t: `I_x(df/2, 1/2)` at `x = df / (df + t^2)`."""
    return incomplete_beta(df / 2, 0.5, df / (df + t * t))


@lru_cache(maxsize=4096)
def student_quantile(confidence: float, df: float) -> float:
    """The `t` with `P(|T| <= t) = confidence`."""
    high = 1.0
    while student_p_value(high, df) > 1 - confidence:
        high *= 2
    return bisect(lambda t: student_p_value(t, df) < 1 - confidence, 0.0, high)


@lru_cache(maxsize=4096)
def proportion_interval(fraction: float, n: float, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The Clopper-Pearson interval of a proportion, for `fraction` of `n` trials.

    `low` is the quantile (1 - confidence) / 2 of Beta(k, n - k + 1), `high` the quantile (1 + confidence) / 2 of
    Beta(k + 1, n - k), with k = fraction * n. Its coverage is at least the stated level for every n, including 1. k and n
    need not be whole; for unequally weighted trials, `n` is their effective number.

    Source: Clopper and Pearson, Biometrika 1934; n effective: Korn and Graubard, Survey Methodology 1998.
    """
    k, tail = fraction * n, (1 - confidence) / 2
    # An end is exactly 0 without any success, or exactly 1 without any failure.
    low = 0.0 if fraction == 0 else bisect(lambda p: incomplete_beta(k, n - k + 1, p) > tail, 0.0, 1.0)
    high = 1.0 if fraction == 1 else bisect(lambda p: 1 - incomplete_beta(k + 1, n - k, p) < tail, 0.0, 1.0)
    return low, high


def bisect(holds: Callable[[float], bool], no: float, yes: float) -> float:
    """The point between `no` and `yes`, in either order, at which `holds` turns true."""
    for _ in range(100):
        middle = (no + yes) / 2
        if middle in (no, yes):
            break
        no, yes = (no, middle) if holds(middle) else (middle, yes)
    return (no + yes) / 2
