"""What goals in hindsight cost: the time of an update with them over that without, at FetchPush-v4's sizes.

    python -m experiments.benchmarks.hindsight

Both take turns in one process, with one replay buffer of random steps. `compute_reward` is the environment's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from experiments.benchmarks import common
from experiments.benchmarks.common import goal
from taac import configuration, registry
from taac.training import experiment

MOST = 1.25


def parser() -> argparse.ArgumentParser:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--frames", type=int, default=10_000, help="frames in the replay buffer")
    flags.add_argument("--eager", action="store_true", help="without compiled programs")
    flags.add_argument("--env_name", default="FetchPush-v4")
    flags.add_argument("--skip_achieved", action="store_true", help="with HindsightReplayBuffer.skip_achieved")
    return flags


def run(options: argparse.Namespace) -> dict[str, Any]:
    common.say("updates with goals in hindsight, and without")
    figures, goals = [], []
    for method in ("sac", "taac"):
        ratios = measure(method, options)
        figures.append(common.figure(f"{method}+her: time of an update over that without new goals", ratios, "x"))
        goals.append(goal(f"{method}+her: time of an update", f"<= {MOST}", ratios, lambda x: x <= MOST))
    return {"title": "Goals in hindsight", "figures": figures, "goals": goals}


def measure(method: str, options: argparse.Namespace) -> list[float]:
    """Returns, for each round, the time of updates with hindsight over that of as many without."""
    registry.register()
    frames = 200 if options.quick else options.frames
    configuration.load(
        ["gin/tasks/goals.gin", f"gin/methods/{method}.gin", "gin/her.gin"],
        [
            f"create_environment.env_name = '{options.env_name}'", f"initial_collect_steps = {frames}",
            f"num_env_steps = {frames + 1}", f"create_agent.compile = {not options.eager}",
            f"HindsightReplayBuffer.skip_achieved = {options.skip_achieved}", *options.gin_param,
        ],
    )  # fmt: skip
    trainer = configuration.build(experiment.create_experiment)
    try:
        while trainer.env_steps < frames:
            trainer.collect()
        replay, updates, found = trainer.replay_buffer, 2 if options.quick else 50, []

        def seconds(probability: float) -> float:
            replay.probability = probability
            began = time.perf_counter()
            for _ in range(updates):
                trainer.learner.learn_from(replay, trainer.own_batch_size, trainer.segment_length)
            return time.perf_counter() - began

        seconds(0.8), seconds(0.0)  # compiles, and reads the index of episodes once
        for _ in range(options.rounds):
            without = seconds(0.0)
            found.append(seconds(0.8) / without)
        print(f"{method}: {statistics.median(found):.3f}, {updates / without:.0f} updates/s without", flush=True)
        return found
    finally:
        trainer.close()


if __name__ == "__main__":
    common.main("hindsight", parser(), run)
