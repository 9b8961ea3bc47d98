"""Runs the rows of the table whose settings were published, for each task its own.

    python -m experiments.sparing ROOT_DIR [--jobs N]

Called again, it goes on. README.md has the protocol.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

STEPS = {
    "Pendulum-v1": 30_000, "MountainCarContinuous-v0": 50_000, "InvertedPendulum-v5": 50_000,
    "InvertedDoublePendulum-v5": 50_000,
}  # fmt: skip
SEEDS, INTERVAL = 5, 2_500


def comparisons() -> Iterator[list[str]]:
    """Yields what `taac compare` is given for each task and method."""
    for task, steps in STEPS.items():
        noise = ["--set", "exploration_noise=0.3"] if task == "MountainCarContinuous-v0" else []
        budget = ["--num_env_steps", str(steps), "--set", f"evaluation_interval={INTERVAL}", "--seeds", str(SEEDS)]
        for method, file, more in (
            ("td3", "gin/tla/published.gin", noise),
            ("tla", f"gin/tla/{task}.gin", []),  # with the same noise there
            ("temporl_ddpg", "gin/temporl_ddpg/Pendulum-v1.gin", ["--set", "compile=False"]),  # 20 durations compile for minutes
        ):
            yield ["--tasks", task, "--methods", method, "--gin_file", file, *budget, *more]


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("root_dir", type=Path)
    flags.add_argument("--jobs", type=int, default=0, help="as in taac compare")
    flags.add_argument("--dry_run", action="store_true", help="print each run's command")
    given = flags.parse_args()
    for one in comparisons():
        how = ["--dry_run"] if given.dry_run else ["--jobs", str(given.jobs)]
        subprocess.run([sys.executable, "-m", "taac", "compare", "--root_dir", str(given.root_dir), *one, *how], check=True)


if __name__ == "__main__":
    main()
