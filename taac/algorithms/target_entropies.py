"""Target entropies in nats, set directly or by a `min_prob`. Targets that no policy can reach are refused."""

from __future__ import annotations

import math
from typing import NamedTuple

from taac.errors import TaacError
from taac.ops import distributions
from taac.ops.schedules import Schedule, bounds
from taac.specs import TensorSpec


class TargetEntropy(NamedTuple):
    """The entropy towards which a temperature is tuned."""

    nats: float | Schedule
    formula: str  # how it was computed, for display; if it was set directly, the name of its parameter


def of_actions(
    action_spec: TensorSpec, min_prob: float, given: float | Schedule | None, name: str
) -> TargetEntropy:
    """Returns the target of a policy over a bounded action vector.

    Args:
        given: nats, or a schedule of them; None: `sum_i log((max_i - min_i) * min_prob)`.
        name: name of the parameter that sets `given`.

    Raises:
        TaacError: the target is above the greatest possible entropy, `sum_i log(max_i - min_i)`, or not finite.
    """
    minimum, maximum = action_spec.minimum, action_spec.maximum
    assert minimum is not None and maximum is not None
    if given is None:
        formula = f"sum over {action_spec.numel} dimensions of log((max - min) * {min_prob:g})"
        return TargetEntropy(distributions.continuous_target_entropy(minimum, maximum, min_prob), formula)
    greatest = distributions.continuous_target_entropy(minimum, maximum, 1.0)
    least, most = bounds(given)
    if not -math.inf < least <= most <= greatest:
        raise TaacError(
            f"{name} {given} nats cannot be reached: the uniform policy over {action_spec} has the "
            f"greatest entropy, {greatest:.4f} nats = sum_i log(max_i - min_i)"
        )
    return TargetEntropy(given if isinstance(given, Schedule) else float(given), name)


def of_choices(
    num_choices: int, min_prob: float, given: float | Schedule | None, name: str, times: int = 1
) -> TargetEntropy:
    """Returns the target of a policy over C choices, or of `times` such independent policies together.

    Args:
        given: nats for all `times` policies together, or a schedule of them; None: `times` times
            `p (log(C-1) - log p) - (1-p) log(1-p)`, p = min_prob.
        name: name of the parameter that sets `given`.

    Raises:
        TaacError: the target is negative, above the greatest possible entropy, `times * log C`, or not finite.
    """
    if given is None:
        inner = "-p log p - (1 - p) log(1 - p)" if num_choices == 2 else "p (log(C-1) - log p) - (1-p) log(1-p)"
        where = f"C = {num_choices}, p = {min_prob:g}"
        formula = f"{inner} at {where}" if times == 1 else f"{times} x ({inner}) at {where}"
        return TargetEntropy(times * distributions.discrete_target_entropy(num_choices, min_prob), formula)
    greatest = times * math.log(num_choices)
    what = f"{num_choices} choices" if times == 1 else f"{times} times {num_choices} choices"
    least, most = bounds(given)
    if least < 0:
        raise TaacError(
            f"{name} {given} nats is negative, which only continuous actions allow: the entropy of {what} is in "
            f"[0, {greatest:.4f}]"
        )
    if not most <= greatest:
        how = f"log({num_choices})" if times == 1 else f"{times} log({num_choices})"
        raise TaacError(
            f"{name} {given} nats cannot be reached: the uniform policy over {what} has the greatest entropy, "
            f"{greatest:.4f} nats = {how}"
        )
    return TargetEntropy(given if isinstance(given, Schedule) else float(given), name)
