"""Losses that are learnt besides the algorithm's own: behaviour cloning, and the models of reward signals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import gin
import torch
import torch.nn as nn

from taac.algorithms import Algorithm
from taac.algorithms.actor_critic import trainable
from taac.algorithms.agent import Agent
from taac.algorithms.reward_signals import RewardSignal
from taac.algorithms.reward_signals.signal import mean_over_transitions
from taac.data_structures import Experience, TimeStep
from taac.demonstrations.replay import Demonstrations
from taac.errors import TaacError
from taac.learning.guard import sum_of_all
from taac.machine.products import mixed_precision
from taac.ops.schedules import LinearSchedule, Schedule, bounds, follow
from taac.replay import Replay


@gin.configurable
class Cloning:
    """Determines when behaviour cloning is learnt, and with which weight. The loss is the algorithm's `cloning_loss`.

    Args:
        pretraining_updates: gradient steps on demonstrations alone, before the run's first environment step.
        initial_weight: weight of the cloning loss, added to the algorithm's own, at the first update.
        decay_updates: updates over which that weight falls linearly to 0.
        weight: that weight as a number or another schedule, instead of `initial_weight` and `decay_updates`.

    Updates in which a `policy_delay` holds the actor clone nothing, but count for `decay_updates`.

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


class SideLoss(NamedTuple):
    """The sum of the side losses of an update."""

    loss: torch.Tensor | float  # detached
    total: torch.Tensor | float  # see `sum_of_all`
    extra: dict[str, torch.Tensor]  # scalars to summarise, by tag


class SideLosses:
    """Computes the losses of an agent's reward signals, each every `update_period` updates, and of cloning.

    Cloning is left out once its weight is 0.

    Attributes:
        demonstrations: sampled for cloning and for the signals that need demonstrations; None if nothing needs them.
    """

    def __init__(self, agent: Agent, cloning: Cloning | None, demonstrations: Callable[[], Demonstrations] | None):
        self.agent, self.cloning = agent, cloning
        self.need_demonstrations = cloning is not None or any(s.needs_demonstrations for s in agent.signals)
        self.demonstrations = demonstrations() if demonstrations is not None and self.need_demonstrations else None
        self._learning = [signal for signal in agent.signals if trainable(signal)]

    @property
    def any(self) -> bool:
        return self.cloning is not None or bool(self.agent.signals)

    def demonstrated(self, batch_size: int, length: int) -> Experience:
        """Samples `batch_size` segments of demonstrations, as the algorithm receives them: one row for each of their agents."""
        assert self.demonstrations is not None
        return self.agent.prepare_observations(self.demonstrations.sample(batch_size, length), sampled=True)

    def add_gradients(
        self, parameters: Sequence[nn.Parameter], time_step: TimeStep, num_updates: int, products: str, replay: Replay | None
    ) -> SideLoss:
        """Adds the gradients of this update's losses to those of the parameters, which are the algorithm's and the signals'.

        Args:
            time_step: the frames of the batch `[T, B]`, as the algorithm receives them.
            num_updates: updates before this one.
            replay: where signals with their own `batch_size` sample.
        """
        losses, see = list[torch.Tensor](), self.agent.shown_to_signals
        length, rows = time_step.step_type.shape
        segments = rows if self.agent.agents is None else rows // self.agent.agents.count
        acts = self.cloning is not None and "actor" not in self.agent.algorithm.held_groups(num_updates + 1)
        weight = self.cloning.weight if self.cloning is not None and acts else 0.0
        due = [signal for signal in self._learning if num_updates % max(1, signal.update_period) == 0]
        needed = weight > 0 or any(signal.needs_demonstrations and signal.batch_size is None for signal in due)
        demonstrated = self.demonstrated(segments, length) if needed else None
        for signal in due:
            if signal.batch_size is None:
                frames, shown = see(time_step), None if demonstrated is None else see(demonstrated.time_step)
            else:
                frames, shown = self._new_frames(signal, signal.batch_size, length, replay)
            losses.append(self._loss_of(signal, frames, shown))
        extra: dict[str, torch.Tensor] = {}
        for number, signal in enumerate(self.agent.signals, start=-len(self.agent.signals)):
            extra[f"signal/{signal.name}_reward"] = mean_over_transitions(time_step, time_step.reward[1:, :, number])
            extra[f"signal/{signal.name}_loss"] = signal.last_loss.clone()
        if weight > 0 and demonstrated is not None:
            cloning = cloning_loss(self.agent, demonstrated, products)
            losses.append(weight * cloning)
            extra |= {"cloning/loss": cloning.detach(), "cloning/weight": cloning.new_full((), weight)}
        if not losses:
            return SideLoss(0.0, 0.0, extra)
        loss = torch.stack(losses).sum()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return SideLoss(loss.detach(), sum_of_all(loss.detach(), gradients), extra)

    def _loss_of(self, signal: RewardSignal, frames: TimeStep, shown: TimeStep | None) -> torch.Tensor:
        with self.agent.learning():
            loss = signal.loss(frames, shown)
        signal.last_loss.copy_(loss.detach())
        return loss

    def _new_frames(
        self, signal: RewardSignal, batch_size: int, length: int, replay: Replay | None
    ) -> tuple[TimeStep, TimeStep | None]:
        """Draws frames of the replay, and demonstrations, for a signal's model."""
        if replay is None:
            raise TaacError(
                f"{type(signal).__name__}.batch_size, or an update_period below 1, needs a replay buffer to sample from: pass it "
                "to Learner.update"
            )
        see = self.agent.shown_to_signals
        sampled = self.agent.prepare_observations(replay.sample(batch_size, length), sampled=True)
        shown = see(self.demonstrated(batch_size, length).time_step) if signal.needs_demonstrations else None
        return see(sampled.time_step), shown

    def more(
        self, batch_size: int, length: int, replay: Replay | None
    ) -> Iterator[tuple[RewardSignal, TimeStep, torch.Tensor]]:
        """Yields the further losses of the signals that learn more often than the algorithm, with the frames they are of.

        Batches of signals without a size of their own have `batch_size` segments of `length` frames.
        """
        for signal in self._learning:
            for _ in range(signal.more_updates):
                frames, shown = self._new_frames(signal, signal.batch_size or batch_size, length, replay)
                yield signal, frames, self._loss_of(signal, frames, shown)
