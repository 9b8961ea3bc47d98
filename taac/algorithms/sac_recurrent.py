"""Recurrent SAC: actor and critics with memories, for partially observable tasks.

Source: SAC (Haarnoja et al., arXiv:1812.05905) on histories. For the sources of the memories see `memories`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gin
import torch

from taac.algorithms.memories import Memories, RecurrentState
from taac.algorithms.sac import SacAlgorithm
from taac.data_structures import AlgStep, Experience, Nest, TimeStep
from taac.networks.recurrent import RecurrentEncoder
from taac.ops import distributions
from taac.specs import TensorSpec, check_unit_box


@gin.configurable
class RecurrentSacAlgorithm(Memories, SacAlgorithm):
    """Continuous SAC on histories: `pi(a | h)`, `Q_i(h', a)`, where `h` and `h'` are the memories of actor and critics.

    `Memories` describes what is stored and replayed.

    Args:
        observation_spec, action_spec: of the environment; actions are a vector in [-1, 1].
        memory_ctor: called with the observation spec and `action_size`; see `RecurrentEncoder`.
        burn_in: frames at the start of a segment that only update the memories; see `Memories`.
        sac_arguments: the other arguments of `SacAlgorithm`; bind them there in gin.

    Raises:
        TaacError: errors of `SacAlgorithm`; a negative burn-in; an `actor_encoder_ctor`.
    """

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        *,
        memory_ctor: Callable[..., RecurrentEncoder] = RecurrentEncoder,
        burn_in: int = 0,
        **sac_arguments: Any,
    ):
        check_unit_box(action_spec, "RecurrentSacAlgorithm")
        build = functools.partial(memory_ctor, action_size=action_spec.shape[0])
        super().__init__(observation_spec, action_spec, encoder_ctor=build, **sac_arguments)
        self.remember_from(build(observation_spec), burn_in)

    @torch.inference_mode()
    def predict_step(self, time_step: TimeStep, state: RecurrentState, epsilon: float = 0.0) -> AlgStep:
        features, next_state = self.remember(time_step, state)
        mean, log_std = self.actor(features)
        action = distributions.squashed_normal_mode(mean, log_std, epsilon)
        return self.execute(time_step, action)._replace(state=next_state, info=state)

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: RecurrentState) -> AlgStep:
        features, next_state = self.remember(time_step, state)
        mean, log_std = self.actor(features)
        action = distributions.squashed_normal_action(mean, log_std)
        return self.execute(time_step, action)._replace(state=next_state, info=state, policy=(mean, log_std))

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """Returns SAC's cloning loss at the frames after the burn-in. It also trains the actor's memory."""
        mean, _ = self.actor(self.acted_on(experience))
        learnt = self.learnt(experience)
        return self.cloned(learnt, (torch.tanh(mean) - learnt.time_step.prev_action[1:]).square().sum(-1))
