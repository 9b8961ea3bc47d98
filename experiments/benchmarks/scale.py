"""What many runs cost together: the measured costs of one run, extended to 1,000 runs on 10 machines.

    python -m experiments.benchmarks.scale [--runs 1000] [--machines 10] [--cores 32] [--num_env_steps 1000000]

Measures one training on HalfCheetah-v5 (TAAC, two layers of 256 units) on this machine: environment steps a second, bytes and
seconds of a checkpoint, bytes that stay, seconds to report a run. Then it computes what so many runs need, one on each core,
with run folders on one shared disk. Nothing here was run on so many machines. Throughput against ranks and collectors is
measured by `ranks` and `collectors` beside this file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks import common, event_files, ours

POINTS, TAGS = 200, 25  # of the event file whose reading is measured
WARM_UP = 50  # updates before those that are measured


class Cost(NamedTuple):
    """What one run costs."""

    steps_per_second: float  # environment steps, one update each
    memory_bytes: float  # that the process holds
    checkpoint_bytes: float  # written at each checkpoint
    checkpoint_seconds: float
    whole_bytes: float  # of the files that checkpoints keep, when the buffer is full
    summary_bytes: float  # written for each summary
    report_seconds: float  # to read one summary


class Plan(NamedTuple):
    """What is to be run."""

    runs: int
    machines: int
    cores: int  # of a machine; one run on each
    num_env_steps: int
    checkpoint_interval: int  # environment steps
    summary_interval: int


class Projection(NamedTuple):
    """What so many runs need."""

    at_once: int  # runs at the same time
    hours: float  # until all have ended
    machine_memory_bytes: float
    written_bytes_per_second: float  # to the shared disk by all runs that are under way, on average
    burst_bytes: float  # if all runs that are under way write a checkpoint at the same time
    disk_bytes: float  # at the end
    checkpoint_share: float  # of a run's time
    report_seconds: float  # to read all runs


def project(cost: Cost, plan: Plan) -> Projection:
    """Extends the cost of one run to many, as if runs did not slow one another down."""
    at_once = min(plan.runs, plan.machines * plan.cores)
    checkpoints = plan.num_env_steps / plan.checkpoint_interval
    seconds = plan.num_env_steps / cost.steps_per_second + checkpoints * cost.checkpoint_seconds
    waves = -(-plan.runs // at_once)
    summaries = plan.num_env_steps / plan.summary_interval * cost.summary_bytes
    written = checkpoints * cost.checkpoint_bytes + summaries
    return Projection(
        at_once,
        waves * seconds / 3600,
        min(plan.cores, -(-at_once // plan.machines)) * cost.memory_bytes,
        at_once * written / seconds,
        at_once * cost.checkpoint_bytes,
        plan.runs * (cost.whole_bytes + summaries),
        checkpoints * cost.checkpoint_seconds / seconds,
        plan.runs * plan.num_env_steps / plan.summary_interval * cost.report_seconds,
    )


def measure(options: argparse.Namespace) -> Cost:
    """Measures one run on this machine, in this process."""
    import psutil

    from taac import configuration, nest
    from taac.runs.run_folder import RunFolder

    settings = [f"replay_length = {options.frames}", f"initial_collect_steps = {min(2000, options.frames)}"]
    trainer = ours.build({"method": "taac", "env": options.env}, [*settings, *options.gin_param])
    ours.fill(trainer, options.frames)
    buffer = trainer.replay_buffer
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(path)
        folder.begin(configuration.operative_config(), {})
        trainer.save(folder)
        before = held(folder.path)
        frames = buffer.sample(buffer.num_envs, 2)
        for _ in range(options.checkpoint_interval):
            buffer.add(nest.index(frames, 0))
        trainer.collector.env_steps += options.checkpoint_interval
        begun = time.perf_counter()
        trainer.save(folder)
        seconds, after = time.perf_counter() - begun, held(folder.path)
    written = sum(size for name, (size, changed) in after.items() if before.get(name) != (size, changed))
    whole = sum(size for size, _ in before.values())
    for update in range(options.updates + WARM_UP):
        if update == WARM_UP:
            begun = time.perf_counter()
        trainer.collect()
        trainer.learner.learn_from(buffer, trainer.batch_size, trainer.segment_length)
    rate, memory = options.updates / (time.perf_counter() - begun), psutil.Process().memory_info().rss
    trainer.close()
    with tempfile.TemporaryDirectory() as path:
        events = event_files.write(Path(path), POINTS, TAGS)
        summary = sum(size for size, _ in held(events).values()) / POINTS
        reading = event_files.seconds(event_files.events.read, [events], 1) / POINTS
    return Cost(rate, memory, written, seconds, whole, summary, reading)


def held(folder: Path) -> dict[str, tuple[int, int]]:
    """The bytes of each file below a folder, and when it was changed."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def parser() -> argparse.ArgumentParser:
    flags = common.parser(__doc__.splitlines()[0])
    flags.add_argument("--runs", type=int, default=1000)
    flags.add_argument("--machines", type=int, default=10)
    flags.add_argument("--cores", type=int, default=32, help="of each machine, with one run on each")
    flags.add_argument("--num_env_steps", type=int, default=1_000_000, help="of each run")
    flags.add_argument("--checkpoint_interval", type=int, default=10_000)
    flags.add_argument("--summary_interval", type=int, default=1_000)
    flags.add_argument("--env", default="HalfCheetah-v5", help="or Free-v0, which costs nothing")
    flags.add_argument("--frames", type=int, default=100_000, help="in the replay buffer that is measured")
    flags.add_argument("--updates", type=int, default=400, help="that are measured")
    return flags


def run(options: argparse.Namespace) -> dict[str, Any]:
    common.say("the cost of one run")
    plan = Plan(*(getattr(options, name) for name in Plan._fields))
    cost = measure(options)
    found = project(cost, plan)
    rows = [
        ("a run: environment steps a second", cost.steps_per_second, ""),
        ("a run: memory", cost.memory_bytes / 1e6, "MB"),
        (f"a run: written for a checkpoint, every {plan.checkpoint_interval:,} steps", cost.checkpoint_bytes / 1e6, "MB"),
        ("a run: seconds of a checkpoint", cost.checkpoint_seconds, "s"),
        (f"a run: its newest checkpoint, with {options.frames:,} frames", cost.whole_bytes / 1e6, "MB"),
        (f"a run: a summary, every {plan.summary_interval:,} steps", cost.summary_bytes / 1e3, "kB"),
        ("all: runs at once", found.at_once, ""),
        (f"all: time for {plan.runs:,} runs of {plan.num_env_steps:,} steps", found.hours, "h"),
        ("all: memory of a machine", found.machine_memory_bytes / 1e9, "GB"),
        ("all: written to the shared disk, mean", found.written_bytes_per_second / 1e6, "MB/s"),
        ("all: written if all save at once", found.burst_bytes / 1e9, "GB"),
        ("all: share of the time that checkpoints take", 100 * found.checkpoint_share, "%"),
        ("all: disk in the end", found.disk_bytes / 1e9, "GB"),
        ("all: reading every summary for a report", found.report_seconds, "s"),
    ]
    return {
        "title": f"{plan.runs:,} runs on {plan.machines} machines of {plan.cores} cores, computed from one run measured here",
        "figures": [common.figure(what, [float(value)], unit) for what, value, unit in rows],
        "goals": [],
    }


if __name__ == "__main__":
    common.main("scale", parser(), run)
