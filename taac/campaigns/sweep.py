"""A sweep: trials of settings, each trained with several seeds; its record in `sweep.json`, and the best trial in `best.gin`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gin

from taac.campaigns import search_space
from taac.campaigns.comparison import list_seeds
from taac.campaigns.search_space import Dimension
from taac.configuration import RunRequest, gin_state, search_path
from taac.configuration.reading import find_file
from taac.errors import TaacError
from taac.runs import durable, files, layout

RECORD, BEST = "sweep.json", "best.gin"
FIRST_SEED = 1000  # so that the seeds of a sweep are not those of a comparison, which begin at 0
STATES = ("running", "complete", "pruned", "diverged", "failed")
OBJECTIVES = {
    "mean": "mean of final returns",
    "area": "mean area under the curve",
}
_MOST_TRIALS = 100_000


@gin.configurable
class Sweep:
    """What a sweep searches, and how. Bound by a gin file, or given by the flags of `taac sweep`.

    Args:
        search: settings and their values, `NAME=LOW..HIGH`, `NAME=log:LOW..HIGH` or `NAME=A|B`; see `search_space`.
        trials: number of settings that are tried.
        seeds, first_seed: each trial has the seeds `first_seed`, ..., `first_seed + seeds - 1`; or `seeds` lists them.
        objective: what is maximised over the seeds of a trial: "mean", that of final returns, or "area", that of areas under the
            curve. A final return is the mean of the last `last_evaluations` evaluations, as in reports.
        last_evaluations: see above.
        pruner: stops trials whose evaluations are worse than those of others. "median": than the median of the earlier
            trials at the same step, once 5 are complete and after a quarter of the first seed; "none".
        sampler: "tpe", which learns from earlier trials, or "random".
        sampler_seed: decides what is tried.
    """

    def __init__(
        self,
        search: tuple[str, ...] = (),
        trials: int = 20,
        seeds: int | Sequence[int] = 3,
        first_seed: int = FIRST_SEED,
        objective: Literal["mean", "area"] = "mean",
        last_evaluations: int = 3,
        pruner: Literal["median", "none"] = "median",
        sampler: Literal["tpe", "random"] = "tpe",
        sampler_seed: int = 0,
    ):
        for name, value in (("trials", trials), ("last_evaluations", last_evaluations)):
            if not 1 <= value <= _MOST_TRIALS:
                raise TaacError(f"--{name} must be from 1 to {_MOST_TRIALS}, got {value}")
        if sampler_seed < 0:
            raise TaacError(f"--sampler_seed must be 0 or more, got {sampler_seed}")
        self.seeds = list_seeds(seeds, first_seed, FIRST_SEED)
        self.dimensions, self.search = search_space.parse(search), tuple(search)
        self.trials, self.objective, self.last_evaluations = trials, objective, last_evaluations
        self.pruner, self.sampler, self.sampler_seed = pruner, sampler, sampler_seed

    def settings(self) -> dict[str, Any]:
        """Returns what must stay when a sweep goes on. The number of trials may rise."""
        names = ("search", "seeds", "objective", "last_evaluations", "pruner", "sampler", "sampler_seed")
        return {name: _plain(getattr(self, name)) for name in names}


class Trial(NamedTuple):
    """One point of the search space."""

    number: int
    texts: Mapping[str, str]  # value of each setting, in the words of --set
    state: str = "running"  # one of STATES
    value: float | None = None  # the objective of a complete trial
    reports: tuple[tuple[int, float], ...] = ()  # what pruning looked at: step over all seeds, value
    why: str | None = None  # of a trial that ended early

    def words(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.texts.items()]

    def __str__(self) -> str:
        return " ".join(self.words())


class Record:
    """The trials of a sweep, by number, in a file that is whole at any moment. It holds JSON only; nothing in it is run.

    Args:
        folder: of the sweep.
        settings: what was asked for.
        dimensions: the search space.

    Raises:
        TaacError: the folder holds something else, or a sweep of other settings; or the file is damaged.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], dimensions: Sequence[Dimension]):
        self.path, self._settings, self.trials = folder / RECORD, _plain(settings), list[Trial]()
        if folder.exists() and not folder.is_dir():
            raise TaacError(f"--root_dir {folder} is a file; give a folder")
        if not files.check_file(self.path):
            if folder.exists() and any(p.name != layout.LOCK and not durable.is_temporary(p.name) for p in folder.iterdir()):
                raise TaacError(f"--root_dir {folder} is not empty and holds no sweep ({RECORD}); give a new or empty folder")
            return
        try:
            content = files.read_json(self.path, files.MAX_JSON_BYTES)
            held, trials = dict(content["settings"]), content["trials"]
            if held == self._settings:
                self.trials = [_trial(number, entry, dimensions) for number, entry in enumerate(trials)]
        except (OSError, files.Damaged, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            why = f"{type(error).__name__}: {str(error)[:200]}"
            raise TaacError(f"{self.path} cannot be read: {why}. Give another folder") from error
        if held != self._settings:
            names = [name for name in {**held, **self._settings} if held.get(name) != self._settings.get(name)]
            lines = [f"{n!r:.50}: {held.get(n)!r:.200}, not {self._settings.get(n)!r:.200}" for n in names[:20]]
            raise TaacError(
                f"{folder} holds a sweep of other settings; nothing was started. Give another folder. It has:\n  "
                + "\n  ".join(lines)
            )

    def put(self, trial: Trial) -> Trial:
        """Adds a trial, or replaces the one of its number. Writes the file."""
        if trial.number == len(self.trials):
            self.trials.append(trial)
        self.trials[trial.number] = trial
        self.path.parent.mkdir(parents=True, exist_ok=True)
        trials = [{**t._asdict(), "texts": dict(t.texts)} for t in self.trials]
        durable.write(self.path, (json.dumps({"settings": self._settings, "trials": trials}, indent=1) + "\n").encode())
        return trial

    def retry_failed(self) -> None:
        """Makes trials that failed run again: what failed may have been mended since. Those that diverged have a result."""
        for trial in self.trials:
            if trial.state == "failed":
                self.put(trial._replace(state="running", why=None))

    def best(self) -> Trial | None:
        """Returns the complete trial with the greatest value; the first of equals. None without one."""
        complete = [trial for trial in self.trials if trial.state == "complete"]
        return max(complete, key=lambda trial: (trial.value, -trial.number)) if complete else None

    def count(self, *states: str) -> int:
        return sum(trial.state in states for trial in self.trials)


def _trial(number: int, entry: Any, dimensions: Sequence[Dimension]) -> Trial:
    """Reads a trial, or raises ValueError: the file may be a stranger's, and its texts are settings of runs."""
    trial = Trial(**{**entry, "reports": tuple((step, mean) for step, mean in entry["reports"])})
    for dimension in dimensions:
        dimension.value(trial.texts[dimension.name])
    if not (
        trial.number == number and trial.state in STATES and list(trial.texts) == [d.name for d in dimensions]
        and (trial.value is None) == (trial.state != "complete") and (trial.why is None or isinstance(trial.why, str))
        and all(_is_number(n) for n in ([] if trial.value is None else [trial.value]))
        and all(type(step) is int and step >= 0 and _is_number(mean) for step, mean in trial.reports)
    ):  # fmt: skip
        raise ValueError(f"trial {number} is none of this sweep")
    return trial


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _plain(value: Any) -> Any:
    """Returns a value as JSON reads it back."""
    return json.loads(json.dumps(value))


# The best trial ------------------------------------------------------------------------------------------------------

_FLAGS = ("--task", "--method", "--set", "--num_env_steps", "--gin_param")
_TUNING = "create_experiment.tuning"


def statement(sweep: Sweep, record: Record, steps: int) -> str:
    """Returns what tuning took, in a line of at most `layout.MAX_NAME` characters. `steps` are environment steps of a run."""
    taken = sum(trial.reports[-1][0] for trial in record.trials if trial.reports)
    early = ", ".join(f"{n} {state}" for state in ("pruned", "diverged", "failed") if (n := record.count(state)))
    told = (
        f"taac sweep: {record.count(*STATES[1:])} trials{f' ({early})' if early else ''} x {len(sweep.seeds)} seeds x {steps} "
        f"steps, {taken} steps in all, {OBJECTIVES[sweep.objective]}, of {' '.join(d.name for d in sweep.dimensions)}"
    )
    return told if len(told) <= layout.MAX_NAME else f"{told[: layout.MAX_NAME - 3]}..."


def write_best(path: Path, request: RunRequest, trial: Trial, told: str, about: str) -> None:
    """Writes a gin file that trains a trial.

    `request` is the experiment of the trial, without a seed; `told` is from `statement`, `about` a line on how good the trial is.
    """
    loaded = request.load()
    lines = [f"# The best trial of a sweep: {trial.number}, {about}", f"# {told}", "#"]
    lines += [f"#   taac train --root_dir R --gin_file {path.name}", ""]
    lines += [f"import {module}" for module in sorted(loaded.imports)]
    parts = (part for text in request.gin_params for part in gin_state.statements(text))
    given = (part.filename for part in parts if isinstance(part, gin_state.Include))
    lines += [*(f"include {_including_name(file)!r}" for file in (*request.files(), *given)), ""]
    lines += [b.line for b in loaded.bindings.values() if b.where in _FLAGS and b.parameter != _TUNING]
    lines += [f"{_TUNING} = {told!r}", ""]
    durable.write(path, "\n".join(lines).encode())


def _including_name(file: str) -> str:
    """Returns the name to include a file by: from the repository or package if it is theirs, or else its whole path."""
    path = find_file(file).resolve()
    for folder in search_path():
        if path.is_relative_to(folder / "gin") or path.is_relative_to(folder / "experiments"):
            return path.relative_to(folder).as_posix()
    return str(path)
