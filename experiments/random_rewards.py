"""What the published normalisation makes of single rewards, by the rewards of uniformly random actions.

    python -m experiments.random_rewards LunarLanderContinuous-v3 --rewards 0 -100 100

Training begins with such actions, so the first normalised rewards have these moments. Prints the mean and the standard deviation
of 20,000 rewards, and each of the given rewards less the mean, in standard deviations, clipped to +-5.
"""

from __future__ import annotations

import argparse

import gymnasium
import numpy as np

CLIP = 5.0  # of gin/tasks/simple_control.gin


def random_rewards(task: str, steps: int) -> np.ndarray:
    """`[steps]` rewards of actions drawn from the action space, seeded with 0. Episode i is reset with seed i."""
    environment = gymnasium.make(task)
    environment.action_space.seed(0)
    rewards, episodes, ended = np.zeros(steps), 0, True
    for step in range(steps):
        if ended:
            environment.reset(seed=episodes)
            episodes += 1
        _, reward, terminated, truncated, _ = environment.step(environment.action_space.sample())
        rewards[step], ended = float(reward), terminated or truncated
    environment.close()
    return rewards


def normalised(reward: float, rewards: np.ndarray) -> float:
    """A reward less the mean of all, in standard deviations (divided by n), clipped."""
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
