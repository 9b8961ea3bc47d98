"""`taac.train` trains a run, or resumes the one in its folder. `taac.check` tries an environment, or an experiment untrained."""

from __future__ import annotations

import dataclasses
import functools
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tqdm import tqdm

from taac import configuration
from taac.acting.random_numbers import random_numbers_kept
from taac.api.environments import Environment, named, unknown_elsewhere
from taac.api.run import Run
from taac.api.session import in_python, session
from taac.api.settings import make_request
from taac.checking.description import describe
from taac.environments.examine import examine
from taac.errors import Interrupted, TaacError
from taac.networks import ObservationEncoder
from taac.runs.run_folder import RunFolder
from taac.runs.terminal import warn_user
from taac.training import experiment
from taac.training.conduct import Bar, conduct, default_folder
from taac.training.interruption import Interruption
from taac.training.progress_bar import ProgressBar
from taac.training.trainer import Trainer

Callback: TypeAlias = Callable[[Trainer], object]
Callbacks: TypeAlias = "Callback | Sequence[Callback] | None"
POINTS = {"on_iteration": "after_iteration", "on_evaluation": "after_evaluation", "on_checkpoint": "after_checkpoint"}


def train(
    environment: Environment | None = None,
    method: str | None = None,
    *,
    num_env_steps: float | None = None,
    seed: int | None = None,
    root_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    gin_files: Sequence[str | Path] | str | Path = (),
    on_iteration: Callbacks = None,
    on_evaluation: Callbacks = None,
    on_checkpoint: Callbacks = None,
    extend: bool = False,
    progress: bool = True,
    lock_timeout: float = 0.0,
    **named_settings: Any,
) -> Run:
    """Trains a method on an environment, or resumes the run that is in the folder. Does what `taac train` does.

        run = taac.train("Pendulum-v1", method="taac", num_env_steps=20_000, learning_rate=1e-3)

    Called again with the same arguments, it resumes an unfinished run, and returns a finished one at once. Ctrl-C ends it after
    the iteration, with a checkpoint: a notebook then gets the run, and a script a KeyboardInterrupt.

    Args:
        environment: a Gymnasium id, `module:Class`, the name of a task file, a .gin file; or a class, a function that returns
            an environment, or an environment, of which copies are made. Only the program can make what it or a notebook
            defines itself: such a run is resumed and loaded by giving the environment again.
        method: a name of `taac list`, or a .gin file; with parts and settings: "taac+her", "taac+decision_price=0.01".
        num_env_steps: environment steps of the whole run.
        seed: of everything random; 0 by default.
        root_dir: the folder of the run; by default `runs/<environment>/<method>/seed_<n>`.
        settings: settings whose names have dots, such as `{"Learner.epsilon": 1e-8}`.
        named_settings: settings by name, such as `learning_rate=1e-3` or `hidden_layers=(128, 128)`; the names of `--set`.
            Values are numbers, text, lists and the like. Text that begins with `@` refers to a constructor, as in a gin file.
        gin_files: gin files to read after those of environment and method.
        on_iteration, on_evaluation, on_checkpoint: functions that are called with the trainer (`trainer.env_steps`,
            `trainer.evaluation`, `trainer.attributes`...). The run ends early when one returns True. A `StopWhen` is one. If it
            has `state_dict` and `load_state_dict`, checkpoints keep its state. config.gin does not hold callbacks, so give them
            again to resume.
        extend: trains the run in `root_dir` on to a larger `num_env_steps`.
        progress: shows a progress bar.
        lock_timeout: seconds to wait for another process that trains in the folder.

    Raises TaacError if what is given is wrong or training failed, and Interrupted if the process was asked to end.
    """
    place = named(environment)
    with session(place):
        request = make_request(place, method, num_env_steps, seed, gin_files, settings, named_settings)
        request.files()
        if root_dir is None and not (request.task and request.method):
            raise TaacError("root_dir is missing: without it, a run has a folder only if environment and method are given")
        loaded = request.load()
        if why := unknown_elsewhere(place.name, loaded.imports):
            warn_user(f"taac play and other commands cannot make the environment of this run: {why}")
        trainer = configuration.build(experiment.create_experiment)
        try:
            loaded.check_used()
            for note in loaded.without_effect():
                warn_user(in_python(note))
            folder = RunFolder(default_folder(request, loaded) if root_dir is None else root_dir)
            callbacks = {"on_iteration": on_iteration, "on_evaluation": on_evaluation, "on_checkpoint": on_checkpoint}
            about = {"command": f"taac.train: {' '.join(request.words())}", "callbacks": _add(trainer, callbacks)}
            interruption, bar = Interruption(at_once=_interrupt), _bar(progress)
            try:
                done = conduct(trainer, loaded, folder, bar, extend, lock_timeout, _tell, lambda: interruption, about)
            except Interrupted as stopped:
                _tell_interruption(stopped, interruption, folder)
                done = True
        finally:
            trainer.close()
        if not done:
            same = "" if place.make is None else f", if {place.name}, of which only the name is kept, is the same environment"
            warn_user(f"{folder.path} already holds this run, finished: it was not trained again{same}")
    return Run(folder.path, environment=None if place.make is None else environment, trust=done)


def _tell(text: str) -> None:
    """Passes on notes, and nothing else that the command prints."""
    if text.startswith("note: "):
        warn_user(in_python(text))


# Callbacks -----------------------------------------------------------------------------------------------------------


def _add(trainer: Trainer, callbacks: Mapping[str, Callbacks]) -> list[str] | None:
    """Adds callbacks to the hooks of a trainer. Returns their names, for run.json; None if there are none."""
    names = []
    for keyword, given in callbacks.items():
        for function in given if isinstance(given, (list, tuple)) else () if given is None else (given,):
            if not callable(function) or isinstance(function, type):
                raise TaacError(f"{keyword} must be a function of the trainer, or several of them, got {function!r:.200}")
            if (point := getattr(function, "point", POINTS[keyword])) != POINTS[keyword]:
                meant = next((f": give it as {other}" for other, its in POINTS.items() if its == point), "")
                raise TaacError(f"{keyword}: {function!r:.200} is a hook for '{point}'{meant}")
            if hasattr(function, "check"):
                function.check(trainer)
            trainer.hooks.add(POINTS[keyword], _Ending(keyword, function))
            names.append(f"{keyword}: {_name(function)}")
    return names or None


def _name(function: Callback) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))[:100]


class _Ending:
    """A callback as a hook, which ends the run if the callback returns True."""

    def __init__(self, keyword: str, function: Callback):
        self._keyword, self._function = keyword, function

    def __call__(self, trainer: Trainer) -> None:
        with random_numbers_kept(trainer.agent.device):  # the run is the same with it and without
            answer = self._function(trainer)
        if isinstance(answer, (bool, np.bool_)) and answer:
            trainer.stop_early(f"{self._keyword}: {_name(self._function)} returned True")

    def __getattr__(self, name: str) -> Any:
        if name not in ("state_dict", "load_state_dict"):  # which hooks may have
            raise AttributeError(name)
        return getattr(self._function, name)


# Progress and interruption -------------------------------------------------------------------------------------------


def _bar(shown: bool) -> Bar:
    kind, interval = tqdm, None
    if "ipykernel" in sys.modules and hasattr(sys, "ps1"):  # the frontend shows what the process writes, which is no terminal
        from tqdm import notebook  # its bar needs ipywidgets

        kind, interval = (notebook.tqdm if notebook.IProgress is not None else tqdm), 0.5
    return functools.partial(ProgressBar, kind=kind if shown else functools.partial(tqdm, disable=True), interval=interval)


def _interactive() -> bool:
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _interrupt() -> None:
    raise KeyboardInterrupt("stopped at once; the same call resumes from the last checkpoint")


def _tell_interruption(stopped: Interrupted, interruption: Interruption, folder: RunFolder) -> None:
    """Goes on after Ctrl-C in a notebook, and ends a script as Ctrl-C does. Other signals ask the process to end."""
    message = f"{in_python(str(stopped)).replace('the same command', 'the same call')}, in {folder.path}"
    if interruption.signal != signal.SIGINT:
        raise Interrupted(message) from stopped
    if not _interactive():
        raise KeyboardInterrupt(message) from stopped
    warn_user(message)


# Checking ----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(repr=False, eq=False)
class Checked:
    """What was found. `print` shows it."""

    lines: list[str]  # all of it
    faults: list[str]  # what must be mended before training, each with advice

    def __repr__(self) -> str:
        return "\n".join(self.lines)


def check(
    environment: Environment | None = None,
    method: str | None = None,
    *,
    num_env_steps: float | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    gin_files: Sequence[str | Path] | str | Path = (),
    **named_settings: Any,
) -> Checked:
    """Tries an environment; or, with a method, builds an experiment without training, and describes it.

        taac.check(MyEnv)                          # what is wrong with it, and how to mend that
        taac.check("Pendulum-v1", "taac")          # every value with its origin, memory, what looks wrong

    Arguments are as in `train`. Raises TaacError if the environment cannot be created, or `train` would refuse the experiment.
    """
    alone = method is None and not gin_files
    place = named(environment, as_object=alone)  # with its arguments
    with session(place):
        if alone:
            if place.name is None:
                raise TaacError("nothing to check: give an environment, or an environment and a method")
            if settings or named_settings or num_env_steps is not None or seed is not None:
                raise TaacError("settings need an experiment: give a method, too. Without both, the environment is tried alone")
            findings = examine(place.name, ObservationEncoder)
            found = [(f.ok, in_python(f"{f.about}: {f.advice}" if f.advice else f.about)) for f in findings]
            return Checked([f"{'ok ' if ok else 'FIX'} {text}" for ok, text in found], [text for ok, text in found if not ok])
        request = make_request(place, method, num_env_steps, seed, gin_files, settings, named_settings)
        request.files()
        return Checked([in_python(line) for line in describe(request)], [])
