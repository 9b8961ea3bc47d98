"""Behaviour cloning of demonstrations, before or during training."""

from __future__ import annotations

import gin
import torch

from taac.algorithms import Algorithm
from taac.algorithms.agent import Agent
from taac.data_structures import Experience
from taac.errors import TaacError
from taac.machine.products import mixed_precision
from taac.ops.schedules import LinearSchedule, Schedule, bounds, follow


@gin.configurable
class Cloning:
    """Determines when behaviour cloning is learnt, and with which weight. The loss is the algorithm's `cloning_loss`.

    Args:
        pretraining_updates: gradient steps on demonstrations alone, before the run's first environment step.
        initial_weight: weight of the cloning loss, added to the algorithm's own, at the first update.
        decay_updates: updates over which that weight falls linearly to 0.
        weight: that weight as a number or another schedule, instead of `initial_weight` and `decay_updates`.

    Raises:
        TaacError: a number is out of range, `weight` and `initial_weight` are both given, or no cloning would happen.
    """

    weight: float  # current weight

    def __init__(
        self,
        pretraining_updates: int = 0,
        initial_weight: float = 0.0,
        decay_updates: int = 10_000,
        weight: float | Schedule | None = None,
    ):
        if pretraining_updates < 0 or decay_updates < 1 or not 0 <= initial_weight < float("inf"):
            raise TaacError(
                "Cloning: pretraining_updates must be 0 or more, initial_weight 0 or more and decay_updates 1 or more, got "
                f"{pretraining_updates}, {initial_weight} and {decay_updates}"
            )
        if weight is not None and (initial_weight != 0 or bounds(weight)[0] < 0):
            raise TaacError(
                "Cloning.weight must be 0 or more at every step and replaces initial_weight, which must then be 0; got "
                f"({weight}) and initial_weight = {initial_weight}"
            )
        if pretraining_updates == 0 and initial_weight == 0 and (weight is None or bounds(weight)[1] == 0):
            raise TaacError("Cloning does nothing: bind its pretraining_updates, initial_weight or weight")
        self.pretraining_updates = pretraining_updates
        decay = LinearSchedule(initial_weight, 0.0, updates=decay_updates) if initial_weight else 0.0
        self.scheduled = follow(self, weight=decay if weight is None else weight)

    @staticmethod
    def check(algorithm: Algorithm) -> None:
        """Refuses algorithms that have no `cloning_loss`."""
        if type(algorithm).cloning_loss is Algorithm.cloning_loss:
            raise TaacError(
                f"{type(algorithm).__name__} does not support behaviour cloning: remove Learner.cloning, or use SAC or TAAC"
            )


def cloning_loss(agent: Agent, demonstrated: Experience, products: str) -> torch.Tensor:
    """Returns the mean of the algorithm's `cloning_loss` over a prepared batch of demonstrations, with its graph."""
    with agent.learning(), mixed_precision(products, agent.device):
        return agent.algorithm.cloning_loss(demonstrated).mean()
