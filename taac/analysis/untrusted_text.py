"""Text from run folders in tables and figures, where it must stay text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


def csv_cell(value: Any) -> Any:
    """Puts an apostrophe before a text that a spreadsheet would run as a formula. Returns any other value unchanged.

    Source: OWASP, "CSV Injection".
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


@contextlib.contextmanager
def literal_text() -> Iterator[None]:
    """Makes matplotlib draw `$` as it is, instead of reading it as the start of a formula. Also usable as a decorator.

    A name with an unmatched `$` could otherwise not be drawn at all.
    """
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False}):
        yield
