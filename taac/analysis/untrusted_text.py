"""Text from run folders in tables, where it must stay text."""

from __future__ import annotations

from typing import Any


def csv_cell(value: Any) -> Any:
    """Puts an apostrophe before a text that a spreadsheet would run as a formula. Returns any other value unchanged.

    Source: OWASP, "CSV Injection".
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
