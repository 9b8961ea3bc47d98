"""Sends the scalar summaries of a run to Weights & Biases or MLflow as well: the tags and steps of TensorBoard.

Bind one of them: `Trainer.loggers = @WandbLogger()`. Training does not depend on them: one that raises is left out for the
rest of the process, with one warning, and none changes a random number.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import gin
import torch

from taac.acting.random_numbers import random_numbers_kept
from taac.errors import TaacError
from taac.runs import durable, files, layout
from taac.runs.terminal import warn_user

IDS = "loggers.json"  # in the run folder: the id of the run at each service, by the logger's name


class LoggedRun(NamedTuple):
    """What a logger is told of a run when it begins or resumes."""

    folder: Path
    name: str  # method, environment and seed
    about: Mapping[str, Any]  # run.json
    settings: Mapping[str, Any]  # of config.gin, with macros resolved; texts where they are no literals
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
    """The loggers of a run. One that raises an exception is left out from then on, with one warning.

    Args:
        given: the loggers.
    """

    def __init__(self, given: Sequence[Logger] | Logger = ()):
        self._given = tuple(given) if isinstance(given, Sequence) else (given,)
        for logger in self._given:
            if isinstance(logger, type) or not all(hasattr(logger, name) for name in ("name", "begin", "scalars", "end")):
                raise TaacError(
                    f"Trainer.loggers must be loggers, got {logger!r}; in a gin file: Trainer.loggers = @WandbLogger()"
                )
        if len({logger.name for logger in self._given}) < len(self._given):
            raise TaacError("Trainer.loggers has two loggers of one name; the second run would overwrite the first one's id")
        self.names = [logger.name for logger in self._given]
        self._active: list[Logger] = []

    def begin(self, folder: Path, env_steps: int) -> None:
        """Begins to log the run in a folder, or goes on with it."""
        self._active = list(self._given)

        def begin(logger: Logger) -> None:
            about, ids = layout.read_run(folder), _read_ids(folder)
            name = f"{about.get('method')}/{about.get('environment')}/seed_{about.get('seed')}"
            settings = {name: _literal(text) for name, text in layout.read_bindings(folder).items()}
            ids[logger.name] = found = logger.begin(
                LoggedRun(folder, name, about, settings, env_steps, ids.get(logger.name))
            )
            if not _is_id(found):
                warn_user(
                    f"warning: {logger.name} gave the run the id {found!r:.200}, which is not kept for when it is resumed: "
                    "expected 1 to 64 letters, digits, _ and -"
                )
            durable.write(folder / IDS, (json.dumps(ids) + "\n").encode())

        self._each(begin)

    def scalars(self, values: Mapping[str, float], env_steps: int) -> None:
        """Logs values by tag."""
        self._each(lambda logger: logger.scalars(values, env_steps))

    def end(self, finished: bool) -> None:
        """Ends logging."""
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
class WandbLogger:
    """Logs to Weights & Biases (`pip install 'taac[wandb]'`), with environment steps as the step.

    config.gin and run.json are attached as files, and the settings as the configuration. A resumed run goes on in the same W&B
    run; steps that it repeats are not logged twice.

    Args:
        project, entity, group, name, tags: as in `wandb.init`. By default the group is method and environment, and the name also
            has the seed.
        mode: "online", "offline" (`wandb sync` sends it later) or "disabled"; None: as the environment variable WANDB_MODE says.
    """

    name = "wandb"

    def __init__(
        self,
        project: str = "taac",
        entity: str | None = None,
        group: str | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        mode: Literal["online", "offline", "disabled"] | None = None,
    ):
        _need("wandb", "WandbLogger", "wandb")
        self._options: dict[str, Any] = {"project": project, "entity": entity, "tags": list(tags), "mode": mode}
        self._group, self._run_name = group, name
        self._run: Any = None

    def begin(self, run: LoggedRun) -> str:
        import wandb

        identity = run.id or secrets.token_hex(8)
        self._run = wandb.init(
            **self._options,
            id=identity,
            resume="allow",
            name=self._run_name or run.name,
            group=self._group or run.name.rpartition("/")[0],
            settings=wandb.Settings(console="off", save_code=False),
        )
        self._run.config.update(dict(run.settings), allow_val_change=True)
        self._folder = run.folder
        self._attach()
        return identity

    def _attach(self) -> None:
        for file in (layout.CONFIG, layout.RUN):
            self._run.save(str(self._folder / file), base_path=str(self._folder), policy="now")

    def scalars(self, values: Mapping[str, float], env_steps: int) -> None:
        if env_steps >= self._run.step:  # W&B refuses earlier steps, which a resumed run repeats
            self._run.log(dict(values), step=env_steps)

    def end(self, finished: bool) -> None:
        self._attach()
        self._run.finish(exit_code=0 if finished else 1)


@gin.configurable
class MlflowLogger:
    """Logs to MLflow (`pip install 'taac[mlflow]'`), with environment steps as the step.

    config.gin and run.json are artifacts, the settings are parameters. A resumed run goes on in the same MLflow run; steps that
    it repeats are logged twice, with equal values.

    Args:
        experiment: its name.
        tracking_uri: "http://server:5000", or "file:mlruns" for a folder. None: as the environment variable MLFLOW_TRACKING_URI
            says, or else "file:mlruns".
        name: of the run; by default method, environment and seed.
    """

    name = "mlflow"

    def __init__(self, experiment: str = "taac", tracking_uri: str | None = None, name: str | None = None):
        _need("mlflow", "MlflowLogger", "mlflow")
        self._experiment, self._run_name = experiment, name
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "file:mlruns"

    def begin(self, run: LoggedRun) -> str:
        if self._uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 asks for it
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client, self._folder = MlflowClient(self._uri), run.folder
        if run.id is not None:
            self._id = run.id
            self._client.update_run(self._id, status="RUNNING")
        else:
            found = self._client.get_experiment_by_name(self._experiment)
            experiment = found.experiment_id if found else self._client.create_experiment(self._experiment)
            tags = {name: str(run.about.get(name)) for name in ("method", "environment", "seed")}
            self._id = self._client.create_run(experiment, run_name=self._run_name or run.name, tags=tags).info.run_id
            params = [Param(name, str(value)[:500]) for name, value in run.settings.items()]
            for first in range(0, len(params), 100):  # the most that MLflow takes at once
                self._client.log_batch(self._id, params=params[first : first + 100])
        self._attach()
        return self._id

    def _attach(self) -> None:
        for file in (layout.CONFIG, layout.RUN):
            self._client.log_artifact(self._id, str(self._folder / file))

    def scalars(self, values: Mapping[str, float], env_steps: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(tag, value, now, env_steps) for tag, value in values.items()])

    def end(self, finished: bool) -> None:
        self._attach()
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


def _need(module: str, logger: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise TaacError(f"{logger} needs the package {module}: pip install 'taac[{extra}]', or leave it out of Trainer.loggers")


def _read_ids(folder: Path) -> dict[str, str]:
    """The ids of an earlier process of the run. What is no id is ignored, so that the run begins anew at the service."""
    try:
        found = files.read_bounded_json(folder / IDS, files.MAX_RUN_BYTES)
    except (OSError, files.Damaged):
        return {}
    ids = found.items() if isinstance(found, dict) else ()
    return {name: text for name, text in ids if _is_id(text)}


def _is_id(value: Any) -> bool:
    """Whether a value can be an id. Services make file names of it, and it may be read from a stranger's folder."""
    return isinstance(value, str) and re.fullmatch(r"[0-9A-Za-z_-]{1,64}", value) is not None


def _literal(text: str) -> Any:
    """A number, bool, None or text of a configuration; its gin text for everything else."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return text
    return value if isinstance(value, (int, float, str)) else text
