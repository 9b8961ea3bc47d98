"""Environment steps a second with the engines of `create_environment`: Gymnasium's environments one after another, and envpool.

    python -m experiments.benchmarks.engines

The environments alone, with random actions; and collecting, with a policy that acts in all of them at once, the replay buffer and
the episodes' books, but without learning. Measurements of the engines take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from taac import configuration, registry
from taac.environments.create import create_environment
from taac.environments.vector_environment import VectorEnvironment
from taac.training import experiment

ENGINES = ("gymnasium", "envpool")


def engines(
    env_name: str = "HalfCheetah-v5", counts: Sequence[int] = (1, 8, 64), seconds: float = 1.5, repeats: int = 3,
    method: str = "sac", hidden_layers: tuple[int, ...] = (256, 256), names: Sequence[str] = ENGINES, num_threads: int = 1,
) -> dict[tuple[str, int, str], list[float]]:  # fmt: skip
    """Measures environment steps per second of all environments together.

    Args:
        env_name: which both engines have.
        counts: numbers of environments.
        seconds: duration of a measurement.
        repeats: measurements of each.
        method, hidden_layers: of the policy that collects.
        names: the engines.
        num_threads: of envpool.

    Returns:
        ("environments" or "collecting", number of environments, engine) -> its measurements.
    """
    registry.register()
    torch.set_num_threads(1)
    found: dict[tuple[str, int, str], list[float]] = {}
    for count in counts:
        for part, make in (("environments", _stepping), ("collecting", _collecting)):
            arguments = {"envpool": {"num_threads": num_threads}}
            made = {name: make(env_name, count, name, arguments.get(name, {}), method, hidden_layers) for name in names}
            for step, _ in made.values():
                _rate(step, seconds / 5)
            for _ in range(repeats):
                for name, (step, _) in made.items():
                    found.setdefault((part, count, name), []).append(count * _rate(step, seconds))
            for _, close in made.values():
                close()
    return found


Made = tuple[Callable[[], object], Callable[[], object]]  # takes one step; closes


def _stepping(env_name: str, count: int, engine: str, arguments: dict[str, int], *_: object) -> Made:
    environment: VectorEnvironment = create_environment(env_name, count, engine=engine, env_kwargs=arguments)
    environment.reset(0)
    actions = iter(lambda: torch.rand(1000, count, *environment.action_spec.shape) * 2 - 1, None)
    rows = (row for block in actions for row in block)
    return lambda: environment.step(next(rows)), environment.close


def _collecting(
    env_name: str, count: int, engine: str, arguments: dict[str, int], method: str, hidden_layers: tuple[int, ...]
) -> Made:
    bound = (
        f"create_environment.env_name = '{env_name}'", f"create_environment.engine = '{engine}'", f"num_envs = {count}",
        f"create_environment.env_kwargs = {arguments!r}",
        f"hidden_layers = {hidden_layers!r}", "replay_length = 2000", "create_experiment.evaluation_envs = 1",
        "UpdateRatio.initial_collect_steps = 1000", "Intervals.num_env_steps = 100000000", "create_agent.compile = False",
    )  # fmt: skip
    configuration.load(["gin/tasks/simple_control.gin", f"gin/methods/{method}.gin"], bound)
    trainer = configuration.build(experiment.create_experiment)
    return trainer.collector.step, trainer.close


def _rate(step: Callable[[], object], seconds: float) -> float:
    """Calls for some seconds; returns calls per second."""
    begin, calls = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < seconds:
        step()
        calls += 1
    return calls / passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env_name", default="HalfCheetah-v5")
    parser.add_argument("--num_envs", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--method", default="sac")
    parser.add_argument("--num_threads", type=int, default=1, help="of envpool")
    parser.add_argument("--seconds", type=float, default=1.5)
    given = parser.parse_args()
    found = engines(given.env_name, given.num_envs, given.seconds, method=given.method, num_threads=given.num_threads)
    for (part, count, name), rates in found.items():
        ratio = statistics.median(rates) / statistics.median(found[part, count, ENGINES[0]])
        print(
            f"{part}, {count} of {given.env_name}, {name}: {statistics.median(rates):.0f} steps/s "
            f"({min(rates):.0f} to {max(rates):.0f}), {ratio:.2f} times Gymnasium's"
        )


if __name__ == "__main__":
    main()
