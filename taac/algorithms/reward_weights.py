"""Checks the weights of a vector reward."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from taac.errors import TaacError
from taac.ops.schedules import Schedule, bounds


def check_reward_weights(
    weights: Sequence[float | Schedule] | None, reward_dim: int | None
) -> tuple[float | Schedule, ...] | None:
    """Returns one weight for each part of the reward, by default 1; None for a scalar reward.

    Raises:
        TaacError: weights of a scalar reward, another number of them, a weight that is not finite, or all of them are 0 at once.
    """
    if reward_dim is None:
        if weights is not None:
            raise TaacError(f"reward_weights {_shown(weights)} were given, but the environment's reward is a scalar")
        return None
    if weights is None:
        return (1.0,) * reward_dim
    if (
        len(weights) != reward_dim
        or _all_zero(weights)
        or not all(math.isfinite(x) for w in weights for x in bounds(w))
    ):
        raise TaacError(
            f"reward_weights must be {reward_dim} finite numbers, one for each part of the reward, and at every step at "
            f"least one must differ from 0, got {_shown(weights)}"
        )
    return tuple(weights)


def _all_zero(weights: Sequence[float | Schedule]) -> bool:
    """Returns whether all weights are 0 at some pair of counts where pieces of their schedules begin or end."""
    moving = [weight for weight in weights if isinstance(weight, Schedule)]
    counts = [{0}.union(*(w.knots for w in moving if w.unit == unit)) for unit in ("env_steps", "updates")]
    return any(
        not any(weight.at(*pair) if isinstance(weight, Schedule) else weight for weight in weights)
        for pair in itertools.product(*counts)
    )


def _shown(weights: Sequence[float | Schedule]) -> str:
    return f"({', '.join(map(str, weights))})"
