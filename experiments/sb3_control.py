"""Trains SAC or TD3 of Stable-Baselines3 into run folders that `taac report` reads, to compare them with those of this package.

    .venv-peers/bin/python -m experiments.sb3_control --root_dir runs/sac_reference \\
        --tasks HalfCheetah-v5,Hopper-v5 --seeds 5 --num_env_steps 100000

Run it in an environment that has Stable-Baselines3 (`make bench-peers` makes one); taac itself need not be there. Each run
goes to <root_dir>/<task>/sb3_<algorithm>/seed_<n>: `evaluations.csv`, `run.json` and `config.gin`, with the names that this
package uses for the same things. The settings are Stable-Baselines3's defaults, but for 10,000 uniform steps at the
beginning, as in RL Zoo, and a replay buffer as long as the run; for TD3 also layers of 256 and 256, a learning rate of 3e-4 and
normal noise of 0.1 on actions. `--her` gives SAC goals in hindsight and the settings of `gin/tasks/goals.gin` (`pip install
gymnasium-robotics`). A finished run is left alone; one that was interrupted begins again: Stable-Baselines3 cannot go on with the
same numbers.

Every `--evaluation_interval` steps, `--evaluation_episodes` greedy episodes are played in an environment of their own, whose
episodes are seeded by the run's seed, the step and their number.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.metadata
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from taac.runs import provenance

with contextlib.suppress(ModuleNotFoundError):
    import gymnasium_robotics  # registers tasks with goals  # noqa: F401

COLUMNS = ("env_steps", "updates", "training_decisions", "seconds", "episodes", "return_mean", "return_std", "length")
SUCCESS = ("info/is_success",)  # with goals: of an episode's last step
PACKAGES = ("stable-baselines3", "torch", "numpy", "gymnasium", "mujoco")


def greedy_episodes(model: Any, task: str, seeds: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Plays a greedy episode a seed: undiscounted returns, lengths, successes `[n]`. NaN where a task tells no success."""
    environment = gymnasium.make(task)
    returns, lengths, successes = np.zeros(len(seeds)), np.zeros(len(seeds), dtype=int), np.full(len(seeds), np.nan)
    for i, seed in enumerate(seeds):
        observation, _ = environment.reset(seed=seed)
        ended = False
        while not ended:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, info = environment.step(action)
            returns[i] += float(reward)
            lengths[i] += 1
            ended = terminated or truncated
        successes[i] = info.get("is_success", np.nan)
    environment.close()
    return returns, lengths, successes


def episode_seeds(seed: int, env_steps: int, episodes: int) -> list[int]:
    """Seeds of an evaluation's episodes, independent for each run and step."""
    return [int(s) % 2**31 for s in np.random.SeedSequence([seed, 1, env_steps]).generate_state(episodes)]


def settings(task: str, options: argparse.Namespace) -> str:
    """Returns what the run's configuration has in common with this package's, in gin's form, for the checks of `taac report`."""
    return "\n".join(
        [
            f"create_environment.env_name = '{task}'",
            "create_environment.num_envs = 1",
            f"Intervals.num_env_steps = {options.num_env_steps}",
            f"UpdateRatio.initial_collect_steps = {options.initial_collect_steps}",
            f"Intervals.evaluation_interval = {options.evaluation_interval}",
            f"Evaluator.evaluation_episodes = {options.evaluation_episodes}",
            "UpdateRatio.unroll_length = 1",
            "UpdateRatio.updates_per_iteration = 1",
            "",
        ]
    )


def make_model(task: str, seed: int, options: argparse.Namespace) -> Any:
    import torch
    from stable_baselines3 import SAC, TD3
    from stable_baselines3.common.noise import NormalActionNoise

    torch.set_num_threads(1)
    if options.her:
        from stable_baselines3 import HerReplayBuffer

        return SAC(
            "MultiInputPolicy", task, seed=seed, device="cpu", learning_starts=options.initial_collect_steps,
            learning_rate=1e-3, gamma=0.95, tau=0.05, batch_size=256, buffer_size=max(options.num_env_steps, 1),
            policy_kwargs={"net_arch": [256, 256, 256]}, ent_coef="auto_0.1", replay_buffer_class=HerReplayBuffer,
            replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"}, verbose=0,
        )  # fmt: skip
    model = {"sac": SAC, "td3": TD3}[options.algorithm](
        "MlpPolicy", task, seed=seed, device="cpu", learning_starts=options.initial_collect_steps, learning_rate=3e-4,
        batch_size=256, buffer_size=max(options.num_env_steps, 1), policy_kwargs={"net_arch": [256, 256]}, verbose=0,
    )  # fmt: skip
    if options.algorithm == "td3":
        size = np.ones(model.action_space.shape)
        model.action_noise = NormalActionNoise(0 * size, 0.1 * size)
    return model


def train(folder: Path, task: str, seed: int, options: argparse.Namespace, model: Any, method: str) -> None:
    """Trains one run of a new model, from the beginning; `run.json` is written last and says that it is finished."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.gin").write_text(settings(task, options))
    start, begun = provenance.now(), time.perf_counter()
    with open(folder / "evaluations.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *SUCCESS] if options.her else COLUMNS)
        while model.num_timesteps < options.num_env_steps:
            model.learn(options.evaluation_interval, reset_num_timesteps=model.num_timesteps == 0, log_interval=None)
            steps = model.num_timesteps
            returns, lengths, successes = greedy_episodes(model, task, episode_seeds(seed, steps, options.evaluation_episodes))
            row = (steps, model._n_updates, steps, round(time.perf_counter() - begun, 3), len(returns))
            writer.writerow([*row, returns.mean(), returns.std(), lengths.mean(), *([successes.mean()] if options.her else [])])
            file.flush()
            print(f"{task} seed {seed}: {steps} steps, return {returns.mean():.1f} +- {returns.std():.1f}", flush=True)
    about = {
        "status": "finished", "method": method, "seed": seed, "environment": task, "device": "cpu",
        "command": shlex.join(["python", "-m", f"experiments.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        "start": start, "end": provenance.now(),
        "versions": {**{name: version(name) for name in PACKAGES}, "python": platform.python_version()},
        "platform": {"system": platform.platform(), "processor": provenance.processor(), "cores": os.cpu_count()},
        "env_steps": model.num_timesteps, "updates": model._n_updates,
    }  # fmt: skip
    temporary = folder / "run.json.part"
    temporary.write_text(json.dumps(about, indent=2) + "\n")
    temporary.replace(folder / "run.json")


def missing(options: argparse.Namespace, tasks: list[str], method: str) -> Iterator[tuple[Path, str, int]]:
    """Yields folder, task and seed of each run that is not finished."""
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for task in tasks:
            folder = options.root_dir / task / method / f"seed_{seed}"
            if not (folder / "run.json").exists():
                yield folder, task, seed


def method(options: argparse.Namespace) -> str:
    return f"sb3_{options.algorithm}{'+her' if options.her else ''}"


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def shared_parser(doc: str) -> argparse.ArgumentParser:
    """Returns a parser of what `train` and `missing` need, but for `--root_dir`."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.set_defaults(her=False)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--num_env_steps", type=int, default=100_000)
    parser.add_argument("--initial_collect_steps", type=int, default=10_000)
    parser.add_argument("--evaluation_interval", type=int, default=10_000)
    parser.add_argument("--evaluation_episodes", type=int, default=10)
    return parser


def parser() -> argparse.ArgumentParser:
    parser = shared_parser(__doc__)
    parser.add_argument("--root_dir", type=Path, required=True)
    parser.add_argument("--algorithm", choices=("sac", "td3"), default="sac")
    parser.add_argument("--her", action="store_true", help="goals in hindsight, for SAC")
    parser.add_argument("--tasks", required=True, help="environment ids, separated by commas")
    return parser


def main() -> None:
    given = parser()
    options = given.parse_args()
    if options.her and options.algorithm != "sac":
        given.error("--her is for --algorithm sac")
    for folder, task, seed in missing(options, options.tasks.split(","), method(options)):
        train(folder, task, seed, options, make_model(task, seed, options), method(options))


if __name__ == "__main__":
    main()
