"""The lowest and highest possible return of each task: from `--bounds`, the runs' own task file, or the anchors."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence

from taac.analysis.bounds import Range
from taac.analysis.readers.run_records import RETURN_BOUNDS
from taac.analysis.report.anchors import Anchor
from taac.analysis.report.scores import Scores
from taac.errors import TaacError


def read(
    given: Sequence[str], scales: Mapping[str, Anchor], scores: Mapping[str, Mapping[str, Scores]], warnings: list[str]
) -> dict[str, Range]:
    """The bounds of every task that has some. Appends to `warnings` which declared bounds are not used, and why.

    Args:
        given: "LOW,HIGH" for all tasks, "TASK=LOW,HIGH" for one, or "none". They win over what task files declare
            (`create_experiment.return_bounds`), and that over the anchors.

    Raises:
        TaacError: a text is none of these, names a task without runs, or has a return outside of it.
    """
    everywhere, by_task, ignored = None, {}, False
    for text in given:
        task, _, ends = text.rpartition("=")
        if text == "none":
            ignored = True
        elif not task:
            everywhere = _range(ends, text)
        elif task in scores:
            by_task[task] = _range(ends, text)
        else:
            raise TaacError(f"--bounds {text}: there are no runs on {task}; there are on {', '.join(scores)}")
    found: dict[str, Range] = {}
    for task, methods in scores.items():
        asked = by_task.get(task, everywhere)
        limits = asked or (None if ignored else _declared(task, methods, scales, warnings))
        if limits is None:
            continue
        low, high = limits
        outside = [(m, v) for m, of in methods.items() for v in of.final if math.isfinite(v) and not low <= v <= high]
        if not outside:
            found[task] = limits
            continue
        method, score = outside[0]
        if asked:
            raise TaacError(
                f"{method} on {task} has a return of {score:g}, outside of the bounds {limits}; "
                "pass the lowest and highest possible return with --bounds, or --bounds none"
            )
        warnings.append(f"a return of {score:g} on {task} is outside of the declared bounds {limits}, so they are not used")
    return found


def _range(text: str, flag: str) -> Range:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise TaacError(
            f"--bounds {flag} is no range; pass the lowest and highest possible return as 0,1, or for one task as "
            "FetchReach-v4=0,1, or none"
        )
    return low, high


def _declared(
    task: str, methods: Mapping[str, Scores], scales: Mapping[str, Anchor], warnings: list[str]
) -> Range | None:
    texts = {r.statements.get(RETURN_BOUNDS, "None") for of in methods.values() for r in of.records}
    limits = _parsed(next(iter(texts))) if len(texts) == 1 else None
    if len(texts) > 1:
        warnings.append(f"runs on {task} declare different {RETURN_BOUNDS}, so none are used")
    return scales[task].bounds if limits is None and task in scales else limits


def _parsed(text: str) -> Range | None:
    """The bounds of a run's own binding, or None if it is no range of numbers."""
    try:
        low, high = ast.literal_eval(text[:200])
        low, high = float(low), float(high)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, OverflowError):
        return None
    return (low, high) if -math.inf < low < high < math.inf else None
