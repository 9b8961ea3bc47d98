"""Text in figures of matplotlib, where it must stay text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def literal_text() -> Iterator[None]:
    """Makes matplotlib draw `$` as it is, instead of reading it as the start of a formula. Also usable as a decorator.

    A name with an unmatched `$` could otherwise not be drawn at all, and one of many brackets would exceed Python's recursion.
    """
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False, "text.usetex": False}):
        yield
