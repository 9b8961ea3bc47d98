"""A learner of your own: it moves the critics first, and then the actor by the critics just moved.

taac train --task Pendulum-v1 --method experiments/examples/own_learner.gin

Source: Haarnoja et al., Soft Actor-Critic Algorithms and Applications (arXiv:1812.05905), algorithm 1, whose lines move the
critics before the policy and the temperature. Stable-Baselines3 does so too. `Learner` moves all of them at once, by gradients
at the old parameters, as TAAC's authors do.
"""

from __future__ import annotations

from typing import Any

import gin
import torch

from taac.data_structures import Experience, Nest
from taac.errors import TaacError
from taac.learning.learner import Learner, LossAndGradients
from taac.learning.optimizers import take_step
from taac.networks.batch_statistics import has_batch_statistics


@gin.configurable
class CriticFirstLearner(Learner):
    """Takes two gradient steps on each batch: one of the critics, one of everything else. An update takes twice as long.

    Args:
        learner: arguments of `Learner`; bind them there in gin.

    Raises:
        TaacError: `Learner.max_grad_norm` is set, which clips the gradients of one step together; several ranks train; or the
            networks have batch normalisation, whose running statistics would move twice.
    """

    def __init__(self, *learner: Any, **settings: Any):
        super().__init__(*learner, **settings)
        if self.max_grad_norm is not None:
            raise TaacError(
                "CriticFirstLearner takes two steps, which Learner.max_grad_norm cannot clip together: set it to None"
            )
        if has_batch_statistics(self.agent):
            raise TaacError("CriticFirstLearner computes each loss twice, which batch normalisation does not expect")
        names = [name for name, group in zip(self.group_names, self.optimizer.param_groups) for _ in group["params"]]
        self.of_critics = [name in ("critic", "value_encoder") for name in names]

    def loss_and_gradients(self, experience: Experience, weights: Nest) -> LossAndGradients:
        """Moves the critics; returns the gradients of the others by the moved critics. The update takes a step along them."""
        if self.ranks.count > 1:
            raise TaacError(
                "CriticFirstLearner does not average the critics' gradients over ranks: train in one process"
            )
        old = super().loss_and_gradients(experience, weights)
        if not torch.isfinite(old.total):
            return old  # the update refuses it, and nothing was moved
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for parameter in parameters:
            parameter.grad = None  # also of reward signals, which `Learner.update` steps later
        for parameter, gradient, of_critic in zip(parameters, old.gradients, self.of_critics):
            parameter.grad = gradient if of_critic else None
        take_step(self.optimizer, None)
        new = super().loss_and_gradients(experience, weights)
        others = [None if of_critic else g for g, of_critic in zip(new.gradients, self.of_critics)]
        return new._replace(gradients=others)
