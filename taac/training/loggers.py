"""Also sends a run's scalar summaries to a service, with the tags and steps of TensorBoard.

Bind a logger, such as `Reporter.loggers = @Wandb()`. Training does not depend on loggers: one that raises is left out for the
rest of the process, with one warning, and none changes a random number.
"""

from __future__ import annotations

import importlib.util
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gin
import torch

from taac.acting.random_numbers import random_numbers_kept
from taac.analysis.readers.run_records import value_of
from taac.errors import TaacError
from taac.runs import durable, files, layout
from taac.runs.terminal import warn_user

IDS = "loggers.json"  # in the run folder: the id of the run at each service, by the logger's name


class LoggedRun(NamedTuple):
    """What a logger is told of a run when it begins or resumes."""

    folder: Path
    name: str  # method, environment and seed
    about: Mapping[str, Any]  # run.json
    settings: Mapping[str, Any]  # of config.gin, with macros resolved; as text where they are not literals
    env_steps: int
    id: str | None  # that `begin` returned when the run began; None for a new run


class Logger(Protocol):
    """Receives the scalars of a run. Its errors are caught."""

    name: str  # of the service

    def begin(self, run: LoggedRun) -> str:
        """Begins to log a run, or goes on with it. Returns the id of the run at the service, of letters, digits, _ and -."""

    def scalars(self, values: Mapping[str, float], env_steps: int) -> None:
        """Logs values by tag."""

    def end(self, finished: bool) -> None:
        """Ends logging: the run has finished, or else it was stopped or failed and may resume."""


class Loggers:
    """The loggers of a run. One that raises an exception is left out from then on, with one warning."""

    def __init__(self, given: Sequence[Logger] | Logger = ()):
        self._given = tuple(given) if isinstance(given, Sequence) else (given,)
        for logger in self._given:
            if isinstance(logger, type) or not all(hasattr(logger, name) for name in ("name", "begin", "scalars", "end")):
                raise TaacError(f"Reporter.loggers must be loggers, got {logger!r}; in a gin file: Reporter.loggers = @Wandb()")
        if len({logger.name for logger in self._given}) < len(self._given):
            raise TaacError("Reporter.loggers has two loggers of one name; the second run would overwrite the first one's id")
        self._active: list[Logger] = []

    def begin(self, folder: Path, env_steps: int) -> None:
        self._active = list(self._given)

        def begin(logger: Logger) -> None:
            about, ids = layout.read_run(folder), _read_ids(folder)
            name = f"{about.get('method')}/{about.get('environment')}/seed_{about.get('seed')}"
            values = {name: (value_of(text), text) for name, text in layout.read_bindings(folder).items()}
            settings = {name: value if isinstance(value, (int, float, str)) else text for name, (value, text) in values.items()}
            found = logger.begin(LoggedRun(folder, name, about, settings, env_steps, ids.pop(logger.name, None)))
            if _is_id(found):
                ids[logger.name] = found
            else:
                warn_user(
                    f"warning: {logger.name} gave the run the id {found!r:.200}, which is not kept for when it is resumed: "
                    "expected 1 to 64 letters, digits, _ and -"
                )
            durable.write(folder / IDS, (json.dumps(ids) + "\n").encode())

        self._each(begin)

    def scalars(self, values: Mapping[str, float], env_steps: int) -> None:
        self._each(lambda logger: logger.scalars(values, env_steps))

    def end(self, finished: bool) -> None:
        self._each(lambda logger: logger.end(finished))
        self._active = []

    def _each(self, call: Callable[[Logger], object]) -> None:
        for logger in list(self._active):
            try:
                with random_numbers_kept(torch.device("cpu")):
                    call(logger)
            except Exception as error:
                self._active.remove(logger)
                warn_user(f"warning: {logger.name} is left out from here on, training goes on: {type(error).__name__}: {error}")


@gin.configurable
class Wandb:
    """Sends what TensorBoard gets to Weights & Biases, by `wandb.init(sync_tensorboard=True)`.

    By default the W&B run is named after method, environment and seed, and its group after method and environment. A resumed run
    goes on in the same W&B run.

    Args:
        init: arguments of `wandb.init`, by default with the project "taac", such as `{'project': 'mine', 'mode': 'offline'}`.
    """

    name = "wandb"

    def __init__(self, init: Mapping[str, Any] | None = None):
        if importlib.util.find_spec("wandb") is None:
            raise TaacError("Reporter.loggers = @Wandb() needs the package wandb: pip install wandb, or leave it out")
        self._init = {"project": "taac", **(init or {})}

    def begin(self, run: LoggedRun) -> str:
        import wandb

        given: dict[str, Any] = {
            "id": run.id or secrets.token_hex(8), "name": run.name, "group": run.name.rpartition("/")[0], "resume": "allow",
            "config": dict(run.settings), **self._init,
        }  # fmt: skip
        self._run = wandb.init(sync_tensorboard=True, **given)
        return given["id"]

    def scalars(self, values: Mapping[str, float], env_steps: int) -> None:
        pass  # W&B reads the event files

    def end(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


def _read_ids(folder: Path) -> dict[str, str]:
    """Returns the ids of an earlier process of the run. What is no id is ignored, so that the run begins anew at the service."""
    try:
        found = files.read_json(folder / IDS, files.MAX_RUN_BYTES)
    except (OSError, files.Damaged):
        return {}
    ids = found.items() if isinstance(found, dict) else ()
    return {name: text for name, text in ids if _is_id(text)}


def _is_id(value: Any) -> bool:
    """Returns whether a value can be an id. Services make file names of it, and it may be read from a stranger's folder."""
    return isinstance(value, str) and re.fullmatch(r"[0-9A-Za-z_-]{1,64}", value) is not None
