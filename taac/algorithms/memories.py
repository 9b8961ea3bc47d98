"""Makes an actor-critic recurrent: memories that run with the rollout, stored states, burn-in.

Sources: stored states and burn-in as in R2D2 (Kapturowski et al., ICLR 2019, section 3); separate memories for the actor and
the critics as in Ni et al. (arXiv:2110.05038, section 4).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn as nn

from taac import nest
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError, refuse_below
from taac.networks.recurrent import RecurrentEncoder


class RecurrentState(NamedTuple):
    """Both memories. They are carried through time, and each frame stores them as they were before acting there."""

    actor: Nest  # [B, ...] the actor's memory
    critic: Nest  # [B, ...] the critics' memory


class Memories:
    """Mixin that adds recurrent memories to an actor-critic.

    Its `greedy_step`, `sampled_step`, `learn_from_features` and `distance` then receive features of histories. List the mixin
    before it among the bases of a class.

    Both memories run along in the rollout, and each frame stores their values before acting. A replayed segment starts with
    the memories stored at its first frame. The first `burn_in` frames update them with the current parameters and are not
    learnt from. The remaining frames are unrolled, and the memories are reset at FIRST. The target critics' memory starts
    from the critics' memory.

    Segments of demonstrations store no memories and start with empty ones. Nothing before their burn-in is remembered.
    """

    info_depends_on_action = False  # `info` holds the memories before acting, which do not depend on the action
    encoder: Any  # this and the next two are `RecurrentEncoder`s
    actor_encoder: Any
    target_encoder: Any
    greedy_step: Callable[..., AlgStep]
    sampled_step: Callable[..., AlgStep]
    learn_from_features: Callable[..., Any]
    distance: Callable[..., torch.Tensor]

    def remember_from(self, actor_encoder: RecurrentEncoder, burn_in: int) -> None:
        """Adds the actor's memory. Call it at the end of the constructor.

        Raises:
            TaacError: a negative burn-in; the actor already has an encoder of its own, or trains that of the critics.
        """
        name = type(self).__name__
        refuse_below(0, name, burn_in=burn_in)
        if getattr(self, "actor_encoder", None) is not None:
            raise TaacError(f"{name} already has a recurrent encoder for its actor: remove actor_encoder_ctor")
        if getattr(self, "actor_trains_encoder", False):
            raise TaacError(f"{name} has a recurrent encoder for its actor: actor_trains_encoder has no effect, remove it")
        self.actor_encoder = actor_encoder
        self.burn_in, self.min_segment_length = burn_in, burn_in + 2
        self.min_segment_reason = f"{name}.burn_in = {burn_in}, and one transition that is learnt from"

    def memorable(self, time_step: TimeStep) -> TimeStep:
        """Converts a frame for the memories, which need `prev_action` as a vector of floats `[..., A]`."""
        return time_step

    # Acting ----------------------------------------------------------------------------------------------------------

    def initial_state(self, batch_size: int) -> RecurrentState:
        return RecurrentState(self.actor_encoder.initial_state(batch_size), self.encoder.initial_state(batch_size))

    @torch.inference_mode()
    def predict_step(self, time_step: TimeStep, state: RecurrentState, epsilon: float = 0.0) -> AlgStep:
        features, next_state = self.remember(time_step, state)
        return self.greedy_step(time_step, features, epsilon)._replace(state=next_state, info=state)

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: RecurrentState, noise: torch.Tensor | None = None) -> AlgStep:
        features, next_state = self.remember(time_step, state)
        given = () if noise is None else (noise,)  # of an algorithm that takes noise
        return self.sampled_step(time_step, features, *given)._replace(state=next_state, info=state)

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: RecurrentState) -> AlgStep:
        _, next_state = self.remember(time_step, state)
        return super().random_step(time_step, ())._replace(state=next_state, info=state)  # type: ignore[misc]

    def demonstrated_info(self, time_step: TimeStep) -> RecurrentState:
        """Returns empty memories ("zero state"), so that a demonstrated segment relies on its burn-in alone.

        Memories computed once, before training, would come from untrained networks and from observations that are not yet
        normalised.
        """
        length, episodes = time_step.step_type.shape
        return nest.map_structure(lambda x: x.cpu().expand(length, *x.shape).clone(), self.initial_state(episodes))

    def remember(self, time_step: TimeStep, state: RecurrentState) -> tuple[torch.Tensor, RecurrentState]:
        """Returns the actor's features, and both memories after this frame."""
        frame = self.memorable(time_step)
        features, actor = self.actor_encoder(frame, state.actor)
        _, critic = self.encoder(frame, state.critic)
        return features, RecurrentState(actor, critic)

    def critic_features(self, time_step: TimeStep, state: RecurrentState) -> torch.Tensor:
        """Returns the features `[B, F]` of the critics' history, this frame included."""
        return self.encoder(self.memorable(time_step), state.critic)[0]

    # Learning --------------------------------------------------------------------------------------------------------

    def train_step(self, experience: Experience) -> Any:
        start: RecurrentState = nest.index(experience.rollout_info, 0)
        frames = self.memorable(experience.time_step)
        actor_features = self.actor_encoder.unroll(frames, start.actor, self.burn_in)
        features = self.encoder.unroll(frames, start.critic, self.burn_in)
        with torch.no_grad():
            target_features = self.target_encoder.unroll(frames, start.critic, self.burn_in + 1)
        return self.learn_from_features(self.learnt(experience).time_step, actor_features, features, target_features)

    def calc_loss(self, experience: Experience, info: Any) -> LossInfo:
        return super().calc_loss(self.learnt(experience), info)  # type: ignore[misc]

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """Returns the algorithm's cloning loss at the frames after the burn-in. It also trains the actor's memory."""
        start: RecurrentState = nest.index(experience.rollout_info, 0)
        features = self.actor_encoder.unroll(self.memorable(experience.time_step), start.actor, self.burn_in)
        return self.distance(self.learnt(experience), features[:-1])

    def learnt(self, experience: Experience) -> Experience:
        """Returns the frames after the burn-in."""
        return nest.index(experience, slice(self.burn_in, None))

    def acting_modules(self) -> list[str]:
        return [*super().acting_modules(), "encoder"]  # type: ignore[misc]

    def needed_modules(self, step: AlgStep) -> dict[str, torch.Tensor]:
        return {"encoder": torch.zeros_like(step.decided)}  # the critics' memory is for rollouts and values, not for actions

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups = super().parameter_groups()  # type: ignore[misc]
        groups["actor"] += groups.pop("actor_encoder")
        return groups
