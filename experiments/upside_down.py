"""How much of the exploration before training HalfCheetah-v5 spends on its back, from which it can also learn to crawl.

    python -m experiments.upside_down --episodes 40
    python -m experiments.upside_down --episodes 10 --root_dir runs/halfcheetah

Until `initial_collect_steps`, an agent draws actions uniformly. SAC draws a new one at each step, TAAC repeats the last one with
probability 1/2. Prints for each the share of steps in which the torso points down (the cosine of its angle is below 0), its
standard error over episodes, and the share of episodes with such a step. With `--root_dir` it prints the same of greedy episodes
of a run's agent.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

import gymnasium
import numpy as np

import taac
from experiments.goal_odds import explore

TASK, ANGLE = "HalfCheetah-v5", 1  # the torso's angle is the second observation


def greedy(root_dir: str, episodes: int) -> Iterator[tuple[int, np.ndarray, bool]]:
    """Yields each step of greedy episodes of a run's agent, as `explore`."""
    agent, environment = taac.load(root_dir), gymnasium.make(TASK)
    for episode in range(episodes):
        observation, _ = environment.reset(seed=episode)
        state, ended = agent.initial_state(), False
        while not ended:
            action, state = agent.act(observation, state)
            observation, _, terminated, truncated, _ = environment.step(action)
            yield episode, observation, bool(terminated)
            ended = terminated or truncated
    environment.close()


def on_its_back(episodes: int, played: Iterable[tuple[int, np.ndarray, bool]]) -> np.ndarray:
    """Returns `[episodes]`, the share of an episode's steps on its back. Episodes are reset with the seeds 0, 1, ..."""
    steps, down = np.zeros(episodes), np.zeros(episodes)
    for episode, observation, _ in played:
        steps[episode] += 1
        down[episode] += np.cos(observation[ANGLE]) < 0
    return down / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--root_dir")
    given = parser.parse_args()
    episodes = given.episodes
    ways = {"a new action at each step (SAC)": 0.0, "a fair coin repeats (TAAC)": 0.5}
    of_each = {name: explore(TASK, episodes, repeat) for name, repeat in ways.items()}
    for name, played in of_each.items() if given.root_dir is None else [(given.root_dir, greedy(given.root_dir, episodes))]:
        shares = on_its_back(episodes, played)
        error = shares.std(ddof=1) / episodes**0.5
        print(f"{name}: {shares.mean():.2f} +- {error:.2f} of steps, {np.mean(shares > 0):.2f} of episodes", flush=True)


if __name__ == "__main__":
    main()
