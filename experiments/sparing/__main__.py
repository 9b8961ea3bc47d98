"""Runs the rows of the table whose settings were published, for each task its own.

    python -m experiments.sparing ROOT_DIR [--tasks TASK ...] [--seeds N] [--jobs N]

Called again, it goes on. README.md has the protocol.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

STEPS = {
    "Pendulum-v1": 30_000, "MountainCarContinuous-v0": 50_000, "InvertedPendulum-v5": 50_000,
    "InvertedDoublePendulum-v5": 50_000,
}  # fmt: skip
SEEDS, INTERVAL = 5, 2_500
SKIPS = {"Pendulum-v1": 6, "MountainCarContinuous-v0": 11, "InvertedPendulum-v5": 10, "InvertedDoublePendulum-v5": 5}
TEMPORL = "experiments/sparing/temporl_td3.gin"


def comparisons(tasks: Iterable[str] = STEPS, seeds: int = SEEDS) -> Iterator[list[str]]:
    """Yields what `taac compare` is given for each task and method."""
    for task in tasks:
        far = task == "MountainCarContinuous-v0"
        noise = ["--set", "exploration_noise=0.3"] if far else []
        coin = ["--set", "TempoRLTd3Algorithm.skip_epsilon=0.3"] if far else []  # TempoRL's program has one number for both
        budget = ["--num_env_steps", str(STEPS[task]), "--set", f"evaluation_interval={INTERVAL}", "--seeds", str(seeds)]
        skips, published = SKIPS[task], "gin/tla/published.gin"
        sizes = {"action_repeat": skips, "segment_length": skips + 1, "batch_size": round(256 / skips)}  # 256 transitions
        for method, file, more in (
            ("td3", published, noise),
            ("tla", f"gin/tla/{task}.gin", []),  # with the same noise there
            (TEMPORL, published, [*noise, *coin, *(word for name, n in sizes.items() for word in ("--set", f"{name}={n}"))]),
        ):
            yield ["--tasks", task, "--methods", method, "--gin_file", file, *budget, *more]


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("root_dir", type=Path)
    flags.add_argument("--jobs", type=int, default=0, help="as in taac compare")
    flags.add_argument("--tasks", nargs="+", choices=STEPS, default=list(STEPS))
    flags.add_argument("--seeds", type=int, default=SEEDS)
    flags.add_argument("--dry_run", action="store_true", help="print each run's command")
    given = flags.parse_args()
    for one in comparisons(given.tasks, given.seeds):
        how = ["--dry_run"] if given.dry_run else ["--jobs", str(given.jobs)]
        subprocess.run([sys.executable, "-m", "taac", "compare", "--root_dir", str(given.root_dir), *one, *how], check=True)


if __name__ == "__main__":
    main()
