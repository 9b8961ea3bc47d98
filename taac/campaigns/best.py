"""The best trial of a sweep as a gin file that trains it again, with a statement of what tuning took."""

from __future__ import annotations

from pathlib import Path

from taac.campaigns.sweep import OBJECTIVES, Record, Sweep, Trial
from taac.configuration import Asked, Config, load, search_path
from taac.configuration.reading import find_file
from taac.errors import TaacError
from taac.runs import durable, layout

_FLAGS = ("--task", "--set", "--num_env_steps", "--gin_param")
_TUNING = "create_experiment.tuning"


def statement(sweep: Sweep, record: Record, steps: int) -> str:
    """Returns what tuning took, in a line of at most `layout.MAX_NAME` characters: trials, seeds, steps, objective, settings.

    Args:
        sweep, record: the sweep and its trials.
        steps: environment steps of a run.
    """
    ended = [trial for trial in record.trials if trial.state != "running"]
    taken = sum(trial.reports[-1][0] for trial in record.trials if trial.reports)
    early = ", ".join(f"{n} {state}" for state in ("pruned", "diverged", "failed") if (n := record.count(state)))
    told = (
        f"taac sweep: {len(ended)} trials{f' ({early})' if early else ''} x {len(sweep.seeds)} seeds x {steps} steps, "
        f"{taken} steps in all, {OBJECTIVES[sweep.objective]}, of {' '.join(d.name for d in sweep.dimensions)}"
    )
    return told if len(told) <= layout.MAX_NAME else f"{told[: layout.MAX_NAME - 3]}..."


def write(path: Path, asked: Asked, trial: Trial, told: str, about: str) -> None:
    """Writes a gin file that trains a trial, and checks that it does.

    Args:
        path: the file.
        asked: the experiment of the trial, without a seed.
        trial: what it is of.
        told: the statement of `statement`.
        about: a line on how good it is.

    Raises:
        TaacError: the file would bind something else than the trial had.
    """
    loaded = asked.load()
    again = f"#   taac train --root_dir R --gin_file {path.name}"
    lines = [f"# The best trial of a sweep: {trial.number}, {about}", f"# {told}", "#", again]
    lines += ["", *(f"import {module}" for module in sorted(loaded.imports))]
    lines += [*(f"include {_name(file)!r}" for file in asked.files()), ""]
    lines += [b.line for b in loaded.bindings.values() if b.where in _FLAGS and b.parameter != _TUNING]
    lines += [f"{_TUNING} = {told!r}", ""]
    durable.write(path, "\n".join(lines).encode())
    wanted, found = _values(loaded), _values(load([str(path.absolute())]))
    if wanted != found:
        names = sorted(name for name in {**wanted, **found} if wanted.get(name) != found.get(name))
        raise TaacError(f"{path} does not bind what trial {trial.number} had: {', '.join(names)}; use its config.gin")


def _values(config: Config) -> dict[str, str]:
    return {b.parameter: repr(b.value) for b in config.bindings.values() if b.parameter != _TUNING}


def _name(file: str) -> str:
    """The name to include a file by: from the repository or package if it is theirs, or else its whole path."""
    path = find_file(file).resolve()
    for folder in search_path():
        if path.is_relative_to(folder / "gin") or path.is_relative_to(folder / "experiments"):
            return path.relative_to(folder).as_posix()
    return str(path)
