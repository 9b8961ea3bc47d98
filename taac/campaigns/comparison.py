"""The runs of `taac compare`: methods x tasks x seeds with their settings, each a run of `taac train`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gin

from taac import configuration
from taac.campaigns.run import Run, train_command
from taac.configuration import RunRequest
from taac.configuration.run_request import environment_of
from taac.environments import single
from taac.errors import NotTrusted, TaacError, nearest
from taac.runs import extension, files, layout

_SHOWN = 10  # differences shown in a message
NOTHING = RunRequest()


@gin.configurable
class Comparison:
    """Methods, tasks and seeds to compare, with settings for single tasks and methods.

    A gin file that binds these is also passed to every run. Its other bindings apply to all runs and override the settings of
    task and method.

    Args:
        methods: names of files in `gin/methods`, or .gin files; with files and settings to add, each after a "+", such as
            "taac+flash" or "taac+decision_price=0.01".
        tasks: environment ids, names of files in `gin/tasks`, or .gin files. An environment has the settings of the task file
            that names it, or else of `gin/tasks/default.gin`.
        seeds, first_seed: the seeds are `first_seed`, ..., `first_seed + seeds - 1`; or `seeds` lists them.
        task_params: bindings for the runs on one task, such as `{'Pendulum-v1': ('gamma = 0.98',)}`.
        method_params: bindings for the runs of one method. They override those of the task. Both are known by the name as it is
            given, and by that of the file: 'taac' is also 'gin/methods/taac.gin', but not 'taac+flash'.
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
        self.methods, self.tasks = tuple(dict.fromkeys(methods)), tuple(dict.fromkeys(tasks))
        self.seeds = list_seeds(seeds, first_seed)
        self.task_params, self.method_params = dict(task_params or {}), dict(method_params or {})

    def request(self, task: str, method: str, seed: int, common: RunRequest) -> RunRequest:
        asked = common._replace(task=task, method=method, seed=seed)
        params = (
            *(p for name in dict.fromkeys((asked.task_name, task)) for p in self.task_params.get(str(name), ())),
            *(p for name in dict.fromkeys((asked.method_name, method)) for p in self.method_params.get(str(name), ())),
        )
        return asked._replace(gin_params=(*params, *common.gin_params))

    def check(self, bound: Comparison, common: RunRequest = NOTHING) -> None:
        """Checks everything before any run begins. Reads the configuration of every method on every task.

        `bound` is the comparison as bound by the gin files alone, which may have settings for tasks and methods not compared now.

        Raises:
            TaacError: there is nothing to compare; an environment is unknown; there are settings for an unknown task or method;
                `taac train` would refuse the files; or nothing uses a macro.
        """
        for name, given, example in (("methods", self.methods, "sac,taac"), ("tasks", self.tasks, "Pendulum-v1")):
            if not given:
                raise TaacError(f"--{name} is missing, and no --gin_file binds Comparison.{name}: for example {example}")
        tasks, methods = (*bound.tasks, *self.tasks), (*bound.methods, *self.methods)
        _check_known("task", self.task_params, {*tasks, *(str(RunRequest(task).task_name) for task in tasks)})
        _check_known("method", self.method_params, {*methods, *(str(RunRequest(None, m).method_name) for m in methods)})
        for method in self.methods:
            for task in self.tasks:
                loaded = self.request(task, method, self.seeds[0], common).load()
                env_name = environment_of(task)
                if env_name and loaded.bound("create_environment.engine", "gymnasium") == "gymnasium":
                    single.find_spec(env_name)
                loaded.check_macros()

    def plan(self, root_dir: str | Path, common: RunRequest = NOTHING, extend: bool = False) -> list[Run]:
        """Returns the runs ordered by seed, so that the finished runs can be compared at any time.

        Each run has the folder `root_dir/<task>/<method>/seed_<n>` and the log `seed_<n>.log` beside it; two tasks or two methods
        must not have the same folder.

        Args:
            common: gin files, bindings and settings of every run. They override those of task and method.
            extend: whether runs that have fewer environment steps than asked for are trained on to them.
        """
        runs, taken = [], dict[Path, RunRequest]()
        for seed, task, method in ((s, t, m) for s in self.seeds for t in self.tasks for m in self.methods):
            request = self.request(task, method, seed, common)
            name = str(request.method_name)
            folder = layout.run_folder(root_dir, str(request.task_name), name, seed)
            if (other := taken.setdefault(folder, request)) is not request:
                raise TaacError(
                    f"{other.task} with {other.method} and {task} with {method} would have the same folder, {folder}; rename one "
                    "of their files"
                )
            steps = None  # those asked for, if the run that is there has fewer
            if extend and (held := extension.held_steps(folder)) is not None:
                wanted = request.load().bound(extension.TOTAL)
                steps = wanted if isinstance(wanted, int) and held < wanted else None
            command = train_command(folder, request, *([] if steps is None else ["--extend"]))
            runs.append(Run(task, name, seed, folder, command, request, steps))
        return runs


def _check_known(what: str, params: Mapping[str, tuple[str, ...]], known: set[str]) -> None:
    for name in params:
        if name not in known:
            raise TaacError(
                f"Comparison.{what}_params has '{name}', which is not in Comparison.{what}s{nearest(name, known)}; there are: "
                f"{', '.join(sorted(known))}"
            )


# Seeds ---------------------------------------------------------------------------------------------------------------


def list_seeds(seeds: int | Sequence[int], first: int, default: int = 0) -> tuple[int, ...]:
    """Returns the seeds `first`, ..., `first + seeds - 1`, or those that `seeds` lists: at least one, none below 0.

    Refuses a `first` other than the default beside listed seeds.
    """
    if not isinstance(seeds, int) and first != default:
        raise TaacError(f"seeds are listed, so first_seed has no meaning, got {first}: leave it out")
    found = tuple(range(first, first + seeds) if isinstance(seeds, int) else seeds)
    if twice := {seed for seed in found if found.count(seed) > 1}:
        raise TaacError(f"seeds must differ, got {min(twice)} {found.count(min(twice))} times")
    if not found or min(found) < 0:
        begun = f" from first_seed {first}" if isinstance(seeds, int) else ""
        raise TaacError(f"seeds must be 0 or more, and at least one, got {seeds}{begun}")
    return found


def given_seeds(seeds: int | tuple[int, ...] | None, first: int | None = None, default: int = 0) -> dict[str, Any]:
    """Returns the arguments `seeds` and `first_seed` that are given. If seeds are listed, a file's `first_seed` is void."""
    first = default if isinstance(seeds, tuple) and first is None else first
    return {name: value for name, value in (("seeds", seeds), ("first_seed", first)) if value is not None}


def parse_seeds(text: str | None) -> int | tuple[int, ...] | None:
    """Returns the number of seeds that "5" stands for, or the seeds of "0,7" or "0,"; None if nothing is given."""
    if text is None:
        return None
    try:
        seeds = tuple(int(word) for word in text.removesuffix(",").split(","))
    except ValueError as error:
        raise TaacError(f"--seeds must be a number of seeds, such as 5, or a list of them, such as 0,7, got '{text}'") from error
    if "," not in text and seeds[0] < 1:
        raise TaacError(f"--seeds {text} is a number of seeds, which must be 1 or more; for the seed {text} alone, write {text},")
    return seeds if "," in text else seeds[0]


# Folders that exist --------------------------------------------------------------------------------------------------


def check_folders(runs: Sequence[Run]) -> None:
    """Refuses existing run folders, finished or not, whose settings differ from those asked for now; tells what differs.

    Compares the bindings in `config.gin` that decide the run, not how or from where it was started. Builds nothing, and
    imports nothing that the requested configuration does not import.

    Raises:
        NotPlain: a link is where a folder or a log belongs.
    """
    for run in runs:
        for folder in (*run.folder.parents[:2], run.folder):  # those of the task, the method and the run
            files.check_folder(folder)
        files.check_file(run.log)
        if found := other_settings(run):
            shorter = any(extension.is_longer(difference, run.folder) for difference in found)
            longer = ", or give --extend to train it on" if shorter else ""
            raise TaacError(
                f"{run.folder} holds a run of other settings than {run.name} has here; nothing was started. Give another "
                f"--root_dir, or remove that folder to train the run again{longer}. It has:\n  {shown(found)}"
            )


def other_settings(run: Run) -> list[str]:
    """Returns how the run in a folder differs from the one asked for; nothing if it has not begun."""
    file = run.folder / layout.CONFIG
    if not file.exists() and not run.finished():  # not begun, or killed while starting; `taac train` handles both
        return []
    wanted = run.request.load()
    try:
        read = configuration.ReadFile(file.absolute(), files.read_text(file, files.MAX_CONFIG_BYTES))
        found = wanted.differences(configuration.read_held(read, wanted.modules), ignored=("create_experiment.method",))
    except NotTrusted as error:
        return [f"{error}. The configuration that is asked for does not"]
    except (ValueError, OSError, RecursionError, MemoryError) as error:  # such as a value that is nested too deeply
        return [str(error) if isinstance(error, (TaacError, OSError)) else f"{file} cannot be read: {error!r}"]
    return [difference for difference in found if run.steps is None or not extension.is_longer(difference, run.folder)]


def shown(differences: Sequence[str]) -> str:
    """Returns the first differences as lines of a message, and how many more there are."""
    more = f"\n  and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return "\n  ".join(differences[:_SHOWN]) + more
