"""Records environment steps for pictures. Worker processes import this module, so it must not import torch."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np

CANNOT_RENDER = "it cannot be rendered"  # begins the message of every failure to render


class RecordedStep(NamedTuple):
    """One environment step. An action that is repeated inside the environment has several."""

    reward: float  # undiscounted; the sum of a vector reward's parts
    frame: np.ndarray | None  # [H, W, 3] uint8, rendered after the step; None if not filmed


class StepRecorder(gymnasium.Wrapper):
    """Records the steps of an episode until `pop_steps` clears them.

    It must be inside `ActionRepeat`, whose callers see only sums and the last frame.

    Attributes:
        film_every: renders a frame at every `film_every`-th step of an episode; 0 renders none.
    """

    def __init__(self, env: gymnasium.Env):
        super().__init__(env)
        self.film_every = 0
        self._steps: list[RecordedStep] = []
        self._number = 0

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        self._steps, self._number = [], 0
        return self.env.reset(**arguments)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        filmed = self.film_every > 0 and self._number % self.film_every == 0
        self._steps.append(RecordedStep(float(np.sum(result[1])), self._frame() if filmed else None))
        self._number += 1
        return result

    def _frame(self) -> np.ndarray:
        try:
            frame: Any = self.env.render()
        except Exception as error:
            raise RuntimeError(f"{CANNOT_RENDER}: {type(error).__name__}: {error}") from error
        is_array = isinstance(frame, np.ndarray)
        if not is_array or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] not in (3, 4) or not frame.size:
            got = f"an array of {frame.dtype} with shape {list(frame.shape)}" if is_array else f"a {type(frame).__name__}"
            raise RuntimeError(
                f"{CANNOT_RENDER}: render() returned {got}, expected an 'rgb_array' frame: an array of uint8 with shape "
                "[H, W, 3], 0 to 255"
            )
        # Some simulators return alpha as well. Some environments render into the same array again.
        return frame[..., :3].copy()

    def pop_steps(self) -> list[RecordedStep]:
        """Returns and clears the steps since the last call or the episode's beginning."""
        steps, self._steps = self._steps, []
        return steps
