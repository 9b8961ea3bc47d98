"""Runs the cheapest row that others have published, and says whether it agrees: `make results-check`.

    python -m experiments.results.check --root_dir runs/results_check

Trains SAC on InvertedDoublePendulum-v5 with `gin/tasks/sac_reference.gin` for 20,000 steps (some minutes a seed), after 10,000
random ones that the published number does not count, and holds the greedy return at the end against the published mean and
standard deviation over n seeds. Agreement means that the mean of k
seeds here lies in the 95% prediction interval for the mean of k further seeds of theirs,

    mean +- t(0.975, n - 1) sd sqrt(n / (n - 1)) sqrt(1 / n + 1 / k),

which assumes normal returns; the published sd divides by n, not by n - 1. The published number is of another version of the
environment, a learning rate of 1e-3 (here 3e-4) and a fixed temperature, so a disagreement is a reason to look, not a proof of a
fault. Exits with 1 if they disagree. Killed and called again, it goes on.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import taac
from taac.analysis.report.tables import Published, load_published
from taac.analysis.statistics.intervals import student_quantile

HERE = Path(__file__).resolve().parent
TASK, METHOD, ENV_STEPS = "InvertedDoublePendulum-v5", "sac", 20_000


def interval(mean: float, sd: float, n: int, k: int) -> tuple[float, float]:
    """Returns the 95% prediction interval for the mean of `k` seeds, given mean and standard deviation (by n) of `n` seeds."""
    half = student_quantile(0.95, n - 1) * sd * (n / (n - 1)) ** 0.5 * (1 / n + 1 / k) ** 0.5
    return mean - half, mean + half


def verdict(returns: list[float], entry: Published) -> tuple[bool, str]:
    """Returns whether returns of seeds agree with a published return, and a sentence that says so."""
    assert entry.sd is not None
    low, high = interval(entry.mean, entry.sd, entry.n, len(returns))
    mean = float(np.mean(returns))
    agrees = low <= mean <= high
    return agrees, (
        f"{METHOD} on {TASK} at {entry.env_steps:,} steps: {mean:.0f} (n = {len(returns)}); published by {entry.source} on "
        f"{entry.environment_version}: {entry.mean:.0f} +- {entry.sd:.0f} (n = {entry.n}); {'inside' if agrees else 'OUTSIDE'} "
        f"the 95% prediction interval [{low:.0f}, {high:.0f}]"
    )


def the_entry() -> Published:
    """Returns the published number to compare with."""
    [found] = [
        entry
        for entry in load_published(HERE / "published.json")
        if entry.concerns(TASK, METHOD) and entry.env_steps == ENV_STEPS and entry.sd is not None
    ]
    return found


def train(root: Path, seed: int, entry: Published, **settings: object) -> float:
    """Trains one seed, or reads it if it is finished; returns its last greedy return."""
    folder, steps = root / f"seed_{seed}", entry.all_steps
    if folder.exists() and (run := taac.Run(folder)).status == "finished" and run.curve["env_steps"][-1] >= steps:
        return float(run.curve["return_mean"][-1])
    run = taac.train(
        TASK, method=METHOD, gin_files=["gin/tasks/sac_reference.gin"], seed=seed, root_dir=folder,
        num_env_steps=steps, replay_length=steps, initial_collect_steps=entry.uncounted_steps, **settings,
    )  # fmt: skip
    return float(run.curve["return_mean"][-1])


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("--root_dir", type=Path, default=Path("runs/results_check"))
    flags.add_argument("--seeds", type=int, default=1)
    options = flags.parse_args()
    if options.seeds < 1:
        flags.error(f"--seeds must be 1 or more, got {options.seeds}")
    entry = the_entry()
    agrees, sentence = verdict([train(options.root_dir, seed, entry) for seed in range(options.seeds)], entry)
    print(sentence)
    sys.exit(0 if agrees else 1)


if __name__ == "__main__":
    main()
