"""Gymnasium spaces to specs, and values between the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from taac.data_structures import Nest
from taac.errors import TaacError
from taac.specs import TensorSpec, bounded


def observation_spec(space: spaces.Space, path: str = "") -> Nest:
    """The spec of an observation space, Dict and Tuple of any depth.

    Float boxes become float32; uint8 boxes (images, bytes) stay; other integer boxes and MultiBinary become float32;
    Discrete and MultiDiscrete become categorical int64.

    Raises:
        TaacError: a space that has no tensor form (Text, Graph, Sequence...).
    """
    if isinstance(space, spaces.Dict):
        return {key: observation_spec(child, f"{path}/{key}") for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(observation_spec(child, f"{path}/{i}") for i, child in enumerate(space.spaces))
    if isinstance(space, spaces.Box):
        dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
        return TensorSpec(tuple(space.shape), dtype, space.low, space.high)
    if isinstance(space, spaces.Discrete):
        low = int(space.start)
        return TensorSpec((), torch.int64, np.asarray(low), np.asarray(low + int(space.n) - 1))
    if isinstance(space, spaces.MultiDiscrete):
        start = np.asarray(space.start)
        return TensorSpec(tuple(space.nvec.shape), torch.int64, start, start + space.nvec - 1)
    if isinstance(space, spaces.MultiBinary):
        return bounded(tuple(space.shape), 0, 1)
    raise TaacError(
        f"observation space at '{path or '/'}' is {space}, which has no tensor form; "
        "expected Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them: add a wrapper"
    )


def to_tensors(spec: Nest, observation: Any) -> Nest:
    """A batched observation of numpy arrays as fresh tensors of the spec's dtypes, leaves `[B, ...]`."""
    if isinstance(spec, dict):
        return {key: to_tensors(child, observation[key]) for key, child in spec.items()}
    if isinstance(spec, tuple) and not isinstance(spec, TensorSpec):
        return tuple(to_tensors(child, part) for child, part in zip(spec, observation))
    with np.errstate(over="ignore"):  # what does not fit becomes infinite, which is refused where the step is known
        return torch.from_numpy(np.array(observation, dtype=_NUMPY[spec.dtype]))


_NUMPY = {torch.uint8: np.uint8, torch.float32: np.float32, torch.int64: np.int64}


def action_adapter(space: spaces.Space) -> tuple[Nest, Callable[[Nest], Any]]:
    """The spec that algorithms act in, and the function from its actions `[B, ...]` to the environment's.

    A box is rescaled: algorithms act in [-1, 1], and `a` becomes `low + (a + 1) / 2 * (high - low)`.

    Tuple and Dict spaces become tuples and dicts of what their parts become.

    Raises:
        TaacError: an unbounded box; a space that has no form here.
    """
    if isinstance(space, spaces.Tuple):
        adapters = [action_adapter(child) for child in space.spaces]
        return tuple(spec for spec, _ in adapters), lambda action: tuple(
            adapt(part) for (_, adapt), part in zip(adapters, action)
        )
    if isinstance(space, spaces.Dict):
        named = {key: action_adapter(child) for key, child in space.spaces.items()}
        return {key: spec for key, (spec, _) in named.items()}, lambda action: {
            key: adapt(action[key]) for key, (_, adapt) in named.items()
        }
    if isinstance(space, spaces.Box):
        if not (np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high))):
            raise TaacError(
                f"the action space {space} is unbounded (low {space.low.min()}, high {space.high.max()}); a squashed "
                "policy needs finite bounds: wrap the environment in a gymnasium.ActionWrapper whose action_space is bounded"
            )
        if not np.all(space.low < space.high):
            raise TaacError(f"the action space {space} has an empty range: low must be below high everywhere")
        low, span = space.low.astype(np.float64), space.high.astype(np.float64) - space.low.astype(np.float64)
        dtype, unit = space.dtype, bool(np.all(space.low == -1) and np.all(space.high == 1))
        if not np.issubdtype(dtype, np.floating):
            raise TaacError(f"the action space {space} is a box of integers; expected floats, or a Discrete space")

        def rescale(action: torch.Tensor) -> np.ndarray:
            array = action.numpy()
            if unit:
                return array.astype(dtype)
            # Rounding must not step over the bounds: environments may check them.
            return np.clip((low + (array + 1.0) * 0.5 * span).astype(dtype), space.low, space.high)

        return bounded(tuple(space.shape), -1.0, 1.0), rescale
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        spec = TensorSpec((), torch.int64, np.asarray(0), np.asarray(int(space.n) - 1))
        return spec, lambda action: action.numpy() + start
    raise TaacError(
        f"the action space {space} is not supported; expected a Box, a Discrete space, or a Tuple or Dict of them"
    )
