"""An experiment as the command line asks for it: a task, a method, and what differs from their files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from taac.configuration import naming, reading, shipped
from taac.configuration.config import Config
from taac.configuration.macros import OF_COMPARE
from taac.configuration.plain_words import Setting
from taac.errors import TaacError, nearest

ENV_NAME, SEED, ALGORITHM = "create_environment.env_name", "create_experiment.seed", "create_agent.algorithm_ctor"
EXAMPLE = "--task Pendulum-v1 --method taac"


class Asked(NamedTuple):
    """The flags that describe one experiment. Each stands for gin files or for a binding.

    The files are read in the order task, method, `gin_files`. Then come `gin_params`, and the other flags last.
    """

    task: str | None = None  # an environment id, `module:Id`, `module:Class`, a task file's name, or a .gin file
    method: str | None = None  # a method file's name, or a .gin file
    gin_files: tuple[str, ...] = ()
    gin_params: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()  # NAME=VALUE
    num_env_steps: str | None = None
    seed: int | None = None

    def load(self) -> Config:
        """Reads and checks the configuration.

        Raises:
            TaacError: there is no such task or method, one of them is missing, or see `configuration.load`.
        """
        files = self.files()
        named = method_file(self.method) if self.method else None
        of_method = reading.places(named) if named and self.gin_files else None
        config = naming.load(files, self.gin_params, self._settings(), named)
        bound = {b.parameter: b for b in config.bindings.values()}
        for b in bound.values():
            if b.selector.startswith(OF_COMPARE) and b.where.startswith("--"):
                raise TaacError(
                    f"{b}: no run reads this. It is for `taac compare` or `taac sweep`: use the command's own flag, such as "
                    "--seeds, or bind it in a --gin_file"
                )
        if ENV_NAME not in bound or ALGORITHM not in bound:
            what, flag, folder = ("task", "--task Pendulum-v1", "tasks") if ENV_NAME not in bound else (
                "method", "--method taac", "methods")  # fmt: skip
            of_compare = any(b.selector.startswith(OF_COMPARE) for b in config.bindings.values())
            raise TaacError(
                f"there is no {what}: give {flag}, or a --gin_file of gin/{folder} (`taac list` names them)"
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

        Raises:
            TaacError: there is no such task or method file, or nothing to begin with.
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
        own += [method_file(self.method)] if self.method else []
        return [*own, *self.gin_files]

    def _settings(self) -> list[Setting]:
        found = [Setting("--set", text) for text in self.settings]
        if self.num_env_steps is not None:
            found.append(Setting("--num_env_steps", f"num_env_steps={self.num_env_steps}"))
        if self.task and (env_name := environment_of(self.task)):
            found.append(Setting("--task", f"{ENV_NAME}={env_name!r}"))
        if self.seed is not None:
            found.append(Setting("--seed", f"{SEED}={self.seed}"))
        return found

    def words(self) -> list[str]:
        """Returns the flags as words of a command line."""
        found: list[str] = []
        for flag, value in (("--task", self.task), ("--method", self.method)):
            found += [flag, value] if value else []
        for flag, several in (("--gin_file", self.gin_files), ("--gin_param", self.gin_params), ("--set", self.settings)):
            found += [word for value in several for word in (flag, value)]
        found += [] if self.num_env_steps is None else ["--num_env_steps", self.num_env_steps]
        return [*found, *([] if self.seed is None else ["--seed", str(self.seed)])]

    def describe(self, config: Config) -> list[str]:
        """Returns what each short flag stands for, one line for each file and binding."""
        lines = [f"--task {self.task}: {task_file(self.task)}{note(self.task)}"] if self.task else []
        lines += [f"--method {self.method}: {method_file(self.method)}"] if self.method else []
        flags = ("--task", "--set", "--num_env_steps", "--seed")
        return lines + [str(b) for b in config.bindings.values() if b.where in flags]

    @property
    def method_name(self) -> str | None:
        """The name of the method file; None without --method."""
        return Path(self.method).stem if self.method and self.method.endswith(".gin") else self.method

    @property
    def task_name(self) -> str | None:
        """The environment id, or the name of the task file."""
        return Path(self.task).stem if self.task and self.task.endswith(".gin") else self.task


def task_file(task: str) -> str:
    """Returns the gin file of a task.

    Raises:
        TaacError: it is a .gin file that does not exist.
    """
    if task.endswith(".gin"):
        return _own_file("--task", task)
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


def method_file(method: str) -> str:
    """Returns the gin file of a method.

    Raises:
        TaacError: it does not exist.
    """
    if method.endswith(".gin"):
        return _own_file("--method", method)
    known = list(shipped.files("methods"))
    name = f"gin/methods/{method}.gin"  # which the working directory may also have
    if method not in known and not Path(name).is_file():
        if "," in method:
            raise TaacError(f"--method {method}: a run has one method; compare several with `taac compare --methods {method}`")
        swapped = "; to train on that environment, give it as --task." if re.search(r"-v\d+$", method) else ""
        raise TaacError(
            f"--method {method}: there is no method '{method}'{swapped or nearest(method.lower(), known) or '.'} "
            f"Give a .gin file of your own, or one of {', '.join(known)}"
        )
    return name


def _own_file(flag: str, name: str) -> str:
    reading.find_file(name, flag)
    return name
