"""Wrappers that delay actions or observations. Worker processes import this module, so it must not import torch."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import Any

import gin
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs

from taac.environments import single
from taac.errors import TaacError

Steps = int | Sequence[int]
_OF_AGENTS = {"agent_mask", "agent_truncated"}  # as in `specs`, which imports torch


class _Delay(gymnasium.Wrapper, RecordConstructorArgs):
    """Draws the delay of each episode, and keeps the actions whose effect has not happened, or is not seen yet."""

    part: str  # of observations, with those actions
    delay_part: str  # of observations, with a drawn delay
    stream: int  # of random numbers, so that two wrappers draw independent delays

    def __init__(self, env: gymnasium.Env, steps: Steps = 1, observe_pending: bool = False):
        RecordConstructorArgs.__init__(self, steps=steps, observe_pending=observe_pending)
        super().__init__(env)
        name = type(self).__name__
        given = tuple(steps) if isinstance(steps, Sequence) else (steps, steps)
        whole = len(given) == 2 and all(isinstance(n, int) and not isinstance(n, bool) for n in given)
        if not whole or not 0 <= given[0] <= given[1]:
            raise TaacError(f"{name}.steps must be an integer, 0 or more, or (least, most), got {steps!r}")
        if not isinstance(env.action_space, spaces.Box):
            raise TaacError(f"{name} needs a Box of actions, whose middle is done while none has arrived, got {env.action_space}")
        low, high = (bound.astype(np.float64) for bound in (env.action_space.low, env.action_space.high))
        bounded = np.isfinite(low) & np.isfinite(high)
        middle = (np.where(bounded, low, 0.0) + np.where(bounded, high, 0.0)) / 2
        self._rest = np.clip(middle, low, high).astype(env.action_space.dtype)
        self._least, self._most = given
        self._observe_pending = observe_pending and self._most > 0
        self._random = np.random.default_rng()
        if self._observe_pending:
            box = env.action_space
            shape = (self._most, *box.shape)
            pending = spaces.Box(np.broadcast_to(box.low, shape), np.broadcast_to(box.high, shape), dtype=box.dtype)
            self.observation_space = single.space_with(env.observation_space, self.part, pending)
            if self._least < self._most:
                drawn = spaces.Box(self._least, self._most, (1,), np.float32)
                self.observation_space = single.space_with(self.observation_space, self.delay_part, drawn)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        if seed is not None:
            self._random = np.random.default_rng((seed, self._most, self.stream))
        self._steps = int(self._random.integers(self._least, self._most + 1))
        self._pending = deque(self._rest.copy() for _ in range(self._steps))
        return self._begin(observation), info

    def _begin(self, observation: Any) -> Any:
        return self._with_pending(observation)

    def _push(self, action: Any) -> Any:
        """Adds an action, and returns the one whose turn it is."""
        self._pending.append(np.array(action, self._rest.dtype))
        return self._pending.popleft()

    def _with_pending(self, observation: Any) -> Any:
        if not self._observe_pending:
            return observation
        pending = np.stack([*[self._rest] * (self._most - self._steps), *self._pending])
        shown = single.observation_with(self.env.observation_space, observation, self.part, pending)
        return shown if self._least == self._most else {**shown, self.delay_part: np.array([self._steps], np.float32)}


@gin.configurable
class ActionDelay(_Delay):
    """The environment does at step t what was decided at step t - d; before that, the middle of the space.

    Of a dimension without both bounds, the middle is the number nearest to 0.

    Args:
        env: an environment with a Box of actions.
        steps: d, or `(least, most)`, from which each episode draws one.
        observe_pending: adds the actions that were decided and not yet done, oldest first, as the part `pending_actions`
            `[most, ...]` of a Dict observation. Where d is below `most`, the first are the middle of the space. A drawn d is the
            part `action_delay` `[1]`. They make the process Markov again.

    Raises:
        TaacError: another action space; steps that are no such integers; observations that have these parts already.

    Source: Katsikopoulos and Engelbrecht, Markov decision processes with delays and asynchronous cost collection (2003).
    """

    part, delay_part, stream = "pending_actions", "action_delay", 0

    @property
    def longest_action_delay(self) -> int:
        """The most steps between a decision and its effect."""
        return self._most

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, *rest = self.env.step(self._push(action))
        return (self._with_pending(observation), *rest)


@gin.configurable
class ObservationDelay(_Delay):
    """The agent sees at step t the observation of step t - d, and before that the first. Rewards and ends are not delayed.

    Args:
        env: an environment with a Box of actions.
        steps: d, or `(least, most)`, from which each episode draws one.
        observe_pending: adds the actions that were done since the observation, oldest first, as the part `unseen_actions`
            `[most, ...]` of a Dict observation, and a drawn d as `observation_delay`; see `ActionDelay`.

    Raises:
        TaacError: as `ActionDelay`; an `ActionDelay` is inside, and it or this shows actions; agents can join and leave.

    Source: Katsikopoulos and Engelbrecht, Markov decision processes with delays and asynchronous cost collection (2003).
    """

    part, delay_part, stream = "unseen_actions", "observation_delay", 1

    def __init__(self, env: gymnasium.Env, steps: Steps = 1, observe_pending: bool = False):
        shows = isinstance(env.observation_space, spaces.Dict) and ActionDelay.part in env.observation_space.spaces
        inside = env.get_wrapper_attr("longest_action_delay") if env.has_wrapper_attr("longest_action_delay") else 0
        if shows or (observe_pending and inside):
            raise TaacError(
                "ObservationDelay would show the pending actions of ActionDelay late, or its own before they are done: name it "
                "first, create_environment.wrappers = (@ObservationDelay, @ActionDelay)"
            )
        if isinstance(env.observation_space, spaces.Dict) and _OF_AGENTS & env.observation_space.spaces.keys():
            raise TaacError("ObservationDelay would show late which agents are present, and with that their ends: remove it")
        super().__init__(env, steps, observe_pending)

    def compute_reward(self, *goals: Any) -> Any:
        """Refuses: rewards are those of the goals of now."""
        raise TaacError("ObservationDelay shows late what was achieved, so hindsight knows no rewards: use ActionDelay")

    def _begin(self, observation: Any) -> Any:
        self._seen = deque(copy.deepcopy(observation) for _ in range(self._steps + 1))  # who gets one may write into it
        return self._with_pending(self._seen[0])

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._push(action)
        observation, *rest = self.env.step(action)
        self._seen.append(copy.deepcopy(observation))
        self._seen.popleft()
        return (self._with_pending(self._seen[0]), *rest)
