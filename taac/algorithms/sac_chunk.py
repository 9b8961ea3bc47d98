"""SAC on chunks of actions: an actor that proposes h actions at once, which are executed blindly.

Source: Li, Zhou and Levine, Reinforcement Learning with Action Chunking (Q-chunking, NeurIPS 2025, arXiv:2507.07969), on SAC
(arXiv:1812.05905).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gin
import torch

from taac import nest
from taac.algorithms.actor_critic import TrainInfo
from taac.algorithms.algorithm import learns_policy
from taac.algorithms.chunks import make_chunk
from taac.algorithms.critic_step import CriticStep
from taac.algorithms.sac import SacAlgorithm
from taac.algorithms.td_losses import OneStepTDLoss
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError, refuse_below
from taac.networks import PrefixCritics
from taac.networks.layers import evaluating
from taac.ops import distributions, value_distributions, value_ops
from taac.ops.value_distributions import PrefixTargets, ValueDistribution, mean_of
from taac.ops.value_ops import Bootstrap
from taac.specs import TensorSpec, bounded, check_unit_box


class ChunkState(NamedTuple):
    """What is left of the chunk that is executed."""

    actions: torch.Tensor  # [B, h A], the next ones first
    left: torch.Tensor  # [B] int64, how many of them are left; 0 at FIRST


class Windows(NamedTuple):
    """Chunks that were executed, as transitions of two frames: where they begin, and where they end."""

    experience: Experience  # [2, B]; prev_action[1] is `[B, h A + 1]`, actions and how many of them the critics see
    bootstrap: Bootstrap  # [1, B] each, the return from the first frame to the second; `frame` is 1
    num_actions: torch.Tensor  # [B] int64, 1 to h, that were taken
    prefixes: PrefixTargets | None = None  # [1, B, h], targets of critics that learn every prefix


@gin.configurable
class SacChunkAlgorithm(SacAlgorithm):
    """SAC whose actions are chunks of h: critics `Q_i(s, a_1..a_h)`, an actor of h actions, executed without looking again.

    A segment of h+1 frames is one transition. Its target needs no correction, because all its actions are the critics' input:
    `y = sum_{i<h} gamma^i r_{t+i+1} + gamma^h (min_i Q'_i(s_{t+h}, A') - alpha log pi(A'|s_{t+h}))`, with a new chunk A' of the
    policy. If the environment is random and segments begin inside chunks, or are demonstrations, later actions may answer to
    what happened by chance, and the value of executing them blindly is estimated with a bias.

    An episode that ends after k < h actions ends the sum there. If it terminated, actions after the k-th matter no more: those
    that the policy proposes at the first state take their place, so that the critics learn what whole chunks with these first k
    actions are worth. Where chance decides whether it terminates, the other outcomes are seen with the actions that were to
    follow, so this is unbiased only if, given the first k, these are distributed alike, as for a policy that does not change
    (and without `best_of`, whose choice was among whole chunks). If it was truncated, the others are masked, and the critics see
    how many there are. `PrefixCritics` learn the targets of all prefixes a_1..a_k at once. The source, unlike the defaults here,
    uses the mean of 10 critics and no entropy in targets, and leaves out windows that an end cuts short. With h = 1 it is SAC.

    Args:
        observation_spec, action_spec: of the environment; actions are a vector in [-1, 1].
        chunk_length: h, 1 or more. Segments have h + 1 frames.
        keep_cut_windows: False leaves windows that an end cuts short out of the critics' loss, as the source does. Chunks
            that begin fewer than h steps before a goal are then never learnt.
        cloning_weight: weight of `- log pi(A|s)` in the actor's loss, of the actions that a replayed chunk has.
        best_of: N: the actor learns nothing but to imitate replayed chunks, and of N of its samples the one that the critics
            value most is executed (in greedy steps, too, which are therefore random), and is A' in targets. None: the actor
            learns from the critics.
        sac_arguments: arguments of `SacAlgorithm`; bind them there in gin. `td_loss` must be `OneStepTDLoss`.

    Raises:
        TaacError: errors of `SacAlgorithm`; settings out of range.
    """

    takes_noise = False  # its noise has h A numbers
    has_proposal = False  # proposals of neighbouring states are chunks that begin at different times

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        *,
        chunk_length: int = 5,
        keep_cut_windows: bool = True,
        cloning_weight: float = 0.0,
        best_of: int | None = None,
        **sac_arguments: Any,
    ):
        check_unit_box(action_spec, "SacChunkAlgorithm")
        refuse_below(1, "SacChunkAlgorithm", chunk_length=chunk_length, best_of=best_of)
        refuse_below(0, "SacChunkAlgorithm", cloning_weight=cloning_weight)
        if best_of is not None and cloning_weight:
            raise TaacError(
                "SacChunkAlgorithm.best_of has its actor learn nothing but to imitate, so that a cloning_weight would change "
                f"nothing: expected 0 with it, got {cloning_weight}"
            )
        self.length, self.keep_cut_windows, self.step_size = chunk_length, keep_cut_windows, action_spec.numel
        self.critics_need = "first" if keep_cut_windows else "all"
        self.cloning_weight, self.best_of, self.action_size = cloning_weight, best_of, chunk_length * action_spec.numel
        super().__init__(observation_spec, bounded((self.action_size,), -1.0, 1.0), **sac_arguments)
        if type(self.td_loss) is not OneStepTDLoss:
            raise TaacError(f"SacChunkAlgorithm.td_loss must be @OneStepTDLoss(), got {type(self.td_loss).__name__}")
        self.learns_prefixes = isinstance(self.critics, PrefixCritics)
        self.min_segment_length = self.max_segment_length = chunk_length + 1
        self.min_segment_reason = f"so that it holds a chunk of SacChunkAlgorithm.chunk_length = {chunk_length} actions"

    def action_parts(self, action: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the critics' inputs of whole chunks `[..., h A]`, or of chunks with the number of actions, `[..., h A + 1]`."""
        count: Any = self.length if action.shape[-1] == self.action_size else action[..., -1].round().long()
        return tuple(nest.flatten(make_chunk(action[..., : self.action_size], count, self.length)))

    # Acting ----------------------------------------------------------------------------------------------------------

    def initial_state(self, batch_size: int) -> ChunkState:
        device = self.device
        none = torch.zeros(batch_size, self.action_size, device=device)
        return ChunkState(none, torch.zeros(batch_size, dtype=torch.int64, device=device))

    @torch.inference_mode()
    def predict_step(self, time_step: TimeStep, state: ChunkState, epsilon: float = 0.0) -> AlgStep:
        return self._follow(time_step, state, super().predict_step(time_step, state, epsilon))

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: ChunkState, noise: torch.Tensor | None = None) -> AlgStep:
        return self._follow(time_step, state, super().rollout_step(time_step, state))

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: ChunkState) -> AlgStep:
        """Takes a uniform action at each step, as published."""
        uniform = torch.empty(len(state.left), self.step_size, device=state.left.device).uniform_(-1.0, 1.0)
        return self.execute(time_step, uniform)._replace(state=self.initial_state(len(uniform)))

    def _follow(self, time_step: TimeStep, state: ChunkState, proposed: AlgStep) -> AlgStep:
        """Executes the next action of the chunk, or the first of a new one where none is left."""
        decided = state.left == 0
        new = proposed.output
        if self.best_of is not None:
            new = self._best(self.encoder(time_step.observation), self._samples(*proposed.policy))
        actions = torch.where(decided.unsqueeze(-1), new, state.actions)
        left = torch.where(decided, self.length, state.left) - 1
        action, rest = actions[:, : self.step_size], actions[:, self.step_size :]
        after = ChunkState(torch.cat([rest, torch.zeros_like(action)], dim=-1), left)
        return proposed._replace(output=action, state=after, decided=decided)

    def _samples(self, mean: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
        """Returns `best_of` samples of the policy, `[N, ..., h A]`."""
        assert self.best_of is not None
        return distributions.squashed_normal_action(*(x.expand(self.best_of, *x.shape) for x in (mean, log_std)))

    def _best(self, features: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
        """Returns the chunk `[..., h A]` of N that the critics value most."""
        of_each = features.expand(len(samples), *features.shape)
        with evaluating(self.critics):
            value = self.min_q(self.critics, of_each, *self.action_parts(samples))
        return samples.take_along_dim(value.argmax(0, keepdim=True).unsqueeze(-1), 0).squeeze(0)

    def action_values(self, time_step: TimeStep, state: ChunkState, step: AlgStep) -> tuple[torch.Tensor, Nest]:
        """Returns `min_i Q_i(s, a_1..a_k)` `[B]` of the action with what is left of the chunk after it, and ().

        Only `PrefixCritics` learn that of less than a whole chunk: others are NaN inside one.
        """
        after = step.state.actions[:, : self.action_size - self.step_size]
        chunk = torch.cat([step.output, after, step.state.left.unsqueeze(-1) + 1.0], dim=-1)
        features = self.critic_features(time_step, state)
        value = self.min_q(self.critics, features, *self.action_parts(chunk))
        return value if self.learns_prefixes else value.masked_fill(step.state.left < self.length - 1, math.nan), ()

    # Learning --------------------------------------------------------------------------------------------------------

    def windows(self, experience: Experience, fill: bool = True) -> Windows:
        """Returns the first h + 1 frames of each segment `[T, B]` as one transition, to the h-th frame or to LAST.

        With `fill`, a window that a termination cuts short gets the policy's actions in place of the missing ones, and counts as
        whole. One that a truncation cuts short stays cut.
        """
        experience = nest.index(experience, slice(None, self.length + 1))
        time_step = experience.time_step
        found = value_ops.bootstraps(
            time_step.reward, time_step.step_type, self.td_loss.discount(time_step), time_step.is_last()
        )
        reward, discount, frame = (x[:1] for x in found)
        count = frame[0] if frame.dim() == 2 else frame[0, :, 0]
        env = torch.arange(len(count), device=count.device)
        ends = nest.map_structure(lambda x: torch.stack([x[0], x[count, env]]), time_step)
        actions = time_step.prev_action[1:].transpose(0, 1).flatten(1)
        terminated = (discount[0] == 0).reshape(len(count), -1).all(-1)
        exist = torch.where(terminated, self.length, count) if fill else count  # filled ones are whole, like proposals
        if fill and self.length > 1:
            planned = self._proposed(nest.index(time_step.observation, 0), actions, self._taken(count))
            actions = torch.where(terminated.unsqueeze(-1), planned, actions)
        chunk = torch.cat([actions, exist.unsqueeze(-1).to(actions.dtype)], dim=-1)
        ends = ends._replace(prev_action=torch.stack([torch.zeros_like(chunk), chunk]))
        return Windows(Experience(ends, ()), Bootstrap(reward, discount, torch.ones_like(frame)), count)

    @torch.no_grad()
    def _proposed(self, observation: Nest, begun: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
        """Draws chunks `[B, h A]` as rollouts do, but keeps the elements of `begun` where `taken`."""
        mean, log_std = self.actor(self.actor_features(observation))
        if self.best_of is None:
            return torch.where(taken, begun, distributions.squashed_normal_action(mean, log_std))
        return self._best(self.encoder(observation), torch.where(taken, begun, self._samples(mean, log_std)))

    def train_step(self, experience: Experience) -> TrainInfo:
        windows = self.windows(experience, self.keep_cut_windows)
        info = super().train_step(windows.experience)
        whole = None if self.keep_cut_windows else (windows.num_actions == self.length).unsqueeze(0)
        prefixes = self._prefix_targets(experience) if self.learns_prefixes else None
        return info._replace(own=windows._replace(prefixes=prefixes), regressed=whole)

    def critic_step(self, time_step: TimeStep, features: torch.Tensor, *executed: torch.Tensor) -> CriticStep:
        step = super().critic_step(time_step, features, *executed)
        if not self.keep_cut_windows:
            step.counted = step.counted & (time_step.prev_action[1:, :, -1] == self.length)
        return step

    def next_value(
        self,
        critics: CriticStep,
        target_features: torch.Tensor,
        actor_features: torch.Tensor,
        action: torch.Tensor,
        log_pi: torch.Tensor,
    ) -> tuple[torch.Tensor | ValueDistribution, torch.Tensor | None]:
        if self.learns_prefixes:  # from every frame; see `_prefix_targets`
            return torch.zeros_like(log_pi[:1]), None
        if self.best_of is None:
            return super().next_value(critics, target_features, actor_features, action, log_pi)
        best = self._best(critics.next_features, self._samples(*self.actor(actor_features)))
        return critics.bootstrap(target_features, *self.action_parts(best)), None

    @torch.no_grad()
    def _prefix_targets(self, experience: Experience) -> PrefixTargets:
        """Returns the targets of each prefix of the chunks that segments `[T, B]` begin with."""
        time_step = nest.index(experience.time_step, slice(None, self.length + 1))
        later = nest.index(time_step.observation, slice(1, None))
        features, actor_features = self.target_encoder(later), self.actor_features(later)
        mean, log_std = self.actor(actor_features)
        action, log_pi = distributions.squashed_normal_sample(mean, log_std)
        if self.best_of is not None:
            action = self._best(self.encoder(later), self._samples(mean, log_std))
        prediction = self.target_critics(features, *self.action_parts(action))
        value = mean_of(self.bootstrap_value(self.target_critics, prediction))
        if self.entropy_in_target and self.best_of is None:
            value = value - self.temperature.alpha() * log_pi
        returns = value_ops.prefix_returns(
            time_step.reward, self.pad_front(value), time_step.step_type, self.td_loss.discount(time_step)
        )
        return PrefixTargets(returns.movedim(0, -1).unsqueeze(0))

    def targets(self, experience: Experience, info: TrainInfo) -> Any:
        found, prefixes = info.own.bootstrap, info.own.prefixes
        if prefixes is not None:
            return prefixes
        if isinstance(info.value, ValueDistribution):
            return value_distributions.return_distribution(found, info.value)
        return found.reward + found.discount * info.value[1:]

    def calc_loss(self, experience: Experience, info: TrainInfo) -> LossInfo:
        windows = info.own
        if learns_policy() and (self.cloning_weight or self.best_of is not None):
            info = info._replace(actor_loss=self._imitating(windows, info))
        return super().calc_loss(windows.experience, info)

    def temperature_losses(self, info: TrainInfo) -> dict[str, torch.Tensor]:
        return super().temperature_losses(info) if self.best_of is None else {}  # nothing there has a temperature

    def detail(self, experience: Experience, info: TrainInfo, target: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super().detail(experience, info, target)
        if self.learns_prefixes:
            del found["value"]  # that of every frame is in the targets
        return {**found, "action": found["action"][..., : self.action_size]}  # without the count

    def _imitating(self, windows: Windows, info: TrainInfo) -> torch.Tensor:
        """Returns the actor's loss `[2 or 1, B]` with `- log pi(A|s)` of the actions of replayed chunks, or that loss alone."""
        actions = windows.experience.time_step.prev_action[1, :, :-1]
        edge = 1.0 - torch.finfo(actions.dtype).eps
        features = self.actor_features(nest.index(windows.experience.time_step.observation, 0))
        mean, log_std = self.actor(features)
        pre_tanh = torch.atanh(actions.clamp(-edge, edge))
        each = (x.unsqueeze(-1) for x in (pre_tanh, mean, log_std))  # dimensions are independent
        imitation = -(distributions.squashed_normal_log_prob(*each) * self._taken(windows.num_actions)).sum(-1)
        own, weight = (info.actor_loss, self.cloning_weight) if self.best_of is None else (torch.zeros_like(info.actor_loss), 1.0)
        return torch.cat([own[:1] + len(own) * weight * imitation, own[1:]])  # the mean over frames is of the first alone

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """Returns `|tanh(mean(s)) - A|^2` over the actions of the demonstrated chunk A, `[2, B]`."""
        time_step = experience.time_step
        mean, _ = self.actor(self.actor_features(nest.index(time_step.observation, 0)))
        demonstrated = time_step.prev_action[1 : self.length + 1].transpose(0, 1).flatten(1)
        count = 1 + (~time_step.is_last()[1 : self.length]).cumprod(0).sum(0)
        distance = (torch.tanh(mean) - demonstrated).square() * self._taken(count)
        return self.cloned(nest.index(experience, slice(2)), distance.sum(-1).unsqueeze(0))

    def _taken(self, count: torch.Tensor) -> torch.Tensor:
        """Returns which elements of chunks belong to their first `count` `[B]` actions, `[B, h A]` bool."""
        return torch.arange(self.action_size, device=count.device) // self.step_size < count.unsqueeze(-1)

    def acting_modules(self) -> list[str]:
        return [*super().acting_modules(), *(["encoder", "critics"] if self.best_of is not None else [])]

    def needed_modules(self, step: AlgStep) -> dict[str, torch.Tensor]:
        return dict.fromkeys(self.acting_modules(), step.decided)
