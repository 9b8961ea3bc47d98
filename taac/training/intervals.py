"""Determines when summaries, evaluations, checkpoints, and the end of the run are due, in environment steps."""

from __future__ import annotations

from typing import NamedTuple

import gin

from taac.errors import TaacError


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

    Raises:
        TaacError: a number is below 1.
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
        given = {
            "num_env_steps": num_env_steps,
            "evaluation_interval": evaluation_interval,
            "summary_interval": summary_interval,
            "checkpoint_interval": checkpoint_interval,
        }
        for name, value in given.items():
            if value < 1:
                raise TaacError(f"Intervals.{name} must be 1 or more, got {value}")

    def done(self, env_steps: int) -> bool:
        """Returns whether the run is complete."""
        return env_steps >= self.num_env_steps

    def due(self, before: int, now: int) -> Due:
        """Returns what is due after an iteration that began at `before` environment steps and ended at `now`."""

        def passed(interval: int) -> bool:
            return now // interval > before // interval

        done = self.done(now)
        return Due(passed(self.summary), passed(self.evaluation) or done, passed(self.checkpoint) or done)
