"""Determines when summaries, evaluations, checkpoints, and the end of the run are due, in environment steps."""

from __future__ import annotations

from typing import NamedTuple

from taac.errors import TaacError


class Due(NamedTuple):
    """What is due after an iteration."""

    summary: bool
    evaluation: bool
    checkpoint: bool


class Intervals:
    """Determines what is due after an iteration. All numbers are environment steps.

    Args:
        num_env_steps: length of the run. An evaluation and a checkpoint are due at its end.
        summary, evaluation, checkpoint: each is due whenever a multiple of its interval is reached or passed.

    Raises:
        TaacError: a number is below 1.
    """

    def __init__(self, num_env_steps: int, summary: int, evaluation: int, checkpoint: int):
        self.num_env_steps, self.summary, self.evaluation, self.checkpoint = num_env_steps, summary, evaluation, checkpoint
        given = {
            "num_env_steps": num_env_steps,
            "evaluation_interval": evaluation,
            "summary_interval": summary,
            "checkpoint_interval": checkpoint,
        }
        for name, value in given.items():
            if value < 1:
                raise TaacError(f"Trainer.{name} must be 1 or more, got {value}")

    def done(self, env_steps: int) -> bool:
        """Returns whether the run is complete."""
        return env_steps >= self.num_env_steps

    def due(self, before: int, now: int) -> Due:
        """Returns what is due after an iteration that began at `before` environment steps and ended at `now`."""

        def passed(interval: int) -> bool:
            return now // interval > before // interval

        done = self.done(now)
        return Due(passed(self.summary), passed(self.evaluation) or done, passed(self.checkpoint) or done)
