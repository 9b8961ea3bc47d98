"""How likely exploration before training reaches the goal of MountainCarContinuous-v0.

    python -m experiments.goal_odds --episodes 1000

Until `initial_collect_steps`, an agent draws actions uniformly. SAC draws a new one at each step. TAAC repeats the last one with
probability 1/2, SAC-Nrep holds each one for N steps. Prints for each way the share of episodes that reach the goal, its standard
error, and the chance that one of the 10 episodes of 10,000 steps does.

The last line says what the published normalisation of rewards makes of the cost of action: what a step at full force and one
without force earn while no goal has been seen, in standard deviations.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

TASK, COLLECTED = "MountainCarContinuous-v0", 10_000


def explore(task: str, episodes: int, repeat: float = 0.0, hold: int = 1) -> Iterator[tuple[int, np.ndarray, bool]]:
    """Yields each step of such episodes: the episode's number, the observation, and whether the episode terminated.

    Args:
        task: an environment id.
        episodes: reset with the seeds 0, 1, ...
        repeat: the probability to repeat the last action.
        hold: the number of steps for which each action is taken.
    """
    environment = gymnasium.make(task)
    shape, draws = environment.action_space.shape, np.random.default_rng(0)
    for episode in range(episodes):
        environment.reset(seed=episode)
        step, ended = 0, False
        while not ended:
            if step == 0 or (step % hold == 0 and draws.random() >= repeat):
                action = draws.uniform(-1, 1, shape).astype(np.float32)
            observation, _, terminated, truncated, _ = environment.step(action)
            yield episode, observation, bool(terminated)
            ended, step = terminated or truncated, step + 1
    environment.close()


def reaches_goal(episodes: int, **way: Any) -> np.ndarray:
    """Returns `[episodes]`, whether an episode reaches the goal, where it terminates; `way` as in `explore`."""
    reached = np.zeros(episodes, dtype=bool)
    for episode, _, terminated in explore(TASK, episodes, **way):
        reached[episode] = terminated
    return reached


def normalised_costs() -> tuple[float, float]:
    """Returns what a step at full force, and one without force, earn: `-0.1 a^2`, normalised with its moments under uniform a."""
    mean, variance = -0.1 / 3, 0.01 * (1 / 5 - 1 / 9)  # E[a^2] = 1/3, E[a^4] = 1/5
    return (-0.1 - mean) / variance**0.5, (0 - mean) / variance**0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=1000)
    episodes = parser.parse_args().episodes
    ways: dict[str, dict] = {
        "a new action at each step (SAC)": {},
        "a fair coin repeats (TAAC)": {"repeat": 0.5},
        "each held for 3 steps": {"hold": 3},
    }
    limit = gymnasium.spec(TASK).max_episode_steps
    assert limit is not None
    for name, way in ways.items():
        share = float(reaches_goal(episodes, **way).mean())
        error = (share * (1 - share) / episodes) ** 0.5
        print(
            f"{name}: {share:.4f} +- {error:.4f} of episodes, {1 - (1 - share) ** (COLLECTED / limit):.2f} of runs",
            flush=True,
        )
    print("full force earns {:.2f}, no force {:.2f} standard deviations".format(*normalised_costs()))


if __name__ == "__main__":
    main()
