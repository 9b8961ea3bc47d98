"""Values that nobody expects, put anywhere into what JSON stands for."""

from __future__ import annotations

import math
import random
from typing import Any

from experiments.reliability.sandbox import CELL, ESCAPE, MARKER, SCRIPT

TEXTS = (
    SCRIPT, CELL, ESCAPE, "$\\frac", "\ud800", "x" * 3_000_000, "../../canary/home/240", "\0", "a\nb", "\u202e", "`touch x`",
)  # fmt: skip


class Pickled:
    """Unpickling it notes that it was imported."""

    def __reduce__(self) -> Any:
        return exec, (f"import {MARKER}",)


def wild(rng: random.Random) -> Any:
    """A JSON value that is not what was there."""
    values = [
        None, True, -1, 0, 1e308, -1e308, 10**30, 10**400, math.nan, math.inf, "", [], {}, [[]] * 1000, {"a": {"b": []}}, 0.5,
        {"$tensor": "none"}, {"$tuple": 3}, {"$items": [[[], 1]]}, list(range(1000)), 2**63, -(2**63), 1e300, "1",
    ]  # fmt: skip
    return rng.choice([rng.choice(values), rng.choice(values), rng.choice(TEXTS)])


def mutated(tree: Any, rng: random.Random) -> tuple[Any, str]:
    """The tree with one value in it replaced, removed, or doubled; and which."""
    at: list[Any] = []
    while isinstance(tree_at := _get(tree, at), (dict, list)) and len(tree_at) and (not at or rng.random() < 0.85):
        at.append(rng.choice(list(tree_at)) if isinstance(tree_at, dict) else rng.randrange(len(tree_at)))
    value = wild(rng)
    if not at:
        return value, f"all of it: {value!r:.60}"
    holder = _get(tree, at[:-1])
    if isinstance(holder, dict) and rng.random() < 0.2:
        del holder[at[-1]]
        return tree, f"without {'/'.join(map(str, at))}"
    holder[at[-1]] = value
    return tree, f"{'/'.join(map(str, at))[:80]} = {value!r:.60}"


def _get(tree: Any, at: list[Any]) -> Any:
    for key in at:
        tree = tree[key]
    return tree
