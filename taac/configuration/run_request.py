"""An experiment as the command line asks for it: a task, a method, and what differs from their files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from taac.configuration import gin_state, reading, shipped
from taac.configuration.binding import ALGORITHM, OF_COMPARE, Binding
from taac.configuration.config import Config
from taac.configuration.plain_words import Setting
from taac.errors import TaacError, nearest

ENV_NAME, SEED = "create_environment.env_name", "create_experiment.seed"
EXAMPLE = "--task Pendulum-v1 --method taac"


class RunRequest(NamedTuple):
    """The flags that describe one experiment. Each stands for gin files or for a binding.

    The files are read in the order task, method, `gin_files`. Then come `gin_params`, and the other flags last.
    """

    task: str | None = None  # an environment id, `module:Id`, `module:Class`, a task file's name, or a .gin file
    method: str | None = None  # a method file's name, or a .gin file; then what is added, files or NAME=VALUE, each after a "+"
    gin_files: tuple[str, ...] = ()
    gin_params: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()  # NAME=VALUE
    num_env_steps: str | None = None
    seed: int | None = None

    def load(self) -> Config:
        """Reads and checks the configuration.

        Raises TaacError if there is no such task or method, if one is missing, or as `configuration.load`.
        """
        files = self.files()
        of_method = reading.places(method_files(self.method)[0]) if self.method and self.gin_files else None
        config = load_named(files, self.gin_params, self._settings(), self.method_name)
        of_compare = [b for b in config.bindings.values() if b.selector.startswith(OF_COMPARE)]
        for b in of_compare:
            if b.where.startswith("--"):
                raise TaacError(
                    f"{b}: no run reads this. It is for `taac compare` or `taac sweep`: use the command's own flag, such as "
                    "--seeds, or bind it in a --gin_file"
                )
        bound = {b.parameter: b for b in config.bindings.values()}
        for name, what, example in ((ENV_NAME, "task", "Pendulum-v1"), (ALGORITHM, "method", "taac")):
            if name not in bound:
                raise TaacError(
                    f"there is no {what}: give --{what} {example}, or a --gin_file of gin/{what}s (`taac list` names them)"
                    + ("; what is given is a comparison, for `taac compare`" if of_compare else "")
                )
        algorithm = bound[ALGORITHM]
        if of_method is not None and algorithm.shipped and algorithm.where not in of_method:
            raise TaacError(
                f"--method {self.method} is one method, and a --gin_file includes another, which binds {ALGORITHM} in "
                f"{algorithm.where}; leave out one of them"
            )
        return config

    def files(self) -> list[str]:
        """Returns the names of all gin files in the order in which they are read.

        Raises TaacError if there is no such task or method file, or nothing to begin with.
        """
        if not (self.task or self.method or self.gin_files):
            raise TaacError(f"--task and --method are missing: for example {EXAMPLE} (`taac list` names them), or --gin_file")
        if self.task and not (self.method or self.gin_files):
            raise TaacError(
                f"--method is missing beside --task {self.task}: one of {', '.join(shipped.files('methods'))}, or a .gin file "
                "of your own"
            )
        if self.method and not (self.task or self.gin_files):
            raise TaacError(f"--task is missing beside --method {self.method}: an environment id, such as Pendulum-v1")
        own = [task_file(self.task)] if self.task else []
        own += method_files(self.method) if self.method else []
        return [*own, *self.gin_files]

    def _settings(self) -> list[Setting]:
        found = [Setting("--method", text) for text in _parts(self.method or "")[1:] if "=" in text]
        found += [Setting("--set", text) for text in self.settings]
        if self.num_env_steps is not None:
            found.append(Setting("--num_env_steps", f"num_env_steps={self.num_env_steps}"))
        if self.task and (env_name := environment_of(self.task)):
            found.append(Setting("--task", f"{ENV_NAME}={env_name!r}"))
        if self.seed is not None:
            found.append(Setting("--seed", f"{SEED}={self.seed}"))
        return found

    def words(self) -> list[str]:
        """Returns the flags as words of a command line."""
        flags = (
            ("--task", self.task), ("--method", self.method), ("--gin_file", self.gin_files), ("--gin_param", self.gin_params),
            ("--set", self.settings), ("--num_env_steps", self.num_env_steps), ("--seed", self.seed),
        )  # fmt: skip
        several = [(flag, value if isinstance(value, tuple) else (value,)) for flag, value in flags if value is not None]
        return [word for flag, values in several for value in values for word in (flag, str(value))]

    def describe(self, config: Config) -> list[str]:
        """Returns what each short flag stands for, one line for each file and binding."""
        lines = [f"--task {self.task}: {task_file(self.task)}{note(self.task)}"] if self.task else []
        lines += [f"--method {self.method}: {', '.join(method_files(self.method))}"] if self.method else []
        flags = ("--task", "--method", "--set", "--num_env_steps", "--seed")
        return lines + [str(b) for b in config.bindings.values() if b.where in flags]

    @property
    def method_name(self) -> str | None:
        """The name of the method file, with what is added to it: "taac+flash+decision_price=0.01"; None without --method."""
        if self.method is None:
            return None
        method, *added = _parts(self.method)
        return "+".join([str(_stem(method)), *added])

    @property
    def task_name(self) -> str | None:
        """The environment id, or the name of the task file."""
        return _stem(self.task)


def _stem(name: str | None) -> str | None:
    return Path(name).stem if name and name.endswith(".gin") else name


# The name of the method ----------------------------------------------------------------------------------------------

_METHOD = ("", "taac.training.experiment.create_experiment", "method")


def load_named(
    gin_files: Sequence[str], gin_params: Sequence[str] = (), settings: Sequence[Setting] = (), name: str | None = None
) -> Config:
    """Reads a configuration and binds `create_experiment.method`, so that `config.gin` keeps the name.

    A binding in one of the given files, parameters or settings decides. Without one it is `name`, by default that of the last
    file in a folder `methods`, even if that includes a file that binds another: `methods/mine.gin` that includes
    `gin/methods/taac.gin` is "mine". A name with additions, "taac+flash", is kept unless parameters or settings bind another.
    """
    loaded = reading.load(gin_files, gin_params, settings=settings)
    bound = loaded.bindings.get(_METHOD)
    name = name or next((Path(file).stem for file in reversed(gin_files) if Path(file).parent.name == "methods"), None)
    if name is None or (bound is not None and (_is_given(bound, [] if "+" in name else gin_files) or bound.value == name)):
        return loaded
    loaded.bindings[_METHOD] = Binding(*_METHOD, name, "--method")
    gin_state.override({"create_experiment.method": name})
    return loaded


def _is_given(binding: Binding, gin_files: Sequence[str]) -> bool:
    """Returns whether a binding is in a file that was named on the command line, or on the command line itself."""
    file = Path(binding.where.rpartition(":")[0])
    return binding.where.startswith("--") or file.resolve() in {reading.find_file(name).resolve() for name in gin_files}


# Files of tasks and methods ------------------------------------------------------------------------------------------


def task_file(task: str) -> str:
    """Returns the gin file of a task. Raises TaacError if it is a .gin file that does not exist."""
    if task.endswith(".gin"):
        reading.find_file(task, "--task")
        return task
    if "," in task:
        raise TaacError(f"--task {task}: a run has one task; compare several with `taac compare --tasks {task}`")
    name = task if task in shipped.files("tasks") else shipped.task_of(task) or shipped.DEFAULT_TASK
    return f"gin/tasks/{name}.gin"


def environment_of(task: str) -> str | None:
    """Returns the environment id that a task is; None if it is a file, which binds one."""
    return None if task.endswith(".gin") or task in shipped.files("tasks") else task


def note(task: str) -> str:
    """Returns, in parentheses, that no task file names a task and which settings it then has; "" if one does."""
    if environment_of(task) is None or shipped.task_of(task):
        return ""
    return f" (no task file names {task}, so it has the settings of {shipped.DEFAULT_TASK})"


def _parts(method: str) -> list[str]:
    """Returns what stands before and after each "+" of a method's name. One inside of a value, such as 1e+2, ends nothing."""
    if method.endswith(".gin") and os.path.isfile(method):  # of a name with a plus
        return [method]
    return re.split(r"\+(?=[A-Za-z_][\w.]*(?:[+=]|$)|[A-Za-z_][\w./]*=)", method)


def method_files(method: str) -> list[str]:
    """Returns the gin files of a method: its own, then those added to it. Raises TaacError if one does not exist."""
    method, *parts = _parts(method)
    added = [part for part in parts if "=" not in part]  # the others are settings
    known = shipped.additions()
    for name in added:
        if name not in known:
            raise TaacError(
                f"--method {'+'.join([method, *parts])}: there is no file '{name}' to add{nearest(name.lower(), known) or '.'} "
                f"There are: {', '.join(known)}; a file of your own is given by --gin_file"
            )
    folders = ["gin/backbones" if name in shipped.files("backbones") else "gin" for name in added]
    return [_method_file(method), *(f"{folder}/{name}.gin" for folder, name in zip(folders, added))]


def _method_file(method: str) -> str:
    if method.endswith(".gin"):
        reading.find_file(method, "--method")
        return method
    known = list(shipped.files("methods"))
    name = f"gin/methods/{method}.gin"  # which the working directory may also have
    if method not in known and not Path(name).is_file():
        if "," in method:
            raise TaacError(f"--method {method}: a run has one method; compare several with `taac compare --methods {method}`")
        swapped = "; to train on that environment, give it as --task." if re.search(r"-v\d+$", method) else ""
        parts = shipped.additions()
        cuts = [(method[: m.start()], method[m.end() :]) for m in re.finditer("_", method)]
        joined = next((f"; did you mean '{one}+{part}'?" for one, part in cuts if one in known and part in parts), "")
        raise TaacError(
            f"--method {method}: there is no method '{method}'{swapped or joined or nearest(method.lower(), known) or '.'} "
            f"Give a .gin file of your own, or one of {', '.join(known)}"
        )
    return name

