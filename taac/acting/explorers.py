"""Explorers replace actions of the policy in a rollout, for any algorithm that learns from executed actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import gin
import numpy as np
import torch

from taac import nest
from taac.data_structures import AlgStep, Nest, TimeStep
from taac.errors import TaacError, refuse_below
from taac.ops.schedules import Schedule, bounds, follow
from taac.specs import TensorSpec


class Explorer(Protocol):
    """May replace the action of a rollout step.

    An explorer whose numbers follow schedules lists them in `scheduled`; see `Scheduled`.
    """

    def check(self, action_spec: Nest) -> None:
        """Raises TaacError if it cannot explore such actions."""

    def initial_state(self, action: torch.Tensor) -> Nest:
        """Returns the state at the start of an episode, for actions like `action` `[B, A]`."""

    def step(
        self, time_step: TimeStep, alg_step: AlgStep, state: Nest, env_steps: int, uniform: Callable[[], torch.Tensor]
    ) -> tuple[AlgStep, Nest]:
        """Returns the step to execute, with actions in [-1, 1] or choices, and the explorer's next state.

        Args:
            time_step: the current frame.
            alg_step: the policy's step. `alg_step.policy` holds the parameters of the distribution of its action; `()` with TD3
                and methods built on it.
            state: the explorer's state, `[B, ...]`; the initial one where an episode begins.
            env_steps: environment steps so far.
            uniform: draws an action uniformly from those that are valid here.
        """


@gin.configurable
class EpsilonGreedyExplorer:
    """Takes a uniformly random valid choice with probability epsilon, else the policy's sample. For discrete actions.

    Choices follow `(1 - epsilon) pi(a|s) + epsilon / n(s)`, where n(s) is the number of valid choices. Several branches explore
    independently, branch k by `(1 - epsilon) pi_k(a|s) + epsilon / n_k(s)`, and so do several agents. This is the epsilon-greedy
    multinomial sampling of PyMARL (arXiv:1902.04043).

    Args:
        epsilon: probability, or a schedule of it.
    """

    epsilon: float

    def __init__(self, epsilon: float | Schedule = 0.1):
        _check_epsilon(epsilon, "EpsilonGreedyExplorer")
        self.scheduled = follow(self, epsilon=epsilon)

    def check(self, action_spec: Nest) -> None:
        if not isinstance(action_spec, TensorSpec) or not action_spec.is_categorical:
            raise TaacError(
                f"create_collector.explorer EpsilonGreedyExplorer explores discrete actions, but the actions are "
                f"{_shown(action_spec)}; use ZetaExplorer for a continuous action vector, or none"
            )

    def initial_state(self, action: torch.Tensor) -> Nest:
        return ()

    def step(
        self, time_step: TimeStep, alg_step: AlgStep, state: Nest, env_steps: int, uniform: Callable[[], torch.Tensor]
    ) -> tuple[AlgStep, Nest]:
        choice = alg_step.output
        explores = torch.rand(choice.shape, device=choice.device) < self.epsilon
        return alg_step._replace(output=torch.where(explores, uniform(), choice)), ()


class HeldAction(NamedTuple):
    """The state of `ZetaExplorer`."""

    action: torch.Tensor  # [B, A], the random action being held
    left: torch.Tensor  # [B] int64, steps for which it is still held; 0: the policy acts


@gin.configurable
class ZetaExplorer:
    """Temporally extended epsilon-greedy: takes random actions and holds each for a random number of steps.

    While no action is held, it starts a uniformly random action with probability epsilon. It holds the action for a duration n
    drawn from the zeta distribution, `p(n) proportional to n^-mu`, n = 1, 2, ..., or until the episode ends.

    Args:
        epsilon: probability, or a schedule of it.
        mu: exponent of the zeta distribution, > 1.
        max_duration: longer durations are cut to this.

    Raises:
        TaacError: an argument is out of range.

    Source: Dabney, Ostrovski and Barreto, Temporally-Extended epsilon-Greedy Exploration (ICLR 2021, arXiv:2006.01782),
    algorithm 1 and section 3.
    """

    epsilon: float

    def __init__(self, epsilon: float | Schedule = 0.1, mu: float = 2.0, max_duration: int = 10_000):
        if not mu > 1:
            raise TaacError(f"ZetaExplorer.mu must be above 1 (else the zeta distribution has no sum), got {mu}")
        refuse_below(1, "ZetaExplorer", max_duration=max_duration)
        _check_epsilon(epsilon, "ZetaExplorer")
        self.scheduled = follow(self, epsilon=epsilon)
        weights = np.arange(1, max_duration + 1, dtype=np.float64) ** -mu
        # max_duration takes the probability of all longer ones: sum_{n > N} n^-mu is about the integral from N + 1/2.
        weights[-1] += (max_duration + 0.5) ** (1 - mu) / (mu - 1)
        self._cumulative = torch.from_numpy(np.cumsum(weights / weights.sum()))

    def check(self, action_spec: Nest) -> None:
        if not isinstance(action_spec, TensorSpec) or action_spec.is_categorical or len(action_spec.shape) != 1:
            raise TaacError(
                f"create_collector.explorer ZetaExplorer explores one continuous action vector, but the actions are "
                f"{_shown(action_spec)}; use EpsilonGreedyExplorer for discrete actions, or none"
            )

    def initial_state(self, action: torch.Tensor) -> HeldAction:
        return HeldAction(torch.zeros_like(action), torch.zeros_like(action[..., 0], dtype=torch.int64))

    def step(
        self, time_step: TimeStep, alg_step: AlgStep, state: HeldAction, env_steps: int, uniform: Callable[[], torch.Tensor]
    ) -> tuple[AlgStep, HeldAction]:
        batch, device = len(state.left), state.left.device
        held = state.left > 0
        starts = ~held & (torch.rand(batch, device=device) < self.epsilon)
        fresh = torch.empty_like(state.action).uniform_(-1.0, 1.0)  # `uniform` may keep dimensions that decide separately
        action = torch.where(starts.unsqueeze(-1), fresh, state.action)
        left = torch.where(starts, self._durations(batch, device), state.left)
        explores = held | starts
        executed = torch.where(explores.unsqueeze(-1), action, alg_step.output)
        whole = (-1, *(1,) * (alg_step.decided.dim() - 1))  # broadcasts over dimensions that decide separately
        decided = (alg_step.decided | starts.reshape(whole)) & ~held.reshape(whole)
        return alg_step._replace(output=executed, decided=decided), HeldAction(action, (left - 1).clamp(min=0))

    def _durations(self, batch: int, device: torch.device) -> torch.Tensor:
        """Draws `[batch]` durations from the zeta distribution."""
        uniform = torch.rand(batch, dtype=torch.float64)
        return (torch.searchsorted(self._cumulative, uniform).clamp(max=len(self._cumulative) - 1) + 1).to(device)


def _check_epsilon(epsilon: float | Schedule, user: str) -> None:
    for value in bounds(epsilon):
        if not 0 <= value <= 1:
            raise TaacError(f"{user}.epsilon must be in [0, 1], got {value}")


def _shown(spec: Nest) -> str:
    return f"nested: {', '.join(p for p, _ in nest.flatten_with_path(spec))}" if nest.is_container(spec) else str(spec)
