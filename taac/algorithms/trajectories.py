"""Curves in action space that an agent can go on following: constant, linear, quadratic.

A trajectory at a step is a record (a NamedTuple) of tensors: its field `a` is the action that is executed, `[..., A]`; it may
have any others `[..., K]`, whose numbers are best in [-1, 1], for networks take them as they are. Those of the trajectories here
are `Tau(a, v, u)`: the action, and its first and second difference (halved); parts that a trajectory has no use for are `()`.
Two pure functions are all there is to it: `advance` goes one step on, `start` begins a new one from what the actor proposes.
Both are differentiable in their inputs.

Source: Yu, Xu and Zhang, TAAC (NeurIPS 2021, arXiv:2104.06521), section 3.3 (constant), and the supplementary material
(linear and quadratic); the table of `advance` and `start` is in each class.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import gin
import torch

from taac import nest
from taac.data_structures import Nest
from taac.errors import TaacError


class Tau(NamedTuple):
    """The trajectory at one step, as the three here have it."""

    a: Nest  # [..., A] the action that is executed
    v: Nest  # [..., A] half of its change a step, or ()
    u: Nest  # [..., A] half of the change of v a step, or ()


class Trajectory(Protocol):
    """What `TaacAlgorithm` needs of a trajectory; `tau` is its own record, with the field `a`."""

    def zeros(self, action: torch.Tensor) -> Any:
        """The trajectory at rest, for an action's batch, dtype and device."""

    def advance(self, tau: Any) -> Any:
        """The trajectory one step on."""

    def start(self, action: torch.Tensor, tau: Any) -> Any:
        """A new trajectory from the actor's output `[..., A]` in [-1, 1], following on `tau`."""

    def output_for(self, action: torch.Tensor, tau: Any) -> torch.Tensor:
        """The actor's output with which `start` executes `action` `[..., A]` in [-1, 1] now. Demonstrations need it."""


def part_sizes(trajectory: Trajectory, action: torch.Tensor) -> list[int]:
    """The width of each part of a trajectory's record, for actions like `action` `[A]`.

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


def _clamp(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-1.0, 1.0)


@gin.configurable
class ConstantTrajectory:
    """Repeats the action: `advance: a <- a`; `start: a = a_hat`."""

    def zeros(self, action: torch.Tensor) -> Tau:
        """At rest: zeros like `action` `[..., A]` in every part."""
        return Tau(torch.zeros_like(action), (), ())

    def advance(self, tau: Tau) -> Tau:
        """`a <- a`; parts `[..., A]`."""
        return tau

    def start(self, action: torch.Tensor, tau: Tau) -> Tau:
        """`a = a_hat`: `action` `[..., A]` in [-1, 1]; `tau` does not matter."""
        return Tau(action, (), ())

    def output_for(self, action: torch.Tensor, tau: Tau) -> torch.Tensor:
        """The action itself."""
        return action


@gin.configurable
class LinearTrajectory:
    """Goes on in a straight line: `advance: a <- clamp(a + 2v)`, clamp to [-1, 1].

    `start`, inverse mode (the default): the actor gives the next action, `a = a_hat`, `v = (a_hat - a_old) / 2`.
    `start`, direct mode: the actor gives the velocity, `v = a_hat`, and the trajectory advances at once.
    """

    def __init__(self, inverse_mode: bool = True):
        self.inverse_mode = inverse_mode

    def zeros(self, action: torch.Tensor) -> Tau:
        """At rest: zeros like `action` `[..., A]` in every part."""
        return Tau(torch.zeros_like(action), torch.zeros_like(action), ())

    def advance(self, tau: Tau) -> Tau:
        """`a <- clamp(a + 2v)`, v stays; parts `[..., A]` in [-1, 1]."""
        return Tau(_clamp(tau.a + 2 * tau.v), tau.v, ())

    def start(self, action: torch.Tensor, tau: Tau) -> Tau:
        """Inverse mode: `a = a_hat`, `v = (a_hat - a_old) / 2`; direct: `v = a_hat`, then `advance`. `[..., A]` each."""
        if self.inverse_mode:
            return Tau(action, (action - tau.a) / 2, ())
        return self.advance(Tau(tau.a, action, ()))

    def output_for(self, action: torch.Tensor, tau: Tau) -> torch.Tensor:
        """Inverse mode: the action itself; direct: the velocity that leads to it, `(a - a_old) / 2`. `[..., A]` each."""
        return action if self.inverse_mode else (action - tau.a) / 2


@gin.configurable
class QuadraticTrajectory:
    """Goes on in a parabola: `advance: v <- clamp(v + 2u)`, then `a <- clamp(a + 2v)`, clamp to [-1, 1]; u stays.

    `start`, inverse mode (the default): `a = a_hat`, `v = (a_hat - a_old) / 2`, `u = v / 2`: the speed that brought
    the action from old to new was gained in this one step, from rest.
    `start`, direct mode: the actor gives the acceleration, `v = 0`, `u = a_hat`, and the trajectory advances at once.
    """

    def __init__(self, inverse_mode: bool = True):
        self.inverse_mode = inverse_mode

    def zeros(self, action: torch.Tensor) -> Tau:
        """At rest: zeros like `action` `[..., A]` in every part."""
        zero = torch.zeros_like(action)
        return Tau(zero, zero.clone(), zero.clone())

    def advance(self, tau: Tau) -> Tau:
        """`v <- clamp(v + 2u)`, then `a <- clamp(a + 2v)`, u stays; parts `[..., A]` in [-1, 1]."""
        v = _clamp(tau.v + 2 * tau.u)
        return Tau(_clamp(tau.a + 2 * v), v, tau.u)

    def start(self, action: torch.Tensor, tau: Tau) -> Tau:
        """Inverse: `a = a_hat`, `v = (a_hat - a_old) / 2`, `u = v / 2`; direct: `v = 0`, `u = a_hat`, then `advance`."""
        if self.inverse_mode:
            v = (action - tau.a) / 2
            return Tau(action, v, v / 2)
        return self.advance(Tau(tau.a, torch.zeros_like(tau.a), action))

    def output_for(self, action: torch.Tensor, tau: Tau) -> torch.Tensor:
        """Inverse mode: the action itself; direct: the acceleration that leads to it, `(a - a_old) / 4`. `[..., A]` each."""
        return action if self.inverse_mode else (action - tau.a) / 4


def uniform_like(tau: Any) -> Any:
    """A trajectory's record with every part uniform in [-1, 1]."""
    return nest.map_structure(lambda x: torch.empty_like(x).uniform_(-1.0, 1.0), tau)


def select(switch: torch.Tensor, new: Any, old: Any) -> Any:
    """The record `new` where `switch` `[...]`, else `old`."""
    return nest.map_structure(lambda n, o: torch.where(switch.unsqueeze(-1), n, o), new, old)


def follow(trajectory: Trajectory, action: torch.Tensor, tolerance: float = 1e-5) -> tuple[Any, torch.Tensor]:
    """The trajectories and switches that explain the recorded actions of an episode, from rest.

    An action that the old trajectory leads to, to within `tolerance` in every dimension, goes on with it (`b = 0`); every
    other starts a new trajectory, the one that takes this action (`b = 1`). So of a demonstrator that never goes on, every
    action is a decision, and a compare-through return over its steps is the one-step return.

    Args:
        action: `[T, ..., A]` in [-1, 1], taken at frames 0..T-1.
        tolerance: for what rounding did to actions that were rescaled.

    Returns:
        The trajectories before acting at frames 0..T, parts `[T+1, ..., A]`; the switches b, `[T, ...]` bool.
    """
    tau = trajectory.zeros(action[0])
    taus, switches = [tau], []
    for taken in action:
        old = trajectory.advance(tau)
        switch = ((old.a - taken).abs() > tolerance).any(-1)
        new = trajectory.start(trajectory.output_for(taken, tau), tau)
        tau = select(switch, new, old)._replace(a=taken)  # what was taken, not what rounding makes of it
        taus.append(tau)
        switches.append(switch)
    return nest.map_structure(lambda *parts: torch.stack(parts), *taus), torch.stack(switches)
