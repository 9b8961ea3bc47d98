"""Making one Gymnasium environment. Worker processes import this module, so it must stay free of torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from taac.errors import TaacError


def make_single(
    env_name: str,
    env_kwargs: Mapping[str, Any],
    wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]],
    max_episode_steps: int | None,
) -> gymnasium.Env:
    """A registered environment inside the given wrappers (the first is the innermost).

    Raises:
        TaacError: the environment is unknown or cannot be made.
    """
    try:
        env = gymnasium.make(env_name, max_episode_steps=max_episode_steps, disable_env_checker=True, **env_kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise TaacError(f"environment '{env_name}' needs a package that is not installed: {error}") from error
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise TaacError(
            f"cannot make environment '{env_name}': {error} "
            "(create_environment.env_name is a registered id, or 'module:id' to import the module first)"
        ) from error
    except TypeError as error:
        raise TaacError(f"cannot make environment '{env_name}' with arguments {dict(env_kwargs)}: {error}") from error
    for wrapper in wrappers:
        env = wrapper(env)
    return env if reward_dim(env) is None else VectorReward(env)


def reward_dim(env: gymnasium.Env) -> int | None:
    """D if the environment's rewards are vectors, which it says with a `reward_space` of rank 1; else None."""
    if not env.has_wrapper_attr("reward_space"):
        return None
    return int(env.get_wrapper_attr("reward_space").shape[0])


class VectorReward(gymnasium.Wrapper):
    """Hands a vector reward on in `info["vector_reward"]`, with its sum for reward: vector environments take scalars."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        parts = np.asarray(reward, dtype=np.float64)
        return observation, float(parts.sum()), terminated, truncated, {**info, "vector_reward": parts}
