"""How much of the exploration before training HalfCheetah-v5 spends on its back, from which it can also learn to crawl.

    python -m experiments.upside_down --episodes 40

Until `initial_collect_steps`, an agent draws actions uniformly. SAC draws a new one at each step, TAAC repeats the last one with
probability 1/2. Prints for each the share of steps in which the torso points down (the cosine of its angle is below 0), its
standard error over episodes, and the share of episodes with such a step.
"""

from __future__ import annotations

import argparse

import numpy as np

from experiments.goal_odds import explore

TASK, ANGLE = "HalfCheetah-v5", 1  # the torso's angle is the second observation


def on_its_back(episodes: int, repeat: float) -> np.ndarray:
    """Returns `[episodes]`, the share of an episode's steps on its back. Episodes are reset with the seeds 0, 1, ..."""
    steps, down = np.zeros(episodes), np.zeros(episodes)
    for episode, observation, _ in explore(TASK, episodes, repeat):
        steps[episode] += 1
        down[episode] += np.cos(observation[ANGLE]) < 0
    return down / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=40)
    episodes = parser.parse_args().episodes
    for name, repeat in (("a new action at each step (SAC)", 0.0), ("a fair coin repeats (TAAC)", 0.5)):
        shares = on_its_back(episodes, repeat)
        error = shares.std(ddof=1) / episodes**0.5
        print(f"{name}: {shares.mean():.2f} +- {error:.2f} of steps, {np.mean(shares > 0):.2f} of episodes", flush=True)


if __name__ == "__main__":
    main()
