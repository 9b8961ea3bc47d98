"""The interface of an algorithm: acting and training steps, parameters and hyper-parameters, and nothing else.

State that is carried through time is passed in and returned, never stored. The environment, the buffer, optimizers,
checkpoints, the gradient step and summaries belong to other parts. In short, one iteration of the trainer is

    state = reset_where_first(state, algorithm.initial_state(B), time_step)     # done by the caller
    step = algorithm.rollout_step(time_step, state)                             # act
    replay.add(Experience(time_step, step.info)); time_step, state = environment.step(step.output), step.state
    experience = replay.sample(...)                                             # [T, B]
    loss = algorithm.calc_loss(experience, algorithm.train_step(experience))    # LossInfo, loss [T, B]
    loss.loss.mean().backward(); optimizer.step(); algorithm.after_update(number)
"""

from __future__ import annotations

import contextlib
import copy
import traceback
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from fractions import Fraction
from typing import Any, Literal

import torch
import torch.nn as nn

from taac import nest, specs
from taac.data_structures import FIRST, AlgStep, Experience, LossInfo, Nest, TimeStep
from taac.errors import TaacError

_learns_policy: ContextVar[bool] = ContextVar("learns_policy", default=True)


def learns_policy() -> bool:
    """Returns whether this update moves the policy. Where it does not, `train_step` may leave out what only its loss needs."""
    return _learns_policy.get()


@contextlib.contextmanager
def policy_held() -> Iterator[None]:
    """A context in which `learns_policy()` is False."""
    token = _learns_policy.set(False)
    try:
        yield
    finally:
        _learns_policy.reset(token)


_FRAMES = 2  # on which acting is tried: one could hide that a step returns a single action


class ForwardingConstructor:
    """Adds a constructor that forwards all arguments to a subclass that has none.

    gin wraps the constructor of each configured class. If the constructor is inherited, gin would wrap a copy and record the
    defaults of its parameters as operative, even if other values are bound for the class that defines them.
    """

    def __init_subclass__(cls, **options: Any):
        super().__init_subclass__(**options)
        if "__init__" not in vars(cls):

            def __init__(self: Any, *args: Any, **named: Any) -> None:
                super(cls, self).__init__(*args, **named)

            cls.__init__ = __init__  # type: ignore[method-assign]


class Algorithm(ForwardingConstructor, nn.Module):
    """The interface. Everything in a `TimeStep` is batched: `[B, ...]` in acting steps, `[T, B, ...]` in training."""

    min_segment_length = 2  # fewest frames T of a segment from which everything used in acting can be learnt
    min_segment_reason = "one transition that is learnt from"  # the reason for this minimum, for display
    max_segment_length: int | None = None  # most frames T that are learnt from; None: any number
    burn_in = 0  # first frames of a segment that are not learnt from
    reward_scale = 1.0  # factor applied to rewards in learning
    greatest_cost = 0.0  # of a step, beside its reward and the price of its decision
    switch_threshold: float | None = None  # a greedy agent switches where the probability is above it; None: it has none
    takes_noise = False  # whether `rollout_step` takes the noise of its continuous action, see `taac/acting/noise.py`
    action_size: int  # A, the width of that noise
    actor_feature_size: int  # of `actor_features`
    # The critics learn from a segment if any of its frames 0..T-2, the first one, or all are not LAST.
    critics_need: Literal["any", "first", "all"] = "any"
    learns_on_last_frame = True  # whether anything but targets is computed from a segment's last frame
    info_depends_on_action = True  # whether `info` depends on the chosen action: then explorers must not change it

    @property
    def bonus_share(self) -> float:
        """Returns how much of an entropy bonus each part of the reward learns, as a mean over parts."""
        return 1.0

    @property
    def gamma(self) -> float | None:
        """Returns the discount per step, the largest if parts of the reward have their own; None if there is none."""
        return None

    def set_switch_threshold(self, threshold: float) -> None:
        """Sets the probability above which a greedy agent begins something new, in [0, 1).

        Raises:
            TaacError: it is out of range, or the method does not switch by a probability.
        """
        if self.switch_threshold is None:
            raise TaacError(
                f"{type(self).__name__} has no switch_threshold, because it does not switch by a probability: TAAC, its "
                "ablations, SAC-Hybrid and SDAR do"
            )
        if not 0 <= threshold < 1:
            raise TaacError(f"switch_threshold must be 0 or more and below 1, got {threshold}")
        self.switch_threshold = float(threshold)

    def initial_state(self, batch_size: int) -> Nest:
        """Returns the state at the first frame of an episode, leaves `[batch_size, ...]`; `()` if there is none."""
        raise self._undefined("initial_state")

    def predict_step(self, time_step: TimeStep, state: Nest, epsilon: float = 0.0) -> AlgStep:
        """Acts greedily. With probability `epsilon`, each random choice is sampled instead of set to its mode."""
        raise self._undefined("predict_step")

    def rollout_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        """Acts to explore. `info` is stored in the replay buffer and holds what training needs of this frame.

        If `takes_noise`, a third argument may be the standard normal numbers `[B, A]` that its action is made of.
        """
        raise self._undefined("rollout_step")

    def random_step(self, time_step: TimeStep, state: Nest) -> AlgStep:
        """Acts uniformly at random, to collect experience before training begins. Returns the same `info` as `rollout_step`."""
        raise self._undefined("random_step")

    def actor_features(self, observation: Nest) -> torch.Tensor:
        """Returns what the actor sees of an observation, `[..., F]`; of algorithms that take noise."""
        raise self._undefined("actor_features", "noise needs")

    def noise_basis(self, features: torch.Tensor) -> torch.Tensor:
        """Returns the terms j whose random sum is state-dependent noise: the features `[..., F]` and a 1, as `[..., J, 1]`.

        For an actor that sees these features alone and has gSDE, it is its `h_j sigma_ji`, `[..., J, A]`.
        """
        return torch.cat([features, torch.ones_like(features[..., :1])], -1).unsqueeze(-1)

    def action_values(self, time_step: TimeStep, state: Nest, step: AlgStep) -> tuple[torch.Tensor, Nest]:
        """Returns the critics' values of an action and of the choices that the policy has there.

        Args:
            time_step, state: what `predict_step` was given, `[B, ...]`.
            step: what it returned; or with another `output` and with `decided` all True, to value that action.

        Returns:
            `min_i Q_i(s, a)` `[B]` of the action a, of a vector reward the weighted sum; and the same of each choice,
            `[B, ..., C]`, or () if the policy has none or does not ask the critics about them.
        """
        raise TaacError(f"{type(self).__name__} does not define action_values, so there is no Q to ask for")

    def demonstrated_info(self, time_step: TimeStep) -> Nest:
        """Returns the `info` `[T, E, ...]` that a rollout would have stored had it taken the recorded actions.

        The default suits algorithms whose rollouts store nothing. If the result does not match what rollouts store, the
        algorithm cannot learn from recorded episodes.

        Args:
            time_step: E episodes side by side, each starting with FIRST at frame 0, `[T, E, ...]`. Frames after an episode's
                LAST are padding.
        """
        return ()

    def train_step(self, experience: Experience) -> Nest:
        """Runs the networks once on all `T*B` replayed frames. The result is passed to `calc_loss`."""
        raise self._undefined("train_step")

    def learnt_reward(self, reward: torch.Tensor) -> torch.Tensor:
        """Selects the parts of a replayed reward `[T, B(, D)]` for `train_step` and `calc_loss`; all parts by default.

        `Agent.prepare` calls it. The replay buffer and the records of episodes keep the whole reward.
        """
        return reward

    def calc_loss(self, experience: Experience, info: Nest) -> LossInfo:
        """Returns a `LossInfo` with the loss of each frame, `[T, B]`, 0 at LAST; `[2, B]` if windows are learnt."""
        raise self._undefined("calc_loss")

    def cloning_loss(self, experience: Experience) -> torch.Tensor:
        """Returns the policy's distance from replayed demonstrations, `[T, B]`; 0 at LAST and at the segment's last frame."""
        raise TaacError(f"{type(self).__name__} does not support behaviour cloning")

    def after_collect(self, decisions: int, env_steps: int) -> None:
        """Receives an iteration's numbers of decisions and environment steps after it, unless the steps were random."""

    def after_update(self, num_updates: int) -> None:
        """Moves targets and projects bounded values. Called after each optimizer step, with the number of steps so far."""

    def after_pretraining_step(self) -> None:
        """Projects bounded values, after a gradient step of pre-training. Target networks are copies until the first update."""

    def set_update_ratio(self, updates_per_env_step: Fraction | None) -> None:
        """Receives the updates per environment step, before the first update; None if the ratio changes during the run."""

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Returns trainable parameters by role ("actor", "critic", "temperature"), each parameter in exactly one group."""
        raise self._undefined("parameter_groups")

    def held_groups(self, num_updates: int) -> Collection[str]:
        """Returns the groups of parameters that update number `num_updates`, from 1, leaves as they are; see `policy_delay`."""
        return ()

    def _undefined(self, name: str, needed: str = "every algorithm needs") -> TaacError:
        return TaacError(f"{type(self).__name__} does not define {name}, which {needed}")

    def acting_modules(self) -> list[str]:
        """Returns the names of the sub-modules needed to act, greedily and exploring; by default all of them."""
        return [name for name, _ in self.named_children()]

    def needed_modules(self, step: AlgStep) -> dict[str, torch.Tensor]:
        """Returns the rows `[B, ...]` bool in which an acting step needs a module, by name. One not named is needed in all."""
        return {}

    def summary_tags(self) -> dict[str, str]:
        """Returns this algorithm's own tags of `LossInfo.extra` with their meaning; common tags may be omitted."""
        return {}

    def describe(self) -> list[str]:
        """Returns lines about derived settings, such as target entropies in nats with their formulas."""
        return []


def check_groups(algorithm: Algorithm) -> None:
    """Refuses trainable parameters that belong to no group, or to more than one.

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
            f"{kind}.parameter_groups leaves out {', '.join(forgotten)}, so nothing would train them: add them to a group, "
            "or call requires_grad_(False) on them if they are constants"
        )
    twice = [f"{name} ({', '.join(groups[id(p)])})" for name, p in trained.items() if len(groups[id(p)]) > 1]
    if twice:
        raise TaacError(f"{kind}.parameter_groups has parameters twice: {'; '.join(twice)}; each must be in one group only")


def check_acting(algorithm: Algorithm, observation_spec: Nest, action_spec: Nest, reward_dim: int | None) -> None:
    """Acts once greedily, once exploring and once at random, with only `acting_modules`. The run's random state is unchanged.

    Raises:
        TaacError: names a step that is missing, fails or returns other actions than the action spec's; or a module that acting
            needs but `acting_modules` omits, or a listed module that does not exist.
    """
    modules, names = dict(algorithm.named_children()), algorithm.acting_modules()
    kind = type(algorithm).__name__
    if unknown := [name for name in names if name not in modules]:
        raise TaacError(f"{kind}.acting_modules names {', '.join(unknown)}, but there are {', '.join(modules)}")
    actor = copy.copy(algorithm)
    actor._modules = {name: part for name, part in algorithm._modules.items() if part is None or name in names}
    actor.eval()  # as an agent is when it acts
    frame = specs.blank(specs.time_step_spec(observation_spec, action_spec, reward_dim), _FRAMES)
    with torch.random.fork_rng(devices=[]):
        for name in ("predict_step", "rollout_step", "random_step"):
            try:
                step = getattr(actor, name)(frame, actor.initial_state(_FRAMES))
            except TaacError:
                raise
            except Exception as error:
                for module in modules:
                    if module not in names and str(error).endswith(f"has no attribute '{module}'"):
                        raise TaacError(f"{kind}.acting_modules leaves out '{module}', which acting needs") from error
                raise TaacError(f"{kind}.{name} failed on a blank frame: {describe_failure(error)}") from error
            _check_actions(f"{kind}.{name}", step, action_spec)


def _check_actions(step_name: str, step: Any, action_spec: Nest) -> None:
    """Refuses what a step returned if it is no `AlgStep`, or if its actions are not those of the action spec."""
    if not isinstance(step, AlgStep):
        raise TaacError(f"{step_name} returns a {type(step).__name__}, expected an AlgStep")
    expected = [[_FRAMES, *spec.shape] for spec in nest.flatten(action_spec)]
    found = [list(a.shape) if isinstance(a, torch.Tensor) else type(a).__name__ for a in nest.flatten(step.output)]
    if found != expected:
        raise TaacError(
            f"{step_name} returns actions of shape {', '.join(map(str, found))}, expected {', '.join(map(str, expected))}: the "
            "first dimension is that of the frames"
        )


def describe_failure(error: BaseException) -> str:
    """Returns the type and text of an error, and the line that raised it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (in {place.name}, {place.filename}:{place.lineno})"


def reset_where_first(state: Nest, initial: Nest, time_step: TimeStep) -> Nest:
    """Returns the state with the initial one in rows that begin an episode. Leaves `[B, ...]`."""
    step_type = time_step.step_type
    if step_type.is_cpu and FIRST not in step_type.numpy().tobytes():  # the usual case; a GPU would have to wait
        return state
    first = time_step.is_first()
    return nest.where(first, initial, state)
