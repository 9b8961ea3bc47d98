"""What `taac compare` compares: methods x tasks x seeds, with their settings, as a list of runs of `taac train`."""

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

# Whose published settings an environment has: patterns of ids. Anything else gets those of simple control.
CATEGORIES: dict[str, str] = {
    "locomotion": r"(Hopper|Ant|Walker2d|HalfCheetah)-v\d+",
    "terrain": r"BipedalWalker(Hardcore)?-v\d+",
    "manipulation": r"Fetch(Reach|Push|Slide|PickAndPlace)-v\d+",
    "driving": r"CarRacing-v\d+|racetrack-v\d+",
    "discrete_control": r"(CartPole|LunarLander|Acrobot)-v\d+",
}
_SHOWN = 10  # differences that a message tells


@gin.configurable
class Comparison:
    """Methods, tasks and seeds of a comparison, and the settings of single tasks and methods.

    A gin file that binds these is handed to every run, too: what else it binds holds for all runs, over the settings of
    task and method.

    Args:
        methods: names of files in `gin/methods`.
        tasks: environment ids; each gets the settings of its `category`.
        seeds, first_seed: the seeds are `first_seed`, `first_seed + 1`, ...: so many of them.
        task_params: bindings for the runs on one task: `{'Pendulum-v1': ('gamma = 0.98',)}`.
        method_params: bindings for the runs of one method; they win over those of the task.
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
        """Bindings of the runs of a method on a task alone."""
        return (*self.task_params.get(task, ()), *self.method_params.get(method, ()))

    def files(self, task: str, method: str) -> list[str]:
        return [f"gin/tasks/{category(task)}.gin", f"gin/methods/{method}.gin"]

    def check(self, bound: Comparison, gin_files: Sequence[str] = (), gin_params: Sequence[str] = ()) -> None:
        """Finds mistakes before any run begins; reads the configuration of every method on every task.

        Args:
            bound: what the gin files alone make of it; they may have settings for more than is compared now.
            gin_files, gin_params: of every run.

        Raises:
            TaacError: nothing to compare; an unknown environment; settings of a task or method that there is not; what
                `taac train` would refuse on reading its files; a macro that nothing uses.
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
        """The runs, seed by seed, so that what is there at any moment can be compared.

        Each goes to `root_dir/<task>/<method>/seed_<n>`; what it prints, to `seed_<n>.log` beside that.

        Args:
            gin_files, gin_params: of every run, over the settings of task and method.
        """
        runs = []
        for seed in self.seeds:
            for task in self.tasks:
                for method in self.methods:
                    folder = Path(root_dir) / re.sub(r"[^\w.-]+", "_", task) / method / f"seed_{seed}"
                    # A run that was stopped may still be saving what it did.
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
    """Refuses folders of runs, finished or not, that were started with other settings than is asked for now.

    What is compared is what decides the run, by its config.gin: not how or from where it was started. Nothing is built, and
    nothing is imported that the configuration asked for does not import.

    Raises:
        TaacError: names the first such folder, and what differs there; or a link where a folder or a log belongs.
    """
    for run in runs:
        for folder in (*run.folder.parents[:2], run.folder):  # of the task, of the method, of the run
            files.check_folder(folder)
        files.check_file(run.log)
        file = run.folder / layout.CONFIG
        if not file.exists() and not run.finished():  # not begun, or killed in the making: `taac train` sees to that
            continue
        asked = configuration.load(_after("--gin_file", run.command), _after("--gin_param", run.command))
        try:
            found = asked.differences(configuration.load([str(file.absolute())], imports=asked.imports))
        except TaacError as error:
            found = [str(error)]
        except (ValueError, RecursionError, MemoryError) as error:  # nested too deep; a number of too many digits
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
    """The task file whose settings an environment has."""
    name = env_name.rpartition(":")[2]
    return next((c for c, pattern in CATEGORIES.items() if re.fullmatch(pattern, name)), "simple_control")
