"""The gradient step: loss, gradients, clipping, optimizer."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import gin
import torch
import torch.nn as nn

from taac.algorithms.actor_critic import trainable
from taac.algorithms.agent import Agent
from taac.algorithms.algorithm import policy_held
from taac.data_structures import Experience, LossInfo, Nest
from taac.demonstrations.replay import Demonstrations
from taac.errors import TaacError
from taac.learning.diagnostics import Diagnostics, RunningMeans, explained_variances
from taac.learning.guard import GradientStep, GrowthWatch, Guard, sum_of_all
from taac.learning.optimizers import (
    OptimizerCtor,
    TensorFlowAdam,
    build_optimizer,
    groups_of_algorithm,
    groups_of_signals,
    load_state,
    scheduled_rates,
    set_weight_decay,
    skips_on_device,
    take_step,
)
from taac.learning.side_losses import Cloning, SideLosses, cloning_loss
from taac.machine.compiled import CompiledFunction, find_compiler
from taac.machine.products import Products, available, mixed_precision, parts, resolve, using
from taac.machine.ranks import ALONE, Ranks
from taac.networks.batch_statistics import batch_statistics
from taac.ops.schedules import Schedule, at_start, bounds, follow
from taac.replay import Replay

EPSILON = 1e-7  # of TensorFlow's Adam


class LossAndGradients(NamedTuple):
    """An algorithm's loss on a batch, detached, and its gradients."""

    loss: torch.Tensor  # scalar
    total: torch.Tensor  # scalar, not finite if the loss or a gradient is not; see `sum_of_all`
    frames: torch.Tensor  # [T, B], the loss of each frame, before importance weights
    extra: dict[str, torch.Tensor]  # scalars to summarise, by tag
    segment_error: torch.Tensor | None  # [B]
    gradients: list[torch.Tensor | None]  # of the algorithm's parameters; None if the loss does not depend on one
    statistics: dict[str, torch.Tensor]  # scalars by tag from `Diagnostics`; empty if it is off
    observed: dict[str, torch.Tensor]  # tensors by name, for histograms; empty if they are off


@gin.configurable(denylist=["agent", "demonstrations"])
class Learner:
    """Takes gradient steps on an agent.

    Args:
        agent: the agent that learns.
        learning_rate: a number, or a schedule of it, for all parameters, temperatures included.
        actor_learning_rate, critic_learning_rate, temperature_learning_rate: overrides the rate of that group.
        value_learning_rate: the rate of the value network of SAC-value. None: that of the critics.
        actor_encoder_learning_rate, value_encoder_learning_rate: the rate of an encoder that belongs to the actor alone, or to
            the value network alone. None: the rate of the actor, or of that network.
        epsilon: Adam's, added as TensorFlow does. It has no effect with an `optimizer_ctor`.
        optimizer_ctor: called with groups of parameters, each with its own learning rate, and `lr`. It is `@Adam`, `@AdamW`,
            `@SGD`, `@RMSprop`, `@Adagrad` or `@NAdam` of torch.optim, whose settings are bound by that name, or one of your
            own. None: Adam as in TensorFlow, `@TensorFlowAdam`. A dictionary has one for each group of parameters, such as
            `{'critic': @critic/AdamW, 'actor': @actor/Adam}`, whose scopes give each settings of its own (`critic/AdamW.betas`);
            groups that it leaves out have `TensorFlowAdam`. On a GPU, updates with any other optimizer wait until all gradients
            are known to be finite.
        weight_decay: by group of parameters ("actor", "critic", "value", "actor_encoder", "value_encoder", or a reward signal's
            name), such as `{'critic': 1e-4}`. Adds the gradient of `weight_decay / 2 * |w|^2` (L2 regularisation) to that of the
            loss; with `@AdamW` the parameters shrink by `lr * weight_decay` instead. Biases count as weights. Other groups have
            the optimizer's own weight decay (0.01 for AdamW, 0 for the others). Temperatures have none.
        max_grad_norm: the norm of the gradient over all the algorithm's parameters is clipped to this number, or to a schedule
            of it. None does not clip.
        matmul: the implementation of matrix products. "plain" is torch's own. "onednn" is oneDNN's, in full float32.
            "bfloat16x6" sums six products of bfloat16 parts of the factors and is as exact as float32, for compiled updates on
            processors with AMX. "auto" follows from the processor: "bfloat16x6" with AMX in a compiled update, "onednn" on
            AMD's, otherwise "plain". "bfloat16x3" sums three (relative error 4e-6 instead of 3e-7). "bfloat16" rounds factors
            and results of hidden layers to bfloat16 (relative error 2e-3), which is about twice as fast with AMX and slower on
            other Intel processors, see docs/performance.md; last layers, memories and all that follows (beta, targets, losses)
            are in float32. "tf32", on a GPU: factors rounded to 10 bits after the point, results in float32.
        diagnostics: what summaries report besides losses. "off": nothing more. "scalars": statistics of critics, policy,
            switch and gradients, see `Diagnostics`. "histograms": also histograms of the last update.
        cloning: behaviour cloning of demonstrations, before or during training; see `Cloning`.
        demonstrations: returns what cloning and reward signals learn from; called if they need it.
        importance_weights: what the weights of prioritised replay multiply. "all": the loss of actor, critics and
            temperatures. "critics": only the gradients of the groups "critic", "value" and "value_encoder", as in methods that
            learn only Q (arXiv:1511.05952).

    Attributes:
        means: means over the updates since the last summary.
        losses: what the last update reported, by tag; empty before the first.
        group_names: names of the optimizer's groups of parameters.
        ranks: the processes that learn together, each from its part of a batch.
        rate_names: for each group, the name of the binding that sets its learning rate.
        needs_demonstrations: whether cloning or a reward signal learns from `demonstrations`.
        demonstrations: what they learn from; None if nothing needs them.
    """

    max_grad_norm: float | None
    ranks: Ranks = ALONE

    def __init__(
        self,
        agent: Agent,
        learning_rate: float | Schedule = 1e-4,
        actor_learning_rate: float | Schedule | None = None,
        critic_learning_rate: float | Schedule | None = None,
        temperature_learning_rate: float | Schedule | None = None,
        epsilon: float = EPSILON,
        max_grad_norm: float | Schedule | None = None,
        matmul: Products = "auto",
        cloning: Cloning | None = None,
        importance_weights: Literal["all", "critics"] = "all",
        optimizer_ctor: OptimizerCtor | Mapping[str, OptimizerCtor] | None = None,
        weight_decay: dict[str, float] | None = None,
        actor_encoder_learning_rate: float | Schedule | None = None,
        value_encoder_learning_rate: float | Schedule | None = None,
        value_learning_rate: float | Schedule | None = None,
        diagnostics: Literal["off", "scalars", "histograms"] = "off",
        demonstrations: Callable[[], Demonstrations] | None = None,
    ):
        if agent.role != "learn":
            raise TaacError(f"an agent with role '{agent.role}' cannot learn; build it with role 'learn'")
        if max_grad_norm is not None and not bounds(max_grad_norm)[0] > 0:
            raise TaacError(f"Learner.max_grad_norm must be above 0, or None, got {max_grad_norm}")
        if not epsilon > 0:
            raise TaacError(f"Learner.epsilon must be above 0, got {epsilon}")
        if importance_weights not in ("all", "critics"):
            raise TaacError(f"Learner.importance_weights must be 'all' or 'critics', got '{importance_weights}'")
        if optimizer_ctor is not None and epsilon != EPSILON:
            of = f" on {', '.join(optimizer_ctor)}" if isinstance(optimizer_ctor, Mapping) else ""
            raise TaacError(
                f"Learner.epsilon {epsilon} has no effect{of} with Learner.optimizer_ctor: bind that of its optimizers, such as "
                "Adam.eps or, by its scope, critic/Adam.eps"
            )
        if cloning is not None:
            cloning.check(agent.algorithm)
        self.agent, self.importance_weights = agent, importance_weights
        self._matmul = matmul
        self._use_products(resolve(matmul, agent.device, agent.compiled))
        own = {
            "actor": actor_learning_rate,
            "critic": critic_learning_rate,
            "temperature": temperature_learning_rate,
            "actor_encoder": actor_encoder_learning_rate,
            "value_encoder": value_encoder_learning_rate,
            "value": value_learning_rate,
        }
        of_algorithm = groups_of_algorithm(agent, learning_rate, own)
        groups = [*of_algorithm, *groups_of_signals(agent)]
        self._differentiated = [p for group in of_algorithm for p in group.parameters]  # by the algorithm's loss
        self._parameters = [p for group in groups for p in group.parameters]
        for parameter in self._parameters:
            parameter.data = parameter.data.contiguous()  # see `take_step`
        adam = functools.partial(TensorFlowAdam, eps=epsilon)
        self.optimizer = build_optimizer(optimizer_ctor, groups, at_start(learning_rate), adam)
        self.group_names, self.rate_names = [group.name for group in groups], [group.rate_name for group in groups]
        set_weight_decay(self.optimizer, self.group_names, weight_decay or {})
        self.scheduled = follow(self, max_grad_norm=max_grad_norm)
        self.scheduled += scheduled_rates(self.optimizer, groups, learning_rate, own)
        self.guard = Guard(agent, self._parameters, every_step=not skips_on_device(self.optimizer))
        self.growth = GrowthWatch(agent.algorithm.gamma, agent.algorithm.reward_scale, agent.algorithm.greatest_cost)
        self.means = RunningMeans()
        self.diagnostics = Diagnostics(diagnostics, agent)
        self._observed: dict[str, torch.Tensor] = {}
        self.num_updates = 0
        self.losses: Mapping[str, torch.Tensor | float] = {}
        self._norm: torch.Tensor | float | None = None  # see `_gradient_norm`
        self._sampling = 0.0  # seconds
        self.cloning, self._side = cloning, SideLosses(agent, cloning, demonstrations)
        self.needs_demonstrations, self.demonstrations = self._side.need_demonstrations, self._side.demonstrations

    @property
    def runs_compiled(self) -> bool:
        """Whether updates run compiled: not if compiling has failed."""
        return self.agent.compiled and not getattr(self._program, "failed", False)

    def pretrain(self, batch_size: int, length: int) -> None:
        """Learns behaviour cloning alone, before anything else. Its gradient steps are not counted as updates.

        The statistics of observations begin with the demonstrations. Otherwise the policy would learn from raw observations and
        then act on normalised ones.
        """
        if self.cloning is None or self.cloning.pretraining_updates == 0:
            return
        assert self.demonstrations is not None
        self.agent.observe(self.demonstrations.observations())
        for number in range(1, self.cloning.pretraining_updates + 1):
            demonstrated = self._side.demonstrated(batch_size, length)
            with using(self.products), batch_statistics():
                loss = cloning_loss(self.agent, demonstrated, self.products)
            self._take_step(self._checked_gradients(loss, self._parameters, number, demonstrated, "cloning/loss"))
            self.agent.algorithm.after_pretraining_step()

    def learn_from(self, replay: Replay, batch_size: int, length: int, progress: float = 0.0) -> LossInfo:
        """Takes one gradient step on a batch sampled from the replay, and updates the priorities of its segments.

        Reward signals that have batches of their own sample there, too. `progress` is the completed fraction of the run.
        """
        began = time.perf_counter()
        batch = replay.sample_batch(batch_size, length, progress)
        self._sampling += time.perf_counter() - began
        loss_info = self.update(batch.experience, batch.weights, replay)
        replay.update_priorities(batch, loss_info.segment_error)
        return loss_info

    def pop_seconds_sampling(self) -> float:
        """Returns the seconds that `learn_from` has sampled since the last call."""
        seconds, self._sampling = self._sampling, 0.0
        return seconds

    def update(self, experience: Experience, weights: torch.Tensor | None = None, replay: Replay | None = None) -> LossInfo:
        """Takes one gradient step on a batch `[T, B]`, as it was sampled; returns what is to be summarised, still on the device.

        Args:
            weights: `[B]`, importance weights of prioritised replay. The whole loss of a segment's frames is multiplied by its
                weight, actor and temperatures included, so that all of it estimates (up to a scale) the mean of uniform replay.
                With `importance_weights = "critics"` only the critics' gradients are weighted, and "loss/total" is the plain
                mean. None: all segments count equally.
            replay: where reward signals with their own `batch_size` sample.

        Raises:
            TaacError: weights were given, but the algorithm reports no errors from which to update priorities.
            DivergedError: the loss or a gradient is not finite; the parameters are unchanged.
        """
        agents, prepared = self.agent.agents, self.agent.prepare(experience)
        self.growth.observe(prepared.time_step.reward)
        found = self.loss_and_gradients(prepared, self._prepare_weights(weights))
        loss, total, extra, statistics = found.loss, found.total, {"loss/total": found.loss, **found.extra}, found.statistics
        self._set_gradients(self._differentiated, found.gradients)
        if self._side.any:
            with using(self.products):
                side = self._side.add_gradients(self._parameters, prepared.time_step, self.num_updates, self.products, replay)
            loss, total, extra = loss + side.loss, total + side.total, {**extra, **side.extra}
        loss, total, extra, statistics = self.ranks.average_update(self._parameters, loss, total, extra, statistics)
        step = GradientStep(self.num_updates + 1, experience, prepared, loss, total, found.frames, extra)
        found_inf = self.guard.check(step)
        gradient_norms = self.diagnostics.gradient_norms(self.group_names, self.optimizer)
        self._take_step(found_inf, self.agent.algorithm.held_groups(self.num_updates + 1))
        if self._side.any:
            self._learn_signals_more(experience, replay)
        self.losses, self._observed = extra, found.observed
        self.means.add(extra)
        if self.diagnostics.on:
            self.means.add({**statistics, **gradient_norms})
        self.num_updates += 1
        self.agent.algorithm.after_update(self.num_updates)
        error = found.segment_error
        return LossInfo(found.frames, extra, error if agents is None or error is None else agents.mean_over_agents(error))

    def loss_and_gradients(self, experience: Experience, weights: Nest) -> LossAndGradients:
        """Returns loss and gradients for a prepared batch, by the compiled program if there is one. `update` steps along them.

        A learner of your own may override it (`experiments/examples/own_learner.py`).

        Args:
            weights: `[B]`; `()` if all segments count equally.
        """
        held = "actor" in self.agent.algorithm.held_groups(self.num_updates + 1)
        with using(self.products):
            return (self._held_program if held else self._program)(experience, weights)

    def _uncompiled_held(self, experience: Experience, weights: Nest) -> LossAndGradients:
        with policy_held():
            return self.uncompiled(experience, weights)

    def uncompiled(self, experience: Experience, weights: Nest) -> LossAndGradients:
        """Does `loss_and_gradients` without a compiled program."""
        algorithm, parameters = self.agent.algorithm, self._differentiated
        with self.agent.learning():
            with mixed_precision(self.products, self.agent.device):
                info = algorithm.train_step(experience)
            frames, extra, segment_error, detail = algorithm.calc_loss(experience, info)
        loss = frames.mean()
        gradients: Sequence[torch.Tensor | None]
        if isinstance(weights, tuple):
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        elif segment_error is None:
            raise TaacError(
                f"prioritised replay needs errors of the critics, which {type(algorithm).__name__} does not report "
                "(LossInfo.segment_error); bind create_experiment.replay_buffer_ctor = @ReplayBuffer"
            )
        else:
            weighted = (frames * weights).mean()
            if self.importance_weights == "critics":
                gradients = self._of_critics_and_others(weighted, loss)
            else:
                loss, gradients = weighted, torch.autograd.grad(weighted, parameters, allow_unused=True)
            extra = {**extra, "replay/weight": weights.mean(), "replay/segment_error": segment_error.mean()}
        loss = loss.detach()
        statistics, observed = self.diagnostics.compute(detail)
        return LossAndGradients(
            loss, sum_of_all(loss, gradients), frames.detach(), extra, segment_error, list(gradients), statistics, observed
        )

    def _of_critics_and_others(self, weighted: torch.Tensor, plain: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Returns the gradients of the plain loss, but for the critics those of the weighted one."""
        groups = self.agent.algorithm.parameter_groups()
        critics = [p for name in ("critic", "value", "value_encoder") for p in groups.get(name, ())]
        others = [p for p in self._differentiated if all(p is not critic for critic in critics)]
        of_others = torch.autograd.grad(plain, others, retain_graph=True, allow_unused=True)
        of_critics = torch.autograd.grad(weighted, critics, allow_unused=True)
        found = {id(p): gradient for p, gradient in zip([*others, *critics], [*of_others, *of_critics])}
        return tuple(found[id(p)] for p in self._differentiated)

    def _prepare_weights(self, weights: torch.Tensor | None) -> Nest:
        """Returns the weights on the device, one for each segment that the algorithm receives; `()` for None."""
        if weights is None:
            return ()
        weights, agents = weights.to(self.agent.device), self.agent.agents
        return weights if agents is None else agents.repeat_for_agents(weights)

    def _take_step(self, found_inf: torch.Tensor | None, held: Collection[str] = ()) -> None:
        for name, group in zip(self.group_names, self.optimizer.param_groups):
            for parameter in group["params"] if name in held else ():
                parameter.grad = None  # so that the optimizer skips it
        self._norm = None  # computed when it is asked for
        if self.max_grad_norm is not None:
            self._norm = torch.nn.utils.clip_grad_norm_(self._differentiated, self.max_grad_norm)
        take_step(self.optimizer, found_inf)

    def _set_gradients(self, parameters: Sequence[nn.Parameter], gradients: Sequence[torch.Tensor | None]) -> None:
        """Sets the gradients of some parameters, and removes those of all others."""
        for parameter in self._parameters:
            parameter.grad = None
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient

    def _checked_gradients(
        self, loss: torch.Tensor, parameters: Sequence[nn.Parameter], number: int, learnt: Experience, tag: str
    ) -> torch.Tensor | None:
        """Sets and checks the gradients of a loss that is learnt by itself; returns the `found_inf` of `take_step`."""
        with using(self.products):
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        self._set_gradients(parameters, gradients)
        loss = loss.detach()
        total = sum_of_all(loss, gradients)
        return self.guard.check(GradientStep(number, learnt, learnt, loss, total, loss.reshape(1, 1), {tag: loss}))

    def _learn_signals_more(self, experience: Experience, replay: Replay | None) -> None:
        """Takes the steps of the signals that learn more often than the algorithm; see `RewardSignal.update_period`."""
        length, batch_size = experience.time_step.step_type.shape
        with using(self.products):
            for signal, frames, loss in self._side.more(batch_size, length, replay):
                self._gradient_norm()  # of the algorithm, before it is gone
                parameters, tag = trainable(signal), f"signal/{signal.name}_loss"
                found_inf = self._checked_gradients(loss, parameters, self.num_updates + 1, Experience(frames, ()), tag)
                take_step(self.optimizer, found_inf)

    def histograms(self) -> dict[str, torch.Tensor]:
        """Returns the frames' values of the last update by tag; empty unless diagnostics are "histograms"."""
        return self.diagnostics.histograms(self._observed)

    def summary(self) -> dict[str, float]:
        """Returns means over the updates since the last call, by tag, the current learning rates, and the last gradient's norm.

        Without an update it is empty.
        """
        means = self.means.means()
        self.means.clear()
        if not means:
            return means
        rates = {f"learning_rate/{n}": float(g["lr"]) for n, g in zip(self.group_names, self.optimizer.param_groups)}
        return {**explained_variances(means), **rates, "gradient/total": self._gradient_norm()}

    def _gradient_norm(self) -> float:
        """Returns the norm of the last update's gradient over the algorithm's parameters, before clipping; 0 before the first."""
        if self._norm is None:
            gradients = [p.grad for p in self._differentiated if p.grad is not None]
            self._norm = torch.stack(torch._foreach_norm(gradients)).norm() if gradients else 0.0
        return float(self._norm)

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs, besides the agent's state, to learn as if it had never been stopped."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "growth": self.growth.state_dict(),
            "means": self.means.state_dict(),
            "products": self.products,  # the choice that "auto" made, as below
            "compiled": self.runs_compiled,
            "num_updates": self.num_updates,
            "gradient_norm": self._gradient_norm(),
            "losses": {tag: v.detach() if isinstance(v, torch.Tensor) else float(v) for tag, v in self.losses.items()},
            "demonstrations": None if self.demonstrations is None else self.demonstrations.digest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict()`.

        Raises:
            TaacError: the optimizer or the demonstrations are not those of the state.
        """
        if self.demonstrations is not None:
            self.demonstrations.check(state["demonstrations"])
        load_state(self.optimizer, state["optimizer"])
        self.growth.load_state_dict(state["growth"])
        self.means.load_state_dict(state["means"], self.agent.device)
        self.keep(state["compiled"], state["products"])
        self.num_updates = int(state["num_updates"])
        self.losses = dict(state["losses"])
        self._norm = float(state["gradient_norm"])

    def compile_programs(self) -> None:
        """Compiles updates and acting from now on; see `Agent.compile_programs`."""
        self.agent.compile_programs()
        self._use_products(resolve(self._matmul, self.agent.device, compiled=True))

    def keep(self, compiled: bool | None, products: str | None) -> None:
        """Keeps the programs and products that a run began with, whatever "auto" would choose now: others round differently.

        Args:
            compiled: whether updates were compiled; None: unknown.
            products: the matrix products; None: unknown. Those that this machine does not have are replaced.
        """
        if self.agent.may_compile and compiled is not None and compiled != self.agent.compiled:
            if compiled and find_compiler() is not None:
                self.agent.compile_programs()
            elif not compiled:
                self.agent.run_uncompiled()
            self._use_products(self.products)
        if products is not None and available(products, self.agent.device, self.agent.compiled):
            self._use_products(products)

    def _use_products(self, products: str) -> None:
        self.products = products
        programs: list[Callable[..., LossAndGradients]] = [self.uncompiled, self._uncompiled_held]
        if self.agent.compiled:
            split, optional = parts(products, self.agent.device), self.agent.may_compile
            programs = [CompiledFunction(program, self.agent, split, optional=optional) for program in programs]
        self._program, self._held_program = programs
