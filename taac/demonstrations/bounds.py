"""Checks that demonstrated frames fit their environment: finite, inside its spaces, and with a valid choice."""

from __future__ import annotations

import numpy as np
import torch

from taac import nest, specs
from taac.data_structures import TimeStep
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError
from taac.specs import TensorSpec

ROUNDING = 1e-5  # tolerance for actions in [-1, 1] and discounts in [0, 1]
FAR = 10.0  # tolerance for observations outside a Box, in widths of the Box


def check(where: str, episode: TimeStep, frame_specs: TimeStep, environment: VectorEnvironment) -> None:
    """Checks that an episode, leaves `[N+1, ...]`, holds only values that its environment can return.

    Choices, actions and discounts must lie inside their spaces. Observations may leave a Box by ten times its width, because
    simulators exceed the bounds that they declare and training allows it. Values further away are damage.

    Args:
        where: for messages.
        frame_specs: the specs of a frame.

    Raises:
        TaacError: a value does not fit. The message names the frame, the value and the expected range.
    """
    for (path, spec), (_, leaf) in zip(nest.flatten_with_path(frame_specs), nest.flatten_with_path(episode)):
        if path != "step_type":
            low, high = _bounds(path, spec, environment)
            _check_leaf(where, path, leaf, low, high)
    _check_masks(where, episode, environment)


def _bounds(path: str, spec: TensorSpec, environment: VectorEnvironment) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest value of each element, float64, which broadcast to the leaf."""
    least, greatest = (-np.inf, np.inf) if spec.minimum is None else (spec.minimum, spec.maximum)
    low, high = np.asarray(least, dtype=np.float64), np.asarray(greatest, dtype=np.float64)
    if path == "discount":
        low, high = np.asarray(-ROUNDING), np.asarray(1 + ROUNDING)
    elif path == "duration":
        low, high = np.asarray(0.0), np.asarray(float(environment.durations[1]))
    elif path.startswith("prev_action") and not spec.is_categorical:
        low, high = low - ROUNDING, high + ROUNDING
    elif path.startswith("observation") and spec.dtype == torch.float32:
        with np.errstate(all="ignore"):
            width = high - low
            low, high = (
                bound + sign * FAR * np.where(np.isfinite(width), width, np.maximum(1.0, np.abs(bound)))
                for bound, sign in ((low, -1), (high, 1))
            )
    if spec.dtype == torch.float32:
        most = float(np.finfo(np.float32).max)
        low, high = np.maximum(low, -most), np.minimum(high, most)
    return low, high


def _check_leaf(where: str, path: str, leaf: torch.Tensor, low: np.ndarray, high: np.ndarray) -> None:
    values = leaf.numpy()
    if values.size == 0 or (values.min() >= low.max() and values.max() <= high.min()):  # NaN is neither
        return
    (bad,) = np.nonzero(~((values >= low) & (values <= high)).reshape(len(values), -1).all(1))
    if not bad.size:
        return
    frame = int(bad[0])
    low, high = (np.broadcast_to(bound, values.shape[1:]) for bound in (low, high))
    place = tuple(np.argwhere(~((values[frame] >= low) & (values[frame] <= high)))[0].tolist())
    at = f" at {list(place)}" if place else ""
    value, least, greatest = values[frame][place], float(low[place]), float(high[place])
    expected = f"{least:g} to {greatest:g}" if max(-least, greatest) < 1e38 else "a finite number"
    raise TaacError(f"{where}, frame {frame}: '{path}'{at} is {value!s}, expected {expected}")


def _check_masks(where: str, episode: TimeStep, environment: VectorEnvironment) -> None:
    """Requires a valid choice for every present agent unless the episode terminated, as `StepChecks` does in training."""
    observation = episode.observation
    if not isinstance(observation, dict) or specs.ACTION_MASK not in observation:
        return
    forbids = specs.forbids_acting(observation, environment.action_spec) & ~(episode.is_last() & (episode.discount == 0))
    if bool(forbids.any()):
        frame = int(forbids.nonzero()[0])
        raise TaacError(f"{where}, frame {frame}: '{specs.ACTION_MASK}' forbids every choice, expected one that is valid")
