"""What a number of seeds can find, by Welch's t of normal scores (scores with two peaks need more); standardised effects."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import nctdtrinc

from taac.analysis.statistics.quantiles import student_quantile

POWER = 0.8  # what is aimed at, as usual: a difference of that size is found in 4 of 5 studies


def detectable_shift(df: float, level: float) -> float:
    """The true difference, in standard errors, of which a two-sided test is significant with the probability `POWER`.

    The noncentrality at which noncentral t exceeds the critical value that often; the other tail is below 1e-4 there.
    """
    return float(nctdtrinc(df, 1 - POWER, student_quantile(1 - level, df)))


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
