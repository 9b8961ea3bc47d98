"""What the published normalisation makes of single rewards, by the rewards of uniformly random actions.

    python -m experiments.random_rewards LunarLanderContinuous-v3 --rewards 0 -100 100

Training begins with such actions, so the first normalised rewards have these moments. Prints the mean and the standard deviation
of 20,000 rewards, and each of the given rewards less the mean, in standard deviations, clipped to +-5.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
from collections.abc import Iterator

import gymnasium
import numpy as np

CLIP = 5.0  # of gin/tasks/simple_control.gin


def random_steps(task: str) -> Iterator[tuple[int, float]]:
    """Yields episode and reward of each step, with actions drawn from the action space, seeded with 0. Episode i has seed i."""
    with contextlib.closing(gymnasium.make(task)) as environment:
        environment.action_space.seed(0)
        for episode in itertools.count():
            environment.reset(seed=episode)
            ended = False
            while not ended:
                _, reward, terminated, truncated, _ = environment.step(environment.action_space.sample())
                ended = terminated or truncated
                yield episode, float(reward)


def random_rewards(task: str, steps: int) -> np.ndarray:
    """Returns `[steps]` rewards."""
    return np.array([reward for _, reward in itertools.islice(random_steps(task), steps)])


def normalised(reward: float, rewards: np.ndarray) -> float:
    """Returns a reward less the mean of all, in standard deviations (divided by n), clipped."""
    return float(np.clip((reward - rewards.mean()) / rewards.std(), -CLIP, CLIP))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", help="environment id")
    parser.add_argument("--rewards", type=float, nargs="+", default=[0.0])
    parser.add_argument("--steps", type=int, default=20_000)
    given = parser.parse_args()
    rewards = random_rewards(given.task, given.steps)
    print(f"{given.task}: mean {rewards.mean():.3f}, standard deviation {rewards.std():.3f} of {given.steps} rewards")
    for reward in given.rewards:
        print(f"a reward of {reward:g} becomes {normalised(reward, rewards):.2f}")


if __name__ == "__main__":
    main()
