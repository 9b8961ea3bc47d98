"""Recurrent SAC: actor and critics with a memory, for tasks that one observation does not tell enough about.

Sources: SAC (Haarnoja et al., arXiv:1812.05905); stored states and burn-in as in R2D2 (Kapturowski et al., ICLR 2019,
section 3); a memory for the actor and another for the critics as in Ni et al. (arXiv:2110.05038, section 4).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms.sac import SacAlgorithm, SacTrainInfo
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError
from taac.networks.recurrent import RecurrentEncoder
from taac.ops import distributions
from taac.specs import TensorSpec, check_unit_box


class RecurrentState(NamedTuple):
    """What is carried through time, and kept with each frame as it was before acting there."""

    actor: Nest  # [B, ...] the actor's memory
    critic: Nest  # [B, ...] the critics'


@gin.configurable
class RecurrentSacAlgorithm(SacAlgorithm):
    """Continuous SAC on histories: `pi(a | h)`, `Q_i(h', a)`, with `h` and `h'` the memories of actor and critics.

    Both memories run along in the rollout, and each frame keeps what they were before it. A replayed segment begins with
    the memories that its first frame kept; `burn_in` frames bring them up to date with the present parameters and are
    not learnt from; the rest is unrolled, beginning anew at FIRST. The target critics' memory starts from the critics'.
    Segments of demonstrations, which keep none, begin with empty memories: of what lies further back than the burn-in,
    nothing is remembered.

    Args:
        memory_ctor: called with the observation spec and `action_size`; see `RecurrentEncoder`.
        burn_in: frames.
        sac_arguments: everything else of `SacAlgorithm`, which is also where gin binds it.

    Raises:
        TaacError: as `SacAlgorithm`; a negative burn-in.
    """

    info_tells_action = False  # memories before the frame; the action executed there is the next one's `prev_action`
    encoder: RecurrentEncoder
    actor_encoder: RecurrentEncoder
    target_encoder: RecurrentEncoder

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        memory_ctor: Callable[..., RecurrentEncoder] = RecurrentEncoder,
        burn_in: int = 0,
        **sac_arguments: Any,
    ):
        check_unit_box(action_spec, "RecurrentSacAlgorithm")
        if burn_in < 0:
            raise TaacError(f"RecurrentSacAlgorithm.burn_in must be 0 or more frames, got {burn_in}")
        build = functools.partial(memory_ctor, action_size=action_spec.shape[0])
        super().__init__(observation_spec, action_spec, encoder_ctor=build, **sac_arguments)
        if getattr(self, "actor_encoder", None) is not None:
            raise TaacError(
                "RecurrentSacAlgorithm's actor has a memory of its own anyway: remove SacAlgorithm.actor_encoder_ctor"
            )
        self.actor_encoder = build(observation_spec)
        self.burn_in, self.min_segment_length = burn_in, burn_in + 2
        self.min_segment_reason = f"RecurrentSacAlgorithm.burn_in = {burn_in}, and one transition that is learnt from"

    # Acting ----------------------------------------------------------------------------------------------------------

    def initial_state(self, batch_size: int) -> RecurrentState:
        return RecurrentState(self.actor_encoder.initial_state(batch_size), self.encoder.initial_state(batch_size))

    @torch.inference_mode()
    def predict_step(self, time_step: TimeStep, state: RecurrentState, epsilon: float = 0.0) -> AlgStep:
        features, next_state = self._remember(time_step, state)
        mean, log_std = self.actor(features)
        action = distributions.squashed_normal_mode(mean, log_std, epsilon)
        return self._act(time_step, action)._replace(state=next_state, info=state)

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: RecurrentState) -> AlgStep:
        features, next_state = self._remember(time_step, state)
        action = distributions.squashed_normal_action(*self.actor(features))
        return self._act(time_step, action)._replace(state=next_state, info=state)

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: RecurrentState) -> AlgStep:
        _, next_state = self._remember(time_step, state)
        return super().random_step(time_step, ())._replace(state=next_state, info=state)

    def demonstrated_info(self, time_step: TimeStep) -> RecurrentState:
        """Empty memories: wherever a demonstrated segment begins, its burn-in alone tells what came before ("zero state").

        Memories that were made once, before training, would be those of networks that have learnt nothing, and of
        observations that are not normalised yet.
        """
        length, episodes = time_step.step_type.shape
        return nest.map_structure(lambda x: x.cpu().expand(length, *x.shape).clone(), self.initial_state(episodes))

    def _remember(self, time_step: TimeStep, state: RecurrentState) -> tuple[torch.Tensor, RecurrentState]:
        """The actor's features, and both memories after this frame."""
        features, actor = self.actor_encoder(time_step, state.actor)
        _, critic = self.encoder(time_step, state.critic)
        return features, RecurrentState(actor, critic)

    # Learning --------------------------------------------------------------------------------------------------------

    def train_step(self, experience: Experience) -> SacTrainInfo:
        time_step, states = experience
        start: RecurrentState = nest.index(states, 0)
        seen = self.actor_encoder.unroll(time_step, start.actor, self.burn_in)
        features = self.encoder.unroll(time_step, start.critic, self.burn_in)
        with torch.no_grad():
            target_features = self.target_encoder.unroll(time_step, start.critic, self.burn_in + 1)
        return self.learn_from(self._learnt(experience).time_step, seen, features, target_features)

    def calc_loss(self, experience: Experience, info: SacTrainInfo) -> LossInfo:
        return super().calc_loss(self._learnt(experience), info)

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """As of SAC, at the frames after the burn-in; the actor's memory learns with it."""
        start: RecurrentState = nest.index(experience.rollout_info, 0)
        features = self.actor_encoder.unroll(experience.time_step, start.actor, self.burn_in)
        mean, _ = self.actor(features[:-1])
        learnt = self._learnt(experience)
        return self.cloned(learnt, (torch.tanh(mean) - learnt.time_step.prev_action[1:]).square().sum(-1))

    def _learnt(self, experience: Experience) -> Experience:
        """The frames after the burn-in."""
        return nest.index(experience, slice(self.burn_in, None))

    def acting_modules(self) -> list[str]:
        return [*super().acting_modules(), "encoder"]

    def actor_modules(self) -> list[nn.Module]:
        return [*super().actor_modules(), self.actor_encoder]
