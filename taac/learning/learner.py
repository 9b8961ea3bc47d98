"""The gradient step: optimizer, learning rates, clipping."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import gin
import torch

from taac.algorithms import Algorithm
from taac.algorithms.agent import Agent
from taac.algorithms.reward_signals import RewardSignal
from taac.data_structures import Experience, LossInfo, Nest, TimeStep
from taac.demonstrations.replay import Demonstrations
from taac.errors import TaacError
from taac.learning.diagnostics import Diagnostics, RunningMeans, explained_variances
from taac.learning.guard import GradientStep, GrowthWatch, Guard, sum_of_all
from taac.learning.optimizers import TensorFlowAdam, decay_weights, load_state, skips_on_device, take_step
from taac.machine.compiled import CompiledFunction
from taac.machine.products import Products, available, parts, resolve, using
from taac.ops.schedules import LinearSchedule, Schedule, Scheduled, at_start, bounds, follow
from taac.replay import Replay

EPSILON = 1e-7  # of TensorFlow's Adam


@gin.configurable
class Cloning:
    """When behaviour cloning is learnt, and how much it counts; the loss is the algorithm's `cloning_loss`.

    Args:
        pretraining_updates: gradient steps on demonstrations alone, before the run's first environment step.
        initial_weight: of the loss beside the algorithm's own, at the first update.
        decay_updates: updates over which that weight falls to 0, in a straight line.
        weight: the schedule of that weight, instead of `initial_weight` and `decay_updates`.
    """

    weight: float  # in force

    def __init__(
        self,
        pretraining_updates: int = 0,
        initial_weight: float = 0.0,
        decay_updates: int = 10_000,
        weight: Schedule | None = None,
    ):
        if pretraining_updates < 0 or decay_updates < 1 or not 0 <= initial_weight < float("inf"):
            raise TaacError(
                "Cloning: pretraining_updates must be 0 or more, initial_weight 0 or more and decay_updates 1 or more, got "
                f"{pretraining_updates}, {initial_weight} and {decay_updates}"
            )
        if weight is not None and (initial_weight != 0 or weight.bounds[0] < 0):
            raise TaacError(
                f"Cloning.weight must be 0 or more at any time, and is bound instead of initial_weight, got ({weight}) and "
                f"an initial_weight of {initial_weight}"
            )
        if pretraining_updates == 0 and initial_weight == 0 and (weight is None or weight.bounds[1] == 0):
            raise TaacError("Cloning does nothing: give pretraining_updates, initial_weight or weight")
        self.pretraining_updates = pretraining_updates
        decay = LinearSchedule(initial_weight, 0.0, updates=decay_updates) if initial_weight else 0.0
        self.scheduled = follow(self, weight=decay if weight is None else weight)


class Differentiated(NamedTuple):
    """An algorithm's loss of a batch, all of it detached, and its gradients."""

    loss: torch.Tensor  # scalar
    total: torch.Tensor  # scalar, of loss and gradients; see `Guard`
    frames: torch.Tensor  # [T, B], the loss of each frame, before importance weights
    extra: dict[str, torch.Tensor]  # scalars to summarise, by tag
    segment_error: torch.Tensor | None  # [B]
    gradients: list[torch.Tensor | None]  # of the algorithm's parameters; None for one that the loss does not read
    statistics: dict[str, torch.Tensor]  # scalars by tag, of `Diagnostics`; empty if they are off
    observed: dict[str, torch.Tensor]  # by name, for histograms; empty if they are off


@gin.configurable
class Learner:
    """Takes gradient steps on an agent.

    Args:
        agent: what is trained.
        learning_rate: of every parameter, temperatures included; a number, or a schedule of it.
        actor_learning_rate, critic_learning_rate, temperature_learning_rate: instead, for that group.
        actor_encoder_learning_rate, value_encoder_learning_rate: of an encoder of the actor's own, of the value network's own;
            None: that of the actor, of the critics.
        epsilon: Adam's, added as TensorFlow does, without `optimizer_ctor`.
        optimizer_ctor: called with groups of parameters, which have learning rates of their own, and `lr`: `@Adam`, `@AdamW`,
            `@SGD`, `@RMSprop`, `@Adagrad` or `@NAdam` of torch.optim, whose settings are bound by that name, or one of your
            own. None: Adam as TensorFlow has it, see `TensorFlowAdam`. On a GPU an update waits for it with any other, to see
            that all gradients are finite before it is taken.
        weight_decay: by group of parameters ("actor", "critic", "actor_encoder", "value_encoder", or a reward signal's name),
            `{'critic': 1e-4}`: the gradient of `weight_decay / 2 * |w|^2`, L2 regularisation, is added to that of the loss; with
            `@AdamW` the parameters shrink by `lr * weight_decay` instead. Biases count as weights. A group that is not named has
            the optimizer's own (of AdamW 0.01, of the others 0); temperatures have none.
        max_grad_norm: the gradient's norm over all the algorithm's parameters is clipped to it, a number or a schedule of it;
            None does not clip.
        products: which matrix products: "plain" are torch's own, "onednn" are oneDNN's in full float32, "bfloat16x6" sum six
            products of bfloat16 parts of the factors, as exact as float32, for compiled updates where the processor has AMX,
            "auto" is the fastest of these on this processor. "bfloat16x3" sum three (relative error 4e-6 instead of 3e-7), and
            "bfloat16" round the factors to bfloat16 (2e-3), about twice as fast where the processor has units for it: those of
            hidden layers alone. Last layers, memories, and all that follows from them (beta, targets, losses) are in float32.
        diagnostics: what summaries show beside losses: "off", nothing more; "scalars", statistics of critics, policy, switch,
            temperatures and gradients, see `diagnostics`; "histograms" also those of the last update before the summary.
        cloning: behaviour cloning of demonstrations, before training or beside it; see `Cloning`.
        importance_weights: what the weights of prioritised replay multiply: "all", the loss of actor, critics and temperatures;
            or "critics", the gradients of the parameter groups "critic" and "value_encoder" alone, as where only Q is learnt
            (arXiv:1511.05952).

    Attributes:
        demonstrations: what reward signals and cloning that need any sample from.
        means: of what updates report, since the last summary.
        losses: what the last update reported, by tag; empty before the first.
        group_names: of the optimizer's groups of parameters.
    """

    max_grad_norm: float | None

    def __init__(
        self,
        agent: Agent,
        learning_rate: float | Schedule = 1e-4,
        actor_learning_rate: float | Schedule | None = None,
        critic_learning_rate: float | Schedule | None = None,
        temperature_learning_rate: float | Schedule | None = None,
        epsilon: float = EPSILON,
        max_grad_norm: float | Schedule | None = None,
        products: Products = "auto",
        cloning: Cloning | None = None,
        importance_weights: Literal["all", "critics"] = "all",
        optimizer_ctor: Callable[..., torch.optim.Optimizer] | None = None,
        weight_decay: dict[str, float] | None = None,
        actor_encoder_learning_rate: float | Schedule | None = None,
        value_encoder_learning_rate: float | Schedule | None = None,
        diagnostics: Literal["off", "scalars", "histograms"] = "off",
    ):
        if agent.role != "learn":
            raise TaacError(f"an agent whose role is '{agent.role}' holds no networks to learn with; build it to learn")
        own = {
            "actor": actor_learning_rate,
            "critic": critic_learning_rate,
            "temperature": temperature_learning_rate,
            "actor_encoder": actor_encoder_learning_rate,
            "value_encoder": value_encoder_learning_rate,
        }
        for name, rate in {"learning_rate": learning_rate, **own}.items():
            if rate is not None and not (bounds(rate)[0] >= 0 and bounds(rate)[1] > 0):
                raise TaacError(f"Learner: the learning rate '{name}' must be above 0, got {rate}")
        if max_grad_norm is not None and not bounds(max_grad_norm)[0] > 0:
            raise TaacError(f"Learner.max_grad_norm must be above 0, or None, got {max_grad_norm}")
        if not epsilon > 0:
            raise TaacError(f"Learner.epsilon must be above 0, got {epsilon}")
        if importance_weights not in ("all", "critics"):
            raise TaacError(f"Learner.importance_weights must be 'all' or 'critics', got '{importance_weights}'")
        if optimizer_ctor is not None and epsilon != EPSILON:
            raise TaacError(
                f"Learner.epsilon {epsilon} is of the optimizer that Learner.optimizer_ctor takes the place of: bind that one's "
                "own, as Adam.eps"
            )
        self.agent = agent
        self.scheduled = follow(self, max_grad_norm=max_grad_norm)
        self.importance_weights = importance_weights
        self._take_products(resolve(products, agent.device, agent.compiled))
        of_algorithm = {name: group for name, group in agent.algorithm.parameter_groups().items() if group}
        for name in _FALLS_BACK_ON:
            if name not in of_algorithm and own[name] is not None:
                raise TaacError(f"Learner.{name}_learning_rate has no effect: the algorithm has no {name} to train")
        rates: dict[str, Any] = {
            "Learner.learning_rate": learning_rate, **{f"Learner.{n}_learning_rate": rate for n, rate in own.items()}
        }  # fmt: skip
        of_groups = [_rate_of(name, own) for name in of_algorithm]
        groups: list[dict[str, Any]] = [
            {"params": parameters, "lr": at_start(rates[rate])}
            for rate, parameters in zip(of_groups, of_algorithm.values(), strict=True)
        ]
        of_signals = [
            {"params": [p for p in signal.parameters() if p.requires_grad], "lr": at_start(signal.learning_rate)}
            for signal in agent.signals
        ]
        self.optimizer = (optimizer_ctor or functools.partial(TensorFlowAdam, eps=epsilon))(
            [*groups, *of_signals], lr=at_start(learning_rate)
        )
        self.group_names = [*of_algorithm, *(signal.name for signal in agent.signals)]
        decay_weights(self.optimizer, self.group_names, weight_decay or {}, undecayed="temperature")
        rates |= {f"{type(signal).__name__}.learning_rate": signal.learning_rate for signal in agent.signals}
        of_groups += [f"{type(signal).__name__}.learning_rate" for signal in agent.signals]
        self.rate_names = of_groups  # of each group of parameters: where its learning rate comes from
        self.scheduled += self._scheduled_rates(rates, of_groups)
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._differentiated: list[torch.nn.Parameter] = [
            p for group in groups for p in group["params"]
        ]  # by the algorithm's loss
        self._of_signals = self._parameters[len(self._differentiated) :]
        self.guard = Guard(agent, self._parameters, every_step=not skips_on_device(self.optimizer))
        self.growth = GrowthWatch(_gamma(agent), agent.algorithm.reward_scale)
        self.means = RunningMeans()
        self.diagnostics = Diagnostics(diagnostics, agent)
        self._observed: dict[str, torch.Tensor] = {}
        self.num_updates = 0
        self.losses: Mapping[str, torch.Tensor | float] = {}
        self.cloning = cloning
        self.demonstrations: Demonstrations | None = None
        if cloning is not None and type(agent.algorithm).cloning_loss is Algorithm.cloning_loss:
            raise TaacError(
                f"{type(agent.algorithm).__name__} has no behaviour cloning: remove Learner.cloning, or use a SAC or TAAC"
            )

    def _scheduled_rates(self, rates: dict[str, Any], of_groups: list[str]) -> list[Scheduled]:
        """Those of the learning rates that follow a schedule; `of_groups` names the rate of each of the optimizer's groups."""
        found = []
        for name, rate in rates.items():
            if isinstance(rate, Schedule):
                groups = [number for number, used in enumerate(of_groups) if used == name]
                if not groups:
                    raise TaacError(
                        f"{name} follows a schedule, which would have no effect: no parameter that is trained has this learning "
                        f"rate; in use are {', '.join(dict.fromkeys(of_groups))}"
                    )
                found.append(Scheduled(name, rate, functools.partial(self._set_rate, groups)))
        return found

    def _set_rate(self, groups: list[int], rate: float) -> None:
        for number in groups:
            self.optimizer.param_groups[number]["lr"] = rate

    @property
    def needs_demonstrations(self) -> bool:
        return self.cloning is not None or any(s.needs_demonstrations for s in self.agent.signals)

    def pretrain(self, batch_size: int, length: int) -> None:
        """Behaviour cloning alone, before anything else is learnt: gradient steps that are not counted as updates.

        Statistics of observations begin with the demonstrations: with none, the policy would be taught on raw observations
        and then act on normalised ones.
        """
        if self.cloning is None or self.cloning.pretraining_updates == 0:
            return
        assert self.demonstrations is not None
        self.agent.observe(self.demonstrations.observations())
        for number in range(1, self.cloning.pretraining_updates + 1):
            demonstrated = self._demonstrated(batch_size, length)
            with using(self.products):
                loss = self._cloning_loss(demonstrated)
                gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
            for parameter, gradient in zip(self._parameters, gradients):
                parameter.grad = gradient
            loss = loss.detach()
            total, taught = sum_of_all(loss, gradients), {"cloning/loss": loss}
            step = GradientStep(number, demonstrated, demonstrated, loss, total, loss.reshape(1, 1), taught)
            take_step(self.optimizer, self.guard.look(step))

    def _demonstrated(self, batch_size: int, length: int) -> Experience:
        assert self.demonstrations is not None
        return self.agent.prepare_observations(self.demonstrations.sample(batch_size, length))

    def _cloning_loss(self, demonstrated: Experience) -> torch.Tensor:
        with torch.autocast(self.agent.device.type, torch.bfloat16, enabled=self.products == "bfloat16"):
            return self.agent.algorithm.cloning_loss(demonstrated).mean()

    def _add_side_gradients(
        self, time_step: TimeStep, replay: Replay | None
    ) -> tuple[torch.Tensor | float, torch.Tensor | float, dict[str, torch.Tensor]]:
        """Adds gradients of the losses beside the algorithm's; gives their sum, its `total`, and what to summarise of them."""
        losses, extra = self._side_losses(time_step, replay)
        if not losses:
            return 0.0, 0.0, extra
        loss = torch.stack(losses).sum()
        gradients = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        for parameter, gradient in zip(self._parameters, gradients):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return loss.detach(), sum_of_all(loss.detach(), gradients), extra

    def _side_losses(
        self, time_step: TimeStep, replay: Replay | None
    ) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """Losses beside the algorithm's, of reward signals and of cloning, and what to summarise of them."""
        losses: list[torch.Tensor] = []
        extra: dict[str, torch.Tensor] = {}
        length, batch_size = time_step.step_type.shape
        weight = self.cloning.weight if self.cloning is not None else 0.0
        due = [signal for signal in self.agent.signals if self.num_updates % signal.update_period == 0]
        needed = weight > 0 or any(signal.needs_demonstrations and signal.batch_size is None for signal in due)
        demonstrated = self._demonstrated(batch_size, length) if needed else None
        for signal in due:
            losses.append(signal.loss(*self._frames_for(signal, time_step, demonstrated, replay)))
            signal.last_loss.copy_(losses[-1].detach())
        arrived = ~time_step.is_first()[1:]  # by an action, which is what a reward is for
        count = arrived.sum().clamp(min=1)
        for number, signal in enumerate(self.agent.signals, start=-len(self.agent.signals)):
            extra[f"signal/{signal.name}_reward"] = (time_step.reward[1:, :, number] * arrived).sum() / count
            extra[f"signal/{signal.name}_loss"] = signal.last_loss.clone()
        if weight > 0 and demonstrated is not None:
            cloning = self._cloning_loss(demonstrated)
            losses.append(weight * cloning)
            extra |= {"cloning/loss": cloning.detach(), "cloning/weight": torch.tensor(weight)}
        return losses, extra

    def _frames_for(
        self, signal: RewardSignal, time_step: TimeStep, demonstrated: Experience | None, replay: Replay | None
    ) -> tuple[TimeStep, TimeStep | None]:
        """What a signal's model learns from: frames of the replay, and of demonstrations."""
        if signal.batch_size is None:
            return time_step, None if demonstrated is None else demonstrated.time_step
        if replay is None:
            raise TaacError(f"{type(signal).__name__}.batch_size: this update has no replay to draw batches from")
        length = len(time_step.step_type)
        sampled = self.agent.prepare_observations(replay.sample(signal.batch_size, length))
        shown = self._demonstrated(signal.batch_size, length).time_step if signal.needs_demonstrations else None
        return sampled.time_step, shown

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to learn on as if it had never been stopped, beside the agent's own state."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "growth": self.growth.state_dict(),
            "means": self.means.state_dict(),
            "products": self.products,  # which "auto" was
            "num_updates": self.num_updates,
            "losses": {tag: v.detach() if isinstance(v, torch.Tensor) else float(v) for tag, v in self.losses.items()},
            "demonstrations": None if self.demonstrations is None else self.demonstrations.digest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`.

        Raises:
            TaacError: the optimizer or the demonstrations are not those of the state.
        """
        if self.demonstrations is not None and state.get("demonstrations") is not None:
            self.demonstrations.check(state["demonstrations"])
        load_state(self.optimizer, state["optimizer"])
        self.growth.load_state_dict(state["growth"])
        self.means.load_state_dict(state["means"], self.agent.device)
        self.keep_products(state["products"])
        self.num_updates = int(state["num_updates"])
        self.losses = dict(state["losses"])

    def keep_products(self, products: str | None) -> None:
        """Uses the matrix products that a run began with, whatever "auto" would be now, because others round differently.

        Does nothing if this machine does not have them.
        """
        if products is not None and available(products, self.agent.device, self.agent.compiled):
            self._take_products(products)

    def _take_products(self, products: str) -> None:
        self.products = products
        self._loss_and_gradients: Callable[..., Differentiated] = (
            CompiledFunction(self._differentiate, self.agent, parts(products, self.agent.device))
            if self.agent.compiled
            else self._differentiate
        )

    def learn_from(self, replay: Replay, batch_size: int, length: int, progress: float = 0.0) -> LossInfo:
        """Takes one gradient step on a batch drawn from the replay, and updates the priorities of its segments.

        Args:
            replay: what to draw from; reward signals that have batches of their own draw from it too.
            batch_size, length: number of segments, and of frames in each.
            progress: the fraction of the run that is done, in [0, 1].
        """
        batch = replay.sample_batch(batch_size, length, progress)
        loss_info = self.update(batch.experience, batch.weights, replay)
        replay.update_priorities(batch, loss_info.segment_error)
        return loss_info

    def update(
        self, experience: Experience, weights: torch.Tensor | None = None, replay: Replay | None = None
    ) -> LossInfo:
        """Takes one gradient step on a batch `[T, B]`; returns what is to be summarised, still on the device.

        Args:
            experience: segments as they were sampled.
            weights: `[B]`, importance weights of prioritised replay; the whole loss of a segment's frames is multiplied by
                its weight, actor and temperatures included, so that all of it estimates (up to a scale) what uniform
                replay's mean does. With `importance_weights = "critics"` only what the critics learn is multiplied, and
                "loss/total" is the plain mean. None: all count alike.
            replay: where reward signals with a `batch_size` of their own draw from.

        Raises:
            TaacError: weights were given, but the algorithm tells no errors that priorities could be updated from.
            DivergedError: the loss or a gradient is not finite; parameters are as they were.
        """
        agents, sampled, experience = self.agent.agents, experience, self.agent.prepare(experience)
        self.growth.see(experience.time_step.reward)
        with using(self.products):
            given: Nest = () if weights is None else weights.to(self.agent.device)
            if weights is not None and agents is not None:
                given = agents.spread(given)
            found = self._loss_and_gradients(experience, given)
            loss, total, frames, extra, segment_error, gradients, statistics, self._observed = found
            for parameter in self._of_signals:
                parameter.grad = None
            for parameter, gradient in zip(self._differentiated, gradients):
                parameter.grad = gradient
            extra = {"loss/total": loss, **extra}
            if self.cloning is not None or self.agent.signals:
                side_loss, side_total, side_extra = self._add_side_gradients(experience.time_step, replay)
                loss, total, extra = loss + side_loss, total + side_total, {**extra, **side_extra}
        step = GradientStep(self.num_updates + 1, sampled, experience, loss, total, frames, extra)
        found_inf = self.guard.look(step)
        gradient_norms = self.diagnostics.gradient_norms(self.group_names, self.optimizer)
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._differentiated, self.max_grad_norm)
        take_step(self.optimizer, found_inf)
        self.losses = extra
        self.means.add(extra)
        if self.diagnostics.on:
            self.means.add({**statistics, **gradient_norms})
        self.num_updates += 1
        self.agent.algorithm.after_update(self.num_updates)
        if agents is not None and segment_error is not None:
            segment_error = agents.gather(segment_error)
        return LossInfo(frames, extra, segment_error)

    def _differentiate(self, experience: Experience, weights: Nest) -> Differentiated:
        """The algorithm's loss of a prepared batch, and its gradients; `weights` `[B]`, or `()` if all count alike."""
        algorithm = self.agent.algorithm
        with torch.autocast(self.agent.device.type, torch.bfloat16, enabled=self.products == "bfloat16"):
            info = algorithm.train_step(experience)
        frames, extra, segment_error, detail = algorithm.calc_loss(experience, info)
        if isinstance(weights, tuple):
            loss = frames.mean()
            gradients: Sequence[torch.Tensor | None] = torch.autograd.grad(
                loss, self._differentiated, allow_unused=True
            )
        elif segment_error is None:
            raise TaacError(
                f"prioritised replay needs errors of the critics, which {type(algorithm).__name__} does not tell "
                "(LossInfo.segment_error); bind create_experiment.replay_buffer_ctor = @ReplayBuffer"
            )
        else:
            loss, gradients = self._weighted_gradients(frames, weights)
            extra = {**extra, "replay/weight": weights.mean(), "replay/segment_error": segment_error.mean()}
        loss = loss.detach()
        statistics, observed = self.diagnostics.look(detail)
        return Differentiated(
            loss, sum_of_all(loss, gradients), frames.detach(), extra, segment_error, list(gradients), statistics, observed
        )  # fmt: skip

    def histograms(self) -> dict[str, torch.Tensor]:
        """Numbers of the last update by tag; empty unless diagnostics are "histograms"."""
        return self.diagnostics.histograms(self._observed)

    def summary(self) -> dict[str, float]:
        """What updates reported since the last call, by tag: means, and with diagnostics the learning rates as they are."""
        means = self.means.means()
        self.means.clear()
        if not (self.diagnostics.on and means):
            return means
        rates = {f"learning_rate/{n}": g["lr"] for n, g in zip(self.group_names, self.optimizer.param_groups)}
        return {**explained_variances(means), **{tag: float(rate) for tag, rate in rates.items()}}

    def _weighted_gradients(
        self, frames: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, tuple[torch.Tensor | None, ...]]:
        """The loss of frames `[T, B]` and its gradients, with weights `[B]`."""
        weighted = (frames * weights).mean()
        if self.importance_weights == "all":
            return weighted, torch.autograd.grad(weighted, self._differentiated, allow_unused=True)
        plain, groups = frames.mean(), self.agent.algorithm.parameter_groups()
        critics = [*groups["critic"], *groups.get("value_encoder", ())]
        others = [p for p in self._differentiated if all(p is not critic for critic in critics)]
        of_others = torch.autograd.grad(plain, others, retain_graph=True, allow_unused=True)
        of_critics = torch.autograd.grad(weighted, critics, allow_unused=True)
        found = {id(p): gradient for p, gradient in zip([*others, *critics], [*of_others, *of_critics])}
        return plain, tuple(found[id(p)] for p in self._differentiated)


_FALLS_BACK_ON = {
    "actor_encoder": "actor",
    "value_encoder": "critic",
}  # whose learning rate a group has without its own


def _rate_of(group: str, own: Mapping[str, Any]) -> str:
    """The parameter that gives a group its learning rate."""
    for name in (group, _FALLS_BACK_ON.get(group)):
        if name is not None and own.get(name) is not None:
            return f"Learner.{name}_learning_rate"
    return "Learner.learning_rate"


def _gamma(agent: Agent) -> float | None:
    """The discount of a step, the greatest where each part of the reward has its own."""
    gamma = getattr(getattr(agent.algorithm, "td_loss", None), "gamma", None)
    return None if gamma is None else float(gamma.max())
