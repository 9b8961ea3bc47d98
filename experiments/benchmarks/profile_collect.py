"""Where the time of a step of collecting goes: TAAC, compiled, one environment, no learning.

    python -m experiments.benchmarks.profile_collect [--env_name HalfCheetah-v5] [--gin_param P]

Each part is timed in its place, because by itself, with its code and data in the caches, it takes less. The clock itself costs
a few microseconds a step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any


class Clock:
    """Times functions in their place, each without those inside it that are timed too.

    Attributes:
        own: seconds by part.
    """

    def __init__(self) -> None:
        self.own: dict[str, float] = {}
        self._inside = [0.0]  # seconds of timed parts within each running one

    def timed(self, part: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `fn`, timed as a part."""
        self.own[part] = 0.0

        def wrapper(*args: Any, **named: Any) -> Any:
            self._inside.append(0.0)
            start = time.perf_counter()
            try:
                return fn(*args, **named)
            finally:
                spent = time.perf_counter() - start
                self.own[part] += spent - self._inside.pop()
                self._inside[-1] += spent

        return wrapper


def profile(env_name: str, params: list[str], steps: int) -> dict[str, float]:
    """Microseconds a step of each part."""
    from experiments.benchmarks import ours
    from taac.machine.compiled import CompiledFunction
    from taac.machine.processes import settled_heap

    trainer = ours.build(
        {"method": "taac", "env": env_name},
        [
            f"initial_collect_steps = {ours.FOREVER // 2}",
            "create_collector.uniform_initial_collect = False",
            "create_experiment.evaluation_envs = 1",
            *params,
        ],
    )
    collector, clock = trainer.collector, Clock()
    with settled_heap():  # as in training
        for _ in range(min(1000, steps)):
            trainer.collect()
        acting, environment = trainer.agent._rollout_step, collector.environment
        if isinstance(acting, CompiledFunction):
            for key, (program, pack) in acting._programs.items():
                acting._programs[key] = clock.timed("policy: its program", program), pack
        vector = environment._env
        for owner, name, part in (
            (trainer.agent, "_rollout_step", "policy: its arguments and results"),
            (vector.envs[0].unwrapped, "step", "environment: the simulator, in Gymnasium's class"),
            (vector, "step", "environment: wrappers, vector environment"),
            (environment, "step", "environment: checks, time step of tensors"),
            (trainer.replay_buffer, "add", "replay buffer"),
            (collector._recorder, "add", "records of episodes"),
            (collector._actions, "append", "log of actions"),
            (trainer, "collect", "collector and trainer"),
        ):
            setattr(owner, name, clock.timed(part, getattr(owner, name)))
        for _ in range(steps):
            trainer.collect()
    trainer.close()
    return {part: seconds / steps * 1e6 for part, seconds in clock.own.items()}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--env_name", default="HalfCheetah-v5", help="the environment (default: HalfCheetah-v5)")
    flags.add_argument("--gin_param", action="append", default=[], help="a gin binding")
    flags.add_argument("--steps", type=int, default=5000, help="steps that are looked at (default: 5000)")
    options: Any = flags.parse_args()
    found = profile(options.env_name, ["create_agent.compile = True", *options.gin_param], options.steps)
    print(f"{sum(found.values()):7.0f} us a step, clock included")
    for part, spent in found.items():
        print(f"{spent:7.0f} us  {part}")


if __name__ == "__main__":
    main()
