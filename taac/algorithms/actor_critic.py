"""What SAC and TAAC share: an encoder, critics, their slow targets, and how a loss is put together."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import gin
import torch
import torch.nn as nn

from taac.algorithms.algorithm import Algorithm
from taac.algorithms.target_entropies import TargetEntropy
from taac.algorithms.td_losses import BaseTDLoss, OneStepTDLoss
from taac.algorithms.temperature import BranchTemperatures, Temperature
from taac.data_structures import Experience, Nest
from taac.errors import TaacError
from taac.networks import CriticEnsemble, ObservationEncoder
from taac.ops.schedules import Schedule, Scheduled, at_start, bounds
from taac.specs import TensorSpec


@gin.configurable(
    denylist=["observation_spec", "action_spec", "action_width", "num_choices", "signal_gammas", "repeat_gamma"]
)
class ActorCriticAlgorithm(Algorithm):
    """An encoder trained by the critics alone, critics `Q_i(features, action parts)`, and a slow copy of both.

    The actor sees what that encoder gives, or has an encoder of its own.

    A subclass adds modules. Each trainable parameter belongs to one of `parameter_groups`, and `acting_modules` names what
    acting needs; `Agent` refuses an algorithm where either leaves something out. A module `target_x` is the slow copy of `x`,
    and every `Temperature` is tuned, without being listed anywhere.

    Args:
        observation_spec: nest of specs.
        action_spec: a vector in [-1, 1]; or choices, which the critics have a head for each of.
        action_width: width of the actions that the critics take beside the features; the subclass's to say.
        num_choices: values at once that the critics have, one for each choice of a discrete action; the subclass's to say.
        reward_dim: D for a reward of D parts; None for a scalar reward.
        reward_weights: D weights of the sum that actor and switch maximise, each a number or a schedule of it; None: all 1. A
            part of weight 0, for the whole run, is not learnt: critics, returns, gammas and losses are those of the other
            parts, which are all that `D` means below and in subclasses, and in the rewards that `train_step` and `calc_loss`
            take (see `learnt_reward`).
        encoder_ctor: called with the observation spec; a module with `output_size`.
        critic_ctor: called with input size and `reward_dim`, and `num_choices` where there are any; a module that is called
            as `CriticEnsemble`. Critics whose prediction is not the value itself, such as a distribution of it, also have
            `value(prediction)` and `loss(prediction, target)`; see `value_of` and `value_error`.
        td_loss: how targets are made, discounts among it; None: `default_td_loss`.
        target_update_tau: fraction by which targets move towards the online networks, in (0, 1]; a number, or a schedule of it.
        target_update_period: in updates.
        target_update_env_steps: the period in environment steps, instead. Times the updates for each environment step it is the
            period in updates, which need not be whole: targets move after the first update at which another one is over.
        dqda_clipping: if given, each element of dQ/da is clipped to +- this.
        signal_gammas: discounts of the reward's last parts, which come from reward signals; None: as `td_loss` has it.
        repeat_gamma: discount of a step inside a repeated action, as the environment has it.
        actor_encoder_ctor: as `encoder_ctor`, of an encoder of the actor's own, which the actor's loss trains. None: the actor
            sees the critics' features, as they are.
    """

    reward_parts: torch.Tensor | None  # [D], numbers of the parts that are learnt, where there are others
    actor_encoder: nn.Module | None
    weights: torch.Tensor  # [D], or [0] for a scalar reward
    signs: torch.Tensor  # [D], of the weights

    default_td_loss: type[BaseTDLoss] = OneStepTDLoss
    stores_probabilities = False  # of the rollout's actions, which some TD losses need

    def __init__(
        self,
        observation_spec: Nest,
        action_spec: TensorSpec,
        *,
        action_width: int,
        num_choices: int | None = None,
        reward_dim: int | None = None,
        reward_weights: Sequence[float | Schedule] | None = None,
        encoder_ctor: Callable[..., nn.Module] = ObservationEncoder,
        actor_encoder_ctor: Callable[..., nn.Module] | None = None,
        critic_ctor: Callable[..., nn.Module] = CriticEnsemble,
        td_loss: BaseTDLoss | None = None,
        target_update_tau: float | Schedule = 0.005,
        target_update_period: int = 1,
        target_update_env_steps: int | None = None,
        dqda_clipping: float | None = None,
        signal_gammas: Sequence[float | None] = (),
        repeat_gamma: float = 1.0,
    ):
        super().__init__()
        if not (bounds(target_update_tau)[0] > 0 and bounds(target_update_tau)[1] <= 1):
            raise TaacError(f"target_update_tau must be in (0, 1], got {target_update_tau}")
        if target_update_period < 1:
            raise TaacError(f"target_update_period must be 1 or more updates, got {target_update_period}")
        if target_update_env_steps is not None and target_update_env_steps < 1:
            raise TaacError(f"target_update_env_steps must be 1 or more, or None, got {target_update_env_steps}")
        if dqda_clipping is not None and dqda_clipping <= 0:
            raise TaacError(f"dqda_clipping must be above 0, got {dqda_clipping}")
        self.action_size = action_spec.numel
        given = _check_reward_weights(reward_weights, reward_dim)
        kept = [
            (part, weight) for part, weight in enumerate(given or ()) if isinstance(weight, Schedule) or weight != 0
        ]
        self.reward_weights = None if given is None else tuple(float(at_start(weight)) for _, weight in kept)
        parts = torch.tensor([part for part, _ in kept]) if len(kept) < len(given or ()) else None
        self.register_buffer("reward_parts", parts, persistent=False)
        # At any time: compiled programs go by it.
        self._none_negative = all(bounds(weight)[0] >= 0 for _, weight in kept)
        self.scheduled = [
            Scheduled(f"reward_weights[{part}]", weight, functools.partial(self._set_weight, place))
            for place, (part, weight) in enumerate(kept)
            if isinstance(weight, Schedule)
        ]
        weights = torch.tensor(self.reward_weights or ())
        self.register_buffer("weights", weights, persistent=False)
        self.register_buffer("signs", torch.where(weights < 0, -1.0, 1.0), persistent=False)
        self.encoder = encoder_ctor(observation_spec)
        self.feature_size = int(self.encoder.output_size)  # type: ignore[arg-type]
        self.register_module("actor_encoder", actor_encoder_ctor and actor_encoder_ctor(observation_spec))
        own: Any = self.encoder if self.actor_encoder is None else self.actor_encoder
        self.actor_feature_size = int(own.output_size)
        choices = {} if num_choices is None else {"num_choices": num_choices}
        self.critics = critic_ctor(self.feature_size + action_width, self.reward_dim, **choices)
        self.target_encoder = copy.deepcopy(self.encoder).requires_grad_(False)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.target_update_tau = at_start(target_update_tau)
        if isinstance(target_update_tau, Schedule):
            set_tau = functools.partial(setattr, self, "target_update_tau")
            self.scheduled.append(Scheduled("target_update_tau", target_update_tau, set_tau))
        self.target_update_period: int | Fraction | None = target_update_period  # in updates; None: not known yet
        self.target_update_env_steps = target_update_env_steps
        if target_update_env_steps is not None:
            self.target_update_period = None
        self.dqda_clipping = dqda_clipping
        td_loss = td_loss or self.default_td_loss()
        td_loss.check(reward_dim, type(self).__name__, self.stores_probabilities)
        self.td_loss = td_loss.fitted(reward_dim, self.reward_parts, signal_gammas, repeat_gamma)
        self.check_critics(self.critics)
        self._slow_and_followed: tuple[list[torch.Tensor], list[torch.Tensor]] | None = None  # parameters, in one order

    @property
    def reward_dim(self) -> int | None:
        """D, the parts of the reward that are learnt; None for a scalar reward."""
        return None if self.reward_weights is None else len(self.reward_weights)

    def learnt_reward(self, reward: torch.Tensor) -> torch.Tensor:
        """The parts of weights other than 0."""
        return reward if self.reward_parts is None else reward.index_select(-1, self.reward_parts)

    # Features --------------------------------------------------------------------------------------------------------

    def encode(self, observation: Nest) -> tuple[torch.Tensor, torch.Tensor]:
        """Features `[..., F]` for the critics, and for the actor; the actor's have no gradient to the critics' encoder."""
        features = self.encoder(observation)
        return features, features.detach() if self.actor_encoder is None else self.actor_encoder(observation)

    def actor_features(self, observation: Nest) -> torch.Tensor:
        """For the actor alone, as of `encode`."""
        return self.encoder(observation).detach() if self.actor_encoder is None else self.actor_encoder(observation)

    # Critics' values -------------------------------------------------------------------------------------------------

    @staticmethod
    def value_of(critics: nn.Module, prediction: torch.Tensor) -> torch.Tensor:
        """What critics predict as values `[N, ...(, C)(, D)]`.

        Args:
            critics: if they have `value(prediction)`, that is their values; otherwise the prediction itself.
            prediction: `[N, ...(, C)(, D)]`, or with further dimensions of the critics' own, such as a distribution's.
        """
        own = getattr(critics, "value", None)
        return prediction if own is None else own(prediction)

    def q_values(self, critics: nn.Module, features: torch.Tensor, *action: torch.Tensor) -> torch.Tensor:
        """Values `[N, ...(, C)(, D)]` at features `[..., F]` and action parts `[..., A]`."""
        return self.value_of(critics, critics(features, *action))

    def value_error(self, critics: nn.Module, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The error of predictions `[N, T, B(, D)(, ...)]` against targets `[T, B(, D)]`: `[T, B]`.

        It is the critics' own `loss(prediction, target)` if they have one; otherwise squared or Huber's, as the TD loss says.
        Either is summed over critics, with the mean over parts of the reward.
        """
        own = getattr(critics, "loss", None)
        return self.td_loss.error(prediction, target) if own is None else own(prediction, target)

    def critic_loss(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss `[T, B]` of what the critics predict at frames 0..T-2, `[N, T-1, B(, D)(, ...)]`; 0 at frame T-1."""
        return nn.functional.pad(self.value_error(self.critics, prediction, target), (0, 0, 0, 1))

    def check_critics(self, critics: nn.Module) -> None:
        """Refuses critics with one of `value` and `loss` alone, or with a loss where the TD loss has settings of it.

        Raises:
            TaacError: names the critics' class.
        """
        own, name = (
            [part for part in ("value", "loss") if callable(getattr(critics, part, None))],
            type(critics).__name__,
        )
        if len(own) == 1:
            raise TaacError(
                f"{name} has '{own[0]}' of its own alone: critics whose prediction is not the value itself need both "
                "value(prediction) and loss(prediction, target)"
            )
        if own and self.td_loss.huber_delta is not None:
            raise TaacError(
                f"{name} has a loss of its own: {type(self.td_loss).__name__}.huber_delta would have no effect, remove it"
            )

    def mean_over_parts(self, x: torch.Tensor) -> torch.Tensor:
        """Mean over the parts of the reward, `[..., D]` to `[...]`; of a scalar reward, `[...]` as it is."""
        return x if self.reward_weights is None else x.mean(-1)

    def min_over_critics(self, q: torch.Tensor) -> torch.Tensor:
        """`[N, ...]` to `[...]`: the least favourable critic, so the greatest where a reward's weight is negative."""
        if self.reward_weights is None or self._none_negative:
            return q.amin(0)
        return (q * self.signs).amin(0) * self.signs

    def weighted(self, q: torch.Tensor) -> torch.Tensor:
        """Sum over reward parts with their weights, `[..., D]` to `[...]`; a scalar reward's value as it is."""
        if self.reward_weights is None:
            return q
        return (q * self.weights).sum(-1)  # not a product of matrices, which may be of another precision

    def action_gradient(self, q: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """dQ/da of `q` `[...]` at `action` `[..., A]`; the critics' own parameters get no gradient."""
        (gradient,) = torch.autograd.grad(q.sum(), action)
        return gradient if self.dqda_clipping is None else gradient.clamp(-self.dqda_clipping, self.dqda_clipping)

    def share_out(self, bonus: torch.Tensor) -> torch.Tensor:
        """A bonus `[...]` as parts `[..., D]` of a vector reward whose weighted sum is the bonus."""
        if self.reward_weights is None:
            return bonus
        return bonus.unsqueeze(-1) * self.weights / self.weights.square().sum()

    # Putting a loss together -----------------------------------------------------------------------------------------

    @staticmethod
    def pad_front(value: torch.Tensor) -> torch.Tensor:
        """Target values of frames 1..T-1 `[T-1, ...]` to `[T, ...]`: no return ever reads that of frame 0."""
        return torch.cat([torch.zeros_like(value[:1]), value])

    @staticmethod
    def masked(experience: Experience, loss: torch.Tensor) -> torch.Tensor:
        """The loss `[T, B]` with 0 at LAST, where no action was taken."""
        return loss.masked_fill(experience.time_step.is_last(), 0.0)

    def cloned(self, experience: Experience, distance: torch.Tensor) -> torch.Tensor:
        """Distances `[T-1, B]` between the policy and what was demonstrated at frames 0..T-2 as a loss of each frame."""
        return self.masked(experience, nn.functional.pad(distance, (0, 0, 0, 1)))

    def segment_error(self, experience: Experience, q: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """`|Q_i - G|`, mean over critics, parts of the reward, and the frames of a segment that are learnt from: `[B]`.

        0 for a segment in which the critics learn from no frame. It is what prioritised replay goes by.

        Args:
            q: `[N, T-1, B(, D)]`, at the executed actions.
            target: `[T-1, B(, D)]`, the returns.
        """
        error = self.mean_over_parts((q.detach() - target).abs().mean(0))
        learnt = (~experience.time_step.is_last()[:-1]).to(error.dtype)
        return (error * learnt).sum(0) / learnt.sum(0).clamp(min=1.0)

    @staticmethod
    def detail(
        experience: Experience, info: Any, target: torch.Tensor, temperature_losses: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Of each frame, what `Learner.diagnostics` looks at; nothing is computed here.

        Args:
            info: has `q`, and may have `mean` and `log_std`, `advantage`, and `beta`.
            target: `[T-1, B(, D)]`, the returns.
            temperature_losses: by name, `[T, B]` or `[T-1, B]`.

        Returns:
            "step_type" `[T, B]`, "q" `[N, T-1, B(, D)]`, "target", "temperature/<name>", and "mean", "log_std" `[T or T-1, B,
            A]`, "advantage" `[T, B]`, "beta" `[T, B, 2]` where the info has them.
        """
        own = {f"temperature/{name}": loss for name, loss in temperature_losses.items()}
        more = {name: getattr(info, name) for name in ("mean", "log_std", "advantage", "beta") if hasattr(info, name)}
        return {"step_type": experience.time_step.step_type, "q": info.q, "target": target, **own, **more}

    @staticmethod
    def mean_acted(experience: Experience, x: torch.Tensor) -> torch.Tensor:
        """Mean of `x` over the frames at which an action is taken (not LAST), a detached scalar; 0 if there is none.

        Args:
            x: `[T, B]`, or `[T-1, B]` of frames 0..T-2.
        """
        acted = (~experience.time_step.is_last()[: len(x)]).to(x.dtype)
        return _weighted_mean(x.detach(), acted)

    def common_summaries(
        self,
        experience: Experience,
        info: Any,
        critic_loss: torch.Tensor,
        target: torch.Tensor,
        temperature: Temperature | BranchTemperatures,
    ) -> dict[str, torch.Tensor]:
        """Scalars that every actor-critic reports, from an info with `actor_loss`, `log_pi` and `q`.

        Means are over the frames that are learnt from: not LAST, and for the critics not the segment's last.
        """
        acted = (~experience.time_step.is_last()).to(info.log_pi.dtype)
        learnt = acted[:-1]
        return {
            "loss/critic": _weighted_mean(critic_loss.detach()[:-1], learnt),
            "loss/actor": _weighted_mean(info.actor_loss.detach(), acted[: len(info.actor_loss)]),
            "critic/q": _weighted_mean(self.mean_over_parts(info.q.detach().mean(0)), learnt),
            "critic/target": _weighted_mean(self.mean_over_parts(target), learnt),
            "policy/entropy": _weighted_mean(-info.log_pi, acted[: len(info.log_pi)]),
            "policy/alpha": temperature.alpha(),
        }

    # Schedules -------------------------------------------------------------------------------------------------------

    def build_temperature(self, ctor: Callable[..., Temperature], target: TargetEntropy) -> Temperature:
        """A temperature of this target; if that is a schedule, it is listed in `scheduled`."""
        temperature = ctor(target.nats)
        temperature.formula = target.formula
        if isinstance(target.nats, Schedule):
            self.scheduled.append(Scheduled(target.formula, target.nats, temperature.set_target_entropy))
        return temperature

    def _set_weight(self, number: int, weight: float) -> None:
        self.weights[number] = weight
        self.signs[number] = -1.0 if weight < 0 else 1.0

    # Updates ---------------------------------------------------------------------------------------------------------

    @property
    def gamma(self) -> float | None:
        return float(self.td_loss.gamma.max())

    def temperatures(self) -> dict[str, Temperature]:
        """The temperatures by name: "x" is the module `x_temperature`, and "action" also the module `temperature`."""
        found = {name: module for name, module in self.named_children() if isinstance(module, Temperature)}
        return {name.removesuffix("temperature").rstrip("_") or "action": module for name, module in found.items()}

    def acting_modules(self) -> list[str]:
        return ["encoder" if self.actor_encoder is None else "actor_encoder", "actor"]

    def target_networks(self) -> list[tuple[nn.Module, nn.Module]]:
        """Pairs of a slow copy and the network that it follows: of the modules `target_x` and `x`."""
        return [
            (slow, self.get_submodule(name.removeprefix("target_")))
            for name, slow in self.named_children()
            if name.startswith("target_")
        ]

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Trainable parameters of "actor", "critic", "temperature", and "actor_encoder" where the actor has one of its own.

        A subclass adds the parameters of its own modules to a group, with `trainable`.
        """
        groups = {
            "actor": trainable(self.get_submodule("actor")),
            "critic": trainable(self.encoder, self.critics),
            "temperature": trainable(*self.temperatures().values()),
        }
        return groups if self.actor_encoder is None else {**groups, "actor_encoder": trainable(self.actor_encoder)}

    def set_update_ratio(self, updates_per_env_step: Fraction | None) -> None:
        if self.target_update_env_steps is None:
            return
        if updates_per_env_step is None:
            raise TaacError(
                "target_update_env_steps needs a ratio of updates to environment steps that stays the same: bind "
                "target_update_period, or Trainer.updates_per_env_step to a number and Trainer.update_clock to 'env_steps'"
            )
        self.target_update_period = self.target_update_env_steps * updates_per_env_step

    def _targets_move(self, num_updates: int) -> bool:
        """Whether the last update was the first with which another period was over."""
        period = self.target_update_period
        if period is None:
            raise TaacError(
                "target_update_env_steps: nothing has told the algorithm the ratio of updates to environment steps"
            )
        return num_updates // period > (num_updates - 1) // period

    @torch.no_grad()
    def after_update(self, num_updates: int) -> None:
        slow_and_followed = self._slow_and_followed or self._find_followed()
        for temperature in self._tuned:
            temperature.project()
        if self._targets_move(num_updates):
            torch._foreach_lerp_(*slow_and_followed, self.target_update_tau)
            for target, network in self._pairs_with_buffers:  # running statistics, which no gradient moves
                for slow, buffer in zip(target.buffers(), network.buffers()):
                    slow.copy_(buffer)

    def _find_followed(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Called at the first update alone: going through modules takes longer than moving targets."""
        pairs = self.target_networks()
        self._slow_and_followed = (
            [p for target, _ in pairs for p in target.parameters()],
            [p for _, network in pairs for p in network.parameters()],
        )
        self._pairs_with_buffers = [pair for pair in pairs if next(pair[1].buffers(), None) is not None]
        self._tuned = list(self.temperatures().values())
        return self._slow_and_followed

    def describe(self) -> list[str]:
        lines = [
            f"{name}: target entropy {t.target_entropy:.4f} nats = {t.formula}; "
            f"alpha {t.alpha().item():g} at the start, tuning: {t.tuning}"
            for name, t in self.temperatures().items()
        ]
        if self.target_update_env_steps is not None and self.target_update_period is not None:
            period = f"{self.target_update_env_steps} environment steps = {float(self.target_update_period):g} updates"
            lines.append(f"targets: move every {period}")
        return lines


def trainable(*modules: nn.Module) -> list[nn.Parameter]:
    """The trainable parameters of modules, in order."""
    return [p for module in modules for p in module.parameters() if p.requires_grad]


def _weighted_mean(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x * weight).sum() / weight.sum().clamp(min=1.0)


def _check_reward_weights(
    weights: Sequence[float | Schedule] | None, reward_dim: int | None
) -> tuple[float | Schedule, ...] | None:
    if reward_dim is None:
        if weights is not None:
            raise TaacError(f"reward_weights {_shown(weights)} were given, but the environment's reward is a scalar")
        return None
    if weights is None:
        return (1.0,) * reward_dim
    if (
        len(weights) != reward_dim
        or _all_zero(weights)
        or not all(math.isfinite(x) for w in weights for x in bounds(w))
    ):
        raise TaacError(
            f"reward_weights must be {reward_dim} numbers, one for each part of the reward, finite and not all 0 (at no count, "
            f"where they follow schedules), got {_shown(weights)}"
        )
    return tuple(weights)


def _all_zero(weights: Sequence[float | Schedule]) -> bool:
    """Whether all are 0 at some pair of counts at which pieces of their schedules begin or end."""
    moving = [weight for weight in weights if isinstance(weight, Schedule)]
    counts = [{0}.union(*(w.knots for w in moving if w.unit == unit)) for unit in ("env_steps", "updates")]
    return any(
        not any(weight.at(*pair) if isinstance(weight, Schedule) else weight for weight in weights)
        for pair in itertools.product(*counts)
    )


def _shown(weights: Sequence[float | Schedule]) -> str:
    return f"({', '.join(map(str, weights))})"
