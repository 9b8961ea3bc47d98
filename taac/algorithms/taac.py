"""TAAC: soft actor-critic with closed-loop temporal abstraction.

At every step the actor proposes a new action `a_hat`. A second stage sees it and decides whether to start the trajectory
that begins with `a_hat` (`b = 1`) or to continue the current trajectory (`b = 0`).

Source: Yu, Xu and Zhang, TAAC: Temporally Abstract Actor-Critic for Continuous Control (NeurIPS 2021, arXiv:2104.06521),
sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms import target_entropies, trajectories
from taac.algorithms.actor_critic import ActorCriticAlgorithm, TrainInfo, trainable
from taac.algorithms.algorithm import learns_policy
from taac.algorithms.chunks import ChunkTrajectory
from taac.algorithms.critic_step import CriticStep
from taac.algorithms.td_losses import BaseTDLoss, OneStepTDLoss, TAACTDLoss
from taac.algorithms.temperature import Temperature
from taac.algorithms.trajectories import ConstantTrajectory, Tau, Trajectory
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, StepType, TimeStep
from taac.errors import TaacError, refuse_below
from taac.networks import ActorNetwork, PrefixCritics, TrajectoryEmbedding
from taac.networks.batch_statistics import gathering, has_batch_statistics
from taac.networks.layers import evaluating
from taac.ops import distributions, losses
from taac.ops.schedules import Schedule
from taac.ops.value_distributions import ValueDistribution, mixture
from taac.specs import TensorSpec, bounded, check_unit_box


class TaacState(NamedTuple):
    """State carried through time."""

    tau: Tau  # parts [B, A], the trajectory executed last (or a trajectory's own record); zeros at FIRST
    repeats: torch.Tensor  # [B] int64, number of steps it has run; 0 at FIRST, 1 after the step that started it


class TaacInfo(NamedTuple):
    """Stored with each frame in the replay buffer.

    The trajectory executed at frame t is `tau_prev` of frame t+1 unless t is LAST, so it is not stored separately.
    """

    tau_prev: Tau  # parts [B, A], the trajectory before acting here
    switch: torch.Tensor  # [B] bool, the executed b


@gin.configurable
class TaacAlgorithm(ActorCriticAlgorithm):
    """TAAC with any trajectory (Yu, Xu and Zhang, arXiv:2104.06521, algorithms 1 and 2).

    Args:
        observation_spec, action_spec: of the environment; actions are a vector in [-1, 1].
        trajectory: `ConstantTrajectory()`, `LinearTrajectory()`, `QuadraticTrajectory()`, `ChunkTrajectory()`, or any other
            `Trajectory`; None: constant.
        actor_ctor: called with the input size and the size of a proposal (A, or h A for chunks); see `ActorNetwork`.
        action_min_prob: sets the target entropy of the actor, `sum_i log((max_i - min_i) * action_min_prob)`.
        action_target_entropy: sets that target entropy directly, in nats.
        beta_min_prob: sets the target entropy of the switch, `-p log p - (1-p) log(1-p)`.
        beta_target_entropy: sets that target entropy directly, in nats; in [0, log 2].
        temperature_ctor: called with a target entropy, for actor and switch alike; see `Temperature`.
        b1_advantage_clipping: `(low, high)`, either may be None: clips the advantage `q_1 - q_0` of switching, before its price.
        max_repeat_steps: number of steps after which a switch is forced, in rollout and evaluation; None: no limit.
        randomize_first_state_tau: whether rollouts begin each episode on a random trajectory instead of at rest.
        decision_price: c, a number or a schedule: what an executed switch costs, in units of the reward that is learnt. The
            switch then compares `q_1 - c` with `q_0`, and the value of a state contains `- c beta_1`. Reported returns do not.
        target_decision_rate: learns c, from `decision_price` on, so that rollouts decide in this fraction of their steps; see
            `DecisionPrice`. None: c is as it is given.
        switch_threshold: a greedy agent switches where beta_1 is above this, in [0, 1). Published: 0.5.
        exact_compare_through: bootstraps from what b~ chose where only b~ decides, which is exact; False: from both choices, as
            published. See docs/equations.md.
        actor_critic: arguments of `ActorCriticAlgorithm`; bind them there in gin. As `td_loss`, `TAACTDLoss` is TAAC,
            `OneStepTDLoss` is TAAC-1td, `TDLoss` is TAAC-Ntd.

    A subclass with another switch overrides `switching_probability` and `learn_switch`.

    Raises:
        TaacError: a discrete, nested or unscaled action space; settings out of range; a target entropy that cannot be reached.
    """

    default_td_loss: type[BaseTDLoss] = TAACTDLoss
    switch_threshold: float = 0.5
    has_proposal = takes_noise = True

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        *,
        trajectory: Trajectory | None = None,
        actor_ctor: Callable[..., nn.Module] = ActorNetwork,
        action_min_prob: float = 0.1,
        action_target_entropy: float | Schedule | None = None,
        beta_min_prob: float = 0.05,
        beta_target_entropy: float | Schedule | None = None,
        temperature_ctor: Callable[..., Temperature] = Temperature,
        b1_advantage_clipping: tuple[float | None, float | None] | None = None,
        max_repeat_steps: int | None = None,
        randomize_first_state_tau: bool = False,
        decision_price: float | Schedule = 0.0,
        target_decision_rate: float | None = None,
        switch_threshold: float = 0.5,
        exact_compare_through: bool = False,
        **actor_critic: Any,
    ):
        check_unit_box(action_spec, "TaacAlgorithm")
        refuse_below(1, "TaacAlgorithm", max_repeat_steps=max_repeat_steps)
        trajectory = trajectory or ConstantTrajectory()
        sizes = trajectories.part_sizes(trajectory, action_spec.zeros())
        self.proposal_size = trajectories.proposal_size(trajectory, action_spec.numel)
        self.takes_noise = self.has_proposal = self.proposal_size == action_spec.numel  # not a chunk
        super().__init__(observation_spec, action_spec, action_sizes=sizes, **actor_critic)
        if isinstance(self.critics, PrefixCritics) and len(sizes) > 1 and not isinstance(trajectory, ChunkTrajectory):
            raise TaacError(f"PrefixCritics value chunks, and {type(trajectory).__name__} proposes none: use CriticEnsemble")
        self.trajectory = trajectory
        self.tau_embedding = TrajectoryEmbedding(self.actor_feature_size, sizes)
        self.actor = actor_ctor(self.tau_embedding.output_size, self.proposal_size)
        action_target = target_entropies.of_actions(
            bounded((self.proposal_size,), -1.0, 1.0), action_min_prob, action_target_entropy,
            "TaacAlgorithm.action_target_entropy",
        )  # fmt: skip
        beta_target = target_entropies.of_choices(
            2, beta_min_prob, beta_target_entropy, "TaacAlgorithm.beta_target_entropy"
        )
        self.action_temperature = self.build_temperature(temperature_ctor, action_target)
        self.beta_temperature = self.build_temperature(temperature_ctor, beta_target)
        self.b1_advantage_clipping = b1_advantage_clipping
        self.max_repeat_steps = max_repeat_steps
        if randomize_first_state_tau and self.proposal_size != self.action_size:
            raise TaacError(f"TaacAlgorithm.randomize_first_state_tau does not support {type(trajectory).__name__}: remove it")
        self.randomize_first_state_tau = randomize_first_state_tau
        self.exact_compare_through = exact_compare_through
        if exact_compare_through and not isinstance(self.td_loss, TAACTDLoss):
            raise TaacError(
                "exact_compare_through needs a td_loss whose returns go on where b~ repeats, @TAACTDLoss(), but this td_loss is "
                f"{type(self.td_loss).__name__}: remove it"
            )
        self.set_switch_threshold(switch_threshold)
        limits = {"a trajectory's length": getattr(trajectory, "length", None), "max_repeat_steps": max_repeat_steps}
        least = max(((1 / steps, f"{name} of {steps}") for name, steps in limits.items() if steps is not None), default=None)
        self.decision_price = self.build_decision_price(decision_price, target_decision_rate, least)
        self.switch_distribution(torch.zeros(1), torch.zeros(1))  # refuses invalid clipping before any work

    # Acting ----------------------------------------------------------------------------------------------------------

    def initial_state(self, batch_size: int) -> TaacState:
        device = self.device
        tau = self.trajectory.zeros(torch.zeros(batch_size, self.action_size, device=device))
        return TaacState(tau, torch.zeros(batch_size, dtype=torch.int64, device=device))

    @torch.inference_mode()
    def predict_step(self, time_step: TimeStep, state: TaacState, epsilon: float = 0.0) -> AlgStep:
        features, actor_features = self.encode(time_step.observation)
        embedded = self.tau_embedding(actor_features, state.tau)
        mean, log_std = self.actor(embedded)
        a_hat = distributions.squashed_normal_mode(mean, log_std, epsilon)
        beta_1 = self._beta_1(features, embedded, state, a_hat)
        switch = beta_1 > self.switch_threshold  # the mode at 0.5; a tie repeats
        if epsilon > 0:
            switch = torch.where(torch.rand_like(beta_1) < epsilon, torch.rand_like(beta_1) < beta_1, switch)
        return self.follow_chosen(state, a_hat, switch)._replace(switch_probability=beta_1, policy=(mean, log_std))

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: TaacState, noise: torch.Tensor | None = None) -> AlgStep:
        state = self.first_tau(time_step, state)
        features, actor_features = self.encode(time_step.observation)
        embedded = self.tau_embedding(actor_features, state.tau)
        mean, log_std = self.actor(embedded)
        a_hat = distributions.squashed_normal_action(mean, log_std, noise)
        beta_1 = self._beta_1(features, embedded, state, a_hat)
        drawn = torch.rand_like(beta_1) < beta_1
        return self.follow_chosen(state, a_hat, drawn)._replace(switch_probability=beta_1, policy=(mean, log_std))

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: TaacState) -> AlgStep:
        state = self.first_tau(time_step, state)
        a_hat = state.tau.a.new_empty(len(state.tau.a), self.proposal_size).uniform_(-1.0, 1.0)
        return self.follow_chosen(state, a_hat, self.random_switch(len(a_hat)))

    def random_switch(self, batch_size: int) -> torch.Tensor:
        """Returns the switches `[batch_size]` of the exploration before training: a fair coin each, as published."""
        return torch.rand(batch_size, device=self.device) < 0.5

    @torch.no_grad()
    def demonstrated_info(self, time_step: TimeStep) -> TaacInfo:
        last = time_step.is_last()
        absent = torch.cat([torch.zeros_like(last[:1]), last[1:] & last[:-1]])  # frames of an agent that has left
        first = time_step.is_first() | absent
        tau_prev, switch = trajectories.follow(self.trajectory, time_step.prev_action[1:], first=first)
        # At the last frame no action is known. Its switch is never read, like the action taken at LAST.
        return TaacInfo(tau_prev, torch.cat([switch, torch.ones_like(switch[:1])]))

    def follow_chosen(self, state: TaacState, a_hat: torch.Tensor, switch: torch.Tensor) -> AlgStep:
        """Follows the chosen trajectory for one step. `info` stores the executed switch, including a forced one."""
        if self.max_repeat_steps is not None:
            switch = switch | (state.repeats >= self.max_repeat_steps)
        if (ended := trajectories.has_ended(self.trajectory, state.tau)) is not None:
            switch = switch | ended
        old, new = self.trajectory.advance(state.tau), self.trajectory.start(a_hat, state.tau)
        tau = nest.where(switch, new, old)
        repeats = torch.where(switch, 1, state.repeats + 1)
        return AlgStep(tau.a, TaacState(tau, repeats), TaacInfo(state.tau, switch), switch)

    def first_tau(self, time_step: TimeStep, state: TaacState) -> TaacState:
        """Returns the state from which rollouts begin at FIRST; see `randomize_first_state_tau`."""
        if not self.randomize_first_state_tau:
            return state
        drawn = trajectories.uniform_like(state.tau)
        return state._replace(tau=nest.where(time_step.is_first(), drawn, state.tau))

    def action_values(self, time_step: TimeStep, state: TaacState, step: AlgStep) -> tuple[torch.Tensor, Nest]:
        """Returns `min_i Q_i(s, tau)` `[B]`, and what the switch compares, `[B, 2]`.

        That is q_0 of continuing, and q_1 of the greedy new trajectory less the price of a decision.

        tau starts with the action `step.output` after the previous trajectory; where `decided` is False it is that one, advanced.
        """
        features, old = self.critic_features(time_step, state), self.trajectory.advance(state.tau)
        started = self.trajectory.start(self.trajectory.output_for(step.output, state.tau), state.tau)
        same = ((step.output - step.state.tau.a).abs() <= trajectories.ROUNDING).all(-1)
        is_started = same & (step.state.repeats == 1)  # the trajectory that was started may say more than its action
        tau = nest.where(step.decided, nest.where(is_started, step.state.tau, started), old)
        new = self.trajectory.start(torch.tanh(step.policy[0]), state.tau)
        q, q_0, q_1 = (self._min_q(features, each) for each in (tau, old, new))
        return q, torch.stack([q_0, self.net_of_price(q_1)], dim=-1)

    def _beta_1(self, features: torch.Tensor, embedded: torch.Tensor, state: TaacState, a_hat: torch.Tensor) -> torch.Tensor:
        beta_1 = self.switching_probability(features, embedded, state.tau, a_hat)
        ended = trajectories.has_ended(self.trajectory, state.tau)
        return beta_1 if ended is None else beta_1.masked_fill(ended, 1.0)

    # The switch: beta follows from the critics. A subclass with its own switching head overrides these methods ------------

    def switching_probability(
        self, features: torch.Tensor, embedded: torch.Tensor, tau_prev: Tau, a_hat: torch.Tensor
    ) -> torch.Tensor:
        """Returns beta_1 `[B]` while acting. The critics evaluate both candidates in one call.

        Args:
            features, embedded: the critics' and the actor's inputs at this frame, `[B, F]`.
            tau_prev, a_hat: the previous trajectory, and the actor's proposal.
        """
        tau_0, tau_1 = self.trajectory.advance(tau_prev), self.trajectory.start(a_hat, tau_prev)
        q_0, q_1 = self._min_q(features.expand(2, *features.shape), _stack(tau_0, tau_1))
        return self.switch_distribution(q_0, self.net_of_price(q_1))[..., 1]

    def learn_switch(self, embedded: torch.Tensor, q_0: torch.Tensor, q_1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns beta `[T, B, 2]`, detached, and the loss `[T, B]` of the switch: here 0, because beta follows from Q.

        The loss is added to the actor's.

        Args:
            embedded: the actor's inputs at replayed frames, `[T, B, F]`.
            q_0, q_1: values of continuing and of switching, the latter less the price of a decision, `[T, B]`, detached.
        """
        return self.switch_distribution(q_0, q_1), torch.zeros_like(q_0)

    def net_of_price(self, q_1: torch.Tensor) -> torch.Tensor:
        """Returns the value of switching `[...]` less the price of a decision."""
        return q_1 if self.decision_price is None else q_1 - self.decision_price()

    def switch_distribution(self, q_0: torch.Tensor, q_1: torch.Tensor) -> torch.Tensor:
        """Returns beta `[..., 2]` of values `[...]` of going on and of switching, the latter less the price of a decision."""
        q, price = torch.stack([q_0, q_1], dim=-1), 0.0 if self.decision_price is None else self.decision_price()
        return distributions.beta_distribution(q, self.beta_temperature.alpha(), self.b1_advantage_clipping, price)

    # Learning --------------------------------------------------------------------------------------------------------

    def train_step(self, experience: Experience) -> TrainInfo:
        time_step, (tau_prev, b) = experience
        features, actor_features = self.encode(time_step.observation)
        frozen = features.detach()
        tau_prev, b = self._other_rests(time_step, actor_features, tau_prev, b)
        tau = nest.index(tau_prev, slice(1, None))  # executed at frames 0..T-2

        # a_hat ~ pi(. | s, tau_prev) and the two candidates: the previous trajectory advanced by a step, and a new one
        embedded = self.tau_embedding(actor_features, tau_prev)
        learns = learns_policy()
        with gathering(self.actor, ~time_step.is_last(), learns), torch.set_grad_enabled(learns):
            mean, log_std = self.actor(embedded)
            a_hat, log_pi = distributions.squashed_normal_sample(mean, log_std)
        tau_0, tau_1 = self.trajectory.advance(tau_prev), self.trajectory.start(a_hat, tau_prev)

        # beta = softmax((q_0, q_1 - c) / alpha_beta), from the online critics, with the price c of a decision
        with torch.no_grad():
            q_0 = self._min_q(frozen, tau_0)
        with torch.set_grad_enabled(learns):
            q_1 = self._min_q(frozen, tau_1)
        ended = trajectories.has_ended(self.trajectory, tau_prev)
        q_hat = q_1.detach()  # of a_hat; the policy that acts proposes another action where the actor has batch statistics
        tau_1, q_acted = self._as_acted(frozen, embedded, tau_prev, tau_1, q_hat)
        beta, switch_loss = self._choose(embedded, ended, q_0, q_acted)
        b_new = torch.rand_like(beta[..., 1]) < beta[..., 1]

        # Actor: gradient -(beta_1 dQ/da_hat) da_hat/dphi + alpha_a dlog pi/dphi
        actor_loss = switch_loss
        if learns:
            beta_hat = beta if q_acted is q_hat else self._choose(embedded, ended, q_0, q_hat)[0]
            dq_da = self.action_gradient(q_1, a_hat)
            actor_loss = losses.action_gradient_loss(a_hat, beta_hat[..., 1:] * dq_da)
            actor_loss = actor_loss + self.action_temperature.alpha() * log_pi + switch_loss

        # V(s') = beta_0 min_i Q'_i(s', tau_0) + beta_1 (min_i Q'_i(s', tau_1) - c). A return that passes a step pays for its b
        critics = self.critic_step(time_step, features, *nest.flatten(tau))
        with torch.no_grad():
            weights = self._exact_weights(time_step, beta, b, b_new) if self.exact_compare_through else beta
            value = self.next_value(critics, *nest.index((time_step.observation, tau_0, tau_1, weights), slice(1, None)))
            bonus = self.priced_bonus(None, value, b[1:])
        return self.train_info(
            actor_loss, critics.prediction(), value, bonus, own=ended, switch=b | b_new, beta=beta,
            advantage=self.net_of_price(q_acted) - q_0, q_pi=q_hat, log_pi=log_pi, mean=mean, log_std=log_std,
        )  # fmt: skip

    @torch.no_grad()
    def _other_rests(
        self, time_step: TimeStep, actor_features: torch.Tensor, tau_prev: Tau, b: torch.Tensor
    ) -> tuple[Tau, torch.Tensor]:
        """In some segments, replaces the rest of each executed chunk by that of a new proposal; see `ChunkTrajectory`.

        Returns the trajectories before each frame `[T, B, ...]`, and b: True also where the rest before the frame was replaced,
        because the executed action does not continue it. A whole segment is replaced, because a return that passed a frame would
        end at the rest of another chunk.
        """
        chunks = self.trajectory
        stops = isinstance(self.td_loss, (OneStepTDLoss, TAACTDLoss))  # at switches: another loss may pass them
        if not isinstance(chunks, ChunkTrajectory) or not chunks.other_rests or not stops:
            return tau_prev, b
        before, executed = (nest.index(tau_prev, frames) for frames in (slice(None, -1), slice(1, None)))
        mean, log_std = self.actor(self.tau_embedding(actor_features[:-1], before))
        new = chunks.with_rest(executed, distributions.squashed_normal_action(mean, log_std))
        segments = torch.rand(b.shape[1:], device=b.device) < chunks.other_rests
        other = segments & ~time_step.is_first()[1:]
        after = nest.where(other, new, executed)
        tau_prev = nest.map_structure(lambda first, later: torch.cat([first[:1], later]), tau_prev, after)
        return tau_prev, torch.cat([b[:1], b[1:] | other])

    def _choose(
        self, embedded: torch.Tensor, ended: torch.Tensor | None, q_0: torch.Tensor, q_1: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns beta `[T, B, 2]` and the loss of the switch `[T, B]`: (0, 1) and 0 where the trajectory has `ended`."""
        beta, loss = self.learn_switch(embedded, q_0, self.net_of_price(q_1))
        if ended is None:
            return beta, loss
        certain = torch.stack([torch.zeros_like(ended), torch.ones_like(ended)], -1).to(beta.dtype)
        return torch.where(ended.unsqueeze(-1), certain, beta), loss.masked_fill(ended, 0.0)

    @staticmethod
    def _exact_weights(time_step: TimeStep, beta: torch.Tensor, b: torch.Tensor, b_new: torch.Tensor) -> torch.Tensor:
        """Returns the candidates' weights in V `[T, B, 2]`: beta where the return ends whatever b~ is, else the choice of b~."""
        last = torch.arange(len(b), device=b.device).unsqueeze(-1) == len(b) - 1
        sampled = torch.stack([~b_new, b_new], dim=-1).to(beta.dtype)
        return torch.where((b | time_step.is_last() | last).unsqueeze(-1), beta, sampled)

    def calc_loss(self, experience: Experience, info: TrainInfo) -> LossInfo:
        assert info.switch is not None and info.beta is not None
        target = self.targets(experience, info)
        beta_entropy = distributions.categorical_entropy(info.beta)
        temperature_losses = {
            "action": self.action_temperature.loss(-info.log_pi),
            "beta": self.beta_temperature.loss(beta_entropy),
        }
        if info.own is not None:  # where a switch is forced, its entropy is nobody's choice
            temperature_losses["beta"] = temperature_losses["beta"].masked_fill(info.own, 0.0)
        summaries = {
            "beta/switch_probability": self.mean_acted(experience, info.beta[..., 1]),
            "beta/entropy": self.mean_acted(experience, beta_entropy),
            "beta/alpha": self.beta_temperature.alpha(),
            "beta/reach_through": _reach_through(experience, info.switch),
        }
        return self.loss_info(experience, info, target, self.action_temperature, temperature_losses, summaries)

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """Returns `|tanh(mean(s, tau_prev)) - a_hat|^2` where a new trajectory started, else 0.

        a_hat is the actor output that leads to the demonstrated action, or the demonstrated chunk. The switch is not cloned,
        because it follows from the critics. After cloning alone, the policy therefore switches at random.
        """
        acted = nest.index(experience, slice(None, -1))
        tau_prev, b = acted.rollout_info
        tau = nest.index(experience.rollout_info.tau_prev, slice(1, None))._replace(a=experience.time_step.prev_action[1:])
        a_hat = trajectories.started_by(self.trajectory, tau, tau_prev)
        return self.cloned(experience, b * (self.proposal(acted.time_step.observation, acted) - a_hat).square().sum(-1))

    def proposal(self, observation: Nest, experience: Experience) -> torch.Tensor:
        embedded = self.tau_embedding(self.actor_features(observation), experience.rollout_info.tau_prev)
        return torch.tanh(self.actor(embedded)[0])

    @torch.no_grad()
    def _as_acted(
        self, features: torch.Tensor, embedded: torch.Tensor, tau_prev: Tau, tau_1: Tau, q_1: torch.Tensor
    ) -> tuple[Tau, torch.Tensor]:
        """Returns the new trajectory and its value as the policy that acts would propose them.

        These are the given ones, unless the actor has batch statistics: it then learns with those of this batch, and acts with
        running ones.
        """
        if not (learns_policy() and has_batch_statistics(self.actor)):
            return tau_1, q_1
        tau_1 = self.trajectory.start(distributions.squashed_normal_sample(*self.actor(embedded))[0], tau_prev)
        return tau_1, self._min_q(features, tau_1)

    def _min_q(self, features: torch.Tensor, tau: Tau) -> torch.Tensor:
        """Returns the weighted min_i Q_i(features, tau) `[...]`. Candidates are compared without dropout."""
        with evaluating(self.critics):
            return self.min_q(self.critics, features, *nest.flatten(tau))

    def next_value(
        self, critics: CriticStep, observation: Nest, tau_0: Tau, tau_1: Tau, beta: torch.Tensor
    ) -> torch.Tensor | ValueDistribution:
        """Returns V(s), less the price of switching, of the target critics, which evaluate both candidates in one call.

        `[...(, D)]`; or its distribution, in which only the part of the switch is moved by the price.
        """
        features, weights = self.target_encoder(observation), beta.movedim(-1, 0)
        q = critics.bootstrap(features.expand(2, *features.shape), *nest.flatten(_stack(tau_0, tau_1)), weights=weights)
        if isinstance(q, ValueDistribution):
            switches = torch.stack([torch.zeros_like(weights[0]), torch.ones_like(weights[0])])
            return mixture(self.priced(q, switches), weights)
        return self.priced((nest.broadcast(weights, q) * q).sum(0), weights[1])

    def acting_modules(self) -> list[str]:
        price = [] if self.decision_price is None else ["decision_price"]
        return [*super().acting_modules(), "tau_embedding", "encoder", "critics", "beta_temperature", *price]  # beta needs Q

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        groups = super().parameter_groups()
        return {**groups, "actor": [*trainable(self.tau_embedding), *groups["actor"]]}


def _reach_through(experience: Experience, switch: torch.Tensor) -> torch.Tensor:
    """Returns the fraction of frames at which a return reaches through, among those where it could; a scalar, 0 if none.

    It could at frames 1..T-2 that are MID: a return stops at LAST and never reaches FIRST.
    """
    step_type = experience.time_step.step_type[1:-1]
    inside = step_type == StepType.MID
    return (inside & ~switch[1:-1]).sum() / inside.sum().clamp(min=1)


def _stack(tau_0: Tau, tau_1: Tau) -> Tau:
    """Stacks two trajectories with parts `[...]` into one with parts `[2, ...]`."""
    return nest.map_structure(lambda x, y: torch.stack([x, y]), tau_0, tau_1)
