"""Names in gin files: short names, scopes."""

from __future__ import annotations


def short(selector: str) -> str:
    """Returns the name of a configurable without its module: "Learner" for "taac.learning.learner.Learner"."""
    return selector.rsplit(".", 1)[-1]


def enclosing_scopes(scope: str) -> list[str]:
    """Returns the scopes whose bindings apply in `scope`, the most specific first: "a/b", "a" and "" for "a/b"."""
    parts = scope.split("/") if scope else []
    return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]
