"""Regularizers that keep an actor from changing much from one state to the next. Your own extends `ActorRegularizer`."""

from __future__ import annotations

import math
from collections.abc import Callable

import gin
import torch

from taac import nest
from taac.data_structures import Experience, Nest
from taac.errors import TaacError

Proposal = Callable[[Nest, Experience], torch.Tensor]


class ActorRegularizer:
    """A loss that is added to the actor's. It trains a shared encoder only with `actor_trains_encoder`."""

    name = "own"  # of its summary, `loss/regularizer_{name}`

    def __call__(self, proposal: Proposal, experience: Experience) -> torch.Tensor:
        """Returns the loss of frames 0..T-2, `[T-1, B]`; frames at which an episode has ended are left out later.

        Args:
            proposal: maps observations `[T, B, ...]` at the frames of an experience to greedy actions `[T, B, A]`; see
                `ActorCriticAlgorithm.proposal`.
            experience: the prepared batch, `[T, B]`.
        """
        raise NotImplementedError


@gin.configurable
class CAPS(ActorRegularizer):
    """Conditioning for action policy smoothness: `lambda_T |mu(s_t) - mu(s_{t+1})| + lambda_S |mu(s_t) - mu(s_t + noise)|`.

    mu is the greedy action in [-1, 1], and `| |` the Euclidean length. For TAAC mu is the proposal `tanh(mean(s, tau_prev))` that
    the switch sees, and the next one is that at the next frame, given the trajectory that was followed there.

    The weights are in units of the reward that is learnt. Where rewards are scaled, 1 can keep an actor at rest: begin with 0.01.

    Args:
        temporal: lambda_T, 0 or more.
        spatial: lambda_S, 0 or more.
        noise: standard deviation of the normal noise on each number of an observation, after its normalisation; pixels and
            choices get none.

    Raises:
        TaacError: a number is out of range.

    Source: Mysore, Mabsout, Mancuso and Saenko, Regularizing Action Policies for Smooth Control with Reinforcement Learning (ICRA
    2021, arXiv:2012.06644), equations 1 to 3.
    """

    name = "caps"

    def __init__(self, temporal: float = 1.0, spatial: float = 1.0, noise: float = 0.05):
        for name, value in {"temporal": temporal, "spatial": spatial, "noise": noise}.items():
            if not 0 <= value < math.inf:
                raise TaacError(f"CAPS.{name} must be 0 or more, got {value}")
        self.temporal, self.spatial, self.noise = temporal, spatial, noise

    def __call__(self, proposal: Proposal, experience: Experience) -> torch.Tensor:
        observation = experience.time_step.observation
        mu = proposal(observation, experience)
        loss = self.temporal * torch.linalg.vector_norm(mu[:-1] - mu[1:], dim=-1)
        if self.spatial > 0:
            near = nest.map_structure(lambda x: x + self.noise * torch.randn_like(x) if x.is_floating_point() else x, observation)
            loss = loss + self.spatial * torch.linalg.vector_norm(mu[:-1] - proposal(near, experience)[:-1], dim=-1)
        return loss


@gin.configurable
class L2C2(ActorRegularizer):
    """Local Lipschitz continuity between a state and the next: `lambda(u) |mu(s_t) - mu(s_t + u (s_{t+1} - s_t))|^2`.

    Each number of an observation has its own u, uniform in [-1, 1]; pixels and choices stay. lambda falls from `upper` at u = 0
    to `lower` where the largest `|u|` of a frame is 1: `lambda = e upper / (max |u| + e)`, `e = lower / (upper - lower)`. mu is
    the greedy action in [-1, 1]. For TAAC it is the proposal `tanh(mean(s, tau_prev))` that the switch sees, and its state is
    (s, tau_prev): tau_prev moves towards the trajectory that was followed at frame t + 1 as s moves towards s_{t+1}.

    Args:
        lower, upper: least and greatest weight, 0 < lower < upper.

    Raises:
        TaacError: they are out of range. In an update: the observation has no numbers.

    Source: Kobayashi, L2C2: Locally Lipschitz Continuous Constraint towards Stable and Smooth Reinforcement Learning (IROS 2022,
    arXiv:2202.07152), with sigma = 1. The form of lambda and the default weights are those of one public implementation for SAC.
    Unlike in the paper, the distance is that of greedy actions instead of policies, and the critics are not regularized.
    """

    name = "l2c2"

    def __init__(self, lower: float = 0.01, upper: float = 1.0):
        if not 0 < lower < upper < math.inf:
            raise TaacError(f"L2C2 needs 0 < lower < upper, got lower = {lower} and upper = {upper}")
        self.upper, self.epsilon = upper, lower / (upper - lower)

    def __call__(self, proposal: Proposal, experience: Experience) -> torch.Tensor:
        now = nest.index(experience, slice(None, -1))
        seen = (experience.time_step.observation, experience.rollout_info)
        u = nest.map_structure(_drawn, nest.index(seen, slice(None, -1)))
        near, near_info = nest.map_structure(
            lambda x, u: x[:-1] + u * (x[1:] - x[:-1]) if x.is_floating_point() else x[:-1], seen, u
        )
        far = [x.abs().reshape(*x.shape[:2], -1).amax(-1) for x in nest.flatten(u[0]) if x.is_floating_point()]
        if not far:
            raise TaacError("L2C2 moves the numbers of an observation, but here it has pixels and choices alone: remove it")
        weight = self.epsilon * self.upper / (torch.stack(far).amax(0) + self.epsilon)
        change = proposal(now.time_step.observation, now) - proposal(near, now._replace(rollout_info=near_info))
        return weight * change.square().sum(-1)


def _drawn(x: torch.Tensor) -> torch.Tensor:
    """Returns numbers like x, uniform in [-1, 1]; x itself if it is not of numbers."""
    return 2 * torch.rand_like(x) - 1 if x.is_floating_point() else x
