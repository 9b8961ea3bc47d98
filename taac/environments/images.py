"""Wrappers of pictures: channels last, grey, stacks of frames. Worker processes import this, so it must not import torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import gin
import gymnasium
import numpy as np
from gymnasium import spaces

from taac.errors import TaacError

_MASKS = {"action_mask", "agent_mask", "agent_truncated"}  # as in `specs`, which imports torch
_LUMA = np.array([0.299, 0.587, 0.114])  # of ITU-R BT.601, as Pillow and OpenCV have it


def is_picture(space: spaces.Space) -> bool:
    """Returns whether a space is a picture of bytes or bools, `[H, W]` or `[H, W, C]`."""
    return isinstance(space, spaces.Box) and space.dtype in (np.uint8, np.bool_) and len(space.shape) in (2, 3)


def map_pictures(space: spaces.Space, value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns an observation of `space`, which may nest Dict and Tuple, with its pictures changed."""
    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
        return {key: value[key] if key in _MASKS else map_pictures(part, value[key], change) for key, part in parts}
    if isinstance(space, spaces.Tuple):
        return tuple(map_pictures(part, one, change) for part, one in zip(space.spaces, value))
    return change(value) if is_picture(space) else value


def map_picture_spaces(space: spaces.Space, user: str, change: Callable[[np.ndarray], np.ndarray]) -> spaces.Space:
    """Returns the space of changed pictures, all of bytes. Raises TaacError if the space has none."""
    changed = 0

    def of(part: spaces.Space) -> spaces.Space:
        nonlocal changed
        if isinstance(part, spaces.Dict):
            return spaces.Dict({key: one if key in _MASKS else of(one) for key, one in part.spaces.items()})
        if isinstance(part, spaces.Tuple):
            return spaces.Tuple([of(one) for one in part.spaces])
        if not is_picture(part):
            return part
        changed += 1
        low, high = (change(bound.astype(np.uint8)) for bound in (part.low, part.high))
        return spaces.Box(low, high, dtype=np.uint8)

    made = of(space)
    if not changed:
        raise TaacError(f"{user} needs pictures, Boxes of uint8 or bool with 2 or 3 dimensions; the observation space is {space}")
    return made


@gin.configurable
class Pictures(gymnasium.ObservationWrapper):
    """Brings pictures of bytes to `[H, W, C]`: adds the channel of grey ones, and moves channels that come first to the end.

    Channels come first if the first dimension has at most 4 entries and is smaller than the others.

    Args:
        env: its observation is a picture, or has some.
        grayscale: makes pictures of 3 channels grey, `[H, W, 1]`; of bools, where any channel is True.

    Raises:
        TaacError: there is no picture, or none to make grey.
    """

    def __init__(self, env: gymnasium.Env, grayscale: bool = False):
        super().__init__(env)
        self._grayscale, self._greyed = grayscale, False
        self.observation_space = map_picture_spaces(env.observation_space, "Pictures", self._picture)
        if grayscale and not self._greyed:
            raise TaacError(f"Pictures.grayscale needs pictures of 3 channels; the observation space is {env.observation_space}")

    def observation(self, observation: Any) -> Any:
        return map_pictures(self.env.observation_space, observation, self._picture)

    def _picture(self, picture: np.ndarray) -> np.ndarray:
        if picture.ndim == 2:
            return picture[..., None].astype(np.uint8)
        first, *others = picture.shape
        if first <= 4 and first < min(others):
            picture = np.moveaxis(picture, 0, -1)
        if self._grayscale and picture.shape[-1] == 3:
            self._greyed = True
            if picture.dtype == bool:
                return np.any(picture, axis=-1)[..., None].astype(np.uint8)
            return np.round(picture @ _LUMA)[..., None].astype(np.uint8)
        return np.ascontiguousarray(picture, np.uint8)


class FrameStack(gymnasium.Wrapper):
    """Stacks the last k pictures along their channels, the newest last: `[H, W, C]` to `[H, W, k C]`.

    Before k frames of an episode, its first one is repeated. The replay buffer stores each picture once, see `ReplayBuffer`.

    Raises:
        TaacError: there is no picture `[H, W, C]`.
    """

    def __init__(self, env: gymnasium.Env, num_frames: int):
        super().__init__(env)
        self._frames: deque[list[np.ndarray]] = deque(maxlen=num_frames)
        self.observation_space = map_picture_spaces(env.observation_space, "create_environment.frame_stack", self._widened)

    def _widened(self, bound: np.ndarray) -> np.ndarray:
        if bound.ndim != 3:
            raise TaacError(
                f"create_environment.frame_stack needs pictures [H, W, C], got {list(bound.shape)}: bind "
                "create_environment.wrappers = (@Pictures,)"
            )
        return np.concatenate([bound] * int(self._frames.maxlen or 1), axis=-1)

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        self._frames.extend([self._kept(observation)] * int(self._frames.maxlen or 1))
        return self._stacked(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, *rest = self.env.step(action)
        self._frames.append(self._kept(observation))
        return self._stacked(observation), *rest

    def _kept(self, observation: Any) -> list[np.ndarray]:
        """Returns copies of the pictures in their order: an environment may write over its arrays."""
        found: list[np.ndarray] = []
        map_pictures(self.env.observation_space, observation, lambda picture: found.append(np.array(picture, np.uint8)))
        return found

    def _stacked(self, observation: Any) -> Any:
        stacks = iter(zip(*self._frames))
        return map_pictures(self.env.observation_space, observation, lambda _: np.concatenate(next(stacks), axis=-1))
