"""The runs of `taac compare`: methods x tasks x seeds with their settings, each a run of `taac train`."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import gin

from taac import configuration
from taac.campaigns.run import Run
from taac.environments import single
from taac.errors import TaacError
from taac.runs import files, layout

# Patterns of environment ids, by the task file whose published settings apply. All others use those of simple control.
CATEGORIES: dict[str, str] = {
    "locomotion": r"(Hopper|Ant|Walker2d|HalfCheetah)-v\d+",
    "terrain": r"BipedalWalker(Hardcore)?-v\d+",
    "manipulation": r"Fetch(Reach|Push|Slide|PickAndPlace)-v\d+",
    "driving": r"CarRacing-v\d+|racetrack-v\d+",
    "discrete_control": r"(CartPole|LunarLander|Acrobot)-v\d+",
}
_SHOWN = 10  # differences shown in a message


@gin.configurable
class Comparison:
    """Methods, tasks and seeds to compare, with settings for single tasks and methods.

    A gin file that binds these is also passed to every run. Its other bindings apply to all runs and override the settings of
    task and method.

    Args:
        methods: names of files in `gin/methods`.
        tasks: environment ids. Each uses the settings of its `category`.
        seeds, first_seed: the seeds are `first_seed`, ..., `first_seed + seeds - 1`.
        task_params: bindings for the runs on one task, such as `{'Pendulum-v1': ('gamma = 0.98',)}`.
        method_params: bindings for the runs of one method. They override those of the task.
    """

    def __init__(
        self,
        methods: tuple[str, ...] = (),
        tasks: tuple[str, ...] = (),
        seeds: int = 5,
        first_seed: int = 0,
        task_params: Mapping[str, tuple[str, ...]] | None = None,
        method_params: Mapping[str, tuple[str, ...]] | None = None,
    ):
        if seeds < 1 or first_seed < 0:
            raise TaacError(f"seeds must be 1 or more and first_seed 0 or more, got {seeds} and {first_seed}")
        self.methods, self.tasks = tuple(dict.fromkeys(methods)), tuple(dict.fromkeys(tasks))
        self.seeds = range(first_seed, first_seed + seeds)
        self.task_params, self.method_params = dict(task_params or {}), dict(method_params or {})

    def params(self, task: str, method: str) -> tuple[str, ...]:
        """Returns the bindings that apply only to a method on a task."""
        return (*self.task_params.get(task, ()), *self.method_params.get(method, ()))

    def files(self, task: str, method: str) -> list[str]:
        return [f"gin/tasks/{category(task)}.gin", f"gin/methods/{method}.gin"]

    def check(self, bound: Comparison, gin_files: Sequence[str] = (), gin_params: Sequence[str] = ()) -> None:
        """Checks everything before any run begins. Reads the configuration of every method on every task.

        Args:
            bound: the comparison as bound by the gin files alone. It may have settings for tasks and methods not compared now.
            gin_files, gin_params: passed to every run.

        Raises:
            TaacError: there is nothing to compare; an environment is unknown; there are settings for an unknown task or method;
                `taac train` would refuse the files; or nothing uses a macro.
        """
        for name, given, example in (("methods", self.methods, "sac,taac"), ("tasks", self.tasks, "Pendulum-v1")):
            if not given:
                raise TaacError(
                    f"--{name} is missing, and no --gin_file binds Comparison.{name}: for example {example}"
                )
        _check_known("task", self.task_params, {*bound.tasks, *self.tasks})
        _check_known("method", self.method_params, {*bound.methods, *self.methods})
        for task in self.tasks:
            single.find_spec(task)
        for method in self.methods:
            for task in self.tasks:
                params = [*self.params(task, method), *gin_params]
                configuration.load([*self.files(task, method), *gin_files], params).check_macros()

    def plan(self, root_dir: str | Path, gin_files: Sequence[str] = (), gin_params: Sequence[str] = ()) -> list[Run]:
        """Returns the runs ordered by seed, so that the finished runs can be compared at any time.

        Each run has the folder `root_dir/<task>/<method>/seed_<n>` and the log `seed_<n>.log` beside it.

        Args:
            gin_files, gin_params: passed to every run. They override the settings of task and method.
        """
        runs = []
        for seed in self.seeds:
            for task in self.tasks:
                for method in self.methods:
                    folder = Path(root_dir) / re.sub(r"[^\w.-]+", "_", task) / method / f"seed_{seed}"
                    # A run that was just stopped may still hold the lock while it saves.
                    command = [
                        sys.executable,
                        "-m",
                        "taac",
                        "train",
                        "--root_dir",
                        str(folder),
                        "--lock_timeout",
                        "120",
                    ]
                    for file in (*self.files(task, method), *gin_files):
                        command += ["--gin_file", file]
                    own = (f"create_environment.env_name = '{task}'", f"create_experiment.seed = {seed}")
                    for param in (*self.params(task, method), *gin_params, *own):
                        command += ["--gin_param", param]
                    runs.append(Run(task, method, seed, folder, tuple(command)))
        return runs


def check_folders(runs: Sequence[Run]) -> None:
    """Refuses existing run folders, finished or not, whose settings differ from those asked for now.

    Compares the bindings in `config.gin` that decide the run, not how or from where it was started. Builds nothing, and
    imports nothing that the requested configuration does not import.

    Raises:
        TaacError: reports the first such folder and what differs.
        NotPlain: a link is where a folder or a log belongs.
    """
    for run in runs:
        for folder in (*run.folder.parents[:2], run.folder):  # those of the task, the method and the run
            files.check_folder(folder)
        files.check_file(run.log)
        file = run.folder / layout.CONFIG
        if not file.exists() and not run.finished():  # not begun, or killed while starting; `taac train` handles both
            continue
        asked = configuration.load(_after("--gin_file", run.command), _after("--gin_param", run.command))
        try:
            held = configuration.load([str(file.absolute())], imports=asked.imports)
            found = asked.differences(held, ignored=("create_experiment.method",))
        except TaacError as error:
            found = [str(error)]
        except (ValueError, RecursionError, MemoryError) as error:  # nested too deeply, or a number too long
            found = [f"{file} cannot be read: {type(error).__name__}: {error}"]
        if found:
            more = f"\n  and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise TaacError(
                f"{run.folder} holds a run of other settings than {run.name} has here; nothing was started. Give another "
                "--root_dir, or remove that folder to train the run again. It has:\n  "
                + "\n  ".join(found[:_SHOWN]) + more
            )  # fmt: skip


def _after(flag: str, command: Sequence[str]) -> list[str]:
    return [word for before, word in itertools.pairwise(command) if before == flag]


def _check_known(what: str, params: Mapping[str, tuple[str, ...]], known: set[str]) -> None:
    for name in params:
        if name not in known:
            raise TaacError(
                f"Comparison.{what}_params has '{name}', which is not in Comparison.{what}s"
                f"{configuration.nearest(name, known)}; there are: {', '.join(sorted(known))}"
            )


def category(env_name: str) -> str:
    """Returns the task file whose settings apply to an environment."""
    name = env_name.rpartition(":")[2]
    return next((c for c, pattern in CATEGORIES.items() if re.fullmatch(pattern, name)), "simple_control")
