"""The one exception for what a user can mend, and the one for what goes on when called again."""

from __future__ import annotations

from typing import Any


class TaacError(ValueError):
    """Bad input: the message says what was given, what was expected and what to do.

    Commands print it without a traceback and exit with a code that is not 0.
    """


class NotFiniteError(TaacError):
    """A number is NaN or infinite where training needs finite ones.

    Attributes:
        evidence: what it was found among, tensors by path; see `taac.runs.inspection`.
    """

    def __init__(self, message: str, evidence: dict[str, Any] | None = None):
        super().__init__(message)
        self.evidence = evidence or {}


class DivergedError(NotFiniteError):
    """Training has diverged: the policy's actions, a loss, a gradient or a parameter are no longer finite numbers."""


class EnvironmentFailed(TaacError):
    """An environment raised an exception, took too long, or its process died: the message says which, and after what."""


class Interrupted(Exception):
    """Stopped by a signal, with all that is needed to go on: commands exit with `RESUMABLE`."""


RESUMABLE = 75  # EX_TEMPFAIL of sysexits.h: "try again"
