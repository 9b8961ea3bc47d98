"""The exceptions of this package: `TaacError` for what a user can fix, `Interrupted` for a run that can be resumed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class TaacError(ValueError):
    """Bad input: the message says what was given, what was expected and what to do.

    Commands print it without a traceback and exit with a nonzero code.
    """


class NotFiniteError(TaacError):
    """A number is NaN or infinite where training needs finite numbers.

    Attributes:
        evidence: the tensors in which it was found, by path; see `taac.runs.inspection`.
    """

    def __init__(self, message: str, evidence: dict[str, Any] | None = None):
        super().__init__(message)
        self.evidence = evidence or {}


class DivergedError(NotFiniteError):
    """Training has diverged: an action of the policy, a loss, a gradient or a parameter is no longer finite."""


class NotTrusted(TaacError):
    """A configuration that is not trusted asks for more than acting needs, such as code of other packages."""


class EnvironmentFailed(TaacError):
    """An environment raised an exception or took too long, or its process died. The message names it and its last action."""


class RankLost(TaacError):
    """Another of the processes that train one run has ended or cannot be reached. The run can be resumed."""


class Interrupted(Exception):
    """A signal stopped the run, which has saved everything needed to resume. Commands exit with `RESUMABLE`."""


class Occupied(TaacError):
    """Another process trains in the run's folder. Commands exit with `OCCUPIED`."""


RESUMABLE = 75  # EX_TEMPFAIL of sysexits.h: "try again"
OCCUPIED = 69  # EX_UNAVAILABLE


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns `"; did you mean 'x'?"` for a name that does not exist, to end a message; "" if no name is similar."""
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean '{found[0]}'?" if found else ""


def refuse_below(least: float, owner: str, **values: float | None) -> None:
    """Refuses parameters of an object, by name, that are below `least`. None is left alone."""
    for name, value in values.items():
        if value is not None and not value >= least:
            raise TaacError(f"{owner}.{name} must be {least} or more, got {value}")


def first_line(error: BaseException) -> str:
    """Returns the type and the first line of an error, or of the one that torch's compiler wraps."""
    while isinstance(inner := getattr(error, "inner_exception", None), BaseException):
        error = inner
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip() if lines else ''}"
