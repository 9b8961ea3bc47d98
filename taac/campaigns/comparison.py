"""The runs of `taac compare`: methods x tasks x seeds with their settings, each a run of `taac train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gin

from taac import configuration
from taac.campaigns.run import Run, train_command
from taac.configuration import Asked
from taac.configuration.asked import environment_of
from taac.environments import single
from taac.errors import NotTrusted, TaacError, nearest
from taac.runs import extension, files, layout

_SHOWN = 10  # differences shown in a message
NOTHING = Asked()


@gin.configurable
class Comparison:
    """Methods, tasks and seeds to compare, with settings for single tasks and methods.

    A gin file that binds these is also passed to every run. Its other bindings apply to all runs and override the settings of
    task and method.

    Args:
        methods: names of files in `gin/methods`, or .gin files.
        tasks: environment ids, names of files in `gin/tasks`, or .gin files. An environment has the settings of the task file
            that names it, or else of simple control.
        seeds, first_seed: the seeds are `first_seed`, ..., `first_seed + seeds - 1`; or `seeds` lists them.
        task_params: bindings for the runs on one task, such as `{'Pendulum-v1': ('gamma = 0.98',)}`.
        method_params: bindings for the runs of one method. They override those of the task.
    """

    def __init__(
        self,
        methods: tuple[str, ...] = (),
        tasks: tuple[str, ...] = (),
        seeds: int | Sequence[int] = 5,
        first_seed: int = 0,
        task_params: Mapping[str, tuple[str, ...]] | None = None,
        method_params: Mapping[str, tuple[str, ...]] | None = None,
    ):
        if isinstance(seeds, int):
            if seeds < 1 or first_seed < 0:
                raise TaacError(f"seeds must be 1 or more and first_seed 0 or more, got {seeds} and {first_seed}")
            seeds = range(first_seed, first_seed + seeds)
        elif first_seed:
            raise TaacError(f"seeds are listed, so first_seed has no meaning, got {first_seed}: leave it out")
        elif not seeds or min(seeds) < 0:
            raise TaacError(f"seeds must be 0 or more, and at least one, got {tuple(seeds)}")
        self.methods, self.tasks = tuple(dict.fromkeys(methods)), tuple(dict.fromkeys(tasks))
        self.seeds = tuple(dict.fromkeys(seeds))
        self.task_params, self.method_params = dict(task_params or {}), dict(method_params or {})

    def params(self, task: str, method: str) -> tuple[str, ...]:
        """Returns the bindings that apply only to a method on a task."""
        return (*self.task_params.get(task, ()), *self.method_params.get(method, ()))

    def asked(self, task: str, method: str, seed: int, every: Asked) -> Asked:
        """Returns the experiment of one run: what is asked of every run, with a task, a method, a seed and their bindings."""
        params = (*self.params(task, method), *every.gin_params)
        return every._replace(task=task, method=method, seed=seed, gin_params=params)

    def check(self, bound: Comparison, every: Asked = NOTHING) -> None:
        """Checks everything before any run begins. Reads the configuration of every method on every task.

        Args:
            bound: the comparison as bound by the gin files alone. It may have settings for tasks and methods not compared now.
            every: what is asked of every run: gin files, bindings and settings.

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
        for method in self.methods:
            for task in self.tasks:
                loaded = self.asked(task, method, self.seeds[0], every).load()
                env_name = environment_of(task)
                if env_name and loaded.bound("create_environment.engine", "gymnasium") == "gymnasium":
                    single.find_spec(env_name)
                loaded.check_macros()

    def plan(self, root_dir: str | Path, every: Asked = NOTHING, extend: bool = False) -> list[Run]:
        """Returns the runs ordered by seed, so that the finished runs can be compared at any time.

        Each run has the folder `root_dir/<task>/<method>/seed_<n>` and the log `seed_<n>.log` beside it.

        Args:
            every: what is asked of every run. It overrides the settings of task and method.
            extend: whether runs that have fewer environment steps than asked for are trained on to them.

        Raises:
            TaacError: two tasks or two methods would have the same folder.
        """
        runs = []
        taken: dict[Path, Asked] = {}
        for seed in self.seeds:
            for task in self.tasks:
                for method in self.methods:
                    asked = self.asked(task, method, seed, every)
                    folder = layout.run_folder(root_dir, str(asked.task_name), str(asked.method_name), seed)
                    if (other := taken.setdefault(folder, asked)) is not asked:
                        raise TaacError(
                            f"{other.task} with {other.method} and {task} with {method} would have the same folder, {folder}; "
                            "rename one of their files"
                        )
                    steps = _longer(folder, asked) if extend else None
                    command = train_command(folder, asked, *([] if steps is None else ["--extend"]))
                    runs.append(Run(task, str(asked.method_name), seed, folder, command, asked, steps))
        return runs


def _longer(folder: Path, asked: Asked) -> int | None:
    """The environment steps that are asked for, if the run in a folder has fewer; else None."""
    held, steps = extension.held_steps(folder), asked.load().bound(extension.TOTAL)
    return steps if held is not None and isinstance(steps, int) and held < steps else None


def parse_seeds(text: str | None) -> int | tuple[int, ...] | None:
    """Returns the number of seeds that "5" stands for, or the seeds of "0,7" or "0,"; None if nothing is given.

    Raises:
        TaacError: it is neither, or the number is 0.
    """
    if text is None:
        return None
    try:
        seeds = tuple(int(word) for word in text.removesuffix(",").split(","))
    except ValueError as error:
        raise TaacError(f"--seeds must be a number of seeds, such as 5, or a list of them, such as 0,7, got '{text}'") from error
    if "," in text:
        return seeds
    if seeds[0] < 1:
        raise TaacError(f"--seeds {text} is a number of seeds, which must be 1 or more; for the seed {text} alone, write {text},")
    return seeds[0]


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
        if found := other_settings(run):
            longer = ", or give --extend to train it on" if any(map(extension.is_longer, found)) else ""
            raise TaacError(
                f"{run.folder} holds a run of other settings than {run.name} has here; nothing was started. Give another "
                f"--root_dir, or remove that folder to train the run again{longer}. It has:\n  {shown(found)}"
            )


def other_settings(run: Run) -> list[str]:
    """Returns how the run in a folder differs from the one asked for; nothing if it has not begun."""
    file = run.folder / layout.CONFIG
    if not file.exists() and not run.finished():  # not begun, or killed while starting; `taac train` handles both
        return []
    asked = run.asked.load()
    try:
        read = configuration.ReadFile(file.absolute(), files.read_text(file, files.MAX_CONFIG_BYTES))
        found = asked.differences(configuration.read_held(read, asked.imports), ignored=("create_experiment.method",))
    except NotTrusted as error:
        return [f"{error}. The configuration that is asked for does not"]
    except (TaacError, OSError) as error:
        return [str(error)]
    except (ValueError, RecursionError, MemoryError) as error:  # nested too deeply, or a number too long
        return [f"{file} cannot be read: {type(error).__name__}: {error}"]
    return found if run.steps is None else [difference for difference in found if not extension.is_longer(difference)]


def shown(differences: Sequence[str]) -> str:
    """Returns the first differences as lines of a message, and how many more there are."""
    more = f"\n  and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return "\n  ".join(differences[:_SHOWN]) + more


def _check_known(what: str, params: Mapping[str, tuple[str, ...]], known: set[str]) -> None:
    for name in params:
        if name not in known:
            raise TaacError(
                f"Comparison.{what}_params has '{name}', which is not in Comparison.{what}s"
                f"{nearest(name, known)}; there are: {', '.join(sorted(known))}"
            )
