"""What an algorithm is: five steps, parameters and hyper-parameters, and nothing else.

State that runs through time is passed in and handed out, never kept. The environment, the buffer, optimizers,
checkpoints, the gradient step and summaries belong to others. One iteration of the trainer is, in short,

    state = reset_where_first(state, algorithm.initial_state(B), time_step)     # whoever acts does this
    step = algorithm.rollout_step(time_step, state)                             # act
    replay.add(Experience(time_step, step.info)); time_step = environment.step(step.output)
    experience = replay.sample(...)                                             # [T, B]
    loss = algorithm.calc_loss(experience, algorithm.train_step(experience))    # LossInfo, loss [T, B]
    loss.loss.mean().backward(); optimizer.step(); algorithm.after_update(number)
"""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

import torch
import torch.nn as nn

from taac import nest, specs
from taac.data_structures import FIRST, AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError


class BoundAsItsBase:
    """Gives a subclass without a constructor one that passes everything on.

    gin wraps the constructor of each class that it configures. A wrapped copy of an inherited one would record the defaults of
    its parameters as in force, whatever is bound for the class that they belong to.
    """

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if "__init__" not in vars(cls):

            def __init__(self: Any, *args: Any, **named: Any) -> None:
                super(cls, self).__init__(*args, **named)

            cls.__init__ = __init__  # type: ignore[method-assign]


class Algorithm(BoundAsItsBase, nn.Module):
    """The interface. Everything in a `TimeStep` is batched: `[B, ...]` in the acting steps, `[T, B, ...]` in training."""

    min_segment_length = 2  # frames T of a segment that it can learn all it acts on from
    min_segment_reason = "one transition that is learnt from"  # why not fewer, for people
    reward_scale = 1.0  # rewards are multiplied by it where they are learnt from
    info_tells_action = True  # whether `info` depends on the action chosen: then no explorer may execute another

    @property
    def gamma(self) -> float | None:
        """The discount of a step, the greatest where parts of the reward have their own; None: there is none."""
        return None

    def initial_state(self, batch_size: int) -> Nest:
        """The state at the first frame of an episode, leaves `[batch_size, ...]`; `()` if there is none."""
        raise NotImplementedError

    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        """Acts greedily; with probability `epsilon`, each random choice is sampled instead of taking its mode."""
        raise NotImplementedError

    def rollout_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        """Acts to explore; `info` is what training needs of this frame, and goes to the replay buffer."""
        raise NotImplementedError

    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        """Acts uniformly at random: how experience is collected before training begins. `info` as `rollout_step`."""
        raise NotImplementedError

    def demonstrated_info(self, time_step: TimeStep) -> Nest:
        """The `info` of recorded frames, leaves `[T, E, ...]`: what rollouts that took these actions would have stored.

        Args:
            time_step: E episodes side by side, each from its FIRST at frame 0, `[T, E, ...]`; what comes after an episode's
                LAST is filling.

        An algorithm whose rollouts store nothing has nothing to say; where this does not match what rollouts store, the
        algorithm cannot learn from recorded episodes.
        """
        return ()

    def train_step(self, experience: Experience) -> Nest:
        """Runs the networks once, on all `T*B` replayed frames at a time; its result is handed to `calc_loss`."""
        raise NotImplementedError

    def learnt_reward(self, reward: torch.Tensor) -> torch.Tensor:
        """The parts of a replayed reward `[T, B(, D)]` that `train_step` and `calc_loss` take: all, unless said otherwise.

        `Agent.prepare` calls it; the replay buffer and the records of episodes keep the whole reward.
        """
        return reward

    def calc_loss(self, experience: Experience, info: Nest) -> LossInfo:
        """The loss of each frame, `[T, B]`, 0 at LAST."""
        raise NotImplementedError

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """How far the policy is from replayed demonstrations, `[T, B]`: 0 at LAST and at the segment's last frame."""
        raise TaacError(f"{type(self).__name__} has no behaviour cloning")

    def after_update(self, num_updates: int) -> None:
        """Called after each optimizer step, with how many there have been: moves targets, projects what is bounded."""

    def set_update_ratio(self, updates_per_env_step: Fraction | None) -> None:
        """Is told, before any update, how many there are for each environment step; None: that changes over the run."""

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Trainable parameters by role ("actor", "critic", "temperature"); every one in exactly one group."""
        raise NotImplementedError

    def acting_modules(self) -> list[str]:
        """Names of the sub-modules that acting needs, greedily and exploring; the others only learn. All, if nothing is said."""
        return [name for name, _ in self.named_children()]

    def summary_tags(self) -> dict[str, str]:
        """Tags of `LossInfo.extra` that are this algorithm's own, with their meaning; the common ones need not be named."""
        return {}

    def describe(self) -> list[str]:
        """Lines about what follows from the settings: target entropies in nats with their formula."""
        return []


def check_groups(algorithm: Algorithm) -> None:
    """Refuses trainable parameters that no optimizer would move, or that two groups have.

    Raises:
        TaacError: names the parameters.
    """
    groups: dict[int, list[str]] = {}
    for group, parameters in algorithm.parameter_groups().items():
        for parameter in parameters:
            groups.setdefault(id(parameter), []).append(group)
    kind = type(algorithm).__name__
    trained = {name: parameter for name, parameter in algorithm.named_parameters() if parameter.requires_grad}
    forgotten = [name for name, parameter in trained.items() if id(parameter) not in groups]
    if forgotten:
        raise TaacError(
            f"{kind}.parameter_groups leaves out {', '.join(forgotten)}: trainable, but nothing would train it. Add it to a "
            "group, or call requires_grad_(False) if it is not to be trained"
        )
    twice = [f"{name} ({', '.join(groups[id(p)])})" for name, p in trained.items() if len(groups[id(p)]) > 1]
    if twice:
        raise TaacError(f"{kind}.parameter_groups has parameters twice: {'; '.join(twice)}. Each belongs to one group")


def check_acting(algorithm: Algorithm, observation_spec: Nest, action_spec: Nest, reward_dim: int | None) -> None:
    """Acts once, greedily, exploring and at random, with nothing but `acting_modules`. Draws no random number of the run's.

    Raises:
        TaacError: names a module that acting needs and `acting_modules` leaves out, or that it names and there is not.
    """
    modules, names = dict(algorithm.named_children()), algorithm.acting_modules()
    kind = type(algorithm).__name__
    if unknown := [name for name in names if name not in modules]:
        raise TaacError(f"{kind}.acting_modules names {', '.join(unknown)}, but there are {', '.join(modules)}")
    actor = copy.copy(algorithm)
    actor._modules = {name: part for name, part in algorithm._modules.items() if part is None or name in names}
    frame = specs.zeros(specs.time_step_spec(observation_spec, action_spec, reward_dim), 1)
    try:
        with torch.random.fork_rng(devices=[]):
            for step in (actor.predict_step, actor.rollout_step, actor.random_step):
                step(frame, actor.initial_state(1))
    except AttributeError as error:
        for name in modules:
            if name not in names and str(error).endswith(f"has no attribute '{name}'"):
                raise TaacError(f"{kind}.acting_modules leaves out '{name}', which acting needs") from error
        raise


def reset_where_first(state: Nest, initial: Nest, time_step: TimeStep) -> Nest:
    """The state with the rows that begin an episode set to the initial one. Leaves `[B, ...]`."""
    step_type = time_step.step_type
    if step_type.device.type == "cpu" and FIRST not in step_type.numpy():  # nearly always; a GPU would be waited for
        return state
    first = time_step.is_first()
    return nest.map_structure(lambda s, i: torch.where(first.reshape(-1, *(1,) * (s.dim() - 1)), i, s), state, initial)
