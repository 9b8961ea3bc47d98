"""Welch's t for many comparisons at once, as a number that can be compared between comparisons.

A permutation test of several comparisons asks which of them differs most. Values of t cannot be compared if their degrees of
freedom differ, so `evidence` converts them to normal deviates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

ROUNDING = 1e-12  # a standard error this small, relative to the scores, is that of equal scores


class Moments(NamedTuple):
    """What Welch's t needs of groups of runs, `[...]` each."""

    mean: np.ndarray
    variance: np.ndarray  # of the mean: s^2 / n; 0 where the runs of a group are equal
    runs: np.ndarray | int


def moments(values: np.ndarray) -> Moments:
    """The moments of groups `[..., runs]`, two runs or more."""
    runs, mean = values.shape[-1], values.mean(-1)
    variance = values.var(-1, ddof=1) / runs
    scale = np.abs(values).max(-1)
    return Moments(mean, np.where(variance <= (ROUNDING * scale) ** 2, 0.0, variance), runs)


def welch_evidence(x: Moments, y: Moments) -> np.ndarray:
    """The evidence `[...]`, 0 or more, of Welch's t for a difference between the means of X and Y.

    `t = (mean x - mean y) / sqrt(v_x + v_y)`, `df = (v_x + v_y)^2 / (v_x^2 / (m - 1) + v_y^2 / (n - 1))`. If neither group
    has any spread, the evidence is infinite for different means and 0 for equal ones.

    Source: Welch, Biometrika 1947.
    """
    spread = x.variance + y.variance
    none = spread == 0
    safe = np.where(none, 1.0, spread)
    difference = np.abs(x.mean - y.mean)
    df = safe**2 / np.where(none, 1.0, x.variance**2 / (x.runs - 1) + y.variance**2 / (y.runs - 1))
    equal = difference <= ROUNDING * np.maximum(np.abs(x.mean), np.abs(y.mean))
    return np.where(none, np.where(equal, 0.0, np.inf), evidence(difference / np.sqrt(safe), df))


def evidence(t: np.ndarray, df: np.ndarray) -> np.ndarray:
    """The normal deviate that is about as improbable as `t` with `df` degrees of freedom: rises with t, falls with df.

    `(8 df + 1) / (8 df + 3) sqrt(df log(1 + t^2 / df))`.

    Source: Wallace, Annals of Mathematical Statistics 1959.
    """
    return (8 * df + 1) / (8 * df + 3) * np.sqrt(df * np.log1p(t * t / df))
