"""Determines when something is due: summaries, evaluations, checkpoints and the end, and how many gradient steps."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, NamedTuple

import gin

from taac.errors import TaacError, refuse_below
from taac.ops.schedules import Schedule, Scheduled, at_start, bounds


class Due(NamedTuple):
    """What is due after an iteration."""

    summary: bool
    evaluation: bool
    checkpoint: bool


@gin.configurable
class Intervals:
    """Determines what is due after an iteration. All numbers are environment steps, summed over environments and ranks.

    Args:
        num_env_steps: length of the run. An evaluation and a checkpoint are due at its end.
        summary_interval, evaluation_interval, checkpoint_interval: a summary of training, an evaluation or a checkpoint is due
            whenever a multiple of its interval is reached or passed. A checkpoint changes nothing in the run.
    """

    def __init__(
        self,
        num_env_steps: int = gin.REQUIRED,
        summary_interval: int = 1_000,
        evaluation_interval: int = 2_500,
        checkpoint_interval: int = 10_000,
    ):
        self.num_env_steps = num_env_steps
        self.summary, self.evaluation, self.checkpoint = summary_interval, evaluation_interval, checkpoint_interval
        refuse_below(
            1, "Intervals", num_env_steps=num_env_steps, evaluation_interval=evaluation_interval,
            summary_interval=summary_interval, checkpoint_interval=checkpoint_interval,
        )  # fmt: skip

    def done(self, env_steps: int) -> bool:
        return env_steps >= self.num_env_steps

    def due(self, before: int, now: int) -> Due:
        """Returns what is due after an iteration that began at `before` environment steps and ended at `now`."""

        def passed(interval: int) -> bool:
            return now // interval > before // interval

        done = self.done(now)
        return Due(passed(self.summary), passed(self.evaluation) or done, passed(self.checkpoint) or done)


@gin.configurable(denylist=["num_envs", "num_env_steps"])
class UpdateRatio:
    """Holds the ratio of gradient steps to environment steps (or transitions) exactly, whatever the length of iterations.

    The first `initial_collect_steps` environment steps earn nothing. After them, S steps earn `floor(S * ratio)` updates, or
    the floor of the integral of the ratio if it follows a schedule.

    Args:
        num_envs: environments stepped at once, in all ranks.
        num_env_steps: environment steps of the whole run.
        initial_collect_steps: environment steps before the first update.
        unroll_length, updates_per_iteration: an iteration takes `unroll_length` steps in each environment, then
            `updates_per_iteration` gradient steps, or k times as many if each step repeats its action k times inside the
            environment. A reset earns no update, because it is no environment step.
        updates_per_env_step: sets that ratio directly, above or below 1, and replaces `updates_per_iteration`. The updates
            that an iteration earns are taken at its end. If it is a schedule in environment steps, the updates are its integral
            over them. Steps that refill the buffer earn nothing and delay the schedule.
        update_clock: what earns updates. "env_steps": environment steps; an action that is repeated k times inside the
            environment earns as much as k steps. "transitions": transitions of the replay buffer; an action earns
            `updates_per_iteration / (unroll_length * num_envs)` however often it is repeated, as published for SAC-Nrep and
            SAC-Krep.

    Attributes:
        ratio: current number of updates per environment step or transition.
        schedule: of the ratio; None if it is constant.
        transitions: those so far that earn updates by the clock "transitions".
    """

    def __init__(
        self,
        num_envs: int,
        num_env_steps: int,
        initial_collect_steps: int = 10_000,
        unroll_length: int = 1,
        updates_per_iteration: int = 1,
        updates_per_env_step: float | Schedule | None = None,
        update_clock: Literal["env_steps", "transitions"] = "env_steps",
    ):
        refuse_below(1, "UpdateRatio", unroll_length=unroll_length, updates_per_iteration=updates_per_iteration)
        if unroll_length * num_envs > num_env_steps:
            raise TaacError(
                f"UpdateRatio.unroll_length {unroll_length} x num_envs {num_envs} is above Intervals.num_env_steps "
                f"{num_env_steps}: the first iteration would be longer than the run, and no update would be due"
            )
        _check_clock(update_clock, updates_per_env_step)
        self.clock, self.initial_collect_steps, self.unroll_length = update_clock, initial_collect_steps, unroll_length
        self.schedule = updates_per_env_step if isinstance(updates_per_env_step, Schedule) else None
        self.ratio = Fraction(updates_per_iteration, unroll_length * num_envs)
        self.transitions = 0
        self._earns_from = initial_collect_steps  # environment step from which on steps earn updates
        self._unearned_steps = 0  # environment steps that earned nothing because they refilled the buffer
        if updates_per_env_step is not None:
            self._set_ratio(at_start(updates_per_env_step))
            if self.updates_due(num_env_steps) < 1:
                raise TaacError(
                    f"UpdateRatio.updates_per_env_step {updates_per_env_step} gives no update in the "
                    f"{num_env_steps - initial_collect_steps} environment steps after the initial collection"
                )
        parameter = "UpdateRatio.updates_per_env_step"
        self.scheduled = [] if self.schedule is None else [Scheduled(parameter, self.schedule, self._set_ratio)]

    @property
    def constant(self) -> Fraction | None:
        """The number of updates per environment step, if it is constant throughout the run; else None."""
        return self.ratio if self.schedule is None and self.clock == "env_steps" else None

    def _set_ratio(self, ratio: float) -> None:
        self.ratio = Fraction(str(ratio))  # 0.1 means exactly 1/10, which is not a float

    def add_transitions(self, count: int, env_steps: int) -> None:
        """Counts transitions taken at once. `env_steps` is the number of environment steps before them."""
        if env_steps >= self._earns_from:
            self.transitions += count

    def updates_earned(self, env_steps: int) -> int:
        """Returns the gradient steps earned so far, including those already taken. Refilling the buffer earns nothing."""
        if self.clock == "transitions":
            return int(self.transitions * self.ratio)
        return self.updates_due(env_steps - self._unearned_steps)

    def filling(self, env_steps: int) -> bool:
        """Returns whether the replay buffer is being filled, at first or anew, so that owed updates must wait."""
        return env_steps < self._earns_from

    def updates_due(self, env_steps: int) -> int:
        """Returns the gradient steps that `env_steps` environment steps earn in a run that never refills its buffer."""
        begin = self.initial_collect_steps
        if self.schedule is None:
            return int(max(0, env_steps - begin) * self.ratio)
        integral = self.schedule.integral
        return int(integral(max(env_steps, begin)) - integral(begin))

    def updates_expected(self, env_steps: int, shortest: int) -> int:
        """Returns the gradient steps of a run of `env_steps` whose actions last `shortest` environment steps or more.

        By the clock "transitions" it is the greatest number where no episode cuts an action short.
        """
        updates = self.updates_due(env_steps)
        return updates // shortest if self.clock == "transitions" else updates

    def refill(self, env_steps: int) -> None:
        """Makes the next `initial_collect_steps` environment steps earn nothing, because the replay buffer is empty."""
        earns_from = env_steps + self.initial_collect_steps
        self._unearned_steps += earns_from - max(env_steps, self._earns_from)
        self._earns_from = earns_from

    def state_dict(self) -> dict[str, Any]:
        return {
            "transitions": self.transitions,
            "earns_from": self._earns_from,
            "unearned_steps": self._unearned_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.transitions = int(state["transitions"])
        self._earns_from = int(state["earns_from"])
        self._unearned_steps = int(state["unearned_steps"])


def _check_clock(clock: str, updates_per_env_step: float | Schedule | None) -> None:
    """Refuses an unknown clock, and a ratio that does not fit the clock."""
    if isinstance(updates_per_env_step, Schedule) and updates_per_env_step.unit != "env_steps":
        raise TaacError(
            "UpdateRatio.updates_per_env_step must be a number or a schedule in environment steps, because these earn updates; "
            f"got a schedule in updates: {updates_per_env_step}"
        )
    if updates_per_env_step is not None:
        least, most = bounds(updates_per_env_step)
        if not (least >= 0 and 0 < most < float("inf")):
            raise TaacError(f"UpdateRatio.updates_per_env_step must be above 0, or None, got {updates_per_env_step}")
    if clock not in ("env_steps", "transitions"):
        raise TaacError(f"UpdateRatio.update_clock must be 'env_steps' or 'transitions', got '{clock}'")
    if clock == "transitions" and updates_per_env_step is not None:
        raise TaacError(
            f"UpdateRatio.updates_per_env_step {updates_per_env_step} is a ratio to environment steps, but "
            "UpdateRatio.update_clock is 'transitions': give updates_per_iteration and unroll_length instead"
        )
