"""The critics' predictions in an update: at executed actions, and at those that targets bootstrap from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from taac.data_structures import TimeStep
from taac.networks.batch_statistics import batch_statistics, has_batch_statistics
from taac.ops.value_distributions import ValueDistribution


class CriticStep:
    """The critics of one update. Call `bootstrap` once, unless targets come from elsewhere, then `prediction`.

    Critics with `BatchNorm` see both halves in one batch, executed pairs (s, a) and candidates (s', a'), so that both are
    normalised alike. The statistics count a candidate with its probability, so that they are those of the next state's
    distribution over actions, and leave out executed pairs at LAST. Target critics use the statistics of their own joint
    forward, without moving their running ones; there a learnt encoder reads s, and its slow copy s'. If they would be copies of
    the critics (`target_update_tau` and period 1), one forward serves both (CrossQ).

    Args:
        algorithm: the `ActorCriticAlgorithm` that they belong to.
        time_step: leaves `[T, B, ...]`.
        features: `[T, B, F]`, of the critics.
        executed: action parts `[T-1, B, A]` that were executed at frames 0..T-2.

    Attributes:
        next_features: `[T-1, B, F]`, of the critics at frames 1..T-1, detached.
        counted: `[T-1, B]` bool, the executed pairs that count for the statistics, as do the candidates after them.

    Source: CrossQ (arXiv:1902.05605), section 3.2; the weights are ours.
    """

    def __init__(self, algorithm: Any, time_step: TimeStep, features: torch.Tensor, executed: Sequence[torch.Tensor]):
        self._critics: Any = algorithm.critics
        self._targets: Any = getattr(algorithm, "target_critics", None)  # None if targets come from elsewhere
        self._bootstrap_value, self._copies = algorithm.bootstrap_value, algorithm.target_update.copies
        self._features, self._executed, self.counted = features[:-1], executed, ~time_step.is_last()[:-1]
        self.next_features = features[1:].detach()
        self._joint = has_batch_statistics(self._critics)
        self._candidates: tuple[torch.Tensor, ...] = ()  # weights [M], the critics' features and action parts [M, ...]
        self._prediction: torch.Tensor | None = None

    def bootstrap(
        self, features: torch.Tensor, *action: torch.Tensor, weights: torch.Tensor | None = None
    ) -> torch.Tensor | ValueDistribution:
        """Returns what targets bootstrap from, over critics: values `[..., T-1, B(, D)]`, or distributions `[..., T-1, B, M]`.

        Call it under `no_grad`.

        Args:
            features, action: of the target critics at the candidates, `[..., T-1, B, *]`.
            weights: `[..., T-1, B]`, probabilities of the candidates; None: 1.
        """
        if not self._joint:
            return self._bootstrap_value(self._targets, self._targets(features, *action))
        shape = features.shape[:-1]
        counted = self.counted.float().expand(shape)
        weights = (counted if weights is None else counted * weights).flatten()
        actions = [x.flatten(0, -2) for x in action]
        self._candidates = (weights, self.next_features.expand_as(features).flatten(0, -2), *actions)
        if self._copies:
            with torch.enable_grad():
                self._prediction, found = self._forward(self._critics, self._candidates, update=True)
        else:
            _, found = self._forward(self._targets, (weights, features.flatten(0, -2), *actions), update=False)
        return self._bootstrap_value(self._critics, found.unflatten(1, shape))

    def prediction(self) -> torch.Tensor:
        """Returns the critics' predictions `[N, T-1, B(, D)(, ...)]` at the executed actions."""
        if not self._joint:
            return self._critics(self._features, *self._executed)
        if self._prediction is None:
            self._prediction, _ = self._forward(self._critics, self._candidates, update=True)
        return self._prediction.unflatten(1, self.counted.shape)

    def _forward(self, critics: Any, given: tuple[torch.Tensor, ...], update: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns predictions `[N, M, ...]` of executed pairs and of the `given` candidates."""
        executed = [x.flatten(0, 1) for x in (self._features, *self._executed)]
        count = len(executed[0])
        weights, *candidates = given or (executed[0].new_empty(0), *(x[:0] for x in executed))
        with batch_statistics(torch.cat([self.counted.flatten().float(), weights]), update):
            found = critics(*(torch.cat(pair) for pair in zip(executed, candidates, strict=True)))
        return found[:, :count], found[:, count:]
