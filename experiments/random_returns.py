"""Returns of a uniformly random policy: y0 of the anchors in taac/analysis/report/anchors.json.

    python -m experiments.random_returns --episodes 200 Hopper-v5 Ant-v5

Episode i is reset with seed i; actions are drawn from the action space, seeded with 0. Prints, for each task, the mean
undiscounted return, its standard error, and the episodes.
"""

from __future__ import annotations

import argparse

import numpy as np

from experiments.random_rewards import random_steps


def random_returns(task: str, episodes: int) -> np.ndarray:
    """Returns `[episodes]` undiscounted returns."""
    returns = np.zeros(episodes)
    for episode, reward in random_steps(task):
        if episode == episodes:
            break
        returns[episode] += reward
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", help="environment ids")
    parser.add_argument("--episodes", type=int, default=200)
    given = parser.parse_args()
    for task in given.tasks:
        returns = random_returns(task, given.episodes)
        error = returns.std(ddof=1) / np.sqrt(returns.size)
        print(f"{task}: {returns.mean():.2f} +- {error:.2f} ({returns.size} episodes)", flush=True)


if __name__ == "__main__":
    main()
