"""Where the time of an update goes: operations by the time they take themselves, of SAC and TAAC on HalfCheetah-v5.

    python -m experiments.benchmarks.profile_update [--gin_param P]

The profiler itself costs time, mostly on the small operations: read the shares, not the sum.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import defaultdict
from typing import Any

PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


def profile(method: str, params: list[str], updates: int) -> dict[str, tuple[float, float]]:
    """Microseconds and calls an update of each kind of operation, by name; products also by their shapes."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    from experiments.benchmarks import ours

    trainer = ours.build({"method": method}, ["replay_length = 20000", "initial_collect_steps = 2000", *params])
    ours.fill(trainer, 4000)
    learn = lambda: trainer.learner.learn_from(  # noqa: E731
        trainer.replay_buffer, trainer.batch_size, trainer.segment_length
    )
    for _ in range(min(100, updates)):
        learn()
    with torch_profile(activities=[ProfilerActivity.CPU], record_shapes=True) as record:
        for _ in range(updates):
            learn()
    trainer.close()
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for event in record.key_averages(group_by_input_shape=True):
        shapes = " x ".join(str(shape) for shape in event.input_shapes if len(shape) > 1)
        name = f"{event.key} {shapes}" if event.key in PRODUCTS else event.key
        spent, calls = found[name]
        found[name] = (spent + event.self_cpu_time_total / updates, calls + event.count / updates)
    return dict(found)


def alone(name: str) -> float:
    """Microseconds of a product of these shapes by itself, the best of many: operands in the cache, nothing around it."""
    import torch

    from taac.machine.products import resolve, using

    operands = [
        torch.randn(json.loads(shape)) for shape in re.findall(r"\[[\d, ]+\]", name)[-2:]
    ]  # the bias comes first
    product = torch.mm if operands[0].dim() == 2 else torch.bmm
    best = float("inf")
    with torch.inference_mode(), using(resolve("auto", torch.device("cpu"))):
        for _ in range(50):
            start = time.perf_counter()
            product(*operands)
            best = min(best, time.perf_counter() - start)
    return best * 1e6


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--gin_param", action="append", default=[], help="a gin binding of both")
    flags.add_argument("--updates", type=int, default=100, help="updates that are looked at (default: 100)")
    options: Any = flags.parse_args()
    for method in ("sac", "taac"):
        found = profile(method, options.gin_param, options.updates)
        total = sum(spent for spent, _ in found.values())
        products = sum(spent for name, (spent, _) in found.items() if name.startswith(PRODUCTS))
        print(f"\n{method}: {total:.0f} us an update under the profiler, {products / total:.0%} of it matrix products")
        by_themselves = sum(calls * alone(name) for name, (_, calls) in found.items() if name.startswith(PRODUCTS))
        print(f"the same products by themselves: {by_themselves:.0f} us")
        print(f"all operations: {sum(calls for _, calls in found.values()):.0f}, those inside others included")
        for name, (spent, calls) in sorted(found.items(), key=lambda item: -item[1][0])[:18]:
            print(f"{spent:8.0f} us {calls:6.1f} calls  {name}")


if __name__ == "__main__":
    main()
