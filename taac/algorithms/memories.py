"""What makes a recurrent algorithm of one without a memory: memories that run along, stored states, burn-in.

Sources: stored states and burn-in as in R2D2 (Kapturowski et al., ICLR 2019, section 3); a memory for the actor and another
for the critics as in Ni et al. (arXiv:2110.05038, section 4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn as nn

from taac import nest
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError
from taac.networks.recurrent import RecurrentEncoder


class RecurrentState(NamedTuple):
    """What is carried through time, and kept with each frame as it was before acting there."""

    actor: Nest  # [B, ...] the actor's memory
    critic: Nest  # [B, ...] the critics'


class Memories:
    """Comes before an actor-critic in the bases of a class; the actor-critic's `learn_from` then takes features of histories.

    Both memories run along in the rollout, and each frame keeps what they were before it. A replayed segment begins with
    the memories that its first frame kept; `burn_in` frames bring them up to date with the present parameters and are
    not learnt from; the rest is unrolled, beginning anew at FIRST. The target critics' memory starts from the critics'.
    Segments of demonstrations, which keep none, begin with empty memories: of what lies further back than the burn-in,
    nothing is remembered.
    """

    info_tells_action = False  # memories before the frame; the action executed there is the next one's `prev_action`
    encoder: Any  # these three are `RecurrentEncoder`s
    actor_encoder: Any
    target_encoder: Any
    learn_from: Callable[..., Any]

    def remember_from(self, actor_encoder: RecurrentEncoder, burn_in: int) -> None:
        """Ends the constructor: adds the actor's memory.

        Raises:
            TaacError: a negative burn-in; the actor has another encoder of its own.
        """
        name = type(self).__name__
        if burn_in < 0:
            raise TaacError(f"{name}.burn_in must be 0 or more frames, got {burn_in}")
        if getattr(self, "actor_encoder", None) is not None:
            raise TaacError(f"{name}'s actor has a memory of its own anyway: remove actor_encoder_ctor")
        self.actor_encoder = actor_encoder
        self.burn_in, self.min_segment_length = burn_in, burn_in + 2
        self.min_segment_reason = f"{name}.burn_in = {burn_in}, and one transition that is learnt from"

    def memorable(self, time_step: TimeStep) -> TimeStep:
        """A frame as the memories take it, its `prev_action` a vector of floats `[..., A]`."""
        return time_step

    # Acting ----------------------------------------------------------------------------------------------------------

    def initial_state(self, batch_size: int) -> RecurrentState:
        return RecurrentState(self.actor_encoder.initial_state(batch_size), self.encoder.initial_state(batch_size))

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: RecurrentState) -> AlgStep:
        _, next_state = self.remember(time_step, state)
        return super().random_step(time_step, ())._replace(state=next_state, info=state)  # type: ignore[misc]

    def demonstrated_info(self, time_step: TimeStep) -> RecurrentState:
        """Empty memories: wherever a demonstrated segment begins, its burn-in alone tells what came before ("zero state").

        Memories that were made once, before training, would be those of networks that have learnt nothing, and of
        observations that are not normalised yet.
        """
        length, episodes = time_step.step_type.shape
        return nest.map_structure(lambda x: x.cpu().expand(length, *x.shape).clone(), self.initial_state(episodes))

    def remember(self, time_step: TimeStep, state: RecurrentState) -> tuple[torch.Tensor, RecurrentState]:
        """The actor's features, and both memories after this frame."""
        frame = self.memorable(time_step)
        features, actor = self.actor_encoder(frame, state.actor)
        _, critic = self.encoder(frame, state.critic)
        return features, RecurrentState(actor, critic)

    # Learning --------------------------------------------------------------------------------------------------------

    def train_step(self, experience: Experience) -> Any:
        start: RecurrentState = nest.index(experience.rollout_info, 0)
        frames = self.memorable(experience.time_step)
        seen = self.actor_encoder.unroll(frames, start.actor, self.burn_in)
        features = self.encoder.unroll(frames, start.critic, self.burn_in)
        with torch.no_grad():
            target_features = self.target_encoder.unroll(frames, start.critic, self.burn_in + 1)
        return self.learn_from(self.learnt(experience).time_step, seen, features, target_features)

    def calc_loss(self, experience: Experience, info: Any) -> LossInfo:
        return super().calc_loss(self.learnt(experience), info)  # type: ignore[misc]

    def acted_on(self, experience: Experience) -> torch.Tensor:
        """The actor's features of the frames after the burn-in but the last, `[T - burn_in - 1, B, F]`."""
        start: RecurrentState = nest.index(experience.rollout_info, 0)
        return self.actor_encoder.unroll(self.memorable(experience.time_step), start.actor, self.burn_in)[:-1]

    def learnt(self, experience: Experience) -> Experience:
        """The frames after the burn-in."""
        return nest.index(experience, slice(self.burn_in, None))

    def acting_modules(self) -> list[str]:
        return [*super().acting_modules(), "encoder"]  # type: ignore[misc]

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups = super().parameter_groups()  # type: ignore[misc]
        groups["actor"] += groups.pop("actor_encoder")
        return groups
