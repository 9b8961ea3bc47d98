"""Converts Gymnasium spaces to specs, and values between the two."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from taac.data_structures import Nest
from taac.errors import TaacError
from taac.specs import ACTION_MASK, AGENT_MASK, AGENT_TRUNCATED, TensorSpec, bounded


def _check_parts(what: str, space: spaces.Space, path: str) -> None:
    parts = len(space.spaces) if isinstance(space, (spaces.Dict, spaces.Tuple)) else 1
    if parts == 0 or 0 in (space.shape or ()):
        raise TaacError(
            f"the {what} space at '{path or '/'}' is {space}, which holds no numbers; expected a shape without 0, or a Dict "
            "or Tuple with parts: remove it with a wrapper, or observe a constant"
        )
    names = [name.strip("/").replace("/", ".") for name, _ in by_path(describe(space), "")]  # of files, and of exported tensors
    twice = next((name for name in names if names.count(name) > 1), None)
    keys = [key for key in space.spaces if not isinstance(key, str)] if isinstance(space, spaces.Dict) else []
    if twice is not None or keys:
        why = f"has the key {keys[0]!r}, which is no text" if keys else f"has two parts that are both called '{twice}'"
        raise TaacError(
            f"the {what} space at '{path or '/'}' {why}: files name each part by its keys, joined by '/' or '.'. Rename keys "
            "with a wrapper"
        )


def observation_spec(space: spaces.Space, path: str = "") -> Nest:
    """Returns the spec of an observation space, which may nest Dict and Tuple to any depth.

    uint8 boxes (images, bytes) stay uint8. Other boxes and MultiBinary become float32. Discrete and MultiDiscrete become
    categorical int64. The leaves `action_mask`, `agent_mask` and `agent_truncated` of a Dict become bool if they are binary:
    MultiBinary, or an integer or bool box in [0, 1]. Raises TaacError if the space has no tensor form (Text, Graph, Sequence...),
    or is empty.
    """
    _check_parts("observation", space, path)
    if isinstance(space, spaces.Dict):
        return {
            key: TensorSpec(tuple(child.shape or ()), torch.bool, np.asarray(0), np.asarray(1))
            if key in (ACTION_MASK, AGENT_MASK, AGENT_TRUNCATED) and _is_binary(child)
            else observation_spec(child, f"{path}/{key}")
            for key, child in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(observation_spec(child, f"{path}/{i}") for i, child in enumerate(space.spaces))
    if isinstance(space, spaces.Box):
        dtype = torch.uint8 if space.dtype == np.uint8 else torch.float32
        return TensorSpec(tuple(space.shape), dtype, space.low, space.high)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        count, start = _choices(space)
        return TensorSpec(count.shape, torch.int64, start, start + count - 1)
    if isinstance(space, spaces.MultiBinary):
        return bounded(tuple(space.shape), 0, 1)
    raise TaacError(
        f"observation space at '{path or '/'}' is {space}, which has no tensor form; "
        "expected Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of them: add a wrapper"
    )


def _is_binary(space: spaces.Space) -> bool:
    if isinstance(space, spaces.Box):
        whole = np.issubdtype(space.dtype, np.integer) or space.dtype == np.bool_
        return bool(whole and np.all(space.low >= 0) and np.all(space.high <= 1))
    return isinstance(space, spaces.MultiBinary)


def to_arrays(spec: Nest, observation: Any) -> Nest:
    """Copies a batched observation of numpy arrays to arrays of the spec's dtypes, leaves `[B, ...]`."""
    if isinstance(spec, dict):
        return {key: to_arrays(child, observation[key]) for key, child in spec.items()}
    if isinstance(spec, tuple) and not isinstance(spec, TensorSpec):
        return tuple(to_arrays(child, part) for child, part in zip(spec, observation))
    with np.errstate(over="ignore"):  # an overflow becomes infinite, which `StepChecks` reports with the step
        array: np.ndarray = np.array(observation, dtype=_NUMPY[spec.dtype])
        return array != 0 if spec.dtype == torch.bool else array  # bytes that numpy took for True may be no 1


_NUMPY = {torch.uint8: np.uint8, torch.float32: np.float32, torch.int64: np.int64, torch.bool: np.bool_}


def action_adapter(space: spaces.Space) -> tuple[Nest, Callable[[Nest], Any]]:
    """Returns the spec in which algorithms act, and the function from its actions `[B, ...]`, on the CPU, to the environment's.

    Boxes are rescaled: algorithms act in [-1, 1], and `a` becomes `low + (a + 1) / 2 * (high - low)`. Choices (Discrete and
    MultiDiscrete) count from 0, and the space's `start` is added. Tuples and Dicts become tuples and dicts. Raises TaacError if a
    box is unbounded, wider than float32 holds, has an empty range or holds integers; a space is not supported or empty.
    """
    _check_parts("action", space, "")
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
        with np.errstate(all="ignore"):  # what overflows is refused
            low, span = space.low.astype(np.float64), space.high.astype(np.float64) - space.low.astype(np.float64)
        if not np.all(np.abs(span) <= np.finfo(np.float32).max):  # nor NaN
            raise TaacError(
                f"the action space {space} is unbounded (low {space.low.min()}, high {space.high.max()}); a squashed "
                "policy needs finite bounds whose difference float32 holds: wrap the environment in a gymnasium.ActionWrapper "
                "whose action_space is bounded"
            )
        if not np.all(space.low < space.high):
            raise TaacError(f"the action space {space} has an empty range: low must be below high everywhere")
        dtype, unit = space.dtype, bool(np.all(space.low == -1) and np.all(space.high == 1))
        if not np.issubdtype(dtype, np.floating):
            raise TaacError(f"the action space {space} is a box of integers; expected a box of floats or a Discrete space")

        def rescale(action: np.ndarray | torch.Tensor) -> np.ndarray:
            array = np.asarray(action)
            if unit:
                return array.astype(dtype)
            # Rounding must not exceed the bounds, because environments may check them.
            return np.clip((low + (array + 1.0) * 0.5 * span).astype(dtype), space.low, space.high)

        return bounded(tuple(space.shape), -1.0, 1.0), rescale
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        count, start = _choices(space)
        spec = TensorSpec(count.shape, torch.int64, np.zeros_like(count), count - 1)
        return spec, lambda action: (np.asarray(action) + start).astype(space.dtype)
    raise TaacError(
        f"the action space {space} is not supported; expected a Box, a Discrete or MultiDiscrete space, or a Tuple or Dict "
        "of them"
    )


def _choices(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of choices, and the first one."""
    count = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return np.asarray(count, dtype=np.int64), np.asarray(space.start, dtype=np.int64)


def to_unit(where: str, space: spaces.Space, action: Any) -> Nest:
    """Converts the environment's actions `[N, ...]` to the scale in which algorithms act. The inverse of `action_adapter`.

    Raises TaacError, which begins with `where`, if an action is outside the space by more than rounding.
    """
    if isinstance(space, spaces.Tuple):
        return tuple(to_unit(where, child, part) for child, part in zip(space.spaces, action))
    if isinstance(space, spaces.Dict):
        return {key: to_unit(where, child, action[key]) for key, child in space.spaces.items()}
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        count, start = _choices(space)
        choice = np.asarray(action, dtype=np.int64) - start
        inside = (choice >= 0) & (choice < count)
        unit = torch.from_numpy(choice)
    else:
        assert isinstance(space, spaces.Box)  # `action_adapter` has refused everything else
        low, span = space.low.astype(np.float64), space.high.astype(np.float64) - space.low.astype(np.float64)
        scaled = (np.asarray(action, dtype=np.float64) - low) / span * 2.0 - 1.0
        inside = np.abs(scaled) <= 1.0 + 1e-5
        unit = torch.from_numpy(np.clip(scaled, -1.0, 1.0).astype(np.float32))
    if not inside.all():
        first = int(np.flatnonzero(~inside.reshape(len(inside), -1).all(1))[0])
        raise TaacError(f"{where} has an action outside {space}: {np.asarray(action)[first]}, at step {first}")
    return unit


def describe(space: spaces.Space) -> Any:
    """Describes a space in plain JSON values, equal if the spaces are equal. Equal bounds are written as one number."""
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {key: describe(child) for key, child in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [describe(child) for child in space.spaces]}
    described: dict[str, Any] = {"type": type(space).__name__, "shape": list(space.shape or ())}
    if isinstance(space, spaces.Box):
        return {**described, "dtype": str(space.dtype), "low": _bound(space.low), "high": _bound(space.high)}
    if isinstance(space, spaces.Discrete):
        return {**described, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {**described, "nvec": _bound(space.nvec), "start": _bound(space.start)}
    return described if isinstance(space, spaces.MultiBinary) else {**described, "as_text": str(space)}


def by_path(described: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yields each part of what `describe` returned, as its path below `path` and JSON."""
    parts = described.get("spaces")
    if parts is None:
        yield path, json.dumps(described)
    for key, part in parts.items() if isinstance(parts, dict) else enumerate(parts or ()):
        yield from by_path(part, f"{path}/{key}")


def _bound(values: Any) -> Any:
    """Returns bounds as text, because JSON has no infinity: one number if all elements are equal, else a list."""
    array = np.asarray(values) + 0  # turns -0.0 into 0.0
    if array.size and (array == array.flat[0]).all():
        return str(array.flat[0].item())
    return [str(x) for x in array.reshape(-1).tolist()]
