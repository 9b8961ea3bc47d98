"""Reads all runs below a folder, in whatever state they are. A run with a problem becomes a record that names the problem."""

from __future__ import annotations

import ast
import math
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.analysis.readers import events
from taac.errors import TaacError
from taac.runs import files, history, layout
from taac.runs.layout import COLUMNS, MAX_NAME

LAST = 3  # evaluations whose mean is a run's number at its end
NO_EVALUATION = "it has no evaluation yet"
DAMAGED = "evaluations.csv is damaged"
_LONGEST_VALUE = 1000  # the most characters of a binding that is parsed
_MARKS = (layout.RUN, layout.EVALUATIONS)  # a folder with either of them is a run folder

# What a run says of itself, which changes nothing in it.
TUNING, RETURN_BOUNDS = "create_experiment.tuning", "create_experiment.return_bounds"
# Settings in which comparable runs of a method may differ.
_NO_MATTER = (
    TUNING, RETURN_BOUNDS,
    "create_experiment.seed", "create_experiment.method", "create_experiment.evaluation_video",
    "checkpoint_interval", "Intervals.checkpoint_interval", "Saving.keep_checkpoints", "Saving.save_best",
    "Saving.save_replay",
    "Evaluator.initial_evaluation", "Reporter.loggers",
    "RemoteCollector.launcher", "RemoteCollector.ray_address", "RemoteCollector.timeout", "RemoteCollector.max_replacements",
)  # fmt: skip


class Record(NamedTuple):
    """One run, as described by its folder."""

    folder: str  # relative to the root, with slashes
    method: str
    task: str | None  # environment id; None if unknown
    seed: int | None
    status: str  # "finished", "running" or another status in run.json; "unknown" without one
    budget: int | None  # planned environment steps
    update_ratio: float | None  # planned gradient steps per environment step
    versions: Mapping[str, str | None]  # of packages
    commit: str | None  # of this package; None if unknown
    products: str | None  # the matrix products of its updates; None if unknown
    statements: Mapping[str, str]  # what it binds of `TUNING` and `RETURN_BOUNDS`
    settings: Mapping[str, str]  # bindings of config.gin with macros resolved, without those that change nothing in the run
    evaluations: Mapping[str, np.ndarray]  # a column [n] for each of `layout.Table`, NaN where unknown
    scalars: Mapping[str, events.Scalar]  # by tag, from TensorBoard's event files; may be empty
    diverged: int | None  # environment step from which its numbers are not finite; None if it did not diverge
    problems: tuple[str, ...]  # reasons why it cannot be used
    notes: tuple[str, ...]  # repairs

    @property
    def steps(self) -> np.ndarray:
        return self.evaluations["env_steps"]

    @property
    def due(self) -> np.ndarray:
        """The steps at which its evaluations were due, where they are known; see `taac.analysis.report.scores.match`."""
        return self.evaluations.get("due", self.steps)

    @property
    def last_due(self) -> int | None:
        return int(self.due[-1]) if self.steps.size else None

    @property
    def returns(self) -> np.ndarray:
        return self.evaluations["return_mean"]

    @property
    def last_step(self) -> int | None:
        return int(self.steps[-1]) if self.steps.size else None

    def at_end(self, name: str = "return_mean") -> float:
        """Returns the mean of a column over the last evaluations of training; of the return, the final return of the run."""
        return float(self.evaluations[name][self.steps > 0][-LAST:].mean())


def find(root: Path) -> list[Record]:
    """Reads every run below a folder, at any depth, sorted by folder name.

    A folder with a run.json or an evaluations.csv is a run folder. Its method is `method` in run.json. Without that, it is
    `create_experiment.method` in config.gin, or else the algorithm bound to `create_agent.algorithm_ctor` there. Without
    any of these, it is the parent folder's name. A folder that cannot be listed, such as another user's, becomes a record that
    says so.

    Raises:
        TaacError: there is no such folder, or no run in it.
    """
    if not root.is_dir():
        raise TaacError(f"--root_dir {root} is not a folder; use one that holds runs of `taac train`")
    closed: dict[Path, str] = {}

    def note(error: OSError) -> None:
        folder = Path(error.filename)
        if not isinstance(error, FileNotFoundError) and not is_run(folder.parent):  # removed meanwhile; checkpoints of a run
            closed[folder] = f"the folder cannot be listed, so runs in it are unknown: {error.strerror}"

    found = {Path(folder) for folder, _, names in os.walk(root, onerror=note) if not set(_MARKS).isdisjoint(names)}
    if not found and not closed:
        raise TaacError(f"--root_dir {root} holds no run: no {' or '.join(_MARKS)} at any depth")
    records = {folder: read(folder, root) for folder in sorted({*found, *closed})}
    return [r._replace(problems=(closed[folder], *r.problems)) if folder in closed else r for folder, r in records.items()]


def is_run(folder: Path) -> bool:
    """Returns whether a folder is a run folder."""
    return any(os.path.lexists(folder / mark) and not (folder / mark).is_dir() for mark in _MARKS)


def read(folder: Path, root: Path) -> Record:
    """Reads one run. Anything missing or damaged becomes a problem or a note in the record, never an error."""
    problems: list[str] = []
    notes: list[str] = []
    about: dict[str, Any] = {}
    try:
        about = layout.read_run(folder)
    except FileNotFoundError:
        problems.append("there is no run.json")
    except (OSError, files.Damaged) as error:
        problems.append(f"run.json cannot be read: {error}")
    settings = _settings(folder, notes)
    evaluations = read_evaluations(folder, problems, notes)
    diverged, how = _divergence(about, evaluations)
    if diverged is not None and set(problems) <= {NO_EVALUATION}:
        problems = [f"diverged: {how} at step {diverged}"]
    if about.get("status") == "pruned":
        problems.append("a sweep pruned it")
    method = _method(about, settings, folder)
    named = (about.get("task"), about.get("environment"), _value(settings, "create_environment.env_name"))
    task = next(filter(layout.is_name, named), None)
    if task is None:
        problems.append("neither run.json nor config.gin names its task")
    for name in ("method", "task", "environment", "status"):
        if about.get(name) and not _text(about[name]):
            problems.append(f"run.json: {name!r} is not a name: expected printable text of at most {MAX_NAME} characters")
    versions = about.get("versions", {})
    if not (isinstance(versions, dict) and all(v is None or _text(v) for v in versions.values())):
        expected = 'an object of packages and their versions, text such as "2.13.0"'
        problems.append(f"run.json: 'versions' is not valid: expected {expected}")
        versions = {}
    summaries = events.read(folder)
    budget = _value(settings, "Intervals.num_env_steps")
    if budget is None and about.get("status") == "finished":
        budget = about.get("env_steps")
    notes += [*summaries.notes, *history.describe(about)]
    seed = about.get("seed", _value(settings, "create_experiment.seed"))
    loggers = re.findall(r"@([\w./]+)", settings.get("Reporter.loggers", ""))
    return Record(
        folder=_well_formed(folder.relative_to(root).as_posix()),
        method=method,
        task=task,
        seed=_count(seed),
        status=_text(about.get("status")) or "unknown",
        budget=_count(budget),
        update_ratio=_update_ratio(settings),
        versions=versions,
        commit=_text(about.get("commit")),
        products=_text(about.get("products")),
        statements={name: settings[name] for name in (TUNING, RETURN_BOUNDS) if name in settings},
        settings={
            name: value
            for name, value in settings.items()
            if name not in _NO_MATTER and name.rpartition(".")[0] not in loggers
        },
        evaluations=evaluations,
        scalars=summaries.scalars,
        diverged=diverged,
        problems=tuple(problems),
        notes=tuple(notes),
    )


# --- run.json and config.gin ----------------------------------------------------------------------


def _settings(folder: Path, notes: list[str]) -> dict[str, str]:
    try:
        return layout.read_bindings(folder)
    except (OSError, files.Damaged):
        notes.append("config.gin is missing or cannot be read, so its settings are not compared with those of other runs")
        return {}


def _value(settings: Mapping[str, str], name: str) -> Any:
    return value_of(settings.get(name, ""))


def value_of(text: str) -> Any:
    """Returns the value of a binding's text; None if it is no literal or too long."""
    if len(text) > _LONGEST_VALUE:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about unknown escape sequences
            return ast.literal_eval(text)
    # TypeError for {[]: 1}; RecursionError and MemoryError for deep nesting.
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def tuning(record: Record) -> str | None:
    """Returns what a run's settings were chosen for, in the words of whoever chose them; None if it does not say."""
    return _text(_value(record.statements, TUNING))


def _text(value: Any) -> str | None:
    """Returns the value if it is a printable name of at most `MAX_NAME` characters, else None."""
    return value if layout.is_name(value) else None


def _well_formed(text: str) -> str:
    """Returns a folder's name as text that can be encoded. Linux allows any bytes in names."""
    return text.encode("utf-8", "backslashreplace").decode()


def _count(value: Any) -> int | None:
    return value if type(value) is int and abs(value) <= events.MAX_STEP else None


def method_of(folder: Path, about: Mapping[str, Any]) -> str:
    """Returns the name of a run's method, found as in `find`. `about` is the content of its run.json."""
    return _method(about, _settings(folder, []), folder)


def _method(about: Mapping[str, Any], settings: Mapping[str, str], folder: Path) -> str:
    if method := _text(about.get("method")) or _text(_value(settings, "create_experiment.method")):
        return method
    algorithm = re.fullmatch(r"@(?:\w+/)*(?:\w+\.)*(\w+)(?:\(\))?", settings.get("create_agent.algorithm_ctor", ""))
    if algorithm and _text(algorithm[1]):
        return algorithm[1]
    return _well_formed(folder.resolve().parent.name)


def _update_ratio(settings: Mapping[str, str]) -> float | None:
    """Returns `updates_per_env_step`, or without it `updates_per_iteration / (unroll_length * num_envs)`.

    None if updates follow another clock, or the ratio a schedule.
    """
    if _value(settings, "UpdateRatio.update_clock") not in (None, "env_steps"):
        return None
    ratio = _value(settings, "UpdateRatio.updates_per_env_step")
    if _number_of(ratio) is not None:
        return ratio
    if settings.get("UpdateRatio.updates_per_env_step", "").startswith("@"):
        return None
    names = ("UpdateRatio.updates_per_iteration", "UpdateRatio.unroll_length", "create_environment.num_envs")
    updates, unroll, envs = (_number_of(_value(settings, name)) for name in names)
    return None if updates is None or not unroll or not envs else updates / (unroll * envs)


def _number_of(value: Any) -> float | None:
    """Returns the value if it is a finite number of ordinary magnitude, else None."""
    if type(value) not in (int, float) or not abs(value) <= events.MAX_STEP:
        return None
    return value if value == 0 or abs(value) >= 1 / events.MAX_STEP else None


def _divergence(about: Mapping[str, Any], evaluations: Mapping[str, np.ndarray]) -> tuple[int | None, str]:
    """Returns the step at which the run diverged, and the evidence: an evaluation, or what ended the training."""
    wrong = evaluations["env_steps"][~np.isfinite(evaluations["return_mean"])]
    if wrong.size:
        return int(wrong[0]), "the return is not a finite number"
    if about.get("status") == "finished":
        return None, ""
    # A run that is trained again has diverged until it gets further than before.
    found = [history.diverged_at(entry) for entry in (about, *history.entries(about, "resumed"))]
    last = max(evaluations["env_steps"], default=0)
    at = min((at for at in found if at is not None and at >= last), default=None)
    return (None, "") if at is None else (at, "training met numbers that are not finite,")


# --- evaluations.csv ------------------------------------------------------------------------------


def read_evaluations(folder: Path, problems: list[str], notes: list[str]) -> dict[str, np.ndarray]:
    """Reads the columns of `layout.Table`, `[n]` each, by rising step. Appends to `problems` and `notes`.

    A damaged file (`layout.read_evaluations`) is a problem, and is read up to the damage. A last line without line end is left
    out with a note. A missing column is NaN. Rows with a step out of range, or with a number beyond `events.LARGEST`, are left
    out with a problem.
    """
    rows = []
    impossible: list[str] = []
    columns, found = _rows(folder, problems, notes)
    for row in found:
        far = (f"{v:g} for {name}" for v, name in zip(row, columns) if events.LARGEST < abs(v) < math.inf)
        why = f"{row[0]:g} for env_steps" if not 0 <= row[0] <= events.MAX_STEP else next(far, None)
        if why is None:
            rows.append(row)
        else:
            impossible.append(f"the first at step {row[0]:g}: {why}")
    if impossible:
        problems.append(f"evaluations.csv has impossible numbers in {len(impossible)} row(s), {impossible[0]}")
    if not problems and not rows:
        problems.append(NO_EVALUATION)
    return dict(zip(columns, np.array(rows, dtype=np.float64).reshape(-1, len(columns)).T))


def _rows(folder: Path, problems: list[str], notes: list[str]) -> tuple[tuple[str, ...], list[list[float]]]:
    try:
        table = layout.read_evaluations(folder)
    except FileNotFoundError:
        problems.append("there is no evaluations.csv")
        return COLUMNS, []
    except (OSError, files.Damaged) as error:
        problems.append(f"evaluations.csv cannot be read: {error}")
        return COLUMNS, []
    if table.torn:
        notes.append("the last line of evaluations.csv is torn, left out; resuming the run mends it, or delete that line")
    if table.damage:
        problems.append(f"{DAMAGED}: {table.damage}")
    if needed := sorted({"env_steps", "return_mean"} & set(table.missing)):
        problems.append(f"evaluations.csv has no column {' or '.join(needed)}")
        return COLUMNS, []
    if table.missing:
        notes.append(f"evaluations.csv has no column {', '.join(table.missing)}")
    return table.columns, table.rows
