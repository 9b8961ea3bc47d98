"""Throughput of one run that several ranks train, beside that of one process, and the bytes that they send.

    python -m experiments.benchmarks.ranks [--ranks 2] [--updates 300] [--gin_param BINDING]

Both have the same settings of the whole run: environments, batch size, updates per environment step. Ranks of one machine share
its cores, so the ratio says what a second process of one thread adds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

from experiments.benchmarks import common
from taac.machine.ranks import Ranks, join

SETTINGS = (
    "create_environment.env_name = 'Pendulum-v1'", "num_envs = 4", "num_env_steps = 10000000", "initial_collect_steps = 1000",
    "replay_length = 10000", "create_agent.compile = False",
)  # fmt: skip
WARM = 30  # iterations before those that are measured


class Throughput(NamedTuple):
    """What was measured of one run."""

    ranks: int
    env_steps_per_second: float
    updates_per_second: float
    message_bytes: int  # of an update: gradients, losses and what is summarised, in each rank; 0 if there is one rank
    wire_bytes: int  # that a rank sends in an update, in a ring: 2 (W - 1) / W messages
    message_seconds: float  # of the mean alone, without an update


def measure(num_ranks: int, settings: Sequence[str] = SETTINGS, updates: int = 300, method: str = "sac") -> Throughput:
    """Measures a run of `num_ranks` ranks on this machine, in new processes of one thread each.

    Args:
        num_ranks: processes that `torchrun` starts; 1: one process without it.
        settings: gin bindings of the whole run.
        updates: iterations that are measured, each of a step of the environments and the updates that it earns.
        method: a method that the ranks support.
    """
    launch = [] if num_ranks == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(num_ranks)]
    own = ["-m", "experiments.benchmarks.ranks", "--worker", "--updates", str(updates), "--method", method]
    own += [word for setting in settings for word in ("--gin_param", setting)]
    ended = subprocess.run(
        [sys.executable, *launch, *own], env={**os.environ, **common.ONE_THREAD}, cwd=common.ROOT, check=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return Throughput(**json.loads(ended.stdout.splitlines()[-1]))


def work(joined: Ranks, settings: Sequence[str], updates: int, method: str) -> Throughput:
    """Trains in this process for some iterations, with the other ranks if there are any."""
    import torch

    from taac import configuration
    from taac.training import experiment

    configuration.load(["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"], list(settings))
    trainer = configuration.build(lambda: experiment.create_experiment(ranks=joined))
    if not joined.first:
        joined.from_first()  # that the first rank begins
    trainer.parallel.begin(lambda: False)

    def iterate(times: int) -> None:
        for _ in range(times):
            trainer.collect()
            trainer.learn()

    while not trainer.learner.num_updates:
        iterate(1)
    iterate(WARM)
    steps, before, begun = trainer.env_steps, trainer.learner.num_updates, time.perf_counter()
    iterate(updates)
    seconds = time.perf_counter() - begun
    steps, taken = trainer.env_steps - steps, trainer.learner.num_updates - before
    gradients = [p.grad for p in trainer.agent.parameters() if p.grad is not None]
    values = [torch.zeros(()) for _ in ("loss", "total", *trainer.learner.losses)]
    message = 4 * sum(tensor.numel() for tensor in [*gradients, *values]) if joined.count > 1 else 0
    joined.average([*gradients, *values])
    begun = time.perf_counter()
    for _ in range(100):
        joined.average([*gradients, *values])
    message_seconds = (time.perf_counter() - begun) / 100
    trainer.close()
    count = joined.count
    return Throughput(count, steps / seconds, taken / seconds, message, 2 * (count - 1) * message // count, message_seconds)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    flags.add_argument("--ranks", type=int, default=2, help="beside one")
    flags.add_argument("--updates", type=int, default=300, help="iterations that are measured")
    flags.add_argument("--method", default="sac")
    flags.add_argument("--gin_param", action="append", default=[], help="a gin binding besides the benchmark's own; repeatable")
    flags.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = flags.parse_args()
    if options.worker:
        from taac import registry

        registry.register()
        joined = join()
        found = work(joined, options.gin_param, options.updates, options.method)
        if joined.first:
            print(json.dumps(found._asdict()))
        joined.leave()
        return
    settings = [*SETTINGS, *options.gin_param]
    one, several = (measure(n, settings, options.updates, options.method) for n in (1, options.ranks))
    print("| ranks | environment steps/s | updates/s | times one | bytes sent a rank and update | its ms |")
    print("|---|---|---|---|---|---|")
    for row in (one, several):
        print(
            f"| {row.ranks} | {row.env_steps_per_second:.0f} | {row.updates_per_second:.0f} | "
            f"{row.updates_per_second / one.updates_per_second:.2f} | {row.wire_bytes} | {1000 * row.message_seconds:.2f} |"
        )


if __name__ == "__main__":
    main()
