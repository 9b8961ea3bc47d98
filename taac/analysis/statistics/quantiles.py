"""Quantiles of Student's t, and the interval of a proportion."""

from __future__ import annotations

from functools import lru_cache

from scipy.special import betaincinv, stdtr, stdtrit

CONFIDENCE = 0.95  # of the intervals of a report, unless they are corrected for several comparisons


def student_p_value(t: float, df: float) -> float:
    """`P(|T| >= |t|)` of Student's t."""
    return float(2 * stdtr(df, -abs(t)))


@lru_cache(maxsize=4096)
def student_quantile(confidence: float, df: float) -> float:
    """The `t` with `P(|T| <= t) = confidence`."""
    return float(stdtrit(df, (1 + confidence) / 2))


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
    low = 0.0 if fraction == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if fraction == 1 else float(betaincinv(k + 1, n - k, 1 - tail))
    return low, high
