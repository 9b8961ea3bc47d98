"""Curves in action space that an agent can follow: constant, linear, quadratic.

A trajectory at one step is a record (a NamedTuple) of tensors. Its field `a` is the executed action, `[..., A]`. It may have
other fields `[..., K]`, preferably with values in [-1, 1], because networks use them unscaled. The trajectories here use the
record `Tau(a, v, u)`: the action, half of its change per step, and half of the change of v; unused parts are `()`. A trajectory
is defined by two pure functions: `advance` moves it on by one step, and `start` begins a new one from the actor's output. Both
are differentiable in their inputs.

Source: Yu, Xu and Zhang, TAAC (NeurIPS 2021, arXiv:2104.06521), section 3.3 (constant), and the supplementary material
(linear and quadratic). Each class states its own `advance` and `start`.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import gin
import torch

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError

ROUNDING = 1e-5  # of recorded actions that were rescaled


class Tau(NamedTuple):
    """The record of the three trajectories here, at one step."""

    a: Nest  # [..., A] the executed action
    v: Nest  # [..., A] half of the change of a per step, or ()
    u: Nest  # [..., A] half of the change of v per step, or ()


class Trajectory(Protocol):
    """The interface that `TaacAlgorithm` needs. `tau` is the trajectory's own record, with a field `a`.

    A trajectory may also have `proposal_size(action_size)`, the width W of what the actor proposes and `start` takes, if it is
    not A; `ended(tau)`, `[...]` bool, where `advance` has nothing to go on with, so that the switch must start a new one; and, if
    W > A, `plans(action, first)`, the proposals `[T, ..., W]` that recorded actions `[T, ..., A]` are, and `proposal(tau)`, the
    `[..., W]` from which `start` made tau.
    """

    def zeros(self, action: torch.Tensor) -> Any:
        """Returns the trajectory at rest, with the batch, dtype and device of `action`."""

    def advance(self, tau: Any) -> Any:
        """Returns the trajectory one step later."""

    def start(self, a_hat: torch.Tensor, tau: Any) -> Any:
        """Starts a new trajectory from the actor's output `[..., W]` in [-1, 1], after `tau`."""

    def output_for(self, action: torch.Tensor, tau: Any) -> torch.Tensor:
        """Returns the actor output for which `start` executes `action` `[..., A]` in [-1, 1]. Used with demonstrations."""


def part_sizes(trajectory: Trajectory, action: torch.Tensor) -> list[int]:
    """Returns the width of each part of a trajectory's record, for actions like `action` `[A]`.

    Raises:
        TaacError: the record has no field `a` of the action's shape, or a part that is no vector.
    """
    tau = trajectory.zeros(action)
    parts = nest.flatten(tau)
    if getattr(getattr(tau, "a", None), "shape", None) != action.shape or any(part.dim() != 1 for part in parts):
        raise TaacError(
            f"{type(trajectory).__name__}.zeros must return a NamedTuple of vectors [..., K], whose field 'a' is the action of "
            f"shape [..., {len(action)}]; got {tau}"
        )
    return [len(part) for part in parts]


def proposal_size(trajectory: Trajectory, action_size: int) -> int:
    """Returns W, the width of what the actor proposes: A, unless the trajectory says so."""
    own = getattr(trajectory, "proposal_size", None)
    return action_size if own is None else int(own(action_size))


def has_ended(trajectory: Trajectory, tau: Any) -> torch.Tensor | None:
    """Returns where the trajectory has nothing to go on with after `tau`, `[...]` bool; None if that is nowhere."""
    own = getattr(trajectory, "ended", None)
    return None if own is None else own(tau)


def started_by(trajectory: Trajectory, tau: Any, before: Any) -> torch.Tensor:
    """Returns the actor output `[..., W]` for which `start` makes tau after `before`."""
    own = getattr(trajectory, "proposal", None)
    return trajectory.output_for(tau.a, before) if own is None else own(tau)


def _clamp(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-1.0, 1.0)


@gin.configurable
class ConstantTrajectory:
    """Repeats the action: `advance: a <- a`; `start: a = a_hat`."""

    def zeros(self, action: torch.Tensor) -> Tau:
        """Returns zeros like `action` `[..., A]`."""
        return Tau(torch.zeros_like(action), (), ())

    def advance(self, tau: Tau) -> Tau:
        """`a <- a`; parts `[..., A]`."""
        return tau

    def start(self, a_hat: torch.Tensor, tau: Tau) -> Tau:
        """`a = a_hat`, `[..., A]` in [-1, 1]; `tau` is ignored."""
        return Tau(a_hat, (), ())

    def output_for(self, action: torch.Tensor, tau: Tau) -> torch.Tensor:
        """Returns the action itself."""
        return action


@gin.configurable
class LinearTrajectory:
    """Continues in a straight line: `advance: a <- clamp(a + 2v)`, clamp to [-1, 1].

    `start`, inverse mode (default): the actor outputs the next action, `a = a_hat`, `v = (a_hat - a_old) / 2`.
    `start`, direct mode: the actor outputs the velocity, `v = a_hat`, and the trajectory advances at once.
    """

    def __init__(self, inverse_mode: bool = True):
        self.inverse_mode = inverse_mode

    def zeros(self, action: torch.Tensor) -> Tau:
        """Returns zeros like `action` `[..., A]` in every part."""
        return Tau(torch.zeros_like(action), torch.zeros_like(action), ())

    def advance(self, tau: Tau) -> Tau:
        """`a <- clamp(a + 2v)`, v unchanged; parts `[..., A]` in [-1, 1]."""
        return Tau(_clamp(tau.a + 2 * tau.v), tau.v, ())

    def start(self, a_hat: torch.Tensor, tau: Tau) -> Tau:
        """Inverse mode: `a = a_hat`, `v = (a_hat - a_old) / 2`; direct: `v = a_hat`, then `advance`. `[..., A]` each."""
        if self.inverse_mode:
            return Tau(a_hat, (a_hat - tau.a) / 2, ())
        return self.advance(Tau(tau.a, a_hat, ()))

    def output_for(self, action: torch.Tensor, tau: Tau) -> torch.Tensor:
        """Returns the action (inverse mode), or the velocity that leads to it, `(a - a_old) / 2` (direct). `[..., A]` each."""
        return action if self.inverse_mode else (action - tau.a) / 2


@gin.configurable
class QuadraticTrajectory:
    """Continues in a parabola: `advance: v <- clamp(v + 2u)`, then `a <- clamp(a + 2v)`, clamp to [-1, 1]; u unchanged.

    `start`, inverse mode (default): the actor outputs the next action, `a = a_hat`, `v = (a_hat - a_old) / 2`, `u = v / 2`.
    This u assumes that the step from a_old to a_hat accelerated from rest.
    `start`, direct mode: the actor outputs the acceleration, `v = 0`, `u = a_hat`, and the trajectory advances at once.
    """

    def __init__(self, inverse_mode: bool = True):
        self.inverse_mode = inverse_mode

    def zeros(self, action: torch.Tensor) -> Tau:
        """Returns zeros like `action` `[..., A]` in every part."""
        zero = torch.zeros_like(action)
        return Tau(zero, zero.clone(), zero.clone())

    def advance(self, tau: Tau) -> Tau:
        """`v <- clamp(v + 2u)`, then `a <- clamp(a + 2v)`, u unchanged; parts `[..., A]` in [-1, 1]."""
        v = _clamp(tau.v + 2 * tau.u)
        return Tau(_clamp(tau.a + 2 * v), v, tau.u)

    def start(self, a_hat: torch.Tensor, tau: Tau) -> Tau:
        """Inverse: `a = a_hat`, `v = (a_hat - a_old) / 2`, `u = v / 2`; direct: `v = 0`, `u = a_hat`, then `advance`."""
        if self.inverse_mode:
            v = (a_hat - tau.a) / 2
            return Tau(a_hat, v, v / 2)
        return self.advance(Tau(tau.a, torch.zeros_like(tau.a), a_hat))

    def output_for(self, action: torch.Tensor, tau: Tau) -> torch.Tensor:
        """Returns the action (inverse mode), or the acceleration that leads to it, `(a - a_old) / 4` (direct). `[..., A]`."""
        return action if self.inverse_mode else (action - tau.a) / 4


def uniform_like(tau: Any) -> Any:
    """Returns a trajectory's record with every part uniform in [-1, 1]."""
    return nest.map_structure(lambda x: torch.empty_like(x).uniform_(-1.0, 1.0), tau)


def follow(
    trajectory: Trajectory, action: torch.Tensor, first: torch.Tensor | None = None
) -> tuple[Any, torch.Tensor]:
    """Returns the trajectories and switches that explain the recorded actions of an episode, starting at rest.

    If advancing the previous trajectory yields the recorded action, to within `ROUNDING` in every dimension, the trajectory
    continues (`b = 0`), unless it has ended. Otherwise a new one starts with that action (`b = 1`). If a demonstrator never
    continues a trajectory, every action is a decision, and a compare-through return over its steps is the one-step return.

    Args:
        action: `[T, ..., A]` in [-1, 1], taken at frames 0..T-1.
        first: `[T+1, ...]` bool, the frames at which a new trajectory begins at rest, such as those at which an agent that was
            absent is back; None: frame 0 alone.

    Returns:
        The trajectories before acting at frames 0..T, parts `[T+1, ..., A]`; the switches b, `[T, ...]` bool.
    """
    rest = tau = trajectory.zeros(action[0])
    plans = trajectory.plans(action, first) if hasattr(trajectory, "plans") else None
    taus, switches = [tau], []
    for t, taken in enumerate(action, start=1):
        old = trajectory.advance(tau)
        switch, ended = ((old.a - taken).abs() > ROUNDING).any(-1), has_ended(trajectory, tau)
        switch = switch if ended is None else switch | ended
        new = trajectory.start(trajectory.output_for(taken, tau) if plans is None else plans[t - 1], tau)
        tau = nest.where(switch, new, old)._replace(a=taken)  # the recorded action, without rounding errors
        tau = tau if first is None else nest.where(first[t], rest, tau)
        taus.append(tau)
        switches.append(switch)
    return nest.map_structure(lambda *parts: torch.stack(parts), *taus), torch.stack(switches)
