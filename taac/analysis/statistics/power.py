"""What a number of seeds can find: power of a comparison, and standardised effects.

All of it is for Welch's t of normal scores. Scores with two peaks need more seeds.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from taac.analysis.statistics.quantiles import student_quantile

POWER = 0.8  # what is aimed at, as usual: a difference of that size is found in 4 of 5 studies
_POINTS = 100  # of a quadrature; power is then good to 0.001
_ANGLES, _ANGLE_WEIGHTS = np.polynomial.legendre.leggauss(12)
_erf = np.vectorize(math.erf, otypes=[float])


def power(shift: float, df: float, level: float) -> float:
    """The probability that `|t|` exceeds its two-sided critical value, if the true difference is `shift` standard errors.

    That of the noncentral t: `E[Phi(shift - c S) + Phi(-shift - c S)]`, where `S^2` is chi-square with `df` degrees of freedom,
    divided by them.
    """
    return _beyond(student_quantile(1 - level, df), shift, df)


def welch_power(effect: float, runs: int, level: float) -> float:
    """The power of Welch's t for two methods of `runs` normal scores each, of one spread, whose means differ by `effect` of it.

    The mean of the two sample variances has chi-square's distribution with 2n - 2 degrees of freedom, so t is that of `power`.
    But its critical value has `(n - 1) / (w^2 + (1 - w)^2)` degrees of freedom (Welch, Biometrika 1947), where w, the first
    method's share of the two variances, is Beta((n - 1) / 2, (n - 1) / 2) and independent of their mean: an average over w.
    """
    angles = (_ANGLES + 1) * math.pi / 8  # w = sin(angle)^2, up to the middle of its symmetric distribution
    weights = _ANGLE_WEIGHTS * (np.sin(angles) * np.cos(angles)) ** (runs - 2)
    df = (runs - 1) / (np.sin(angles) ** 4 + np.cos(angles) ** 4)
    shift = effect * math.sqrt(runs / 2)
    found = [_beyond(student_quantile(1 - level, nu), shift, 2 * runs - 2) for nu in df]
    return float(weights @ found / weights.sum())


def _beyond(critical: float, shift: float, df: float) -> float:
    """The probability that the noncentral `|t|` is above `critical`."""
    s, weight = _chi(df)
    return float((weight * (_normal(shift - critical * s) + _normal(-shift - critical * s))).sum())


def detectable_shift(df: float, level: float) -> float:
    """The true difference, in standard errors, that is found with the power `POWER`. Good to a percent."""
    return _shift(round(df, 1) if df < 30 else round(df), level)


@lru_cache(maxsize=4096)
def _shift(df: float, level: float) -> float:
    low, high = 0.0, 1.0
    while power(high, df, level) < POWER:
        high *= 2
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, df, level) >= POWER else (middle, high)
    return high


def hedges_g(x: np.ndarray, y: np.ndarray) -> float:
    """The difference of the means of X `[m]` and Y `[n]` in standard deviations, with the correction for few runs.

    `g = (1 - 3 / (4 (m + n - 2) - 1)) (mean x - mean y) / sqrt((s_x^2 + s_y^2) / 2)`. NaN with fewer than two runs, or without
    any spread.

    Source: Hedges, Journal of Educational Statistics 1981; the mean variance because spreads may differ (Bonett, Psychological
    Methods 2008).
    """
    if min(x.size, y.size) < 2:
        return math.nan
    spread = math.sqrt((x.var(ddof=1) + y.var(ddof=1)) / 2)
    if spread <= 1e-12 * max(float(np.abs(x).max()), float(np.abs(y).max())):
        return math.nan
    return float((1 - 3 / (4 * (x.size + y.size - 2) - 1)) * (x.mean() - y.mean()) / spread)


@lru_cache(maxsize=1024)
def _chi(df: float) -> tuple[np.ndarray, np.ndarray]:
    """Points of `sqrt(chi-square / df)` and their weights, which add to 1."""
    wide = 8 / math.sqrt(2 * df)
    edges = np.linspace(max(0.0, 1 - wide), 1 + wide, _POINTS + 1)
    s = (edges[1:] + edges[:-1]) / 2
    density = (df - 1) * np.log(s) - df * s * s / 2
    weight = np.exp(density - density.max())
    return s, weight / weight.sum()


def _normal(x: np.ndarray) -> np.ndarray:
    return (1 + _erf(x / math.sqrt(2))) / 2
