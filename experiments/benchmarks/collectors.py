"""Environment steps a second of one run with N collectors, in a simulator that sleeps.

    python -m experiments.benchmarks.collectors --collectors 1 8

Each collector has one environment, whose steps take 5 ms and no processor. The learner collects and updates as in training, at
a low ratio of updates to environment steps, with tiny networks: what is measured is how many simulators a learner can keep busy.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch

from experiments.benchmarks import toy
from taac import configuration, registry
from taac.training import experiment
from taac.training.trainer import Trainer

STEP_SECONDS, REPEATS = 0.005, 3  # of the simulator; measurements of each, which take turns


def collectors(
    counts: Sequence[int] = (0, 1, 2, 4, 8), seconds: float = 3.0, launcher: str = "processes", ray_address: str = "auto"
) -> dict[int, list[float]]:
    """Measures environment steps per second.

    Args:
        counts: numbers of collectors, each with one environment; 0: one environment in the learner's process.
        seconds: duration of a measurement.
        launcher, ray_address: where collectors run.

    Returns:
        Number of collectors -> its measurements.
    """
    registry.register()
    torch.set_num_threads(1)
    trainers = {count: _trainer(count, launcher, ray_address) for count in counts}
    found: dict[int, list[float]] = {count: [] for count in counts}
    try:
        for trainer in trainers.values():
            _rate(trainer, seconds / 3)  # begins processes, and takes the first updates
        for _ in range(REPEATS):
            for count, trainer in trainers.items():
                found[count].append(_rate(trainer, seconds))
    finally:
        for trainer in trainers.values():
            trainer.close()
    return found


def _trainer(count: int, launcher: str, ray_address: str) -> Trainer:
    options = [f"RemoteCollector.launcher = '{launcher}'", f"RemoteCollector.ray_address = '{ray_address}'"]
    configuration.load(
        ["gin/tasks/simple_control.gin", "gin/methods/sac.gin"],
        [
            f"create_environment.env_name = '{toy.__name__}:{toy.FREE}'",
            f"create_environment.env_kwargs = {{'seconds': {STEP_SECONDS}}}", f"num_envs = {max(1, count)}",
            f"create_experiment.collectors = {count}", *(options if count else ()), "hidden_layers = (32, 32)",
            "batch_size = 64", "initial_collect_steps = 100", "num_env_steps = 1000000", "replay_length = 10000",
            "UpdateRatio.updates_per_env_step = 0.02", "create_agent.compile = False",
        ],
    )  # fmt: skip
    return configuration.build(experiment.create_experiment)


def _rate(trainer: Trainer, seconds: float) -> float:
    """Trains for some seconds; returns environment steps per second."""
    trainer.collect()  # which may start the collectors
    begin, before = time.perf_counter(), trainer.env_steps
    while time.perf_counter() - begin < seconds:
        trainer.collect()
        trainer.learn()
    return (trainer.env_steps - before) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collectors", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--launcher", default="processes", choices=["processes", "ray"])
    parser.add_argument("--ray_address", default="auto")
    given = parser.parse_args()
    found = collectors(given.collectors, given.seconds, launcher=given.launcher, ray_address=given.ray_address)
    one = statistics.median(found[1]) if 1 in found else None
    for count, rates in found.items():
        middle = statistics.median(rates)
        ratio = f", {middle / one:.2f} times that of one" if one else ""
        print(f"{count} collectors: {middle:.0f} environment steps/s ({min(rates):.0f} to {max(rates):.0f}){ratio}")


if __name__ == "__main__":
    main()
