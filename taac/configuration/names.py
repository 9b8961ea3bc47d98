"""Names in gin files: the nearest real name, short names, scopes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns `"; did you mean 'x'?"`, or "" if no name is similar."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return f"; did you mean '{found[0]}'?" if found else ""


def short(selector: str) -> str:
    """Returns the name of a configurable without its module: "Learner" for "taac.learning.learner.Learner"."""
    return selector.rsplit(".", 1)[-1]


def enclosing_scopes(scope: str) -> list[str]:
    """Returns the scopes whose bindings apply in `scope`, the most specific first: "a/b", "a" and "" for "a/b"."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]
