"""Run folders with planted numbers, as `taac train` leaves them, without training."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from taac.training.summaries import SummaryWriter

COLUMNS = (
    "env_steps", "updates", "training_decisions", "seconds", "episodes", "return_mean", "return_std", "length",
    "fraction_repeated", "mean_run", "max_run", "decisions", "jerk", "fraction_same", "action_change", "effort", "high_frequency",
    "multiply_adds",
)  # fmt: skip
VERSIONS = {"taac": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "gymnasium": "1.4.0", "tensorboard": "2.21.0"}
STEPS = tuple(range(100, 1001, 100))
TASKS = ("Hopper-v5", "Ant-v5")  # with anchors
EFFECTS = {"better": 300.0, "null": 0.0, "plain": 0.0}  # of methods on the final return; the noise has an sd of 10
REPEATED = {"better": 0.75, "null": 0.0, "plain": 0.0}


def make_run(
    folder: Path, method: str | None = "sac", task: str = "Hopper-v5", seed: int = 0, returns=None, steps=STEPS,
    budget: int = 1000, status: str = "finished", repeated: float = 0.0, algorithm: str = "SacAlgorithm", versions=VERSIONS,
    updates_per_iteration: int = 1, columns=COLUMNS, extra_gin: str = "", products: str = "plain",
) -> Path:  # fmt: skip
    """One run; its return at step s is `returns[i]`, by default s."""
    folder.mkdir(parents=True)
    about = {"status": status, "seed": seed, "environment": task, "versions": dict(versions), "products": products}
    if method is not None:
        about["method"] = method
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "config.gin").write_text(
        f"# Macros:\nnum_env_steps = {budget}\nnum_envs = 2\n\ncreate_agent.algorithm_ctor = @{algorithm}\n"
        f"create_environment.env_name = '{task}'\ncreate_environment.num_envs = %num_envs\n"
        f"create_environment.wrappers = \\\n    ()\ncreate_experiment.seed = {seed}\n"
        f"Intervals.num_env_steps = %num_env_steps\nUpdateRatio.unroll_length = 1\n"
        f"UpdateRatio.updates_per_iteration = {updates_per_iteration}\n{extra_gin}"
    )
    returns = list(steps) if returns is None else returns
    with open(folder / "evaluations.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for step, value in zip(steps, returns):
            length = 100 + step / 100
            value = value if isinstance(value, str) else float(value)
            row = {
                "env_steps": step, "updates": step, "training_decisions": step * (1 - repeated), "seconds": step / 10,
                "episodes": 2, "return_mean": value, "return_std": 1.0, "length": length,
                "fraction_repeated": repeated, "mean_run": 1 / (1 - repeated), "max_run": 5,
                "decisions": length * (1 - repeated), "jerk": 0.01 * (seed + 1), "fraction_same": repeated,
                "action_change": 0.02, "effort": 0.5, "high_frequency": 0.001, "multiply_adds": 1000 * length * (1 - repeated),
            }  # fmt: skip
            writer.writerow(row)
    return folder


def summarize(folder, series, purge_step=0):
    """Writes `{tag: {step: value}}` to an event file of a run."""
    writer = SummaryWriter(folder, purge_step=purge_step, tags=dict.fromkeys(series, ""))
    for step in sorted({step for of in series.values() for step in of}):
        writer.scalars({tag: of[step] for tag, of in series.items() if step in of}, step)
    writer.close()
    return folder


def planted_returns(task: str, method: str, seed: int) -> np.ndarray:
    """`[10]`: rises to 1000 times step fraction, with the method's effect and noise of its own."""
    number = TASKS.index(task) * 1000 + list(EFFECTS).index(method) * 100 + seed
    noise = np.random.default_rng(number).normal(scale=10, size=len(STEPS))
    return np.array(STEPS) + EFFECTS[method] + noise


def make_campaign(root: Path, seeds=range(5), methods=tuple(EFFECTS), tasks=TASKS) -> Path:
    for task in tasks:
        for method in methods:
            for seed in seeds:
                make_run(
                    root / task / method / f"seed_{seed}", method, task, seed, planted_returns(task, method, seed),
                    repeated=REPEATED[method],
                )  # fmt: skip
    return root


THIRTEEN = (
    "sac", "sac_ez", "sac_hybrid", "sac_krep", "sac_nrep", "sac_ntd", "sdar", "taac", "taac_1td", "taac_l", "taac_ntd", "taac_q",
    "temporl",
)  # fmt: skip
FOUR_TASKS = ("Ant-v5", "HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")  # with anchors


def make_wide_campaign(
    root: Path, methods=THIRTEEN, tasks=FOUR_TASKS, seeds=range(5), solved=False, evaluations=20
) -> Path:
    """Learning curves that rise and level off, of many methods; with `solved`, success rates in steps of 1/10."""
    steps = tuple(1000 * (i + 1) // evaluations for i in range(evaluations))
    rise = 1 / (1 + np.exp(-8 * (np.array(steps) / 1000 - 0.4)))
    for t, task in enumerate(tasks):
        for m, method in enumerate(methods):
            for seed in seeds:
                rng = np.random.default_rng((t, m, seed))
                ends = min(1.0, 0.3 + 0.055 * ((5 * m + t) % 13) + rng.normal(scale=0.06))
                curve = rise * ends + rng.normal(scale=0.02, size=evaluations)
                returns = np.round(np.clip(curve, 0, 1), 1) if solved else 3000 * curve
                make_run(
                    root / task / method / f"seed_{seed}", method, task, seed, returns, steps,
                    repeated=round(0.9 * m / len(methods), 3) * (0.8 + 0.04 * seed),
                )  # fmt: skip
    return root


def listing(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}
