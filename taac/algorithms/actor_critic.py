"""The parts that SAC and TAAC share: an encoder, critics, their target networks, and the helpers that build a loss."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import gin
import torch
import torch.nn as nn

from taac import nest
from taac.algorithms.actor_regularizers import ActorRegularizer
from taac.algorithms.algorithm import Algorithm, learns_policy
from taac.algorithms.critic_step import CriticStep
from taac.algorithms.decision_price import DecisionPrice
from taac.algorithms.reward_weights import WeightedReward
from taac.algorithms.target_entropies import TargetEntropy
from taac.algorithms.target_networks import TargetUpdate
from taac.algorithms.td_losses import BaseTDLoss, OneStepTDLoss
from taac.algorithms.temperature import BranchTemperatures, Temperature
from taac.data_structures import AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError, refuse_below
from taac.networks import CriticEnsemble, LocalEncoder, ObservationEncoder
from taac.networks.bodies import projections
from taac.networks.value_heads import Combination, atoms_of
from taac.ops import losses
from taac.ops.schedules import Schedule, Scheduled
from taac.ops.value_distributions import Value, ValueDistribution, mean_of, shifted
from taac.specs import TensorSpec, observed


class TrainInfo(NamedTuple):
    """Passed from `train_step` to `calc_loss`. What a method does not have is None."""

    actor_loss: torch.Tensor  # [T, B], or [T-1, B] if the actor does not learn on the last frame
    prediction: torch.Tensor  # [N, T-1, B(, D)(, ...)], the critics' predictions at the executed actions
    q: torch.Tensor  # [N, T-1, B(, D)], the values of `prediction`
    value: torch.Tensor | ValueDistribution  # [T, B(, D)], target values, never read at frame 0; or distributions [T, B, M]
    log_pi: Any = None  # of `actor_loss`'s shape: of the sampled action, or expected over choices; detached
    bonus: torch.Tensor | None = None  # [T, B(, D)], in `value`: the entropy bonus less the price of decisions; None if 0
    q_pi: torch.Tensor | None = None  # [T or T-1, B(, D)], the critics' value of the policy's own action, detached
    mean: torch.Tensor | None = None  # [T or T-1, B, A], of the policy, before tanh, detached
    log_std: torch.Tensor | None = None  # same shape, detached
    beta: torch.Tensor | None = None  # [T, B, 2], of TAAC's switch, detached
    advantage: torch.Tensor | None = None  # [T, B], q_1 - c - q_0, before clipping, detached
    switch: torch.Tensor | None = None  # [T, B] bool, b | b~, with b~ newly sampled
    features: torch.Tensor | None = None  # [T, B, F], encoded observations, detached
    regressed: torch.Tensor | None = None  # [T-1, B] bool, where the critics learn; None: everywhere
    own: Any = ()  # what the method itself adds


@gin.configurable(
    denylist=[
        "observation_spec", "action_spec", "action_sizes", "num_choices", "reward_weight_names", "signal_gammas", "repeat_gamma"
    ]
)
class ActorCriticAlgorithm(WeightedReward, Algorithm):
    """An encoder trained by the critics, critics `Q_i(features, action parts)`, and target networks of both.

    The actor uses the features of that encoder, or has an encoder of its own.

    A subclass adds modules. Each trainable parameter must belong to one of `parameter_groups`, and `acting_modules` must name
    the modules that acting needs; an algorithm that omits something from either is refused. A module `target_x` is found by
    its name as the target network of `x`. Every `Temperature` is found by its type. Neither needs to be listed.

    Args:
        observation_spec: nest of specs.
        action_spec: a vector in [-1, 1]; or discrete choices, with one head of the critics each.
        action_sizes: widths of the action inputs of the critics; set by the subclass.
        num_choices: number of values that the critics return at once, one per choice of a discrete action; set by the
            subclass.
        reward_dim: D for a reward of D parts; None for a scalar reward.
        reward_weights: D weights of the sum that actor and switch maximise, each a number or a schedule; None: all 1. A part
            whose weight is the number 0 is not learnt. Critics, returns, gammas and losses then have only the other parts.
            Below, in subclasses, and in the rewards passed to `train_step` and `calc_loss`, `D` counts only the learnt parts
            (see `learnt_reward`).
        reward_weight_names: how scheduled weights are called; None: `reward_weights[0]` and so on.
        encoder_ctor: called with the observation spec; returns a module with `output_size`.
        critic_ctor: called with input size and `reward_dim`, and with `num_choices` if there are any; returns a module with
            the call signature of `CriticEnsemble`. If its prediction is not the value itself, for example a distribution of
            it, the module also needs `value(prediction)` and `loss(prediction, target)`; see `value_of` and `value_error`.
        td_loss: computes the critics' targets, including discounts; None: `default_td_loss`.
        target_update_tau: fraction by which target networks move towards the online networks, in (0, 1]; a number or a
            schedule.
        target_update_period: in updates.
        target_update_env_steps: the period in environment steps, which replaces `target_update_period`. Multiplied by the
            updates per environment step it is the period in updates, possibly fractional. Target networks then move after the
            first update that completes another period.
        policy_delay: actor, temperatures and price of decisions move once in this many updates, the critics in each (TD3). SAC,
            TAAC, TD3, SAC-Krep and SDAR compute no gradient of the actor in the others. The delay of target networks is
            `target_update_period`.
        actor_regularizers: constructors of losses that are added to the actor's, such as `(@CAPS,)`.
        combine_critics: "min": the least value of all critics counts, in targets, for the actor and for switches. "mean": their
            mean. Critics that predict distributions combine these for targets in a way of their own; see `CategoricalReturns`.
        target_subset: targets take the least of this many critics, drawn anew in each update, whatever `combine_critics` is
            (REDQ). None: of all.
        dqda_clipping: if set, each element of dQ/da is clipped to +- this.
        signal_gammas: discounts of the reward's last parts, those of reward signals; None: the discount of `td_loss`.
        repeat_gamma: discount per step inside a repeated action, as in the environment.
        actor_encoder_ctor: like `encoder_ctor`, for a separate encoder that is trained by the actor's loss. None: the actor
            uses the critics' features.
        actor_trains_encoder: whether the actor's loss trains the critics' encoder too, where the actor uses its features.

    Raises:
        TaacError: settings out of range; weights or gammas that do not fit the reward; critics that define only one of
            `value` and `loss`.
    """

    actor_encoder: nn.Module | None
    decision_price: DecisionPrice | None  # of methods that define a decision; None: decisions are free

    default_td_loss: type[BaseTDLoss] = OneStepTDLoss
    has_proposal = False  # whether it defines `proposal`
    stores_probabilities = False  # whether rollouts store the probabilities of their actions, which some TD losses need

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        *,
        action_sizes: Sequence[int],
        num_choices: int | None = None,
        reward_dim: int | None = None,
        reward_weights: Sequence[float | Schedule] | None = None,
        reward_weight_names: Sequence[str] | None = None,
        encoder_ctor: Callable[..., nn.Module] = ObservationEncoder,
        actor_encoder_ctor: Callable[..., nn.Module] | None = None,
        actor_trains_encoder: bool = False,
        critic_ctor: Callable[..., nn.Module] = CriticEnsemble,
        td_loss: BaseTDLoss | None = None,
        target_update_tau: float | Schedule = 0.005,
        target_update_period: int = 1,
        target_update_env_steps: int | None = None,
        policy_delay: int = 1,
        actor_regularizers: Sequence[Callable[[], ActorRegularizer]] = (),
        combine_critics: Combination = "min",
        target_subset: int | None = None,
        dqda_clipping: float | None = None,
        signal_gammas: Sequence[float | None] = (),
        repeat_gamma: float = 1.0,
    ):
        super().__init__()
        self.target_update = TargetUpdate(target_update_tau, target_update_period, target_update_env_steps)
        if dqda_clipping is not None and dqda_clipping <= 0:
            raise TaacError(f"dqda_clipping must be above 0, got {dqda_clipping}")
        if combine_critics not in ("min", "mean"):
            raise TaacError(f"{type(self).__name__}.combine_critics must be 'min' or 'mean', got {combine_critics!r}")
        self.combine_critics, self.target_subset = combine_critics, target_subset
        refuse_below(1, type(self).__name__, policy_delay=policy_delay)
        self.policy_delay, self.action_size = policy_delay, action_spec.numel
        self.scheduled = self.build_weights(reward_weights, reward_weight_names, reward_dim) + self.target_update.scheduled
        self.encoder = encoder_ctor(observation_spec)
        self.feature_size = int(self.encoder.output_size)  # type: ignore[arg-type]
        self.register_module("actor_encoder", actor_encoder_ctor and actor_encoder_ctor(observation_spec))
        self.register_module("decision_price", None)
        self.actor_trains_encoder = actor_trains_encoder
        if actor_trains_encoder and (self.actor_encoder is not None or not trainable(self.encoder)):
            why = "the actor has an encoder of its own" if self.actor_encoder is not None else "its encoder has no parameters"
            raise TaacError(f"{type(self).__name__}: actor_trains_encoder = True has no effect, because {why}: remove it")
        actor_encoder: Any = self.encoder if self.actor_encoder is None else self.actor_encoder
        self.actor_feature_size = int(actor_encoder.output_size)
        choices = {} if num_choices is None else {"num_choices": num_choices}
        sizes = {"action_sizes": action_sizes} if "action_sizes" in inspect.signature(critic_ctor).parameters else {}
        self.critics = critic_ctor(self.feature_size + sum(action_sizes), self.reward_dim, **choices, **sizes)
        self.target_encoder = copy.deepcopy(self.encoder).requires_grad_(False)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.dqda_clipping = dqda_clipping
        self.actor_regularizers = tuple(make() for make in actor_regularizers)
        if self.actor_regularizers and not self.has_proposal:
            raise TaacError(
                f"{type(self).__name__} supports no actor_regularizers: its actor proposes no single action from a state alone. "
                "SAC, TD3, TAAC and most that is built on them do, but not on chunks"
            )
        td_loss = td_loss or self.default_td_loss()
        td_loss.check(reward_dim, type(self).__name__, self.stores_probabilities)
        self.td_loss = td_loss.fitted(reward_dim, self.reward_parts, signal_gammas, repeat_gamma)
        self.check_critics(self.critics)
        count = getattr(self.critics, "num_critics", None)
        if target_subset is not None and not (target_subset >= 1 and (count is None or target_subset <= count)):
            raise TaacError(f"target_subset must be in [1, the number of critics, {count}], got {target_subset}")

    # Features --------------------------------------------------------------------------------------------------------

    def encode(self, observation: Nest) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns features `[..., F]` for the critics and for the actor."""
        features = self.encoder(observation)
        return features, self._shared(features) if self.actor_encoder is None else self.actor_encoder(observation)

    def actor_features(self, observation: Nest) -> torch.Tensor:
        """Returns the actor's features only; see `encode`."""
        return self._shared(self.encoder(observation)) if self.actor_encoder is None else self.actor_encoder(observation)

    def _shared(self, features: torch.Tensor) -> torch.Tensor:
        return features if self.actor_trains_encoder and learns_policy() else features.detach()

    # Acting of a policy that has no state: a subclass defines `greedy_step` and `sampled_step`, or all of these ---------

    def initial_state(self, batch_size: int) -> Nest:
        return ()

    @torch.inference_mode()
    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        return self.greedy_step(time_step, self.actor_features(time_step.observation), epsilon)

    @torch.inference_mode()
    def rollout_step(self, time_step: TimeStep, state: Nest, noise: torch.Tensor | None = None) -> AlgStep:
        return self.sampled_step(time_step, self.actor_features(time_step.observation), noise)

    @torch.inference_mode()
    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        batch, device = time_step.step_type.shape[0], time_step.step_type.device
        return self.execute(time_step, torch.empty(batch, self.action_size, device=device).uniform_(-1.0, 1.0))

    def greedy_step(self, time_step: TimeStep, features: torch.Tensor, epsilon: float) -> AlgStep:
        """Returns the step of `predict_step`, given the actor's features `[B, F]`."""
        raise NotImplementedError

    def sampled_step(self, time_step: TimeStep, features: torch.Tensor, noise: torch.Tensor | None = None) -> AlgStep:
        """Returns the step of `rollout_step`, given the actor's features `[B, F]`."""
        raise NotImplementedError

    def execute(self, time_step: TimeStep, action: Any) -> AlgStep:
        """Returns the step that executes an action, leaves `[B, ...]`."""
        # Replay finds this action in the next frame's prev_action, so nothing else is stored.
        return AlgStep(action, (), (), torch.ones_like(time_step.step_type, dtype=torch.bool))

    # Critics' values -------------------------------------------------------------------------------------------------

    @staticmethod
    def value_of(critics: nn.Module, prediction: torch.Tensor) -> torch.Tensor:
        """Converts the critics' predictions to values `[N, ...(, C)(, D)]`.

        Args:
            critics: if they have `value(prediction)`, its result is returned; otherwise the prediction itself.
            prediction: `[N, ...(, C)(, D)]`, possibly with further dimensions, for example those of a distribution.
        """
        value = getattr(critics, "value", None)
        return prediction if value is None else value(prediction)

    def q_values(self, critics: nn.Module, features: torch.Tensor, *action: torch.Tensor) -> torch.Tensor:
        """Returns values `[N, ...(, C)(, D)]` at features `[..., F]` and action parts `[..., A]`."""
        return self.value_of(critics, critics(features, *action))

    def critic_step(self, time_step: TimeStep, features: torch.Tensor, *executed: torch.Tensor) -> CriticStep:
        """Returns the critics of an update, for features `[T, B, F]` and the parts of executed actions `[T-1, B, A]`."""
        return CriticStep(self, time_step, features, executed)

    def bootstrap_value(self, critics: nn.Module, prediction: torch.Tensor) -> torch.Tensor | ValueDistribution:
        """Returns what targets bootstrap from, of predictions `[N, ...]`: values `[...(, D)]`, or distributions `[..., M]`."""
        combination = self.combine_critics
        if self.target_subset is not None:
            combination = "min"
            if self.target_subset < len(prediction):  # inductor cannot compile a draw of all
                drawn = torch.randperm(len(prediction), device=prediction.device)[: self.target_subset]
                prediction = prediction.index_select(0, drawn)
        distribution: Any = getattr(critics, "distribution", None)
        if distribution is None:
            return self.over_critics(self.value_of(critics, prediction), combination)
        return distribution(prediction, combination)

    def critic_features(self, time_step: TimeStep, state: Nest) -> torch.Tensor:
        """Returns the critics' features `[B, F]` of a frame, given the state before acting there."""
        return self.encoder(observed(time_step.observation, time_step.prev_action))

    def least_value(self, q: torch.Tensor) -> torch.Tensor:
        """Returns the weighted `min_i Q_i` (or mean), `[N, ...(, D)]` to `[...]`."""
        return self.weighted(self.over_critics(q))

    def min_q(self, critics: nn.Module, features: torch.Tensor, *action: torch.Tensor) -> torch.Tensor:
        """Returns the weighted `min_i Q_i` (or mean) `[...]` at features `[..., F]` and action parts `[..., A]`."""
        return self.least_value(self.q_values(critics, features, *action))

    def action_values(self, time_step: TimeStep, state: Nest, step: AlgStep) -> tuple[torch.Tensor, Nest]:
        """Returns `min_i Q_i(s, a)` `[B]`, and ()."""
        return self.min_q(self.critics, self.critic_features(time_step, state), step.output), ()

    @staticmethod
    def expected(probs: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """Returns the mean `[...(, D)]` of values `[..., C(, D)]` over choices of probabilities `[..., C]`."""
        return (nest.broadcast(probs, q) * q).sum(probs.dim() - 1)

    @staticmethod
    def at_choice(q: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
        """Selects the critics' predictions `[N, ..., C(, D)(, ...)]` at choices `[...]`."""
        index = nest.broadcast(choice.unsqueeze(-1), q[0]).unsqueeze(0)
        return q.take_along_dim(index, dim=choice.dim() + 1).squeeze(choice.dim() + 1)

    def value_error(
        self, critics: nn.Module, prediction: torch.Tensor, target: torch.Tensor | ValueDistribution
    ) -> torch.Tensor:
        """Returns the error `[T, B]` of predictions `[N, T, B(, D)(, ...)]` against targets `[T, B(, D)]` or `[T, B, M]`.

        It is the critics' own `loss(prediction, target)` if they have one; otherwise the squared or Huber error of the TD loss.
        It is summed over critics and averaged over the parts of the reward.
        """
        loss = getattr(critics, "loss", None)
        return self.td_loss.error(prediction, mean_of(target)) if loss is None else loss(prediction, target)

    def critic_loss(self, prediction: torch.Tensor, target: torch.Tensor | ValueDistribution) -> torch.Tensor:
        """Returns the loss `[T, B]` of predictions at frames 0..T-2, `[N, T-1, B(, D)(, ...)]`; 0 at frame T-1."""
        return nn.functional.pad(self.value_error(self.critics, prediction, target), (0, 0, 0, 1))

    def check_critics(self, critics: nn.Module) -> None:
        """Refuses critics that define only one of `value` and `loss`, or that define `loss` while `huber_delta` is set.

        Raises:
            TaacError: names the critics' class.
        """
        name = type(critics).__name__
        defined = [part for part in ("value", "loss") if callable(getattr(critics, part, None))]
        if len(defined) == 1:
            raise TaacError(
                f"{name} defines {defined[0]}() alone: critics whose prediction is not the value itself need both "
                "value(prediction) and loss(prediction, target)"
            )
        if defined and self.td_loss.huber_delta is not None:
            raise TaacError(
                f"{name} computes its own loss, so {type(self.td_loss).__name__}.huber_delta has no effect: remove it"
            )

    def over_critics(self, q: torch.Tensor, combination: Combination | None = None) -> torch.Tensor:
        """Combines the critics' values, `[N, ...]` to `[...]`."""
        if (combination or self.combine_critics) == "mean":
            return q.mean(0)
        return self.least(q)

    def action_gradient(self, q: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """Returns dQ/da of `q` `[...]` at `action` `[..., A]`, each element clipped to +- `dqda_clipping` if that is set.

        The critics' own parameters receive no gradient.
        """
        (gradient,) = torch.autograd.grad(q.sum(), action)
        return gradient if self.dqda_clipping is None else gradient.clamp(-self.dqda_clipping, self.dqda_clipping)

    def proposal(self, observation: Nest, experience: Experience) -> torch.Tensor:
        """Returns the greedy continuous action `[T, B, A]` at observations, before a switch, if there is one.

        Args:
            observation: those of the experience, or others in their place, `[T, B, ...]`.
            experience: what else the actor sees at these frames.
        """
        raise self._undefined("proposal", "actor_regularizers need")

    def priced(self, value: Value, decisions: torch.Tensor | float) -> Value:
        """Returns a value `[...(, D)]`, or its distribution, less the price of (expected) decisions `[...]`."""
        paid = self._paid(value, decisions)
        return value if paid is None else shifted(value, -paid)

    def priced_bonus(
        self, bonus: torch.Tensor | None, value: Value, decisions: torch.Tensor | float
    ) -> torch.Tensor | None:
        """Returns the bonus of a value, None if there is none, less the price of decisions `[...]`."""
        paid = self._paid(value, decisions)
        if paid is None:
            return bonus
        return -paid if bonus is None else bonus - paid

    def _paid(self, value: Value, decisions: torch.Tensor | float) -> torch.Tensor | None:
        if self.decision_price is None:
            return None
        return self.share_out(self.decision_price() * decisions).expand_as(mean_of(value))

    # Putting a loss together -----------------------------------------------------------------------------------------

    def train_info(
        self,
        actor_loss: torch.Tensor,
        prediction: torch.Tensor,
        value: torch.Tensor | ValueDistribution,
        bonus: torch.Tensor | None = None,
        own: Any = (),
        **found: torch.Tensor | None,
    ) -> TrainInfo:
        """Collects what `train_step` has found.

        Args:
            actor_loss, prediction, own: as in `TrainInfo`.
            value, bonus: of frames 1..T-1.
            found: other fields of `TrainInfo`, which are detached here.
        """
        bonus = None if bonus is None else self.pad_front(bonus)
        detached = {name: None if x is None else x.detach() for name, x in found.items()}
        q = self.value_of(self.critics, prediction)
        return TrainInfo(actor_loss, prediction, q, self.pad_front(value), bonus=bonus, own=own, **detached)

    @staticmethod
    def pad_front(value: Any) -> Any:
        """Pads target values of frames 1..T-1 `[T-1, ...]` to `[T, ...]`; no return ever reads the value of frame 0."""
        if isinstance(value, ValueDistribution):
            return value.pad_front()
        return torch.cat([torch.zeros_like(value[:1]), value])

    @staticmethod
    def masked(experience: Experience, loss: torch.Tensor) -> torch.Tensor:
        """Sets the loss `[T, B]` to 0 at LAST, where no action was taken."""
        return loss.masked_fill(experience.time_step.is_last(), 0.0)

    def cloned(self, experience: Experience, distance: torch.Tensor) -> torch.Tensor:
        """Turns distances `[T-1, B]` between policy and demonstrated actions at frames 0..T-2 into a loss `[T, B]`."""
        return self.masked(experience, nn.functional.pad(distance, (0, 0, 0, 1)))

    def segment_error(
        self, experience: Experience, q: torch.Tensor, target: torch.Tensor, regressed: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Returns `|Q_i - G|` `[B]`, averaged over critics, parts of the reward, and the learnt frames of each segment.

        It is 0 for a segment without learnt frames. Prioritised replay uses it as the priority.

        Args:
            q: `[N, T-1, B(, D)]`, at the executed actions.
            target: `[T-1, B(, D)]`, the returns.
            regressed: `[T-1, B]` bool, where the critics learn; None: everywhere.
        """
        error = self.mean_over_parts((q.detach() - target).abs().mean(0))
        learnt = self._learnt(experience, regressed).to(error.dtype)
        return (error * learnt).sum(0) / learnt.sum(0).clamp(min=1.0)

    @staticmethod
    def _learnt(experience: Experience, regressed: torch.Tensor | None) -> torch.Tensor:
        """Returns the frames that the critics learn from, `[T-1, B]` bool."""
        acted = ~experience.time_step.is_last()[:-1]
        return acted if regressed is None else acted & regressed

    def loss_info(
        self,
        experience: Experience,
        info: TrainInfo,
        target: torch.Tensor | ValueDistribution,
        temperature: Temperature | BranchTemperatures | None = None,
        temperature_losses: dict[str, torch.Tensor] | None = None,
        own: dict[str, torch.Tensor] | None = None,
    ) -> LossInfo:
        """Returns the loss of actor, temperatures and critics, with all that an actor-critic reports of it.

        Args:
            info: of `train_step`.
            target: `[T-1, B(, D)]`, of the critics, or its distributions `[T-1, B, M]`.
            temperature: of the action, if its policy is random.
            temperature_losses: by name, of the shape of `info.actor_loss`.
            own: the method's own summaries, scalars by tag.
        """
        own, temperature_losses = dict(own or {}), dict(temperature_losses or {})
        critic_loss = self.critic_loss(info.prediction, target)
        learnt = self._learnt(experience, info.regressed)
        if info.regressed is not None:
            critic_loss = critic_loss.masked_fill(nn.functional.pad(~info.regressed, (0, 0, 0, 1)), 0.0)
        if self.decision_price is not None:
            own["decision/price"] = self.decision_price()
            if self.decision_price.target_rate is not None:
                temperature_losses["price"] = self.decision_price.loss().expand_as(info.actor_loss)
        if (beyond := getattr(self.critics, "beyond", None)) is not None:
            own["critic/beyond"] = losses.masked_mean(beyond(target).detach(), learnt)
        actor_loss = info.actor_loss
        if temperature_losses:
            actor_loss = actor_loss + functools.reduce(torch.add, temperature_losses.values())
        actor_loss, regularized = self._regularized(experience, actor_loss)
        missing = len(critic_loss) - len(actor_loss)  # 1 if the actor does not learn on the last frame
        loss = self.masked(experience, nn.functional.pad(actor_loss, (0, 0, 0, missing)) + critic_loss)

        mean_target = mean_of(target)
        of_critics = {
            "loss/critic": critic_loss[:-1], "critic/q": self.mean_over_parts(info.q.detach().mean(0)),
            "critic/target": self.mean_over_parts(mean_target),
        }  # fmt: skip
        means = {"loss/actor": info.actor_loss} if learns_policy() else {}
        if info.log_pi is not None:
            means["policy/entropy"] = -info.log_pi
        if info.log_std is not None:
            means["policy/log_std"] = info.log_std.mean(-1)
        means.update({f"loss/temperature_{name}": x for name, x in temperature_losses.items()})
        summaries = {tag: losses.masked_mean(x.detach(), learnt) for tag, x in of_critics.items()}
        summaries |= {tag: self.mean_acted(experience, x) for tag, x in means.items()}
        if temperature is not None:
            summaries["policy/alpha"] = temperature.alpha()
        detail = self.detail(experience, info, mean_target)
        if (atoms := atoms_of(self.critics)) is not None:
            mean_target = mean_target.clamp(atoms[0], atoms[-1])  # no prediction can be closer to it
        error = self.segment_error(experience, info.q, mean_target, info.regressed)
        return LossInfo(loss, {**summaries, **regularized, **own}, error, detail)

    def _regularized(
        self, experience: Experience, actor_loss: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Returns the actor's loss with that of each regularizer, and their summaries."""
        summaries = {}
        for regularizer in self.actor_regularizers if learns_policy() else ():
            added = regularizer(self.proposal, experience)  # [T-1, B]
            weight = len(actor_loss) / len(added)  # so that the mean over its frames counts beside that of the actor's loss
            actor_loss = actor_loss + nn.functional.pad(weight * added, (0, 0, 0, len(actor_loss) - len(added)))
            summaries[f"loss/regularizer_{regularizer.name}"] = self.mean_acted(experience, added)
        return actor_loss, summaries

    def detail(self, experience: Experience, info: TrainInfo, target: torch.Tensor) -> dict[str, torch.Tensor]:
        """Collects the per-frame values that `Learner.diagnostics` reports.

        Returns:
            "step_type" `[T, B]`, "q" `[N, T-1, B(, D)]`, "target", and, if there are any, "value" `[T, B]`, "q_pi" and
            "advantage" `[T or T-1, B]`, "mean" and "log_std" `[T or T-1, B, A]`, "beta" `[T, B, 2]`, "action" `[T-1, B, A]`, the
            vector that was executed, "switch" `[T, B]`, the rollout's, and "regressed" `[T-1, B]`, where the critics learn.
        """
        executed, q_pi = experience.time_step.prev_action, info.q_pi
        found = {
            "step_type": experience.time_step.step_type, "q": info.q, "target": target,
            "value": self.mean_over_parts(mean_of(info.value)),
            "q_pi": self.weighted(q_pi) if q_pi is not None and q_pi.dim() > 2 else q_pi,
            "mean": info.mean, "log_std": info.log_std, "advantage": info.advantage, "beta": info.beta,
            "action": executed[1:] if isinstance(executed, torch.Tensor) and executed.is_floating_point() else None,
            "switch": getattr(experience.rollout_info, "switch", None), "regressed": info.regressed,
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    @staticmethod
    def mean_acted(experience: Experience, x: torch.Tensor) -> torch.Tensor:
        """Averages `x` over the frames where an action is taken (not LAST). Returns a detached scalar, 0 if there are none.

        Args:
            x: `[T, B]`, or `[T-1, B]` for frames 0..T-2.
        """
        return losses.masked_mean(x.detach(), ~experience.time_step.is_last()[: len(x)])

    # Schedules -------------------------------------------------------------------------------------------------------

    def build_temperature(self, ctor: Callable[..., Temperature], target: TargetEntropy) -> Temperature:
        """Builds a temperature with this target. Lists a scheduled target in `scheduled`."""
        temperature = ctor(target.nats)
        temperature.formula = target.formula
        if isinstance(target.nats, Schedule):
            self.scheduled.append(Scheduled(target.formula, target.nats, temperature.set_target_entropy))
        return temperature

    def build_decision_price(
        self, price: float | Schedule, target_rate: float | None, least: tuple[float, str] | None = None
    ) -> DecisionPrice | None:
        """Builds the price of a decision; None if decisions are free. Lists a scheduled price in `scheduled`."""
        if not isinstance(price, Schedule) and price == 0 and target_rate is None:
            return None
        name = type(self).__name__
        built = DecisionPrice(price, target_rate, name, least)
        if isinstance(price, Schedule):
            self.scheduled.append(Scheduled(f"{name}.decision_price", price, built.set))
        return built

    # Updates ---------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.weights.device

    @property
    def gamma(self) -> float | None:
        return float(self.td_loss.gamma.max())

    def temperatures(self) -> dict[str, Temperature]:
        """Returns the temperatures by name: module `x_temperature` is named "x"; module `temperature` is named "action"."""
        found = {name: module for name, module in self.named_children() if isinstance(module, Temperature)}
        return {name.removesuffix("temperature").rstrip("_") or "action": module for name, module in found.items()}

    def targets(self, experience: Experience, info: TrainInfo) -> torch.Tensor | ValueDistribution:
        """Returns the critics' targets `[T-1, B(, D)]`, or distributions, detached; with no `switch`, every step decides."""
        switch = torch.ones_like(experience.time_step.step_type, dtype=torch.bool) if info.switch is None else info.switch
        return self.td_loss.targets(experience.time_step, info.value, switch, info.bonus)

    def acting_modules(self) -> list[str]:
        return ["encoder" if self.actor_encoder is None else "actor_encoder", "actor"]

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Returns pairs of a target network and the network it follows: the modules `target_x` and `x`."""
        return [
            (slow, self.get_submodule(name.removeprefix("target_")))
            for name, slow in self.named_children()
            if name.startswith("target_")
        ]

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Returns trainable parameters by group: "actor", "critic", "temperature", and the actor's own "actor_encoder", if any.

        A subclass adds the parameters of its own modules to a group, with `trainable`.
        """
        groups = {
            "actor": trainable(self.get_submodule("actor")),
            "critic": trainable(self.encoder, self.critics),
            "temperature": trainable(*self.temperatures().values(), *([self.decision_price] if self.decision_price else [])),
        }
        return groups if self.actor_encoder is None else {**groups, "actor_encoder": trainable(self.actor_encoder)}

    def held_groups(self, num_updates: int) -> Collection[str]:
        return () if num_updates % self.policy_delay == 0 else ("actor", "actor_encoder", "temperature")

    def set_update_ratio(self, updates_per_env_step: Fraction | None) -> None:
        self.target_update.set_update_ratio(updates_per_env_step)

    def after_collect(self, decisions: int, env_steps: int) -> None:
        if self.decision_price is not None:
            self.decision_price.observe(decisions, env_steps)

    @torch.no_grad()
    def after_pretraining_step(self) -> None:
        self._project()
        for target, network in self.target_networks():
            target.load_state_dict(network.state_dict())

    @torch.no_grad()
    def after_update(self, num_updates: int) -> None:
        for temperature in self.temperatures().values():
            temperature.project()
        if self.decision_price is not None:
            self.decision_price.project()
        self._project()
        if self.target_update.is_due(num_updates):
            self.target_update.move(self.target_networks)

    def _project(self) -> None:
        for part in self._projected:
            part.project()

    @functools.cached_property
    def _projected(self) -> list[Any]:
        return projections(self)

    def describe(self) -> list[str]:
        encoder, asked = self.actor_encoder, [name for name in self.acting_modules() if "critic" in name]
        hidden = ", ".join(f"'{key}'" for key in encoder.privileged) if isinstance(encoder, LocalEncoder) else ""
        lines = [f"acting reads {hidden}, which the actor does not see, because it asks {name}" for name in asked if hidden]
        for name, t in self.temperatures().items():
            alpha, target = f"alpha {t.alpha().item():g}", f"target entropy {t.target_entropy:.4f} nats = {t.formula}"
            tuned = f"{target}; {alpha} at the start, tuning: {t.tuning}"
            lines.append(f"{name}: {alpha}, fixed" if t.tuning == "fixed" else f"{name}: {tuned}")
        return lines + self.target_update.describe()


def trainable(*modules: nn.Module) -> list[nn.Parameter]:
    """Returns the trainable parameters of modules, in order."""
    return [p for module in modules for p in module.parameters() if p.requires_grad]


def task_gamma(algorithm: Any, num_signals: int) -> float:
    """Returns the discount of the task's reward, the largest if its parts differ; reward signals are the last parts."""
    gammas = algorithm.td_loss.gamma.reshape(-1) if isinstance(algorithm, ActorCriticAlgorithm) else torch.tensor([])
    of_task = gammas[: len(gammas) - num_signals] if num_signals and len(gammas) > 1 else gammas
    return float(of_task.max()) if len(of_task) else float(algorithm.gamma)
