"""Names in pictures as they are written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def literal_text() -> Iterator[None]:
    """Within it, or within a function that it decorates, matplotlib takes no `$` for the beginning of a formula.

    A name with a `$` that begins none could not be drawn at all.
    """
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False}):
        yield
