"""Greedy episodes on an environment of their own."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch

from taac.acting.metrics import Episode, EpisodeRecorder
from taac.acting.rollout import Rollout
from taac.algorithms.agent import Agent
from taac.data_structures import AlgStep, TimeStep
from taac.environments.vector_environment import VectorEnvironment
from taac.errors import TaacError


def evaluate(
    agent: Agent,
    environment: VectorEnvironment,
    num_episodes: int,
    seed: int,
    epsilon: float = 0.0,
    on_step: Callable[[TimeStep, AlgStep], None] | None = None,
    max_steps: int = 1_000_000,
) -> list[Episode]:
    """Plays greedily until `num_episodes` have ended.

    Each environment contributes its first episodes, as many as any other (one more or less where they do not divide), so
    that short episodes are not favoured. Training's random numbers are left as they were.

    Args:
        epsilon: probability with which each random choice of the policy is sampled instead of taking its mode.
        seed: of the environments and, if epsilon > 0, of the policy.
        max_steps: taken in each environment at most.
        on_step: called with each frame and what was done there.

    Raises:
        TaacError: the episodes do not end.
    """
    shares = [
        num_episodes // environment.num_envs + (i < num_episodes % environment.num_envs)
        for i in range(environment.num_envs)
    ]
    episodes: list[Episode] = []
    with _random_numbers_kept(agent.device):
        torch.manual_seed(seed)
        rollout, recorder = Rollout(environment, agent), EpisodeRecorder(environment.num_envs)
        rollout.reset(seed)
        steps = 0
        while sum(shares) > 0:
            steps += 1
            if steps > max_steps:
                raise TaacError(
                    f"after {max_steps} steps in each of {environment.num_envs} environments '{environment.name}', "
                    f"{sum(shares)} of {num_episodes} episodes have not ended; set create_environment.max_episode_steps, "
                    "or raise Trainer.max_evaluation_steps"
                )
            time_step, alg_step = rollout.step(lambda t, s: agent.predict_step(t, s, epsilon))
            if on_step is not None:
                on_step(time_step, alg_step)
            for index, episode in recorder.add(time_step, alg_step, rollout.raw_reward, rollout.time_step.duration):
                if shares[index] > 0:
                    shares[index] -= 1
                    episodes.append(episode)
    return episodes


@contextlib.contextmanager
def _random_numbers_kept(device: torch.device) -> Iterator[None]:
    """Leaves the global generators of torch, numpy and Python as they were; environments may draw from all of them."""
    python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)
