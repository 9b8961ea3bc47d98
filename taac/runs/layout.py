"""The content of a run folder: file names, columns, and readers. Imports neither torch nor gin.

`run_folder` writes what is read here. The readers also read folders from elsewhere, so they all limit the size of files.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from taac.runs import files
from taac.runs.files import Damaged

CONFIG = "config.gin"  # the full operative configuration, which re-runs the run
RUN = "run.json"  # status, versions, seed, environment, command, start and end
EVALUATIONS = "evaluations.csv"  # one row per evaluation
CHECKPOINTS, BEST = "checkpoints", "best"  # folders: the last checkpoints, and the agent of the best evaluation
LOCK = ".lock"
EVENTS = "events.out.tfevents.*"  # TensorBoard's event files
MAX_NAME = 200  # the most characters of the name of a method, a task or a version
COMPARISON = "compare.json"  # status of every run of `taac compare`, in the folder that holds the runs


class EpisodeSummary(NamedTuple):
    """Averages over episodes."""

    episodes: int
    return_mean: float
    return_std: float
    length: float
    fraction_repeated: float  # of all environment steps
    mean_run: float  # environment steps per run of one decision
    max_run: int
    decisions: float  # per episode
    jerk: float
    fraction_same: float  # of all environment steps, computed from the actions alone and not from the method's own record
    action_change: float
    effort: float
    high_frequency: float  # NaN of episodes of training
    multiply_adds: float  # per episode; NaN of episodes of training
    info: dict[str, float] = {}  # what the environment reports, by name; see `create_environment.info`  # noqa: RUF012

    def numbers(self) -> dict[str, float]:
        """Returns all numbers by name; those that the environment reports as "info/NAME"."""
        return {**{k: v for k, v in self._asdict().items() if k != "info"}, **{INFO + k: v for k, v in self.info.items()}}


INFO = "info/"  # begins the names of numbers that the environment reports
COLUMNS = (  # of evaluations.csv; after them are those that the environment reports
    "env_steps", "updates", "training_decisions", "seconds", *(name for name in EpisodeSummary._fields if name != "info")
)  # fmt: skip
_NEEDED = ("env_steps", "return_mean")  # never empty
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|nan|[+-]?inf", re.ASCII)


class Table(NamedTuple):
    """The content of evaluations.csv."""

    columns: tuple[str, ...]  # COLUMNS, then those that the environment reports
    rows: list[list[float]]  # [n][columns] up to the first damaged line, by rising step; NaN where unknown
    missing: list[str]  # columns that the file lacks
    torn: bool  # whether the last line was incomplete and left out, as a kill leaves it; resuming the run mends it
    damage: str | None  # the first damaged line and what is wrong with it


def number_of_event_file(name: str) -> int | None:
    """Returns the number of a run's own event file, from 0; None if another program wrote the file."""
    found = re.search(r"\.taac-(\d{1,18})-[0-9a-f]{16}$", name)
    return int(found[1]) if found else None


def is_name(value: Any) -> bool:
    """Returns whether a value is printable text of 1 to `MAX_NAME` characters."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable()


def run_folder(root: str | Path, task: str, method: str, seed: int) -> Path:
    """Returns the folder of one run of a task and a method below `root`. What is safe in a name stays, the rest becomes `_`."""
    names = (re.sub(r"[^\w.-]+", "_", name).lstrip(".") or "_" for name in (task, method))
    return Path(root, *names, f"seed_{seed}")


def read_run(folder: Path) -> dict[str, Any]:
    """Returns the content of run.json. Raises as `files.read_json`, and Damaged if it is no JSON object."""
    content = files.read_json(folder / RUN, files.MAX_RUN_BYTES)
    if not isinstance(content, dict):
        raise Damaged(f"{RUN} holds a {type(content).__name__}, expected a JSON object")
    return content


def is_finished(folder: Path) -> bool:
    """Returns whether run.json exists and its status is "finished"."""
    try:
        return read_run(folder).get("status") == "finished"
    except (OSError, Damaged):
        return False


def read_bindings(folder: Path) -> dict[str, str]:
    """Returns the bindings of config.gin; see `parse_bindings`. Raises as `files.read_text`."""
    return parse_bindings(files.read_text(folder / CONFIG, files.MAX_CONFIG_BYTES))


def due_step(steps: int, interval: int, budget: int | None) -> int:
    """Returns the step at which an evaluation at `steps` was due: the multiple of the interval that was reached, or the end.

    It comes later where an iteration takes several steps, or an action lasts several.
    """
    due = steps // interval * interval
    return budget if budget is not None and due < budget <= steps else due


def parse_bindings(text: str) -> dict[str, str]:
    """Returns name -> value, both as text, of each binding of an operative configuration. Macros are replaced by values."""
    parts: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        binding = re.match(r"([\w./]+) = (.*)$", line)
        if binding:
            name = binding[1]
            parts[name] = [binding[2].removesuffix("\\").strip()]
        elif name and line[:1].isspace() and line.strip():  # a long value continues
            parts[name].append(line.strip())
        else:
            name = ""
    bindings = {name: " ".join(lines).strip() for name, lines in parts.items()}
    return {name: _resolved(value, bindings) for name, value in bindings.items()}


def _resolved(value: str, bindings: Mapping[str, str], depth: int = 8) -> str:
    """Returns a value, or the value of the macro that it names. Macros that name each other are left as they are."""
    if depth and value.startswith("%") and value[1:] in bindings:
        return _resolved(bindings[value[1:]], bindings, depth - 1)
    return value


_REWARDS = {
    "False": "raw",
    "True": "normalised, with their mean subtracted",
    "'scale'": "divided by the standard deviation of returns",
    "'bounded'": "divided so that returns stay within the critics' range",
}
_LONGEST = 100  # characters of a value in words


def deciding(settings: Mapping[str, str], update_ratio: float | None) -> dict[str, str]:
    """Returns the learning rate, random steps, rewards, updates a step and batch of a run, each as label and value.

    What the `settings` of `parse_bindings` lack is "not stated". `update_ratio` is None if it is no constant.
    """

    def value(name: str) -> str:
        return settings.get(name, "not stated")[:_LONGEST]

    clip, normalized = value("create_agent.reward_clip"), value("create_agent.normalize_rewards")
    rewards = _REWARDS.get(normalized, normalized)
    if rewards != "raw" and clip not in ("None", "not stated"):
        rewards += f", clipped at {clip}"
    length = value("Trainer.segment_length")
    without = {("create_experiment.offline", "True"), ("create_collector.uniform_initial_collect", "False")} & {*settings.items()}
    return {
        "learning rate": value("Learner.learning_rate"),
        "random steps first": "0" if without else value("UpdateRatio.initial_collect_steps"),
        "rewards": rewards,
        "updates a step": "no constant" if update_ratio is None else f"{update_ratio:g}",
        "batch": f"{value('Trainer.batch_size')} x {length} frames",
    }


def read_evaluations(folder: Path) -> Table:
    """Returns the content of evaluations.csv. Raises as `files.read_text`, and Damaged if it is no table.

    Leaves out an incomplete last line, because a number that lost its last digits would still read as a number. Every other
    line must be as `RunFolder.add_evaluation` writes it: a value for every column of the first line, each a number or empty,
    and a whole step after the step before. Reading ends at the first line that is not.
    """
    text = files.read_text(folder / EVALUATIONS, files.MAX_EVALUATIONS_BYTES)
    whole = text[: text.rfind("\n") + 1]
    reader = csv.reader(io.StringIO(whole, newline=""))
    rows: list[list[float]] = []
    damage = None
    try:
        names = next(reader, [])
        missing = [name for name in COLUMNS if name not in names]
        columns = (*COLUMNS, *(name for name in names if name.startswith(INFO)))
        if len(set(names)) < len(names):
            damage = "line 1 names a column twice"
        for cells in () if damage or "env_steps" in missing else reader:
            if not cells:  # an empty line
                continue
            row = [_number(cell) for cell in cells]
            damage = _flaw(names, cells, row, rows[-1][0] if rows else -math.inf, columns)
            if damage:
                damage = f"line {reader.line_num} {damage}"
                break
            values = dict(zip(names, row))
            rows.append([values.get(name, math.nan) for name in columns])  # type: ignore[misc]
    except csv.Error as error:
        raise Damaged(f"it is not a table: {error}") from error
    return Table(columns, rows, missing, whole != text, damage)


def _flaw(
    names: Sequence[str], cells: Sequence[str], row: Sequence[float | None], last: float, columns: Sequence[str]
) -> str | None:
    """Returns what is wrong with a row, its texts and the numbers in them, after one at step `last`; or None."""
    if len(cells) != len(names):
        return f"has {len(cells)} values for {len(names)} columns"
    for name, cell, number in zip(names, cells, row):
        if (number is None or (not cell and name in _NEEDED)) and name in columns:
            return f"has {cell[:20]!r} for {name}, expected a number"
    step: Any = row[names.index("env_steps")]
    if not step.is_integer():
        return f"has {step:g} for env_steps, expected a whole number"
    return f"has step {step:.0f} after step {last:.0f}" if step <= last else None


def _number(text: str) -> float | None:
    """Returns a number as Python writes it, NaN for nothing, or None for any other text."""
    if not text:
        return math.nan
    number = float(text) if _NUMBER.fullmatch(text) else None
    return None if number is not None and math.isinf(number) and "inf" not in text else number  # too many digits
