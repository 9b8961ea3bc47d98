"""Numbers that change over a run, as functions of the environment steps taken."""

from __future__ import annotations

from taac.errors import TaacError


class LinearSchedule:
    """From `start` to `end` in a straight line over `env_steps` environment steps, then `end`."""

    def __init__(self, start: float, end: float, env_steps: int):
        if env_steps < 1:
            raise TaacError(f"LinearSchedule.env_steps must be 1 or more, got {env_steps}")
        self.start, self.end, self.env_steps = start, end, env_steps

    def __call__(self, env_steps: int) -> float:
        """The value after so many environment steps."""
        done = min(1.0, env_steps / self.env_steps)
        return self.start + done * (self.end - self.start)
