"""Text for terminals, which obey control characters."""

from __future__ import annotations

import contextlib
import sys
import unicodedata


def is_one_line(text: str) -> bool:
    """Returns whether a text, such as a file name, fits on one line: no line ends, control characters or lone surrogates."""
    return not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in text)


def warn_user(message: str) -> None:
    """Prints a warning on standard error. Where nobody can read it any more, it is lost: it must not end a run."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: it has been closed
        print(f"taac: {printable(message)}", file=sys.stderr, flush=True)


def shortened(text: object, most: int = 20_000) -> str:
    """Returns at most `most` characters of a message, which may quote a whole file, and how many more there are."""
    whole = str(text)
    return whole if len(whole) <= most else f"{whole[:most]}... and {len(whole) - most} characters more"


def printable(text: object) -> str:
    """Escapes text from files for a terminal, so that it cannot clear the screen, hide lines, or fail to encode.

    What is not printable, such as control characters other than line ends and tabs, marks that change the text direction, and
    lone surrogates, becomes escapes such as `\\x1b`. Spaces of all kinds stay.
    """
    shown = lambda c: c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs"  # noqa: E731
    return "".join(c if shown(c) else c.encode("unicode_escape").decode() for c in str(text))
