"""The base of rewards beside the task's, each predicted by a model that learns from the algorithm's batches.

A signal's reward for the transition from frame t to t+1 arrives with frame t+1, like the task's reward. It becomes one more
part of a vector reward, with a value, a discount and a weight of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from taac import nest
from taac.data_structures import Nest, TimeStep
from taac.errors import TaacError, refuse_below
from taac.networks import ObservationEncoder
from taac.networks.layers import Mlp
from taac.ops.schedules import Schedule, bounds


class RewardSignal(nn.Module):
    """An additional reward, of a model of its own or of none.

    Args:
        strength: its weight in the sum that the policy maximises; a number or a schedule.
        gamma: its discount; None: the gamma of the TD loss, which is the task's gamma if that is a single number.
        learning_rate: of its model; a number or a schedule.
        update_period: updates of the algorithm per update of this model. 1/n is n updates of the model for each of the algorithm:
            the first together with it, the others on new batches.
        batch_size: number of segments in a batch for its model, drawn uniformly from the algorithm's replay buffer, and as
            many of demonstrations if it needs them; None: its model learns from the algorithm's batch.
        normalize: whether to divide rewards by their running root mean square, so that strengths mean the same in every task.

    Raises:
        TaacError: settings out of range.
    """

    name: str
    needs_demonstrations = False
    num_batches: torch.Tensor
    mean_square: torch.Tensor
    last_loss: torch.Tensor  # loss of its model's last update, for summaries

    def __init__(
        self,
        strength: float | Schedule,
        gamma: float | None = None,
        learning_rate: float | Schedule = 3e-4,
        update_period: float = 1,
        normalize: bool = True,
        batch_size: int | None = None,
    ):
        super().__init__()
        kind = type(self).__name__
        if not all(map(math.isfinite, bounds(strength))) or not any(bounds(strength)):
            raise TaacError(f"{kind}.strength must be a number other than 0, got {strength}")
        if gamma is not None and not 0 <= gamma <= 1:
            raise TaacError(f"{kind}.gamma must be in [0, 1], or None, got {gamma}")
        if not (bounds(learning_rate)[0] >= 0 and 0 < bounds(learning_rate)[1] < math.inf):
            raise TaacError(f"{kind}.learning_rate must be above 0, got {learning_rate}")
        steps = 1 / update_period if 0 < update_period < 1 else 1.0
        whole = update_period % 1 == 0 if update_period >= 1 else math.isclose(steps, round(steps), rel_tol=1e-2)
        if not (update_period > 0 and whole):
            raise TaacError(f"{kind}.update_period must be a whole number of updates or 1/n of one, got {update_period}")
        self.strength, self.gamma, self.learning_rate = strength, gamma, learning_rate
        refuse_below(1, kind, batch_size=batch_size)
        self.update_period, self.normalize, self.batch_size = update_period, normalize, batch_size
        self.more_updates = round(steps) - 1  # of its model, after each of the algorithm's
        self.register_buffer("num_batches", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean_square", torch.zeros((), dtype=torch.float64))
        self.register_buffer("last_loss", torch.zeros(()))

    @torch.no_grad()
    def forward(self, time_step: TimeStep) -> torch.Tensor:
        """Returns the rewards `[T, B]` that arrive at replayed frames `[T, B]`; 0 at frame 0, which is never read, and where no
        transition arrives.

        Updates the statistics used by `normalize`, at call k (from 0) by the rate `8 / (8 + k)`, like those of the task's
        rewards.
        """
        arrives = transitions(time_step)
        reward = torch.where(arrives, self.reward(time_step), 0.0)
        if self.normalize:  # without reading a number, which would wait for a GPU
            some, count = arrives.any(), arrives.sum().clamp(min=1)
            fresh = (reward.double().square().sum() / count).to(self.mean_square)
            rate = 8.0 / (8.0 + self.num_batches.double())
            self.mean_square.lerp_(torch.where(some, fresh, self.mean_square), rate)
            self.num_batches.add_(some)
        return F.pad(self._normalized(reward), (0, 0, 1, 0))

    @torch.no_grad()
    def total(self, time_step: TimeStep) -> torch.Tensor:
        """Returns the sum `[B]` of an episode's rewards over its frames `[T, B]`, normalised; updates no statistics.

        Frames at which an agent is absent have none.
        """
        return self._normalized(torch.where(transitions(time_step), self.reward(time_step), 0.0)).sum(0)

    def _normalized(self, reward: torch.Tensor) -> torch.Tensor:
        if not self.normalize:
            return reward
        scale = torch.where(self.mean_square > 0, self.mean_square + 1e-10, 1.0).sqrt()  # 1 before the first update
        return reward / scale.to(reward.dtype)

    def reward(self, time_step: TimeStep) -> torch.Tensor:
        """Returns the unnormalised rewards `[T-1, B]` from each frame to the next; any value where that is no transition."""
        raise NotImplementedError

    def loss(self, time_step: TimeStep, demonstrations: TimeStep | None) -> torch.Tensor:
        """Returns the scalar loss of its model on replayed frames `[T, B]`, and on as many of demonstrations if it needs them.

        It is not called if the signal has no parameters to train.
        """
        raise NotImplementedError


class ObservationActionPairs(nn.Module):
    """Encodes observations as features and actions as vectors. Choices become one-hot; numbers are unchanged."""

    def __init__(self, observation_spec: Nest, action_spec: Nest):
        super().__init__()
        self.observation, self.action = ObservationEncoder(observation_spec), ObservationEncoder(action_spec)
        self.parts: list[tuple[int, bool]] = []  # of the action vector: width of each part, and whether it is one-hot
        for spec in nest.flatten(action_spec):
            if spec.is_categorical:
                self.parts += [(int(n), True) for n in np.broadcast_to(spec.num_choices, spec.shape).reshape(-1)]
            else:
                self.parts.append((spec.numel, False))


def transitions(time_step: TimeStep) -> torch.Tensor:
    """Returns `[T-1, B]`, whether a transition leads from frame t to t+1 of `[T, B]`, and not from one episode to the next.

    Frame t is LAST then, and t+1 is FIRST, or LAST if that episode was cut off at its first frame.
    """
    return ~(time_step.is_last()[:-1] | time_step.is_first()[1:])


def mean_over_transitions(time_step: TimeStep, values: torch.Tensor) -> torch.Tensor:
    """Averages `[T-1, B]` over transitions."""
    arrives = transitions(time_step).to(values.dtype)
    return (values * arrives).sum() / arrives.sum().clamp(min=1.0)


def network(input_size: int, hidden_layers: Sequence[int], output_size: int) -> nn.Sequential:
    if min([output_size, *hidden_layers]) < 1:
        raise TaacError(
            f"a reward signal's feature_size and hidden_layers must be 1 or more, got {output_size} and {tuple(hidden_layers)}"
        )
    last = nn.Linear(hidden_layers[-1] if hidden_layers else input_size, output_size)
    return Mlp(input_size, hidden_layers).append(last)
