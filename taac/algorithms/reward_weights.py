"""A vector reward as a weighted sum of its parts."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn as nn

from taac.errors import TaacError
from taac.ops.schedules import Schedule, Scheduled, at_start, bounds


class WeightedReward(nn.Module):
    """A scalar reward, or one of several parts, whose weighted sum is maximised. Parts of weight 0 are not learnt.

    Attributes:
        reward_weights: weights at the start of the D learnt parts; None for a scalar reward.
    """

    reward_weights: tuple[float, ...] | None
    reward_parts: torch.Tensor | None  # [D], indices of the learnt parts; None if all are learnt
    weights: torch.Tensor  # [D], or [0] for a scalar reward
    signs: torch.Tensor  # [D], signs of the weights

    def build_weights(
        self, given: Sequence[float | Schedule] | None, names: Sequence[str] | None, reward_dim: int | None
    ) -> list[Scheduled]:
        """Builds the weights; returns those that follow a schedule. Refuses what `check_reward_weights` refuses."""
        checked = check_reward_weights(given, reward_dim)
        kept = [(part, w) for part, w in enumerate(checked or ()) if isinstance(w, Schedule) or w != 0]
        self.reward_weights = None if checked is None else tuple(float(at_start(weight)) for _, weight in kept)
        few = len(kept) < len(checked or ())
        self.part_numbers = tuple(part for part, _ in kept) if few else None  # an update reads them without waiting for a GPU
        self.register_buffer("reward_parts", torch.tensor(self.part_numbers) if few else None, persistent=False)
        # Holds over whole schedules, because compiled programs treat it as a constant.
        self._none_negative = all(bounds(weight)[0] >= 0 for _, weight in kept)
        weights = torch.tensor(self.reward_weights or ())
        self.register_buffer("weights", weights, persistent=False)
        self.register_buffer("signs", torch.where(weights < 0, -1.0, 1.0), persistent=False)
        return [
            Scheduled(names[part] if names else f"reward_weights[{part}]", weight, functools.partial(self.set_weight, place))
            for place, (part, weight) in enumerate(kept)
            if isinstance(weight, Schedule)
        ]

    @property
    def reward_dim(self) -> int | None:
        """Returns D, the number of learnt parts of the reward; None for a scalar reward."""
        return None if self.reward_weights is None else len(self.reward_weights)

    def learnt_reward(self, reward: torch.Tensor) -> torch.Tensor:
        """Selects the parts that are learnt."""
        return reward if self.reward_parts is None else reward.index_select(-1, self.reward_parts)

    def mean_over_parts(self, x: torch.Tensor) -> torch.Tensor:
        """Averages over the parts of the reward, `[..., D]` to `[...]`; returns values of a scalar reward unchanged."""
        return x if self.reward_weights is None else x.mean(-1)

    def weighted(self, q: torch.Tensor) -> torch.Tensor:
        """Returns the weighted sum over reward parts, `[..., D]` to `[...]`; returns a scalar reward's value unchanged."""
        if self.reward_weights is None:
            return q
        return (q * self.weights).sum(-1)  # not a matrix product, which may run at another precision

    def least(self, q: torch.Tensor) -> torch.Tensor:
        """Returns the least favourable of values `[N, ...(, D)]`: the smallest, and the largest where a weight is negative."""
        if self.reward_weights is None or self._none_negative:
            return q.amin(0)
        return (q * self.signs).amin(0) * self.signs

    def share_out(self, bonus: torch.Tensor) -> torch.Tensor:
        """Splits a bonus `[...]` into the parts `[..., D]` of a vector reward, so that their weighted sum is the bonus.

        If all weights are 0, as between two knots of schedules that cross there, so are the parts.
        """
        if self.reward_weights is None:
            return bonus
        squares = self.weights.square().sum().clamp(min=torch.finfo(torch.float32).tiny)
        return bonus.unsqueeze(-1) * self.weights / squares

    @property
    def bonus_share(self) -> float:
        """The part of a bonus that each value learns; see `Algorithm.bonus_share`."""
        return float(self.share_out(torch.ones((), device=self.weights.device)).abs().mean())

    def set_weight(self, number: int, weight: float) -> None:
        """Sets the weight of a learnt part of the reward."""
        self.weights[number] = weight
        if weight:  # one of 0 keeps its sign
            self.signs[number] = -1.0 if weight < 0 else 1.0


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
