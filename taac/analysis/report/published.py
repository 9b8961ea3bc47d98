"""Published returns beside those of a comparison. They are of another protocol, so no verdict is made of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from taac.analysis.readers.events import LARGEST, MAX_STEP
from taac.analysis.report.scores import Scores
from taac.errors import TaacError
from taac.runs import files

MAX_BYTES = 4 << 20
MAX_TEXT = 500  # characters of a source or a protocol
TEXTS = ("task", "method", "source", "environment_version", "protocol")
NOTE = (
    "Published numbers are of another protocol, and mostly of other versions of the environment: they say roughly where a "
    "method should be. No verdict is made of them. A number is a mean +- standard deviation over n runs, unless "
    "its protocol says otherwise. Random steps that a source does not count are added to its step: 100000 + 10000."
)
EXAMPLE = (
    '{"returns": [{"task": "Hopper", "method": "sac", "env_steps": 100000, "mean": 2613, "sd": 991, "n": 10, '
    '"source": "..", "environment_version": "v3", "protocol": ".."}]}'
)


class Entry(NamedTuple):
    """One published return."""

    task: str  # an environment id, or one without its version
    method: str
    env_steps: int
    mean: float
    sd: float | None  # over seeds, unless the protocol says otherwise
    n: int
    source: str
    environment_version: str
    protocol: str
    uncounted_steps: int = 0  # random ones before the first step that it counts

    @property
    def all_steps(self) -> int:
        """The published step as a run here counts it."""
        return self.env_steps + self.uncounted_steps


def load(path: Path | None) -> list[Entry]:
    """Returns the entries of a file such as `experiments/results/published.json`; none without a file.

    Raises:
        TaacError: the file cannot be read, or an entry lacks something.
    """
    if path is None:
        return []
    try:
        content = files.read_json(path.resolve(), MAX_BYTES)
    except (OSError, files.Damaged) as error:
        raise TaacError(f"--published {path} cannot be read: {error}") from error
    given = content.get("returns") if isinstance(content, dict) else None
    if not isinstance(given, list):
        raise TaacError(f'--published {path} holds no "returns": expected {EXAMPLE}')
    return [_entry(path, number, entry) for number, entry in enumerate(given, 1)]


def _entry(path: Path, number: int, given: Any) -> Entry:
    given = given if isinstance(given, dict) else {}
    wrong = [name for name in TEXTS if not (isinstance(given.get(name), str) and 0 < len(given[name]) <= MAX_TEXT)]
    wrong += [name for name in ("env_steps", "n") if not (type(given.get(name)) is int and 0 < given[name] <= MAX_STEP)]
    uncounted = given.get("uncounted_steps", 0)
    wrong += [] if type(uncounted) is int and 0 <= uncounted <= MAX_STEP else ["uncounted_steps"]
    wrong += [] if _is_number(given.get("mean")) else ["mean"]
    sd = given.get("sd", "")
    wrong += [] if sd is None or (_is_number(sd) and sd >= 0) else ["sd"]
    if wrong:
        told = f"{', '.join(wrong)} of entry {number} {'is' if len(wrong) == 1 else 'are'} missing or wrong"
        raise TaacError(f"--published {path}: {told}; expected {EXAMPLE}, with null for an unknown sd")
    return Entry(**{name: given[name] for name in Entry._fields if name in given})


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= LARGEST


def beside(entries: list[Entry], scores: Mapping[str, Mapping[str, Scores]]) -> list[dict[str, Any]]:
    """Returns a row for each published return of a task and a method that are compared here.

    `here` is the mean, the standard deviation (n - 1) and the number of this comparison's runs at the evaluation that was due
    at the published step, with the steps that the source does not count. It is None unless all runs of the method have that
    evaluation. Diverged runs are left out of it, and `diverged` is their number.
    """
    return [
        {**entry._asdict(), "task": task, "here": _at(of, entry.all_steps), "diverged": len(of.records) - len(of.whole)}
        for task, methods in scores.items()
        for entry in entries
        for method, of in methods.items()
        if concerns(entry, task, method)
    ]


def unused(path: Path | None, entries: list[Entry], scores: Mapping[str, Mapping[str, Scores]]) -> list[str]:
    """A warning if a file has no entry for any task and method that are compared."""
    if path is None or beside(entries, scores):
        return []
    compared = ", ".join(f"{method} on {task}" for task, methods in scores.items() for method in methods)
    return [
        f"none of the {len(entries)} entries of --published {path.name} is of a task and a method compared here: {compared:.500}"
    ]


def concerns(entry: Entry, task: str, method: str) -> bool:
    """Whether an entry is of a method on an environment id, of any version if the entry names none."""
    return entry.method == method and entry.task in (task, re.sub(r"-v\d+$", "", task))


def _at(of: Scores, step: int) -> dict[str, Any] | None:
    found = [r.returns[r.evaluations["due"] == step] for r in of.whole]
    if not found or any(values.size != 1 for values in found):
        return None
    values = np.concatenate(found)
    return {
        "mean": float(values.mean()),
        "sd": float(values.std(ddof=1)) if values.size > 1 else math.nan,
        "n": int(values.size),
    }
